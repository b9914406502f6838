"""The data that the page gets: a block for each run, and a block for each step that is shown.

A block is JSON, packed with gzip and base64; page/data.js reads it. The values of tokens are whole
multiples of a unit, because these compress well.
"""

import base64
import gzip
import itertools
import json
import os

import numpy as np

from nano_report.labels import ALARMS, METRICS, PANELS
from nano_report.run import paired, read_rows, title

LARGEST = 20e6  # bytes of episodes/ and tokens/, above which only some steps are shown
SHORT = 80  # mean tokens of a group's completions that an example has at most
UNITS = {  # the unit of each array
    "log_probs": 1e-3,
    "change": 1e-4,
    "reference": 1e-4,
}


def pack(runs, steps=()):
    """{name: base64 text}: "head", and "run0-step12" for each step that is shown.

    Raises ValueError if none of `steps` was recorded.
    """
    blocks = {}
    heads = []
    for number, run in enumerate(runs):
        head = pack_run(run)
        used = set()
        best = [((), 0, 1)]
        for step in choose_steps(run, steps):
            values = pack_step(run, step)
            head["steps"][step] = "token_ids" in values
            best.append(values["best"])
            used.update(values.get("token_ids", []), *values.get("prompt_ids", []))
            blocks[f"run{number}-step{step}"] = compress(values)
        head["vocabulary"] = {i: run.vocabulary["tokens"][i] for i in used}
        head["start"] = max(best)[1:]  # step and group
        heads.append(head)
    if steps and not blocks:
        raise ValueError(f"--steps: {runs[0].name} has the steps {list(runs[0].episodes)}.")
    head = {"runs": heads, "metrics": METRICS, "panels": PANELS, "alarms": ALARMS}
    return {"head": compress(head), **blocks}


def as_json(values):
    """An object as JSON. NaN becomes a text, because JSON has no NaN."""
    values = json.loads(json.dumps(values), parse_constant=str)
    return json.dumps(values, separators=(",", ":"))


def compress(values):
    """An object as base64 text."""
    raw = as_json(values).encode()
    return base64.b64encode(gzip.compress(raw, mtime=0)).decode()


def choose_steps(run, steps):
    """The given steps that exist. Without `steps`: all, or evenly chosen as many as fit."""
    if steps:
        return [step for step in run.episodes if step in steps]
    files = [*run.episodes.values(), *run.tokens.values()]
    stride = int(sum(map(os.path.getsize, files)) // LARGEST) + 1
    return list(run.tokens if stride > 1 and run.tokens else run.episodes)[::stride]


def pack_run(run):
    """The data of a run that the page always needs."""
    return {
        "name": run.name,
        "config": {k: v for k, v in run.config.items() if v is not None and k != "id"},
        "group_size": run.group_size,
        "records": run.records,
        "recorded": len(run.episodes),
        "evaluation": pack_evaluations(run),
        "special": run.vocabulary["special"],
        "steps": {},  # {step that is shown: whether its tokens were recorded}
    }


def pack_evaluations(run):
    """Every held-out problem, and its attempt at each evaluation; no texts if these are many."""
    attempts = paired([read_rows(file) for file in run.evaluations.values()])
    problems = [title(rows[0]["problem"]) for rows in attempts]
    room = sum(map(os.path.getsize, run.evaluations.values())) <= LARGEST
    for row in itertools.chain(*attempts):
        row["problem"] = None
        row["completion"] = row["completion"] if room else None
    return {"steps": list(run.evaluations), "problems": problems, "attempts": attempts}


def pack_step(run, step):
    """A step's completions, and its tokens if they were recorded."""
    rows, arrays = run.step(step)
    n = run.group_size
    values = {
        "step": step,
        "problems": [title(row["problem"]) for row in rows[::n]],
        "rows": [{**row, "problem": None} for row in rows],
        "best": best_group(run, step, rows, arrays),
    }
    if arrays:
        values |= pack_tokens(run, values["rows"], arrays)
    return values


def best_group(run, step, rows, arrays):
    """(rank, step, group) of the group that shows best what an update does; they compare so."""
    if not arrays:
        return (), step, 1
    ranks = rank_groups(rows, arrays, run.group_size)
    return max([(rank, step, group) for group, rank in enumerate(ranks, start=1)])


def group_table(rows):
    """A group's rows, as in episodes/, in the form that page/table.js draws."""
    return {"title": title(rows[0]["problem"]), "attempts": rows}


def recorded_table(run, step, group):
    """The same of a run's group, counted from 1, with what the update did to each token."""
    rows, arrays = run.step(step)
    own = slice(run.group_size * (group - 1), run.group_size * group)
    tokens = run.vocabulary["tokens"]
    for row, end in zip(rows[own], np.cumsum(arrays["lengths"])[own]):
        written = slice(end - row["length"], end)
        row["tokens"] = [tokens[i] for i in arrays["token_ids"][written]]
        row["log_probs"] = arrays["log_probs"][written].tolist()
        row["change"] = arrays["change"][written].tolist()
    special = [tokens[i] for i in run.vocabulary["special"]]
    return {**group_table(rows[own]), "special": special}


def pack_tokens(run, rows, arrays):
    """A step's tokens as whole numbers. Each row gets its mean k3."""
    d = np.nan_to_num(arrays["reference"])
    k3 = np.expm1(d) - d
    ends = np.cumsum(arrays["lengths"])
    for row, end in zip(rows, ends):
        own = np.arange(end - row["length"], end)
        written = own[arrays["mask"][own]]
        row["completion"] = None  # its tokens have the text
        row["kl"] = float(k3[written].mean())
    return {
        "token_ids": arrays["token_ids"].tolist(),
        "units": UNITS,
        "prompt_ids": arrays["prompts"],
        **{name: whole(arrays[name], unit) for name, unit in UNITS.items()},
    }


def rank_groups(rows, arrays, n):
    """How well each group of a step shows what an update does: the largest tuple is the best.

    The tuple is (attempts whose probability moved in the direction of their advantage, whether at
    least a quarter of the attempts is correct and a quarter wrong, whether the texts are short,
    movement). The movement is a mean over the attempts: the largest change of a token's probability
    in the direction of the advantage.
    """
    starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
    moves = np.add.reduceat(np.nan_to_num(arrays["change"]), starts)
    signs = np.sign(arrays["advantages"])
    agreeing = (np.sign(moves) * signs[starts] > 0).reshape(-1, n).sum(axis=1)
    correct = np.array([row["answer_reward"] == 1 for row in rows]).reshape(-1, n).mean(axis=1)
    mixed = (correct >= 0.25) & (correct <= 0.75)
    short = arrays["lengths"].reshape(-1, n).mean(axis=1) <= SHORT
    towards = np.maximum.reduceat(gains(arrays) * signs, starts)
    movement = towards.reshape(-1, n).mean(axis=1)
    return [tuple(map(float, rank)) for rank in zip(agreeing, mixed, short, movement)]


def choose_example(run):
    """(step, group) of the recorded group that shows best what an update does."""
    return max([best_group(run, step, *run.step(step)) for step in run.tokens])[1:]


def gains(arrays):
    """The change of each token's probability; 0 if it was not computed."""
    return np.nan_to_num(np.exp(arrays["log_probs"]) * np.expm1(arrays["change"]))


def whole(values, unit):
    """Numbers as multiples of a unit; None for a number that was not computed."""
    return [round(x / unit) if abs(x) < 1e9 else None for x in values.tolist()]
