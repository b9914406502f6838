"""A short run with everything switched on: each number in its files, against a plain loop.

The sampler's calls are written down. From them, from the files of episodes and from two copies of
the base the test computes what the run must have drawn, measured, learned and logged.
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import two_processes
from test_nano_r1 import plain_log_probs
from test_run import metrics
from test_variants import assert_same

import countdown_rewards
import nano_r1
from nano_r1 import seed_of
from nano_report.run import Run

ROOT = Path(__file__).parents[1]
N = 4  # completions of a group
TRAIN = [{"nums": [n, n + 7, 3 * n], "target": 20 + n} for n in range(1, 12)]
TEST = [{"nums": [n, 40, 50], "target": 90 + n} for n in range(1, 8)]
SETTINGS = nano_r1.Config(
    prompts_per_step=4,
    group_size=N,
    max_tokens=24,
    temperature=0.9,
    advantage_eps=0.01,
    kl_coef=0.5,
    steps=3,
    learning_rate=2e-3,
    warmup_steps=2,
    max_grad_norm=0.2,
    micro_batch_size=3,
    gradient_checkpointing=True,
    eval_every=2,
    eval_problems=5,
    record_tokens_every=2,
    seed=3,
)
RATES = [2e-3 / 2, 2e-3 * 2 / 3, 2e-3 / 3]  # warm-up: 1/2, 1, 1; linear: 1, 2/3, 1/3
MEANS = {
    "reward": "reward",
    "reward/format": "format_reward",
    "reward/answer": "answer_reward",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut_off",
}
EVALUATION_MEANS = {
    "eval/pass@1": "answer_reward",
    "eval/format": "format_reward",
    "eval/mean_length": "length",
    "eval/clipped_ratio": "cut_off",
}


def means(rows, columns):
    return {name: fmean(row[column] for row in rows) for name, column in columns.items()}


def written(token_ids):
    """Episode.mask, as if a tool had written each token whose number ends in 0 or 5."""
    return [token % 5 > 0 for token in token_ids]


def rollout(*args):
    episodes = nano_r1.rollout(*args)
    for e in episodes:
        e.mask = written(e.token_ids)
    return episodes


def graded(text, problem, prompt):
    """A reward whose parts differ in their means; some groups have no signal."""
    form = 0.5
    answer = 0.25
    if problem["target"] % 3:
        form = len(text) % 3 / 2
        answer = float(len(text) % 2)
    return countdown_rewards.Reward(form + 2 * answer, form, answer, text[-3:])


class Witness:
    """A sampler that writes down its calls. Its log-probs are off by 0.02 nats."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.events = []
        self.calls = {1: [], N: []}

    def generate(self, prompts, n, temperature, seeds):
        self.events.append(f"generate {n}")
        found = self.sampler.generate(prompts, n, temperature, seeds)
        found = [(token_ids, [x - 0.02 for x in log_probs]) for token_ids, log_probs in found]
        self.calls[n].append(SimpleNamespace(prompts=prompts, seeds=seeds, found=found))
        return found

    def __getattr__(self, name):  # sleep, sync, close
        self.events.append(name)
        return getattr(self.sampler, name)


def golden_run(path, rollout=rollout, **changes):
    """The sampler of a run in that directory, as a Witness."""
    witnesses = []

    def make_sampler(*args):
        witnesses.append(Witness(nano_r1.make_sampler(*args)))
        return witnesses[0]

    problems = {"train": TRAIN, "test": TEST}
    with (
        mock.patch.multiple(
            countdown_rewards, reward=graded, load_problems=lambda split, *_: problems[split]
        ),
        mock.patch.object(nano_r1, "CHUNK", 30_000),  # logits: several chunks
    ):
        settings = replace(SETTINGS, name=str(path), **changes)
        nano_r1.main(settings, make_sampler=make_sampler, rollout=rollout)
    return witnesses[0]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The run: its path, sampler, metrics, what wandb received."""
    wandb = pytest.importorskip("wandb")
    path = tmp_path_factory.mktemp("golden") / "run"
    with (
        mock.patch.dict(os.environ, {"WANDB_DIR": str(path.parent)}),
        mock.patch.object(wandb.Run, "log", autospec=True) as log,
    ):
        sampler = golden_run(path, wandb="offline")
    rows = nano_r1.read_rows(path / "metrics.jsonl")
    return SimpleNamespace(path=path, sampler=sampler, metrics=rows, log=log)


@pytest.fixture(scope="module")
def plain(golden):
    """The steps by a plain loop: their metrics, and the weights at the end."""
    policy, tokenizer = nano_r1.load_model(SETTINGS)
    reference, _ = nano_r1.load_model(SETTINGS)
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    found = SimpleNamespace(policy=policy, tokenizer=tokenizer, metrics=[], advantages=[])
    for step, (rate, call) in enumerate(zip(RATES, golden.sampler.calls[N]), 1):
        rows = nano_r1.read_rows(golden.path / f"episodes/step_{step:06d}.jsonl")
        rewards = torch.tensor([row["reward"] for row in rows]).view(4, N)
        std = rewards.std(dim=1, keepdim=True)
        advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (std + SETTINGS.advantage_eps)
        found.advantages.append(advantages.flatten().tolist())
        optimizer.param_groups[0]["lr"] = rate
        metrics = plain_step(policy, reference, optimizer, call, found.advantages[-1])
        metrics |= {"step": step, "lr": rate}
        metrics["frac_reward_zero_std"] = (std == 0).float().mean()
        found.metrics.append(metrics | means(rows, MEANS))
    return found


def plain_step(policy, reference, optimizer, call, advantages):
    """GRPO's step, one completion after the other: what it measures."""
    losses = []
    log_probs = []
    kls = []
    for place, (token_ids, _) in enumerate(call.found):
        prompt_ids = call.prompts[place // N]
        now = score(policy, prompt_ids, token_ids)
        d = score(reference, prompt_ids, token_ids).detach() - now
        k3 = torch.exp(d) - 1 - d
        ratio = torch.exp(now - now.detach())
        loss = (-ratio * advantages[place] + SETTINGS.kl_coef * k3).mean() / len(call.found)
        loss.backward()
        losses.append(loss)
        log_probs.append(now)
        kls.append(k3)
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), SETTINGS.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return {
        "loss": sum(losses),
        "grad_norm": norm,
        "entropy": -torch.cat(log_probs).mean(),
        "kl": torch.cat(kls).mean(),
        "sampling/logp_difference_mean": 0.02,
    }


def score(model, prompt_ids, token_ids):
    """The log-probs of the model's own tokens."""
    log_probs = plain_log_probs(model, prompt_ids, token_ids, SETTINGS.temperature)
    return log_probs[written(token_ids)]


def assert_as_sampled(file, call, n, problems, advantages, plain):
    """Whether a file of episodes is what these problems, the sampler and the reward make."""
    task = nano_r1.Task(plain.tokenizer, plain.policy, SETTINGS)
    assert call.prompts == list(map(task.prompt_ids, problems))
    rows = nano_r1.read_rows(file)
    assert len(rows) == len(call.found) == n * len(problems)
    for place, (token_ids, _) in enumerate(call.found):
        problem = problems[place // n]
        text = plain.tokenizer.decode(token_ids, skip_special_tokens=True)
        reward = graded(text, problem, None)
        assert rows[place] == {
            "problem": problem,
            "completion": text,
            "reward": reward.total,
            "format_reward": reward.format,
            "answer_reward": reward.answer,
            "why": reward.why,
            "advantage": pytest.approx(advantages[place], rel=1e-5, abs=1e-6),
            "length": len(token_ids),
            "written": sum(written(token_ids)) if n == N else len(token_ids),
            "prompt_length": len(call.prompts[place // n]),
            "cut_off": token_ids[-1] != plain.tokenizer.eos_token_id,
        }
    return rows


def test_each_step_is_drawn_with_its_own_seeds(golden, plain):
    for step, call in enumerate(golden.sampler.calls[N], 1):
        label = f"step {step}, 0"
        problems = random.Random(seed_of(3, label, "questions")).sample(TRAIN, 4)
        file = golden.path / f"episodes/step_{step:06d}.jsonl"
        assert_as_sampled(file, call, N, problems, plain.advantages[step - 1], plain)
        assert call.seeds == [seed_of(3, label, place) for place in range(4)]


def test_each_metric_of_a_step_is_that_of_the_plain_loop(golden, plain):
    for row, expected in zip(golden.metrics[1:], plain.metrics, strict=True):
        found = {name: value for name, value in row.items() if not name.startswith("eval/")}
        assert found.pop("time/step") > 0
        expected = {name: torch.as_tensor(value).item() for name, value in expected.items()}
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)
    # In this run the metrics can be told apart.
    assert row["kl"] > 1e-3 and row["grad_norm"] > SETTINGS.max_grad_norm
    assert 0 < row["frac_reward_zero_std"] < 1 and 0 < row["completions/clipped_ratio"] < 1


def test_the_saved_weights_are_those_of_the_plain_loop(golden, plain):
    saved, _ = nano_r1.load_model(replace(SETTINGS, model=str(golden.path / "model")))
    for name, weight in saved.state_dict().items():
        assert (weight - plain.policy.state_dict()[name]).abs().mean() < 2e-5


def test_each_evaluation_has_the_same_seeds(golden, plain):
    for step, call in zip((0, 2, 3), golden.sampler.calls[1], strict=True):
        file = golden.path / f"evaluations/step_{step:06d}.jsonl"
        rows = assert_as_sampled(file, call, 1, TEST[:5], [0.0] * 5, plain)
        assert call.seeds == [seed_of(3, "evaluation", place) for place in range(5)]
        evaluated = means(rows, EVALUATION_MEANS) | {"eval/problems": 5}
        low, high = nano_r1.interval(evaluated["eval/pass@1"], 5)
        evaluated |= {"eval/pass@1_low": low, "eval/pass@1_high": high}
        row = golden.metrics[step].items()
        assert {name: value for name, value in row if "eval/" in name} == evaluated


def test_wandb_receives_each_row(golden):
    received = [(call.args[1], call.kwargs) for call in golden.log.call_args_list]
    assert received == [(row, {}) for row in golden.metrics]  # its step is a column


def test_the_sampler_sleeps_during_an_update(golden):
    start = ["sleep", "sync"]
    step = [f"generate {N}", *start]
    test = ["generate 1"]
    # (`main` takes `close` first, to call it at the end.)
    assert golden.sampler.events == ["close", *start, *test, *step, *step, *test, *step, *test]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with what two processes make of this run, of updates, and of check_step.py."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is for Linux")
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["tests/two_processes.py", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:check"}, check=True)
    return folder


def test_two_processes_that_were_stopped_and_resumed_measure_what_one_does(golden, two):
    for row, expected in zip(metrics(two / "run"), metrics(golden.path), strict=True):
        assert row == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_two_processes_record_what_one_does(golden, two):
    changes = []
    for path in (golden.path, two / "run"):
        rows = Run(path).step(3)  # of several lengths
        changes.append({str([row["prompt"], row["tokens"]]): row["change"] for row in rows})
    for text, change in changes[0].items():
        np.testing.assert_allclose(changes[1][text], change, atol=0.01)


def test_an_update_by_two_processes_is_the_update_by_one(two):
    found, _ = nano_r1.read_rows(two / "results")
    for name, weights in two_processes.weights_of_cases().items():
        assert_same(found[name], weights)


def test_check_step_agrees_with_two_processes_of_ours(two):
    _, said = nano_r1.read_rows(two / "results")
    assert "✓ step: agrees with the formula in 7 of 8 situations\n" in said


def test_the_constant_rate_stays_after_its_warm_up():
    config = nano_r1.Config(learning_rate=1.0, warmup_steps=4, lr_scheduler_type="constant")
    assert [nano_r1.learning_rate(step, config) for step in (1, 3, 4, 9)] == [0.25, 0.75, 1, 1]
