"""The real vLLM (its CPU build here) behind the same methods as the sampling loop."""

import pytest
import torch
from helpers import flags, mismatch, records, run, sample

import countdown_rewards as countdown
import nano_r1 as r1
from plumbing.models import add_lora, load_model, load_tokenizer, vocabulary_size
from plumbing.processes import close_vllm, init_distributed
from plumbing.settings import UserError
from plumbing.sync_check import check_sync
from plumbing.tasks import load_task

MODEL = "models/nano-base"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def rollout(tokenizer):
    init_distributed()
    return r1.VLLMSampler(r1.Config(rollout="vllm"), [tokenizer.eos_token_id], (), 400)


@pytest.fixture
def policy(rollout):
    """The base model, and vLLM with its weights."""
    model = load_model(MODEL, "float32").eval()
    rollout.sync_weights(model)
    return model


PROBLEMS = countdown.generate_problems("test", 8, 0)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    task = load_task("countdown", "short", tokenizer)
    return [task.prompt_ids(problem) for problem in PROBLEMS]


def move(model, *, only=""):
    """A large update."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if only in name:
                p.add_(0.05 * torch.randn_like(p))


@pytest.mark.parametrize("adapters, temperature", [(False, 0.7), (True, 1.0)])
def test_after_a_sync_vllm_samples_the_new_policy_and_before_the_old(
    rollout, policy, prompts, adapters, temperature
):
    """And its log-probs are the trainer's."""
    sampled = lambda: sample(rollout, prompts, 4, 100, temperature=temperature)
    # Fills the prefix cache with the old weights' keys and values.
    assert mismatch(policy, prompts, sampled(), temperature) < 1e-3
    if adapters:
        policy = add_lora(policy, r1.Config(lora_rank=4)).eval()
    move(policy, only="lora_" if adapters else "")
    assert mismatch(policy, prompts, sampled(), temperature) > 0.1
    rollout.sync_weights(policy)
    assert mismatch(policy, prompts, sampled(), temperature) < 1e-3


# --check_sync


def whole(rollout, policy, monkeypatch):
    rollout.sync_weights(policy)


def skipped(rollout, policy, monkeypatch):
    pass


def stale_cache(rollout, policy, monkeypatch):
    monkeypatch.setattr(rollout.llm, "reset_prefix_cache", lambda: True)
    rollout.sync_weights(policy)


@pytest.mark.parametrize("sync", [whole, skipped, stale_cache])
def test_check_sync_passes_a_whole_sync_alone(sync, rollout, policy, tokenizer, monkeypatch):
    """With prompts longer than a block of vLLM's prefix cache."""
    config = r1.Config(max_tokens=20, prompt="chat", check_sync=True)
    task = load_task("countdown", "chat", tokenizer)
    check = lambda: check_sync(rollout, policy, task, PROBLEMS, config)
    check()
    move(policy)
    sync(rollout, policy, monkeypatch)
    if sync is whole:
        check()
    else:
        with pytest.raises(UserError, match="--check_sync"):
            check()


def test_a_vllm_that_sleeps_is_woken_up_before_it_is_shut_down(rollout, monkeypatch):
    """On a GPU it would free twice what sleeps."""
    calls = []
    wake_up = rollout.llm.wake_up
    monkeypatch.setattr(rollout.llm, "wake_up", lambda: calls.append("awake") or wake_up())
    ended = lambda: calls.append("ended")
    monkeypatch.setattr(rollout.llm.llm_engine.engine_core, "shutdown", ended)
    rollout.llm.sleep(level=1)
    for _ in range(2):
        close_vllm(rollout.llm)
    assert calls == ["awake", "ended", "ended"]


def test_the_run_stops_where_vllm_keeps_its_prefix_cache(rollout, policy, monkeypatch):
    monkeypatch.setattr(rollout.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="prefix cache"):
        rollout.sync_weights(policy)


def test_entries_that_only_pad_the_embedding_are_never_sampled(prompts, tokenizer, tmp_path):
    """64 more rows than the tokenizer has tokens, and as likely as can be."""
    model = load_model(MODEL, "float32")
    size = vocabulary_size(tokenizer)
    model.resize_token_embeddings(size + 64, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[size:] = 3 * weight[torch.randint(0, size, (64,))]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = r1.Config(rollout="vllm", model=str(tmp_path))
    padded = r1.make_sampler(config, model, load_task("countdown", "short", tokenizer), 400)
    largest = lambda: max(max(c.token_ids) for c in sum(sample(padded, prompts, 8, 60), []))
    assert largest() < size
    padded.bias = None  # without that they are
    assert largest() >= size


def test_a_seed_fixes_the_completions_of_a_prompt_which_differ(rollout, policy, prompts):
    ids = lambda seed: [[c.token_ids for c in g] for g in sample(rollout, prompts, 4, seed=seed)]
    first = ids(5)
    assert first == ids(5) != ids(6)
    assert all(len(set(map(tuple, group))) > 1 for group in first)


def test_a_stop_text_ends_a_completion_and_is_kept(
    rollout, policy, prompts, tokenizer, monkeypatch
):
    monkeypatch.setattr(rollout, "stop_texts", [" no"])
    stopped = 0
    for c in sum(sample(rollout, prompts, 4, 60), []):
        assert " no" not in tokenizer.decode(c.token_ids[:-1])
        if tokenizer.decode(c.token_ids).endswith(" no"):
            assert c.finish_reason == "stop"
            stopped += 1
    assert stopped


def test_the_stop_token_is_part_of_a_finished_completion(rollout, policy, prompts, tokenizer):
    completions = sum(sample(rollout, prompts, 16, seed=2), [])
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for c in completions:
        assert len(c.token_ids) == len(c.logprobs) <= 40
        assert (c.token_ids[-1] == tokenizer.eos_token_id) == (c.finish_reason == "stop")


def test_a_training_run_with_vllm_stays_in_step_with_the_trainer(tmp_path):
    settings = {"prompts_per_step": 4, "max_tokens": 100, "eval_problems": 16, "warmup_steps": 0}
    settings |= {"steps": 3, "check_sync": True}
    done = run(*flags(rollout="vllm", out=tmp_path, name="v", **settings))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    rows = records(tmp_path / "v")[1:]
    assert len(rows) == 3 and all(row["sampling/logp_difference_max"] < 1e-2 for row in rows)
