"""Packing a run for the page: a compressed block for what is always needed, one for each step.

A block is JSON followed by arrays of numbers, gzip, base64; page/data.js reads it. Log-probs,
entropies and changes are whole numbers of a unit, 0.001 nats unless they are larger or smaller than
usual, their low bytes before their high bytes: that compresses to half of what float16 takes.
"""

import base64
import gzip
import json
import math
import os
import shlex

import numpy as np

from plumbing.arithmetic import written_sums
from plumbing.report.read import SAME, explanations
from plumbing.settings import UserError

NONE = -(2**15)  # stands for a number that was not computed
SHOWN = (
    "step",
    "completion",
    "reward",
    "format_reward",
    "answer_reward",
    "why",
    "length",
    "finish_reason",
)
ARRAYS = {  # of the page -> of the record, where it has them
    "logProb": "log_probs",
    "entropy": "entropy",
    "change": "change",
    "advantages": "advantages",
    "reference": "reference",
}


def pack(runs, steps, max_bytes):
    """(the block `head`, {"run0-step12": block}), base64 texts.

    About `max_bytes` at most, if no `steps` are named. UserError if none of those is there.
    """
    blocks = {}
    described = []
    for number, run in enumerate(runs):
        vocabulary = Vocabulary(run.vocabulary)
        packed = {}
        token_steps = []
        chosen = [step for step in run.steps if steps is None or step in steps]
        with_tokens = set(run.numbered("tokens"))
        for step in [  # where not all fit, first those with the most to see
            *by_bisection([step for step in chosen if step in with_tokens]),
            *by_bisection([step for step in chosen if step not in with_tokens]),
        ]:
            rows = run.read_rows(f"episodes/step_{step:06d}.jsonl")
            if not rows:
                continue
            values, arrays = step_of(run, step, rows, vocabulary)
            text = block(values, arrays)
            size = len(text) + sum(map(len, packed.values()))
            if steps is None and size > max_bytes / len(runs) and len(packed) > 1:
                break
            packed[step] = text
            if arrays:
                token_steps.append(step)
        blocks |= {f"run{number}-step{step}": packed[step] for step in sorted(packed)}
        about = describe(run, sorted(packed), vocabulary)
        described.append(about | {"tokenSteps": sorted(token_steps)})
    if steps is not None and not blocks:
        have = sorted({step for run in runs for step in run.steps})
        raise UserError(f"--steps: recorded are {f'{have[0]} to {have[-1]}' if have else 'none'}.")
    return block({"runs": described, "explanations": explanations()}, {}), blocks


def by_bisection(steps):
    """Ordered so that any first few are spread evenly: first, last, middle, quarters."""
    order = [steps[0], steps[-1]] if len(steps) > 1 else list(steps)
    parts = [(0, len(steps) - 1)]
    while parts:
        low, high = parts.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(steps[middle])
            parts += [(low, middle), (middle, high)]
    return order


def block(values, arrays):
    """JSON and arrays {name: (unit or None, array)} -> gzip -> base64 text."""
    listed = []
    content = b""
    for name, (unit, array) in arrays.items():
        width = array.dtype.itemsize
        listed.append({"name": name, "count": len(array), "width": width, "unit": unit})
        content += array.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T.tobytes()
    # JSON has no NaN: it becomes a text
    values = json.loads(json.dumps({**values, "arrays": listed}), parse_constant=str)
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    text = text.encode("utf-8", "replace")  # half of a surrogate pair is no text
    raw = len(text).to_bytes(4, "little") + text + content
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


class Vocabulary:
    """The tokens that occur in a report, numbered as they appear; a run's own has 150,000."""

    def __init__(self, vocabulary):
        self.tokens = vocabulary["tokens"]
        self.special = set(vocabulary["special"])
        self.numbers = np.full(len(self.tokens), -1)  # of each token id
        self.ids = []

    def number(self, token_ids):
        """Token ids -> numbers in this vocabulary."""
        new = np.unique(token_ids[self.numbers[token_ids] < 0])
        self.numbers[new] = np.arange(len(self.ids), len(self.ids) + len(new))
        self.ids += new.tolist()
        return self.numbers[token_ids]

    def text(self, token_ids):
        return (
            "".join(self.tokens[i] for i in token_ids).encode("latin-1").decode("utf-8", "replace")
        )


def describe(run, steps, vocabulary):
    """What the page always needs of a run."""
    base = [{"temperature": t, **interval(metrics)} for t, metrics in run.base_evaluations()]
    evaluated = [{"step": r["step"], **interval(r)} for r in run.records if "eval/pass@1" in r]
    return {
        "name": run.name,
        "path": run.path,
        "config": {key: value for key, value in run.config.items() if value is not None},
        "groupSize": run.group_size,
        "records": run.records,
        "evaluations": evaluated,
        "base": base,
        "commands": base_commands(run),
        "warnings": [{"text": text, "steps": at} for text, at in run.warnings()],
        "notes": list(dict.fromkeys(run.notes)),
        "steps": steps,
        "recorded": len(run.steps),
        "heldOut": [
            {
                "problem": run.title(p["problem"]),
                "rows": [
                    {**{k: row.get(k) for k in SHOWN}, "wrong": wrong_sums(row["completion"])}
                    for row in p["rows"]
                ],
            }
            for p in run.held_out()
        ],
        "tokenIds": vocabulary.ids,
        "vocabulary": [vocabulary.tokens[i] for i in vocabulary.ids],
        "special": [number for number, i in enumerate(vocabulary.ids) if i in vocabulary.special],
    }


def interval(metrics):
    """pass@1 of an evaluation, with its 95% interval."""
    names = {
        "value": "eval/pass@1",
        "low": "eval/pass@1_low",
        "high": "eval/pass@1_high",
        "problems": "eval/problems",
    }
    return {name: metrics.get(key) for name, key in names.items()}


def base_commands(run):
    """How to evaluate the untrained model beside the run, and make its report again."""
    beside = os.path.dirname(os.path.normpath(run.path)) or "."
    settings = {name: run.config[name] for name in SAME if run.config.get(name) is not None}
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    commands = []
    for temperature in ("0.3", "0.6"):
        place = ["--out", beside, "--name", f"{run.name}-base-{temperature}"]
        evaluate = ["python", "nano_r1.py", "--eval_only", "--temperature", temperature]
        commands.append(shlex.join([*evaluate, *flags, *place]))
    return [*commands, shlex.join(["python", "-m", "plumbing.report", run.path])]


def wrong_sums(text):
    """[[start, end]] of the written sums that are wrong, in UTF-16 units, as a browser counts."""
    units = lambda end: len(text[:end].encode("utf-16-le", "surrogatepass")) // 2
    return [[units(s.start), units(s.end)] for s in written_sums(text) if not s.correct]


def step_of(run, step, rows, vocabulary):
    """(values, arrays) of a step's block; `rows` are its completions."""
    tokens = run.tokens(step, rows)
    n = run.group_size
    values = {
        "step": step,
        "problems": [run.title(row["problem"]) for row in rows[::n]],
        "reward": [row["reward"] for row in rows],
        "format": [row["format_reward"] for row in rows],
        "answer": [row["answer_reward"] for row in rows],
        "why": [row["why"] for row in rows],
        "advantage": [row["advantage"] for row in rows],
        "loss": [row.get("loss") for row in rows],  # its part; older runs have none
        "kl": [row.get("kl") for row in rows],  # mean over its tokens; None without a penalty
        "entropyMean": [row.get("entropy") for row in rows],
        "length": [row["length"] for row in rows],
        "finish": [row["finish_reason"] for row in rows],
        "wrong": [wrong_sums(row["completion"]) for row in rows],
    }
    if tokens is None:
        values |= {"text": [row["completion"] for row in rows]}
        return values, {}
    starts = np.concatenate([[0], np.cumsum(tokens["prompt_lengths"])])
    values |= {
        "prompts": [vocabulary.text(tokens["prompt_ids"][a:b]) for a, b in zip(starts, starts[1:])],
        "trained": tokens["trained"].tolist(),
    }
    numbers = vocabulary.number(tokens["token_ids"])
    small = np.uint16 if len(vocabulary.ids) < 2**16 else np.uint32
    arrays = {name: fixed(tokens[of]) for name, of in ARRAYS.items() if of in tokens}
    return values, {"tokens": (None, numbers.astype(small)), **arrays}


def fixed(values):
    """Numbers as (unit, int16).

    The unit is 0.001 where that holds the largest and shows three digits of a typical large one.
    """
    values = values.astype(np.float64)
    known = np.abs(values[np.isfinite(values)])
    unit = 1e-3
    if known.any():
        fine = 10 ** math.floor(math.log10(np.quantile(known[known > 0], 0.9))) / 100
        needed = 10 ** math.ceil(math.log10(known.max() / 2**15 * 1.001))
        unit = max(min(unit, fine), needed)
    whole = np.where(
        np.isfinite(values), np.round(np.nan_to_num(values, posinf=0, neginf=0) / unit), NONE
    )
    return unit, whole.astype(np.int16)
