"""The data sets of reasoning-gym, by name: about a hundred generated tasks with their scorers.

    pip install reasoning-gym
    python nano_r1.py --task gym --data puzzle24
    python nano_r1.py --task gym --data "chain_sum?min_terms=2&max_terms=3 leg_counting?size=500"

--data is NAME?setting=value&setting=value, several separated by spaces. Values are YAML's,
and the settings are those of the data set's own configuration and three of this file:
    size     the number of its problems, 1000; so a data set twice as large has twice the weight
    partial  1: the reward is the format plus the score, from 0 to 1. Without it, only a score of 1
             is paid, because most scorers give something for a text that is not an answer
    unsafe   1: every text reaches the scorer, also one that it executes or works on for hours
Equal questions are one problem, and a tenth of all is held out, whatever the run's seed. The reward
pays what the data set calls solved, its mistakes included (docs/own_task.md).
"""

import functools
import os
import random
import re

import yaml  # transformers needs it, too

import problem_files
from gsm8k_rewards import MORE, Prompt, Reward, problem_key, read_answer

try:
    import reasoning_gym
except ImportError:
    raise SystemExit("This task needs a package: pip install reasoning-gym") from None

# These scorers pass the text to Python's eval or sympy's parse_expr, which executes it, or build
# as much as it says: 1e999999999, R99999999, a row for each truth of each name; or they compare two
# trees (codeio). CALCULATED get only ARITHMETIC, EXECUTED need unsafe=1.
TEXT = "(?s).{0,9999}"  # the length bounds the work
ARITHMETIC = r"(?!(?s:.)*\*\s*\*)[-+*/()0-9.\s]{1,2000}"  # without powers
CALCULATED = "binary_matrix coin_flip countdown puzzle24 spiral_matrix".split()
EXECUTED = (
    "codeio intermediate_integration n_queens polynomial_multiplication propositional_logic "
    "rubiks_cube rush_hour simple_integration string_insertion"
).split()
# Their problems depend on Python's hashes of texts, which differ between processes.
HASHED = "isomorphic_strings knight_swap polynomial_multiplication ransom_note word_ladder".split()

PROMPTS = {
    "short": Prompt(
        "{question}\n\nThink inside <think> </think> tags, then give only the final answer inside "
        "<answer> </answer> tags."
    )
}


say_once = functools.cache(print)


@functools.cache
def open_data(spec):
    """(the scorer of NAME?setting=value&..., {question: entry}, partial, a pattern of texts)."""
    name, _, query = spec.partition("?")
    settings = {"size": 1000, "seed": 0, "partial": 0, "unsafe": 0}
    random.seed(0)  # acre draws from Python's own generator
    try:
        for key, value in re.findall("([^&=]+)=?([^&]*)", query):
            settings[key] = yaml.safe_load(value or "true")
        partial = settings.pop("partial")
        scored = TEXT
        if not settings.pop("unsafe"):
            if name in EXECUTED:
                raise ValueError("its scorer executes a text, or has no bound: unsafe=1 allows it")
            if name in CALCULATED:
                scored = ARITHMETIC
        if name in HASHED and os.environ.get("PYTHONHASHSEED", "random") == "random":
            raise ValueError("has other problems in each process without PYTHONHASHSEED=0")
        data = reasoning_gym.create_dataset(name, **settings)
        return data.score_answer, {entry["question"]: entry for entry in data}, partial, scored
    except Exception as error:  # each data set says in its own way what is wrong with a setting
        raise SystemExit(f"--data {spec}: {error}") from None


def load_problems(split, source=None, seed=0):
    """The problems of "train", "test" or "all"."""
    if not source:
        raise SystemExit("--task gym needs --data NAME, a data set of reasoning-gym: puzzle24")
    problems = []
    for spec in source.split():
        _, entries, _, _ = open_data(spec)
        for question, entry in entries.items():
            problems.append({"question": question, "answer": entry["answer"], "data": spec})
    if split == "all":
        return problems
    return problem_files.held_out(problems, problem_key, split)


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion. Never raises."""
    score_answer, entries, partial, scored = open_data(problem["data"])
    entry = entries[problem["question"]]
    answer, fault = read_answer(completion)
    answer = answer.strip()
    score = 0.0
    why = "not passed to the scorer: too long, or not only arithmetic"
    if re.fullmatch(scored, answer):
        try:
            score = float(score_answer(answer, entry))
            why = "correct" if score == 1 else f"score {score:.2f}"
        except Exception as error:  # a mistake of the scorer
            say_once(f"--data {problem['data']}: its scorer fails on some texts: no reward")
            why = f"the scorer fails: {error!r:.80}"
    correct = float(score == 1)
    form = float(fault in ("", MORE))
    return Reward(form + (score if partial else correct), form, correct, why)


def subgroups(problem):
    """The problem's data set with its settings."""
    return [problem["data"]]
