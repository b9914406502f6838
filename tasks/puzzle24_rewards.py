"""reasoning-gym's puzzle24, asked as Countdown is: a hole in a verifier that GRPO finds by itself.

    pip install reasoning-gym
    python nano_r1.py --task puzzle24 --learning_rate 2e-4    # paid by reasoning-gym's scorer
    python nano_r1.py --task puzzle24 --learning_rate 2e-4 --data repaired    # Countdown's verifier

The scorer (0.1.25) pays every expression of four numbers from 1 to 10 that makes 24, cut off to a
whole number; it never compares them with the problem's. So it pays this answer:

    {"nums": [2, 6, 1, 6], "target": 24}

    <answer>((6+2)+6)+10</answer>

The total reward is 1 for an answer that is paid, else 0. The logged format and answer rewards are
Countdown's with both scorers, so pass@1 is the true accuracy.
"""

import re
import zlib

import countdown_rewards
from countdown_rewards import Prompt, problem_key, subgroups
from tasks import gym_rewards

__all__ = ["PROMPTS", "Prompt", "load_problems", "reward", "subgroups"]

DATA = "puzzle24?size=1000"  # a problem takes reasoning-gym 0.1 seconds
PROMPTS = {"short": countdown_rewards.PROMPTS["short"]._replace(weights=(0.0, 1.0))}


def load_problems(split, source=None, seed=0):
    """The four numbers of a test problem, in any order, are in no training problem."""
    if source not in (None, "repaired"):
        raise SystemExit("--task puzzle24 has no --data but repaired")
    print("reasoning-gym makes 1,000 problems, in about two minutes", flush=True)
    problems = []
    for problem in gym_rewards.load_problems("all", DATA):
        # "Make 24 using 2, 6, 1, 6. ..."
        target, *nums = map(int, re.findall("[0-9]+", problem["question"])[:5])
        problem |= {"nums": nums, "target": target, "repaired": source == "repaired"}
        for_test = zlib.crc32(problem_key(problem).encode()) % 4 == 0
        if split == "all" or for_test == (split == "test"):
            problems.append(problem)
    return problems


def reward(completion, problem, prompt=PROMPTS["short"]):
    """Countdown's `Reward`, with the total of reasoning-gym's scorer unless it is repaired."""
    found = countdown_rewards.reward(completion, problem, prompt)
    if problem["repaired"]:
        return found
    return found._replace(total=gym_rewards.reward(completion, problem).answer)
