"""The policy losses of verl for check_grpo.py: its own code, without a KL.

No test runs it, because verl needs ray and more. By hand, with verl 0.9.1: docs/check_grpo.md.
"""

from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig


def loss(
    log_probs,
    old_log_probs,
    ref_log_probs,
    advantages,
    mask,
    step,
    name="vanilla",
    loss_scale_factor=20,
    **options,
):
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=4,
        clip_ratio_high=0.28,
        loss_scale_factor=loss_scale_factor,
        **options,
    )
    config.global_batch_info.update(
        batch_num_tokens=step.tokens,
        global_batch_size=step.completions,
        loss_scale_factor=config.loss_scale_factor,
    )
    return core_algos.get_policy_loss_fn(name)(
        old_log_probs,
        log_probs,
        advantages[:, None].expand_as(log_probs),
        mask.double(),
        config.loss_agg_mode,
        config,
    )[0]
