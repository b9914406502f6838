"""Processes and signals: one process per GPU, what they exchange, how they stop.

DeepSpeed reduces the gradients; otherwise the processes exchange a few sums and small objects. A single process needs
no launcher and no port.
"""

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist

from plumbing.devices import check_device


def derive_seed(*parts):
    """A 31-bit seed from (seed, step, rank, purpose). There is no other random state: a resumed run is the same run."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def init_distributed(config=None):
    """Join torchrun's process group, or make one of a single process. Returns this process's device.

    Raises UserError if the config needs a GPU that is not there, before anything is downloaded.
    """
    if config:
        check_device(config, torch.cuda.is_available())
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if sys.platform == "linux":
        # Keep freed memory instead of returning it to the kernel after each tensor: page faults slow a CPU step.
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-4, 0)  # M_MMAP_MAX
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    import deepspeed
    import transformers

    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        # Or DeepSpeed compiles a shared-memory all-reduce at the first start, which takes a minute; gloo suffices.
        # It then needs no list of the kernels that would compile: in a notebook making it prints the linker's errors.
        deepspeed.ops.__compatible_ops__ = {}
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), "nccl"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:  # no port, no rendezvous
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            if sys.platform == "linux":  # gloo opens a port all the same: on the loopback interface only
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            atexit.register(leave)
        deepspeed.init_distributed(backend, verbose=False)
    return device


shutdown_hooks = []  # functions to call before the process group ends: vLLM's shutdown needs it


def run_shutdown_hooks():
    while shutdown_hooks:
        shutdown_hooks.pop()()
    if not dist.is_initialized():  # vLLM has ended it, and DeepSpeed keeps parts of it for its next engine
        from deepspeed.utils import groups

        groups._release_process_group_references()


def shutdown():
    """Barrier before exit: a rank that leaves early can crash its peers."""
    if dist.is_initialized():  # vLLM's shutdown may have ended it
        dist.barrier()
        run_shutdown_hooks()
    if dist.is_initialized():
        dist.destroy_process_group()


def leave():
    """End a process group of one, at the interpreter's end: it aborts when gloo's threads outlive it.

    Not at the end of a `main`: in a notebook, DeepSpeed keeps parts of the group for its next engine.
    """
    if dist.is_initialized() and dist.get_world_size() == 1:
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
    """From now on Ctrl-C and SIGTERM (from a job scheduler) finish the step and save a checkpoint."""

    def on_signal(number, _):
        # Ignore repeats within 1 s: torchrun forwards the Ctrl-C that each rank already got.
        if received_signals and number == signal.SIGINT and time.monotonic() - received_signals[0][1] > 1:
            raise KeyboardInterrupt
        if not received_signals and dist.get_rank() == 0:
            print("\nStopping after this step, then saving; Ctrl-C again quits at once.", flush=True)
        received_signals.append((number, time.monotonic()))

    received_signals.clear()
    if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
        for number in (signal.SIGINT, signal.SIGTERM):
            previous_handlers[number] = signal.signal(number, on_signal)


@contextlib.contextmanager
def cleaned_up():
    """Decorates a `main`: at its end, whatever happened, the signals' handlers are as before, and vLLM is shut down.

    A notebook goes on after the run, perhaps with a second one, and vLLM sleeps in one instance a process only. Several
    processes are no notebook: there `shutdown` ends vLLM, after a barrier that one that failed would never reach.
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
