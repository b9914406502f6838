"""Runs that survive: checkpoints of every engine, damaged ones, signals, full disks, updates that
are not finite, weights that did not arrive."""

import contextlib
import io
import os
import pickle
import signal
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
from forks import Forked
from helpers import (
    SMALL,
    config,
    flags,
    make_episodes,
    records,
    resume,
    rows_of,
    tiny_model,
    train,
    wait_for,
)

import nano_r1 as r1
from plumbing.checkpoints import newest_checkpoint, restore_optimizer, save_checkpoint
from plumbing.evaluation import combine
from plumbing.files import atomic_write
from plumbing.models import gathered, load_model, load_policy, load_tokenizer
from plumbing.processes import (
    catch_signals,
    cleaned_up,
    exit_code,
    init_distributed,
    received_signals,
)
from plumbing.sampler import TransformersSampler
from plumbing.settings import UserError
from plumbing.sync_check import checked
from plumbing.tasks import load_task

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def processes():
    init_distributed()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("models/nano-base")


def weights(engine):
    with gathered(engine.module):
        return [p.detach().clone() for p in engine.module.parameters()]


def same(engine, before):
    return all(torch.equal(p, q) for p, q in zip(weights(engine), before, strict=True))


HALF = {"dtype": "bfloat16"}
ENGINES = [{"zero_stage": 1}, {"engine": "torch"}, {"engine": "torch", **HALF}]
for stage in (2, 3):
    for changes in ({}, HALF, {"offload": True}, {"offload": True, **HALF}):
        ENGINES.append({"zero_stage": stage, **changes})


def engine_of(c, model=None):
    model = model or tiny_model()
    for p in model.parameters():  # and not the buffers, which from_pretrained keeps in float32
        p.data = p.data.to(getattr(torch, c.dtype))
    return r1.make_engine(model, c)


def restored(path, c):
    engine = r1.make_engine(load_policy(c, path, CPU), c)
    restore_optimizer(engine, path)
    return engine


def step(engine, c, seed=0, bad=None):
    """An update, with one advantage that is `bad`."""
    episodes = make_episodes(seed=seed)
    if bad is not None:
        episodes[1].per_token["advantages"] = [bad] * episodes[1].length
    return combine(r1.update(engine, episodes, c, c.learning_rate))


@pytest.mark.parametrize("changes", ENGINES, ids=str)
def test_a_restored_engine_goes_on_bit_for_bit(changes, tokenizer, tmp_path):
    c = config(**changes)
    engine = engine_of(c)
    step(engine, c)
    save_checkpoint(engine, tokenizer, str(tmp_path), 2, c)
    path, number = newest_checkpoint(str(tmp_path))
    other = restored(path, c)
    assert number == 2 and step(other, c, seed=1) == step(engine, c, seed=1)
    assert same(engine, weights(other))


@pytest.mark.parametrize("changes", ENGINES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_not_applied(changes, bad):
    c = config(**changes)
    engine = engine_of(c)
    step(engine, c)
    before = weights(engine)
    assert step(engine, c, bad=bad)["bad_updates"] == 1 and same(engine, before)
    measured = step(engine, c)  # and the next one is
    assert measured["bad_updates"] == 0 and measured["grad_norm"] > 0 and not same(engine, before)


@pytest.fixture
def checkpoints(tokenizer, tmp_path):
    """A directory with checkpoints of steps 1 and 2, before any update."""
    for number in (1, 2):
        save_checkpoint(engine_of(config()), tokenizer, str(tmp_path), number, config())
    return tmp_path


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def flip(path):
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARMS = [
    (cut, "optimizer_000.safetensors"),
    (flip, "optimizer_000.safetensors"),
    (os.remove, "policy/model.safetensors"),
    (flip, "policy/config.json"),
    (os.remove, "policy/tokenizer.json"),
    (os.remove, "checksums.json"),
]


@pytest.mark.parametrize("harm, file", HARMS)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(harm, file, checkpoints, capsys):
    """Without any whole one the run stops rather than begin again."""
    harm(checkpoints / "step_000002" / file)
    assert newest_checkpoint(str(checkpoints))[1] == 1
    assert "step_000002" in capsys.readouterr().out
    harm(checkpoints / "step_000001" / file)
    with pytest.raises(UserError, match="No checkpoint"):
        newest_checkpoint(str(checkpoints))


def test_a_checkpoint_of_more_processes_is_refused(checkpoints):
    engine = engine_of(config(), torch.nn.Sequential(torch.nn.Linear(3, 3)))
    with pytest.raises(UserError, match="number of processes"):
        restore_optimizer(engine, str(checkpoints / "step_000002"))


def test_a_checkpoint_before_any_finite_update_is_restored(checkpoints):
    other = restored(str(checkpoints / "step_000002"), config())
    assert step(other, config()) == step(engine_of(config()), config())


def test_nothing_in_a_checkpoint_or_a_model_is_unpickled(checkpoints, tmp_path):
    """A pickle that would leave a mark when read: beside the weights, and in their place."""

    class Mark:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "mark"),)

    newest = checkpoints / "step_000002"
    for name in ("pytorch_model.bin", "policy/pytorch_model.bin", "policy/training_args.bin"):
        (newest / name).write_bytes(pickle.dumps(Mark()))
    restored(str(newest), config())
    os.remove(newest / "policy" / "model.safetensors")
    assert newest_checkpoint(str(checkpoints))[1] == 1
    with pytest.raises(UserError):
        load_model(str(newest / "policy"), "float32")
    assert not (tmp_path / "mark").exists()


def test_old_checkpoints_are_deleted_and_leftovers_too(checkpoints, tokenizer):
    (checkpoints / ".step_000003.tmp" / "policy").mkdir(parents=True)
    c = config(keep_checkpoints=1)
    save_checkpoint(engine_of(c), tokenizer, str(checkpoints), 3, c)
    assert os.listdir(checkpoints) == ["step_000003"]


def test_after_a_damaged_checkpoint_was_passed_over_the_good_ones_are_kept(tmp_path):
    """4 is damaged, the run goes on from 2 and saves 3: neither may be lost for the sake of 4."""
    path, _ = train(tmp_path, "d", steps=4, eval_problems=2)
    cut(path / "checkpoints" / "step_000004" / "optimizer_000.safetensors")
    _, printed = resume(path, steps=3, micro_batch_tokens=4096, save_every=1, keep_checkpoints=1)
    assert "step_000004" in printed and os.listdir(path / "checkpoints") == ["step_000003"]
    assert [row["step"] for row in records(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["model", "model/"])
def test_a_directory_is_replaced_whole_or_left_alone(name, tmp_path):
    for text in ("old", "new", "half"):
        no_room = pytest.raises(UserError, match="model")
        with no_room if text == "half" else contextlib.nullcontext():
            with atomic_write(str(tmp_path / name)) as hidden:
                os.makedirs(hidden)
                Path(hidden, "file").write_text(text)
                if text == "half":
                    raise OSError("no room")
    assert (tmp_path / "model" / "file").read_text() == "new" and os.listdir(tmp_path) == ["model"]


def test_a_signal_ends_the_step_and_saves(tmp_path):
    """And nobody can reach a single process from another machine: gloo listens on the loopback."""
    settings = {**SMALL, "steps": 200, "save_every": 0, "keep_checkpoints": 1}
    process = Forked(*flags(out=tmp_path, name="s", **settings))
    wait_for(process, "step    2/200")
    open_ports = psutil.Process(process.pid).net_connections()
    assert {c.laddr.ip for c in open_ports if c.status == "LISTEN"} <= {"127.0.0.1", "::1"}
    process.send_signal(signal.SIGHUP)  # SIGTERM is torchrun's, in test_processes.py
    out, error = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGHUP and error == ""
    last = len(records(tmp_path / "s")) - 1
    assert os.listdir(tmp_path / "s" / "checkpoints") == [f"step_{last:06d}"]
    assert f"--resume {tmp_path}/s" in out


class HangUp(io.RawIOBase):
    """A terminal that hangs up, once, while it is written to."""

    there = True

    def writable(self):
        return True

    def write(self, text):
        if self.there:
            self.there = False
            os.kill(os.getpid(), signal.SIGHUP)
        return len(text)


def test_a_signal_within_a_print_ends_nothing_but_the_step():
    terminal = io.TextIOWrapper(io.BufferedWriter(HangUp()))
    with cleaned_up(), contextlib.redirect_stdout(terminal):
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        catch_signals()
        print("step    1/200", flush=True)
    signal.signal(signal.SIGHUP, before)
    assert exit_code() == 128 + signal.SIGHUP
    received_signals.clear()


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    """Within step 1, which takes far longer than the rest of this."""
    settings = {"steps": 200, "prompts_per_step": 128, "eval_problems": 16}
    process = Forked(*flags(out=tmp_path, name="s", **settings))
    wait_for(process, "evaluation after step 0")
    while not (tmp_path / "s" / "metrics.jsonl").exists():  # the last before signals are caught
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    wait_for(process, "Stopping")
    time.sleep(1.2)  # a repeat within a second counts as the same
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in error
    assert not (tmp_path / "s" / "checkpoints").exists()


def test_a_disk_without_room_is_one_sentence_and_the_run_goes_on_once_there_is_some(tmp_path):
    """The kernel refuses files beyond 1 MiB: metrics and episodes fit, weights do not."""
    import resource  # not on Windows

    args = flags(out=tmp_path, name="f", **{**SMALL, "steps": 3, "save_every": 1})
    process = Forked(*args, limits=[(resource.RLIMIT_FSIZE, 2**20)])
    _, error = process.communicate(timeout=300)
    assert process.returncode == 2 and "checkpoints" in error and len(error.splitlines()) == 1
    assert os.listdir(tmp_path / "f" / "checkpoints") == []
    resume(tmp_path / "f", steps=2)
    assert [row["step"] for row in records(tmp_path / "f")] == [0, 1, 2]


def test_a_run_whose_updates_are_not_finite_stops_and_keeps_the_batch(tmp_path, capsys):
    def infinite(rewards, config):
        return r1.group_advantages(rewards, config).fill_(float("inf"))

    c = r1.Config(out=str(tmp_path), name="n", **SMALL, max_bad_steps=2)
    with pytest.raises(UserError, match="bad_step_"):
        r1.main(c, advantages=infinite)
    assert capsys.readouterr().out.count("WARNING: loss or gradient") == 2
    batches = sorted((tmp_path / "n").glob("bad_step_*.jsonl"))
    assert [path.stem for path in batches] == ["bad_step_000001", "bad_step_000002"]
    rows = rows_of(batches[0])
    assert len(rows) == 16
    assert all(len(row["token_ids"]) == row["length"] and row["prompt_ids"] for row in rows)


def test_advantages_of_another_shape_end_the_run(tmp_path):
    c = r1.Config(out=str(tmp_path), name="s", **SMALL)
    with pytest.raises(ValueError, match="zip"):
        r1.main(c, advantages=lambda rewards, config: rewards.mean(dim=1))


# --check_sync


@pytest.fixture
def synced(tokenizer):
    """ZeRO's stage -> (sampler with weights of its own, engine, task, problems, settings)."""

    def make(stage):
        c = r1.Config(max_tokens=20, check_sync=True, zero_stage=stage)
        task = load_task("countdown", "short", tokenizer)
        model = load_model(c.model, "float32")
        sampler = TransformersSampler(model, task, [tokenizer.eos_token_id], r1.sample_token, c)
        engine = r1.make_engine(load_model(c.model, "float32"), c)
        return sampler, engine, task, task.module.generate_problems("test", 3, 0), c

    return make


@pytest.mark.parametrize(
    "off, dtype, syncs",
    [(0.2, "float32", 1), (0.2, "bfloat16", 2), (0.4, "bfloat16", 1), (0.09, "bfloat16", None)],
)
def test_in_bfloat16_the_proof_allows_more_while_the_weights_are_perturbed(
    off, dtype, syncs, synced, monkeypatch
):
    """There two right implementations differ by up to 0.13 nats, afterwards by 0.02."""
    sampler, engine, *rest, c = synced(2)
    c.dtype = dtype
    log_softmax = torch.log_softmax
    monkeypatch.setattr("torch.log_softmax", lambda *args, **dim: log_softmax(*args, **dim) + off)
    sync = mock.Mock(wraps=sampler.sync_weights)
    sampler.sync_weights = sync
    stopped = pytest.raises(UserError, match="--check_sync")
    with stopped if syncs else contextlib.nullcontext():
        checked(sampler, engine, *rest, c)
    assert sync.call_count == (syncs or 2)


@pytest.mark.parametrize("stage", [2, 3])
def test_the_proof_of_the_sync_moves_the_weights_and_puts_them_back(stage, synced):
    """A skipped sync fails it whatever the learning rate; one that works leaves no trace."""
    sampler, engine, *rest = synced(stage)
    before = weights(engine)
    checked(sampler, engine, *rest)
    assert same(engine, before)
    sampler.sync_weights = lambda policy: None
    with pytest.raises(UserError, match="--check_sync"):
        checked(sampler, engine, *rest)
