"""Countdown with a tool that checks: the model writes yes, the environment corrects a wrong yes.

One problem, and a completion with the full reward of 2 (the prompt has opened `<think>`). The model
calls the tool with ` yes` after an attempt. The tool's answer is ` no` and a new line after the
first one, and only a new line after the last one, which is a solution:

    {"nums": [94, 27, 39], "target": 28}

    94+39=133-27=106 no
    94-27=67+39=106 yes no
    94-27=67-39=28 yes
    </think>
    <answer>(94-27)-39</answer>

So a yes costs a few tokens, and a solution that is not called is lost. Without the tool the base
stops at its first yes, which is mostly wrong. Problems and reward are Countdown's: a call has no
reward of its own.

    python tasks/tool_use.py

docs/tools.md says what a run learns.
"""

import re

from countdown_rewards import PROMPTS as COUNTDOWN
from countdown_rewards import Prompt, judge, load_problems, reward, subgroups

__all__ = ["PROMPTS", "TURNS", "Prompt", "load_problems", "reward", "subgroups", "tool"]

TURNS = 12  # how often the model may write in a completion; 128 tokens have room for 8 attempts
PROMPTS = {
    "short": COUNTDOWN["short"]._replace(stop=(" yes",), weights=(0.0, 1.0)),
}


def steps_of(line):
    """A line as steps, as `judge` reads them: 36-19=17-7=10 becomes 36-19=17 and 17-7=10."""
    return re.sub("=([0-9]{1,9})(?=[-+*/])", r"=\1\n\1", line).replace(",", "\n")


def tool(text, problem):
    """The rest of a line that ends in ` yes`, or None: see above. Linear in the text's length."""
    line = text.rpartition("\n")[2]
    called = re.fullmatch("([-+*/,=0-9]{1,200}) yes", line)
    if not called or "</think>" in text:
        return None
    value, _, _ = judge(steps_of(called[1]), problem, steps=True)
    return "\n" if value == problem["target"] else " no\n"
