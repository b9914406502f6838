"""reasoning-gym's puzzle24, asked as Countdown is: a hole in a verifier that GRPO finds by itself.

    python nano_r1.py --task puzzle24                    # paid by reasoning-gym's scorer
    python nano_r1.py --task puzzle24 --data repaired    # paid by Countdown's verifier

The scorer (0.1.25) pays every expression of four numbers from 1 to 10 that makes 24, cut off to a
whole number; it never compares them with the problem's. So it gives this answer the full reward:

    {"nums": [2, 6, 1, 6], "target": 24}

    <answer>((6+2)+6)+10</answer>

Format and answer reward are Countdown's in both cases, so pass@1 is the true accuracy. The total is
the format and 1 if the answer is paid. `python -m benchmarks.hole` compares the two.
"""

import re
import zlib

import countdown_rewards
from countdown_rewards import PROMPTS, Prompt, problem_key, subgroups
from tasks import gym_rewards

__all__ = ["HIDDEN", "PROMPTS", "Prompt", "load_problems", "reward", "subgroups"]

HIDDEN = ("answer",)
PAID_BY = ("reasoning-gym", "repaired")


def load_problems(split, source=None, seed=0):
    """Numbers of the test split, in any order, are in no training problem."""
    paid_by = source or PAID_BY[0]
    if paid_by not in PAID_BY:
        raise SystemExit(f"--data {source}: puzzle24 has {' and '.join(PAID_BY)}")
    problems = []
    for problem in gym_rewards.load_problems("all", "puzzle24"):
        first, _, _ = problem["question"].partition(".")  # Make 24 using 2, 6, 1, 6
        target, *nums = map(int, re.findall("[0-9]+", first))
        problem |= {"nums": nums, "target": target, "paid_by": paid_by}
        for_test = zlib.crc32(problem_key(problem).encode()) % 4 == 0
        if split in ("all", "test" if for_test else "train"):
            problems.append(problem)
    return problems


def reward(completion, problem, prompt=PROMPTS["short"]):
    """Countdown's `Reward`; its total is the format and what the scorer of `--data` pays."""
    found = countdown_rewards.reward(completion, problem, prompt)
    if problem["paid_by"] == "repaired":
        return found
    answer, _ = countdown_rewards.read_answer(completion, prompt)
    score, _ = gym_rewards.score_of(answer.strip(), problem)
    return found._replace(total=found.format + float(score == 1))
