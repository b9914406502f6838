"""An answer to Countdown in steps, or as one equation: the form of the prompt "steps".

Step 1: 1 + 2 = 3
Step 2: 3 / 3 = 1
"""

import collections
import re
from fractions import Fraction

from plumbing.arithmetic import calculate, is_expression

NUMBER = r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?"
STEP = re.compile(  # each number may stand in parentheses
    rf"(?:Step\s*[0-9]+\s*:)?\s*\(?(?P<left>{NUMBER})\)?\s*(?P<symbol>[-+*/])"
    rf"\s*\(?(?P<right>{NUMBER})\)?\s*=\s*\(?(?P<result>{NUMBER})\)?\.?"
)
VALUE = re.compile(rf"{NUMBER}|-?[0-9]{{1,12}}/[1-9][0-9]{{0,11}}")


def step_lines(answer):
    """The steps of an answer, one on each line or each behind the word Step."""
    return [line.strip() for line in re.split(r"\n|(?=Step\b)", answer) if line.strip()]


def are_steps(answer):
    lines = step_lines(answer)
    return bool(lines) and all(map(STEP.fullmatch, lines))


def is_equation(answer):
    """Whether an answer is an expression, alone or with `= number`."""
    left, equals, right = answer.partition("=")
    return is_expression(left) and (not equals or right_side(right) is not None)


def right_side(text):
    """The value of what stands right of an equation's sign, None if that is not a number."""
    text = text.strip().removesuffix(".")
    return Fraction(text) if VALUE.fullmatch(text) else None


def evaluate_steps(answer, nums):
    """What remains of `nums` after a list of steps, as a Fraction.

    Each step takes two numbers from the pool and puts its result back; at the end one number is
    left. ValueError, with the reason as a short sentence, for a step that is wrong or takes what
    is not there.
    """
    pool = collections.Counter(map(Fraction, nums))
    for line in step_lines(answer):
        match = STEP.fullmatch(line)
        if not match:
            raise ValueError(f"{line!r:.60} is not a step")
        left, right, result = map(Fraction, match.group("left", "right", "result"))
        for number in (left, right):
            if not pool[number]:
                raise ValueError(f"{line!r:.60} takes {number}, which is not there")
            pool[number] -= 1
        if calculate(left, match["symbol"], right) != result:
            raise ValueError(f"{line!r:.60} is not true")
        pool[result] += 1
    remaining = list(pool.elements())
    if len(remaining) != 1:
        left_over = ", ".join(map(str, remaining[:8]))
        raise ValueError(f"leaves {left_over} instead of one number")
    return remaining[0]
