"""The runs behind the pages: the default command up to a step that has such a group, recorded.

First a plain run looks for the step, then the same run again is traced: it is the same to the bit.
"""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from lesson import reading, sources
from lesson.rounding import rounded
from lesson.tracer import ROOT, Tracer
from lesson.values import Group, Values

import nano_r1 as r1
import variants
from plumbing.models import vocabulary_size
from plumbing.settings import parse_args


class Enough(Exception):
    """The step is done: the rest of the run is not needed."""


def suits(group):
    """One right, one well-formed and wrong, one cut off: what the page wants to show."""
    right = [e for e in group if e.reward.answer == 1]
    form_only = [e for e in group if e.reward.format == 1 and e.reward.answer == 0]
    cut = [e for e in group if e.completion.finish_reason == "length"]
    return len(right) == 1 and bool(form_only) and bool(cut)


def find(config):
    """(step, number of the group, its episodes) of the first group that suits."""
    found = []

    def rollout(sampler, problems, task, config, step):
        episodes = r1.rollout(sampler, problems, task, config, step)
        for i in range(0, len(episodes), config.group_size):
            group = episodes[i : i + config.group_size]
            if not found and suits(group):
                found.extend([step, i // config.group_size, group])
        if found:
            raise Enough
        return episodes

    with contextlib.suppress(Enough):
        r1.main(config, rollout=rollout)
    if not found:
        sys.exit("No group of this run has one right, one wrong and one cut off: take --steps 60.")
    return found


class Recorder:
    """Records one step under several mains, in one table of values."""

    def __init__(self, lessons, step, number, group):
        self.lessons = lessons
        self.step = step
        self.number = number
        self.group = group
        self.values = Values(None)
        self.found = []

    def run(self, config, main, name, flags="", what=""):
        """Add the step under this config to the record."""
        group = Group(
            self.number, config.group_size, config.prompts_per_step, self.group[0].problem
        )
        group.prompt_length = len(self.group[0].prompt_ids)
        self.values.group = group
        first = []

        def rollout(sampler, problems, task, config, at):
            first[:] = first or [at]
            self.tokenizer = task.tokenizer
            known = vocabulary_size(task.tokenizer)
            self.values.vocabulary = {known, sampler.model.config.vocab_size}
            if at > self.step:
                raise Enough
            # Tracing makes all of Python slower; on is it one step before, for main's own lines.
            tracer.pause(at not in (self.step - 1, self.step) and config.resume is None)
            return main.rollout(sampler, problems, task, config, at)

        active = lambda frame: frame.f_locals.get("step", self.step) == self.step
        with Tracer(self.lessons, ("nano_r1.py", "main"), self.values, active) as tracer:
            with contextlib.suppress(Enough):
                r1.main(config, rollout, main.advantages, main.loss, main.update)
        facts = reading.Reading(tracer.root.record, self.values.table)
        run = {"name": name, "flags": flags, "what": what, "call": plain(tracer.root.record)}
        run["facts"] = facts.facts(config.group_size)
        run["total"] = loss_of(config, self.step)
        self.found.append(run)
        print(f"{name}: recorded", file=sys.stderr)

    def record(self, config):
        """Everything as an object for JSON."""
        group = self.group
        found = {
            "code": [sources.fingerprint((ROOT / name).read_text()) for name in self.lessons],
            "step": self.step,
            "steps": config.steps,
            "group": self.number + 1,
            "prompts": config.prompts_per_step,
            "size": config.group_size,
            "prompt": group[0].prompt_ids,
            "attempts": [attempt(e) for e in group],
            "shown": next(k for k, e in enumerate(group) if e.reward.answer == 1),
            "runs": self.found,
            "values": self.values.table,
        }
        found["tokens"] = {str(i): self.tokenizer.decode([i]) for i in sorted(ids_in(found))}
        return found


def loss_of(config, step):
    """The loss of a step, as the run has written it down."""
    path = config.resume or Path(config.out) / config.name
    for line in (Path(path) / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["step"] == step:
            return rounded(row.get("loss", 0.0))


def attempt(e):
    return {
        "text": e.text,
        "ids": e.completion.token_ids,
        "finish": e.completion.finish_reason,
        "why": e.reward.why,
        "format": e.reward.format,
        "answer": e.reward.answer,
        "reward": e.reward.total,
    }


def plain(value):
    """Sets as lists, for JSON."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return sorted(value) if isinstance(value, set) else value


def ids_in(value, key=""):
    """Every token id of a record."""
    found = set()
    if isinstance(value, dict):
        for name, inner in value.items():
            found |= ids_in(inner, name)
    elif isinstance(value, list):
        for inner in value:
            if key == "top":
                found.add(inner[0])
            elif key in ("ids", "prompt") and isinstance(inner, int):
                found.add(inner)
            elif isinstance(inner, (dict, list)):
                found |= ids_in(inner, key)
    elif key == "id":
        found.add(value)
    return found


class Lesson:
    """The functions of the lesson itself."""

    rollout = staticmethod(r1.rollout)
    advantages = staticmethod(r1.group_advantages)
    loss = staticmethod(r1.grpo_loss)
    update = staticmethod(r1.update)


class Variants:
    """The relatives' functions in their places."""

    rollout = staticmethod(variants.rollout)
    advantages = staticmethod(variants.advantages)
    loss = staticmethod(variants.loss)
    update = staticmethod(variants.update)


RELATIVES = ("Dr. GRPO", "RLOO", "REINFORCE", "MaxRL", "DAPO", "GSPO", "PPO's reuse", "VinePPO")


def relatives():
    """[(name, flags, what differs), ...] from the table in docs/algorithms.md."""
    rows = re.findall(
        r"^\| (.+?) \| `python variants\.py (.+?)` \| (.+?) \|$",
        (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    found = []
    for name in RELATIVES:
        row = next((r for r in rows if re.match(re.escape(name) + r"( \(| of |$)", r[0])), None)
        if row is None:
            sources.stop(f"docs/algorithms.md has no row for {name}: mend docs/lesson/runs.py.")
        found.append((name, row[1], row[2].replace("*", "").replace("`", "")))
    return found


def record_relatives(recorder, start):
    """The step under each relative, from the checkpoint before it."""
    recorder.run(variants_config(start, ""), Variants, "GRPO", what="The default.")
    for name, flags, what in relatives():
        recorder.run(variants_config(start, flags), Variants, name, flags, what)


def variants_config(start, flags):
    """A run with these flags that has come as far as `start`, a run's directory."""
    path = Path(tempfile.mkdtemp(dir=start.parent)) / "run"
    shutil.copytree(start, path)
    saved = json.loads((path / "config.json").read_text())
    words = [f"--{name}={value}" for name, value in saved.items() if name in KEPT]
    config = parse_args(variants.Config, "variants.py", "", [*words, *flags.split()])
    config = dataclasses.replace(config, record_tokens_every=1, report=False)
    (path / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    return dataclasses.replace(config, resume=str(path))


KEPT = ("out", "name", "eval_every", "eval_problems", "save_every")


def records(**settings):
    """{file: its record}, of the default command but for what it writes and how it evaluates.

    `settings`: other ones, for the tests.
    """
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        quick = {"eval_every": 0, "eval_problems": 8, "save_every": 1}
        config = r1.Config(out=out, name="find", **{**quick, **settings})
        step, number, group = find(config)
        print(f"step {step}, group {number + 1}", file=sys.stderr)
        lesson = Recorder(["nano_r1.py"], step, number, group)
        whole = r1.Config(out=out, name="lesson", record_tokens_every=1, **settings)
        lesson.run(whole, Lesson, "GRPO")
        family = Recorder(["variants.py", "nano_r1.py"], step, number, group)
        record_relatives(family, Path(out) / "find")
        found = {"nano_r1.py": lesson.record(config), "variants.py": family.record(config)}
    for one in found.values():
        one["code"] = one["code"][:1] + one["code"][-1:]
    return found
