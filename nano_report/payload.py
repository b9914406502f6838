"""The data that the page gets: a block for the run, and a block for each step that is shown.

A block is JSON, packed with gzip and base64; page/data.js reads it. The values of tokens are
rounded, because so they compress well.
"""

import base64
import gzip
import itertools
import json
import math
import os
import re
import statistics

import numpy as np

from nano_report.labels import METRICS, PANELS
from nano_report.run import paired, read_rows, title

LARGEST = 20e6  # bytes of episodes/ and tokens/, above which only some steps are shown
COLUMNS = 100  # steps in the picture of every completion
DOTS = 100  # checks of a step in the picture of P(yes), of each kind
DIGITS = {"log_probs": 3, "change": 4}  # after the point


def pack(run):
    """{name: base64 text}: "head", and "step12" for each step that is shown."""
    blocks = {}
    head = pack_run(run)
    best = [((), 0, 1)]
    for step in steps_of(run):
        rows = run.step(step)
        best.append(best_group(run, step, rows))
        head["best"][step] = best[-1][2] if "change" in rows[0] else 0
        head["checks"] += checks_of(run, step, rows)
        blocks[f"step{step}"] = compress(pack_step(run, rows))
    head["start"] = max(best)[1:]  # step and group
    return {"head": compress(head | metrics_of(run)), **blocks}


def metrics_of(run):
    """The labels of all metrics and the panels of the curves, with those of the run's own."""
    names = dict.fromkeys(name for row in run.records for name in row)
    known = {"step", *METRICS}
    own = [name for name in names if name not in known and not name.endswith(("_low", "_high"))]
    labels = {name: (name, "A metric of this run's own.") for name in own}
    return {"metrics": METRICS | labels, "panels": PANELS + [(name, [name]) for name in own]}


def as_json(values):
    """An object as JSON. NaN becomes a text, because JSON has no NaN."""
    values = json.loads(json.dumps(values), parse_constant=str)
    return json.dumps(values, separators=(",", ":"))


def compress(values):
    """An object as base64 text."""
    return base64.b64encode(gzip.compress(as_json(values).encode(), mtime=0)).decode()


def evenly(items, most):
    """At most so many of the items, evenly chosen."""
    return items[:: -(-len(items) // most) or 1]


def steps_of(run):
    """All steps, or evenly chosen as many as fit."""
    files = [*run.episodes.values(), *run.tokens.values()]
    stride = int(sum(map(os.path.getsize, files)) // LARGEST) + 1
    return list(run.tokens if stride > 1 and run.tokens else run.episodes)[::stride]


def pack_run(run):
    """The data of a run that the page always needs."""
    return {
        "config": {k: v for k, v in run.config.items() if v is not None and k != "id"},
        "group_size": run.group_size,
        "records": run.records,
        "recorded": len(run.episodes),
        "evaluation": pack_evaluations(run),
        "special": run.special,
        "glance": [[step, levels_of(run, step)] for step in evenly(list(run.episodes), COLUMNS)],
        "checks": [],
        "watched": watched_of(run),
        "best": {},  # {step that is shown: the group that shows most, 0 without tokens}
    }


def levels_of(run, step):
    """A digit for each completion of a step: 2 correct, 1 in the right format, 0 neither."""
    rows = read_rows(run.episodes[step])
    levels = [2 if row["answer_reward"] == 1 else int(row["format_reward"] == 1) for row in rows]
    return "".join(map(str, levels))


def pack_evaluations(run):
    """Every held-out problem, with its completions at the first, the last and two evaluations."""
    steps = list(run.evaluations)
    steps = sorted({steps[round(k * (len(steps) - 1) / 3)] for k in range(4)}) if steps else []
    attempts = paired([read_rows(run.evaluations[step]) for step in steps])  # of each problem
    for row in itertools.chain(*attempts):
        row["problem"] = title(row["problem"])
    return {"steps": steps, "attempts": attempts}


def pack_step(run, rows):
    """A step's completions, and their tokens if they were recorded."""
    # With VinePPO each segment has an advantage, with a teacher each token: not the row's.
    other = run.config.get("credit") == "vineppo" or run.config.get("teacher")
    for row in rows:
        row["problem"] = title(row["problem"])
        if other:
            row["advantage"] = None
        if "change" in row:
            row["completion"] = None  # its tokens have the text
            for name, digits in DIGITS.items():
                row[name] = [round(x, digits) for x in row[name]]
    return rows


def checks_of(run, step, rows):
    """What the model said of its lines in a Countdown step: [{step, means, dots}], or [].

    A dot is [P(yes), whether the result is the target, group, completion, line]. The means are
    those of P(yes) after other results and after the target.
    """
    found = [], []
    for i, row in enumerate(rows):
        group, place = divmod(i, run.group_size)
        lines = lines_of(row["problem"], row.get("tokens", []), row.get("log_probs", []))
        for line, hit, yes in lines:
            found[hit].append([yes, hit, group + 1, place + 1, line.split()[0]])
    if not all(found):
        return []
    means = [statistics.mean(dot[0] for dot in kind) for kind in found]
    dots = [dot for kind in found for dot in evenly(kind, DOTS)]
    return [{"step": step, "means": means, "dots": dots}]


def lines_of(problem, words, log_probs):
    """[[line, 1 if its result is the target, else 0, P(yes)]], if it ends with yes or no."""
    found = []
    text = ""
    for word, log_prob in zip(words, log_probs):
        result = word in (" yes", " no") and re.search(r"=(\d+)$", text)
        if result and "target" in problem:
            share = math.exp(log_prob)
            hit = int(result[1] == str(problem["target"]))
            yes = share if word == " yes" else 1 - share
            found.append([text.split()[-1] + word, hit, round(yes, 4)])
        text += word
    return found


def watched_of(run):
    """Completions of step 1, as the model read them later: [{title, frames: [[step, lines]]}]."""
    if 0 not in run.watched or 1 not in run.tokens:
        return []
    first = dict(np.load(run.watched[0]))
    steps = evenly(list(run.watched), COLUMNS)
    scores = {step: np.load(run.watched[step])["log_probs"] for step in steps}
    rows = read_rows(run.episodes[1])
    texts = []
    for k, place in enumerate(first["place"]):
        problem = rows[place]["problem"]
        mask = first["response_mask"][k]
        words = [run.vocabulary[i] for i in first["labels"][k][mask]]
        frames = [[step, lines_of(problem, words, scores[step][k][mask])] for step in steps]
        texts.append({"title": title(problem), "frames": frames})
    return texts


def best_group(run, step, rows):
    """(rank, step, group) of the group that shows best what an update does; they compare so."""
    ranked = [((), step, 1)]
    if "change" in rows[0]:
        for first in range(0, len(rows), run.group_size):
            rank = rank_of(rows[first : first + run.group_size])
            ranked.append((rank, step, first // run.group_size + 1))
    return max(ranked)


def group_table(rows, special=()):
    """A group's rows, as in episodes/, in the form that page/table.js draws."""
    return {"title": title(rows[0]["problem"]), "completions": rows, "special": special}


def rank_of(group):
    """How well the rows of a group show what an update does: the largest tuple is the best.

    The tuple is (completions whose probability moved in the direction of their advantage, whether
    at least a quarter is correct and a quarter wrong, movement). The movement is a sum over the
    completions: the largest change of a token's probability in the direction of the advantage.
    """
    agreeing = 0
    movement = 0.0
    for row in group:
        change = np.nan_to_num(row["change"])
        agreeing += change.sum() * row["advantage"] > 0
        gains = np.exp(row["log_probs"]) * np.expm1(change)
        movement += max(gains * np.sign(row["advantage"]))
    correct = statistics.mean(row["answer_reward"] == 1 for row in group)
    return agreeing, 0.25 <= correct <= 0.75, movement


def choose_example(run):
    """(step, group, its table) of the recorded group that shows best what an update does."""
    _, step, group = max(best_group(run, step, run.step(step)) for step in run.tokens)
    rows = run.step(step)[run.group_size * (group - 1) : run.group_size * group]
    return step, group, group_table(rows, run.special)
