"""The sampling loop: what it returns is what the policy says."""

import peft
import pytest
import torch
from helpers import sample
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, Qwen3Config

import countdown_rewards as countdown
import nano_r1 as r1
from plumbing.models import load_model, load_tokenizer, stop_token_ids
from plumbing.packing import is_like_llama
from plumbing.processes import init_distributed
from plumbing.sampler import Completion, TransformersSampler, draw_uniforms, sampler_kind
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

    def make(model, stop_ids=None, sample_token=r1.sample_token):
        stop_ids = stop_ids or [task.tokenizer.eos_token_id]
        return TransformersSampler(model, task, stop_ids, sample_token, r1.Config())

    return make


@pytest.fixture
def sampler(make, policy):
    return make(policy)


# 64 rows of the embedding only pad it: the tokenizer has 1,640 tokens.
SIZES = {"vocab_size": 1704, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"head_dim": 8, "intermediate_size": 32}
SIZES |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 0}
SLIDING = {"sliding_window": 8, "attn_implementation": "sdpa"}
FAMILIES = {
    "one head of keys": LlamaConfig(**SIZES, num_key_value_heads=1),
    "a head of keys each": Qwen3Config(**SIZES, num_key_value_heads=4),
    "adapters": LlamaConfig(**SIZES, num_key_value_heads=2),
    "sliding windows": Gemma2Config(**SIZES, num_key_value_heads=2, **SLIDING),
    "learned positions": GPT2Config(vocab_size=1704, n_embd=32, n_layer=2, n_head=4),
}


@torch.no_grad()
def plain(model, prompt, uniforms, stop_ids, temperature):
    """A `Completion` without cache, padding and neighbours."""
    c = Completion([], [], "length")
    for uniform in uniforms:
        logits = model(torch.tensor([prompt + c.token_ids])).logits[:, -1, :1640]
        token, log_prob = r1.sample_token(logits, temperature, uniform[None, None])
        c.token_ids.append(int(token))
        c.logprobs.append(float(log_prob))
        if c.token_ids[-1] in stop_ids:
            c.finish_reason = "stop"
            break
    return c


@pytest.mark.parametrize("family, temperature", [*zip(FAMILIES, [0.7, 1.0, 1.3, 0.7, 1.3])])
def test_of_any_model_the_completions_are_those_of_a_plain_loop(family, temperature, make, prompts):
    """Whatever a prompt's neighbours. Random weights; rows that end at different times.

    Prompts of different lengths, each with its own limit; two at once, then the third.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
    if family == "adapters":
        adapters = peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear")
        model = peft.get_peft_model(model, adapters).eval()
    assert is_like_llama(model.config) == (family not in ("sliding windows", "learned positions"))
    sampler = make(model, list(range(0, 1640, 40)))
    sampler.MAX_ROWS = 16
    starts = [prompt[i:] for i, prompt in enumerate(prompts[:3])]
    limits = [30, 12, 1]
    groups = sampler.generate(starts, 8, temperature, limits, seeds=[3, 4, 5])
    assert {c.finish_reason for group in groups[:2] for c in group} == {"stop", "length"}
    for start, group, limit, seed in zip(starts, groups, limits, [3, 4, 5], strict=True):
        for c, numbers in zip(group, draw_uniforms([seed], 30, 8).T, strict=True):
            expected = plain(model, start, numbers[:limit], sampler.stop_ids, temperature)
            assert c.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            expected.logprobs = c.logprobs
            assert c == expected


def test_greedy_is_what_generate_gives(sampler, policy, prompts):
    for prompt, (c,) in zip(prompts, sample(sampler, prompts, 1, 60, temperature=0)):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        theirs = policy.generate(ids, do_sample=False, max_new_tokens=60, **options)
        assert c.token_ids == theirs[0, len(prompt) :].tolist()


def test_a_stop_text_ends_a_completion_and_is_kept(sampler, prompts, task):
    sampler.stop_texts = (" no\n",)
    texts = []
    for c in sum(sample(sampler, prompts, 8, 60), []):
        texts.append(task.tokenizer.decode(c.token_ids))
        assert " no\n" not in task.tokenizer.decode(c.token_ids[:-1])
        assert not texts[-1].endswith(" no\n") or c.finish_reason == "stop"
    assert any(text.endswith(" no\n") for text in texts)


@pytest.mark.parametrize("limit, threads", [(10**9, 1), (1000, 3)])
def test_a_small_model_is_sampled_in_one_thread(limit, threads, make, policy, prompts, monkeypatch):
    """Also where sampling fails, there are as many as before afterwards."""
    monkeypatch.setattr(TransformersSampler, "SMALL", limit)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found = []
    draw = lambda *_: found.append(torch.get_num_threads())
    with pytest.raises(TypeError):  # it returns no token
        sample(make(policy, sample_token=draw), prompts, 1)
    assert found == [threads] and torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("capability, kind", [((7, 5), "transformers"), ((8, 0), "vllm")])
def test_auto_takes_our_loop_on_a_t4_and_vllm_from_8_0_on(capability, kind, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "vllm")
    assert sampler_kind(r1.Config()) == kind


def test_stop_tokens_are_the_tokenizer_s_and_the_generation_config_s(policy, task, monkeypatch):
    monkeypatch.setattr(policy.generation_config, "eos_token_id", [7, 9])
    expected = sorted({task.tokenizer.eos_token_id, 7, 9})
    assert stop_token_ids(policy, task.tokenizer) == expected
