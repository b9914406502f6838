import torch


def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask):
    """The mean of the completions' means of -min(rho A, clip(rho, 0.8, 1.2) A): a scalar."""
    advantage = advantages[:, None]  # (B, 1)
    ratio = torch.exp(log_probs - old_log_probs)  # (B, T)
    clipped = ratio.clamp(0.8, 1.2)
    # min(rho A, clip(rho) A): of a negative advantage it is the larger ratio.
    bound = torch.where(advantage < 0, torch.maximum(ratio, clipped), torch.minimum(ratio, clipped))
    token_loss = -bound * advantage
    return ((token_loss * mask).sum(dim=1) / mask.sum(dim=1)).mean()
