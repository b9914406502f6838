"""Chapter 6's rewards pay what the chapter says, and leave the true verdict in the record."""

import os
import sys

import pytest
from helpers import ROOT

import countdown_rewards
import nano_r1 as r1
from plumbing.models import load_tokenizer
from plumbing.sampler import Completion
from plumbing.tasks import load_task

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import wrong_rewards

PROBLEM = {"nums": [53, 57, 48], "target": 44}
ANSWERS = ["48-(57-53)", "53+57+48", "57+53+48", "=44"]  # right, twice 158, no expression
VERDICTS = [1.0, 0.0, 0.0, 0.0]
FORMATS = [1.0, 1.0, 1.0, 0.5]


@pytest.fixture
def paid(monkeypatch):
    """A function: name of a reward, times -> what it pays for the four completions, repeated."""
    config = r1.Config(task="countdown", group_size=4)
    task = load_task("countdown", config.prompt, load_tokenizer(config.model))
    done = Completion([5], [0.0], "stop")

    def rewarded(sampler, problems, task, config, step):
        texts = [f"\n1+1=2 no\n</think>\n<answer>{answer}</answer>" for answer in ANSWERS]
        rewards = [countdown_rewards.reward(text, PROBLEM) for text in texts]
        rows = list(zip(texts, rewards)) * problems
        return [r1.Episode(PROBLEM, [1], done, text, reward) for text, reward in rows]

    def of(name, times=1):
        rollout = {**wrong_rewards.REWARDS, **wrong_rewards.REPAIRED}[name]
        episodes = rollout(None, times, task, config, 1)
        assert [e.reward.answer for e in episodes] == VERDICTS * times
        assert [e.reward.format for e in episodes] == FORMATS * times
        return [e.reward.total for e in episodes]

    monkeypatch.setattr(r1, "rollout", rewarded)
    return of


@pytest.mark.parametrize(
    "name, totals",
    [
        ("form only", FORMATS),
        ("lines", [2 + 1, 1 + 1, 1 + 1, 0.5 + 2]),  # 1 for each line that holds a sum
        ("lines of right ones", [2 + 1, 1, 1, 0.5]),
        ("majority", [1, 2, 2, 0.5]),  # the value that most of the group give
    ],
)
def test_a_wrong_reward_pays_what_the_chapter_says(paid, name, totals):
    assert paid(name) == totals


def test_a_fifth_of_the_verdicts_is_turned_round(paid):
    right = [form + verdict for form, verdict in zip(FORMATS, VERDICTS)] * 500
    flipped = [total != true for total, true in zip(paid("noisy verifier", 500), right)]
    assert 0.17 < sum(flipped) / 2000 < 0.23


def test_a_coin_pays_nothing_or_one(paid):
    assert set(paid("coin", times=50)) == {0.0, 1.0}


def test_every_letter_of_the_record_is_a_reward():
    names = {**wrong_rewards.REWARDS, **wrong_rewards.REPAIRED}
    assert sorted(wrong_rewards.LETTERS.values()) == sorted(names)
