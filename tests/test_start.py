"""Mistakes that can be known without torch: one sentence at once on the command line, the same from `main`."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from helpers import ROOT, cpu_seconds_of_children, run

from nano_r1 import Config
from plumbing.models import load_model
from plumbing.settings import UserError
from plumbing.start import check_start

CHESS = "No task 'chess': there is no chess_rewards.py. Tasks here: countdown, gsm8k, math."
NO_MODEL = "The model {tmp} could not be read: that directory has no weights in safetensors"
MISTAKES = {
    "value": (["--learning_rate", "inf"], "--learning_rate inf: it must be above 0, and finite."),
    "path as a name": (
        ["--name", "../../x"],
        "--name ../../x: a name, not a path; --out says where run directories go.",
    ),
    "flag without effect": (
        ["--lora_target_modules", "q_proj"],
        "--lora_target_modules without --lora_rank has no effect: give a rank, e.g. --lora_rank 16.",
    ),
    "task": (["--task", "chess"], CHESS),
    "prompt": (["--prompt", "haiku"], "--prompt haiku is not one of the task's prompts: short, chat, plain, "),
    "data": (["--data", "none.jsonl"], "No such data file: none.jsonl."),
    "evaluation data": (["--eval_data", "none.jsonl"], "No such data file: none.jsonl."),
    "no such model": (["--model", "./none"], "The model ./none could not be read: there is no such directory."),
    "no model there": (["--model", "{tmp}"], NO_MODEL + "."),
    "a run as a model": (["--model", "{tmp}/run"], "; take --model {tmp}/run/model."),
    "context": (
        ["--max_tokens", "100000"],
        "No prompt leaves room for --max_tokens 100000 in the model's context of 1024 tokens.",
    ),
    "existing name": (["--out", "{tmp}", "--name", "run"], "{tmp}/run exists: --resume {tmp}/run resumes it, another "),
    "out is a file": (["--out", "{tmp}/file"], "--out {tmp}/file could not be written: Not a directory."),
    "out below a file": (["--out", "{tmp}/file/x"], "--out {tmp}/file/x could not be written: Not a directory."),
    "out is not writable": (["--out", "/sys/x"], "--out /sys/x could not be written: Operation not permitted."),
    "resume": (["--resume", "{tmp}"], "--resume {tmp}: no readable config.json there ("),
}


@pytest.fixture
def place(tmp_path):
    """A directory with a file, and with what a run leaves of itself."""
    (tmp_path / "file").touch()
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    return tmp_path


def snapshot(path):
    return sorted((str(file), file.stat().st_size) for file in path.rglob("*"))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2_within_two_seconds(name, place):
    args, says = MISTAKES[name]
    before, files = cpu_seconds_of_children(), snapshot(place)
    done = run(*(arg.format(tmp=place) for arg in args))
    assert cpu_seconds_of_children() - before < 2.0
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("nano_r1.py: ") and len(done.stderr.splitlines()) == 1
    assert says.format(tmp=place) in done.stderr
    assert snapshot(place) == files


def test_help_into_a_pipe_that_closes_early_ends_quietly():
    command = f"{sys.executable} nano_r1.py --help | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: nano_r1.py")


@pytest.mark.parametrize("name", ["task", "data", "no model there", "context", "existing name", "out is a file"])
def test_a_config_made_in_a_notebook_is_told_the_same(name, place):
    args, says = MISTAKES[name]
    values = [arg.format(tmp=place) for arg in args]
    settings = {flag.removeprefix("--"): value for flag, value in zip(values[::2], values[1::2])}
    settings |= {"max_tokens": int(settings["max_tokens"])} if "max_tokens" in settings else {}
    with pytest.raises(UserError) as caught:
        check_start(Config(**settings))
    assert says.format(tmp=place) in str(caught.value)


def test_wandb_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--wandb offline needs a package: pip install wandb."):
        check_start(Config(wandb="offline"))


def test_a_resumed_run_may_have_the_directory_that_it_made(place):
    config = Config(out=str(place), name="run")
    (place / "run" / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    check_start(dataclasses.replace(config, resume=str(place / "run")))


@pytest.mark.parametrize("harm", ["cut short", "empty"])
def test_weights_that_are_cut_short_are_one_sentence(harm, tmp_path):
    for name in ("config.json", "model.safetensors"):
        with open(os.path.join(ROOT, "models/nano-base", name), "rb") as file:
            content = file.read()
        keep = {"cut short": len(content) // 2, "empty": 0}[harm] if name == "model.safetensors" else None
        (tmp_path / name).write_bytes(content[:keep])
    with pytest.raises(UserError, match=f"The model {tmp_path} could not be read") as caught:
        load_model(str(tmp_path), "float32")
    assert "\n" not in str(caught.value)
