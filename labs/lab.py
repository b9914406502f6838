"""What the labs share: runs, seed by seed; measures; the section of docs/labs.md. No lab itself.

A lab is a claim of the literature, a prediction written down before anything ran, and two to six
runs of some minutes that can hold or break it. docs/labs.md begins with how to add one.
"""

import argparse
import dataclasses
import json
import os
import re
import shlex
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [ROOT, os.path.join(ROOT, "benchmarks"), HERE]

from page import Expected, write_section

import nano_r1
import runs
import variants
from countdown_rewards import load_problems
from plumbing.evaluation import pass_at_k
from plumbing.files import write_text
from plumbing.settings import UserError, parse_args

# A run of a minute. The learning rate does not fall, so that the last step is like any other.
SHORT = (
    "--steps 20 --warmup_steps 3 --lr_scheduler_type constant --eval_problems 256 "
    "--save_every 0 --record_tokens_every 0 --no-report --eval_every 20"
)
COUNTDOWN = f"--task countdown --max_tokens 128 {SHORT}"
# The verdict alone is paid: with the reward for form the order that is found first wins. 16
# attempts, for the rare right ones. Chosen on seeds 7 to 9, which are in no lab.
COINS = f"--task coins --max_tokens 40 --group_size 16 {SHORT} --steps 60 --eval_problems 384"
COINS = f"{COINS} --binary_reward --scale_rewards mean"
RANDOM_BASE = "--model models/random-base"  # never shown how to solve: docs/base.md
LOOKS = "looks at the target"  # of chosen_by


# ---- Runs


@dataclasses.dataclass
class Run:
    """One way to train. With flags alone the runs of a lab serve the others too.

    `rollout`, `advantages` and `loss` are parts of `nano_r1.main`. `before(seed, path)` returns the
    model to start from, e.g. one that it fine-tunes; it may write beside `path`.
    """

    flags: str
    rollout: callable = variants.rollout
    advantages: callable = variants.advantages
    loss: callable = variants.loss
    before: callable = None

    @property
    def own(self):
        """The names of the functions that are not those of variants.py."""
        parts = {"rollout": self.rollout, "advantages": self.advantages, "loss": self.loss}
        names = [name for name, part in parts.items() if part is not getattr(variants, name)]
        return names + ["before"] * (self.before is not None)

    def config(self):
        return config_of(self.flags)

    def described(self, more=""):
        """Its flags and the functions of its own, for the page."""
        words = f"`{self.flags} {more}".rstrip() + "`"
        return words + (f" and its own `{'`, `'.join(self.own)}`" if self.own else "")

    def train(self, path, seed):
        """Complete the run in directory `path`."""
        config = dataclasses.replace(config_of(self.flags), seed=seed)
        if self.before:
            config = dataclasses.replace(config, model=self.before(seed, path))
        parts = (self.rollout, self.advantages, self.loss, variants.update)
        runs.complete(path, lambda config: nano_r1.main(config, *parts), config)


@dataclasses.dataclass
class Tuning:
    """Fine-tuning by nano_sft.py. `rows(seed)`: dicts with prompt and response."""

    flags: str
    rows: callable
    own = ("rows",)  # in the place of a function of variants.py

    def config(self):
        """Of a run on the same task, to measure the model by."""
        import nano_sft

        words = [*shlex.split(self.flags), "--data", "rows.jsonl"]
        with runs.PARSING:
            tuned = parse_args(nano_sft.Config, "nano_sft.py", "", words)
        return variants.Config(task=tuned.task, max_tokens=tuned.max_tokens)

    def described(self, more=""):
        """Its flags, for the page."""
        return f"`nano_sft.py {self.flags} {more}".rstrip() + "`"

    def train(self, path, seed):
        import nano_sft

        file = f"{path}.jsonl"
        if not os.path.exists(file):
            write_text(file, "".join(json.dumps(row) + "\n" for row in self.rows(seed)))
        words = [*shlex.split(self.flags), "--data", file, "--seed", str(seed)]
        config = parse_args(nano_sft.Config, "nano_sft.py", "", words)
        runs.complete(path, nano_sft.main, config)


def config_of(flags):
    with runs.PARSING:
        return parse_args(variants.Config, "variants.py", "", shlex.split(flags))


# ---- Measures: numbers of a trained model, at temperature 1 where nothing else is said


def sampled(model, config, problems, n, temperature=1.0, task=None):
    """(metrics, episodes) of n completions of each problem: the first built-in ones, or a list."""
    changed = {"model": model, "task": task or config.task, "temperature": temperature}
    config = dataclasses.replace(config, **changed)
    sampler, _, loaded = runs.load_sampler(config)
    if isinstance(problems, int):
        problems = loaded.load_problems("test", None, 0)[:problems]
    return nano_r1.evaluate(sampler, problems, loaded, config, n, temperature)


def chances(episodes, samples, ks):
    """How often each problem was solved in its `samples` adjacent tries; {k: unbiased pass@k}."""
    right = [int(e.reward.answer == 1) for e in episodes]
    counts = [sum(right[i : i + samples]) for i in range(0, len(right), samples)]
    mean = lambda k: statistics.mean(pass_at_k(samples, count, k) for count in counts)
    return counts, {k: mean(k) for k in ks if k <= samples}


def tries(problems=64, samples=64):
    """pass@1, pass@4, ... pass@`samples`, unbiased."""

    def measure(model, config):
        _, episodes = sampled(model, config, problems, samples)
        _, pass_at = chances(episodes, samples, (1, 4, 16, 64, 256))
        return {f"pass@{k} of {samples}": value for k, value in pass_at.items()}

    return measure


def five_numbers(model, config):
    """pass@1 on 256 problems with 5 numbers that + and - solve, of the base and after the run."""
    problems = runs.with_numbers(5)
    solved = lambda path: sampled(path, config, problems, 1)[0]["eval/pass@1"]
    return {"5 numbers, before": solved(config.model), "5 numbers": solved(model)}


def chosen_by(model, config):
    """pass@1 with 3 numbers, and how often the last of their two operations is the nearest.

    `LOOKS`: so much more often to the problem's own target than to another problem's.
    """
    from choices import choices_in

    three = [p for p in load_problems("test") if len(p["nums"]) == 3]
    metrics, episodes = sampled(model, config, three, 4)
    counts = choices_in([(e.problem, e.text) for e in episodes])
    own, other = (counts[name] / max(1, counts["last of"]) for name in ("last", "last elsewhere"))
    found = {"3 numbers": metrics["eval/pass@1"], "nearest": own, "to another's target": other}
    return found | {LOOKS: own - other}


def on_task(task, temperature=1.0, max_tokens=64):
    """pass@1 on 256 problems of another task, or at another temperature."""

    def measure(model, config):
        other = dataclasses.replace(config, max_tokens=max_tokens)
        metrics, _ = sampled(model, other, 256, 1, temperature, task)
        return {f"{task}, T {temperature:g}": metrics["eval/pass@1"]}

    return measure


# ---- The lab


@dataclasses.dataclass
class Lab:
    title: str
    claim: str  # in the paper's words, with its number and its size
    prediction: str  # written down before the runs, in a commit of its own
    runs: dict  # label -> Run or Tuning; differences are to the first
    expected: list[Expected]
    limits: str  # what this size cannot show
    groups: tuple = ()  # subgroups of the task that have a column of their own
    measures: tuple = ()  # functions (model's directory, config) -> {name: number}
    seeds: tuple = (0, 1, 2)
    found: str = ""  # what was seen, written down afterwards

    def main(self):
        """The command line of a lab."""
        parser = argparse.ArgumentParser(description=f"{self.title} {self.claim}")
        add = parser.add_argument
        add("--seeds", type=int, nargs="+", default=list(self.seeds))
        add(
            "--jobs",
            type=int,
            default=2,
            help="runs side by side, each with its share of the cores",
        )
        add("--more", default="", metavar="FLAGS", help="for every run, e.g. '--steps 2': a try")
        add("--out", default=os.path.join(runs.OUT, "labs"), help="where the runs are kept")
        add(
            "--page",
            default=os.path.join(ROOT, "docs", "labs.md"),
            help="the page that gets this lab's section",
        )
        add("--complete", action="store_true", help="start no run; report on complete ones")
        add("--run", help="this run alone, with the first seed; what the others are started by")
        args = parser.parse_args()
        name = os.path.basename(sys.argv[0]).removesuffix(".py")
        try:
            if args.run:
                self.complete(name, args.run, args.seeds[0], args)
            else:
                if not args.complete:
                    self.train_all(name, args)
                write_section(self, name, args)
        except UserError as error:
            sys.exit(f"{name}: {error}")

    def path(self, name, label, seed, args):
        run = self.runs[label]
        words = f"{name} {label} {args.more}" if run.own else run.flags + args.more
        words = words.replace(SHORT, "").replace("--", "")
        slug = re.sub(r"[^\w.]+", "_", words).strip("_")
        return os.path.join(args.out, f"{slug}-seed{seed}")

    def complete(self, name, label, seed, args):
        """Train and measure, in this process."""
        path = self.path(name, label, seed, args)
        cost = os.path.join(path, "cost.json")
        run = dataclasses.replace(self.runs[label], flags=f"{self.runs[label].flags} {args.more}")
        if not os.path.exists(cost):
            start = time.time()
            run.train(path, seed)
            runs.write_cost(path, start, runs.commit())
        measured = self.measured(path)
        config = dataclasses.replace(run.config(), seed=seed)
        model = os.path.join(path, "model")
        for measure in self.measures:
            key = self.key(measure)
            if key not in measured:
                measured[key] = measure(model, config)
                write_text(os.path.join(path, "measured.json"), json.dumps(measured))

    def key(self, measure):
        """The name and the arguments of a measure."""
        arguments = [str(cell.cell_contents) for cell in measure.__closure__ or ()]
        return f"{measure.__qualname__} {' '.join(arguments)}"

    def measured(self, path):
        return json.loads(runs.page_of(os.path.join(path, "measured.json")) or "{}")

    def is_complete(self, path):
        wanted = {self.key(measure) for measure in self.measures}
        return os.path.exists(f"{path}/cost.json") and wanted <= set(self.measured(path))

    def check(self, path, run, seed, args):
        """End the program if a run is there that had other flags: a path does not tell all."""
        if isinstance(run, Run) and os.path.exists(os.path.join(path, "config.json")):
            config = config_of(f"{run.flags} {args.more} --seed {seed}")
            if run.before:
                config.model = runs.config_in(path)["model"]
            runs.check_settings(path, config)

    def train_all(self, name, args):
        wanted = {}  # a run that stands under two labels is there once
        for seed in args.seeds:
            for label in self.runs:
                path = self.path(name, label, seed, args)
                self.check(path, self.runs[label], seed, args)
                if not self.is_complete(path):
                    wanted.setdefault(path, (label, seed))
        command = [sys.executable, os.path.abspath(sys.argv[0]), "--out", args.out]
        command += [f"--more={args.more}"]
        threads = str(max(1, os.cpu_count() // args.jobs))
        environment = {"OMP_NUM_THREADS": threads} | os.environ

        def start(label, seed):
            runs.call([*command, "--run", label, "--seeds", str(seed)], env=environment)

        runs.side_by_side(start, wanted.values(), args.jobs, f"{name}: runs")
