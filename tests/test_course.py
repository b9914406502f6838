"""course.py: the assignment's functions under its names, with its conventions."""

import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import course

tensor = torch.tensor
X = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = tensor([[1, 1, 0], [0, 0, 1]])
ONES = torch.ones(2, 3)
NOTHING = tensor([[1, 0, 0], [0, 0, 0]])
LENGTHS = torch.arange(7) < tensor([[4], [7]])
NAN = math.nan


@pytest.mark.parametrize(
    "found, expected",
    [
        (course.masked_mean(X, MASK), 3.0),
        (course.masked_mean(X, MASK, dim=1), [1.5, 6.0]),
        (course.masked_mean(X, MASK.bool(), dim=-1), [1.5, 6.0]),
        # The assignment's example: generations of 4 and 7 tokens.
        (course.masked_mean(2 * LENGTHS, LENGTHS, dim=1), [2.0, 2.0]),
        (course.masked_normalize(2 * LENGTHS, LENGTHS, 7, dim=1), [8 / 7, 2.0]),
        (course.masked_mean(ONES, NOTHING, dim=1), [1.0, NAN]),
        (course.masked_mean(ONES, NOTHING, dim=0), [1.0, NAN, NAN]),
        (course.masked_mean(ONES, torch.zeros(2, 3)), NAN),
        (course.masked_normalize(X, MASK, 4), 2.25),
        (course.masked_normalize(X, MASK, 2.0, dim=0), [0.5, 1.0, 3.0]),
        (course.masked_normalize(X, MASK.bool(), 2.0, dim=1), [1.5, 3.0]),
        (course.masked_normalize(ONES, torch.zeros(2, 3), 7), 0.0),
    ],
)
def test_masked_mean_and_masked_normalize(found, expected):
    assert_close(found, tensor(expected), equal_nan=True)


@pytest.mark.parametrize(
    "logits, entropy",
    [([4.2] * 50, math.log(50)), ([100.0] + [0.0] * 49, 0.0), ([1e4, -1e4, 0.0], 0.0)]
    + [([1e4, 1e4, -1e4], math.log(2)), ([-1e4] * 3, math.log(3))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_entropy_is_finite_and_in_float32(logits, entropy, dtype):
    found = course.compute_entropy(tensor([[logits]], dtype=dtype))
    assert_close(found, tensor([[entropy]]), atol=2e-3, rtol=0)


def test_log_probs_and_if_asked_for_entropies_of_every_position():
    logits = 5 * torch.randn(3, 4, 97, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12).view(3, 4)
    exact = torch.distributions.Categorical(logits=logits)
    model = lambda ids: transformers.modeling_outputs.CausalLMOutput(logits=logits)
    found = course.get_response_log_probs(model, labels, labels, return_token_entropy=True)
    assert_close(found, {"log_probs": exact.log_prob(labels), "token_entropy": exact.entropy()})
    assert set(course.get_response_log_probs(model, labels, labels)) == {"log_probs"}


# Tokens


def characters(pad_id):
    """A tokenizer with one token per character of `abc+=`, padding 0, end 1 (~)."""
    encode = lambda text, add_special_tokens: [1 + "~-abc+=".index(c) for c in text]
    return SimpleNamespace(encode=encode, pad_token_id=pad_id, eos_token_id=1)


@pytest.mark.parametrize("pad_id", [0, 1, None])
@given(rows=st.lists(st.tuples(*[st.text("abc+=", min_size=1, max_size=8)] * 2), min_size=1))
def test_prompt_and_output_are_joined_shifted_padded_and_masked(pad_id, rows):
    """The end-of-sequence token is in the mask; where it pads as well, that is not."""
    prompts, outputs = zip(*((p, f"{o}~") for p, o in rows))
    found = course.tokenize_prompt_and_output(prompts, outputs, characters(pad_id))
    assert [x.dtype for x in found.values()] == [torch.int64, torch.int64, torch.bool]
    longest = max(len(p + o) for p, o in rows)
    for (prompt, output), *tensors in zip(rows, *found.values()):
        whole = [3 + "abc+=".index(c) for c in prompt + output] + [1]
        padded = whole + [0 if pad_id == 0 else 1] * (longest + 1 - len(whole))
        mask = [len(prompt) <= place < len(whole) for place in range(1, longest + 1)]
        assert [x.tolist() for x in tensors] == [padded[:-1], padded[1:], mask]


# Advantages

REWARDS = [2.0, 1.0, 0.0, 1.0, 2.0, 2.0, 2.0, 0.0]  # of two questions
HIGH = 1 / math.sqrt(2 / 3)


@pytest.mark.parametrize(
    "rewards, size, eps, by_std, expected",
    [
        (REWARDS, 4, 0.0, True, [HIGH, 0.0, -HIGH, 0.0, 0.5, 0.5, 0.5, -1.5]),
        (REWARDS, 4, 0.5, False, [1.0, 0.0, -1.0, 0.0, 0.5, 0.5, 0.5, -1.5]),
        ([0.0, 2.0], 2, 0.5, True, [-1 / (math.sqrt(2) + 0.5), 1 / (math.sqrt(2) + 0.5)]),
        ([0.1] * 8 + [0.3] * 8, 8, 1e-4, True, [0.0] * 16),
        ([0.1] * 7, 7, 1e-4, False, [0.0] * 7),
        ([2.0, 0.5], 1, 1e-4, True, [0.0, 0.0]),
    ],
)
def test_rewards_are_normalized_within_their_groups(rewards, size, eps, by_std, expected):
    reward_fn = lambda response, truth: {"reward": {f"response {truth}": rewards[truth]}[response]}
    truths = list(range(len(rewards)))
    responses = [f"response {i}" for i in truths]
    found, raw, stats = course.compute_group_normalized_rewards(
        reward_fn, responses, truths, size, eps, by_std
    )
    assert_close(found, tensor(expected))
    assert raw.tolist() == pytest.approx(rewards)
    assert stats["reward_mean"] == pytest.approx(sum(rewards) / len(rewards))


# Losses


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient, frozen",
    [
        (1.0, 2.0, -2.0, -2.0, None),
        (1.1, 1.0, -1.1, -1.1, None),
        (0.9, -1.0, 0.9, 0.9, None),
        (1.5, 1.0, -1.2, 0.0, "high"),
        (1.5, -1.0, 1.5, 1.5, None),
        (0.5, 1.0, -0.5, -0.5, None),
        (0.5, -1.0, 0.8, 0.0, "low"),
        (1.5, 0.0, 0.0, 0.0, None),
    ],
)
def test_grpo_clip_by_cases(ratio, advantage, loss, gradient, frozen):
    old = tensor([[-2.0]])
    log_probs = (old + math.log(ratio)).requires_grad_()
    args = (tensor([[advantage]]), log_probs, old)
    result, stats = course.compute_grpo_clip_loss(*args, cliprange=0.2)
    result.sum().backward()
    assert_close((result, log_probs.grad), (tensor([[loss]]), tensor([[gradient]])))
    assert {end: x.item() for end, x in stats.items()} == {
        "clip_ratio/low": frozen == "low",
        "clip_ratio/high": frozen == "high",
    }


LOG_PROBS = [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]
REWARD = tensor([[2.0], [0.0]])
ADVANTAGE = tensor([[1.0], [-2.0]])
BOTH = {"raw_rewards": REWARD, "advantages": ADVANTAGE}
CLIP = {"advantages": ADVANTAGE, "old_log_probs": tensor(LOG_PROBS), "cliprange": 0.2}


@pytest.mark.parametrize(
    "loss_type, given, token_loss, loss, gradient",
    [
        ("no_baseline", BOTH, -REWARD * tensor(LOG_PROBS), 1.5, [[-0.5, -0.5, 0], [0, 0, 0]]),
        ("reinforce_with_baseline", BOTH, -ADVANTAGE * tensor(LOG_PROBS), -5.25,
         [[-0.25, -0.25, 0], [0, 0, 1]]),
        ("grpo_clip", CLIP, -ADVANTAGE.expand(2, 3), 0.5, [[-0.25, -0.25, 0], [0, 0, 1]]),
    ],
)  # fmt: skip
def test_each_loss_type_and_its_micro_batch_step(loss_type, given, token_loss, loss, gradient):
    """The mean of the rows' means, by the accumulation steps; gradients of steps add up."""
    log_probs = tensor(LOG_PROBS, requires_grad=True)
    found, _ = course.compute_policy_gradient_loss(log_probs, loss_type, **given)
    assert_close(found, token_loss)
    for _ in range(3):
        step = course.grpo_microbatch_train_step(log_probs, MASK.bool(), 2, loss_type, **given)
    assert_close(step[0], tensor(loss / 2))
    assert_close(log_probs.grad, 3 * tensor(gradient) / 2)
    ends = {"clip_ratio/low", "clip_ratio/high"} if loss_type == "grpo_clip" else set()
    assert set(step[1]) == ends and not step[0].requires_grad


def test_the_fine_tuning_step_sums_rows_over_the_constant():
    log_probs = tensor(LOG_PROBS, requires_grad=True)
    loss, _ = course.sft_microbatch_train_step(log_probs, MASK, 2, normalize_constant=3.0)
    assert_close(loss, tensor(9.0 / 3 / 2 / 2))
    assert_close(log_probs.grad, -MASK / 12)


ZEROS = torch.zeros(3, 3)


@pytest.mark.parametrize(
    "function, args",
    [
        (course.tokenize_prompt_and_output, (["a", "b"], ["c"], None)),
        (course.compute_group_normalized_rewards, (None, ["a", "b"], ["c"], 1, 1e-4, True)),
        (course.compute_group_normalized_rewards, (None, [1, 2, 3], [1, 2, 3], 2, 0.0, True)),
        (course.compute_naive_policy_gradient_loss, (torch.zeros(3), ZEROS)),
        (course.compute_grpo_clip_loss, (torch.zeros(3), ZEROS, ZEROS, 0.2)),
        (course.compute_policy_gradient_loss, (ZEROS, "no_baseline", None, ZEROS)),
        (course.compute_policy_gradient_loss, (ZEROS, "reinforce_with_baseline", ZEROS)),
        (course.compute_policy_gradient_loss, (ZEROS, "grpo_clip", ZEROS, None, ZEROS, 0.2)),
        (course.compute_policy_gradient_loss, (ZEROS, "grpo_clip", None, ZEROS, ZEROS)),
        (course.compute_policy_gradient_loss, (ZEROS, "grpo_clip", None, ZEROS, None, 0.2)),
        (course.compute_policy_gradient_loss, (ZEROS, "ppo", ZEROS, ZEROS, ZEROS, 0.2)),
    ],
)
def test_a_student_s_mistake_is_an_assertion_with_a_sentence(function, args):
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        function(*args)
