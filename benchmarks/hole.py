"""A hole in a public verifier: does GRPO find it, and what does the repaired reward teach?

    python -m benchmarks.hole          # seeds 0, 1 and 2; about five minutes for each of six runs
    python -m benchmarks.hole 0 1      # these seeds

The task is tasks/puzzle24_rewards.py, paid by reasoning-gym's scorer and by Countdown's verifier.
The columns: which share of the completions is paid, which is correct, and which share of the paid
ones is wrong. The first and the last row are evaluations on held-out problems, the others training.
Means over the seeds, with the smallest and largest. out/hole/curves.jsonl has each step's shares.
"""

import glob
import sys

import nano_r1
from benchmarks import runs

FLAGS = "--task puzzle24 --record_tokens_every 0"
SCORERS = {"reasoning-gym": FLAGS, "repaired": f"{FLAGS} --data repaired"}
TENS = [f"episodes/step_0000{tens}?" for tens in range(6)]
FILES = ["evaluations/step_000000", *TENS, "evaluations/step_000060"]
CURVES = {"paid": "reward", "correct": "reward/answer", "pass@1": "eval/pass@1"}


def shares(path, files):
    """(paid, correct, wrong among the paid) of the completions in these files of a run."""
    rows = []
    for file in glob.glob(f"{path}/{files}.jsonl"):
        rows += nano_r1.read_rows(file)
    paid = nano_r1.mean(rows, "reward")
    correct = nano_r1.mean(rows, "answer_reward")
    return paid, correct, (paid - correct) / max(paid, 0.001)


def table(paths):
    """Of the runs of one scorer."""
    lines = [["completions", "paid", "correct", "wrong among the paid"]]
    for files in FILES:
        columns = zip(*(shares(path, files) for path in paths))
        lines.append([files, *map(runs.spread, columns)])
    return runs.table(lines)


def main(seeds):
    curves = []
    tables = f"seeds {seeds}; commit {runs.commit()}"
    for scorer, flags in SCORERS.items():
        paths = [runs.place("out/hole", flags, seed) for seed in seeds]
        for seed, path in zip(seeds, paths):
            runs.train("nano_r1", f"{flags} --seed {seed}", path)
            for row in runs.metrics(path):
                shown = {name: row.get(metric) for name, metric in CURVES.items()}
                curves.append({"run": scorer, "seed": int(seed), "step": row["step"]} | shown)
        tables += f"\n\n{scorer}\n\n{table(paths)}"
    nano_r1.write_rows("out/hole/curves.jsonl", curves)
    print(tables)


if __name__ == "__main__":
    main(sys.argv[1:] or ["0", "1", "2"])
