"""A data set and reward functions made for TRL, which need no change.

    python nano_r1.py --task trl --data "problems.jsonl?my.py:correct&my.py:brief=0.5"

--data is FILE?MODULE.py:FUNCTION=WEIGHT&...; a weight of 1 is left out. FILE has the column
`prompt`: a text, or a list of messages, whose texts are then asked as one question. A tenth of its
problems is held out. The columns of csv are texts.
A function has TRL's signature:

    f(prompts, completions, completion_ids, **columns) -> a list of floats or None

Each list has one element, because a reward is computed for one completion. The completions are
texts, or lists of one message if the prompts are messages. None is left out of the weighted sum.
The first function decides whether an answer is correct: 1 or more is. The others are the format.
Not here: the trainer's state (None), async functions, a comparison of completions. A function runs
as it is: an error in it ends the run, and its time is its own.
"""

import functools
from operator import itemgetter

import problem_files
from gsm8k_rewards import Prompt, Reward
from nano_r1 import import_task

HIDDEN = ("row", "functions")
PROMPTS = {
    "short": Prompt("{prompt}", opening=""),  # in the chat template, if there is one
    "plain": Prompt("{prompt}", chat=False, opening=""),  # as it is, as in TRL
}


EXPECTED = '--data "problems.jsonl?my.py:correct&my.py:brief=0.5"'


@functools.cache
def find_functions(query):
    """[(function, weight)] of MODULE.py:FUNCTION=WEIGHT&..."""
    module = functools.cache(import_task)  # a file runs once, whatever functions it has
    found = []
    for part in query.split("&"):
        place, _, weight = part.partition("=")
        path, _, name = place.rpartition(":")
        try:
            found.append((getattr(module(path), name), float(weight or 1)))
        except (SystemExit, AttributeError, ValueError) as error:
            why = error.__context__ or error
            raise SystemExit(f"no reward function {part!r}: {why}; expected {EXPECTED}") from None
    return found


def load_problems(split, source=None, seed=0):
    """The problems of "train", "test" or "all"."""
    path, _, query = str(source).partition("?")
    if not query:
        raise SystemExit(f"--task trl needs {EXPECTED}")
    if split != "test":  # in a notebook, a file may have changed
        find_functions.cache_clear()
    find_functions(query)

    def to_problem(row):
        text = row.get("prompt")
        if isinstance(text, list):
            text = "\n\n".join(message["content"] for message in text)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"needs prompt, a text or a list of messages; got {row!s:.200}")
        return {"prompt": text, "row": row, "functions": query}

    prompt = itemgetter("prompt")
    row = itemgetter("row")
    problems = problem_files.load(path, split, None, to_problem, prompt, row, parse_float=float)
    columns = {}  # of all rows; what a row lacks is None, as TRL's `datasets` reads it
    for problem in problems:
        columns |= dict.fromkeys(problem["row"])
    for problem in problems:
        problem["row"] = columns | problem["row"]
    return problems


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion: the functions' values by their weights."""
    columns = {name: [value] for name, value in problem["row"].items()}
    text = prompt.opening + completion
    if isinstance(problem["row"]["prompt"], list):
        text = [{"role": "assistant", "content": text}]
    columns.update(
        prompts=columns.pop("prompt"),
        completions=[text],
        completion_ids=[problem["token_ids"]],
        trainer_state=None,
        log_extra=print,
        log_metric=print,
    )
    values = []
    for function, weight in find_functions(problem["functions"]):
        (value,) = function(**columns)
        value = value or 0.0  # None: not judged
        if not values:
            correct = float(value >= 1)
        values.append(weight * value)
    why = "correct" if correct else f"rewards {values}"
    return Reward(sum(values), sum(values[1:]), correct, why)
