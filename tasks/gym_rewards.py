"""The data sets of reasoning-gym, by name: about a hundred generated tasks with their scorers.

    pip install reasoning-gym
    python nano_r1.py --task gym --data puzzle24
    python nano_r1.py --task gym --data "chain_sum?min_terms=2&max_terms=3 leg_counting?size=500"

--data is NAME?setting=value&setting=value, several separated by spaces. Values are JSON or texts,
and the settings are those of the data set's own configuration and three of this file:
    size     the number of its problems, 1000; so a data set twice as large has twice the weight
    partial  1: the reward is the format plus the score, from 0 to 1. Without it, only a score of 1
             is paid, because most scorers give something for a text that is not an answer
    unsafe   1: every text reaches the scorer, also one that it executes
Equal questions are one problem, and a tenth of all is held out, whatever the run's seed. The reward
pays what the data set calls solved, its mistakes included (docs/own_task.md).
"""

import functools
import json
import operator
import random
import re

import problem_files
from gsm8k_rewards import MORE, Prompt, Reward, read_answer

try:
    import reasoning_gym
except ImportError:
    raise SystemExit("This task needs a package: pip install reasoning-gym") from None

# These scorers pass the text to Python's eval or sympy's parse_expr, which executes it, or build
# as much as a number in it says: 1e999999999, R99999999. CALCULATED get only ARITHMETIC, EXECUTED
# need unsafe=1.
ARITHMETIC = r"(?!.*\*\s*\*)[-+*/()0-9.\s]*"  # without powers
CALCULATED = "binary_matrix coin_flip countdown puzzle24 spiral_matrix".split()
EXECUTED = (
    "intermediate_integration n_queens polynomial_multiplication rubiks_cube rush_hour "
    "simple_integration string_insertion"
).split()

HIDDEN = ("answer", "metadata")  # metadata, which holds solutions, is not in a problem at all
PROMPTS = {
    "short": Prompt(
        "{question}\n\nThink inside <think> </think> tags, then give only the final answer inside "
        "<answer> </answer> tags."
    )
}


@functools.cache
def open_data(spec):
    """(the data set of NAME?setting=value&..., its entries, partial, a pattern of texts)."""
    name, _, query = spec.partition("?")
    settings = {"size": 1000, "seed": 0, "partial": 0, "unsafe": 0}
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except ValueError:  # a text without quotes
            settings[key] = value
    partial = settings.pop("partial")
    scored = ".*"
    if not settings.pop("unsafe"):
        if name in EXECUTED:
            raise SystemExit(f"--data {name}: its scorer executes a text; to allow it: unsafe=1")
        if name in CALCULATED:
            scored = ARITHMETIC
    random.seed(0)  # acre draws from Python's own generator
    try:
        data = reasoning_gym.create_dataset(name, **settings)
        return data, list(data), partial, scored
    except Exception as error:  # each data set says in its own way what is wrong with a setting
        raise SystemExit(f"--data {spec}: no such data set or setting: {error}") from None


def load_problems(split, source=None, seed=0):
    """The problems of "train", "test" or "all"."""
    if not source:
        raise SystemExit("--task gym needs --data NAME, a data set of reasoning-gym: puzzle24")
    problems = []
    for spec in source.split():
        _, entries, _, _ = open_data(spec)
        for index, entry in enumerate(entries):
            problem = {"question": entry["question"], "answer": entry["answer"]}
            problems.append(problem | {"data": spec, "index": index})
    if split == "all":
        return problems
    return problem_files.held_out(problems, operator.itemgetter("question"), split)


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion. Never raises."""
    answer, fault = read_answer(completion)
    paid, why = score_of(answer.strip(), problem)
    form = float(fault in ("", MORE))
    return Reward(form + paid, form, float(why == "correct"), why)


def score_of(text, problem):
    """(what is paid, from 0 to 1; "correct" or why it is less)."""
    spec = problem["data"]
    data, entries, partial, scored = open_data(spec)
    if not text or len(text) > 2000:  # this bounds the work
        return 0.0, "no answer, or too long"
    if not re.fullmatch(scored, text, re.DOTALL):
        return 0.0, "not arithmetic: not passed to the scorer, which would execute it"
    try:
        score = float(data.score_answer(text, entries[problem["index"]]))
    except Exception as error:  # a mistake of the scorer
        warn(spec)
        return 0.0, f"the scorer fails: {error!r:.80}"
    if score == 1:
        return 1.0, "correct"
    return score if partial else 0.0, f"score {score:.2f}"


@functools.cache
def warn(spec):
    """Once for each data set."""
    print(f"--data {spec}: its scorer fails on some texts; they get no reward")


def subgroups(problem):
    """The name of the problem's data set."""
    return [problem["data"].partition("?")[0]]
