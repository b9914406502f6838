"""What benchmarks share: runs that are trained once, statistics.

Not a benchmark. Everything starts from the repository's root.
"""

import ast
import dataclasses
import importlib
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path

import tyro

import nano_r1

ROOT = Path(__file__).resolve().parents[1]

# ---- Runs


def parse(script, flags):
    """The `Config` of these flags (one text) of nano_r1, variants, nano_sft, a benchmark."""
    module = importlib.import_module(script)
    return tyro.cli(module.Config, args=shlex.split(flags), use_underscores=True)


def checksum(text):
    return f"{zlib.crc32(text.encode()):08x}"


@cache
def version(*names):
    """A checksum of the code, comments apart, of these files and the weights in directories."""
    known = ""
    for pattern in ("*.py", "tasks/*.py", "benchmarks/*.py"):
        for file in sorted(ROOT.glob(pattern)):
            known += ast.dump(ast.parse(file.read_text("utf-8")))
    for name in names:
        for file in [ROOT / name, *sorted((ROOT / name).glob("*.safetensors"))]:
            if file.is_file():
                known += str(zlib.crc32(file.read_bytes()))
    return checksum(known)


def place(folder, flags, seed):
    """The directory of a run: another one for other flags, code, base or files in the flags."""
    words = re.sub(r"\W+", "_", flags).strip("_") or "default"
    key = checksum(flags + version(nano_r1.Config.model, *re.split("[ =]", flags)))
    return f"{folder}/{words[:80]}-{key}-seed{seed}"


def started(path):
    """The setting that continues the run in this directory or, if there is none, begins it."""
    setting = "resume" if os.path.exists(f"{path}/config.json") else "name"
    return {setting: os.path.abspath(path)}


def is_complete(path):
    """Whether a run is saved: main writes the model's tokenizer at last."""
    return os.path.exists(f"{path}/model/tokenizer_config.json")


def train(script, flags, path):
    """Complete the run in `path` by `python -m SCRIPT FLAGS`; nothing to do if it is complete."""
    if is_complete(path):
        print(f"complete, not repeated: {path}")
    else:
        launcher = os.environ.get("LAUNCHER", "").split()  # torchrun, in some of runs/
        command = [sys.executable, *launcher, "-m", script, *shlex.split(flags)]
        for setting, value in started(path).items():
            command += [f"--{setting}", value]
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, cwd=ROOT)
    stop_unless_complete(path)


def complete(main, config, path, **functions):
    """The same in this process, with functions of your own instead of `main`'s."""
    if not is_complete(path):
        main(dataclasses.replace(config, **started(path)), **functions)
    stop_unless_complete(path)


def stop_unless_complete(path):
    if not is_complete(path):
        raise SystemExit(f"{path} was stopped or has failed. The same command continues it.")


def metrics(path):
    """The rows of a run's metrics.jsonl; the first is the evaluation before training."""
    return nano_r1.read_rows(f"{path}/metrics.jsonl")


def evaluations(path):
    """The rows of a run's metrics.jsonl that have an evaluation on held-out problems."""
    return [row for row in metrics(path) if "eval/pass@1" in row]


def config_of(saved):
    """The settings in a run's config.json, which also has its functions and processes."""
    return nano_r1.Config(**{name: saved[name] for name in vars(nano_r1.Config())})


def commit():
    """The commit of the code; "a change of" it if Python files differ from it."""

    def git(*words):
        ended = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return ended.stdout.strip()

    name = git("describe", "--always")
    return f"a change of {name}" if git("status", "--porcelain", "--", "*.py") else name


# ---- Models


def load(config):
    """(sampler, task) of `config.model`, without an engine."""
    device = nano_r1.start_process(config)
    policy, tokenizer = nano_r1.load_model(config)
    task = nano_r1.Task(tokenizer, policy, config)
    return nano_r1.TransformersSampler(policy.to(device), task, config), task


# ---- Statistics

# The 0.975 quantile of Student's t by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def mean_interval(values):
    """(mean, low, high): a 95% interval by Student's t. One value has none: it is infinite."""
    degrees = len(values) - 1
    mean = statistics.mean(values)
    if degrees == 0:
        return mean, -math.inf, math.inf
    # Above 9: Cornish and Fisher's expansion, right to 0.003.
    t = T975.get(degrees, 1.96 + 2.372 / degrees + 2.823 / degrees**2)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def difference(values, others):
    """The interval of values - others, paired: two runs of one seed, two models on one problem."""
    return mean_interval([a - b for a, b in zip(values, others, strict=True)])


def spread(values, digits=3, middle=statistics.mean):
    """`mean (smallest to largest)`."""
    numbers = (middle(values), min(values), max(values))
    center, low, high = (f"{number:,.{digits}f}" for number in numbers)
    return center if low == high else f"{center} ({low} to {high})"


def signed(mean, low, high):
    """A difference with its interval, which one seed does not have."""
    if math.isinf(low):
        return f"{mean:+.3f}"
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def table(lines):
    """A Markdown table of rows of cells; the first is the header."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
