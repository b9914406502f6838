"""Work that copies of this process share."""

import os
import signal
import subprocess
import sys
import time
import warnings

import psutil
import pytest
import torch

from plumbing.forks import spread_over_processes

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


def test_an_error_in_a_copy_is_raised_here():
    def fail(part):
        raise ValueError("bad") if part == [2] else RuntimeError

    with pytest.raises(ValueError, match="bad"):
        spread_over_processes(lambda part: part if part == [1] else fail(part), [1, 2], 2)


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
