reward_of = {"A": 4, "B": 3, "C": 6, "D": 5, "E": 1, "F": 2}


def corrected(answer, fp, fn):
    """(N,) answers, 0 or 1, of a verifier with these error rates -> (N,) unbiased ones."""
    return (answer - fp) / (1 - fp - fn)
