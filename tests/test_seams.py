"""What users change from outside, without a patch; and what a run gives back to its process."""

import contextlib
import os
import signal
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import transformers
from test_run import metrics

import nano_r1

SMALL = nano_r1.Config(
    prompts_per_step=2,
    group_size=4,
    max_tokens=24,
    eval_problems=4,
    steps=2,
    warmup_steps=0,
)


def run(tmp_path, name="run", **own):
    """A run's metrics without times."""
    return metrics(nano_r1.main(replace(SMALL, name=f"{tmp_path}/{name}"), **own))


def test_a_part_that_main_does_not_have_is_an_error():
    with pytest.raises(TypeError, match="advantage"):
        nano_r1.main(SMALL, advantage=nano_r1.group_advantages)


def test_a_group_of_an_optimizer_of_ones_own_may_scale_its_rate():
    optimizer = SimpleNamespace(param_groups=[{"lr_scale": 10.0}, {}])
    nano_r1.set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [5.0, 0.5]


def state():
    environment = dict(os.environ)
    environment.pop("PYTEST_CURRENT_TEST", None)
    handler = signal.getsignal(signal.SIGINT)
    bars = transformers.logging.is_progress_bar_enabled()
    return handler, torch.get_num_threads(), environment, bars, sys.stdout.errors


@pytest.fixture
def before():
    """The state of the process, which has two threads (the tests' own has one)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield state()
    torch.set_num_threads(threads)


def test_a_run_gives_the_process_back(tmp_path, before):
    first = run(tmp_path)
    assert state() == before
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path, "second")))
    thread.start()
    thread.join()
    assert found == [first]


def test_ctrl_c_reaches_the_caller_after_the_run_is_saved(tmp_path, before):
    def measure(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return nano_r1.measure_step(*args)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, measure=measure)
    assert state() == before
    assert nano_r1.read_rows(f"{tmp_path}/run/checkpoint/latest.json") == [{"tag": "a", "step": 1}]


def test_each_run_is_one_run_of_wandb_also_when_it_is_resumed(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    init = mock.MagicMock()
    monkeypatch.setattr(wandb, "init", init)
    for changes in {"name": "run"}, {"name": "other"}, {"resume": "out/run", "steps": 3}:
        config = replace(SMALL, wandb="offline", **changes)
        path, settings = nano_r1.find_run(config, {})
        nano_r1.create_run(path, settings)
        nano_r1.open_wandb(path, config, contextlib.ExitStack())
    first, other, resumed = [call.kwargs for call in init.call_args_list]
    assert first["id"] == resumed["id"] != other["id"]
    assert (resumed["resume"], resumed["reinit"]) == ("allow", "create_new")
    init.return_value.define_metric.assert_called_with("*", step_metric="step")
