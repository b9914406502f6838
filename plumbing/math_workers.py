"""Asks whether two formulas are equal, in processes of its own, within limits of time and memory.

Text from a model can keep sympy busy for years (9^{9^{9^9}}) or fill the memory; only a process can
be ended for that. Who asks just waits, in any thread; several threads are answered side by side.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
import threading

from plumbing.math_equality import verdict

FORKS = hasattr(os, "fork")  # Windows has neither it nor limits of time and memory
WORKERS = min(4, os.cpu_count() or 1)  # at most, and no more than there are threads that ask
CPU_LIMIT = 0.5  # seconds of processor time for one question; real ones take 0.01 or less
WALL_LIMIT = 30.0  # seconds of waiting, for a worker that the machine does not let run
MEMORY_LIMIT = 1 << 30  # bytes
TOO_LONG = "takes too long to compare"
COMMAND = [sys.executable, "-m", "plumbing.math_workers"]
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # where COMMAND finds plumbing
WARM_UP = (  # read before the first question: much of sympy is imported when it is first needed
    (r"\frac{1}{2}", r"\sqrt{x}"),
    (r"[0,\sqrt{2})", r"(1, \pi)"),
    ("x=3", r"\{1, 2\}"),
    ("x^3-2x+5", "y-12"),
    (r"\frac{3\sqrt{3}}{4}", r"\cot 2"),
    ("1+2i", r"\log 5"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "p-q"),
    (r"y=\frac{1}{3}x", "y=3x+5"),
    ("a_{1}=2", "a<x<b"),
    ("p+x_iq_{m+i-2}", "x_{i+1} q_m-p"),  # 0.13 s of learning to read subscripts
)
AT_A_LIMIT = json.dumps([False, ""])  # a reply, for which `ask` has the words
FRESH = 3  # the exit code of a child that wants to be replaced


def ask(answer, gold):
    """Whether two formulas are equal, and if not, why: (bool, str)."""
    for _ in range(2):  # a worker that something else has killed is replaced, once
        reply = exchange([answer, gold])
        if reply:
            right, why = json.loads(reply)
            return right, why or f"{answer!r:.60} {TOO_LONG}"
    return False, f"a worker died of {answer!r:.60}"


def exchange(question):
    """A worker's reply as a line, AT_A_LIMIT if it has reached one, None if it has died."""
    worker = idle.get()
    reply = None
    try:
        worker = worker or start_worker()
        with contextlib.suppress(OSError):  # a broken pipe: there will be no reply
            worker.stdin.write(json.dumps(question).encode() + b"\n")
            worker.stdin.flush()
        reply = worker.replies.get(timeout=WALL_LIMIT)
        return reply or (None if FORKS else AT_A_LIMIT)  # its own clock has ended it
    except queue.Empty:
        return AT_A_LIMIT
    finally:  # also after Ctrl-C: the reply that is still to come must not answer the next one
        if worker and not reply:
            kill(worker)
            worker = None
        idle.put(worker)


def start_worker():
    worker = subprocess.Popen(
        COMMAND,
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own: Ctrl-C is for us
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
    )
    worker.replies = queue.SimpleQueue()  # a pipe cannot be waited for with a limit everywhere
    threading.Thread(target=read_replies, args=(worker,), daemon=True).start()
    return worker


def read_replies(worker):
    """A worker's lines, until it has ended: then None."""
    with contextlib.suppress(ValueError, OSError):  # closed by `kill`
        for line in worker.stdout:
            worker.replies.put(line)
    worker.replies.put(None)


def kill(worker):
    """End a worker and its child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL) if FORKS else worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):
            pipe.close()


def empty_pool():
    """WORKERS places without a process yet.

    A forked child needs its own: two readers of a pipe mix up the replies.
    """
    global idle
    idle = queue.LifoQueue()  # last in, first out: one asking thread keeps to one worker
    for _ in range(WORKERS):
        idle.put(None)


def stop_workers():
    while not idle.empty():
        worker = idle.get_nowait()
        if worker:
            kill(worker)


# ---- A worker


def serve():
    """Keep a child that answers; replace one that has reached a limit: a fork, and no import.

    Where there is no fork, answer; a limit ends the worker.
    """
    sys.stdout = sys.stderr  # what sympy may print is no reply
    for answer, gold in WARM_UP:
        verdict(answer, gold)
    if not FORKS:
        answer_questions()
    import resource

    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # what the timer sends: it ends the child
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    status = FRESH
    while status in (FRESH, -signal.SIGPROF):
        child = os.fork()
        if child == 0:
            answer_questions()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGPROF:
            send(AT_A_LIMIT)


def send(reply):
    print(reply, file=sys.__stdout__, flush=True)


def answer_questions():
    """A child: reads a line with [answer, gold] in JSON, writes one with [whether equal, why not].

    It ends when the one who asks is gone. The limit of time is the kernel's: it also ends a
    computation in C.
    """
    try:
        for line in sys.stdin:
            limit_time(CPU_LIMIT)
            reply = verdict(*json.loads(line))
            limit_time(0)
            send(json.dumps(reply))
            try:
                bytes(MEMORY_LIMIT // 2 if FORKS else 0)
            except MemoryError:  # sympy keeps much of what it has seen
                os._exit(FRESH)
        os._exit(0)
    finally:
        os._exit(1)


def limit_time(seconds):
    """End this process after so many seconds of its own, or without such a timer after 10 times as
    many; 0: no longer. Both also end a computation in C."""
    if FORKS:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    elif seconds:
        faulthandler.dump_traceback_later(10 * seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    serve()
else:
    empty_pool()
    atexit.register(stop_workers)
    if FORKS:
        os.register_at_fork(after_in_child=empty_pool)
