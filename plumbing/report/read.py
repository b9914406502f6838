"""Reading a run's directory: whatever is there, also of an older run, or of a damaged one.

What is missing becomes a sentence in `Run.notes`, not an error.
"""

import contextlib
import json
import os
import re
import zipfile
import zlib
from types import SimpleNamespace

from plumbing.files import numbered, read_json, read_rows
from plumbing.health import health_warnings
from plumbing.settings import ROOT, UserError
from plumbing.tasks import import_task, problem_title
from plumbing.token_record import load_tokens

DEFAULT_TOKENS = {"tokens": [], "special": []}
DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError)  # of a file of arrays
DAMAGED += (zipfile.BadZipFile, zlib.error)
COLUMNS = {"problem", "completion", "reward", "format_reward", "answer_reward", "why", "advantage"}
COLUMNS |= {"length", "finish_reason"}
# Settings that an evaluation of the base shares with the run it is compared with.
SAME = "task model prompt data eval_data eval_problems max_tokens seed".split()


class Run:
    """A run's directory: settings, metrics, warnings; completions and tokens of a step."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(os.path.abspath(path))
        self.notes = []
        self.config = self.read_json("config.json", {})
        self.records = self.read_rows("metrics.jsonl", {"step"})
        self.steps = self.numbered("episodes")
        self.vocabulary = DEFAULT_TOKENS
        if self.numbered("tokens"):
            self.vocabulary = self.read_json("vocabulary.json", DEFAULT_TOKENS)
        self.group_size = self.config.get("group_size", 1)
        self.task = None  # a run of a task that is not here has its problems' columns
        with contextlib.suppress(UserError):
            self.task = import_task(str(self.config.get("task")))

    def numbered(self, folder):
        """Steps of which the folder has a file."""
        return list(numbered(os.path.join(self.path, folder)))

    def read_json(self, name, otherwise):
        found = read_json(os.path.join(self.path, name))
        if found is None:
            self.notes.append(f"{name} is missing or cannot be read.")
        return otherwise if found is None else found

    def read_rows(self, name, columns=COLUMNS):
        """The objects of a jsonl file, [] if one of them lacks a column."""
        rows = read_rows(os.path.join(self.path, name))
        if rows and all(columns <= row.keys() for row in rows):
            return rows
        self.notes.append(f"{name} is missing or cannot be read.")
        return []

    def title(self, problem):
        """A problem in one line, as its task says it."""
        return problem_title(self.task, problem)

    def tokens(self, step, rows):
        """The arrays of plumbing/token_record.py; None if not recorded, or not of these rows."""
        name = f"tokens/step_{step:06d}.npz"
        path = os.path.join(self.path, name)
        if not self.vocabulary["tokens"] or not os.path.exists(path):
            return None
        with contextlib.suppress(*DAMAGED):
            arrays = load_tokens(path)
            if arrays["lengths"].tolist() == [row["length"] for row in rows]:
                return arrays
        self.notes.append(f"{name} cannot be read, or is not of the step's completions.")
        return None

    def held_out(self):
        """[{"problem", "rows": [{"step", ...}]}] of the problems that every evaluation kept."""
        problems = {}
        for step in self.numbered("held_out"):
            for row in self.read_rows(f"held_out/step_{step:06d}.jsonl"):
                one = {"problem": row["problem"], "rows": []}
                problem = problems.setdefault(json.dumps(row["problem"]), one)
                problem["rows"].append({"step": step, **row})
        return list(problems.values())

    def warnings(self):
        """[(sentence, steps)] of plumbing/health.py."""
        found = {}
        settings = SimpleNamespace(**{"max_tokens": None, **self.config})
        for record in self.records:
            for sentence in health_warnings(record, settings):
                sentence = re.sub(r"by \d+\.\d+ nats", "by more than 0.1 nats", sentence)
                found.setdefault(sentence, []).append(record["step"])
        return list(found.items())

    def base_evaluations(self):
        """Evaluations of the untrained model beside the run: [(temperature, metrics)], 0: greedy.

        Made by `nano_r1.py --eval_only --temperature T` with the run's model, task, prompt and
        evaluation problems.
        """
        found = {}
        beside = os.path.dirname(os.path.abspath(self.path))
        for name in sorted(os.listdir(beside)):
            config = read_json(os.path.join(beside, name, "config.json")) or {}
            results = read_json(os.path.join(beside, name, "evaluation.json"))
            same = all(config.get(key) == self.config.get(key) for key in SAME)
            if results and config.get("eval_only") and same:
                found |= {0.0: results["greedy"], config["temperature"]: results["sampled"]}
        return sorted(found.items())


def read_run(path):
    """A `Run`. Raises UserError if the directory is not that of a run."""
    run = Run(path)
    if not run.records and not run.steps:
        raise UserError(f"No run is in {path}: it has neither metrics nor episodes.")
    return run


def explanations():
    """{metric: what it means, in one sentence} from the tables of docs/metrics.md."""
    rows = []
    with (
        contextlib.suppress(OSError),  # a copy of the scripts without docs/
        open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as file,
    ):
        rows = [line.split(" | ") for line in file if line.startswith("| `")]
    found = {}
    for names, meaning, *_ in rows:
        sentence = re.split(r"\. (?=[A-Z0-9`])", meaning.strip(" |\n"))[0].replace("`", "")
        found |= dict.fromkeys(re.findall("`([^`]+)`", names), f"{sentence.rstrip('.')}.")
    return found
