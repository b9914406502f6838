"""The parts of a run: the seconds of each, and what to lower where memory runs out in one."""

import contextlib
import time

import torch

seconds = {}  # of each part, since the last `take_seconds`
running = []  # of each part that is open, the seconds of the parts inside it
started = None  # when the first part of the step began


@contextlib.contextmanager
def timed(name):
    """`with timed("rollout"): ...` adds to that part; a part within it counts for itself alone.

    An error gets the part's name, for `memory_advice`.
    """
    global started
    start = time.perf_counter()
    started = started or start
    running.append(0.0)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        error.part = getattr(error, "part", name)
        raise
    finally:
        spent = time.perf_counter() - start
        seconds[name] = seconds.get(name, 0.0) + spent - running.pop()
        if running:
            running[-1] += spent


def take_seconds():
    """{"time/rollout": ..., "time/step": ...} since the step began; the next part begins one."""
    global started
    taken = {f"time/{name}": value for name, value in seconds.items()}
    if started is not None:
        taken["time/step"] = time.perf_counter() - started
    seconds.clear()
    started = None
    return taken


# ---- Out of memory

LOWER_FIRST = {  # settings to lower when memory runs out in a part
    "start": [],
    "start of vLLM": ["vllm_gpu_memory_utilization"],
    "evaluation": ["eval_problems", "vllm_gpu_memory_utilization", "max_tokens"],
    "rollout": ["vllm_gpu_memory_utilization", "max_tokens", "prompts_per_step", "group_size"],
    "vine": ["vine_samples", "vine_segments"],
    "update": ["micro_batch_tokens", "vllm_gpu_memory_utilization"],
    "record": ["micro_batch_tokens"],
    "sync": ["vllm_gpu_memory_utilization"],
}
INSTEAD = {
    "start": ["take --lora_rank 16 or --offload, or --zero_stage 3 on more GPUs"],
    "update": ["take --gradient_checkpointing, --offload, or --zero_stage 3 on several GPUs"],
}

WITHOUT_GPU = {
    "start": ["take --lora_rank 16 or a smaller --model"],
    "update": ["take --gradient_checkpointing"],
    "sync": ["take a smaller --model"],
}


def out_of_memory(error):
    """Whether an error says so: Python's, torch's on a GPU or a CPU, or vLLM's."""
    words = ("out of memory", "allocate memory", "MemoryError")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(part in str(error) for part in words)


def memory_advice(error, config):
    """A sentence about an error that says that memory ran out; its part is `timed`'s."""
    part = getattr(error, "part", "start")
    on_gpu = torch.cuda.is_available() or config.rollout == "vllm"
    return f"Out of memory in the {part}: {advice(part, config, on_gpu)}."


def advice(part, config, on_gpu):
    """What to do when memory runs out in a part, as words; without a GPU nothing of one."""
    names = LOWER_FIRST.get(part, ["prompts_per_step"])
    names = [name for name in names if on_gpu or not name.startswith("vllm")]
    lower = [f"--{name} (now {getattr(config, name)})" for name in names if hasattr(config, name)]
    first = [f"lower {' or '.join(lower)}"] if lower else []
    return ", or ".join(first + (INSTEAD if on_gpu else WITHOUT_GPU).get(part, []))
