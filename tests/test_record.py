"""The run's directory: one process at a time, and what a resumed run finds in it."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import pytest
from forks import Forked
from helpers import SMALL, main, resume, rows_of, train, wait_for

from nano_r1 import Config
from plumbing import record
from plumbing.processes import init_distributed, run_shutdown_hooks
from plumbing.settings import UserError
from plumbing.start import remaining

QUICK = {**SMALL, "eval_problems": 2, "max_tokens": 20, "record_tokens_every": 0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two steps with a checkpoint of the last."""
    return train(tmp_path_factory.mktemp("record"), "run", **QUICK, steps=2)[0]


def test_a_directory_belongs_to_one_run_at_a_time(tmp_path):
    init_distributed()
    config = Config(out=str(tmp_path), name="a")
    path = record.open_directory(config)
    with pytest.raises(UserError, match=re.escape(path)):  # the same name at the same instant
        record.open_directory(config)
    with pytest.raises(UserError, match=re.escape(path)):
        record.open_directory(Config(resume=path))
    run_shutdown_hooks()  # the end of a run
    assert record.open_directory(Config(resume=path)) == path
    run_shutdown_hooks()


def test_a_process_that_is_killed_leaves_no_lock(tmp_path):
    process = Forked("--steps", 50, "--out", tmp_path, "--name", "k", "--eval_problems", 2)
    wait_for(process, "evaluation after step 0")
    with pytest.raises(UserError, match="going on"):
        resume(tmp_path / "k")
    process.kill()
    assert resume(tmp_path / "k", steps=1)[0] == tmp_path / "k"


def test_runs_of_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    paths = {main(out=str(tmp_path), **QUICK, steps=1)[0] for _ in range(2)}
    assert len(paths) == 2


def copied(finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    return path


def garbage(path):
    with open(path / "metrics.jsonl", "a") as file:
        file.write("garbage\n{}\n[1]\n")


def backup(path):
    shutil.copytree(
        path / "checkpoints" / "step_000002", path / "checkpoints" / "step_000009_backup"
    )


def flip(path):
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARMS = {  # what lies in the directory, which file is named, up to which step the run goes on
    "garbage": (garbage, None, 2),
    "backup": (backup, None, 3),
    "no metrics": (lambda path: os.remove(path / "metrics.jsonl"), "metrics.jsonl", 2),
    "bit in the metrics": (lambda path: flip(path / "metrics.jsonl"), "metrics.jsonl", 3),
    "bit in the episodes": (
        lambda path: flip(path / "episodes" / "step_000001.jsonl"),
        "episodes/step_000001.jsonl",
        2,
    ),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_run_is_resumed_whatever_lies_in_its_directory(name, finished, tmp_path):
    harm, named, steps = HARMS[name]
    path = copied(finished, tmp_path)
    harm(path)
    _, printed = resume(path, steps=steps)
    changed = re.findall(rf"WARNING: {path}/(.*) is missing, cut short or changed", printed)
    assert changed == [named] * bool(named)
    assert [row["step"] for row in rows_of(path / "metrics.jsonl")][-1:] in ([steps], [])
    assert len(os.listdir(path / "episodes")) == steps


@pytest.mark.parametrize("setting, value", [("learning_rate", 1.0), ("seed", 1)])
def test_a_setting_that_was_changed_in_config_json_is_named(setting, value, finished, tmp_path):
    path = copied(finished, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, setting: value}))
    with pytest.raises(UserError, match=f"config.json says {setting} {value}"):
        resume(path)


def test_quit_at_once_a_run_says_where_it_is_and_whether_there_is_a_checkpoint(finished, tmp_path):
    log = SimpleNamespace(config=None, path=str(finished), checkpoints=finished / "checkpoints")
    assert f"--resume {finished} goes on after step 2" in remaining(log)
    log.checkpoints = tmp_path
    assert "no checkpoint yet" in remaining(log) and f"--resume {finished}" in remaining(log)
    assert remaining(None) == "Nothing was written."


def test_fewer_steps_than_are_done_is_one_sentence_and_changes_nothing(finished):
    with pytest.raises(UserError, match="--steps 1"):
        resume(finished, steps=1)
    assert json.loads((finished / "config.json").read_text())["steps"] == 2
