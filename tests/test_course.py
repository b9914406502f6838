"""course.py: the assignment's functions under its names, with its conventions."""

import math

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import course

tensor = torch.tensor
X = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = tensor([[1, 1, 0], [0, 0, 1]])
ONES, NOTHING = torch.ones(2, 3), tensor([[1, 0, 0], [0, 0, 0]])
NAN = math.nan


@pytest.mark.parametrize(
    "found, expected",
    [
        (course.masked_mean(X, MASK), 3.0),
        (course.masked_mean(X, MASK, dim=1), [1.5, 6.0]),
        (course.masked_mean(X, MASK.bool(), dim=-1), [1.5, 6.0]),
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


def test_a_mean_weighs_generations_alike_and_a_constant_weighs_tokens_alike():
    """The assignment's example: 4 and 7 tokens."""
    mask = tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
    ratio = torch.ones(2, 7, requires_grad=True)
    mean, normalized = course.masked_mean, course.masked_normalize
    results = (mean(2 * ratio, mask, dim=1), normalized(2 * ratio, mask, 7, dim=1))
    assert_close(results, (tensor([2.0, 2.0]), tensor([8 / 7, 2.0])))
    gradients = [torch.autograd.grad(result.mean(), ratio)[0] for result in results]
    assert_close(gradients, [mask * tensor([[1 / 4], [1 / 7]]), mask / 7])


@pytest.mark.parametrize(
    "logits, entropy",
    [([4.2] * 50, math.log(50)), ([100.0] + [0.0] * 49, 0.0), ([1e4, -1e4, 0.0], 0.0)]
    + [([1e4, 1e4, -1e4], math.log(2)), ([-1e4] * 3, math.log(3))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_entropy_is_finite_and_in_float32(logits, entropy, dtype):
    found = course.compute_entropy(tensor([[logits]], dtype=dtype))
    assert_close(found, tensor([[entropy]]), atol=2e-3, rtol=0)


def test_entropy_and_log_probs_agree_with_float64():
    logits = 5 * torch.randn(3, 4, 97, generator=torch.Generator().manual_seed(0))
    p, labels = logits.double().softmax(-1), torch.arange(12).view(3, 4)
    model = lambda ids: transformers.modeling_outputs.CausalLMOutput(logits=logits)
    found = course.get_response_log_probs(model, labels, labels, return_token_entropy=True)
    expected = {"log_probs": p.gather(-1, labels[..., None])[..., 0].log()}
    expected["token_entropy"] = -(p * p.log()).sum(-1)
    assert_close({k: v.double() for k, v in found.items()}, expected, atol=1e-5, rtol=1e-5)
    assert_close(course.compute_entropy(logits), found["token_entropy"])
    assert set(course.get_response_log_probs(model, labels, labels)) == {"log_probs"}


# Tokens


def characters(pad):
    """A tokenizer with one token per character of `abc+=`, and <pad> 0 and <eos> 1."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *"abc+="])}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer.pre_tokenizer = split
    special = {"pad_token": pad, "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


texts = st.text("abc+=", min_size=1, max_size=8)


@pytest.mark.parametrize("pad", ["<pad>", "<eos>", None])
def test_prompt_and_output_are_joined_shifted_padded_and_masked(pad):
    """The end-of-sequence token is in the mask; where it pads as well, that is not."""
    tokenizer = characters(pad)

    @given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
    def check(rows):
        prompts, outputs = zip(*((p, f"{o}<eos>") for p, o in rows))
        found = course.tokenize_prompt_and_output(prompts, outputs, tokenizer)
        assert [x.dtype for x in found.values()] == [torch.int64, torch.int64, torch.bool]
        longest = max(len(p + o) for p, o in rows)
        for (prompt, output), ids, labels, mask in zip(rows, *found.values()):
            whole = [3 + "abc+=".index(c) for c in prompt + output] + [1]
            padded = whole + [0 if pad == "<pad>" else 1] * (longest + 1 - len(whole))
            assert ids.tolist() == padded[:-1] and labels.tolist() == padded[1:]
            places = range(len(prompt), len(whole))
            assert mask.tolist() == [place in places for place in range(1, longest + 1)]

    check()


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
    def reward_fn(response, truth):
        assert response == f"response {truth}"
        return {"reward": rewards[truth], "format_reward": 0.0, "answer_reward": 0.0}

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
    assert [end for end in ("low", "high") if stats[f"clip_ratio/{end}"].item()] == (
        [frozen] if frozen else []
    )


LOG_PROBS = [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]
REWARD, ADVANTAGE = tensor([[2.0], [0.0]]), tensor([[1.0], [-2.0]])
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
