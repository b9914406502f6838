"""How much the default command learns: several seeds, before and after, by subgroup.

    python benchmarks/learning.py --seeds 0 1 2               # 4 to 10 minutes a seed on 2 cores
    python benchmarks/learning.py --seeds 0 1 2 --real FILE   # and the models on FILE's problems
    python benchmarks/learning.py --seeds 0 1 2 --task gsm8k  # the built-in word problems instead

Runs `python nano_r1.py --task TASK --seed S --name learning-TASK-seedS` for each seed that has not
run yet (a run that was interrupted goes on), then prints one Markdown table: mean over seeds, and
the spread from the worst to the best. `--real` evaluates every problem of a file (nums, target),
less those that the runs trained on by chance. What of the gain is more than a lower temperature
gives: benchmarks/elicitation.py.
"""

import argparse
import os

import runs


def train(task_name, seed, out):
    """The directory of the default command's run with this seed, complete."""
    return runs.train(
        os.path.join(out, f"learning-{task_name}-seed{seed}"), f"--task {task_name}", seed
    )


def evaluate_real(models, file, unseen):
    """{model directory: metrics} on the problems of `file` whose keys are in `unseen`."""
    import nano_r1 as r1

    config = r1.Config(model=models[0], rollout="transformers")
    sampler, _, task = runs.load_sampler(config)
    key = runs.problem_key("countdown")
    problems = [p for p in task.load_problems("all", file, 0) if key(p) in unseen]
    results = {}
    for path in models:
        sampler.sync_weights(r1.load_policy(r1.Config(model=path), None, sampler.model.device))
        results[path], _ = r1.evaluate(sampler, problems, task, config, 1, config.temperature)
    return results


def print_table(title, before, after):
    """Markdown rows: each subgroup before and after, as mean over seeds (worst to best)."""
    lines = [[title, "problems", "base", "after RL"]]
    row = lambda label, count, name: [
        label,
        count,
        *(runs.spread([m[name] for m in part]) for part in (before, after)),
    ]
    names = [n for n in after[0] if n.endswith("pass@1")]
    for name in sorted(names, key=lambda n: (n.count("/"), n)):
        group = name.removeprefix("eval/").removesuffix("pass@1").strip("/") or "all"
        lines.append(
            row(f"pass@1, {group}", after[0][name.removesuffix("pass@1") + "problems"], name)
        )
    labels = {
        "strict": "strict: right, well-formed",
        "lenient": "lenient accuracy",
        "format": "well-formed",
    }
    for name, label in (
        *labels.items(),
        ("mean_length", "mean length, tokens"),
        ("clipped_ratio", "cut off"),
    ):
        lines.append(row(label, "", f"eval/{name}"))
    print(f"\n{runs.table(lines)}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", default="countdown", choices=["countdown", "gsm8k"])
    parser.add_argument("--out", default=runs.OUT, help="where the runs are kept")
    parser.add_argument("--real", metavar="FILE", help="problems to evaluate the trained models on")
    args = parser.parse_args()

    if args.real and not os.path.exists(args.real):
        parser.error(f"no such file: {args.real}")
    if args.real and args.task != "countdown":
        parser.error("--real is a file of Countdown problems")
    paths = [train(args.task, seed, args.out) for seed in args.seeds]
    records = [runs.records(path) for path in paths]
    minutes = [sum(r.get("time/step", 0) for r in run) / 60 for run in records]
    print(f"\nseeds {args.seeds}; minutes of training: {', '.join(f'{m:.1f}' for m in minutes)}")
    evals = [[r for r in run if "eval/pass@1" in r] for run in records]
    print_table("held-out problems", [e[0] for e in evals], [e[-1] for e in evals])
    if args.real:
        import countdown_rewards as task

        key = runs.problem_key("countdown")
        everything = {key(p) for p in task.load_problems("all", args.real)}
        trained_on = set().union(*(runs.problems_trained_on(path, key) for path in paths))
        print(
            f"\n{len(everything & trained_on)} problems of {args.real} left out: "
            "a run met them in training"
        )
        base = os.path.join(runs.ROOT, "models", "nano-base")
        models = [runs.model_of(path) for path in paths]
        results = evaluate_real([base, *models], args.real, everything - trained_on)
        print_table("real problems", [results[base]], [results[m] for m in models])


if __name__ == "__main__":
    main()
