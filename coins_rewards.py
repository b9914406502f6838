"""Coins: how many more does one of two people have? A question that the embedded base never met.

One problem, and one completion that earns the full reward of 2 (the prompt has already opened
`<think>`):

    {"ava": 31, "ben": 58, "cleo": 40}

    58-31=27
    40-27=13
    </think>
    <answer>13</answer>

Without `cleo` it is the first line's question alone. Which number comes first depends on a
comparison, in each step, so no rule for the sampling that ignores the question gives the answer.
Two steps have four combinations; the one where both times the second number is larger is held out:
it is in the test problems alone. What a run learns of it: docs/labs.md.
"""

import random
import re

from plumbing.data import read_problems, whole_number
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
    "Ava has {ava} coins and Ben has {ben} coins. "
    "How many more coins does one of them have than the other?"
)
TWO = (
    "Ava has {ava} coins and Ben has {ben} coins. Cleo has {cleo} coins. "
    "By how many does that differ from the difference between Ava and Ben?"
)
NAMES = ("ava", "ben", "cleo")
TEST = 128  # problems each of one step, of two, and of the combination that is held out


def load_problems(split, source=None, seed=0):
    """Built in, or a file with the columns `ava`, `ben` and, where it has two steps, `cleo`."""
    if source is not None:
        there = lambda row: [name for name in NAMES if row.get(name) is not None]
        keep = lambda row: {name: whole_number(row, name) for name in there(row)}
        return read_problems(split, source, seed, ("ava", "ben"), keep)
    rng = random.Random("coins")  # the same for every seed: no test problem is ever trained on
    numbers = range(2, 60)
    ones = [{"ava": a, "ben": b} for a in numbers for b in numbers if a != b]
    rng.shuffle(ones)
    threes = sorted({tuple(rng.sample(numbers, 3)) for _ in range(4096)})
    twos = [dict(zip(NAMES, three)) for three in threes if abs(three[0] - three[1]) != three[2]]
    rng.shuffle(twos)
    trained = [p for p in twos if subgroups(p) == ["two_steps"]]
    held_out = [p for p in twos if subgroups(p) == ["held_out"]]
    if split == "train":
        return ones[TEST:] + trained[TEST : 7 * TEST]  # one in five has two steps
    mixed = zip(ones[:TEST], trained[:TEST], held_out[:TEST])
    return [problem for three in mixed for problem in three]


def title(problem):
    return (TWO if "cleo" in problem else ONE).format(**problem)


def format_prompt(problem, tokenizer, style="short"):
    return render(PROMPTS[style], {"question": title(problem)}, tokenizer)


def reward(completion, problem, style="short"):
    prompt = PROMPTS[style]
    text = strip_end(completion)
    form = format_reward(text, prompt, re.compile(r"\s*[0-9]{1,4}\s*").fullmatch)
    right = abs(problem["ava"] - problem["ben"])
    if "cleo" in problem:
        right = abs(problem["cleo"] - right)
    try:
        answer = last_answer(text, prompt).strip()
    except ValueError as error:  # there is no answer block
        return make_reward(prompt, form, False, str(error))
    return make_reward(prompt, form, answer == str(right), f"{answer!r:.20}, not {right}")


def subgroups(problem):
    """Who has more, with one step; whether the combination is trained, with two."""
    first = "ava" if problem["ava"] > problem["ben"] else "ben"
    if "cleo" not in problem:
        return [f"{first}_has_more"]
    cleo_has_more = problem["cleo"] > abs(problem["ava"] - problem["ben"])
    return ["held_out"] if first == "ben" and cleo_has_more else ["two_steps"]
