"""The real vLLM (its CPU build here) behind the same methods as the sampling loop."""

import numpy as np
import pytest
import torch
from helpers import flags, records, run

import countdown_rewards as countdown
import nano_r1 as r1
from plumbing.models import add_lora, load_model, load_tokenizer, merged_weights, vocabulary_size
from plumbing.processes import derive_seed, init_distributed
from plumbing.settings import UserError
from plumbing.sync_check import check_sync
from plumbing.tasks import load_task
from plumbing.token_record import load_tokens

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


@pytest.fixture(scope="module")
def prompts(tokenizer):
    task = load_task("countdown", "short", tokenizer)
    return [task.prompt_ids(problem) for problem in countdown.generate_problems("test", 8, 0)]


def generate(rollout, prompts, n, temperature, max_tokens, seed):
    """With one seed for each prompt."""
    seeds = [derive_seed(seed, place) for place in range(len(prompts))]
    return rollout.generate(prompts, n, temperature, [max_tokens] * len(prompts), seeds)


def mismatch(policy, prompts, groups, temperature=1.0):
    """Largest difference between the sampler's and the trainer's log-probability of a token."""
    pairs = [(p, c) for p, group in zip(prompts, groups) for c in group]
    batch = r1.pad_prompts_and_outputs([p for p, _ in pairs], [c.token_ids for _, c in pairs], pad_id=0)
    with torch.no_grad():
        out = r1.get_response_log_probs(policy, batch["input_ids"], batch["labels"], temperature=temperature)
    rows = [row[mask] for row, mask in zip(out["log_probs"], batch["response_mask"])]
    return max((row - torch.tensor(c.logprobs)).abs().max().item() for row, (_, c) in zip(rows, pairs))


def moved(policy):
    """The same model after a large update."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return policy


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_the_trainer_s_temperature_included(rollout, policy, prompts, temperature):
    groups = generate(rollout, prompts, 4, temperature, 100, 1)
    assert mismatch(policy, prompts, groups, temperature) < 1e-3


def test_after_a_sync_vllm_samples_the_new_policy_and_without_it_the_old_one(rollout, policy, prompts):
    generate(rollout, prompts, 2, 1.0, 50, 1)  # fills the prefix cache with the old weights' keys and values
    moved(policy)
    assert mismatch(policy, prompts, generate(rollout, prompts, 2, 1.0, 50, 1)) > 0.1
    rollout.sync_weights(policy)
    assert mismatch(policy, prompts, generate(rollout, prompts, 2, 1.0, 50, 1)) < 1e-3


class Engine:
    """What check_sync asks of the engine: a forward pass, and where it runs."""

    device = torch.device("cpu")

    def __init__(self, model):
        self.model = model

    def __call__(self, **inputs):
        return self.model(**inputs)


@pytest.fixture
def check(rollout, policy, tokenizer):
    """--check_sync with prompts longer than a block of vLLM's prefix cache, once passed."""
    config = r1.Config(max_tokens=20, prompt="chat", check_sync=True)
    task = load_task("countdown", "chat", tokenizer)
    problems = countdown.generate_problems("test", 8, 0)
    check = lambda: check_sync(rollout, Engine(policy), task, problems, config)
    check()
    return check


def test_check_sync_passes_after_a_sync(rollout, policy, check):
    moved(policy)
    rollout.sync_weights(policy)
    check()


def test_check_sync_catches_a_skipped_sync(policy, check):
    moved(policy)
    with pytest.raises(UserError, match="does not have the trainer's weights"):
        check()


@pytest.mark.parametrize("half", [0, 1])
def test_check_sync_catches_a_half_sync(rollout, policy, check, monkeypatch, half):
    """Every other weight is handed over as it was before the update."""
    old = {name: weight.clone() for name, weight in merged_weights(policy).items()}
    moved(policy)
    new = merged_weights(policy)
    mixed = {name: old[name] if i % 2 == half else new[name] for i, name in enumerate(new)}
    monkeypatch.setattr(r1, "merged_weights", lambda model: mixed)
    rollout.sync_weights(policy)
    with pytest.raises(UserError, match="does not have the trainer's weights"):
        check()


def test_check_sync_catches_a_stale_prefix_cache(rollout, policy, check, monkeypatch):
    moved(policy)
    monkeypatch.setattr(rollout.llm, "reset_prefix_cache", lambda: True)
    rollout.sync_weights(policy)
    with pytest.raises(UserError, match="does not have the trainer's weights"):
        check()


def test_the_run_stops_where_vllm_keeps_its_prefix_cache(rollout, policy, monkeypatch):
    monkeypatch.setattr(rollout.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="prefix cache"):
        rollout.sync_weights(policy)


def test_entries_that_only_pad_the_embedding_are_never_sampled(prompts, tokenizer, tmp_path):
    """64 more rows than the tokenizer has tokens, and as likely as can be: the largest rows of the output layer."""
    model = load_model(MODEL, "float32")
    size = vocabulary_size(tokenizer)
    model.resize_token_embeddings(size + 64, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[size:] = weight[:size].repeat_interleave(2, dim=0)[torch.randint(0, 2 * size, (64,))] * 3
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = r1.Config(rollout="vllm", model=str(tmp_path))
    padded = r1.make_sampler(config, model, load_task("countdown", "short", tokenizer), 400)
    ids = {i for group in generate(padded, prompts, 8, 1.0, 60, 3) for c in group for i in c.token_ids}
    assert ids and max(ids) < size
    padded.bias = None  # without that they are
    ids = {i for group in generate(padded, prompts, 8, 1.0, 60, 3) for c in group for i in c.token_ids}
    assert max(ids) >= size


def test_adapters_are_part_of_what_vllm_samples_from(rollout, policy, prompts):
    adapted = add_lora(policy, r1.Config(lora_rank=4)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.normal_(std=0.05)
    assert mismatch(adapted, prompts, generate(rollout, prompts, 2, 1.0, 50, 1)) > 0.1
    rollout.sync_weights(adapted)
    assert mismatch(adapted, prompts, generate(rollout, prompts, 2, 1.0, 50, 1)) < 1e-3


def test_same_seed_same_completions_and_another_seed_others(rollout, policy, prompts):
    first, again, other = (generate(rollout, prompts, 2, 1.0, 40, s) for s in (5, 5, 6))
    ids = lambda groups: [[c.token_ids for c in g] for g in groups]
    assert ids(first) == ids(again) != ids(other)


def test_completions_of_a_group_differ(rollout, policy, prompts):
    (group,) = generate(rollout, prompts[:1], 8, 1.0, 40, 1)
    assert len({tuple(c.token_ids) for c in group}) > 1


def test_a_stop_text_ends_a_completion_and_is_kept(rollout, policy, prompts, tokenizer, monkeypatch):
    monkeypatch.setattr(rollout, "stop_texts", [" no"])
    completions = [c for g in generate(rollout, prompts, 4, 1.0, 60, 1) for c in g]
    stopped = [c for c in completions if tokenizer.decode(c.token_ids).endswith(" no")]
    assert stopped and all(c.finish_reason == "stop" for c in stopped)
    assert all(" no" not in tokenizer.decode(c.token_ids[:-1]) for c in completions)


def test_the_stop_token_is_part_of_a_finished_completion(rollout, policy, prompts, tokenizer):
    completions = [c for g in generate(rollout, prompts, 16, 1.0, 40, 2) for c in g]
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for c in completions:
        assert len(c.token_ids) == len(c.logprobs) <= 40
        assert (c.token_ids[-1] == tokenizer.eos_token_id) == (c.finish_reason == "stop")


def test_a_training_run_with_vllm_stays_in_step_with_the_trainer(tmp_path):
    settings = {"prompts_per_step": 4, "max_tokens": 100, "eval_problems": 16, "warmup_steps": 0, "check_sync": True}
    settings |= {"steps": 3, "record_tokens_every": 1}
    done = run(*flags(rollout="vllm", out=tmp_path, name="v", **settings), timeout=600)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    rows = records(tmp_path / "v")
    assert len(rows) == 4 and all(row["sampling/logp_difference_max"] < 1e-2 for row in rows[1:])
    assert any(row["grad_norm"] > 0 for row in rows[1:])
    tokens = load_tokens(tmp_path / "v" / "tokens" / "step_000003.npz")  # the update's effect, no matter who sampled
    assert np.isfinite(tokens["change"]).all() and np.abs(tokens["change"]).max() > 1e-3
    assert (tmp_path / "v" / "report.html").exists()
