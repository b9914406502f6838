"""docs/course/primitives.py: the assignment's functions under its names, with its conventions."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

sys.path.append(str(Path(__file__).parents[1] / "docs" / "course"))
import primitives as p

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [0, 0, 1]])
LENGTHS = torch.arange(7) < torch.tensor([[4], [7]])


@pytest.mark.parametrize(
    "found, expected",
    [
        (p.masked_mean(X, MASK), 3.0),
        (p.masked_mean(X, MASK.bool(), dim=-1), [1.5, 6.0]),
        # The assignment's example: generations of 4 and 7 tokens.
        (p.masked_mean(2 * LENGTHS, LENGTHS, dim=1), [2.0, 2.0]),
        (p.masked_normalize(2 * LENGTHS, LENGTHS, 7, dim=1), [8 / 7, 2.0]),
        (p.masked_mean(X, X < 2, dim=0), [1.0, math.nan, math.nan]),
        (p.masked_normalize(X, MASK, 4), 2.25),
        (p.masked_normalize(X, X < 0, 7), 0.0),
        (p.compute_entropy(torch.tensor([4.2] * 50)), math.log(50)),
        (p.compute_entropy(torch.tensor([1e4, 1e4, -1e4])), math.log(2)),  # finite
        (p.compute_entropy(torch.tensor([-100.0] * 3).bfloat16()), math.log(3)),  # in float32
    ],
)
def test_masked_sums_and_entropies(found, expected):
    assert_close(found, torch.tensor(expected), equal_nan=True)


def test_log_probs_and_if_asked_for_entropies_of_every_position():
    logits = 5 * torch.randn(3, 4, 97, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12).view(3, 4)
    exact = torch.distributions.Categorical(logits=logits)
    found = p.get_response_log_probs(
        lambda ids: SimpleNamespace(logits=logits), labels, labels, True
    )
    assert_close(found, {"log_probs": exact.log_prob(labels), "token_entropy": exact.entropy()})


@pytest.mark.parametrize("pad, end, fill", [(0, 9, 0), (None, 0, 0), (98, 98, 98)])
def test_prompt_and_output_are_joined_shifted_padded_and_masked(pad, end, fill):
    """The last token of an output counts, also where it is the one that pads."""
    tokenizer = SimpleNamespace(
        encode=lambda text, add_special_tokens: list(map(ord, text)),
        pad_token_id=pad,
        eos_token_id=end,
    )
    found = p.tokenize_prompt_and_output(["a", "aaa"], ["b", "cb"], tokenizer)
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "input_ids": [[97, 98, fill, fill], [97, 97, 97, 99]],
        "labels": [[98, fill, fill, fill], [97, 97, 99, 98]],
        "response_mask": [[True, False, False, False], [False, False, True, True]],
    }


@pytest.mark.parametrize(
    "rewards, size, eps, by_std, expected",
    [
        ([2.0, 1.0, 0.0, 1.0], 4, 0.0, True, [math.sqrt(1.5), 0.0, -math.sqrt(1.5), 0.0]),
        ([2.0, 1.0, 0.0, 1.0, 3.0, 0.0], 2, 9.0, False, [0.5, -0.5, -0.5, 0.5, 1.5, -1.5]),
        ([0.0, 2.0], 2, 0.5, True, [-1 / (math.sqrt(2) + 0.5), 1 / (math.sqrt(2) + 0.5)]),
        ([0.1] * 8 + [0.3] * 8, 8, 1e-4, True, [0.0] * 16),
        ([2.0, 0.5], 1, 1e-4, True, [0.0, 0.0]),
    ],
)
def test_rewards_are_normalized_within_their_groups(rewards, size, eps, by_std, expected):
    pay = lambda response, truth: {"reward": rewards[response] if response == truth else None}
    places = [*range(len(rewards))]
    found, raw, _ = p.compute_group_normalized_rewards(pay, places, places, size, eps, by_std)
    assert_close((found, raw), (torch.tensor(expected), torch.tensor(rewards)))


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient",
    [
        (1.0, 2.0, -2.0, -2.0),
        (0.9, -1.0, 0.9, 0.9),
        (1.5, 1.0, -1.2, 0.0),  # above the clip
        (1.5, -1.0, 1.5, 1.5),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),  # below it
    ],
)
def test_grpo_clip_by_cases(ratio, advantage, loss, gradient):
    log_probs = torch.tensor([[math.log(ratio) - 2]], requires_grad=True)
    found, stats = p.compute_grpo_clip_loss(
        torch.tensor([[advantage]]), log_probs, torch.tensor([[-2.0]]), 0.2
    )
    found.sum().backward()
    assert_close((found, log_probs.grad), (torch.tensor([[loss]]), torch.tensor([[gradient]])))
    assert stats["clipped"].item() == (gradient == 0)


def test_the_fine_tuning_step_sums_rows_over_the_constant():
    log_probs = (-X).requires_grad_()
    loss, _ = p.sft_microbatch_train_step(log_probs, MASK, 2, normalize_constant=3.0)
    assert_close((loss, log_probs.grad), (torch.tensor(9.0 / 3 / 2 / 2), -MASK / 12))


@pytest.mark.parametrize(
    "function, args",
    [
        (p.tokenize_prompt_and_output, (["a", "b"], ["c"], None)),
        (p.compute_group_normalized_rewards, (None, ["a", "b"], ["c"], 1, 1e-4, True)),
        (p.compute_group_normalized_rewards, (None, [1, 2, 3], [1, 2, 3], 2, 0.0, True)),
        (p.compute_naive_policy_gradient_loss, (torch.zeros(3), X)),
        (p.compute_grpo_clip_loss, (torch.zeros(3), X, X, 0.2)),
        (p.compute_policy_gradient_loss, (X, "no_baseline", None, X)),
        (p.compute_policy_gradient_loss, (X, "reinforce_with_baseline", X)),
        (p.compute_policy_gradient_loss, (X, "grpo_clip", X, None, X, 0.2)),
        (p.compute_policy_gradient_loss, (X, "grpo_clip", None, X, None, 0.2)),
        (p.compute_policy_gradient_loss, (X, "ppo", X, X, X, 0.2)),
    ],
)
def test_a_student_s_mistake_is_an_assertion_with_a_sentence(function, args):
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        function(*args)
