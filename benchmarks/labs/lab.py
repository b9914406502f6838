"""The code that all labs share: runs, predictions, verdicts, a figure, a page. It is not a lab.

A lab is a claim from a paper, predictions that were written down before the first run, and two to
six runs of a few minutes. docs/labs.md explains how to add a lab.

    python -m benchmarks.labs.lab      # make docs/labs.md and its figures again, from results/
"""

import argparse
import importlib
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import nano_r1
import nano_sft
import variants
from benchmarks import runs
from nano_report.labels import PALETTE

ROOT = Path(__file__).resolve().parents[2]

# The learning rate stays constant, so that the last step is like any other.
SHORT = "--warmup_steps 3 --lr_scheduler_type constant --record_tokens_every 0 --save_every 1000"
COUNTDOWN = f"--task countdown --max_tokens 128 --steps 20 --eval_problems 256 {SHORT}"
# Only the answer is rewarded: with a format reward, the order that is found first wins. Groups of
# 16 catch the rare correct attempts. Both were chosen on seeds 7 to 9, which no lab uses.
COINS_TASK = "--task coins --max_tokens 40"
COINS = (
    f"{COINS_TASK} --group_size 16 --steps 60 --eval_problems 384 {SHORT} --learning_rate 1.5e-4 "
    "--binary_reward --scale_rewards mean"
)
# Flags of nano_sft.py
TUNING = "--task countdown --max_tokens 128 --steps 100 --eval_problems 256 --eval_every 50"


# ---- Declarations


@dataclass
class Run:
    """One way to train. Labs share the runs that have only flags."""

    flags: str  # flags of variants.py, or of nano_sft.py if there are `rows`
    functions: dict = field(default_factory=dict)  # by name; they replace those of nano_r1.main
    rows: object = None  # fine-tuning: Config -> rows with prompt and completion
    start: str = ""  # the label of the run whose model this one begins with


@dataclass
class Prediction:
    """`measure`, a share, of run `high` exceeds that of `low` by more than `above`.

    If `within` is set, the two differ by less than `within`. `low` is a run, a number, or "before",
    which is the pass@1 of run `high` before its first step.
    """

    high: str
    low: str | float = "before"
    above: float = 0.0
    within: float | None = None
    measure: str = "pass@1"
    claim: bool = True  # the claim stands or falls with this prediction

    def text(self):
        """The prediction as a sentence."""
        if not isinstance(self.low, str):
            said = f"reaches more than {self.low + self.above:.0%}"
            if self.within:
                said = f"reaches less than {self.low + self.within:.0%}"
        elif self.within:
            said = f"is within {100 * self.within:.0f} points of {self.low}"
        else:
            said = f"exceeds {self.low} by more than {100 * self.above:.0f} points"
        return f"{self.measure.replace('_', ' ').capitalize()}: {self.high} {said}"

    def region(self):
        """(low, high): the differences that are predicted."""
        return (self.above, 10.0) if self.within is None else (-self.within, self.within)

    def difference(self, values):
        """(mean, low, high) from {run: {measure: a number for each seed}}."""
        high = values[self.high][self.measure]
        if self.low == "before":
            low = values[self.high]["before"]
        elif isinstance(self.low, str):
            low = values[self.low][self.measure]
        else:
            low = [self.low] * len(high)
        return runs.difference(high, low)

    def word(self, interval):
        """Whether all, none or a part of the interval lies in the predicted region."""
        low, high = interval[1:]
        left, right = self.region()
        if left < low and high < right:
            return "held"
        return "failed" if high < left or low > right else "inconclusive"


@dataclass
class Lab:
    title: str
    claim: str  # in the paper's words, with its number and its model's size
    prediction: str  # in words, with its reason
    runs: dict  # label -> Run
    predictions: list
    found: str  # what was seen; written afterwards
    limits: str  # what this size cannot show
    measures: tuple = ()  # functions of a trained model's Config -> {name: number}
    seeds: tuple = (0, 1, 2)

    # ---- The runs, and what is measured on them

    def path(self, name, label, seed, args):
        """A run's directory. Labs share the directories of runs that have only flags."""
        run = self.runs[label]
        own = f"{name} {label} " if run.functions or run.rows or run.start else ""
        return runs.place(args.out, f"{own}{run.flags} {args.more}", seed)

    def train(self, name, label, seed, args):
        """Complete the run in its directory."""
        run = self.runs[label]
        path = self.path(name, label, seed, args)
        file = f"{path}.jsonl"
        script = nano_sft if run.rows else variants
        flags = f"{run.flags} {args.more} --seed {seed}" + (f" --data {file}" if run.rows else "")
        config = runs.parse(script.__name__, flags)
        if run.start:
            config.model = self.path(name, run.start, seed, args) + "/model"
        if run.rows and not Path(file).exists():
            nano_r1.write_rows(file, run.rows(replace(config, data=None)))
        runs.complete(script.main, config, path, **run.functions)
        return path, replace(config, model=f"{path}/model", data=None)

    def measure(self, name, path, config):
        """{measure: number} for a complete run, which is measured only once."""
        for measured in nano_r1.read_rows(f"{path}/{name}.json"):
            return measured
        last = runs.metrics(path)[-1]
        measured = {"before": runs.curve(path)[0][1], "pass@1": last["eval/pass@1"]}
        measured |= {"tokens": last["eval/mean_length"]} | runs.by_subgroup(path)
        for measure in self.measures:
            measured |= measure(config)
        nano_r1.write_rows(f"{path}/{name}.json", [measured])
        return measured

    def main(self):
        """The command of a lab."""
        parser = argparse.ArgumentParser(description=f"{self.title}. {self.claim}")
        parser.add_argument("--seeds", type=int, nargs="+", default=list(self.seeds))
        parser.add_argument("--more", default="", help='flags for every run: --more="--steps 2"')
        parser.add_argument("--out", default="out/labs", help="directory of all runs")
        args = parser.parse_args()
        name = Path(sys.argv[0]).stem
        values = {label: {} for label in self.runs}
        for seed in args.seeds:
            for label in self.runs:
                measured = self.measure(name, *self.train(name, label, seed, args))
                for measure, number in measured.items():
                    values[label].setdefault(measure, []).append(number)
        result = {"commit": runs.commit(), "seeds": args.seeds, "values": values}
        result["differences"] = [p.difference(values) for p in self.predictions]
        # With flags of your own, the run is only a try and stays out of the page.
        folder = args.out if args.more else f"{ROOT}/benchmarks/labs/results"
        Path(folder, f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        rows = self.rows(result["differences"])
        for label, measured in values.items():
            print(label, {measure: runs.spread(numbers) for measure, numbers in measured.items()})
        for text, interval, _, word in rows:
            print(f"{word:12} {runs.signed(*interval)} {text}")
        if not args.more:
            write_page()

    # ---- The text about the results

    def rows(self, differences):
        """[(text, interval, region, word)], one for each prediction, by verdict."""
        found = []
        for p, difference in zip(self.predictions, differences):
            zero = 0.0 if isinstance(p.low, str) else p.low  # a share is drawn, or a difference
            interval, region = [[zero + end for end in ends] for ends in (difference, p.region())]
            found.append((p.text(), interval, region, p.word(difference)))
        return sorted(found, key=lambda row: list(STYLE).index(row[-1]))

    def verdict(self, differences):
        """The word for the claim, from the predictions with which the claim stands or falls."""
        pairs = zip(self.predictions, differences)
        words = {p.word(difference) for p, difference in pairs if p.claim}
        if "failed" in words:
            return "not reproduced"
        return "reproduced" if words == {"held"} else "inconclusive"

    def section(self, name, result, verdict):
        """The lab's section of docs/labs.md."""
        return (
            f"## {self.title}\n\n**{verdict.capitalize()}.** {self.found}\n\n"
            f"*Claim.* {self.claim} *Prediction.* {self.prediction}\n\n"
            f"![{verdict}](labs/{name}.png)\n\n*Limit.* {self.limits} "
            f"(`python -m benchmarks.labs.{name}`, {len(result['seeds'])} seeds, "
            f"commit {result['commit']})\n\n"
        )


# ---- The figure and the page

STYLE = {  # word for a prediction: (colour, marker, colour within the marker)
    "held": (PALETTE["curve-2"], "o", PALETTE["curve-2"]),
    "inconclusive": (PALETTE["muted"], "D", "white"),
    "failed": (PALETTE["wrong"], "X", PALETTE["wrong"]),
}


def forest(file, title, rows):
    """A row for each prediction, by verdict: what was seen, its interval, the predicted region."""
    figure = Figure(figsize=(10, 1.3 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    ends = [0.0]
    for _, interval, region, _ in rows:
        ends += [end for end in (*interval, *region) if abs(end) < 2]
    left = min(ends) - 0.05
    right = min(max(ends), 1) + 0.05
    for y, (_, (mean, low, high), region, word) in enumerate(rows):
        colour, marker, within = STYLE[word]
        axis.barh(y, region[1] - region[0], 0.7, left=region[0], color=PALETTE["level-1"])
        axis.hlines(y, max(low, left), min(high, right), color=colour, linewidth=2)
        axis.plot(mean, y, marker, color=colour, markersize=8, markerfacecolor=within)
        axis.text(right, y, f" {word}", color=colour, va="center", fontsize=9)
    axis.axvline(0, color="black", linewidth=0.7)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_yticks(range(len(rows)), [text for text, *_ in rows], fontsize=9)
    axis.set(xlim=(left, right), xlabel="share, or difference; 95% over seeds; shaded: predicted")
    axis.set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title)
    figure.savefig(file, dpi=200)


GENERATED = "<!-- What follows is made by: python -m benchmarks.labs.lab -->\n"


def write_page(docs=f"{ROOT}/docs"):
    """Make the part of docs/labs.md after `GENERATED`, and the figures, from labs/results/."""
    page = Path(docs, "labs.md")
    text = page.read_text().partition(GENERATED)[0] + GENERATED + "\n"
    for file in sorted(Path(ROOT, "benchmarks/labs/results").glob("*.json")):
        lab = importlib.import_module(f"benchmarks.labs.{file.stem}").LAB
        result = json.loads(file.read_text())
        rows = lab.rows(result["differences"])
        verdict = lab.verdict(result["differences"])
        forest(f"{docs}/labs/{file.stem}.png", f"{lab.title}: {verdict}", rows)
        text += lab.section(file.stem, result, verdict)
    page.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    write_page()
