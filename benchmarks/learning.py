"""How much the default command learns: several seeds, before and after, by subgroup.

    python benchmarks/learning.py --seeds 0 1 2                     # about ten minutes a seed on 2 cores
    python benchmarks/learning.py --seeds 0 1 2 --real FILE         # and the trained models on FILE's problems
    python benchmarks/learning.py --seeds 0 1 2 --task gsm8k        # the built-in word problems instead of Countdown

Runs `python nano_r1.py --task TASK --seed S --name learning-TASK-seedS` for each seed that has not run yet (a run that
was interrupted goes on), then prints one Markdown table: mean over seeds, and the spread from the worst to the best.
`--real` evaluates every problem of a file (nums, target), less those that the runs trained on by chance.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import countdown_rewards as task


def train(task_name, seed, out):
    """The run's directory, after making sure that the run is complete."""
    path = os.path.join(out, f"learning-{task_name}-seed{seed}")
    if not os.path.isdir(os.path.join(path, "model")):
        command = [sys.executable, "nano_r1.py"]
        if os.path.isdir(path):
            command += ["--resume", path]
        else:
            command += ["--task", task_name, "--seed", str(seed), "--out", out, "--name", os.path.basename(path)]
        print("$", " ".join(command), flush=True)
        subprocess.run(command, cwd=ROOT, check=True)
    return path


def records(path):
    with open(os.path.join(path, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def problems_trained_on(path):
    """The (sorted numbers, target) of every episode of a run."""
    seen = set()
    for name in os.listdir(os.path.join(path, "episodes")):
        with open(os.path.join(path, "episodes", name)) as file:
            seen |= {task.problem_key(json.loads(line)["problem"]) for line in file}
    return seen


def evaluate_real(models, file, unseen):
    """{model directory: evaluation metrics} on the problems of `file` that are in `unseen`."""
    import nano_r1 as r1

    r1.start_processes()
    problems = [p for p in task.load_problems("all", file) if task.problem_key(p) in unseen]
    results = {}
    for path in models:
        config = r1.Config(completions=1)
        tokenizer, model = r1.load_tokenizer(path), r1.load_model(path, "float32")
        stop_ids = r1.stop_token_ids(model, tokenizer)
        rollout = r1.TransformersRollout(model, stop_ids, stop_ids[0])
        results[path], _ = r1.evaluate(rollout, problems, task, tokenizer, config, rank=0, world=1)
    return results


def table(title, before, after):
    """Markdown rows: each subgroup before and after, as mean over seeds (worst to best)."""
    show = lambda values: f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
    names = [n for n in after[0] if n.endswith("pass@1")]
    print(f"\n| {title} | problems | base | after RL |\n| --- | --- | --- | --- |")
    for name in sorted(names, key=lambda n: (n.count("/"), n)):
        group = name.removeprefix("eval/").removesuffix("pass@1").strip("/") or "all"
        count = after[0][name.removesuffix("pass@1") + "problems"]
        print(f"| pass@1, {group} | {count} | {show([m[name] for m in before])} | {show([m[name] for m in after])} |")
    labels = {"strict": "right and in form", "lenient": "right wherever it stands", "format": "in form"}
    for name, label in (*labels.items(), ("mean_length", "mean length, tokens")):
        name = f"eval/{name}"
        print(f"| {label} | | {show([m[name] for m in before])} | {show([m[name] for m in after])} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", default="countdown", choices=["countdown", "gsm8k"])
    parser.add_argument("--out", default=os.path.join(ROOT, "out"))
    parser.add_argument("--real", help="a file of problems to evaluate the trained models on")
    args = parser.parse_args()

    if args.real and args.task != "countdown":
        parser.error("--real is a file of Countdown problems")
    paths = [train(args.task, seed, args.out) for seed in args.seeds]
    runs = [records(path) for path in paths]
    minutes = [sum(r.get("time/step", 0) for r in run) / 60 for run in runs]
    print(f"\nseeds {args.seeds}; minutes of training: {', '.join(f'{m:.1f}' for m in minutes)}")
    evals = [[r for r in run if "eval/pass@1" in r] for run in runs]
    table("held-out problems", [e[0] for e in evals], [e[-1] for e in evals])
    if args.real:
        everything = {task.problem_key(p) for p in task.load_problems("all", args.real)}
        trained_on = set().union(*(problems_trained_on(path) for path in paths))
        print(f"\n{len(everything & trained_on)} problems of {args.real} left out: a run met them in training")
        base = os.path.join(ROOT, "models", "nano-base")
        models = [os.path.join(path, "model") for path in paths]
        results = evaluate_real([base, *models], args.real, everything - trained_on)
        table("real problems", [results[base]], [results[m] for m in models])


if __name__ == "__main__":
    main()
