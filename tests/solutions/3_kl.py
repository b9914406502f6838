def member(d, w):
    """(N,) and a number -> (N,) estimates."""
    return -d + w * d.expm1()


def best_weight(d):
    """(N,) -> the w for which member(d, w) has the smallest variance."""
    k1 = -d
    e = d.exp()
    return -((k1 - k1.mean()) * (e - e.mean())).mean() / e.var(correction=0)
