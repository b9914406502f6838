# By autograd: w is minus the gradient on the logits, divided by pi.


def weights(divergence, policy, teacher):
    logits = policy.clone().requires_grad_()
    divergence(logits.log_softmax(-1), teacher).sum().backward()
    return -logits.grad / policy.exp()


def off_policy(policy, teacher):
    return weights(lambda pi, other: kl(other, pi), policy, teacher)  # noqa: F821


def on_policy(policy, teacher):
    return weights(kl, policy, teacher)  # noqa: F821
