"""The assignment's comparisons, on two cores: what does each choice in the algorithm change?

    python benchmarks/ablations.py                     # all questions, three seeds
    python benchmarks/ablations.py --only kl advantages --seeds 0 1
    python benchmarks/ablations.py --complete          # the answers of the runs that are complete
    python benchmarks/ablations.py --write docs        # into docs/ablations.md, with figures

Each run is `python variants.py` with a few flags, in out/ablations; a run that is complete is not
repeated, one that was interrupted goes on, and one that serves several questions runs once. Each
variant runs at three learning rates, so that none is judged at the default's: it is compared at the
one at which it learned fastest in training, which the held-out problems have no part in. The
difference to the first variant is paired by seed, with a 95% interval by Student's t. Where that
contains 0, these seeds do not resolve it. Variants that under AdamW are nearly one are also pooled.
"""

import argparse
import os
import shlex
import statistics
from dataclasses import dataclass, field

import runs
from runs import spread

# Short enough for many runs. The learning rate does not fall, so that the last step is like any
# other.
SETTINGS = (
    "--task countdown --steps 20 --max_tokens 128 --warmup_steps 3 --lr_scheduler_type constant "
    "--eval_every 20 --eval_problems 512 --save_every 0 --record_tokens_every 0 --no-report"
)
RATES = ("5e-5", "1.5e-4", "4.5e-4")  # a third of the default's, the default's, three times it
DEFAULT_RATE = RATES[1]


@dataclass
class Question:
    title: str
    variants: dict  # label -> flags; the first is what the others are compared with
    pooled: dict = field(default_factory=dict)  # label -> labels of variants that are nearly one
    rates: tuple = RATES


QUESTIONS = {
    "aggregation": Question(
        "Which length normalization?",
        {
            "each completion's mean": "",
            "token mean of the step": "--loss_agg_mode token-mean",
            "a constant (Dr. GRPO)": "--loss_agg_mode seq-mean-token-sum-norm",
        },
        {"by length: these two": ["token mean of the step", "a constant (Dr. GRPO)"]},
    ),
    "advantages": Question(
        "What is a reward compared with, and divided by?",
        {
            "group mean, standard deviation": "",
            "group mean": "--scale_rewards none",
            "the mean of the others": "--baseline leave_one_out --scale_rewards none",
            "nothing, raw rewards": "--loss_type no_baseline",
        },
        {"without a deviation: these two": ["group mean", "the mean of the others"]},
    ),
    "kl": Question("How much KL penalty?", {"1e-3": "", "0": "--kl_coef 0"}),
    "off_policy": Question(
        "On-policy or off-policy?",
        {"on-policy": "", "2 epochs x 4 minibatches": "--epochs 2 --minibatches 4"},
    ),
    "std": Question(
        "Which standard deviation?",
        {"the group's": "", "that of the batch": "--scale_rewards batch"},
    ),
    "clip": Question(
        "Is the clip needed? (2 epochs x 4 minibatches)",
        {
            "with the clip": "--epochs 2 --minibatches 4",
            "without it": "--epochs 2 --minibatches 4 --cliprange 1e6",
        },
    ),
    "kl_estimator": Question(
        "Which estimate of the KL as a loss? (coefficient 0.5)",
        {
            "k3": "--kl_coef 0.5",
            "k2": "--kl_coef 0.5 --kl_estimator k2",
            "k1": "--kl_coef 0.5 --kl_estimator k1",
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
        {"all weights": "", "rank 16": "--lora_rank 16"},
        rates=(*RATES, "1.5e-3"),
    ),
    "vineppo": Question(
        "Credit for a completion, or for its segments?",
        {"GRPO": "", "VinePPO, 4 segments, K = 4": "--credit vineppo"},
    ),
}


def at_rate(flags, rate):
    return flags if rate == DEFAULT_RATE else f"{flags} --learning_rate {rate}".strip()


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
    curves: list  # training accuracy of each step, a list for each seed
    evaluations: list  # [(step, pass@1)] for each seed


def read(paths):
    records = [runs.records(path) for path in paths]
    curves = [[r["reward/answer"] for r in rows[1:]] for rows in records]
    evaluations = [
        [(r["step"], r["eval/pass@1"]) for r in rows if "eval/pass@1" in r] for rows in records
    ]
    return Result(
        before=[e[0][1] for e in evaluations],
        after=[e[-1][1] for e in evaluations],
        during=[statistics.mean(c) for c in curves],
        curves=curves,
        evaluations=evaluations,
    )


def best_rate(results):
    """The learning rate at which a variant learned fastest, from {rate: Result}."""
    return max(results, key=lambda rate: statistics.mean(results[rate].during))


def difference(values, others):
    """Paired by seed, in words; whether it is one."""
    if len(values) < 2:
        return "one seed"
    mean, low, high = runs.paired_difference(values, others)
    word = "higher" if low > 0 else "lower" if high < 0 else "not resolved"
    return f"{runs.interval(mean, low, high)}, {word}"


def table(question, results):
    """Rows of variants, and of the pooled ones, from {label: {rate: Result}}."""
    best = {label: of_rates[best_rate(of_rates)] for label, of_rates in results.items()}
    first = next(iter(best))
    rates = [f"pass@1 at {rate}" for rate in question.rates]
    found = "at its best in training, less the first"
    lines = [["variant", "flags", *rates, found, "accuracy during training"]]
    for label, of_rates in results.items():
        flags = question.variants[label]
        cells = [spread(of_rates[rate].after) for rate in question.rates]
        cells.append("" if label == first else difference(best[label].after, best[first].after))
        flags = f"`{flags}`" if flags else ""
        lines.append([label, flags, *cells, spread(best[label].during)])
    for label, members in question.pooled.items():
        if set(members) <= set(best):
            pooled = zip(*(best[member].after for member in members))
            mean = [statistics.mean(of_seed) for of_seed in pooled]
            empty = [""] * len(rates)
            lines.append([label, "", *empty, difference(mean, best[first].after), ""])
    return runs.table(lines)


def wanted_runs(args):
    """{path: its run, as (flags, seed)}; one that serves several questions is there once."""
    wanted = {}
    for name in args.only:  # question after question: a first answer early
        for seed in args.seeds:
            for flags in QUESTIONS[name].variants.values():
                for rate in QUESTIONS[name].rates:
                    run = at_rate(flags, rate), seed
                    wanted[run_path(args.out, *run)] = run
    return wanted


def train_all(wanted, jobs):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, os.cpu_count() // jobs)))  # of each run
    runs.side_by_side(train, [(path, *run) for path, run in wanted.items()], jobs, "runs")


def answer(name, args):
    """A question's section, from the variants whose runs are all complete; None if too few are."""
    question = QUESTIONS[name]
    results = {}
    paths = []
    for label, flags in question.variants.items():
        of_rates = {
            r: [run_path(args.out, at_rate(flags, r), s) for s in args.seeds]
            for r in question.rates
        }
        every = [path for of_seeds in of_rates.values() for path in of_seeds]
        if all(os.path.exists(os.path.join(path, "cost.json")) for path in every):
            results[label] = {rate: read(of_seeds) for rate, of_seeds in of_rates.items()}
            paths += every
    if next(iter(question.variants)) not in results or len(results) < 2:
        return None
    costs = [runs.cost(path) for path in paths]
    facts = {key: ", ".join(sorted({c[key] for c in costs})) for key in ("date", "commit")}
    minutes = sum(c["seconds"] for c in costs) / 60
    before = [b for of_rates in results.values() for r in of_rates.values() for b in r.before]
    seeds = shlex.join(map(str, args.seeds))
    text = [
        f"## {question.title}",
        table(question, results),
        f"The base: {spread(before)}. `python benchmarks/ablations.py --only {name} --seeds "
        f"{seeds} --write docs`: {len(paths)} runs, {minutes:.0f} minutes of one core; "
        f"{facts['date']}, commit {facts['commit']}.",
    ]
    if args.write:
        os.makedirs(os.path.join(args.write, "ablations"), exist_ok=True)
        best = {label: of_rates[best_rate(of_rates)] for label, of_rates in results.items()}
        curves = {label: (r.curves, r.evaluations) for label, r in best.items()}
        picture = os.path.join(args.write, "ablations", f"{name}.png")
        runs.draw_training(picture, question.title, curves)
        text.append(f"![{name}](ablations/{name}.png)")
    return "\n\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), help="which questions"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
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
        "--write", metavar="DIRECTORY", help="of ablations.md, which gets a section a question"
    )
    args = parser.parse_args()

    if not args.complete:
        train_all(wanted_runs(args), args.jobs)
    for name in args.only:
        text = answer(name, args)
        print(text or f"{name}: not complete")
        if args.write and text:
            page = os.path.join(args.write, "ablations.md")
            runs.write_section(page, f"ablations {name}", text)


if __name__ == "__main__":
    main()
