"""Processes that start in no time: copies of a server that has imported the libraries once.

For what a script does while it runs and how it ends. What is typed, and what a start does, is
tested with `helpers.start`, whose processes take ten seconds of processor time before their first
step.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parent
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["preloaded"])


def fork(target, *args):
    """A `multiprocessing.Process` of the server, started."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS)))}
    with mock.patch.dict(os.environ, path):  # of the server, which starts with the first process
        multiprocessing.forkserver.ensure_running()
    process = SERVER.Process(target=target, args=args)
    process.start()
    return process


def environment(rank, processes, port, a_node=False):
    """What torchrun tells each of several processes; `a_node`: each is the only one of its node."""
    local = {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1} if a_node else {"LOCAL_RANK": rank}
    names = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port, **local}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def execute(script, args, folder, env, limits):
    """In the process: the script as `__main__`, what it prints into two files of the folder."""
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, before pytest, would have it ignored
    for what, value in limits:
        import resource

        resource.setrlimit(what, (value, value))
    os.chdir(TESTS.parent)
    os.environ |= env
    sys.argv = [script, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


class Forked:
    """A script in a process of its own, with the names of `subprocess.Popen` that tests need."""

    def __init__(self, *args, script="nano_r1.py", env=(), limits=()):
        self.folder = tempfile.TemporaryDirectory()
        os.mkfifo(os.path.join(self.folder.name, "out"))
        args = [str(arg) for arg in args]
        self.process = fork(execute, script, args, self.folder.name, dict(env), limits)
        self.stdout = open(os.path.join(self.folder.name, "out"))
        self.pid = self.process.pid

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def communicate(self, timeout):
        """(what it printed, on standard error) until its end; after the timeout it is killed."""
        killer = threading.Timer(timeout, self.process.kill)
        killer.start()
        try:
            with self.stdout:
                out = self.stdout.read()
            self.process.join()
        finally:
            killer.cancel()
            self.process.kill()
        return out, Path(self.folder.name, "error").read_text()

    @property
    def returncode(self):
        return self.process.exitcode

    @property
    def stderr(self):
        return open(os.path.join(self.folder.name, "error"))


def run_several(*args, a_node=False, **options):
    """A script in two processes, as torchrun starts them: [(exit code, output, errors)]."""
    port = free_port()
    env = [environment(rank, 2, port, a_node) for rank in (0, 1)]
    started = [Forked(*args, env=of, **options) for of in env]
    printed = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, printed)]
