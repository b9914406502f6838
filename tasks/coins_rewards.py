"""Coins: how many more does one of two people have? An example of a task of your own.

One problem, and one completion with the full reward of 2 (the prompt has opened `<think>`):

    {"ava": 31, "ben": 58, "question": "Ava has 31 coins and Ben has 58 coins. How many ..."}

    58-31=27
    </think>
    <answer>27</answer>

The smaller number is subtracted, so a decoding rule that ignores the question cannot tell which
number comes first.

    python nano_r1.py --task coins --max_tokens 40 --group_size 16 --steps 60

docs/results.md shows what a run learns.
"""

import random

from gsm8k_rewards import MORE, Prompt, Reward, read_answer

PROMPTS = {"short": Prompt("{question}")}
QUESTION = (
    "Ava has {ava} coins and Ben has {ben} coins. "
    "How many more coins does one of them have than the other?"
)
NUMBERS = range(2, 60)
TEST = 128  # test problems


def load_problems(split, source=None, seed=0):
    """The training or the test problems, as dicts. They are the same for every seed."""
    if source is not None:
        raise SystemExit("--task coins has generated problems only: leave out --data")
    rng = random.Random("coins")
    problems = [{"ava": a, "ben": b} for a in NUMBERS for b in NUMBERS if a != b]
    rng.shuffle(problems)
    for problem in problems:
        problem["question"] = QUESTION.format(**problem)
    return problems[TEST:] if split == "train" else problems[:TEST]


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion: format (1, 0.5 or 0) and answer (1 or 0). Never raises."""
    answer, fault = read_answer(completion)
    form = 1.0
    if fault == MORE:  # than a number
        form = 0.5
    elif fault:
        form = 0.0
    correct = float(answer.strip() == str(abs(problem["ava"] - problem["ben"])))
    return Reward(form + correct, form, correct, "correct" if correct else f"{answer!r:.20}")


def subgroups(problem):
    """Who has more."""
    return ["ben_has_more" if problem["ben"] > problem["ava"] else "ava_has_more"]
