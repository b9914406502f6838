"""The runs behind the pages: the default command up to a step that has such a group, recorded.

The relatives go on from a checkpoint of that run before the step: from the same weights, with the
same prompts and the same seeds.
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

from lesson import sources
from lesson.rounding import rounded
from lesson.tracer import ROOT, Tracer
from lesson.values import Group, Values

import nano_r1 as r1
import variants
from plumbing.checkpoints import checksums, save_checkpoint
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


class Recorder:
    """Records one step under several mains, in one table of values."""

    def __init__(self, lessons, found=None):
        self.lessons = lessons
        self.found = found  # (step, number of the group, its episodes), once it is known
        self.values = Values(Group(0, 1, 0, None))  # of no group yet
        self.runs = []
        self.tokenizer = None

    def run(self, config, main, name, flags="", what="", start=None):
        """Add the step under this config to the record.

        `start`: a directory in which a run can go on with the step.
        """

        def rollout(sampler, problems, task, config, step):
            frame = sys._getframe(1)
            if self.found and step > self.found[0]:
                raise Enough
            if step == 1:
                tracer.pause()
            if self.found is None:
                episodes = main.rollout(sampler, problems, task, config, step)
                if step > 1:  # before it there is no step to go on from
                    self.search(episodes, config, step)
                if self.found is None:
                    return episodes
                save_start(start, frame.f_locals, step, config)
            self.prepare(sampler, task, config)
            tracer.resume(frame)  # the same seeds draw the same once more
            return main.rollout(sampler, problems, task, config, step)

        active = lambda frame: frame.f_locals.get("step") in (None, self.found and self.found[0])
        with Tracer(self.lessons, ("nano_r1.py", "main"), self.values, active) as tracer:
            with contextlib.suppress(Enough):
                r1.main(config, rollout, main.advantages, main.loss, main.update)
        if self.found is None:
            sys.exit("No group has one right, one wrong and one cut off: take another seed.")
        run = {"name": name, "flags": flags, "what": what, "call": plain(tracer.root.record)}
        run["total"] = loss_of(config, self.found[0])
        self.runs.append(run)
        print(f"{name}: recorded", file=sys.stderr)

    def search(self, episodes, config, step):
        """Keep the first group that suits."""
        for i in range(0, len(episodes), config.group_size):
            group = episodes[i : i + config.group_size]
            if suits(group):
                self.found = (step, i // config.group_size, group)
                print(f"step {step}, group {self.found[1] + 1}", file=sys.stderr)
                return

    def prepare(self, sampler, task, config):
        """What the values need to know of the group before it is sampled."""
        _, number, episodes = self.found
        size = config.group_size
        group = Group(number, size, config.prompts_per_step, episodes[0].problem)
        group.prompt_length = len(episodes[0].prompt_ids)
        self.values.group = group
        self.tokenizer = task.tokenizer
        known = vocabulary_size(task.tokenizer)
        self.values.vocabulary = {known, sampler.model.config.vocab_size}

    def record(self, config):
        """Everything as an object for JSON."""
        step, number, group = self.found
        files = [self.lessons[0], self.lessons[-1]]
        found = {
            "code": [sources.fingerprint((ROOT / name).read_text()) for name in files],
            "step": step,
            "steps": config.steps,
            "group": number + 1,
            "prompts": config.prompts_per_step,
            "size": config.group_size,
            "prompt": group[0].prompt_ids,
            "attempts": [attempt(e) for e in group],
            "shown": next(k for k, e in enumerate(group) if e.reward.answer == 1),
            "runs": self.runs,
            "values": self.values.table,
        }
        found["tokens"] = {str(i): self.tokenizer.decode([i]) for i in sorted(ids_in(found))}
        return found


def save_start(path, of_main, step, config):
    """A directory from which a run goes on with this step."""
    shutil.copytree(of_main["log"].path, path)
    directory = str(path / "checkpoints")
    save_checkpoint(of_main["engine"], of_main["tokenizer"], directory, step - 1, config)


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


# Not DAPO: it draws further prompts, and the group that is followed is at another place. Not
# VinePPO: its continuations would be half of the page.
RELATIVES = ("Dr. GRPO", "RLOO", "REINFORCE", "MaxRL", "GSPO", "PPO's reuse")


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
    changed = parse_args(variants.Config, "variants.py", "", flags.split())
    names = [word.removeprefix("--") for word in flags.split() if word.startswith("--")]
    given = {name: getattr(changed, name) for name in names}
    config = variants.Config(**{**saved, **given})
    settings = json.dumps(dataclasses.asdict(config))
    (path / "config.json").write_text(settings)
    for checkpoint in (path / "checkpoints").iterdir():  # as if it were this run's own
        (checkpoint / "config.json").write_text(settings)
        (checkpoint / "checksums.json").write_text(json.dumps(checksums(checkpoint)))
    return dataclasses.replace(config, resume=str(path))


def records(**settings):
    """{file: its record}, of the default command but for where it writes and what it keeps.

    `settings`: other ones, for the tests.
    """
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        start = Path(out) / "start"
        config = r1.Config(out=out, name="lesson", record_tokens_every=1, **settings)
        lesson = Recorder(["nano_r1.py"])
        lesson.run(config, Lesson, "GRPO", start=start)
        family = Recorder(["variants.py", "nano_r1.py"], lesson.found)
        record_relatives(family, start)
        return {"nano_r1.py": lesson.record(config), "variants.py": family.record(config)}
