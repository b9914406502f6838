"""kill -9 at random moments, --resume, and so on to the end: is it the run that was never killed?

    python tests/crash/kill.py --times 20
    python tests/crash/kill.py --times 10 --processes 2   # one of two is killed, the other must end

Every other time the moment is within the writing of a checkpoint: as soon as its hidden directory
appears, and a few milliseconds more. Compared are metrics.jsonl (without the times), the episodes
and the final weights, bit for bit.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import forks

OPTIONS = (
    "--steps 6 --prompts_per_step 4 --group_size 4 --max_tokens 40 --eval_problems 8 "
    "--eval_every 3 --save_every 1 --keep_checkpoints 1 --kl_coef 0.01"
).split()


def run(args, output, env=()):
    """`nano_r1.py ARGS` in a process of its own."""
    os.environ |= dict(env)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    import nano_r1
    from plumbing.processes import shutdown
    from plumbing.settings import parse_args

    nano_r1.main(parse_args(nano_r1.Config, "nano_r1.py", "", args))
    shutdown()


def arguments(path, *options):
    """Of a run: from its beginning, or from where its directory shows that it can go on."""
    if (path / "config.json").exists():
        return ["--resume", str(path)]
    return ["--out", str(path.parent), "--name", path.name, *options]


def start(path, processes):
    """The processes of a run."""
    started = []
    port = forks.free_port()
    for rank in range(processes):
        env = forks.environment(rank, processes, port) if processes > 1 else {}
        log = f"{path}.log{rank or ''}"
        started.append(forks.fork(run, arguments(path, *OPTIONS), log, env))
    return started


def are_alive(processes):
    return all(process.is_alive() for process in processes)


def result(path):
    """Everything that must be the same."""
    found = {}
    for line in (path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["step"]] = {k: v for k, v in row.items() if not k.startswith("time/")}
    for file in [*(path / "episodes").iterdir(), *(path / "model").iterdir()]:
        found[file.name] = file.read_bytes()
    return found


def being_written(path):
    return any((path / "checkpoints").glob(".step_*"))


def wait(processes, seconds=3600.0, until=lambda: False):
    end = time.monotonic() + seconds
    while time.monotonic() < end and are_alive(processes) and not until():
        time.sleep(0.0005)


def kill(processes, path, rng, duration, within_a_checkpoint):
    """Wait for the moment, and kill one. Returns whether there was still something to kill."""
    if within_a_checkpoint:
        for _ in range(rng.randint(1, 3)):  # not always the first one
            wait(processes, until=lambda: not being_written(path))
            wait(processes, until=lambda: being_written(path))
        time.sleep(rng.uniform(0, 0.03))
    else:
        wait(processes, rng.uniform(0, duration))
    killed = are_alive(processes)
    rng.choice(processes).kill()
    for process in processes:  # the others notice
        process.join(120)
        assert not process.is_alive(), "a process outlives the one that was killed"
    return killed


def finish(processes, path):
    """Wait for the run's end; it must be a good one."""
    for process in processes:
        process.join()
        assert process.exitcode == 0, Path(f"{path}.log").read_text()


def differences(whole, path):
    """What is not the same in two runs."""
    expected = result(whole)
    found = result(path)
    return [name for name in expected | found if found.get(name) != expected.get(name)]


def harness(times, seed, out, processes=1):
    """Kill `times` times, over as many runs as that takes.

    Returns (runs, kills that left half a checkpoint).
    """
    rng = random.Random(seed)
    began = time.monotonic()
    whole = Path(out) / "whole"
    finish(start(whole, processes), whole)
    duration = time.monotonic() - began
    kills = runs = half = 0
    while kills < times:
        path = Path(out) / f"killed{runs}"
        runs += 1
        started = start(path, processes)
        while kills < times and kill(started, path, rng, duration, kills % 2 == 0):
            kills += 1
            half += being_written(path)
            within = ", within a checkpoint" if being_written(path) else ""
            print(f"kill {kills}/{times} of {path.name}{within}", flush=True)
            started = start(path, processes)
        finish(started, path)
        assert not differences(whole, path), f"{path}: {differences(whole, path)} differ"
    return runs, half


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs, half = harness(args.times, args.seed, directory, args.processes)
    print(f"{args.times} kills, {half} within a checkpoint; {runs} runs, all as if never killed")
