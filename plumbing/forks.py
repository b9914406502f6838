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
import warnings

import torch


def spread_over_processes(function, items, count):
    """`function(items)`, a list with a result for each item, computed by `count` processes with one thread each.

    The copies are forked for this call and hold what this process holds: nothing has to be handed over but the results.
    What a copy prints is lost, and so is what it changes. An error in a copy is raised here.
    """
    count = min(count, len(items))
    if count <= 1:
        return function(items)
    results, copies, threads = [None] * len(items), [], torch.get_num_threads()
    sys.stdout.flush()
    try:
        torch.set_num_threads(1)
        for place in range(1, count):
            copies.append(fork(function, items[place::count]))
        results[::count] = function(items[::count])
        for place, (_, pipe) in enumerate(copies, start=1):
            outcome = pipe.read()
            if not outcome:
                raise RuntimeError("a copy of this process, which was to do a part of the work, has been killed")
            error, part = pickle.loads(outcome)
            if error:
                raise error
            results[place::count] = part
    finally:
        torch.set_num_threads(threads)
        for pid, pipe in copies:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # those that have finished wait for nothing else
            os.waitpid(pid, 0)
            pipe.close()
    return results


def fork(function, items):
    """Start a copy that computes `function(items)`: (its pid, a pipe with the pickle of (error or None, result))."""
    reading, writing = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, of which the copy has none
        pid = os.fork()
    if pid:
        os.close(writing)
        return pid, open(reading, "rb")
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() == parent:
            torch.set_num_threads(1)
            try:
                outcome = None, function(items)
            except Exception as error:
                outcome = error, None
            with open(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
    finally:
        os._exit(0)  # whatever happened: this copy must not go on as the parent
