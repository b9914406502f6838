"""How long does a step take, in this checkout and in another one?

    git worktree add DIR COMMIT
    python -m benchmarks.speed DIR

A shared machine's speed drifts. So the two run in turn, A B and then B A, each round in a process
of its own, and ratios are taken pair by pair. The first step of a round warms up and does not
count. The learning rate is almost 0, so that completions stay as long as the model's.
"""

import os
import shlex
import statistics
import subprocess
import sys
import tempfile

import tyro

from benchmarks import runs

FLAGS = """--prompts_per_step 32 --max_tokens 320 --learning_rate 1e-12 --eval_every 0
--eval_problems 1 --record_tokens_every 0"""


def train(flags, folder):
    """Run `python nano_r1.py` of a checkout."""
    command = [sys.executable, "nano_r1.py", *shlex.split(flags)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def measure(flags, folder):
    """[(seconds, tokens of a completion)] of the steps after the first."""
    with tempfile.TemporaryDirectory() as path:
        train(f"{flags} --name {path}", folder)
        rows = runs.metrics(path)[2:]
    return [(row["time/step"], row["completions/mean_length"]) for row in rows]


def comparison(steps):
    """The table. `steps`: {name: [(seconds, tokens)]}, in pairs."""
    lines = [["", "seconds per step", "tokens of a completion"]]
    for name, rows in steps.items():
        lines.append([name, *(runs.spread(x, 2, statistics.median) for x in zip(*rows))])
    ratios = [theirs[0] / ours[0] for theirs, ours in zip(*steps.values())]
    lines.append(["ratio, pair by pair", runs.spread(ratios, 2, statistics.median), ""])
    return runs.table(lines)


def main(there: tyro.conf.Positional[str], rounds: int = 2, steps: int = 3, flags: str = ""):
    """How long does a step take, in this checkout and in another one?

    Args:
        there: The other checkout's directory.
        rounds: Each trains once in both.
        steps: Of each round, that count.
        flags: Flags of nano_r1.py, in one text: --flags="--model MODEL".
    """
    folders = {"there": there, "here": runs.ROOT}  # their times are divided
    found = {name: [] for name in folders}
    for round_ in range(rounds):
        for name in list(folders)[:: -1 if round_ % 2 else 1]:
            more = f"--steps {steps + 1} --seed {round_}"
            found[name] += measure(f"{FLAGS} {flags} {more}", folders[name])
            print(f"round {round_}, {name}: {found[name][-1][0]:.2f} s in the last step")
    print(f"\n{FLAGS} {flags}; {os.cpu_count()} cores, commit {runs.commit()}")
    print(f"median (smallest to largest)\n\n{comparison(found)}")


if __name__ == "__main__":
    tyro.cli(main)
