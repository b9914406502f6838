"""Countdown with a bonus of 1 for every line of working, to make the model show it (chapter 4)."""

import countdown_rewards as countdown
from countdown_rewards import PROMPTS, format_prompt, lenient, load_problems, subgroups  # noqa: F401 (a task's parts)


def reward(completion, problem, style="short"):
    """Countdown's reward, and the bonus."""
    paid = countdown.reward(completion, problem, style)
    return paid._replace(
        total=paid.total + 1.0 * sum("=" in line for line in completion.splitlines())
    )
