"""How many different forms of equation does a run write? A falling number is mode collapse.

    python -m benchmarks.forms out/NAME        # of each step of a run on Countdown

The form of an answer is its expression without its numbers and needless parentheses: 49 - 40 + 48
and (93 - 2) + 40 have the form n - n + n.
"""

import ast
import collections
import glob
import importlib
import re
import sys

from benchmarks import runs

countdown = importlib.import_module("countdown_rewards")


def form(completion):
    """The form of a completion's answer, or None if the answer is not an expression."""
    answer, _ = countdown.read_answer(completion, countdown.PROMPTS["short"])
    try:
        tree = countdown.parse(countdown.join_steps(answer))
    except (ArithmeticError, SyntaxError, ValueError):
        return None
    return re.sub("[0-9]+", "n", ast.unparse(tree))


def form_table(path):
    lines = [["step", "answers", "different forms", "share of the most frequent", "it"]]
    for file in sorted(glob.glob(f"{path}/episodes/step_*.jsonl")):
        forms = [form(row["completion"]) for row in runs.nano_r1.read(file)]
        counted = collections.Counter(filter(None, forms))
        most, count = max(counted.items(), key=lambda item: item[1], default=("", 0))
        share = f"{count / max(1, counted.total()):.0%}"
        lines.append([int(file[-12:-6]), counted.total(), len(counted), share, most])
    return runs.table(lines)


if __name__ == "__main__":
    print(form_table(sys.argv[1]))
