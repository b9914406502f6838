"""Asks math-verify whether two formulas are equal, in processes of its own and within a limit of time and memory.
Text from a model can keep sympy busy for years (9^{9^{9^9}}) or fill the memory; only a process can be ended for that.
Who asks just waits, in any thread, and several threads are answered side by side."""

import atexit
import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time

WORKERS = min(4, os.cpu_count() or 1)  # at most, and no more than there are threads that ask
CPU_LIMIT = 0.5  # seconds of processor time for one question; the slowest of 1,300 real ones took 0.38, the mean 0.03
WALL_LIMIT = 30.0  # seconds of waiting, for a worker that the machine does not let run
MEMORY_LIMIT = 1 << 30  # bytes
TOO_LONG = "takes too long to compare"
COMMAND = [sys.executable, "-m", "plumbing.math_workers"]
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # where that command finds plumbing
WARM_UP = (  # what a worker reads before the first question: much of sympy is imported when it is first needed
    (r"$\frac{1}{2}$", "$0.5$"), (r"$[0,\sqrt{2})$", r"$(1, \pi)$"), ("$x=3$", r"$\{1, 2\}$"), ("$x^3-2x+5$", "$12$"),
    (r"$\frac{3\sqrt{3}}{4}$", r"$\cot x$"), ("$1+2i$", r"$\log 5$"), (r"$\begin{pmatrix}1\\2\end{pmatrix}$", "$p-q$"),
    (r"$y=\frac{1}{3}x$", "$y=3x+5$"), ("$a_{1}=2$", "$a<x<b$"),
)  # fmt: skip
FRESH = 3  # the exit code of a child that wants to be replaced


def ask(answer, gold):
    """math-verify's verdict on two texts with formulas between dollars, and if they differ, why: (bool, str)."""
    worker = idle.get()
    try:
        for _ in range(2):  # a worker that something else has killed is replaced, once
            if worker is None:
                worker = subprocess.Popen(
                    COMMAND, cwd=HERE, text=True, start_new_session=True,  # a group of its own: Ctrl-C is for us
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            start = time.monotonic()
            timer = threading.Timer(WALL_LIMIT, kill, [worker])
            timer.start()
            try:
                worker.stdin.write(json.dumps([answer, gold]) + "\n")
                worker.stdin.flush()
                reply = worker.stdout.readline()
            except BrokenPipeError:
                reply = ""
            finally:
                timer.cancel()
            if reply == "null\n":
                return False, f"{answer!r:.60} {TOO_LONG}"
            if reply:
                return (True, "correct") if json.loads(reply) else (False, f"{answer!r:.60} is not {gold!r:.60}")
            kill(worker)
            worker.wait()
            worker = None
            if time.monotonic() - start >= WALL_LIMIT:
                return False, f"{answer!r:.60} {TOO_LONG}"
        return False, f"math-verify died of {answer!r:.60}"
    except BaseException:  # Ctrl-C: the reply that is still to come must not answer the next question
        if worker:
            kill(worker)
        worker = None
        raise
    finally:
        idle.put(worker)


def kill(worker):
    """End a worker and its child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


def empty_pool():
    """WORKERS places without a process yet. A forked child needs its own: two readers of a pipe mix up the replies."""
    global idle
    idle = queue.LifoQueue()  # last in, first out: one asking thread keeps to one worker
    for _ in range(WORKERS):
        idle.put(None)


def stop_workers():
    while not idle.empty():
        worker = idle.get_nowait()
        if worker:
            kill(worker)
            worker.wait()


# ---- A worker


def serve():
    """Keep a child that answers; replace one that has reached the time limit, which costs a fork and no import."""
    import resource

    from math_verify import parse, verify

    def equal(answer, gold):  # math-verify's own time limits need the main thread and do not stop C code
        return verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)

    replies, sys.stdout = sys.stdout, sys.stderr
    logging.disable()
    for answer, gold in WARM_UP:
        equal(answer, gold)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # what the timer sends: it ends the child
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    status = FRESH
    while status in (FRESH, -signal.SIGPROF):
        child = os.fork()
        if child == 0:
            answer_questions(equal, replies)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGPROF:
            print("null", file=replies, flush=True)


def answer_questions(equal, replies):
    """A child: reads a line with [answer, gold] in JSON, writes `true` or `false`, until the one who asks is gone."""
    try:
        for line in sys.stdin:
            answer, gold = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)  # the kernel's limit: it also ends a computation in C
            right = equal(answer, gold)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(bool(right)), file=replies, flush=True)
            try:
                bytes(MEMORY_LIMIT // 2)
            except MemoryError:  # sympy keeps much of what it has seen
                os._exit(FRESH)
        os._exit(0)
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve()
else:
    empty_pool()
    atexit.register(stop_workers)
    os.register_at_fork(after_in_child=empty_pool)
