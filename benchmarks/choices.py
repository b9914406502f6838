"""What a Countdown run learned to choose: how its operations compare with chance, step by step.

    python benchmarks/choices.py out/NAME [out/OTHER ...] --figure docs/choices.png

An author who takes random legal operators knows arithmetic, but chooses nothing. Two choices can be
counted in what a model writes:

    last     the share of last operations (two numbers are left) whose result is the nearest to the
             target that any legal operator has
    first    the share of first operations whose result is nearer to the target than both of
             their numbers

both against two kinds of chance: what an even draw among the legal operators would give, and what
the same line scores when it is held against **another problem's target** of the same step. The
first does not see through habits: all targets lie between 10 and 100, so that who takes - after a
large value and seldom * comes nearer without a look at the target. What exceeds the second is a
choice that looks at it.

A line counts where every number of the problem is used once and every sum is right. Read from the
run's episodes.
"""

import argparse
import collections
import math
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


def count_choices(line, nums, target, other, counts):
    """Add a line's choices to a Counter: `last`, `last by chance`, `last elsewhere`, `last of`.

    `first` likewise. `elsewhere`: with the target `other`, of another problem.
    """
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
    last = results[steps[-1][0], steps[-1][2]]
    first = results[steps[0][0], steps[0][2]]
    for name, asked in (("", target), (" elsewhere", other)):
        far = {o: abs(r - asked) for o, r in last.items()}
        nearest = [o for o in far if far[o] == min(far.values())]
        counts[f"last{name}"] += steps[-1][1] in nearest
        before = min(abs(steps[0][0] - asked), abs(steps[0][2] - asked))
        nearer = [o for o, r in first.items() if abs(r - asked) < before]
        counts[f"first{name}"] += steps[0][1] in nearer
        if not name:
            counts["last by chance"] += len(nearest) / len(far)
            counts["first by chance"] += len(nearer) / len(first)
    counts["last of"] += 1
    counts["first of"] += 1


def choices_in(completions):
    """The Counter of a step's [(problem, text)], a group's completions side by side."""
    counts = collections.Counter(completions=len(completions))
    half = len(completions) // 2  # half a step away is another problem
    elsewhere = completions[half:] + completions[:half]
    for (problem, text), (other, _) in zip(completions, elsewhere):
        for line in attempts_of(text):
            counts["lines"] += 1
            count_choices(line, problem["nums"], problem["target"], other["target"], counts)
    return counts


def choices_of(run):
    """{step: Counter} of a run's episodes."""
    steps = {}
    for step, rows in runs.episodes(run).items():
        steps[step] = choices_in([(row["problem"], row["completion"]) for row in rows])
    return steps


def pooled(steps, every):
    """{middle of `every` steps: their Counters added}."""
    pools = collections.defaultdict(collections.Counter)
    for step, counts in steps.items():
        pools[(step - 1) // every * every + (every + 1) // 2] += counts
    return pools


def draw(path, by_run, every):
    from matplotlib.figure import Figure

    plot = Figure(figsize=(9, 3.6), layout="constrained")
    axes = plot.subplots(1, 2, sharey=True)
    titles = {"last": "last operation is the nearest", "first": "first operation brings it nearer"}
    for axis, (name, title) in zip(axes, titles.items()):
        for number, (run, steps) in enumerate(by_run.items()):
            pools = pooled(steps, every)
            label = os.path.basename(os.path.normpath(run))
            curves = {name: (label, "-"), f"{name} elsewhere": ("another problem's target", "--")}
            curves[f"{name} by chance"] = ("an even draw of operators", ":")
            for key, (label, style) in curves.items():
                lines = [c[f"{name} of"] or math.nan for c in pools.values()]
                shares = [c[key] / n for c, n in zip(pools.values(), lines)]
                label = label if style == "-" or number == 0 else None
                axis.plot(list(pools), shares, style, color=f"C{number}", label=label)
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
    for run in args.runs:
        if not os.path.isdir(os.path.join(run, "episodes")):
            parser.error(f"{run} is no run: there is no {run}/episodes")
    by_run = {run: choices_of(run) for run in args.runs}
    for run, steps in by_run.items():
        print(f"\n{run}\n")
        columns = ["by chance", "elsewhere"]
        lines = [["steps", "last", *columns, "first", *columns, "lines a completion"]]
        for middle, c in pooled(steps, args.every).items():
            cells = [
                f"{c[key] / c[of]:.3f}" if c[of] else ""
                for of in ("last of", "first of")
                for key in (of.removesuffix(" of"), *(of.replace("of", name) for name in columns))
            ]
            lines.append([middle, *cells, f"{c['lines'] / c['completions']:.1f}"])
        print(runs.table(lines))
    if args.figure:
        draw(args.figure, by_run, args.every)


if __name__ == "__main__":
    main()
