"""GRPO's relatives, but for their losses: rewards, advantages, which groups, which settings."""

import dataclasses
import functools
import itertools
import statistics
from types import SimpleNamespace

import pytest
import torch
from helpers import SMALL, assert_same, config, episode, main, make_episodes, records, updated
from hypothesis import given
from hypothesis import strategies as st

import nano_r1 as r1
import variants
from plumbing.processes import init_distributed
from plumbing.sampler import Completion
from plumbing.settings import UserError
from plumbing.tasks import Reward


@pytest.fixture(scope="module", autouse=True)
def processes():
    init_distributed()


BASELINES = {
    "group_mean": lambda group, i: statistics.fmean(group),
    "leave_one_out": lambda group, i: statistics.fmean(group[:i] + group[i + 1 :]),
    "none": lambda group, i: 0.0,
}
SCALES = {
    "group": lambda group, all_rewards: statistics.stdev(group),
    "group_biased": lambda group, all_rewards: statistics.pstdev(group),
    "batch": lambda group, all_rewards: statistics.stdev(all_rewards),
    "mean": lambda group, all_rewards: statistics.fmean(group),
    "none": lambda group, all_rewards: 1.0,
}
REFUSED = [("none", "group"), ("none", "group_biased"), ("none", "batch")]
PAIRS = [pair for pair in itertools.product(BASELINES, SCALES) if pair not in REFUSED]
rewards_of_3 = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.0]), min_size=3, max_size=3)


@pytest.mark.parametrize("baseline, scale", PAIRS)
@given(groups=st.lists(rewards_of_3, min_size=1, max_size=4))
def test_advantages_are_those_of_the_formula_and_0_for_equal_rewards(baseline, scale, groups):
    c = config(
        baseline=baseline,
        scale_rewards=scale,
        advantage_eps=0.01,
        binary_reward=scale == "mean",  # it wants verdicts
    )
    found = variants.advantages(torch.tensor(groups), c)
    for group, row in zip(groups, found.tolist()):
        by = SCALES[scale](group, sum(groups, [])) + (0.01 if scale != "none" else 0.0)
        expected = [(r - BASELINES[baseline](group, i)) / by for i, r in enumerate(group)]
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert row == [0.0] * 3 or baseline == "none" or len(set(group)) > 1
    same = torch.equal(found, r1.group_advantages(torch.tensor(groups), c))
    assert same or (baseline, scale) != ("group_mean", "group")


def test_where_every_completion_was_cut_off_the_step_is_recorded_and_changes_nothing(tmp_path):
    few = {**SMALL, "mask_truncated_completions": True, "minibatches": 2, "max_tokens": 2}
    assert records(main(variants, out=str(tmp_path), **few, steps=1)[0])[1]["grad_norm"] == 0


def test_a_loss_of_one_s_own_has_the_lesson_s_arguments_with_several_steps_too():
    c = config(loss_type="grpo_clip", minibatches=2, group_size=2, prompts_per_step=6)
    own = functools.partial(variants.update, loss_function=r1.grpo_loss)
    same = dataclasses.replace(c, loss_agg_mode="seq-mean-token-mean")
    theirs, _ = updated(same, make_episodes(), update=variants.update)
    assert_same(updated(c, make_episodes(), update=own)[0], theirs)


# Rewards, and which groups are trained on


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"loss_type": "no_baseline"}, [[2.5, 1.0]]),
        # RFT: minus the log-probs of right completions alone, as in fine-tuning.
        ({"binary_reward": True, "baseline": "none", "scale_rewards": "none"}, [[1.0, 0.0]]),
    ],
)
def test_without_a_baseline_the_advantage_is_the_reward_or_the_verdict(settings, expected):
    episodes = [episode([1], [2], answer, answer) for answer in (1.0, 0.0)]
    for e in episodes:
        e.reward = Reward(1.0 + 1.5 * e.advantage, 1.0, e.advantage, "")
    if "binary_reward" in settings:
        variants.take_verdicts(episodes)
    rewards = torch.tensor([[e.reward.total for e in episodes]])
    assert variants.advantages(rewards, config(**settings)).tolist() == expected
    assert variants.Config(**settings, group_size=1)  # one is enough


def of_reward(value):
    return Reward(float(value), 0.0, 0.0, "")


def rewarded(rewards):
    return [episode([1], [2, 3], reward=float(r)) for r in rewards]


@pytest.mark.parametrize("length, reward", [(6, 2.0), (7, 1.75), (10, 1.0)])
def test_over_the_last_tokens_the_reward_falls_by_up_to_1(length, reward):
    (e,) = episodes = [episode([1], [2] * length, reward=2.0)]
    variants.penalize_overlong(episodes, config(max_tokens=10, overlong_buffer=4))
    assert e.reward.total == reward


@pytest.mark.parametrize(
    "m, chosen, left",
    [
        (1, [[1]], [[3, 0, 2]]),
        (2, [[1, 3]], [[0, 2]]),
        (3, [[1, 3, 0]], [[2]]),
        (4, [[0, 1, 2, 3]], [[]]),
        (2, [[1], [3]], [[0], [2]]),
    ],
)
def test_dynamic_sampling_chooses_the_groups_that_have_a_signal_and_masks_the_others(
    m, chosen, left, monkeypatch
):
    """Groups without, with, without, with a signal, in order of sampling; one or two processes."""
    rewards = [(1, 1), (0, 2), (0, 0), (1, 0)]
    world = len(chosen)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
    for rank in range(world):
        groups = [rewarded(pair) for pair in rewards]
        everywhere = [groups[r::world] for r in range(world)]
        monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
        monkeypatch.setattr(variants, "all_gather_object", lambda mine: everywhere)
        dealt = variants.deal_out(everywhere[rank], config(prompts_per_step=m))
        assert [groups.index(group) for group in dealt] == chosen[rank] + left[rank]
        masked = [all(e.masked for e in group) for group in dealt]
        assert masked == [False] * len(chosen[rank]) + [True] * len(left[rank])


def test_sampling_goes_on_until_enough_groups_have_a_signal(monkeypatch):
    drawn = {0: [1, 1, 0, 2], 1: [0, 0, 1, 0], 2: [0, 1, 0, 1]}
    monkeypatch.setattr(r1, "rollout", lambda *args: rewarded(drawn[args[-1]]))
    for most, count in ((1, 4), (2, 8), (3, 8)):
        c = config(prompts_per_step=2, max_num_gen_batches=most)
        assert len(variants.rollout(None, None, None, c, 1)) == count


def test_vineppo_s_advantages_are_the_differences_of_values():
    """Continuations of the very tokens before a cut, within what is left of the limit.

    Here the continuation of n tokens is one token, n, and the reward is the sum of all.
    """
    asked = []

    def generate(starts, n, temperature, limits, seeds):
        asked.extend(zip(starts, limits))
        assert len(set(seeds)) == len(starts)
        return [[Completion([len(ids) - 1], [], "stop")] * n for ids in starts]

    task = SimpleNamespace(text=sum, rewards=lambda texts, problems: map(of_reward, texts))
    episodes = [episode([7], [0] * 6, reward=5.0), episode([7], [0] * 7, reward=1.0)]
    c = config(credit="vineppo", vine_segments=3, vine_samples=2, max_tokens=60)
    variants.add_vine_advantages(SimpleNamespace(generate=generate), episodes, task, c, step=1)
    assert asked == [([7, 0, 0], 58), ([7] + [0] * 4, 56)] * 2
    # V(beginning) is the other's reward; V(cut) 2, then 4; V(end) its own reward.
    found = [e.per_token["vine_advantages"] for e in episodes]
    assert found == [[1, 1, 2, 2, 1, 1], [-3, -3, 2, 2, -3, -3, -3]]
    assert [e.measured["vine_tokens"] for e in episodes] == [4, 4]


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"group_size": 1},
        {"loss_type": "no_baseline", "baseline": "leave_one_out"},
        {"loss_type": "no_baseline", "scale_rewards": "none"},
        {"credit": "vineppo", "baseline": "leave_one_out"},
        {"credit": "vineppo", "loss_type": "no_baseline"},
        {"baseline": "none", "scale_rewards": "group"},
        {"max_num_gen_batches": 2, "baseline": "none", "scale_rewards": "none"},
        {"max_num_gen_batches": 2, "loss_type": "no_baseline"},
        {"cliprange_high": 0.3, "loss_type": "grpo_no_clip"},
        {"kl_estimator": "k1", "kl_coef": 0.0},
        {"overlong_buffer": 321},
    ],
    ids=str,
)
def test_a_senseless_pair_is_one_sentence_that_names_the_flag(settings):
    with pytest.raises(UserError, match=f"--({'|'.join(settings)})[ :]") as caught:
        variants.Config(**settings)
    assert len(str(caught.value).splitlines()) == 1
