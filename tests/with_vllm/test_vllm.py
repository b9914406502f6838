"""vLLM's CPU build behind the same methods as the loop of nano_r1.py."""

import copy
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_nano_r1 import plain_log_probs

import countdown_rewards
import nano_r1 as r1
from tasks import tool_use

ROOT = Path(__file__).parents[2]
PROBLEMS = countdown_rewards.load_problems("test")[:8]


def config(**changes):
    return replace(r1.Config(max_tokens=60, sampler="vllm"), **changes)


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu():
    """vLLM's CPU build has neither CUDA graphs nor a sleep mode."""
    import vllm

    build = vllm.LLM
    own = {"enforce_eager": True, "enable_sleep_mode": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        patch.setattr(vllm, "LLM", lambda **settings: build(**settings | own))
        yield


@pytest.fixture(scope="module")
def loaded():
    return r1.load_model(config())


@pytest.fixture(scope="module")
def sampler(loaded):
    return r1.VLLMSampler(loaded[0], r1.Task(loaded[1], loaded[0], config()), config())


@pytest.fixture
def policy(loaded, sampler):
    """The base, and vLLM with its weights."""
    sampler.sync(loaded[0])
    return copy.deepcopy(loaded[0])


@pytest.fixture(scope="module")
def prompts(sampler):
    return [sampler.task.prompt_ids(problem) for problem in PROBLEMS]


@torch.no_grad()
def difference(policy, sampler, prompts):
    """The largest one, in nats, between vLLM's log-probs and a plain forward pass."""
    largest = 0.0
    found = sampler.generate(prompts, 4, 0.7, range(8))
    for place, (token_ids, log_probs) in enumerate(found):
        expected = plain_log_probs(policy, prompts[place // 4], token_ids, 0.7)
        largest = max(largest, (expected - torch.tensor(log_probs)).abs().max().item())
    return largest


def test_after_a_sync_vllm_is_the_trainer(sampler, policy, prompts):
    """Also where its prefix cache holds keys and values of the old weights."""
    assert difference(policy, sampler, prompts) < 1e-4
    torch.manual_seed(0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * torch.randn_like(p))
    assert difference(policy, sampler, prompts) > 1
    sampler.sleep()
    sampler.sync(policy)
    assert difference(policy, sampler, prompts) < 1e-4


def test_forward_py_has_a_row_for_vllm():
    command = [sys.executable, "check/forward.py", "models/nano-base"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 0 < float(re.search(r"✓ vLLM +differs by (\S+) at most", said)[1]) < 1e-3


def test_a_prefix_cache_that_stays_is_an_error(sampler, policy, monkeypatch):
    monkeypatch.setattr(sampler.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="old weights"):
        sampler.sync(policy)


def test_a_seed_fixes_the_completions_of_a_prompt_which_differ(sampler, policy, prompts):
    first = sampler.generate(prompts, 4, 1.0, range(8))
    assert [ids for ids, _ in first[8:12]] == [
        ids for ids, _ in sampler.generate(prompts[2:3], 4, 1.0, [2])
    ]
    assert len({tuple(ids) for ids, _ in first[:4]}) > 1


def test_the_end_token_is_part_of_a_completion(sampler, policy, prompts):
    found = sampler.generate(prompts, 8, 1.0, range(8))
    cut_off = [len(token_ids) for token_ids, _ in found if not sampler.task.has_ended(token_ids)]
    assert set(cut_off) == {60} and len(cut_off) < len(found)


def test_between_two_turns_of_vllm_a_tool_writes(sampler, policy, monkeypatch):
    settings = config(task="checker")
    task = r1.Task(sampler.task.tokenizer, policy, settings)
    monkeypatch.setattr(sampler, "task", task)
    episodes = tool_use.sample_and_reward(sampler, PROBLEMS, task, settings, "test", 4)
    assert max(e.extra["calls"] for e in episodes) > 1
    batch = r1.collate(episodes, torch.device("cpu"))
    log_probs = r1.Scorer(policy, settings)(batch)  # 0 outside of the mask, as the sampler's
    torch.testing.assert_close(log_probs, batch["sampler_log_probs"], atol=1e-4, rtol=0)


def test_a_stop_text_may_be_a_special_token(loaded, prompts, tmp_path):
    policy, tokenizer = copy.deepcopy(loaded)
    tokenizer.add_special_tokens({"additional_special_tokens": ["="]})
    r1.save_model(policy, tokenizer, tmp_path)
    settings = config(model=str(tmp_path), max_tokens=20)
    the_task = r1.Task(tokenizer, policy, settings)
    the_task.prompt = the_task.prompt._replace(stop=("=",))
    found = r1.VLLMSampler(policy, the_task, settings).generate(prompts, 4, 1.0, range(8))
    for text in [the_task.text_of(token_ids) for token_ids, _ in found]:
        assert text.partition("=")[1:] == ("=", "")


def test_rows_that_only_pad_the_embedding_are_never_sampled(loaded, prompts, tmp_path):
    """64 more than the tokenizer has tokens, and as likely as can be."""
    model = copy.deepcopy(loaded[0])
    size = len(loaded[1])
    model.resize_token_embeddings(size + 64, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[size:] = 3 * weight[torch.randint(0, size, (64,))]
    r1.save_model(model, loaded[1], tmp_path)
    settings = config(model=str(tmp_path))
    padded = r1.VLLMSampler(model, r1.Task(loaded[1], model, settings), settings)
    largest = lambda: max(max(ids) for ids, _ in padded.generate(prompts, 8, 1.0, range(8)))
    assert largest() < size
    padded.bias = None  # without that they are
    assert largest() >= size


def test_a_run_with_vllm_trains_in_step_with_its_sampler(tmp_path):
    settings = config(prompts_per_step=4, eval_problems=8, warmup_steps=0, steps=3)
    before = dict(os.environ)
    runs = []
    for name in ("first", "second"):
        path = r1.main(replace(settings, name=str(tmp_path / name)))
        rows = r1.read_rows(f"{path}/metrics.jsonl")
        assert all(row["sampling/logp_difference_mean"] < 1e-5 for row in rows[1:])
        runs.append([row["reward"] for row in rows[1:]])
        assert dict(os.environ) == before and not torch.distributed.is_initialized()
    assert runs[0] == runs[1]
