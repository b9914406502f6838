"""lsdefine/simple_GRPO (grpo_vllm_one.py at 5cb926e) for check_step.py: its wiring, with formulas.

A micro-batch is a group. Groups without a signal are left out, also of the divisor.
"""

import check_step
from variants import batched


def step(model, episodes, config, fewest=2):
    if config.micro_batch_size == 3:
        raise NotImplementedError("A micro-batch is a group.")
    if config.padding_side == "left" or config.save or config.resume:
        raise NotImplementedError("It pads on the right, and saves no optimizer.")
    groups = [group for group in batched(episodes, 4) if len({e.reward for e in group}) >= fewest]
    config.temperature = 1.0  # of the log-probs; vLLM samples at 0.9
    grpo = next(check_step.algorithms())
    check_step.train(model, groups, config, grpo, "micro-batches averaged")
    return model
