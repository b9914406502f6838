"""Out of memory, or no vLLM: one sentence instead of a traceback.

It names the setting to lower, by the part of the run in which it happened.
"""

import contextlib

import torch

from plumbing.settings import UserError

LOWER_FIRST = {  # settings to lower when memory runs out in a part of the run
    "start": [],
    "start of vLLM": ["vllm_gpu_memory_utilization"],
    "evaluation": ["eval_problems", "vllm_gpu_memory_utilization", "max_tokens"],
    "rollout": ["vllm_gpu_memory_utilization", "max_tokens", "prompts_per_step"],
    "vine": ["vine_samples", "vine_segments"],
    "update": ["micro_batch_tokens", "vllm_gpu_memory_utilization"],
    "record": ["micro_batch_tokens"],
    "sync": ["vllm_gpu_memory_utilization"],
}
INSTEAD = {
    "start": "take --lora_rank 16 or --offload, or --zero_stage 3 on more GPUs",
    "update": "take --gradient_checkpointing, --offload, or --zero_stage 3 on several GPUs",
}


def out_of_memory(error):
    """Whether an error says so: Python's, torch's on a GPU or a CPU, or the RuntimeError of vLLM's allocator."""
    words = ("out of memory", "allocate memory", "MemoryError")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in str(error) for part in words)


@contextlib.contextmanager
def oom_advice(part, config):
    """Convert out-of-memory into a one-line error naming the setting to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"Out of memory in the {part}: {advice(part, config)}.") from None


@contextlib.contextmanager
def vllm_advice(config):
    """Convert vLLM's start-up errors into a one-line error."""
    try:
        with oom_advice("start of vLLM", config):
            yield
    except ImportError as error:
        raise UserError(f"vLLM could not be imported ({error}): see requirements-gpu.txt.") from None
    except ValueError as error:
        said = " ".join(str(error).split())
        setting = f" with --vllm_gpu_memory_utilization {config.vllm_gpu_memory_utilization}"
        raise UserError(f"vLLM could not start{setting if 'memory' in said else ''}: {said}") from None


def advice(part, config):
    names = LOWER_FIRST.get(part, ["prompts_per_step"])
    names = [name for name in names if hasattr(config, name)]
    lower = " or ".join(f"--{name} (now {getattr(config, name)})" for name in names)
    return ", or ".join(([f"lower {lower}"] if names else []) + ([INSTEAD[part]] if part in INSTEAD else []))
