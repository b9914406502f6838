"""Memory that runs out: one sentence that says which setting to lower."""

import contextlib

import torch

from plumbing.settings import UserError

LOWER_FIRST = {  # when memory runs out in a part of the run
    "start": [],
    "evaluation": ["eval_problems", "vllm_memory", "max_tokens"],
    "rollout": ["vllm_memory", "max_tokens", "questions"],
    "vine": ["vine_samples", "vine_segments"],
    "update": ["micro_batch_tokens", "vllm_memory"],
    "sync": ["vllm_memory"],
}

INSTEAD = {
    "start": "take --lora_rank 16 or --offload, or --zero_stage 3 on more GPUs",
    "update": "take --gradient_checkpointing, --offload, or --zero_stage 3 on several GPUs",
}


@contextlib.contextmanager
def enough_memory(part, config):
    """Turns memory that runs out into one sentence: which setting to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch has an error of its own for CUDA only
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "allocate memory" not in str(error):
            raise
        raise UserError(f"Out of memory in the {part}: {advice(part, config)}.") from None


def advice(part, config):
    names = LOWER_FIRST.get(part, ["questions"])
    lower = " or ".join(f"--{name} (now {getattr(config, name)})" for name in names)
    return ", or ".join(([f"lower {lower}"] if names else []) + ([INSTEAD[part]] if part in INSTEAD else []))
