"""Small functions of the lesson: the draw of a token, batches, prompts, seeds; statistics."""

import itertools
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from helpers import episode
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import nano_r1 as r1
from plumbing.evaluation import confidence_interval, majority_vote, pass_at_k
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import Completion, draw_uniforms
from plumbing.tasks import Reward

# The draw of a token


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_token_is_drawn_with_its_probability_and_has_its_log_prob(temperature):
    logits = torch.tensor([[1.0, -2.0, 0.5, -1e9, 3.0, 0.0]])
    exact = torch.distributions.Categorical(logits=logits[0] / temperature)
    uniform = draw_uniforms([0, 1], 100, 100).view(-1, 1)
    assert len(uniform.unique()) == 20_000
    token, log_prob = r1.sample_token(logits.expand(20_000, -1), temperature, uniform)
    assert_close(log_prob, exact.log_prob(token))
    shares = token[:, 0].bincount(minlength=6) / 20_000
    deviation = (exact.probs * (1 - exact.probs) / 20_000).sqrt()
    assert ((shares - exact.probs).abs() <= 4 * deviation).all()


# Batches


def test_collate_puts_per_token_values_where_their_tokens_are():
    """What one episode has and another has not is 0 there; no token of a masked one counts."""
    first = episode([1, 2, 3], [4, 5], 0.5, ref_log_probs=torch.tensor([-1.0, -2.0]))
    second = episode([1], [7, 8, 9], -1.5, sampler_log_probs=[-3, -4, -5])
    second.masked = True
    found = r1.collate([first, second], "cpu")
    assert_close(found.pop("sampler_log_probs")[:, 2:], torch.tensor([[-3.9, -3.9], [-5, 0]]))
    assert {name: values.tolist() for name, values in found.items()} == {
        "input_ids": [[1, 2, 3, 4], [1, 7, 8, 9]],
        "labels": [[2, 3, 4, 5], [7, 8, 9, 0]],
        "response_mask": [[False, False, True, True], [False] * 4],
        "advantages": [[0, 0, 0.5, 0.5], [-1.5, -1.5, -1.5, 0]],
        "ref_log_probs": [[0, 0, -1, -2], [0] * 4],
    }


# Prompts, rewards, seeds


def rollout(seed=0, step=1, draw=0):
    """A completion of a prompt is twice the prompt, its reward the number of its problem."""
    answers = lambda prompts, n, *_: [[Completion(p * 2, [0.0] * 2, "stop")] * n for p in prompts]
    rewards = lambda texts, problems: [Reward(p, 0, 0, text) for text, p in zip(texts, problems)]
    task = SimpleNamespace(prompt_ids=lambda problem: [problem], text=str, rewards=rewards)
    c = r1.Config(prompts_per_step=32, group_size=2, seed=seed)
    return r1.rollout(SimpleNamespace(generate=answers), range(100), task, c, step, draw)


def test_a_rollout_rewards_groups_of_completions_of_prompts_that_seed_step_and_draw_fix():
    init_distributed()
    for e in rollout():
        assert e.completion.token_ids == [e.problem] * 2 == e.prompt_ids * 2
        assert (e.reward.total, e.reward.why) == (e.problem, e.text)
    places = [*itertools.product((0, 1), repeat=3)]
    drawn = [[e.problem for e in rollout(*place)] for place in places + places]
    assert drawn[0][::2] == drawn[0][1::2] and len(set(drawn[0])) == 32  # no prompt twice
    assert drawn[:8] == drawn[8:] and len(set(map(tuple, drawn))) == 8


@pytest.mark.parametrize(
    "kind, rates", [("linear", [0.5, 0.75, 0.5, 0.25]), ("constant", [0.5, 1.0, 1.0, 1.0])]
)
def test_the_learning_rate_warms_up_and_decays_linearly(kind, rates):
    c = r1.Config(learning_rate=1.0, steps=4, warmup_steps=2, lr_scheduler_type=kind)
    assert [r1.learning_rate(step, c) for step in range(1, 5)] == rates


def test_derived_seeds_are_the_same_on_every_machine_and_differ_in_every_part():
    assert derive_seed(0, 1, "questions") == 1161177663
    places = itertools.product(range(5), range(20), range(3), "ab")
    seeds = {derive_seed(*place) for place in places}
    assert len(seeds) == 600 and all(0 <= seed < 2**31 for seed in seeds)


# Statistics

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0, 0.5]
HALF = 1.96 * statistics.stdev(SHARES) / math.sqrt(6)


@pytest.mark.parametrize(
    "values, interval",
    [
        ([0, 1] * 10, (0.2993, 0.7007)),
        ([0] * 10, (0.0, 0.2775)),
        ([1] * 10, (0.7225, 1.0)),
        ([0] * 3 + [1] * 27, (0.7438, 0.9654)),
        (SHARES, (0.5 - HALF, 0.5 + HALF)),  # of several samples: the normal approximation
    ],
)
def test_the_95_percent_interval_of_a_proportion_is_wilson_s(values, interval):
    assert confidence_interval(values) == pytest.approx(interval, abs=1e-4)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 7))
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_with_a_right_one(samples, k):
    k = 1 + k % len(samples)
    subsets = [any(subset) for subset in itertools.combinations(samples, k)]
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(statistics.fmean(subsets))


@pytest.mark.parametrize(
    "votes, answers, value",
    [
        (["7", "7", "8"], [0.0, 0.0, 1.0], 0.0),  # against a right minority
        (["7", "8", "8"], [0.0, 1.0, 1.0], 1.0),
        (["7", "8", None], [0.0, 1.0, 0.0], 0.5),  # a tie counts in proportion
        ([None, None], [0.0, 0.0], 0.0),
    ],
)
def test_the_majority_decides(votes, answers, value):
    assert majority_vote(votes, answers) == value
