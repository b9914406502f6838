"""Several processes, as users start them: torchrun, the deepspeed launcher; a process that dies.

Two nodes: test_run.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest
import torch
import torch.distributed as dist
from forks import free_port
from helpers import ROOT, SMALL, flags, records, run, start, wait_for

import countdown_rewards
from plumbing import processes
from plumbing.settings import UserError
from plumbing.start import run_script

TWO_PROCESSES = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TWO_PROCESSES += ["--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Of a small run, on a file: each start would make 16,384 problems."""
    data = tmp_path_factory.mktemp("data") / "problems.jsonl"
    problems = countdown_rewards.generate_problems("train", 128, 0)
    data.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return {**SMALL, "steps": 2, "save_every": 0, "data": str(data)}


def test_the_deepspeed_launcher_starts_them_too(settings, tmp_path):
    """What two processes learn together is compared with one in test_run.py."""
    here = os.path.dirname(sys.executable)
    launcher = [os.path.join(here, "deepspeed"), "--num_gpus", "2"]
    launcher += ["--master_port", str(free_port())]
    path = here + os.pathsep + os.environ["PATH"]
    env = {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2", "PATH": path}
    done = run(*flags(out=tmp_path, name="d", **settings), launcher=launcher, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "2 process(es)" in done.stdout and len(records(tmp_path / "d")) == 3


def test_what_must_end_with_a_run_ends_with_it_also_when_it_fails():
    """vLLM, above all: in a notebook a second run makes another one in the same process."""
    ended = []
    processes.init_distributed()
    with pytest.raises(KeyboardInterrupt), processes.cleaned_up():
        processes.shutdown_hooks.append(lambda: ended.append("vllm"))
        raise KeyboardInterrupt
    assert ended == ["vllm"] and processes.shutdown_hooks == []


MISTAKE = """
import atexit, glob, types
from plumbing import processes
from plumbing.settings import UserError
from plumbing.start import run_script

def main(config):
    processes.init_distributed()
    processes.broadcast("a collective just before the end")
    raise UserError("the sentence")

def print_threads():
    names = glob.glob("/proc/self/task/*/comm")
    print("at the end:", *(open(name).read() for name in names))

atexit.register(print_threads)
run_script(main, types.SimpleNamespace(plan=None))
"""


def test_a_run_takes_no_attention_that_prepares_itself_for_each_new_shape():
    torch.backends.cuda.enable_cudnn_sdp(True)  # torch's default
    processes.init_distributed()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.skipif(sys.platform != "linux", reason="the threads are read from /proc")
def test_a_mistake_leaves_no_thread_of_gloo_that_the_interpreter_would_abort_for():
    """`terminate called without an active exception` and -6 instead of 2.

    Once in hundreds of times on a busy machine.
    """
    done = subprocess.run([sys.executable, "-c", MISTAKE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "the sentence" in done.stderr
    assert "at the end:" in done.stdout and "gloo" not in done.stdout


def test_a_mistake_leaves_the_group_to_a_notebook_s_next_run():
    """DeepSpeed's next engine in this interpreter uses parts of the group."""

    def mistaken(_):
        raise UserError("the sentence")

    processes.init_distributed()
    group = dist.group.WORLD
    with pytest.raises(SystemExit) as caught:
        run_script(mistaken, types.SimpleNamespace(plan=None))
    assert caught.value.code == 2 and dist.group.WORLD is group


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_mistake_of_one_process_ends_both_with_its_sentence(settings, tmp_path):
    """The first process cannot write; the second one waits for it."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "metrics.jsonl").symlink_to("/dev/full")
    done = run(*flags(out=tmp_path, name="m", **settings), launcher=TWO_PROCESSES)
    assert (
        done.returncode != 0
        and "metrics.jsonl could not be written: No space left on device." in done.stderr
    )


def test_two_processes_save_when_asked_to_leave_and_go_on_and_when_one_dies_both_say_why(
    settings, tmp_path
):
    process = start(
        *flags(out=tmp_path, name="s", **{**settings, "steps": 500}),
        launcher=TWO_PROCESSES,
    )
    wait_for(process, "step    1/500")
    process.send_signal(signal.SIGTERM)  # torchrun passes it on
    process.communicate(timeout=300)
    (name,) = os.listdir(tmp_path / "s" / "checkpoints")
    step = int(name.removeprefix("step_"))

    process = start("--resume", tmp_path / "s", launcher=TWO_PROCESSES)
    wait_for(process, f"step {step + 2:4d}/500")
    assert [row["step"] for row in records(tmp_path / "s")][: step + 2] == list(range(step + 2))
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    begin = time.monotonic()
    _, error = process.communicate(timeout=120)
    assert time.monotonic() - begin < 60  # gloo itself would wait for half an hour
    assert process.returncode != 0 and "Signal 9 (SIGKILL)" in error
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)
