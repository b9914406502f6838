"""The run's directory: one process at a time, and what a resumed run finds in it."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import pytest
from helpers import SMALL, resume, rows_of, train

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


@pytest.fixture
def ended():
    init_distributed()
    yield
    run_shutdown_hooks()


def test_a_directory_belongs_to_one_run_at_a_time(tmp_path, ended):
    config = Config(out=str(tmp_path), name="a")
    path = record.open_directory(config)
    for other in (config, Config(resume=path)):  # the same name at the same instant
        with pytest.raises(UserError, match=re.escape(path)):
            record.open_directory(other)
    run_shutdown_hooks()  # the end of a run
    assert record.open_directory(Config(resume=path)) == path


def test_runs_of_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch, ended):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    paths = {record.open_directory(Config(out=str(tmp_path))) for _ in range(2)}
    assert len(paths) == 2


@pytest.fixture
def path(finished, tmp_path):
    """Of a copy of that run."""
    return shutil.copytree(finished, tmp_path / "run")


def add_garbage(file):
    file.write_text(file.read_text() + "garbage\n{}\n[1]\n")


def back_up(checkpoint):
    shutil.copytree(checkpoint, checkpoint.with_name("step_000009_backup"))


def flip(file):
    """One bit, in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


HARMS = [  # what is done to which file, whether it is named, up to which step the run goes on
    (add_garbage, "metrics.jsonl", False, 2),
    (back_up, "checkpoints/step_000002", False, 3),
    (os.remove, "metrics.jsonl", True, 2),
    (flip, "metrics.jsonl", True, 3),
    (flip, "episodes/step_000001.jsonl", True, 2),
]


@pytest.mark.parametrize("harm, file, named, steps", HARMS)
def test_a_run_is_resumed_whatever_lies_in_its_directory(harm, file, named, steps, path):
    harm(path / file)
    _, printed = resume(path, steps=steps)
    changed = re.findall(rf"WARNING: {path}/(.*) is missing, cut short or changed", printed)
    assert changed == [file] * named
    assert [row["step"] for row in rows_of(path / "metrics.jsonl")][-1:] in ([steps], [])
    assert len(os.listdir(path / "episodes")) == steps


@pytest.mark.parametrize("setting, value", [("learning_rate", 1.0), ("seed", 1)])
def test_a_setting_that_was_changed_in_config_json_is_named(setting, value, path):
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
