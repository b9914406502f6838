"""The sampling loop: what it returns is what the policy says."""

import sys

import pytest
import torch
from transformers import Gemma2Config, GPT2Config, LlamaConfig, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

import countdown_rewards as countdown
import nano_r1 as r1
from plumbing.decoding import can_decode
from plumbing.models import load_model, load_tokenizer, stop_token_ids, vocabulary_size
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import TransformersSampler
from plumbing.tasks import load_task


@pytest.fixture(scope="module")
def policy():
    init_distributed()
    return load_model("models/nano-base", "float32").eval()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("models/nano-base")


@pytest.fixture(scope="module")
def task(tokenizer):
    return load_task("countdown", "short", tokenizer)


@pytest.fixture(scope="module")
def prompts(task):
    return [task.prompt_ids(problem) for problem in countdown.generate_problems("test", 6, 0)]


@pytest.fixture
def sampler(policy, tokenizer):
    return TransformersSampler(policy, tokenizer, [tokenizer.eos_token_id])


def seeds(prompts, seed):
    """One seed for each prompt."""
    return [derive_seed(seed, place) for place in range(len(prompts))]


def scored(policy, prompts, groups, temperature):
    """Each completion's log-probabilities by one forward pass over prompt and completion."""
    pairs = [(p, c.token_ids) for p, group in zip(prompts, groups) for c in group]
    batch = r1.pad_prompts_and_outputs(*zip(*pairs), pad_id=0)
    with torch.no_grad():
        out = r1.get_response_log_probs(policy, batch["input_ids"], batch["labels"], temperature=temperature)
    return [row[mask] for row, mask in zip(out["log_probs"], batch["response_mask"])]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_logprobs_are_those_of_the_scored_distribution(sampler, policy, prompts, temperature):
    groups = sampler.generate(prompts, 4, temperature, 120, seeds(prompts, 1))
    for completion, reference in zip((c for g in groups for c in g), scored(policy, prompts, groups, temperature)):
        assert torch.allclose(torch.tensor(completion.logprobs), reference, atol=2e-4)


SIZES = {"vocab_size": 1640, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
SIZES |= {"intermediate_size": 32, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 0}
FAMILIES = {
    "one head of keys": LlamaConfig(**SIZES, num_key_value_heads=1),
    "a head of keys each": Qwen3Config(**SIZES, num_key_value_heads=4),
    "sliding windows": Gemma2Config(**SIZES, num_key_value_heads=2, sliding_window=8, attn_implementation="sdpa"),
    "learned positions": GPT2Config(vocab_size=1640, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_models_sample_from_what_they_score(family, prompts, tokenizer):
    """Random weights; prompts of different lengths, so that some are padded, and more rows than stay to the end."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
    starts = [prompt[i:] for i, prompt in enumerate(prompts[:3])]
    sampler = TransformersSampler(model, tokenizer, list(range(0, 1640, 40)))
    groups = sampler.generate(starts, 8, 1.0, 30, seeds(starts, 1))
    assert {c.finish_reason for group in groups for c in group} == {"stop", "length"}
    for completion, reference in zip((c for g in groups for c in g), scored(model, starts, groups, 1.0)):
        assert torch.allclose(torch.tensor(completion.logprobs), reference, atol=1e-4)


@pytest.mark.parametrize("family", ["one head of keys", "a head of keys each", "adapters"])
def test_the_short_forward_pass_samples_the_same_tokens_as_that_of_transformers(
    family, prompts, tokenizer, monkeypatch
):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES.get(family, FAMILIES["one head of keys"]))
    if family == "adapters":
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
    assert can_decode(model)
    sampler = TransformersSampler(model.eval(), tokenizer, list(range(0, 1640, 40)))
    groups = sampler.generate(prompts, 4, 1.0, 80, seeds(prompts, 1))
    monkeypatch.setattr("plumbing.sampler.can_decode", lambda model: False)
    theirs = sampler.generate(prompts, 4, 1.0, 80, seeds(prompts, 1))
    for ours, other in zip(sum(groups, []), sum(theirs, [])):
        assert ours.token_ids == other.token_ids
        assert ours.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_greedy_is_what_generate_gives(sampler, policy, prompts, tokenizer):
    groups = sampler.generate(prompts, 1, 0, 60, seeds(prompts, 1))
    for prompt, (completion,) in zip(prompts, groups):
        ids = torch.tensor([prompt])
        theirs = policy.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        assert completion.token_ids == theirs[0, len(prompt) :].tolist()


def test_entries_that_only_pad_the_embedding_are_never_sampled(prompts, tokenizer):
    """64 more rows than the tokenizer has tokens, likely ones; log-probabilities are of the distribution without them."""
    model = load_model("models/nano-base", "float32").eval()
    size = vocabulary_size(tokenizer)
    model.resize_token_embeddings(size + 64, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[size:] = 2 * weight[5:6]
    sampler = TransformersSampler(model, tokenizer, [tokenizer.eos_token_id])
    groups = sampler.generate(prompts, 8, 1.0, 40, seeds(prompts, 1))
    assert max(i for group in groups for c in group for i in c.token_ids) < size
    (first,) = sampler.generate(prompts[:1], 1, 1.0, 1, seeds(prompts[:1], 1))[0]
    with torch.no_grad():
        expected = model(torch.tensor(prompts[:1])).logits[0, -1, :size].log_softmax(-1)[first.token_ids[0]]
    assert first.logprobs[0] == pytest.approx(expected.item(), abs=1e-4)


def test_one_list_of_n_completions_for_each_prompt_in_order(sampler, prompts):
    groups = sampler.generate(prompts, 3, 1.0, 20, seeds(prompts, 1))
    assert [len(g) for g in groups] == [3] * len(prompts)


def test_completions_of_a_group_differ(sampler, prompts):
    (group,) = sampler.generate(prompts[:1], 8, 1.0, 40, seeds(prompts[:1], 1))
    assert len({tuple(c.token_ids) for c in group}) > 1


def test_same_seed_same_completions_and_another_seed_others(sampler, prompts):
    first, again, other = (sampler.generate(prompts, 2, 1.0, 40, seeds(prompts, s)) for s in (5, 5, 6))
    assert first == again and first != other


def test_a_finished_completion_ends_with_its_stop_token_a_cut_off_one_does_not(sampler, prompts, tokenizer):
    completions = [c for g in sampler.generate(prompts, 16, 1.0, 40, seeds(prompts, 2)) for c in g]
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for c in completions:
        assert tokenizer.eos_token_id not in c.token_ids[:-1]
        assert len(c.token_ids) == len(c.logprobs)
        if c.finish_reason == "stop":
            assert c.token_ids[-1] == tokenizer.eos_token_id
        else:
            assert len(c.token_ids) == 40 and c.token_ids[-1] != tokenizer.eos_token_id


def test_a_prompt_s_completions_do_not_depend_on_its_neighbours(sampler, prompts):
    together = sampler.generate(prompts, 2, 1.0, 40, seeds(prompts, 4))
    alone = sampler.generate(prompts[2:3], 2, 1.0, 40, seeds(prompts, 4)[2:3])
    assert [c.token_ids for c in together[2]] == [c.token_ids for c in alone[0]]


def test_each_prompt_may_have_its_own_limit_of_tokens(sampler, prompts):
    limits = [1, 2, 40, 7, 3, 30]
    free = sampler.generate(prompts, 2, 1.0, 40, seeds(prompts, 4))
    held = sampler.generate(prompts, 2, 1.0, limits, seeds(prompts, 4))
    for limit, group, other in zip(limits, free, held):
        for c, d in zip(group, other):
            assert d.token_ids == c.token_ids[:limit]
            assert d.finish_reason == ("stop" if len(c.token_ids) <= limit and c.finish_reason == "stop" else "length")


@pytest.fixture
def vine(sampler, task):
    """Episodes of three groups with their rewards and their segments' advantages, and the settings."""
    sizes = {"prompts_per_step": 3, "group_size": 4, "max_tokens": 60, "vine_segments": 3, "vine_samples": 2}
    config = r1.Config(**sizes, credit="vineppo")
    episodes = r1.sample_completions(sampler, countdown.generate_problems("test", 3, 0), task, config, "test", 4, 1.0)
    r1.compute_rewards(episodes, task)
    r1.compute_advantages(episodes, config)
    return episodes, config, r1.vine_advantages(sampler, episodes, task, config, 1)


def test_the_segments_of_a_completion_sum_to_its_reward_minus_the_first_value(vine):
    for place, e in enumerate(vine[0]):
        assert len(e.token_advantages) == e.length
        cuts = [0, e.length // 3, e.length * 2 // 3, e.length]
        segments = [e.token_advantages[a:b] for a, b in zip(cuts, cuts[1:])]
        assert all(len(set(segment)) <= 1 for segment in segments)
        others = [o.reward.total for o in vine[0][place // 4 * 4 : place // 4 * 4 + 4] if o is not e]
        total = sum(segment[0] for segment in segments if segment)
        assert total == pytest.approx(e.reward.total - sum(others) / 3)


def test_the_value_of_a_cut_is_the_mean_reward_of_continuations_of_its_very_tokens(vine, sampler, task):
    """Sampled again here with the same seeds: prefix by prefix, within what is left of the tokens."""
    episodes, config, metrics = vine
    e = episodes[5]
    values = [sum(o.reward.total for o in episodes[4:8] if o is not e) / 3]
    for cut in (e.length // 3, e.length * 2 // 3):
        prefix = e.prompt_ids + e.completion.token_ids[:cut]
        seed = derive_seed(config.seed, 1, "vine", 1, 1, cut)
        (group,) = sampler.generate([prefix], 2, 1.0, config.max_tokens - cut, [seed])
        assert all(cut + len(c.token_ids) <= 60 for c in group)
        texts = [task.text(e.completion.token_ids[:cut] + c.token_ids) for c in group]
        values.append(sum(countdown.reward(text, e.problem).total for text in texts) / 2)
    expected = [b - a for a, b in zip(values, [*values[1:], e.reward.total])]
    found = [e.token_advantages[cut] for cut in (0, e.length // 3, e.length * 2 // 3)]
    assert found == pytest.approx(expected)
    assert metrics["tokens/vine"] > 0


def test_two_processes_sample_together_what_one_samples_alone(sampler, task, monkeypatch):
    problems, config = countdown.generate_problems("test", 5, 0), r1.Config(max_tokens=40)
    texts = lambda episodes: sorted((e.problem["nums"], e.text) for e in episodes)
    alone, shares = r1.sample_completions(sampler, problems, task, config, "test", 2, 1.0), []
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        shares.append(r1.sample_completions(sampler, problems, task, config, "test", 2, 1.0))
    assert [len(share) for share in shares] == [6, 4] and texts(sum(shares, [])) == texts(alone)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process samples")
def test_a_small_model_s_completions_do_not_depend_on_how_many_processes_of_the_cpu_sample_them(sampler, prompts):
    before, groups = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert sampler._processes() == threads
            groups.append(sampler.generate(prompts, 4, 1.0, 60, seeds(prompts, 3)))
    finally:
        torch.set_num_threads(before)
    for others in groups[1:]:
        for group, other in zip(groups[0], others):
            assert [c.token_ids for c in group] == [c.token_ids for c in other]


def test_a_larger_model_is_left_to_the_threads(sampler, monkeypatch):
    monkeypatch.setattr(sampler, "SMALL", 1_000_000)
    assert sampler._processes() == 1


def test_a_stop_text_ends_a_completion_and_is_kept(policy, prompts, tokenizer):
    sampler = TransformersSampler(policy, tokenizer, [tokenizer.eos_token_id], (" no\n",))
    completions = [c for g in sampler.generate(prompts, 8, 1.0, 60, seeds(prompts, 1)) for c in g]
    stopped = [c for c in completions if tokenizer.decode(c.token_ids).endswith(" no\n")]
    assert stopped and all(c.finish_reason == "stop" for c in stopped)
    assert all(" no\n" not in tokenizer.decode(c.token_ids[:-1]) for c in completions)


def test_samples_follow_the_model_s_distribution(sampler, policy, prompts):
    (group,) = sampler.generate([prompts[0]], 4000, 1.0, 2, seeds([prompts[0]], 3))
    second = [c.token_ids[1] for c in group]  # the first token is nearly always a newline
    first = max(set(c.token_ids[0] for c in group), key=[c.token_ids[0] for c in group].count)
    with torch.no_grad():
        probs = policy(torch.tensor([prompts[0] + [first]])).logits[0, -1].softmax(-1)
    chosen = [s for s, c in zip(second, group) if c.token_ids[0] == first]
    for token in probs.topk(4).indices.tolist():
        expected = probs[token].item()
        sigma = (expected * (1 - expected) / len(chosen)) ** 0.5
        assert abs(chosen.count(token) / len(chosen) - expected) < 5 * sigma + 1e-3


def test_more_rows_than_fit_at_once_are_sampled_in_turns(sampler, prompts):
    sampler.MAX_ROWS = 4
    assert [len(g) for g in sampler.generate(prompts, 2, 1.0, 10, seeds(prompts, 1))] == [2] * len(prompts)


def test_stop_tokens_are_the_tokenizer_s_and_the_generation_config_s(policy, tokenizer):
    policy.generation_config.eos_token_id = [7, 9]
    try:
        assert stop_token_ids(policy, tokenizer) == sorted({tokenizer.eos_token_id, 7, 9})
    finally:
        policy.generation_config.eos_token_id = tokenizer.eos_token_id
