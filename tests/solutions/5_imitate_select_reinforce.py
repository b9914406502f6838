def off_policy(policy, teacher):
    """Log-probs (N, V), (N, V) -> weights (N, V)."""
    return (teacher - policy).exp()


def on_policy(policy, teacher):
    """Log-probs (N, V), (N, V) -> weights (N, V), whose mean under the policy is 0."""
    weights = teacher - policy
    return weights - (policy.exp() * weights).sum(dim=-1, keepdim=True)
