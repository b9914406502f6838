"""Coins: differences of one step and of two. The embedded base has never met these questions.

One problem, and one completion that earns the full reward of 2 (the prompt has already opened
`<think>`):

    {"coins": [31, 58, 40], "question": "Ava has 31 coins and Ben has 58 coins. Cleo has 40 coins.
    By how many does that differ from the difference between Ava and Ben?"}

    58-31=27
    40-27=13
    </think>
    <answer>13</answer>

Which number comes first depends on a comparison, in each step: no rule for the sampling that
ignores the question gives it. Two steps have four combinations; the one where both times the second
number is larger is never trained on.
"""

import random
import re

from plumbing.data import read_problems
from plumbing.tasks import Prompt, format_reward, last_answer, make_reward, render, strip_end

PROMPTS = {
    "short": Prompt("{question}"),
    "plain": Prompt(  # for a base model that has no chat template
        "{question} Think inside <think> </think> tags, then give only the number inside <answer> "
        "</answer> tags, for example <answer>4</answer>.\n",
        chat=False,
    ),
}
ONE = (
    "Ava has {} coins and Ben has {} coins. "
    "How many more coins does one of them have than the other?"
)
TWO = (
    "Ava has {} coins and Ben has {} coins. Cleo has {} coins. "
    "By how many does that differ from the difference between Ava and Ben?"
)


def load_problems(split, source=None, seed=0):
    if source is not None:  # a file with the columns coins and question
        keep = lambda row: {"coins": [int(n) for n in row["coins"]], "question": row["question"]}
        return read_problems(split, source, seed, ("coins", "question"), keep)
    rng = random.Random("coins")  # the same for every seed: no test problem is ever trained on
    ones = [make_problem([a, b]) for a in range(2, 60) for b in range(2, 60) if a != b]
    rng.shuffle(ones)
    twos = {tuple(rng.sample(range(2, 60), 3)) for _ in range(4096)}
    twos = [make_problem(list(t)) for t in sorted(twos) if abs(t[0] - t[1]) != t[2]]
    rng.shuffle(twos)
    trained = [p for p in twos if subgroups(p) == ["two_steps"]]
    if split == "test":
        held_out = [p for p in twos if subgroups(p) == ["held_out"]]
        return [p for three in zip(ones[:128], trained[:128], held_out[:128]) for p in three]
    return ones[128:] + trained[128 : 128 + 768]  # one in five has two steps


def make_problem(coins):
    return {"coins": coins, "question": (TWO if len(coins) == 3 else ONE).format(*coins)}


def format_prompt(problem, tokenizer, style="short"):
    return render(PROMPTS[style], problem, tokenizer)


def reward(completion, problem, style="short"):
    prompt = PROMPTS[style]
    text = strip_end(completion)
    form = format_reward(text, prompt, re.compile(r"\s*[0-9]{1,4}\s*").fullmatch)
    a, b, *rest = problem["coins"]
    right = abs(rest[0] - abs(a - b)) if rest else abs(a - b)
    try:
        answer = last_answer(text, prompt).strip()
    except ValueError as error:  # there is no answer block
        return make_reward(prompt, form, False, str(error))
    return make_reward(prompt, form, answer == str(right), f"{answer!r:.20}, not {right}")


def subgroups(problem):
    """Which of the two numbers is the larger one, in each step."""
    a, b, *rest = problem["coins"]
    first = "ava" if a > b else "ben"
    if not rest:
        return [f"{first}_has_more"]
    second = "difference" if abs(a - b) > rest[0] else "cleo"
    return ["held_out"] if (first, second) == ("ben", "cleo") else ["two_steps"]
