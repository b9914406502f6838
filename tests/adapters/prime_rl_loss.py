"""prime-rl's loss for check_grpo.py: its own code. Not run: it is not on the package index.

After src/prime_rl/trainer/rl/loss.py of commit 008468c. Its trainer, `train`, needs CUDA.
"""

from prime_rl.trainer.rl.config import LossConfig
from prime_rl.trainer.rl.loss import compute_loss


def loss(
    log_probs, old_log_probs, ref_log_probs, advantages, mask, step, sampler_log_probs, **options
):
    rows = advantages[:, None].expand_as(log_probs)
    config = LossConfig(**options)
    return compute_loss(log_probs, sampler_log_probs, rows, mask, config, step.tokens)[0]
