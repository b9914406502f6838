"""The learning curve of a command: several seeds, with their spread and interval.

    python -m benchmarks.learning                            # the default command, three seeds
    python -m benchmarks.learning --flags "--task gsm8k --max_tokens 64" --seeds 0 1 2 3
    python -m benchmarks.learning --script variants --flags "--loss_type gspo --minibatches 4"

A run that is complete is not repeated. One that was stopped continues.
"""

import argparse

from benchmarks import runs


def curve_table(paths):
    lines = [["step", "pass@1: mean (smallest to largest)", "95% over seeds", "format", "tokens"]]
    evaluations = [[row for row in runs.metrics(path) if "eval/pass@1" in row] for path in paths]
    for rows in zip(*evaluations):  # one evaluation of each seed
        columns = [[row[f"eval/{name}"] for row in rows] for name in ("pass@1", "format")]
        _, low, high = runs.mean_interval(columns[0])
        lengths = [row["eval/mean_length"] for row in rows]
        cells = [runs.spread(columns[0]), f"[{low:.3f}, {high:.3f}]", runs.spread(columns[1])]
        lines.append([rows[0]["step"], *cells, runs.spread(lengths, 0)])
    return runs.table(lines)


def subgroup_table(paths):
    before = [runs.by_subgroup(path, min) for path in paths]
    after = [runs.by_subgroup(path, max) for path in paths]
    lines = [["subgroup", "before", "after"]]
    for name in before[0]:
        columns = [[run[name] for run in when] for when in (before, after)]
        lines.append([name, *map(runs.spread, columns)])
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flags", default="", help="of the command, in one text")
    parser.add_argument("--script", default="nano_r1", help="nano_r1, variants or nano_sft")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="out/learning", help="where runs and figure go")
    args = parser.parse_args()
    paths = []
    for seed in args.seeds:
        paths.append(runs.place(args.out, f"{args.script} {args.flags}", seed))
        runs.train(args.script, f"{args.flags} --seed {seed}", paths[-1])
    title = f"{args.script}.py {args.flags}"
    runs.draw_curves(f"{args.out}/curve.png", title, {title: list(map(runs.curve, paths))})
    print(f"\n{title}, seeds {args.seeds}; commit {runs.commit()}\n\n{curve_table(paths)}")
    print(f"\n{subgroup_table(paths)}")
    for seed, path in zip(args.seeds, paths):
        minutes = sum(row.get("time/step", 0) for row in runs.metrics(path)) / 60
        print(f"seed {seed}: {minutes:.1f} minutes of training; {path}")


if __name__ == "__main__":
    main()
