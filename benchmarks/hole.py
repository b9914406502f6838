"""A hole in a public verifier: does GRPO find it, and what does the repaired reward teach?

    python -m benchmarks.sweep --script nano_r1 --out out/hole --axis default data=repaired \\
        --flags "--task puzzle24 --steps 60 --learning_rate 2e-4 --record_tokens_every 0"
    python -m benchmarks.hole out/hole/nano_r1/*every_0-*    # runs of one command
    python -m benchmarks.hole out/hole/nano_r1/*repaired-*

The task is tasks/puzzle24_rewards.py, paid by reasoning-gym's scorer and by Countdown's verifier.
The columns: which share of the completions is paid, which is correct, and which share of the paid
ones is wrong. The first and the last row are evaluations on held-out problems, the others have the
training steps 1 to 9, 10 to 19, ..., 50 to 59. Means over the runs, with the smallest and largest.
"""

import glob
import sys

import nano_r1
from benchmarks import runs

TENS = [f"episodes/step_0000{tens}?" for tens in range(6)]


def shares(path, files):
    """(paid, correct, wrong among the paid) of the completions in these files of a run."""
    rows = []
    for file in glob.glob(f"{path}/{files}.jsonl"):
        rows += nano_r1.read_rows(file)
    if not rows:
        raise SystemExit(f"{path} has no {files}: name runs of 60 steps")
    paid = nano_r1.mean(rows, "reward")
    correct = nano_r1.mean(rows, "answer_reward")
    return paid, correct, (paid - correct) / max(paid, 0.001)


def table(paths):
    lines = [["completions", "paid", "correct", "wrong among the paid"]]
    for files in ("evaluations/step_000000", *TENS, "evaluations/step_000060"):
        columns = zip(*(shares(path, files) for path in paths))
        lines.append([files, *map(runs.spread, columns)])
    return runs.table(lines)


if __name__ == "__main__":
    print(table(sys.argv[1:]))
