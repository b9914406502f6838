"""The sampling loop: what it returns is what the policy says; and what VinePPO makes of it."""

import numpy as np
import pytest
import torch
from helpers import mismatch, sample
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, Qwen3Config

import countdown_rewards as countdown
import nano_r1 as r1
import variants
from plumbing.models import load_model, load_tokenizer, stop_token_ids, vocabulary_size
from plumbing.packing import is_like_llama
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import TransformersSampler, draw_uniforms, ready_to_sample
from plumbing.tasks import load_task


@pytest.fixture(scope="module")
def policy():
    init_distributed()
    return load_model("models/nano-base", "float32").eval()


@pytest.fixture(scope="module")
def task():
    return load_task("countdown", "short", load_tokenizer("models/nano-base"))


@pytest.fixture(scope="module")
def prompts(task):
    return [task.prompt_ids(problem) for problem in countdown.generate_problems("test", 6, 0)]


@pytest.fixture
def make(task):
    """A model's sampler."""

    def make(model, stop_ids=None):
        stop_ids = stop_ids or [task.tokenizer.eos_token_id]
        return TransformersSampler(model, task, stop_ids, r1.sample_token, r1.Config())

    return make


@pytest.fixture
def sampler(make, policy):
    return make(policy)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_log_probs_are_those_of_the_scored_distribution(sampler, policy, prompts, temperature):
    groups = sample(sampler, prompts, 4, 120, temperature=temperature)
    assert mismatch(policy, prompts, groups, temperature) < 2e-4


SIZES = {"vocab_size": 1640, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"head_dim": 8, "intermediate_size": 32}
SIZES |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 0}
SLIDING = {"sliding_window": 8, "attn_implementation": "sdpa"}
FAMILIES = {
    "one head of keys": LlamaConfig(**SIZES, num_key_value_heads=1),
    "a head of keys each": Qwen3Config(**SIZES, num_key_value_heads=4),
    "adapters": LlamaConfig(**SIZES, num_key_value_heads=2),
    "sliding windows": Gemma2Config(**SIZES, num_key_value_heads=2, **SLIDING),
    "learned positions": GPT2Config(vocab_size=1640, n_embd=32, n_layer=2, n_head=4),
}


@torch.no_grad()
def plain(model, prompt, uniforms, stop_ids):
    """A completion without cache, padding and neighbours."""
    ids = []
    for uniform in uniforms:
        logits = model(torch.tensor([prompt + ids])).logits[:, -1]
        token, _ = r1.sample_token(logits, 1.0, uniform[None, None])
        ids.append(int(token))
        if ids[-1] in stop_ids:
            break
    return ids


@pytest.mark.parametrize("family", FAMILIES)
def test_of_any_model_the_tokens_are_those_of_a_plain_loop(family, make, prompts, task):
    """Random weights; prompts of different lengths, and rows that end at different times."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
    if family == "adapters":
        import peft

        adapters = peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear")
        model = peft.get_peft_model(model, adapters).eval()
    assert is_like_llama(model.config) == (family not in ("sliding windows", "learned positions"))
    sampler = make(model, list(range(0, 1640, 40)))
    sampler.vocabulary = 1640
    starts = [prompt[i:] for i, prompt in enumerate(prompts[:3])]
    groups = sample(sampler, starts, 8, 30)
    assert {c.finish_reason for group in groups for c in group} == {"stop", "length"}
    assert mismatch(model, starts, groups) < 1e-4
    for place, group in enumerate(groups):
        uniforms = draw_uniforms([derive_seed(1, place)], 30, 8)
        for c, numbers in zip(group, uniforms.T):
            assert c.token_ids == plain(model, starts[place], numbers, sampler.stop_ids)
            stopped = c.token_ids[-1] in sampler.stop_ids
            assert c.finish_reason == ("stop" if stopped else "length")


def test_greedy_is_what_generate_gives(sampler, policy, prompts):
    for prompt, (c,) in zip(prompts, sample(sampler, prompts, 1, 60, temperature=0)):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        theirs = policy.generate(ids, do_sample=False, max_new_tokens=60, **options)
        assert c.token_ids == theirs[0, len(prompt) :].tolist()


def test_entries_that_only_pad_the_embedding_are_never_sampled(make, prompts, task):
    """64 more rows than the tokenizer has tokens, likely ones; log-probs are without them."""
    model = load_model("models/nano-base", "float32").eval()
    size = vocabulary_size(task.tokenizer)
    model.resize_token_embeddings(size + 64, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[size:] = 2 * weight[5:6]
    groups = sample(make(model), prompts, 8)
    assert max(i for group in groups for c in group for i in c.token_ids) < size
    first = groups[0][0]
    with torch.no_grad():
        expected = model(torch.tensor(prompts[:1])).logits[0, -1, :size].log_softmax(-1)
    assert first.logprobs[0] == pytest.approx(expected[first.token_ids[0]].item(), abs=1e-4)


def test_a_seed_fixes_n_completions_of_each_prompt_whatever_its_neighbours(sampler, prompts):
    groups = sample(sampler, prompts, 4)
    assert [len(group) for group in groups] == [4] * len(prompts)
    assert all(len({tuple(c.token_ids) for c in group}) > 1 for group in groups)
    assert sample(sampler, prompts, 4) == groups != sample(sampler, prompts, 4, seed=2)
    sampler.MAX_ROWS = 8  # two prompts at once
    for group, other in zip(groups, sample(sampler, prompts, 4)):
        assert [c.token_ids for c in group] == [c.token_ids for c in other]


def test_each_prompt_may_have_its_own_limit_of_tokens(sampler, prompts):
    limits = [1, 2, 40, 7, 3, 30]
    held = sampler.generate(prompts, 2, 1.0, limits, [derive_seed(1, i) for i in range(6)])
    for limit, group, other in zip(limits, sample(sampler, prompts, 2), held):
        for c, d in zip(group, other):
            assert d.token_ids == c.token_ids[:limit]
            ended = len(c.token_ids) <= limit and c.finish_reason == "stop"
            assert d.finish_reason == ("stop" if ended else "length")


def test_a_stop_text_ends_a_completion_and_is_kept(sampler, prompts, task):
    sampler.stop_texts = (" no\n",)
    texts = []
    for c in sum(sample(sampler, prompts, 8, 60), []):
        texts.append(task.tokenizer.decode(c.token_ids))
        assert " no\n" not in task.tokenizer.decode(c.token_ids[:-1])
        assert not texts[-1].endswith(" no\n") or c.finish_reason == "stop"
    assert any(text.endswith(" no\n") for text in texts)


def test_samples_follow_the_model_s_distribution(sampler, policy, prompts):
    (group,) = sample(sampler, prompts[:1], 4000, 2)
    begins = [c.token_ids[0] for c in group]
    first = max(set(begins), key=begins.count)  # nearly always a newline
    chosen = [c.token_ids[1] for c in group if c.token_ids[0] == first]
    with torch.no_grad():
        probs = policy(torch.tensor([prompts[0] + [first]])).logits[0, -1].softmax(-1)
    for token in probs.topk(4).indices.tolist():
        expected = probs[token].item()
        sigma = (expected * (1 - expected) / len(chosen)) ** 0.5
        assert abs(chosen.count(token) / len(chosen) - expected) < 5 * sigma + 1e-3


def test_a_small_model_is_sampled_in_one_thread(policy):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyError), ready_to_sample(policy):
            assert torch.get_num_threads() == 1
            raise KeyError
        with ready_to_sample(policy, small=1000):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_stop_tokens_are_the_tokenizer_s_and_the_generation_config_s(policy, task, monkeypatch):
    monkeypatch.setattr(policy.generation_config, "eos_token_id", [7, 9])
    expected = sorted({task.tokenizer.eos_token_id, 7, 9})
    assert stop_token_ids(policy, task.tokenizer) == expected


def test_vineppo_s_advantages_are_the_differences_of_values(sampler, task):
    """Continuations of the very tokens before a cut, within what is left of the limit."""
    sizes = {"prompts_per_step": 3, "group_size": 4, "max_tokens": 60}
    config = variants.Config(**sizes, credit="vineppo", vine_segments=3, vine_samples=2)
    problems = countdown.generate_problems("test", 3, 0)
    episodes = variants.rollout(sampler, problems, task, config, 1)
    for place, e in enumerate(episodes):
        group, member = divmod(place, 4)
        others = [o.reward.total for o in episodes[4 * group : 4 * group + 4] if o is not e]
        values = [sum(others) / 3]
        cuts = [e.length // 3, e.length * 2 // 3]
        for cut in cuts:
            prefix = e.completion.token_ids[:cut]
            seed = derive_seed(config.seed, 1, "vine", group, member, cut)
            (found,) = sampler.generate([e.prompt_ids + prefix], 2, 1.0, [60 - cut], [seed])
            texts = [task.text(prefix + c.token_ids) for c in found]
            values.append(sum(countdown.reward(text, e.problem).total for text in texts) / 2)
        segments = np.repeat(np.diff([*values, e.reward.total]), np.diff([0, *cuts, e.length]))
        assert e.per_token["vine_advantages"] == pytest.approx(segments.tolist())
        assert e.measured["vine_tokens"] > 0
