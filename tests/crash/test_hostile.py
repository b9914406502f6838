"""Some hostile completions of each task; `python tests/crash/hostile.py` tries half a million."""

import time

import pytest
from hostile import FRAGMENTS, attack, repetitions, strings


@pytest.mark.parametrize("task, count", [("countdown", 2500), ("gsm8k", 2000), ("math", 300)])
def test_hostile_text_gets_a_reward_within_a_second(task, count):
    attack(task, strings(task, count, seed=time.time_ns()))


@pytest.mark.parametrize("task", FRAGMENTS)
def test_one_fragment_up_to_a_megabyte_of_it_gets_a_reward_within_a_second(task):
    attack(task, repetitions(task))
