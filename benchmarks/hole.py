"""A hole in a public verifier: does GRPO find it, and what does the repaired reward teach?

    python -m benchmarks.hole                                         # three seeds of each reward
    python -m benchmarks.hole --seeds 0 --record FILE                 # and the curves, for a figure

Two runs of each seed: puzzle24 paid by reasoning-gym, and by Countdown's verifier
(tasks/puzzle24_rewards.py). *paid* is the share of completions that are paid, *correct* what
Countdown's verifier finds correct, *wrong* the share of the paid ones that are not. In training
each row has the completions of ten steps; the evaluations are on problems with other numbers.
Means, with the smallest and largest seed, in percent.
"""

import argparse

import nano_r1
from benchmarks import runs
from tasks.puzzle24_rewards import PAID_BY

FLAGS = "--task puzzle24 --eval_every 0 --record_tokens_every 0"


def shares(path, files):
    """What is paid, what is correct, and what of the paid is not, in percent."""
    rows = []
    for file in files:
        rows += nano_r1.read_rows(f"{path}/{file}.jsonl")
    correct = 100 * nano_r1.mean(rows, "answer_reward")
    paid = 100 * nano_r1.mean(rows, "reward") - 100 * nano_r1.mean(rows, "format_reward")
    return {"paid": paid, "correct": correct, "wrong": 100 * (1 - correct / max(paid, correct, 1))}


def hole_table(paths, steps):
    """`paths`: {reward: the runs of its seeds}."""
    files = {"held-out, before": ["evaluations/step_000000"]}
    for start in range(1, steps + 1, 10):
        end = min(start + 9, steps)
        files[f"steps {start} to {end}"] = [episodes(n) for n in range(start, end + 1)]
    files["held-out, after"] = [f"evaluations/step_{steps:06d}"]
    lines = [["paid by", "", "paid", "correct", "wrong"]]
    for paid_by, of_reward in paths.items():
        for label, of_label in files.items():
            columns = zip(*(shares(path, of_label).values() for path in of_reward))
            lines.append([paid_by, label, *(runs.spread(column, 0) for column in columns)])
    return runs.table(lines)


def episodes(step):
    return f"episodes/step_{step:06d}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--flags", default="--steps 60", help="of every run, in one text")
    parser.add_argument("--record", metavar="FILE", help="one JSON line for each step")
    parser.add_argument("--out", default="out/hole", help="where the runs are kept")
    args = parser.parse_args()
    paths = {name: [] for name in PAID_BY}
    record = []
    for seed in args.seeds:
        for name, of_reward in paths.items():
            flags = f"{FLAGS} --data {name} {args.flags}"
            path = runs.place(args.out, flags, seed)
            config = runs.parse("nano_r1", f"{flags} --seed {seed}")
            runs.complete(nano_r1.main, config, path)
            of_reward.append(path)
            for step in range(1, config.steps + 1):
                row = {"run": name, "seed": seed, "step": step}
                record.append(row | shares(path, [episodes(step)]))
    if args.record:
        nano_r1.write_rows(args.record, record)
    print(f"\nseeds {args.seeds}; commit {runs.commit()}\n\n{hole_table(paths, config.steps)}")


if __name__ == "__main__":
    main()
