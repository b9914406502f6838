"""The small functions of the objective, of sampling and of evaluation: values by hand, and their properties."""

import itertools
import math
import statistics

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from nano_r1 import (
    Config,
    Episode,
    collate,
    compute_entropy,
    compute_group_normalized_rewards,
    compute_grpo_clip_loss,
    compute_kl,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    draw_prompts,
    get_response_log_probs,
    grpo_microbatch_train_step,
    masked_mean,
    masked_normalize,
    micro_batches,
    normalize_group_rewards,
    pad_prompts_and_outputs,
    tokenize_prompt_and_output,
)
from plumbing import batching
from plumbing.evaluation import confidence_interval, majority_vote, pass_at_k
from plumbing.processes import derive_seed
from plumbing.sampler import Completion
from plumbing.settings import UserError
from plumbing.tasks import Reward

tensor = torch.tensor
LOG2 = math.log(2)


def leaf(values, dtype=torch.float32):
    return tensor(values, dtype=dtype, requires_grad=True)


# Masks


def test_masked_mean_averages_the_marked_entries():
    x, mask = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tensor([[1, 1, 0], [0, 0, 1]])
    assert_close(masked_mean(x, mask), tensor(3.0))
    assert_close(masked_mean(x, mask, dim=1), tensor([1.5, 6.0]))
    assert_close(masked_mean(x, mask.bool(), dim=-1), tensor([1.5, 6.0]))


def test_masked_mean_of_nothing_is_nan():
    x, mask = torch.ones(2, 3), tensor([[1, 0, 0], [0, 0, 0]])
    assert_close(masked_mean(x, mask, dim=1), tensor([1.0, math.nan]), equal_nan=True)
    assert_close(masked_mean(x, mask, dim=0), tensor([1.0, math.nan, math.nan]), equal_nan=True)
    assert masked_mean(x, torch.zeros(2, 3)).isnan()


def test_masked_normalize_divides_the_sum_of_the_marked_entries_by_the_constant():
    x, mask = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tensor([[1, 1, 0], [0, 0, 1]])
    assert_close(masked_normalize(x, mask, 4), tensor(2.25))
    assert_close(masked_normalize(x, mask, 2.0, dim=0), tensor([0.5, 1.0, 3.0]))
    assert_close(masked_normalize(x, mask.bool(), 2.0, dim=1), tensor([1.5, 3.0]))


def test_masked_normalize_of_nothing_is_zero():
    assert masked_normalize(torch.ones(2, 3), torch.zeros(2, 3), 7) == 0


GENERATIONS = tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])  # the assignment's example: 4 and 7 tokens


def test_masked_mean_gives_each_generation_the_same_weight():
    ratio = torch.ones(2, 7, requires_grad=True)
    result = masked_mean(ratio * 2, GENERATIONS, dim=1)
    assert_close(result, tensor([2.0, 2.0]))
    result.mean().backward()
    assert_close(ratio.grad, GENERATIONS * tensor([[1 / 4], [1 / 7]]))


def test_masked_normalize_gives_each_token_the_same_weight():
    ratio = torch.ones(2, 7, requires_grad=True)
    result = masked_normalize(ratio * 2, GENERATIONS, 7, dim=1)
    assert_close(result, tensor([8 / 7, 2.0]))
    result.mean().backward()
    assert_close(ratio.grad, GENERATIONS * (1 / 7))


# Entropy


def test_the_entropy_of_a_uniform_distribution_is_the_log_of_the_vocabulary():
    assert_close(compute_entropy(torch.full((2, 3, 50), 4.2)), torch.full((2, 3), math.log(50)))


def test_the_entropy_of_a_certain_choice_is_zero():
    logits = torch.zeros(1, 1, 50)
    logits[..., 7] = 100
    assert_close(compute_entropy(logits), torch.zeros(1, 1))


@pytest.mark.parametrize(
    "logits, entropy",
    [([1e4, -1e4, 0.0], 0.0), ([1e4, 1e4, -1e4], LOG2), ([-1e4] * 3, math.log(3)), ([1e4] * 3, math.log(3))],
)
def test_huge_logits_have_a_finite_entropy(logits, entropy):
    assert_close(compute_entropy(tensor([[logits]])), tensor([[entropy]]), atol=2e-3, rtol=0)


def test_entropy_agrees_with_minus_p_log_p_in_float64():
    logits = 5 * torch.randn(3, 4, 97, generator=torch.Generator().manual_seed(0))
    p = torch.exp(logits.double()) / torch.exp(logits.double()).sum(-1, keepdim=True)
    assert_close(compute_entropy(logits).double(), -(p * p.log()).sum(-1), atol=1e-5, rtol=0)


def test_entropy_of_bfloat16_logits_is_computed_in_float32():
    logits = torch.randn(2, 3, 97, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert compute_entropy(logits).dtype == torch.float32
    assert_close(compute_entropy(logits), compute_entropy(logits.float()), atol=0, rtol=0)


# Tokens


@pytest.fixture(scope="module")
def tokenizer():
    """One token per character of `abc+=`, and the special tokens <pad> 0 and <eos> 1."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *"abc+="])}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def test_prompt_and_output_are_joined_shifted_and_masked(tokenizer):
    result = tokenize_prompt_and_output(["ab", "a"], ["c+=", "b"], tokenizer)
    assert result["input_ids"].tolist() == [[3, 4, 5, 6], [3, 4, 0, 0]]
    assert result["labels"].tolist() == [[4, 5, 6, 7], [4, 0, 0, 0]]
    assert result["response_mask"].tolist() == [[False, True, True, True], [True, False, False, False]]


def test_tokenized_tensors_have_the_documented_types(tokenizer):
    result = tokenize_prompt_and_output(["ab"], ["c"], tokenizer)
    assert [result[name].dtype for name in ("input_ids", "labels", "response_mask")] == [
        torch.int64,
        torch.int64,
        torch.bool,
    ]


def test_the_mask_includes_the_end_of_sequence_token(tokenizer):
    result = tokenize_prompt_and_output(["ab", "abc"], ["c<eos>", "a+b<eos>"], tokenizer)
    assert result["labels"][result["response_mask"]].tolist() == [5, 1, 3, 6, 4, 1]


def test_a_padding_token_that_is_the_end_of_sequence_token_stays_outside_the_mask(tokenizer):
    result = pad_prompts_and_outputs([[3], [3, 4, 5]], [[4, 1], [6, 7, 1]], pad_id=1)
    assert result["labels"].tolist() == [[4, 1, 1, 1, 1], [4, 5, 6, 7, 1]]
    assert result["response_mask"].int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]


def test_without_a_padding_token_the_end_of_sequence_token_pads():
    class Stand:
        pad_token_id, eos_token_id = None, 9

        def encode(self, text, add_special_tokens):
            assert not add_special_tokens  # there is no token of the beginning
            return [int(c) for c in text]

    assert tokenize_prompt_and_output(["1", "1"], ["2", "234"], Stand())["labels"].tolist() == [[2, 9, 9], [2, 3, 4]]


tokens = st.lists(st.integers(2, 20), min_size=1, max_size=8)
prompts_with_outputs = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6)


@settings(max_examples=200)
@given(prompts_with_outputs)
def test_the_masked_labels_of_each_row_are_exactly_its_output(rows):
    result = pad_prompts_and_outputs(*map(list, zip(*rows)), pad_id=0)
    for (prompt, output), ids, labels, mask in zip(rows, *result.values()):
        assert labels[mask].tolist() == output
        assert ids[: len(prompt + output) - 1].tolist() == (prompt + output)[:-1]


@given(prompts_with_outputs)
def test_a_row_is_the_same_alone_and_beside_longer_ones(rows):
    together = pad_prompts_and_outputs(*map(list, zip(*rows)), pad_id=0)
    for i, (prompt, output) in enumerate(rows):
        for name, alone in pad_prompts_and_outputs([prompt], [output], pad_id=0).items():
            assert together[name][i, : alone.shape[1]].tolist() == alone[0].tolist()


# Log-probabilities


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (3, 13), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def reference_log_probs(model, input_ids, labels, temperature):
    with torch.no_grad():
        p = torch.softmax(model(input_ids=input_ids).logits.double() / temperature, dim=-1)
    return p.gather(-1, labels[..., None])[..., 0].log(), -(p * p.log()).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_log_probs_and_entropy_are_those_of_the_softmax_at_the_temperature(model, batch, temperature):
    result = get_response_log_probs(model, *batch, return_token_entropy=True, temperature=temperature)
    log_probs, entropy = reference_log_probs(model, *batch, temperature)
    assert_close(result["log_probs"].double(), log_probs, atol=1e-5, rtol=1e-5)
    assert_close(result["token_entropy"].double(), entropy, atol=1e-5, rtol=1e-5)


def test_a_bfloat16_model_gives_float32_log_probs(model, batch):
    half = transformers.Qwen2ForCausalLM(model.config).bfloat16()
    half.load_state_dict(model.state_dict())
    result = get_response_log_probs(half, *batch, return_token_entropy=True, temperature=0.7)
    assert result["log_probs"].dtype == result["token_entropy"].dtype == torch.float32
    log_probs, entropy = reference_log_probs(half, *batch, 0.7)
    assert_close(result["log_probs"].double(), log_probs, atol=1e-5, rtol=1e-5)
    assert_close(result["token_entropy"].double(), entropy, atol=1e-5, rtol=1e-5)


def test_only_the_log_probs_carry_a_gradient(model, batch):
    result = get_response_log_probs(model, *batch, return_token_entropy=True)
    assert result["log_probs"].requires_grad and not result["token_entropy"].requires_grad


def test_entropy_is_returned_only_when_asked_for(model, batch):
    assert set(get_response_log_probs(model, *batch)) == {"log_probs"}


@pytest.mark.parametrize("pad_id", [0, 7])
def test_padding_on_the_right_changes_no_response_log_prob(model, pad_id):
    prompts, outputs = [[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14, 15, 16, 17]]
    t = pad_prompts_and_outputs(prompts, outputs, pad_id)
    together = get_response_log_probs(model, t["input_ids"], t["labels"])["log_probs"]
    for i in range(2):
        alone = pad_prompts_and_outputs(prompts[i : i + 1], outputs[i : i + 1], pad_id)
        expected = get_response_log_probs(model, alone["input_ids"], alone["labels"])["log_probs"]
        assert_close(together[i][t["response_mask"][i]], expected[alone["response_mask"]], atol=1e-5, rtol=0)


def half_of(labels):
    return torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.5


MASKS = {"all": torch.ones_like, "some": half_of, "none": torch.zeros_like}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def either(request, model):
    """The model in float32 and in bfloat16."""
    if request.param == "float32":
        return model
    half = transformers.Qwen2ForCausalLM(model.config).bfloat16().eval()
    half.load_state_dict(model.state_dict())
    return half


def values_and_gradient(model, batch, entropy_gradient, mask=None, weigh=1.0):
    out = get_response_log_probs(
        model, *batch, return_token_entropy=True, temperature=0.7, entropy_gradient=entropy_gradient, response_mask=mask
    )
    model.zero_grad()
    ((out["log_probs"] * torch.arange(12) * weigh).sum() + (out["token_entropy"] * weigh).sum()).backward()
    return out, [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_plain_and_chunked_log_probs_have_the_same_values_and_gradients(
    either, batch, mask, entropy_gradient, monkeypatch
):
    """Without a mask: all logits, log-softmax, gather. With it: where it is 1, in chunks of 1 and 5 tokens, or in one."""
    mask = MASKS[mask](batch[1]).bool()
    plain, gradient = values_and_gradient(either, batch, entropy_gradient, weigh=mask)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if either.dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    size = max(g.abs().max().item() for g in gradient)
    for logits in (1, 50 * 5, 10**9):  # of a vocabulary of 50
        monkeypatch.setattr("plumbing.chunked_logits.LOGITS_PER_CHUNK", logits)
        chunked, other = values_and_gradient(either, batch, entropy_gradient, mask)
        for name in plain:
            assert_close(chunked[name], plain[name] * mask, **tolerance)
            assert chunked[name].dtype == torch.float32
        for ours, theirs in zip(other, gradient):
            assert_close(ours, theirs, rtol=0, atol=max(1e-6, tolerance["rtol"] * size))


def test_a_plain_torch_module_with_logits_is_enough(batch):
    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = torch.nn.Embedding(50, 50)

        def forward(self, input_ids):
            return transformers.modeling_outputs.CausalLMOutput(logits=self.table(input_ids))

    bare, mask = Bare(), half_of(batch[1])
    expected = bare.table.weight.double().log_softmax(-1)[batch[0], batch[1]]
    for options in ({}, {"response_mask": mask}):
        assert_close(get_response_log_probs(bare, *batch, **options)["log_probs"].double(), expected)


def test_no_tensor_is_larger_than_a_chunk_of_logits(model, batch, monkeypatch):
    """Forward and backward: the most rows of logits that ever exist are a chunk, 5 of 36."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (50,) and len(result) != 32:  # the weight
                Largest.rows = max(Largest.rows, len(result))
            return result

    monkeypatch.setattr("plumbing.chunked_logits.LOGITS_PER_CHUNK", 50 * 5)
    with Largest():
        out = get_response_log_probs(model, *batch, return_token_entropy=True, response_mask=torch.ones_like(batch[1]))
        out["log_probs"].sum().backward()
    assert Largest.rows == 5


def gemma(**settings):
    config = transformers.Gemma2Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Gemma2ForCausalLM(config).eval()


def test_a_model_that_caps_its_logits_is_scored_from_those_it_returns(batch):
    model = gemma(final_logit_softcapping=3.0)
    found = get_response_log_probs(model, *batch, response_mask=torch.ones_like(batch[1]))
    log_probs, _ = reference_log_probs(model, *batch, 1.0)
    assert_close(found["log_probs"].double(), log_probs, atol=1e-5, rtol=1e-5)


def test_a_model_that_changes_its_logits_in_another_way_is_refused(model, batch):
    changed = transformers.Qwen2ForCausalLM(model.config)
    forward = changed.forward

    def doubled(*args, **kwargs):
        out = forward(*args, **kwargs)
        return transformers.modeling_outputs.CausalLMOutput(logits=2 * out.logits)

    changed.forward = doubled
    with pytest.raises(UserError, match="changes its logits after the output layer"):
        get_response_log_probs(changed, *batch, response_mask=torch.ones_like(batch[1]))


def test_the_output_layer_is_itself_again_afterwards(model, batch):
    mask, before = torch.ones_like(batch[1]), model(input_ids=batch[0]).logits
    get_response_log_probs(model, *batch, response_mask=mask)
    assert torch.equal(model(input_ids=batch[0]).logits, before)
    with pytest.raises(IndexError):
        get_response_log_probs(model, batch[0] + 10**6, batch[1], response_mask=mask)
    assert torch.equal(model(input_ids=batch[0]).logits, before)


# Advantages


def advantages_of(rewards, group_size, eps=0.0, normalize_by_std=True):
    def reward_fn(response, truth):
        assert response == f"response {truth}"
        return {"reward": rewards[truth], "format_reward": 0.0, "answer_reward": 0.0}

    truths = list(range(len(rewards)))
    return compute_group_normalized_rewards(
        reward_fn, [f"response {i}" for i in truths], truths, group_size, eps, normalize_by_std
    )


TWO_QUESTIONS = [2.0, 1.0, 0.0, 1.0, 2.0, 2.0, 2.0, 0.0]  # biased std: +-1.41 in the first group, +0.58 in the second


def test_advantages_divide_by_the_unbiased_standard_deviation():
    advantages, raw, _ = advantages_of(TWO_QUESTIONS, 4)
    high = 1 / math.sqrt(2 / 3)  # 1.22
    assert_close(advantages, tensor([high, 0.0, -high, 0.0, 0.5, 0.5, 0.5, -1.5]))
    assert raw.tolist() == TWO_QUESTIONS


def test_epsilon_is_added_to_the_standard_deviation():
    advantages, _, _ = advantages_of([0.0, 2.0], 2, eps=0.5)
    assert_close(advantages, tensor([-1.0, 1.0]) / (math.sqrt(2) + 0.5))


def test_without_normalization_advantages_are_rewards_minus_the_mean_of_the_group():
    advantages, _, _ = advantages_of(TWO_QUESTIONS, 4, eps=0.5, normalize_by_std=False)
    assert_close(advantages, tensor([1.0, 0.0, -1.0, 0.0, 0.5, 0.5, 0.5, -1.5]))


@given(st.lists(st.tuples(*[st.floats(-10, 10, width=16)] * 3), min_size=1, max_size=5))
def test_advantages_agree_with_the_formula_in_float64(groups):
    advantages, _, _ = advantages_of([r for group in groups for r in group], 3, eps=1e-2)
    expected = [(r - statistics.fmean(group)) / (statistics.stdev(group) + 1e-2) for group in groups for r in group]
    assert_close(advantages.double(), tensor(expected, dtype=torch.float64), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("normalize_by_std", [True, False])
@pytest.mark.parametrize("group_size", [2, 4, 7, 8, 16])
@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_equal_rewards_give_advantages_of_exactly_zero(reward, group_size, normalize_by_std):
    advantages, _, metadata = advantages_of([reward] * group_size, group_size, 1e-4, normalize_by_std)
    assert advantages.tolist() == [0.0] * group_size
    assert metadata["frac_reward_zero_std"] == 1.0


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_equal_rewards_that_binary_fractions_only_approximate_give_advantages_of_exactly_zero(normalize_by_std):
    advantages, _, _ = advantages_of([0.1] * 8 + [0.3] * 8, 8, 1e-4, normalize_by_std)
    assert advantages.tolist() == [0.0] * 16


def test_a_group_of_one_has_no_advantage():
    assert advantages_of([2.0, 0.5], 1, eps=1e-4)[0].tolist() == [0.0, 0.0]


def test_metadata_describe_the_rewards():
    metadata = advantages_of([*TWO_QUESTIONS, 1.0, 1.0, 1.0, 1.0], 4)[2]
    assert metadata["reward_mean"] == pytest.approx(14 / 12)
    assert metadata["reward_std"] == pytest.approx((math.sqrt(2 / 3) + 1.0 + 0.0) / 3)
    assert metadata["frac_reward_zero_std"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"baseline": "leave_one_out", "scale_rewards": "none"}, [4 / 3, 0.0, -4 / 3, 0.0]),
        ({"scale_rewards": "group_biased"}, [math.sqrt(2), 0.0, -math.sqrt(2), 0.0]),
    ],
)
def test_the_course_s_function_passes_the_baseline_and_the_scale_on(options, expected):
    results = [{"reward": r} for r in TWO_QUESTIONS[:4]]
    advantages, raw, stats = compute_group_normalized_rewards(lambda r, _: r, results, results, 4, 0.0, True, **options)
    assert_close(advantages, tensor(expected))
    assert_close(advantages, normalize_group_rewards(raw, 4, 0.0, **options)[0])


# Losses


def test_the_naive_loss_is_minus_advantage_times_log_prob():
    log_probs = leaf([[-1.0, -2.0], [-3.0, -4.0]])
    loss = compute_naive_policy_gradient_loss(tensor([[2.0], [-0.5]]), log_probs)
    assert_close(loss, tensor([[2.0, 4.0], [-1.5, -2.0]]))
    loss.sum().backward()
    assert_close(log_probs.grad, tensor([[-2.0, -2.0], [0.5, 0.5]]))


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient, low, high",
    [
        (1.0, 2.0, -2.0, -2.0, False, False),
        (1.0, -2.0, 2.0, 2.0, False, False),
        (1.1, 1.0, -1.1, -1.1, False, False),
        (0.9, -1.0, 0.9, 0.9, False, False),
        (1.5, 1.0, -1.2, 0.0, False, True),
        (1.5, -1.0, 1.5, 1.5, False, False),
        (0.5, 1.0, -0.5, -0.5, False, False),
        (0.5, -1.0, 0.8, 0.0, True, False),
        (1.5, 0.0, 0.0, 0.0, False, False),
        (0.5, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_grpo_clip_by_cases(ratio, advantage, loss, gradient, low, high):
    old = tensor([[-2.0]])
    log_probs = (old + math.log(ratio)).requires_grad_()
    result, metadata = compute_grpo_clip_loss(tensor([[advantage]]), log_probs, old, cliprange=0.2)
    result.sum().backward()
    assert_close(result, tensor([[loss]]))
    assert_close(log_probs.grad, tensor([[gradient]]))
    assert (metadata["clip_ratio/low"].item(), metadata["clip_ratio/high"].item()) == (low, high)


@given(st.floats(-3, 3), st.floats(-2, 0), st.floats(-2, 0), st.floats(0.05, 0.5))
def test_grpo_clip_agrees_with_the_equation_in_float64(advantage, new, old, cliprange):
    ratio = math.exp(new - old)
    expected = -min(ratio * advantage, min(max(ratio, 1 - cliprange), 1 + cliprange) * advantage)
    advantages, log_probs, old_log_probs = tensor([[[advantage]], [[new]], [[old]]], dtype=torch.float64)
    loss, _ = compute_grpo_clip_loss(advantages, log_probs, old_log_probs, cliprange)
    assert loss.item() == pytest.approx(expected)


def test_each_loss_type_is_dispatched_to_its_loss():
    log_probs, rewards, advantages, old = (
        tensor([[-1.0, -2.0]]),
        tensor([[3.0]]),
        tensor([[-0.5]]),
        tensor([[-1.5, -2.0]]),
    )
    no_baseline, nothing = compute_policy_gradient_loss(
        log_probs, "no_baseline", raw_rewards=rewards, advantages=advantages
    )
    assert_close(no_baseline, tensor([[3.0, 6.0]]))
    baseline, _ = compute_policy_gradient_loss(
        log_probs, "reinforce_with_baseline", raw_rewards=rewards, advantages=advantages
    )
    assert_close(baseline, tensor([[-0.5, -1.0]]))
    clip, metadata = compute_policy_gradient_loss(
        log_probs, "grpo_clip", advantages=advantages, old_log_probs=old, cliprange=0.2
    )
    assert_close(clip, tensor([[0.5 * math.exp(0.5), 0.5]]))
    assert nothing == {} and set(metadata) == {"clip_ratio/low", "clip_ratio/high"}


@pytest.mark.parametrize(
    "loss_type, given",
    [
        ("no_baseline", {"advantages": 1}),
        ("reinforce_with_baseline", {"raw_rewards": 1}),
        ("grpo_clip", {"raw_rewards": 1}),
        ("grpo_clip", {"advantages": 1, "old_log_probs": 1}),
        ("grpo_clip", {"advantages": 1, "cliprange": 0.2}),
        ("ppo", {"raw_rewards": 1, "advantages": 1, "old_log_probs": 1, "cliprange": 0.2}),
    ],
)
def test_a_missing_argument_or_unknown_loss_type_is_an_assertion(loss_type, given):
    with pytest.raises(AssertionError, match=loss_type):
        compute_policy_gradient_loss(torch.zeros(1, 1), loss_type, **given)


# The KL penalty


def k3(policy, reference):
    return compute_kl(policy, reference)["k3"]


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative_up_to_one_rounding(policy, reference):
    assert k3(tensor(policy), tensor(reference)) >= -torch.finfo(torch.float32).eps


def test_k3_is_zero_where_policy_and_reference_agree():
    assert k3(tensor([-1.5, 0.0]), tensor([-1.5, 0.0])).tolist() == [0.0, 0.0]


def test_k3_by_hand():
    assert_close(k3(tensor([-1.0, -1.0]), tensor([-1.0 + LOG2, -1.0 - LOG2])), tensor([1 - LOG2, LOG2 - 0.5]))


def test_the_expectation_of_k3_under_the_policy_is_the_kl_divergence():
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 5, 40, generator=generator, dtype=torch.float64).log_softmax(-1)
    expectation = (policy.exp() * k3(policy, reference)).sum(-1)
    assert_close(expectation, (policy.exp() * (policy - reference)).sum(-1))


def test_the_gradient_of_k3_pulls_the_policy_towards_the_reference():
    policy = leaf([-1.0, -1.0, -1.0])
    k3(policy, tensor([-1.0 + LOG2, -1.0, -1.0 - LOG2])).sum().backward()
    assert_close(policy.grad, tensor([-1.0, 0.0, 0.5]))


# One micro-batch

MASK = tensor([[1, 1, 0], [0, 0, 1]], dtype=torch.bool)
LOG_PROBS = [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]
ADVANTAGES = tensor([[1.0], [-2.0]])


def test_a_micro_batch_is_the_mean_of_the_responses_means_over_the_accumulation_steps():
    log_probs = leaf(LOG_PROBS)
    loss, _ = grpo_microbatch_train_step(log_probs, MASK, 2, "reinforce_with_baseline", advantages=ADVANTAGES)
    assert_close(loss, tensor((1.5 - 12.0) / 2 / 2))
    assert_close(log_probs.grad, tensor([[-0.125, -0.125, 0.0], [0.0, 0.0, 0.5]]))


@pytest.mark.parametrize(("mode", "counted"), [("seq-mean-token-sum-norm", 2 * 10), ("token-mean", 3)])
def test_a_micro_batch_is_aggregated_as_asked_and_divided_by_the_accumulation_steps(mode, counted):
    log_probs, settings = leaf(LOG_PROBS), {"loss_agg_mode": mode, "max_tokens": 10}
    loss, _ = grpo_microbatch_train_step(
        log_probs, MASK, 2, "reinforce_with_baseline", advantages=ADVANTAGES, **settings
    )
    assert_close(loss, tensor((1.0 + 2.0 - 12.0) / counted / 2))
    assert_close(log_probs.grad, tensor([[-1.0, -1.0, 0.0], [0.0, 0.0, 2.0]]) / counted / 2)


def test_the_gradients_of_micro_batches_add_up():
    log_probs = leaf(LOG_PROBS)
    for _ in range(3):
        grpo_microbatch_train_step(log_probs, MASK, 2, "reinforce_with_baseline", advantages=ADVANTAGES)
    assert_close(log_probs.grad, 3 * tensor([[-0.125, -0.125, 0.0], [0.0, 0.0, 0.5]]))


def test_raw_rewards_are_used_without_a_baseline():
    log_probs = leaf(LOG_PROBS)
    loss, _ = grpo_microbatch_train_step(log_probs, MASK, 1, "no_baseline", raw_rewards=tensor([[2.0], [0.0]]))
    assert_close(loss, tensor(1.5))


def test_what_a_micro_batch_returns_is_detached():
    same = tensor(LOG_PROBS)
    loss, metadata = grpo_microbatch_train_step(
        leaf(LOG_PROBS), MASK, 4, "grpo_clip", None, ADVANTAGES, same, 0.2, same, kl_coef=0.1
    )
    assert not loss.requires_grad and not any(value.requires_grad for value in metadata.values())
    assert set(metadata) == {"kl", "kl/k1", "kl/k2", "clip_ratio/low", "clip_ratio/high"}


def test_the_kl_term_is_k3_times_its_coefficient():
    log_probs = leaf([[-1.0, -1.0]])
    loss, metadata = grpo_microbatch_train_step(
        log_probs,
        tensor([[1, 0]]),
        1,
        "reinforce_with_baseline",
        advantages=tensor([[0.0]]),
        ref_log_probs=tensor([[-1.0 + LOG2, -5.0]]),
        kl_coef=0.5,
    )
    assert_close(loss, tensor(0.5 * (1 - LOG2)))
    assert_close(log_probs.grad, tensor([[-0.5, 0.0]]))
    assert_close(metadata["kl"][0, 0], tensor(1 - LOG2))


# A student's mistakes


ZEROS = torch.zeros(3, 3)


@pytest.mark.parametrize(
    "mistake, says",
    [
        (lambda: tokenize_prompt_and_output(["a", "b"], ["c"], None), "2 prompts, but 1 outputs"),
        (
            lambda: compute_group_normalized_rewards(lambda *_: {"reward": 1.0}, ["a", "b"], ["c"], 1, 1e-4, True),
            "2 responses, but 1 ground truths",
        ),
        (lambda: advantages_of([1.0, 2.0, 3.0], 2), "3 responses cannot be cut into groups of 2"),
        (lambda: normalize_group_rewards(torch.ones(4), 2, 0.0, baseline="loo"), "unknown baseline loo"),
        (lambda: normalize_group_rewards(torch.ones(4), 2, 0.0, scale_rewards=True), "unknown scale_rewards True"),
        (
            lambda: compute_naive_policy_gradient_loss(torch.zeros(3), ZEROS),
            r"of shape \(3,\), not \(\(3, 1\), \(3, 3\)\)",
        ),
        (lambda: compute_grpo_clip_loss(torch.zeros(3), ZEROS, ZEROS, 0.2), r"of shape \(3,\), not"),
        (lambda: compute_policy_gradient_loss(ZEROS, "gspo", None, ZEROS, ZEROS, 0.2), "gspo needs response_mask"),
        (
            lambda: grpo_microbatch_train_step(
                ZEROS, ZEROS, 1, "reinforce_with_baseline", advantages=ZEROS, entropy_coef=0.1
            ),
            "entropy_coef needs token_entropy",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_student_s_mistake_is_an_assertion_with_a_sentence(mistake, says):
    with pytest.raises(AssertionError, match=says):
        mistake()


# Episodes, micro-batches


def episode(prompt_ids, token_ids, **attributes):
    logprobs = [-0.1 * t for t in token_ids]
    return Episode({}, prompt_ids, Completion(token_ids, logprobs, "stop"), "", Reward(1.0, 0.0, 0.0, ""), **attributes)


def episodes_of_lengths(lengths):
    return [episode([1], [2] * (length - 1), advantage=1.0 + i) for i, length in enumerate(lengths)]


def micro_batches_beside(most, episodes, budget):
    """The micro-batches of `episodes` where the process with most has `most` of them."""

    def all_reduce(value, op):
        assert op == torch.distributed.ReduceOp.MAX
        return float(max(value, most))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "all_reduce", all_reduce)
        return micro_batches(episodes, Config(micro_batch_tokens=budget))


lengths = st.lists(st.integers(2, 60), min_size=1, max_size=30)


@settings(max_examples=200)
@given(lengths, st.integers(1, 200), st.integers(1, 40))
def test_micro_batches_respect_the_token_budget_padding_included(lengths, budget, most):
    for batch in micro_batches_beside(most, episodes_of_lengths(lengths), budget):
        assert len(batch) == 1 or len(batch) * max(len(e.prompt_ids) + e.length for e in batch) <= budget


@settings(max_examples=200)
@given(lengths, st.integers(1, 200), st.integers(1, 40))
def test_micro_batches_hold_every_episode_once(lengths, budget, most):
    episodes = episodes_of_lengths(lengths)
    kept = [e for batch in micro_batches_beside(most, episodes, budget) for e in batch if not e.dummy]
    assert sorted(map(id, kept)) == sorted(map(id, episodes))


@pytest.mark.parametrize("most", [1, 3, 8, 9, 20])
def test_every_process_gets_as_many_micro_batches_as_the_one_with_most(most):
    assert len(micro_batches_beside(most, episodes_of_lengths([5] * 8), budget=40)) == most


def test_no_more_micro_batches_than_needed_are_made():
    assert [len(b) for b in micro_batches_beside(1, episodes_of_lengths([10] * 4), budget=20)] == [2, 2]


def test_an_episode_longer_than_the_budget_is_a_micro_batch_of_its_own():
    assert [len(b) for b in micro_batches_beside(1, episodes_of_lengths([50, 3, 4]), budget=8)] == [2, 1]


def test_single_episodes_are_followed_by_dummies():
    batches = micro_batches_beside(3, episodes_of_lengths([7]), budget=100)
    assert [[e.dummy for e in batch] for batch in batches] == [[False], [True], [True]]


def test_no_token_of_a_dummy_counts():
    t = collate([episode([1], [2, 3], dummy=True), episode([1], [4])], "cpu")
    assert t["response_mask"].tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_a_dummy_has_no_gradient(mode):
    t = collate([episode([1], [2, 3], dummy=True)], "cpu")
    log_probs = leaf([[-1.0, -2.0]])
    grpo_microbatch_train_step(
        log_probs, t["response_mask"], 1, "no_baseline", raw_rewards=t["raw_rewards"], loss_agg_mode=mode
    )
    assert log_probs.grad.tolist() == [[0.0, 0.0]]


def test_collate_puts_per_token_values_where_their_tokens_are():
    batch = [
        episode([1, 2, 3], [4, 5], ref_log_probs=tensor([-1.0, -2.0]), old_log_probs=tensor([-3.0, -4.0])),
        episode([1], [7, 8, 9], ref_log_probs=tensor([-5.0, -6.0, -7.0]), old_log_probs=tensor([-8.0, -9.0, -10.0])),
    ]
    t = collate(batch, "cpu")
    assert t["labels"].tolist() == [[2, 3, 4, 5], [7, 8, 9, 0]]
    assert_close(t["sampler_log_probs"], tensor([[0.0, 0.0, -0.4, -0.5], [-0.7, -0.8, -0.9, 0.0]]))
    assert_close(t["ref_log_probs"], tensor([[0.0, 0.0, -1.0, -2.0], [-5.0, -6.0, -7.0, 0.0]]))
    assert_close(t["old_log_probs"], tensor([[0.0, 0.0, -3.0, -4.0], [-8.0, -9.0, -10.0, 0.0]]))


def test_collate_leaves_out_log_probs_that_nobody_computed():
    t = collate([episode([1], [2])], "cpu")
    assert not {"ref_log_probs", "old_log_probs"} & set(t)


def test_collate_gives_advantages_and_rewards_one_column():
    first, second = episode([1], [2], advantage=0.5), episode([1], [2, 3], advantage=-1.5)
    second.reward = Reward(2.0, 0.0, 0.0, "")
    t = collate([first, second], "cpu")
    assert t["advantages"].tolist() == [[0.5], [-1.5]]
    assert t["raw_rewards"].tolist() == [[1.0], [2.0]]


# Prompts, seeds, intervals


def test_no_prompt_is_drawn_twice_in_a_step():
    assert len(set(draw_prompts(range(100), Config(prompts_per_step=32), "step 1"))) == 32


def test_the_prompts_depend_on_the_seed_and_the_step_only():
    def sample(step, seed):
        return draw_prompts(range(1000), Config(prompts_per_step=8, seed=seed), step)

    assert sample(4, 0) == sample(4, 0)
    assert sample(4, 0) != sample(5, 0) and sample(4, 0) != sample(4, 1)


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive_seed(0, 1, "questions") == 1161177663
    assert derive_seed(7, 120, 3, "rollout") == 660735702


def test_derived_seeds_are_31_bits_and_differ_in_every_part():
    seeds = {
        derive_seed(s, step, rank, what) for s in range(5) for step in range(20) for rank in range(3) for what in "ab"
    }
    assert len(seeds) == 600 and all(0 <= seed < 2**31 for seed in seeds)


def right_and_wrong(right, n):
    return [1.0] * right + [0.0] * (n - right)


def test_the_interval_of_ten_right_in_twenty():
    assert confidence_interval(right_and_wrong(10, 20)) == pytest.approx((0.2993, 0.7007), abs=1e-4)


def test_the_interval_stays_within_zero_and_one():
    assert confidence_interval(right_and_wrong(0, 10)) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert confidence_interval(right_and_wrong(10, 10)) == pytest.approx((0.7225, 1.0), abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_the_ends_of_the_interval_are_196_standard_errors_from_the_proportion(case):
    successes, n = case
    for end in confidence_interval(right_and_wrong(successes, n)):
        assert abs(end - successes / n) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / n), abs=1e-6)


def test_the_interval_of_shares_is_196_standard_errors_of_their_mean():
    shares = [0.0, 0.25, 0.5, 0.75, 1.0, 0.5]
    half = 1.96 * statistics.stdev(shares) / math.sqrt(6)
    assert confidence_interval(shares) == pytest.approx((0.5 - half, 0.5 + half))


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.booleans(), min_size=n, max_size=n)), st.data())
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_with_a_right_one(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    subsets = list(itertools.combinations(samples, k))
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_the_majority_decides_even_against_a_right_minority():
    assert majority_vote(["7", "7", "8"], [0.0, 0.0, 1.0]) == 0.0
    assert majority_vote(["7", "8", "8"], [0.0, 1.0, 1.0]) == 1.0


def test_a_tie_of_votes_counts_in_proportion_and_no_vote_is_wrong():
    assert majority_vote(["7", "8", None], [0.0, 1.0, 0.0]) == 0.5
    assert majority_vote([None, None], [0.0, 0.0]) == 0.0
