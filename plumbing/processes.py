"""Processes and signals: one process per GPU, what they exchange, how they stop.

DeepSpeed reduces the gradients; otherwise the processes exchange a few sums and small objects. A
single process needs no launcher and no port.
"""

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist

from plumbing.settings import UserError
from plumbing.systems import LOOPBACK, STOPS
from plumbing.torch_engine import engine_kind


def derive_seed(*parts):
    """A 31-bit seed from (seed, step, rank, purpose).

    There is no other random state: a resumed run is the same run.
    """
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def check_device(config, on_gpu):
    """Raise UserError if the device is another than asked for, or cannot multiply in `dtype`."""
    bfloat16 = config.dtype == "bfloat16"
    if on_gpu and config.device == "cpu":
        raise UserError("--device cpu: torch sees a GPU; hide it with CUDA_VISIBLE_DEVICES=-1.")
    if not on_gpu and (config.device == "cuda" or bfloat16 and config.device == "auto"):
        setting = "--dtype bfloat16" if bfloat16 else "--device cuda"
        build = f"torch {torch.__version__}, built for CUDA {torch.version.cuda}"
        hint = "CUDA 13 needs driver 580 or newer; nvidia-smi says which one there is"
        raise UserError(f"{setting} is for a GPU, and {build}, sees none: {hint}.")
    if on_gpu and bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        card = torch.cuda.get_device_name()
        instead = "--dtype float32, and --rollout transformers with it"
        raise UserError(f"--dtype bfloat16: {card} cannot; take {instead}.")


def init_distributed(config=None):
    """Join torchrun's process group, or make one of a single process. Returns the device.

    Raises UserError if the config needs a GPU that is not there, before anything is downloaded.
    """
    on_gpu = torch.cuda.is_available()
    if config:
        check_device(config, on_gpu)
    kind = prepare_libraries(config, on_gpu)
    device = torch.device("cpu")
    backend = "gloo"
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        backend = "nccl"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:  # no port, no rendezvous
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            if LOOPBACK:  # gloo opens a port all the same
                os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            atexit.register(leave)
        if kind == "deepspeed":
            import deepspeed

            deepspeed.init_distributed(backend, verbose=False)
    return device


def prepare_libraries(config, on_gpu):
    """What torch, transformers and DeepSpeed are told before their first use. The engine's kind."""
    # cuDNN's attention, which torch prefers on an H100, builds a graph for each new shape, some
    # tens of milliseconds; here lengths change with every call.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if not on_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind = engine_kind(config)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if kind == "deepspeed" and not on_gpu:
        import deepspeed

        # Or DeepSpeed compiles an all-reduce at the first start, which takes a minute; gloo
        # suffices. Without the list it does not try which kernels would compile: in a notebook
        # that prints the linker's errors.
        deepspeed.ops.__compatible_ops__ = {}
    return kind


shutdown_hooks = []  # functions to call at the end of a run: vLLM needs the process group for it


def run_shutdown_hooks():
    while shutdown_hooks:
        shutdown_hooks.pop()()
    # vLLM has ended it; DeepSpeed keeps parts for its next engine
    if "deepspeed" in sys.modules and not dist.is_initialized():
        from deepspeed.utils import groups

        groups._release_process_group_references()


def close_vllm(llm):
    """Shut vLLM down, awake: on a GPU it would free twice what sleeps (vllm#36651)."""
    with contextlib.suppress(RuntimeError):  # no memory to wake up in
        if llm.llm_engine.is_sleeping():
            llm.wake_up()
    llm.llm_engine.engine_core.shutdown()


def shutdown():
    """Barrier before exit: a rank that leaves early can crash its peers."""
    if dist.is_initialized():  # vLLM's shutdown may have ended it
        dist.barrier()
        run_shutdown_hooks()
    leave()


def leave():
    """End the process group: the interpreter aborts if gloo's threads outlive it.

    Not at the end of a `main`: in a notebook DeepSpeed keeps parts of it for its next engine.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def all_reduce(value, op=dist.ReduceOp.SUM):
    """Sum (or maximum) of a number, or of each of a list, over all processes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    if tensor.numel():
        dist.all_reduce(tensor, op)
    return tensor.tolist()


def all_gather_object(values):
    """Every process's `values`, as a list with one entry per process."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, values)
    return gathered


def broadcast(*values):
    """The first process's values, on all of them."""
    values = list(values)
    dist.broadcast_object_list(values)
    return values


received_signals = []  # (number, time) of each since `catch_signals`
previous_handlers = {}


def catch_signals():
    """From now on Ctrl-C, SIGTERM (a job scheduler's) and SIGHUP (a closed terminal's) finish the
    step and save a checkpoint."""

    def on_signal(number, _):
        # Ignore repeats within 1 s: torchrun forwards the Ctrl-C that each rank already got.
        again = received_signals and time.monotonic() - received_signals[0][1] > 1
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not received_signals and dist.get_rank() == 0:
            # The terminal is gone; or the signal came within a print, which knows no second one.
            with contextlib.suppress(OSError, RuntimeError):
                print("\nStopping after this step; Ctrl-C again quits at once.", flush=True)
        received_signals.append((number, time.monotonic()))

    received_signals.clear()
    if threading.current_thread() is threading.main_thread():  # Python has handlers nowhere else
        for number in STOPS:
            if number in STOPS[:2] or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                previous_handlers[number] = signal.signal(number, on_signal)


@contextlib.contextmanager
def cleaned_up():
    """At the end of a `main`, whatever happened, signals are as before, and vLLM is shut down.

    A notebook goes on after the run, perhaps with a second one, and vLLM sleeps in one instance a
    process only. Several processes are no notebook: there `shutdown` ends vLLM, after a barrier
    that one that failed would never reach.
    """
    try:
        yield
    finally:
        while previous_handlers:
            signal.signal(*previous_handlers.popitem())
        if dist.is_initialized() and dist.get_world_size() == 1:
            run_shutdown_hooks()


def stop_requested():
    """Whether any process has been asked to stop."""
    return all_reduce(len(received_signals)) > 0


def exit_code():
    """0, or as shells report it 128 + the signal that stopped the run."""
    return 128 + received_signals[0][0] if received_signals else 0
