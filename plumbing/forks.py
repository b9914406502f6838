"""A function over the parts of a list, each part in a copy of this process: for work that threads share badly.

A small model's decoding step is a thousand operations of some microseconds. Threads meet at the end of each, and where
one that waits is slow to wake up, as on many a virtual machine, two take longer than one. Copies meet once.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import traceback
import warnings

import torch


def spread_over_processes(function, items, count):
    """`function(items)`, a list with a result for each item, computed by `count` processes with one thread each.

    The copies are forked for this call and hold what this process holds: nothing has to be handed over but the results.
    What a copy prints is lost, and so is what it changes. Raises RuntimeError, with a copy's traceback if it had one.
    """
    count = min(count, len(items))
    if count <= 1:
        return function(items)
    results, copies, threads = [None] * len(items), [], torch.get_num_threads()
    sys.stdout.flush()
    try:
        torch.set_num_threads(1)
        with signals_blocked():  # until it is known here, no copy may be lost, nor go on as the parent
            for place in range(1, count):
                copies.append(fork(function, items[place::count]))
        results[::count] = function(items[::count])
        for place, (_, pipe) in enumerate(copies, start=1):
            try:
                error, part = pickle.load(pipe)
            except (EOFError, pickle.UnpicklingError):
                raise RuntimeError("a copy of this process was killed: is the machine out of memory?") from None
            if error:
                raise RuntimeError(f"in a copy of this process: {error}")
            results[place::count] = part
    finally:
        torch.set_num_threads(threads)
        for pid, pipe in copies:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # where the kernel itself clears them away
                os.kill(pid, signal.SIGKILL)  # those that have finished wait for nothing else
                os.waitpid(pid, 0)
            pipe.close()
    return results


@contextlib.contextmanager
def signals_blocked():
    """SIGINT and SIGTERM wait for the end of the block; in a process that is forked in it they wait forever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(function, items):
    """Start a copy that computes `function(items)`: (its pid, a pipe with the pickle of (traceback or None, result)).

    Signals are blocked: Ctrl-C, and what a scheduler sends to all processes of a job, are for the parent. It ends the
    copies when it ends.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, of which the copy has none
        pid = os.fork()
    if pid:
        os.close(writing)
        return pid, open(reading, "rb")
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() == parent:
            torch.set_num_threads(1)
            try:
                outcome = None, function(items)
            except Exception:
                outcome = traceback.format_exc(), None
            with open(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
    finally:
        os._exit(0)  # whatever happened: this copy must not go on as the parent
