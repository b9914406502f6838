"""kill -9 at random moments, --resume, and so on to the end: is it the run that was never killed?

    python tests/crash/kill.py --times 20

Every other time the moment is chosen within the writing of a checkpoint: as soon as its hidden directory appears, and a
few milliseconds more. Compared are metrics.jsonl (without the times), the episodes and the final weights, bit for bit.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
OPTIONS = (
    "--steps 6 --prompts_per_step 4 --group_size 4 --max_tokens 40 --eval_problems 8 --eval_every 3 --save_every 1 "
    "--keep_checkpoints 1 --kl_coef 0.01"
).split()


FORKS = multiprocessing.get_context(
    "forkserver"
)  # has imported the libraries once: a start takes seconds less
FORKS.set_forkserver_preload(["transformers.models.qwen2.modeling_qwen2", "deepspeed", "nano_r1"])


def run(args, output):
    """`nano_r1.py ARGS`, in a process that was forked for it."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    import nano_r1
    from plumbing.processes import shutdown
    from plumbing.settings import parse_args

    nano_r1.main(parse_args(nano_r1.Config, "nano_r1.py", "", args))
    shutdown()


def start(out, name):
    """The run, from its beginning or from where its directory shows that it can go on."""
    path = os.path.join(out, name)
    resumable = os.path.exists(os.path.join(path, "config.json"))
    where = ["--resume", path] if resumable else ["--out", out, "--name", name, *OPTIONS]
    process = FORKS.Process(target=run, args=(where, f"{path}.log"))
    process.start()
    return process


def finish(process, path):
    """Wait for the run's end; it must be a good one."""
    process.join()
    with open(f"{path}.log") as file:
        assert process.exitcode == 0, file.read()


def result(path):
    """Everything that must be the same."""
    with open(os.path.join(path, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    found = {
        "metrics": [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
    }
    for folder in ("episodes", "model"):
        for name in sorted(os.listdir(os.path.join(path, folder))):
            with open(os.path.join(path, folder, name), "rb") as file:
                found[f"{folder}/{name}"] = file.read()
    return found


def being_written(path):
    checkpoints = os.path.join(path, "checkpoints")
    return os.path.isdir(checkpoints) and any(
        name.startswith(".step_") for name in os.listdir(checkpoints)
    )


def kill(process, path, rng, duration, within_a_checkpoint):
    """Wait for the moment, and kill. Returns whether there was still something to kill."""
    if within_a_checkpoint:
        for _ in range(rng.randint(1, 3)):  # not always the first one
            while being_written(path) and process.is_alive():
                time.sleep(0.0005)
            while not being_written(path) and process.is_alive():
                time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.03))
    else:
        end = time.monotonic() + rng.uniform(0, duration)
        while time.monotonic() < end and process.is_alive():
            time.sleep(0.005)
    if not process.is_alive():
        return False
    process.kill()
    process.join()
    return True


def harness(times, seed, out):
    """Kill `times` times, over as many runs as that takes; returns (runs, kills that left half a checkpoint)."""
    rng = random.Random(seed)
    began = time.monotonic()
    finish(start(out, "whole"), os.path.join(out, "whole"))
    duration, expected = time.monotonic() - began, result(os.path.join(out, "whole"))
    kills = runs = half = 0
    while kills < times:
        name, runs = f"killed{runs}", runs + 1
        path = os.path.join(out, name)
        while True:
            process = start(out, name)
            if kills < times and kill(
                process, path, rng, duration, within_a_checkpoint=kills % 2 == 0
            ):
                kills += 1
                half += being_written(path)
                print(
                    f"kill {kills}/{times} of {name}{', within a checkpoint' * being_written(path)}",
                    flush=True,
                )
                continue
            finish(process, path)
            break
        found = result(path)
        different = [key for key in expected if found.get(key) != expected[key]]
        assert not different and set(found) == set(expected), f"{path} differs in {different}"
    return runs, half


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs, half = harness(args.times, args.seed, directory)
    print(
        f"{args.times} kills, {half} within the writing of a checkpoint; {runs} runs, all as if never killed"
    )
