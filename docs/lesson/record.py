"""Records what the lines of nano_r1.py computed in one real step: python docs/lesson/record.py

It takes about three minutes, and writes docs/lesson/record.json. The run is the default command.
The example is chosen by a rule: of STEPS the step whose tokens the update moved most; of its groups
with 2 to 6 correct completions of 8 the one in which most completions moved in the direction of
their advantage; of its correct completions the one that became more likely by most. That completion
is followed: of a tensor with a row for each completion or group only its row is kept.
"""

import ast
import functools
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from source import FILE, ROOT, fingerprint, functions_of, statements_of

sys.path.insert(0, str(ROOT))
import nano_r1 as r1

SOURCE = FILE.read_text()  # as it has been imported
STEPS = (5, 9, 13)  # of those whose tokens a default run records
IDS = ("input_ids", "labels", "token_ids", "prompt_ids", "token", "ids")  # names of token ids


ABOUT = ("e", "token_ids", "episodes", "batch", "problem")  # arguments that name completions


class Enough(Exception):
    """The step has been recorded."""


# ---- Statements


def last_line(node):
    """Of a statement, or of the head of one with a body."""
    return node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno


def targets_of(node):
    """The names that a statement sets, as texts that can be evaluated."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    if isinstance(node, ast.Assign) or isinstance(node, (ast.AugAssign, ast.For)):
        leaves = [x for target in targets for x in getattr(target, "elts", [target])]
        leaves = [x for leaf in leaves for x in getattr(leaf, "elts", [leaf])]
        return [ast.unparse(leaf) for leaf in leaves if ast.unparse(leaf) != "_"]
    return []


# ---- The example


def choose_example():
    """(step, place of the followed episode in it, change of each of its tokens in nats)."""
    best = []

    def look(sampler, problems, task, config, step):
        before = sys._getframe(1).f_locals
        if step - 1 in STEPS:
            best.append(best_of(step - 1, before["episodes"], before["engine"], before["batches"]))
        if step > STEPS[-1]:
            raise Enough
        return r1.rollout(sampler, problems, task, config, step)

    run(look)
    return max(best)[1:]


@torch.no_grad()
def best_of(step, episodes, engine, batches):
    """(mean |change|, step, place, changes) of the completion that the rule chooses in a step."""
    changes = {}  # id of an episode: [change of each token]
    for batch in batches:
        moved = engine(batch) - batch["old_log_probs"]  # (B, T)
        for e, row, mask in zip(batch["episodes"], moved, batch["response_mask"]):
            changes[id(e)] = row[mask].tolist()
    total = [sum(changes[id(e)]) for e in episodes]
    size = r1.Config().group_size

    def agreement(start):
        places = range(start, start + size)
        correct = sum(episodes[i].reward.answer for i in places)
        agree = sum(total[i] * episodes[i].advantage > 0 for i in places)
        return (size // 4 <= correct <= size - size // 4) * agree

    start = max(range(0, len(episodes), size), key=agreement)
    texts = [e.text for e in episodes[start : start + size]]
    places = [i for i in range(start, start + size) if texts.count(episodes[i].text) == 1]
    place = max(places, key=lambda i: (episodes[i].reward.answer, total[i]))
    sizes = [abs(change) for row in changes.values() for change in row]
    return sum(sizes) / len(sizes), step, place, changes[id(episodes[place])]


def run(rollout):
    """The default command with another rollout, until that raises Enough."""
    try:
        r1.main(r1.Config(name=tempfile.mkdtemp(), record_tokens_every=0), rollout=rollout)
    except Enough:
        pass


# ---- Values as texts


def number(value):
    """A number as text."""
    if isinstance(value, (bool, int)):
        return str(value)
    return f"{value:.4g}".replace("e-0", "e-").replace("-", "−")


class Followed:
    """The completion that is followed: which part of a value is about it, and how it is shown."""

    def __init__(self, episodes, place, tokenizer, config):
        self.e = episodes[place]
        self.places = {len(episodes): place}
        self.places[len(episodes) // config.group_size] = place // config.group_size
        self.tokenizer = tokenizer
        self.pieces = [tokenizer.decode([i]) for i in self.e.token_ids]

    def is_about(self, value):
        """Whether an episode, a batch, a problem or token ids are those of the completion."""
        if isinstance(value, dict) and "episodes" in value:
            value = value["episodes"]
        if isinstance(value, list) and value and isinstance(value[0], r1.Episode):
            value = value[0] if len(value) == 1 else self.e
        if isinstance(value, r1.Episode):
            return value.problem == self.e.problem and value.token_ids == self.e.token_ids
        return value in (self.e.problem, self.e.token_ids)

    def own(self, value):
        """Its row of a tensor or list with a row for each completion or group; else all of it."""
        size = len(value) if isinstance(value, list) or getattr(value, "ndim", 0) else 0
        if size in self.places and not (isinstance(value, list) and isinstance(value[0], int)):
            return value[self.places[size]]
        return value[0] if size == 1 and isinstance(value, torch.Tensor) else value

    def show(self, name, value):
        """[name, text, a text for each of the completion's tokens or None]."""
        value = self.own(value)
        ids = name.strip("]'").split("'")[-1].split("[")[0].split(".")[-1] in IDS
        if isinstance(value, torch.Tensor) and value.ndim <= 1:
            if value.numel() > 1000 and (value.diff() < 0).any():  # one number for each token id
                largest = value.detach().topk(3)
                pairs = zip(largest.indices.tolist(), largest.values.tolist())
                text = ", ".join(f"{self.tokenizer.decode([i])!r} {number(x)}" for i, x in pairs)
                return [name, f"largest: {text}", None]
            value = value.tolist()
        if isinstance(value, list) and value and isinstance(value[0], (int, float)):
            return [name, *self.show_list(value, ids)]
        if isinstance(value, (bool, int, float)):
            return [name, repr(self.tokenizer.decode([value])) if ids else number(value), None]
        return [name, self.describe(value), None]

    def show_list(self, values, ids):
        """(text, texts) of numbers: from the completion's first token on if each token has one."""
        if isinstance(values[0], bool):
            return f"{values.count(False)} × 0, then {values.count(True)} × 1", None
        texts = [number(x) for x in values]
        if ids:
            texts = [repr(self.tokenizer.decode([x])) if x >= 0 else "–" for x in values]
        skipped = len(values) - len(self.pieces)
        if skipped in (0, len(self.e.prompt_ids) - 1, len(self.e.prompt_ids)):
            return " ".join(texts[skipped:][:6]) + " …", texts[skipped:]
        return " ".join(texts) if len(texts) <= 8 else f"{len(texts)} numbers", None

    def describe(self, value):
        """Anything else in a few words; "" if it says nothing."""
        if isinstance(value, torch.Tensor):
            return f"tensor {tuple(value.shape)}"
        if hasattr(value, "why"):
            parts = (value.total, value.format, value.answer)
            return "{}: format {}, answer {}".format(*map(number, parts))
        if isinstance(value, dict) and "target" in value:
            return f"make {value['target']} from {value['nums']}"
        if isinstance(value, (list, dict)):
            return f"{type(value).__name__} of {len(value)}"
        return repr(value) if isinstance(value, (str, type(None))) else ""


# ---- The tracer


class Tracer:
    """Keeps the values of the first time that each line is about the followed completion."""

    def __init__(self, functions, followed, reference):
        self.statements = {name: statements_of(node) for name, node in functions.items()}
        self.followed = followed
        self.reference = reference
        self.current = {}  # frame that is traced: number of the statement that runs
        self.values = {name: {} for name in functions}  # {statement: [[name, text, tokens]]}

    @functools.cache  # noqa: B019  one tracer a run
    def lines(self, name):
        """{line: number of its statement}."""
        found = {}
        for number, node in enumerate(self.statements[name]):
            found.update(dict.fromkeys(range(node.lineno, last_line(node) + 1), number))
        return found

    @functools.cache  # noqa: B019
    def loops(self, name, number):
        """Numbers of the loops around a statement, and the names that are set in them."""
        node = self.statements[name][number]
        around = []
        names = set()
        for other, loop in enumerate(self.statements[name]):
            inside = loop.lineno < node.lineno and node.end_lineno <= loop.end_lineno
            if inside and isinstance(loop, ast.For) and "step" not in targets_of(loop):
                around.append(other)
                names |= {x for child in ast.walk(loop) for x in targets_of(child)}
        return around, names

    def on_call(self, frame, event, arg):
        name = frame.f_code.co_qualname
        above = frame.f_back
        while above and above.f_code.co_filename != str(FILE):
            above = above.f_back
        if frame.f_code.co_filename != str(FILE) or above not in self.current:
            return None
        given = frame.f_locals
        about = [given[x] for x in ABOUT if x in given]
        skipped = name not in self.values or above.f_code.co_name == "backward"  # once more
        if skipped or given.get("self") is self.reference or not self.are_about(about):
            return None
        self.current[frame] = None
        return self.on_line

    def are_about(self, values):
        return all(map(self.followed.is_about, values))

    def on_line(self, frame, event, arg):
        if event == "exception":
            return self.on_line
        name = frame.f_code.co_qualname
        following = self.lines(name).get(frame.f_lineno) if event == "line" else None
        now = self.current[frame]
        if now is not None and following != now:
            self.keep(frame, name, now, following, arg)
        if event == "return":
            del self.current[frame]
        elif following is not None:
            self.current[frame] = following
        return self.on_line

    def keep(self, frame, name, now, following, result):
        """Write down what a statement has set, now that it has ended."""
        node = self.statements[name][now]
        around, names = self.loops(name, now)
        about = [x for x in ("e", "token_ids", "rows", "batch", "problem") if x in names][:1]
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
            parts = list(zip(node.value.elts, result)) if isinstance(node.value, ast.Tuple) else []
            for part, value in parts or [(node.value, result)]:
                _, *texts = self.followed.show(ast.unparse(part), value)
                shown.append(["returns", *texts])
        self.values[name][now] = [one for one in shown if one[1]]

    def shown(self, frame, names):
        """[[name, text, tokens]] of these names."""
        values = [eval(name, frame.f_globals, frame.f_locals) for name in names]
        return [self.followed.show(name, value) for name, value in zip(names, values)]


def record_step(step, place, changes):
    """Run the default command once more, trace this step, and return the record."""
    traced = []
    record = {}

    def rollout(sampler, problems, task, config, now):
        frame = sys._getframe(1)
        if now > step:
            sys.settrace(None)
            tracer = traced[0]
            # The rows of the step's file, one for each of the group's completions.
            rows = frame.f_locals["rows"]
            size = config.group_size
            record.update(values=tracer.values, rows=rows[place // size * size :][:size])
            raise Enough
        if now == step:
            episodes = r1.rollout(sampler, problems, task, config, now)
            followed = Followed(episodes, place, task.tokenizer, config)
            record.update(
                code=fingerprint(SOURCE),
                step=step,
                steps=config.steps,
                group=place // config.group_size + 1,
                place=place % config.group_size + 1,
                pieces=followed.pieces,
                changes=changes,
                log_probs=episodes[place].log_probs,
            )
            config.micro_batch_size = 1  # each completion in a forward pass of its own
            tracer = Tracer(functions_of(SOURCE), followed, frame.f_locals["reference"])
            traced.append(tracer)
            tracer.current[frame] = tracer.lines("main")[frame.f_lineno]
            frame.f_trace = tracer.on_line
            sys.settrace(tracer.on_call)
        return r1.rollout(sampler, problems, task, config, now)

    run(rollout)
    return record


if __name__ == "__main__":
    os.chdir(ROOT)
    step, place, changes = choose_example()
    record = record_step(step, place, changes)
    Path(__file__).with_name("record.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"step {step}, group {record['group']}, completion {record['place']}")
