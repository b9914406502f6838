"""Countdown with 1 more for each line with a calculation: a reward that can be cheated.

It should make the model show its work. Chapters 4 and 6 show what a run learns instead.
"""

import countdown_rewards
from countdown_rewards import PROMPTS, Prompt, load_problems, subgroups

__all__ = ["PROMPTS", "Prompt", "load_problems", "reward", "subgroups"]


def reward(completion, problem, prompt=PROMPTS["short"]):
    """Countdown's `Reward` with a larger total."""
    found = countdown_rewards.reward(completion, problem, prompt)
    lines = sum("=" in line for line in completion.splitlines())
    return found._replace(total=found.total + lines)
