"""The run's directory: one process at a time, and what a resumed run finds in it."""

import json
import os
import re
import shutil

import pytest
from helpers import SMALL, main, resume, rows_of, start, train, wait_for

from nano_r1 import Config
from plumbing import record
from plumbing.processes import init_distributed, run_shutdown_hooks
from plumbing.settings import UserError

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
    process = start("--steps", 50, "--out", tmp_path, "--name", "k", "--eval_problems", 2)
    wait_for(process, "evaluation after step 0")
    with pytest.raises(UserError, match="going on"):
        resume(tmp_path / "k")
    process.kill()
    process.wait()
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


HARMS = [garbage, backup, lambda path: os.remove(path / "metrics.jsonl")]


@pytest.mark.parametrize("harm", HARMS, ids=["garbage", "backup", "no metrics"])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_finished_run_is_resumed_whatever_lies_in_its_directory(harm, steps, finished, tmp_path):
    path = copied(finished, tmp_path)
    harm(path)
    resume(path, steps=steps)
    assert [row["step"] for row in rows_of(path / "metrics.jsonl")][-1:] in ([steps], [])
    assert len(os.listdir(path / "episodes")) == steps


def test_fewer_steps_than_are_done_is_one_sentence_and_changes_nothing(finished):
    with pytest.raises(UserError, match="--steps 1"):
        resume(finished, steps=1)
    assert json.loads((finished / "config.json").read_text())["steps"] == 2
