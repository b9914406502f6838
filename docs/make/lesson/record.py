"""Records what the lines of nano_r1.py, and of the verifier, computed in one step.

    python -m docs.make.lesson.record out/NAME

out/NAME is a run on one process of the CPU. nano_report/payload.py chooses one of its groups; the
record follows the shortest of the group's completions with the highest reward. The run is repeated
up to that step, and the record is written to out/NAME/lesson.json. If a tensor has a row for each
completion or group, only the row of the followed completion is kept.
"""

import ast
import contextlib
import dataclasses
import functools
import re
import sys
import tempfile
from fractions import Fraction

import torch

import nano_r1 as r1
from benchmarks import runs
from docs.make.lesson.source import FILE, VERIFIER, functions_of, statements_of
from nano_report.payload import choose_example, recorded_table
from nano_report.run import Run

FILES = (str(FILE), str(VERIFIER))
FUNCTIONS = functions_of(FILE.read_text()) | functions_of(VERIFIER.read_text())  # as imported
IDS = ("input_ids", "labels", "token_ids", "prompt_ids", "token", "ids")  # names of token ids
ABOUT = (
    "e",
    "token_ids",
    "episodes",
    "batch",
    "problem",
    "completion",
)  # arguments that name completions
SAY_NOTHING = """began left label chat seed seeds shape i t row start count stopping number metrics
prompt parts path device illegal"""


class Enough(Exception):
    """The step has been recorded."""


# ---- Statements


def targets_of(node):
    """The names that a statement sets, as texts that can be evaluated."""
    targets = getattr(node, "targets", [])
    if isinstance(node, (ast.AugAssign, ast.For)):
        targets = [node.target]
    for _ in range(2):  # a, (b, c)
        targets = [x for target in targets for x in getattr(target, "elts", [target])]
    return [ast.unparse(target) for target in targets if ast.unparse(target) != "_"]


# ---- Values as texts


def number(value):
    """A number as text."""
    if isinstance(value, (bool, int)):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}".replace("e-0", "e-").replace("-", "−")


class Followed:
    """The followed completion: finds the part of a value that is about it, and shows that part."""

    def __init__(self, episodes, place, tokenizer, config):
        self.e = episodes[place]
        self.place = place
        self.places = {len(episodes): place}
        self.places[len(episodes) // config.group_size] = place // config.group_size
        self.tokenizer = tokenizer
        self.pieces = [tokenizer.decode([i]) for i in self.e.token_ids]

    def is_about(self, value):
        """Whether an episode, a batch, a problem or token ids belong to the completion."""
        if isinstance(value, dict) and "episodes" in value:
            value = value["episodes"]
        if isinstance(value, list) and value and isinstance(value[0], r1.Episode):
            value = value[0] if len(value) == 1 else self.e
        if isinstance(value, r1.Episode):
            return value.problem == self.e.problem and value.token_ids == self.e.token_ids
        return value in (self.e.problem, self.e.token_ids, self.e.completion, self.place)

    def own(self, value):
        """The completion's row of a value with a row per completion or group; else the value."""
        size = len(value) if isinstance(value, list) or getattr(value, "ndim", 0) else 0
        if size in self.places and not (isinstance(value, list) and isinstance(value[0], int)):
            return value[self.places[size]]
        return value[0] if size == 1 and isinstance(value, torch.Tensor) else value

    def show(self, name, value):
        """[[name, text, a text for each of the completion's tokens or None]], or [].

        Values that say little are left out: large tensors, seeds, times.
        """
        if name in SAY_NOTHING.split():
            return []
        value = self.own(value)
        found = re.fullmatch(r"(?:\w+\.)?(\w+)(\[.*\])?|.*'(\w+)'\]", name)
        ids = found and (found[3] or found[1]) in IDS and not isinstance(value, bool)
        if isinstance(value, torch.Tensor) and value.ndim <= 1:
            value = value.tolist()
        if isinstance(value, list) and value and isinstance(value[0], (int, float)):
            text, tokens = self.show_list(value, ids)
            return [[name, text, tokens]] if text else []
        if isinstance(value, int) and ids:
            value = self.tokenizer.decode([value])
        text = self.describe(value)
        return [[name, text, None]] if text else []

    def show_list(self, values, ids):
        """(text, texts) of numbers, from the completion's first token if each token has one."""
        if isinstance(values[0], bool):
            return f"{values.count(False)} × 0, then {values.count(True)} × 1", None
        texts = [number(x) for x in values]
        if ids:
            texts = [repr(self.tokenizer.decode([x])) if x >= 0 else "–" for x in values]
        skipped = len(values) - len(self.pieces)
        if skipped in (0, len(self.e.prompt_ids) - 1, len(self.e.prompt_ids)):
            return " ".join(texts[skipped:][:6]) + " …", texts[skipped:]
        return " ".join(texts) if len(texts) <= 8 else "", None

    def describe(self, value):
        """Any other value in a few words, or ""."""
        if isinstance(value, (int, float)):
            return number(value) if abs(value) < 1e6 else ""
        if isinstance(value, dict) and "target" in value:
            return f"make {value['target']} from {value['nums']}"
        if isinstance(value, dict) and all(isinstance(x, float) for x in list(value.values())[1:]):
            return ", ".join(f"{name} {number(x)}" for name, x in value.items())
        if isinstance(value, Fraction):
            return str(value)
        return repr(value) if isinstance(value, (str, tuple)) else ""


# ---- The tracer


class Tracer:
    """Keeps each line's values from its first run that is about the followed completion."""

    def __init__(self, followed, reference):
        self.statements = {name: statements_of(node) for name, node in FUNCTIONS.items()}
        self.followed = followed
        self.reference = reference
        self.current = {}  # frame that is traced: number of the statement that runs
        # {function: {statement: [[name, text, tokens]]}}, the functions in the order of their calls
        self.values = {"main": {}}

    def at(self, name, line):
        """The number of the statement that has this line."""
        before = [n for n, node in enumerate(self.statements[name]) if node.lineno <= line]
        return max(before, default=None)  # sleep() has none

    @functools.cache  # noqa: B019  one tracer a run
    def loops(self, name, number):
        """Numbers of the loops around a statement, and the names that are set in them."""
        node = self.statements[name][number]
        around = []
        names = set()
        for other, loop in enumerate(self.statements[name]):
            inside = loop.lineno < node.lineno and node.end_lineno <= loop.end_lineno
            if inside and isinstance(loop, ast.For) and "step" not in targets_of(loop):
                around.append(other)
                names |= {x for child in [loop, *loop.body] for x in targets_of(child)}
        return around, names

    def on_call(self, frame, event, arg):
        name = frame.f_code.co_qualname
        above = frame.f_back
        while above and (above.f_code.co_filename not in FILES or "<" in above.f_code.co_name):
            above = above.f_back  # out of libraries and comprehensions
        if frame.f_code.co_filename not in FILES or above not in self.current:
            return None
        given = frame.f_locals
        about = [given[x] for x in ABOUT if x in given]
        skipped = name not in self.statements or above.f_code.co_name == "backward"  # once more
        if skipped or given.get("self") is self.reference or not self.are_about(about):
            return None
        self.current[frame] = None
        self.values.setdefault(name, {})
        return self.on_line

    def are_about(self, values):
        return all(map(self.followed.is_about, values))

    def on_line(self, frame, event, arg):
        if event == "exception":
            return self.on_line
        name = frame.f_code.co_qualname
        following = self.at(name, frame.f_lineno) if event == "line" else None
        now = self.current[frame]
        if now is not None and following != now:
            self.keep(frame, name, now, following, arg)
        self.current[frame] = following
        if event == "return":
            del self.current[frame]
        return self.on_line

    def keep(self, frame, name, now, following, result):
        """Write down the values that a statement has set, after it has ended."""
        node = self.statements[name][now]
        around, names = self.loops(name, now)
        about = [x for x in ("e", "i", "token_ids", "batch", "problem") if x in names][:1]
        about = [frame.f_locals[x] for x in about if x in frame.f_locals]
        if now in self.values[name] or isinstance(node, ast.For) or not self.are_about(about):
            return
        for number in around:
            loop = self.statements[name][number]
            self.values[name].setdefault(number, self.shown(frame, targets_of(loop)))
        shown = self.shown(frame, targets_of(node))
        if isinstance(node, ast.If):
            inside = following and node.body[0].lineno <= frame.f_lineno <= node.body[-1].end_lineno
            shown = [["", "yes" if inside else "no", None]]
        if isinstance(node, ast.Return):
            shown = self.followed.show(ast.unparse(node.value), result)
            shown = [["returns", *texts] for _, *texts in shown]
        self.values[name][now] = shown

    def shown(self, frame, names):
        """[[name, text, tokens]] of these names."""
        values = [eval(name, frame.f_globals, frame.f_locals) for name in names]
        return sum((self.followed.show(name, value) for name, value in zip(names, values)), [])


def record_step(run):
    """Repeat a nano_report.run.Run, trace the step of its example, and return the record."""
    record = {}
    example, group = choose_example(run)  # the step, and its group
    table = recorded_table(run, example, group)
    rows = table["completions"]
    own = min(range(len(rows)), key=lambda i: (-rows[i]["reward"], rows[i]["length"]))
    place = own + run.group_size * (group - 1)

    def rollout(sampler, problems, task, config, step):
        frame = sys._getframe(1)  # main's
        if step > example:
            raise Enough
        episodes = r1.rollout(sampler, problems, task, config, step)
        if step == example:
            if episodes[place].completion != rows[own]["completion"]:
                sys.exit("Other code made the files of this run: make a new run.")
            followed = Followed(episodes, place, task.tokenizer, config)
            config.micro_batch_size = 1  # each completion in a forward pass of its own
            tracer = Tracer(followed, frame.f_locals["reference"])
            record.update(
                step=step,
                steps=config.steps,
                place=own + 1,
                table=table,
                metrics=next(row for row in run.records if row["step"] == step),
                pieces=followed.pieces,
                values=tracer.values,
            )
            tracer.current[frame] = tracer.at("main", frame.f_lineno)
            frame.f_trace = tracer.on_line
            sys.settrace(tracer.on_call)
            episodes = r1.rollout(sampler, problems, task, config, step)
        return episodes

    again = {"name": tempfile.mkdtemp(), "resume": None, "record_tokens_every": 0}
    with contextlib.suppress(Enough):
        r1.main(dataclasses.replace(runs.config_of(run.config), **again), rollout=rollout)
    sys.settrace(None)
    return record


if __name__ == "__main__":
    r1.write_rows(f"{sys.argv[1]}/lesson.json", [record_step(Run(sys.argv[1]))])
