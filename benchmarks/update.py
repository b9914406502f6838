"""What does an update cost on this machine? Its seconds and the GPU's memory at the peak.

    python -m benchmarks.update --model Qwen/Qwen2.5-0.5B --dtype bfloat16 --kl_coef 0 \\
        --max_tokens 512 --micro_batch_size 32

The flags are those of nano_r1.py. The completions are random tokens, each --max_tokens long.
"""

import copy
import time

import torch
import tyro

import nano_r1
from benchmarks.runs import load


def completions(task, config):
    """As many as in a step of this one process."""
    problems = task.load_problems("train", config)[: config.prompts_per_step]
    for problem in problems * config.group_size:
        token_ids = torch.randint(len(task.tokenizer), (config.max_tokens,)).tolist()
        yield nano_r1.Episode(
            prompt_ids=task.prompt_ids(problem),
            token_ids=token_ids,
            log_probs=[0.0] * len(token_ids),
            advantage=1.0,
        )


def main(config):
    sampler, task = load(config)
    policy = sampler.model
    reference = nano_r1.Scorer(copy.deepcopy(policy), config) if config.kl_coef else None
    engine = nano_r1.make_engine(nano_r1.Scorer(policy, config), policy.device, config)
    episodes = list(completions(task, config))
    for _ in range(3):  # AdamW makes its moments in the first one
        began = time.monotonic()
        nano_r1.update(engine, reference, episodes, config, nano_r1.grpo_loss)
        if policy.device.type == "cuda":
            torch.cuda.synchronize()
        print(f"{len(episodes)} completions: {time.monotonic() - began:.2f} s")
    if policy.device.type == "cuda":
        print(f"peak: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main(tyro.cli(nano_r1.Config, use_underscores=True))
