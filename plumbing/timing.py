"""Seconds spent in each part of a step."""

import contextlib
import time

from plumbing.oom import out_of_memory

seconds = {}  # of each part, since the last `take_seconds`
running = []  # [name, seconds of the parts inside it] of the parts that are open
started = None  # when the first part of the step began


@contextlib.contextmanager
def timed(name):
    """`with timed("rollout"): ...` adds to that part; a part within it counts for itself alone."""
    global started
    start = time.perf_counter()
    started = started or start
    running.append([name, 0.0])
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error) and not hasattr(error, "part"):
            error.part = name  # for the sentence of `run_safely`
        raise
    finally:
        _, inside = running.pop()
        spent = time.perf_counter() - start
        seconds[name] = seconds.get(name, 0.0) + spent - inside
        if running:
            running[-1][1] += spent


def take_seconds():
    """{"time/rollout": ..., "time/step": ...} since the step began; the next part begins another."""
    global started
    taken = {f"time/{name}": value for name, value in seconds.items()}
    if started is not None:
        taken["time/step"] = time.perf_counter() - started
    seconds.clear()
    started = None
    return taken
