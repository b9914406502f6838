"""The section that a lab writes into docs/labs.md."""

import dataclasses
import os

import runs


@dataclasses.dataclass
class Expected:
    """A prediction: `measure` of run `high` exceeds that of `low` by more than `above`.

    With `within` the two differ by less than that. `low` is another run, a number, or what the
    same run had before its first step.
    """

    high: str
    low: str | float = "before"
    above: float = 0.0
    within: float | None = None
    measure: str = "pass@1"
    claim: bool = True  # whether the claim stands or falls with it
    afterwards: bool = False  # written down when the runs were known: what the claim would need

    def said(self):
        return self.difference() + (" (written afterwards)" if self.afterwards else "")

    def difference(self):
        low = f"*{self.low}*" if isinstance(self.low, str) else f"{self.low:g}"
        if self.within is not None:
            return f"{self.measure}: *{self.high}* within {self.within:g} of {low}"
        more = f" by more than {self.above:g}" if self.above else ""
        return f"{self.measure}: *{self.high}* above {low}{more}"

    def check(self, values):
        """(difference, low end, high end, word), from {run: {measure: a number for each seed}}."""
        high = values[self.high][self.measure]
        if not isinstance(self.low, str):
            low = [self.low] * len(high)
        elif self.low == "before":
            low = values[self.high]["before"]
        else:
            low = values[self.low][self.measure]
        mean, left, right = runs.paired_difference(high, low)
        if self.within is not None:
            held = -self.within < left and right < self.within
            failed = right < -self.within or left > self.within
        else:
            held = left > self.above
            failed = right < self.above
        return mean, left, right, "held" if held else "failed" if failed else "not resolved"


def write_section(lab, name, args):
    """Print the section; put it into the page in the place of the one before."""
    paths = {seed: [lab.path(name, label, seed, args) for label in lab.runs] for seed in args.seeds}
    seeds = [seed for seed in paths if all(map(lab.is_complete, paths[seed]))]
    text = section(lab, name, seeds, args) if seeds else announcement(lab, name)
    print(text)
    known = f"<!-- lab {name} -->\n" in runs.page_of(args.page)
    if seeds or not known:  # the runs of a section that is there may lie elsewhere
        runs.write_section(args.page, f"lab {name}", text)


def announcement(lab, name):
    parts = [
        f"## {lab.title}",
        f"**Claim.** {lab.claim}",
        f"**Predicted, before the runs.** {lab.prediction}",
        "\n".join(f"- {e.said()}" for e in lab.expected),
        f"Not run yet: `python labs/{name}.py`",
    ]
    return "\n\n".join(parts) + "\n"


def section(lab, name, seeds, args):
    values = {label: row_of(lab, name, label, seeds, args) for label in lab.runs}
    paths = {lab.path(name, label, seed, args) for label in lab.runs for seed in seeds}
    costs = [runs.cost(path) for path in paths]
    minutes = sum(c["seconds"] for c in costs) / 60
    commits = ", ".join(sorted({c["commit"] for c in costs}))
    checks = [(e, *e.check(values)) for e in lab.expected] if len(seeds) > 1 else []
    folder = os.path.join(os.path.dirname(args.page), "labs")
    os.makedirs(folder, exist_ok=True)
    curves = {label: (row["training"], row["evaluations"]) for label, row in values.items()}
    runs.draw_training(os.path.join(folder, f"{name}.png"), lab.title, curves)
    parts = [
        f"## {lab.title}",
        f"**{verdict(checks)}.** {lab.found}".strip(),
        f"**Claim.** {lab.claim}",
        f"**Predicted, before the runs.** {lab.prediction}",
    ]
    if checks:
        lines = [["predicted", "difference, 95% by seed", "", "the claim's"]]
        for e, *numbers, word in checks:
            lines.append([e.said(), runs.interval(*numbers), word, "yes" if e.claim else "no"])
        parts.append(runs.table(lines))
    parts += [
        table(lab, values),
        f"![{name}](labs/{name}.png)",
        f"`python labs/{name}.py`; seeds {', '.join(map(str, seeds))}; {len(costs)} runs, "
        f"{minutes:.0f} minutes of one core; commit {commits}. Built-in held-out problems at "
        "temperature 1, mean (smallest to largest). The flags:",
        "\n".join(f"- {label}: {run.described(args.more)}" for label, run in lab.runs.items()),
        f"**What this size cannot show.** {lab.limits}",
    ]
    return "\n\n".join(parts) + "\n"


def verdict(checks):
    """The word for the claim, from the predictions with which it stands or falls."""
    words = [word for e, *_, word in checks if e.claim and not e.afterwards]
    if "failed" in words:
        return "Not reproduced"
    return "Reproduced" if words and set(words) == {"held"} else "Cannot say"


def row_of(lab, name, label, seeds, args):
    """{measure: a number for each seed}; and of each seed `evaluations` and `training`, to draw."""
    row = {}
    for seed in seeds:
        path = lab.path(name, label, seed, args)
        ends = [r for r in runs.records(path) if "eval/pass@1" in r]
        numbers = {"before": ends[0]["eval/pass@1"], "pass@1": ends[-1]["eval/pass@1"]}
        for group in lab.groups:
            numbers[group] = ends[-1][f"eval/{group}/pass@1"]
        numbers["tokens"] = ends[-1]["eval/mean_length"]
        measured = lab.measured(path)  # for other labs, too
        for measure in lab.measures:
            numbers |= measured[lab.key(measure)]
        numbers["evaluations"] = [(r["step"], r["eval/pass@1"]) for r in ends]
        numbers["training"] = [r["reward/answer"] for r in runs.records(path)[1:] if "reward" in r]
        for key, value in numbers.items():
            row.setdefault(key, []).append(value)
    return row


def table(lab, values):
    measures = []
    for row in values.values():
        measures += [m for m in row if m not in (*measures, "evaluations", "training")]
    lines = [["run", *measures, "pass@1 less that of the first run"]]
    firsts = {}  # task -> its first run
    for label, row in values.items():
        task = lab.runs[label].config().task
        first = firsts.setdefault(task, label)
        cells = [runs.spread(row.get(m, []), 0 if m == "tokens" else 3) for m in measures]
        difference = ""
        if label != first and len(row["pass@1"]) > 1:
            pairs = runs.paired_difference(row["pass@1"], values[first]["pass@1"])
            difference = runs.interval(*pairs)
        lines.append([label, *cells, difference])
    return runs.table(lines)
