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
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import torch

import nano_r1 as r1
from benchmarks import runs
from docs.make.lesson.source import FILE, VERIFIER
from nano_report.payload import choose_example, watched_of
from nano_report.run import Run

FILES = (str(FILE), str(VERIFIER))
IDS = ("token_ids", "token", "ids")  # names of token ids
ABOUT = ("e", "i", "token_ids", "batch", "problem", "episodes", "completion")  # name completions
SAY_NOTHING = """began left label chat seed seeds shape i t row start count stopping number metrics
prompt parts path device illegal _"""


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
    return list(map(ast.unparse, targets))


def index(file):
    """({line: its innermost statement}, {line: the loops around it, but the one over steps})."""
    statements = {}
    loops = {}
    for node in ast.walk(ast.parse(Path(file).read_text())):  # outer nodes come first
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, node.end_lineno + 1):
                statements[line] = node
        if isinstance(node, ast.For) and "step" not in targets_of(node):
            for line in range(node.body[0].lineno, node.end_lineno + 1):
                loops.setdefault(line, []).append(node)
    return statements, loops


INDEX = {file: index(file) for file in FILES}  # as imported


# ---- Values as texts


def number(value):
    """A number as text."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.4g}".replace("e-0", "e-").replace("-", "−")


class Followed:
    """The followed completion: finds the part of a value that is about it, and shows that part."""

    def __init__(self, episodes, place, tokenizer, config):
        self.e = episodes[place]
        self.place = place
        self.places = {len(episodes): place}
        self.places[len(episodes) // config.group_size] = place // config.group_size
        self.tokenizer = tokenizer

    def is_about(self, value):
        """Whether an episode, a batch, a problem or token ids belong to the completion."""
        if isinstance(value, dict) and "episodes" in value:
            value = value["episodes"]
        if isinstance(value, list) and value and isinstance(value[0], r1.Episode):
            value = value[0] if len(value) == 1 else self.e
        if isinstance(value, r1.Episode):
            return value.problem == self.e.problem and value.token_ids == self.e.token_ids
        problem = {"token_ids": self.e.token_ids} | self.e.problem  # as the verifier gets it
        return value in (self.e.problem, problem, self.e.token_ids, self.e.completion, self.place)

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
        ids = name in IDS and not isinstance(value, bool)
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
        if ids and isinstance(values[0], int):
            texts = [repr(self.tokenizer.decode([x])) if x >= 0 else "–" for x in values]
        skipped = len(values) - len(self.e.token_ids)
        if skipped in (0, len(self.e.prompt_ids) - 1, len(self.e.prompt_ids)):
            return " ".join(texts[skipped:][:6]) + " …", texts[skipped:]
        return " ".join(texts) if len(texts) <= 8 else "", None

    def describe(self, value):
        """Any other value in a few words, or ""."""
        if isinstance(value, (int, float)):
            return number(value) if abs(value) < 1e6 else ""
        if isinstance(value, dict) and "target" in value:
            return f"make {value['target']} from {value['nums']}"
        if isinstance(value, dict) and all(isinstance(x, (int, float)) for x in value.values()):
            return ", ".join(f"{name} {number(x)}" for name, x in value.items())
        if isinstance(value, Fraction):
            return str(value)
        if type(value) is tuple:  # its parts; the integers are token ids
            parts = [text for part in value for _, text, _ in self.show("ids", part)]
            return f"({', '.join(parts)})" if parts else ""
        return repr(value) if isinstance(value, (str, tuple)) else ""


# ---- The tracer


class Tracer:
    """Keeps each line's values from its first run that is about the followed completion."""

    def __init__(self, followed, reference):
        self.followed = followed
        self.reference = reference
        self.current = {}  # frame that is traced: the statement that runs
        self.values = {file: {} for file in FILES}  # {line: [[name, text, tokens]]}

    def on_call(self, frame, event, arg):
        code = frame.f_code
        above = frame.f_back
        while above and (above.f_code.co_filename not in FILES or "<" in above.f_code.co_name):
            above = above.f_back  # out of libraries and comprehensions
        if code.co_filename not in FILES or "<" in code.co_qualname or above not in self.current:
            return None
        given = frame.f_locals
        about = [given[name] for name in ABOUT if name in given]
        again = above.f_code.co_name == "backward" or given.get("self") is self.reference
        if again or not self.are_about(about):
            return None
        self.current[frame] = None
        return self.on_line

    def are_about(self, values):
        return all(map(self.followed.is_about, values))

    def on_line(self, frame, event, arg):
        if event == "exception":
            return self.on_line
        statements, _ = INDEX[frame.f_code.co_filename]
        now = self.current[frame]
        self.current[frame] = statements.get(frame.f_lineno) if event == "line" else None
        if now and self.current[frame] is not now:
            self.keep(frame, now, arg)
        if event == "return":
            del self.current[frame]
        return self.on_line

    def keep(self, frame, node, result):
        """Write down the values that a statement has set, after it has ended."""
        file = frame.f_code.co_filename
        values = self.values[file]
        loops = INDEX[file][1].get(node.lineno, [])
        names = {x for loop in loops for child in [loop, *loop.body] for x in targets_of(child)}
        about = [x for x in ABOUT if x in names and x in frame.f_locals][:1]
        skipped = node.lineno in values or isinstance(node, ast.For)
        if skipped or not self.are_about([frame.f_locals[x] for x in about]):
            return
        for loop in loops:
            values.setdefault(loop.lineno, self.shown(frame, targets_of(loop)))
        shown = self.shown(frame, targets_of(node))
        if isinstance(node, ast.If):
            inside = self.current[frame] in ast.walk(ast.Module(node.body, []))
            shown = [["", "yes" if inside else "no", None]]
        if isinstance(node, ast.Return) and node.value:
            shown = self.followed.show(ast.unparse(node.value), result)
            shown = [["returns", *texts] for _, *texts in shown]
        values[node.lineno] = shown

    def shown(self, frame, names):
        """[[name, text, tokens]] of these names."""
        shown = []
        for name in names:
            shown += self.followed.show(name, eval(name, frame.f_globals, frame.f_locals))
        return shown


def record_step(run):
    """Repeat a nano_report.run.Run, trace the step of its example, and return the record."""
    record = {}
    example, group, table = choose_example(run)  # the step, and its group
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
            tracer = Tracer(followed, frame.f_locals["reference"])
            record.update(
                step=step,
                steps=config.steps,
                place=own + 1,
                table=table,
                watched=watched_of(run),
                metrics=next(row for row in run.records if row["step"] == step),
                values={Path(file).name: values for file, values in tracer.values.items()},
            )
            tracer.current[frame] = INDEX[FILES[0]][0][frame.f_lineno]
            frame.f_trace = tracer.on_line
            sys.settrace(tracer.on_call)
            episodes = r1.rollout(sampler, problems, task, config, step)
        return episodes

    def update(engine, reference, episodes, config, loss):
        if record:  # each completion in a forward pass of its own
            config = dataclasses.replace(config, micro_batch_size=1)
        return r1.update(engine, reference, episodes, config, loss)

    config = dataclasses.replace(runs.config_of(run.config), resume=None, record_tokens_every=0)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        r1.main(dataclasses.replace(config, name=folder), rollout=rollout, update=update)
    sys.settrace(None)
    return record


if __name__ == "__main__":
    r1.write_rows(f"{sys.argv[1]}/lesson.json", [record_step(Run(sys.argv[1]))])
