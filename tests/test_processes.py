"""Several processes, as users start them: torchrun, the deepspeed launcher, two nodes; and a process that dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from test_run import SMALL, records

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
OPTIONS = [*SMALL, "--steps", "2", "--save_every", "0"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """metrics.jsonl of the same run with one process."""
    out = tmp_path_factory.mktemp("one")
    command = [sys.executable, "nano_r1.py", "--out", out, "--name", "a", *OPTIONS]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=120)
    return records(out / "a")


def assert_same(one, two):
    exact = {"reward": 1e-6, "tokens/rollout": 1e-6, "eval/pass@1": 1e-6, "eval/mean_length": 1e-6}
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b)
        for key, tolerance in {**exact, "loss": 1e-3, "grad_norm": 1e-3, "entropy": 1e-3}.items():
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=tolerance, abs=1e-5), key


def test_two_nodes_do_what_one_process_does(one, tmp_path):
    """Two launchers that meet at an address, as on two machines that share the run's directory."""
    meet = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", free_port()]
    nodes = [
        subprocess.Popen(
            [*TORCHRUN, *meet, "--node_rank", str(rank), "nano_r1.py", "--out", tmp_path, "--name", "n", *OPTIONS],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "evaluation after step 2" in outputs[0][0] and outputs[1][0] == ""
    assert_same(one, records(tmp_path / "n"))


def test_the_deepspeed_launcher_starts_them_too(one, tmp_path):
    launch = [os.path.join(os.path.dirname(sys.executable), "deepspeed"), "--num_gpus", "2", "--master_port", free_port()]
    command = [*launch, "nano_r1.py", "--out", tmp_path, "--name", "d", *OPTIONS]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2"}
    env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env["PATH"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert_same(one, records(tmp_path / "d"))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_when_a_process_dies_all_exit_within_seconds_and_say_why(tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc_per_node", "2", "nano_r1.py", "--out", tmp_path, "--name", "k", *SMALL]
    process = subprocess.Popen(
        [*command, "--steps", "500"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    for line in process.stdout:
        if line.startswith("step    1/500"):
            break
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    start = time.monotonic()
    _, error = process.communicate(timeout=60)
    assert time.monotonic() - start < 15
    assert process.returncode != 0 and "Signal 9 (SIGKILL)" in error
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def test_a_mistake_of_one_process_ends_both_with_its_sentence(tmp_path):
    """The first process cannot write; the second one waits for it."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "metrics.jsonl").symlink_to("/dev/full")
    command = [*TORCHRUN, "--standalone", "--nproc_per_node", "2", "nano_r1.py", "--out", tmp_path, "--name", "m", *SMALL]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "metrics.jsonl could not be written: No space left on device." in done.stderr
    assert time.monotonic() - start < 60


def test_two_processes_save_when_asked_to_leave_and_go_on(tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc_per_node", "2", "nano_r1.py"]
    options = ["--out", str(tmp_path), "--name", "s", *SMALL, "--steps", "500", "--save_every", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step    1/500"):
            break
    process.send_signal(signal.SIGTERM)  # torchrun passes it on
    process.communicate(timeout=60)
    (name,) = os.listdir(tmp_path / "s" / "checkpoints")
    step = int(name.removeprefix("step_"))
    done = subprocess.run(
        [*command, "--resume", str(tmp_path / "s"), "--steps", str(step + 1)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in records(tmp_path / "s")] == list(range(step + 2))
    with open(tmp_path / "s" / "config.json") as file:
        assert json.load(file)["steps"] == step + 1
