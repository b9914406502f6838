"""Work that copies of this process share."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers import ROOT

from plumbing.forks import spread_over_processes
from plumbing.oom import oom_advice
from plumbing.settings import UserError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a copy with its parent")


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_results_come_in_the_order_of_the_items(count):
    assert spread_over_processes(lambda part: [x * x for x in part], list(range(11)), count) == [
        x * x for x in range(11)
    ]


def test_each_process_has_one_thread_and_afterwards_there_are_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = spread_over_processes(lambda part: [(os.getpid(), torch.get_num_threads())] * len(part), [0] * 4, 2)
        assert {threads for _, threads in seen} == {1} and len({pid for pid, _ in seen}) == 2
        assert seen[0][0] == os.getpid() and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_large_result_passes_and_nothing_is_left_behind():
    before = psutil.Process().children()  # of other tests in this process
    results = spread_over_processes(lambda part: [torch.full((1000, 1000), float(x)) for x in part], [1, 2], 2)
    assert [float(r.sum()) for r in results] == [1e6, 2e6]
    assert psutil.Process().children() == before


class Difficult(Exception):
    """Cannot be pickled and read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("error", [ValueError("bad"), Difficult("bad", lambda: 0)], ids=["easy", "difficult"])
def test_an_error_in_a_copy_is_raised_here_with_its_traceback(error):
    def fail(part):
        if part == [2]:
            raise error
        return part

    with pytest.raises(RuntimeError, match="(?s)in fail.*: bad"):
        spread_over_processes(fail, [1, 2], 2)


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_without_memory_gets_the_advice_for_that(killed):
    def fail(part):
        if part == [2]:
            os.kill(os.getpid(), signal.SIGKILL) if killed else torch.empty(2**60)
        return part

    with pytest.raises(UserError, match="Out of memory in the rollout: lower --max_tokens"):
        with oom_advice("rollout", SimpleNamespace(max_tokens=320)):
            spread_over_processes(fail, [1, 2], 2)


def test_a_copy_that_is_killed_is_an_error_not_a_shorter_list():
    def die(part):
        if part == [2]:
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    with pytest.raises(RuntimeError, match="killed"):
        spread_over_processes(die, [1, 2], 2)


def test_an_error_here_does_not_wait_for_the_copies():
    def wait(part):
        if part == [2]:
            time.sleep(100)
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        spread_over_processes(wait, [1, 2], 2)
    assert time.monotonic() - start < 30


def test_no_warning_is_shown_and_what_a_copy_prints_is_lost(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spread_over_processes(lambda part: part == [2] and print("from the copy") or part, [1, 2], 2)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_job_is_the_parent_s_alone(number):
    """`timeout`, Slurm and systemd signal the copies too; the parent finishes the step and saves."""
    code = """
import os, signal, time
from plumbing.forks import spread_over_processes
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("received", flush=True))
def work(part):
    if part == [1]:
        print("ready", flush=True)
    time.sleep(2)
    return part
print(spread_over_processes(work, [1, 2, 3], 3))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert parent.stdout.readline() == "ready\n"
    os.killpg(parent.pid, number)
    out, _ = parent.communicate(timeout=60)
    assert out == "received\n[1, 2, 3]\n" and parent.returncode == 0


def test_copies_can_be_made_from_another_thread_than_the_main_one():
    results = []
    thread = threading.Thread(target=lambda: results.extend(spread_over_processes(lambda part: part, [1, 2], 2)))
    thread.start()
    thread.join(timeout=60)
    assert results == [1, 2]


def test_the_copies_end_with_a_parent_that_is_killed(tmp_path):
    code = f"""
import os, time
from plumbing.forks import spread_over_processes
def wait(part):
    open(f"{tmp_path}/{{part[0]}}", "w").write(str(os.getpid()))
    time.sleep(100)
spread_over_processes(wait, [1, 2], 2)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    copy = tmp_path / "2"
    deadline = time.monotonic() + 60
    while not (copy.exists() and copy.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int(copy.read_text())
    parent.kill()
    parent.wait()
    while os.path.exists(f"/proc/{pid}") and "(zombie)" not in open(f"/proc/{pid}/status").read():
        assert time.monotonic() < deadline
        time.sleep(0.05)
