"""Processes and signals: one process per GPU, what they exchange, how they leave.

The gradients meet in DeepSpeed; besides that a few sums and small objects go round.
A single process needs no launcher and no port.
"""

import ctypes
import logging
import os
import signal
import sys
import time
import zlib

import torch
import torch.distributed as dist


def derive_seed(*parts):
    """A 31-bit seed from (seed, step, rank, what-for): no random choice depends on how far a run had got before."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def start_processes():
    """Join the processes that torchrun started, or be the only one. Returns (rank, number of processes, device)."""
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
        # DeepSpeed would compile a shared-memory all-reduce at the first start: a minute, and gloo does it too.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), "nccl"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if world == 1:  # no port, no rendezvous
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            if sys.platform == "linux":  # gloo listens even so: then on the loopback interface alone
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed(backend, verbose=False)
    return rank, world, device


BEFORE_PARTING = []  # functions; vLLM wants to shut down while the processes are still joined


def stop_processes():
    """Leave together: a process that ends while another still talks to it may abort."""
    dist.barrier()
    for function in BEFORE_PARTING:
        function()
    if dist.is_initialized():  # vLLM's shutdown may have seen to it
        dist.destroy_process_group()


def all_reduce(value, op=dist.ReduceOp.SUM):
    """Sum (or maximum) of a number over all processes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = torch.tensor(float(value), dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op)
    return tensor.item()


def on_all_processes(values):
    """Every process's `values`, as a list of lists."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, values)
    return everyone


def broadcast(*values):
    """The first process's values, on all of them."""
    values = list(values)
    dist.broadcast_object_list(values)
    return values


SIGNALS = []  # received so far: (number, time)


def catch_signals():
    """From now on Ctrl-C and SIGTERM (a job scheduler's) let the step end and the checkpoint be written."""

    def on_signal(number, _):
        # torchrun passes on what the terminal has sent to everybody: a repetition within a second is no impatience.
        if SIGNALS and number == signal.SIGINT and time.monotonic() - SIGNALS[0][1] > 1:
            raise KeyboardInterrupt
        if not SIGNALS and dist.get_rank() == 0:
            print("\nEnding with this step, then saving; Ctrl-C again leaves at once.", flush=True)
        SIGNALS.append((number, time.monotonic()))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def asked_to_leave():
    """Whether any process has been asked to end."""
    return all_reduce(len(SIGNALS)) > 0
