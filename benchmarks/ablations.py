"""The assignment's comparisons, on two cores: what does each choice in the algorithm change?

    python benchmarks/ablations.py                     # all questions, three or five seeds
    python benchmarks/ablations.py --only kl baseline --seeds 0 1
    python benchmarks/ablations.py --complete          # the answers of the runs that are complete
    python benchmarks/ablations.py --write docs        # and docs/ablations.md with its figures

Each run is `python variants.py` with a few flags, in out/ablations; a run that is complete is not
repeated, one that was interrupted goes on, and one that serves several questions runs once. A
variant is called higher or lower than the default only if each of its seeds lies above, or below,
each seed of the default; otherwise these seeds do not resolve the difference. Questions whose
answer hung on one seed of three have five.
"""

import argparse
import os
import shlex
import statistics
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tqdm import tqdm

import runs
from runs import spread

# Short enough for many runs. The learning rate does not fall, so that the last step is like any
# other.
SETTINGS = (
    "--task countdown --steps 20 --max_tokens 200 --warmup_steps 3 --lr_scheduler_type constant "
    "--eval_every 20 --eval_problems 512 --save_every 0 --record_tokens_every 0 --no-report"
)
OFF_POLICY = "--epochs 2 --minibatches 4"


@dataclass
class Question:
    title: str
    variants: dict  # label -> flags; the first is what the others are compared with
    seeds: int = 3  # 0, 1, 2, ...


QUESTIONS = {
    "aggregation": Question(
        "Which length normalization?",
        {
            "masked_mean: each completion's mean": "",
            "token mean of the step": "--loss_agg_mode token-mean",
            "masked_normalize: a constant": "--loss_agg_mode seq-mean-token-sum-norm",
        },
        seeds=5,
    ),
    "baseline": Question(
        "Does the baseline matter?",
        {
            "group mean": "",
            "none, raw rewards": "--loss_type no_baseline",
            "leave one out, no standard deviation": "--baseline leave_one_out --scale_rewards none",
        },
        seeds=5,
    ),
    "std": Question(
        "Divide by the group's standard deviation?",
        {"yes": "", "no": "--scale_rewards none", "by that of the batch": "--scale_rewards batch"},
        seeds=5,
    ),
    "kl": Question(
        "How much KL penalty?",
        {"1e-3": "", **{c: f"--kl_coef {c}" for c in ("0", "1e-2", "1e-1")}},
        seeds=5,
    ),
    "kl_estimator": Question(
        "Which estimate of the KL as a loss? (coefficient 0.5)",
        {
            k: f"--kl_coef 0.5{'' if k == 'k3' else f' --kl_estimator {k}'}"
            for k in ("k3", "k2", "k1")
        },
    ),
    "off_policy": Question(
        "On-policy or off-policy?",
        {
            "on-policy": "",
            "2 epochs x 4 minibatches": OFF_POLICY,
            "the same without the clip": f"{OFF_POLICY} --cliprange 1e6",
        },
        seeds=5,
    ),
    "learning_rate": Question(
        "Which learning rate?",
        {
            "1.5e-4": "",
            **{lr: f"--learning_rate {lr}" for lr in ("1.5e-5", "5e-5", "5e-4", "1.5e-3")},
        },
    ),
    "group_size": Question(
        "How many completions of a prompt, of 128 a step?",
        {
            "8": "",
            **{str(n): f"--group_size {n} --prompts_per_step {128 // n}" for n in (2, 4, 16, 32)},
        },
    ),
    "lora": Question(
        "Low-rank adapters or all weights?",
        {
            "all weights": "",
            "rank 16": "--lora_rank 16",
            "rank 16, ten times the learning rate": "--lora_rank 16 --learning_rate 1.5e-3",
        },
        seeds=5,
    ),
    "vineppo": Question(
        "Credit for a completion, or for its segments?",
        {"GRPO": "", "VinePPO, 4 segments, K = 4": "--credit vineppo"},
        seeds=5,
    ),
}


def run_path(out, flags, seed):
    words = (
        "".join(c if c.isalnum() or c in ".-" else "_" for c in flags.replace("--", ""))
        or "default"
    )
    return os.path.join(out, f"{words}-seed{seed}")


def train(path, flags, seed):
    """Complete the run; runs.train remembers the commit and the seconds, evaluation included."""
    runs.train(path, f"{SETTINGS} {flags}", seed, quiet=True)


@dataclass
class Result:
    """What the runs of one variant came to, a number for each seed."""

    before: list  # pass@1 on the held-out problems
    after: list
    during: list  # mean training accuracy over all steps: how fast it learned
    kl: list  # mean estimate at the last step, where there is one
    minutes: list
    curves: list  # training accuracy of each step, a list for each seed
    evaluations: list  # [(step, pass@1)] for each seed


def read(paths):
    records = [runs.records(path) for path in paths]
    costs = [runs.cost(path) for path in paths]
    curves = [[r["reward/answer"] for r in rows[1:]] for rows in records]
    evaluations = [
        [(r["step"], r["eval/pass@1"]) for r in rows if "eval/pass@1" in r] for rows in records
    ]
    return Result(
        before=[e[0][1] for e in evaluations],
        after=[e[-1][1] for e in evaluations],
        during=[statistics.mean(c) for c in curves],
        kl=[rows[-1]["kl"] for rows in records if "kl" in rows[-1]],
        minutes=[c["seconds"] / 60 for c in costs],
        curves=curves,
        evaluations=evaluations,
    )


def compared(values, others):
    if len(values) > 1 and min(values) > max(others):
        return "higher"
    return "lower" if len(values) > 1 and max(values) < min(others) else "not resolved"


def table(question, results):
    first = next(iter(results.values()))
    with_kl = any(r.kl for r in results.values())
    head = [
        "variant",
        "flags",
        "pass@1 after",
        "against the first",
        "accuracy during training",
        "against the first",
    ]
    lines = [[*head, *["KL at the end"] * with_kl, "minutes a run"]]
    for (label, flags), r in zip(question.variants.items(), results.values()):
        after, during = (
            compared(a, b) for a, b in ((r.after, first.after), (r.during, first.during))
        )
        if r is first:
            after = during = ""
        row = [
            label,
            f"`{flags}`" if flags else "",
            spread(r.after),
            after,
            spread(r.during),
            during,
        ]
        row += [spread(r.kl)] * with_kl
        lines.append([*row, f"{statistics.mean(r.minutes):.1f}"])
    return runs.table(lines)


def figure(question, results, path):
    """Training accuracy: a moving mean of five steps, mean and range over seeds; dots: held out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    plot, axis = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    for color, (label, r) in enumerate(results.items()):
        curves = np.array(
            [np.convolve(c, np.ones(5) / 5, mode="valid") for c in r.curves]
        )  # (seeds, steps - 4)
        steps = np.arange(3, 3 + curves.shape[1])
        axis.plot(steps, curves.mean(axis=0), label=label, color=f"C{color}")
        axis.fill_between(
            steps, curves.min(axis=0), curves.max(axis=0), alpha=0.15, color=f"C{color}"
        )
        evaluations = np.array(r.evaluations).mean(axis=0)  # (evaluations, 2)
        axis.plot(*evaluations.T, "o", color=f"C{color}", markersize=4)
    axis.set(
        xlabel="step",
        ylabel="accuracy (line: training batch, dots: held out)",
        title=question.title,
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    plot.savefig(path, dpi=100)
    plt.close(plot)


def seeds_of(name, args):
    return args.seeds or list(range(QUESTIONS[name].seeds))


def wanted_runs(args):
    """{path: its run, as (flags, seed)}; one that serves several questions is there once."""
    every = [
        (f, seed)
        for n in args.only
        for f in QUESTIONS[n].variants.values()
        for seed in seeds_of(n, args)
    ]
    in_order = sorted(every, key=lambda run: run[1])  # seed after seed: a first answer early
    return {run_path(args.out, *run): run for run in in_order}


def train_all(wanted, jobs):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, os.cpu_count() // jobs)))  # of each run
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(train, path, *run) for path, run in wanted.items()]
        try:
            for run in tqdm(as_completed(started), total=len(started), desc="runs"):
                run.result()  # raises what ended it
        finally:
            pool.shutdown(cancel_futures=True)  # after the runs that have begun


def report(args):
    """The page, from complete runs; each question has the seeds that all its variants have."""
    costs = {
        path: runs.cost(path)
        for path in wanted_runs(args)
        if os.path.exists(os.path.join(path, "cost.json"))
    }
    facts = {key: ", ".join(sorted({c[key] for c in costs.values()})) for key in ("date", "commit")}
    minutes = sum(c["seconds"] for c in costs.values()) / 60
    chosen = "" if args.only == list(QUESTIONS) else f"--only {shlex.join(args.only)} "
    chosen += f"--seeds {' '.join(map(str, args.seeds))} " if args.seeds else ""
    text = [
        "# What each choice changes",
        "Mean over the seeds, and in brackets the worst and the best. Higher and lower mean: every "
        "seed of the variant lies above, or below, every seed of the first row; anything else is "
        "not resolved by these seeds, which does not mean that there is no difference. Of two "
        "variants that do not differ an effect would be said once in 3 times with two seeds, once "
        "in 10 with three and once in 126 with "
        "five. In plain words: [algorithms.md](algorithms.md#what-they-change-on-the-small-model).",
        "Made by",
        f"```\npython benchmarks/ablations.py {chosen}--write docs\n```",
        f"{len(costs)} runs of the embedded model on {os.cpu_count()} cores, {minutes:.0f} "
        f"minutes; {facts['date']}, commit {facts['commit']}. Each run: `python variants.py "
        f"{SETTINGS} FLAGS --seed S`, FLAGS being the table's.",
    ]
    for name in args.only:
        text += [f"## {QUESTIONS[name].title}", *answer(name, args, costs)]
    return "\n\n".join(text) + "\n"


def answer(name, args, complete):
    """A question's paragraphs, from the seeds whose runs are all `complete`."""
    question = QUESTIONS[name]
    flags = question.variants.values()
    paths = {seed: [run_path(args.out, f, seed) for f in flags] for seed in seeds_of(name, args)}
    seeds = [s for s in paths if all(path in complete for path in paths[s])]
    if not seeds:
        return ["No seed is complete."]
    results = {
        label: read([paths[s][i] for s in seeds]) for i, label in enumerate(question.variants)
    }
    before = spread([b for r in results.values() for b in r.before])
    count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    text = [f"{count}. The base model: {before}.", table(question, results)]
    if args.write:
        os.makedirs(os.path.join(args.write, "ablations"), exist_ok=True)
        figure(question, results, os.path.join(args.write, "ablations", f"{name}.png"))
        text.append(f"![{name}](ablations/{name}.png)")
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), help="which questions"
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        help="the same for all questions; without it each has its own",
    )
    parser.add_argument(
        "--out", default=os.path.join(runs.OUT, "ablations"), help="where the runs are kept"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs side by side, each with its share of the cores"
    )
    parser.add_argument(
        "--complete", action="store_true", help="start no run: report on those that are complete"
    )
    parser.add_argument(
        "--write", metavar="DIRECTORY", help="write ablations.md and ablations/*.png there"
    )
    args = parser.parse_args()

    if not args.complete:
        train_all(wanted_runs(args), args.jobs)
    text = report(args)
    print(text)
    if args.write:
        with open(os.path.join(args.write, "ablations.md"), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
