"""How long does a step take, in this checkout and in another one?

    git worktree add DIR COMMIT
    python -m benchmarks.speed DIR

A shared machine's speed drifts. So the two run in turn, A B and then B A, each round in a process
of its own, and ratios are taken pair by pair. The first step of a round warms up and does not
count. The learning rate is almost 0, so that completions stay as long as the model's.
"""

import argparse
import functools
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

import nano_r1
from benchmarks import runs

FLAGS = """--prompts_per_step 32 --max_tokens 320 --learning_rate 1e-12 --eval_every 0
--eval_problems 1 --record_tokens_every 0"""


def output(command, folder):
    """What a program prints; if it fails, its last words and the end."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"$ {shlex.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def measure(args, round_, folder):
    """[(seconds, tokens)] of the steps of `python nano_r1.py` in a checkout."""
    name = f"speed-{time.time_ns()}"
    flags = f"{args.flags} --steps {args.steps + 1} --seed {round_} --name {name}"
    output([sys.executable, "nano_r1.py", *shlex.split(flags)], folder)
    rows = nano_r1.read_rows(os.path.join(folder, "out", name, "metrics.jsonl"))[2:]
    shutil.rmtree(os.path.join(folder, "out", name))
    count = args.config.prompts_per_step * args.config.group_size
    steps = []
    for row in rows:
        tokens = round(row["completions/mean_length"] * count)
        steps.append((row["time/step"], tokens))
    return steps


def comparison(steps):
    """The table. `steps`: {name: [(seconds, tokens)]}, in pairs."""
    lines = [["", "seconds per step", "tokens", "tokens per second"]]
    median = functools.partial(runs.spread, middle=statistics.median)
    columns = {}
    for name, rows in steps.items():
        speeds = [tokens / seconds for seconds, tokens in rows]
        columns[name] = [*zip(*rows), speeds]
        cells = [median(column, digits) for column, digits in zip(columns[name], (2, 0, 0))]
        lines.append([name, *cells])
    ratios = []
    for theirs, ours in zip(*columns.values()):
        ratios.append(median([a / b for a, b in zip(theirs, ours)], 2))
    lines.append(["ratio, pair by pair", *ratios])
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("there", metavar="DIR", help="another checkout")
    add("--rounds", type=int, default=2)
    add("--steps", type=int, default=3, help="of each round that count")
    add("--flags", default="", help="flags of nano_r1.py, in one text")
    args = parser.parse_args()
    args.flags = f"{FLAGS} {args.flags}"
    args.config = runs.parse("nano_r1", args.flags)
    folders = {"there": args.there, "here": runs.ROOT}  # their times are divided
    steps = {name: [] for name in folders}
    for round_ in range(args.rounds):
        for name in list(folders)[:: -1 if round_ % 2 else 1]:
            found = measure(args, round_, folders[name])
            steps[name] += found
            print(f"round {round_}, {name}: {', '.join(f'{s:.2f}' for s, *_ in found)} s per step")
    print(f"\n{args.flags}; {os.cpu_count()} cores, commit {runs.commit()}")
    print(f"median (smallest to largest)\n\n{comparison(steps)}")


if __name__ == "__main__":
    main()
