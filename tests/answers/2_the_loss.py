# As nano_r1.py computes it.

import nano_r1


def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask):
    batch = {"old_log_probs": old_log_probs, "response_mask": mask, "completions": len(mask)}
    batch["advantages"] = advantages[:, None]
    return nano_r1.grpo_loss(log_probs, batch, nano_r1.Config(kl_coef=0.0)).sum()
