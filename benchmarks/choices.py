"""What a Countdown run learned to choose: how its operations compare with chance, step by step.

    python benchmarks/choices.py out/NAME [out/OTHER ...] --figure docs/choices.png

An author who takes random legal operators knows arithmetic, but chooses nothing. Two choices can be
counted in what a model writes, both against what an even draw among the legal operators would give:

    last     the share of last operations (two numbers are left) whose result is the nearest to the
             target that any legal operator has
    first    the share of first operations whose result is nearer to the target than both of
             their numbers

A line counts where every number of the problem is used once and every sum is right. Read from the
run's episodes; the figure has a line with its band for each run's value, and one for chance.
"""

import argparse
import collections
import json
import os
import re
import sys

from arithmetic import attempts_of

import runs

sys.path.insert(0, os.path.join(runs.ROOT, "models", "nano-base"))

STEP = re.compile(r"(\d+)?([-+*/])(\d+)=(\d+)")


def operations_of(line, nums):
    """[(value before, operator, number, result)] of a line, or None where it is not one to count.

    `36-19=17-7=10` goes on from the running value; `88/22=4,41-4=37` puts the other number first.
    """
    steps = []
    value = None
    used = []
    for part in line.split()[0].replace(",", " ").split():
        place = 0
        for match in STEP.finditer(part):
            left, operator, right, result = match.groups()
            if match.start() != place or (left is None) == (place == 0):
                return None
            place = match.end()
            left = int(left or value)
            right = int(right)
            result = int(result)
            if value is None:
                used += [left, right]
                value = left
                number = right
            elif left == value:
                number = right
                used.append(right)
            elif right == value:  # the other number first
                number = left
                used.append(left)
            else:
                return None
            steps.append((value, operator, number, result))
            value = result
        if place != len(part):
            return None
    return steps if sorted(used) == sorted(nums) else None


def count_choices(line, nums, target, counts):
    """Add a line's choices to a Counter: `last`, `last by chance`, `last of`; `first` likewise."""
    from make_base import operations

    steps = operations_of(line, nums)
    if not steps:
        return
    results = {}
    for value, operator, number, result in steps:
        legal = {o: step[1] for o, step in operations(value, number).items()}
        if legal.get(operator) != result:
            return
        results[value, number] = legal
    value, operator, number, result = steps[-1]
    far = {o: abs(r - target) for o, r in results[value, number].items()}
    best = min(far.values())
    counts["last"] += abs(result - target) == best
    counts["last by chance"] += sum(d == best for d in far.values()) / len(far)
    counts["last of"] += 1
    value, operator, number, result = steps[0]
    before = min(abs(value - target), abs(number - target))
    nearer = [abs(r - target) < before for r in results[value, number].values()]
    counts["first"] += abs(result - target) < before
    counts["first by chance"] += sum(nearer) / len(nearer)
    counts["first of"] += 1


def choices_of(run):
    """{step: Counter} of a run's episodes."""
    steps = {}
    folder = os.path.join(run, "episodes")
    for name in sorted(os.listdir(folder)):
        counts = collections.Counter()
        with open(os.path.join(folder, name)) as file:
            for row in map(json.loads, file):
                for line in attempts_of(row["completion"]):
                    counts["lines"] += 1
                    count_choices(line, row["problem"]["nums"], row["problem"]["target"], counts)
                counts["completions"] += 1
        steps[int(name.removeprefix("step_").removesuffix(".jsonl"))] = counts
    return steps


def pooled(steps, every):
    """{middle of `every` steps: their Counters added}."""
    pools = collections.defaultdict(collections.Counter)
    for step, counts in steps.items():
        pools[(step - 1) // every * every + (every + 1) // 2] += counts
    return pools


def draw(path, by_run, every):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plot, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, constrained_layout=True)
    titles = {"last": "last operation is the nearest", "first": "first operation brings it nearer"}
    for axis, (name, title) in zip(axes, titles.items()):
        for number, (run, steps) in enumerate(by_run.items()):
            pools = pooled(steps, every)
            chance = [c[f"{name} by chance"] / c[f"{name} of"] for c in pools.values()]
            chosen = [c[name] / c[f"{name} of"] for c in pools.values()]
            axis.plot(list(pools), chosen, color=f"C{number}", label=os.path.basename(run))
            label = "an even draw of operators" if number == 0 else None
            axis.plot(list(pools), chance, ":", color="0.5", label=label)
        axis.set(xlabel="step", title=title, ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    plot.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of Countdown runs")
    parser.add_argument("--every", type=int, default=10, help="steps pooled for one row")
    parser.add_argument("--figure", metavar="FILE", help="draw it, too")
    args = parser.parse_args()
    by_run = {run: choices_of(run) for run in args.runs}
    for run, steps in by_run.items():
        print(f"\n{run}\n")
        lines = [["steps", "last", "by chance", "first", "by chance", "lines a completion"]]
        for middle, c in pooled(steps, args.every).items():
            cells = [
                f"{c[key] / c[of]:.3f}" if c[of] else ""
                for of in ("last of", "first of")
                for key in (of.removesuffix(" of"), of.replace(" of", " by chance"))
            ]
            lines.append([middle, *cells, f"{c['lines'] / c['completions']:.1f}"])
        print(runs.table(lines))
    if args.figure:
        draw(args.figure, by_run, args.every)


if __name__ == "__main__":
    main()
