"""Coins: how many more does one of two people have? An example of a task of your own.

One problem, and one completion with the full reward of 2 (the prompt has opened `<think>`):

    {"ava": 31, "ben": 58, "cleo": 40, "question": "Ava has 31 coins and Ben has 58 coins. ..."}

    58-31=27
    40-27=13
    </think>
    <answer>13</answer>

A problem without `cleo` has one step. Each step subtracts the smaller number, so a decoding rule
that ignores the question cannot tell which number comes first. With two steps there are four
combinations. Only the test problems have the one in which the second number is larger both times.

    python variants.py --task coins --max_tokens 40 --group_size 16 --binary_reward

docs/results.md shows what a run learns.
"""

import random
import re
from collections import namedtuple

Reward = namedtuple("Reward", "total format answer why")
Prompt = namedtuple("Prompt", "text chat opening stop")

PROMPTS = {
    "short": Prompt("{question}", True, "<think>", ()),
    "plain": Prompt(  # for a base model that has no chat template
        "{question} Think inside <think> </think> tags, then give only the number inside <answer> "
        "</answer> tags, for example <answer>4</answer>.\n",
        False,
        "<think>",
        (),
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
NUMBERS = range(2, 60)
TEST = 128  # test problems of each kind: one step, two steps, the held-out combination


def load_problems(split, source=None, seed=0):
    """The training or the test problems, as dicts. They are the same for every seed."""
    if source is not None:
        raise SystemExit("--task coins has generated problems only: leave out --data")
    rng = random.Random("coins")
    ones = [{"ava": a, "ben": b} for a in NUMBERS for b in NUMBERS if a != b]
    rng.shuffle(ones)
    threes = sorted({tuple(rng.sample(NUMBERS, 3)) for _ in range(4096)})
    twos = [{"ava": a, "ben": b, "cleo": c} for a, b, c in threes if abs(a - b) != c]
    rng.shuffle(twos)
    for problem in ones + twos:
        problem["question"] = (TWO if "cleo" in problem else ONE).format(**problem)
    trained = [problem for problem in twos if subgroups(problem) == ["two_steps"]]
    held_out = [problem for problem in twos if subgroups(problem) == ["held_out"]]
    if split == "train":
        return ones[TEST:] + trained[TEST : 7 * TEST]  # one in five has two steps
    return [p for of_each in zip(ones[:TEST], trained[:TEST], held_out[:TEST]) for p in of_each]


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion: format (1, 0.5 or 0) and answer (1 or 0). Never raises."""
    number = abs(problem.get("cleo", 0) - abs(problem["ava"] - problem["ben"]))
    thinking, closed, conclusion = completion.rpartition("</think>")
    answer = (re.findall("<answer>([^<]{0,99})</answer>", conclusion) or [""])[-1].strip()
    block = "".join(f"<answer>{answer}</answer>".split())  # white space around it is allowed
    has_tags = closed and "".join(conclusion.split()) == block and "think>" not in thinking
    form = (1.0 if re.fullmatch("[0-9]{1,4}", answer) else 0.5) if has_tags else 0.0
    correct = float(answer == str(number))
    return Reward(form + correct, form, correct, "correct" if correct else f"{answer!r:.20}")


def subgroups(problem):
    """With one step: who has more. With two steps: whether the combination is trained."""
    difference = problem["ben"] - problem["ava"]
    if "cleo" not in problem:
        return ["ben_has_more" if difference > 0 else "ava_has_more"]
    return ["held_out" if problem["cleo"] > difference > 0 else "two_steps"]
