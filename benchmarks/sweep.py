"""A grid of flags and seeds: a table of every evaluation, with paired intervals at the end.

    python -m benchmarks.sweep --script nano_r1 --flags "--task countdown"    # one row, three seeds
    python -m benchmarks.sweep --flags "--steps 20 --max_tokens 128" \\
        --axis learning_rate=5e-5 learning_rate=1.5e-4 learning_rate=4.5e-4 \\
        --axis default kl_coef=0 group_size=4,prompts_per_step=32
    python -m benchmarks.sweep --script nano_sft --flags "--data ROWS.jsonl" \\
        --axis examples=128 examples=512 --axis batch_size=16 batch_size=32

The grid has one point of each --axis; without --axis it has one row. A point is a list of flags
with commas between them and without dashes, or `default` for none. In the end each is compared with
the first, seed by seed. Complete runs are kept while code and base are the same;
stopped ones continue. nano_eval.py has a model's subgroups.
"""

import argparse
import itertools

from benchmarks import runs


def flags_of(points):
    """The flags of a row of the grid: ("kl_coef=0", "steps=3,seed=1") -> " --kl_coef=0 ..."."""
    flags = ""
    for point in points:
        if point != "default":
            flags += f",{point}".replace(",", " --")
    return flags


def result_table(paths):
    """Each evaluation on held-out problems: means over the seeds, with the smallest and largest.

    `paths`: {label: the runs of its seeds}. The last evaluation is compared with the first label's.
    """
    lines = [["", "step", "pass@1", "format", "tokens", "minus the first, by seed"]]
    first = None
    for label, of_label in paths.items():
        for rows in zip(*map(runs.evaluations, of_label)):
            shares = [row["eval/pass@1"] for row in rows]
            formats = runs.spread([row["eval/format"] for row in rows])
            tokens = runs.spread([row["eval/mean_length"] for row in rows], 0)
            cells = [runs.spread(shares), formats, tokens, ""]
            lines.append([label, rows[0]["step"], *cells])
        first = first or shares
        lines[-1][-1] = runs.signed(*runs.difference(shares, first))
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--axis", nargs="+", action="append", default=[], metavar="FLAG=VALUE")
    add("--flags", default="", help="of every run, in one text")
    add("--script", default="variants", help="nano_r1, nano_sft or yours")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--out", default="out/sweep", help="where the runs are kept")
    args = parser.parse_args()
    folder = f"{args.out}/{args.script}"
    paths = {}
    for points in itertools.product(*args.axis):
        flags = args.flags + flags_of(points)
        label = ", ".join(points) or "default"
        paths[label] = [runs.place(folder, flags, s) for s in args.seeds]
        for seed, path in zip(args.seeds, paths[label]):
            runs.train(args.script, f"{flags} --seed {seed}", path)
    print(f"\nseeds {args.seeds}; commit {runs.commit()}\n\n{result_table(paths)}")


if __name__ == "__main__":
    main()
