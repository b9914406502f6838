# %% [markdown]
# # A base that was never shown how to solve the task
#
#     python models/random-base/make_random_base.py --exclude FILE   # resumable
#
# Faster with two processes that share each step: `torchrun --nproc_per_node 2` for `python`.
#
# The embedded base (`../nano-base`) has learned from authors of whom some aim and some search in an
# order, so reinforcement learning can only make likely what was there. This one has the same
# architecture and tokenizer, and has learned two things:
#
#  1. Practice, without any prompt: arithmetic, to check a result against a goal, to write a line
#     of arithmetic as one expression, to try again with the same numbers.
#  2. The form of the task, from authors who take **random numbers and random legal operators**, and
#     differ in patience and checking alone.
#
# Nobody aims, follows an order or looks ahead, and no oracle chooses: the next operation depends on
# which ones are legal, never on the target. A completion succeeds where chance meets the target.
# Every sum that is written down is right, and every yes or no is true.
#
# What reinforcement learning makes of it: labs/choice.py.

# %%
import functools
import os
import random
import shutil
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "nano-base"))
from make_base import (
    MAX_VALUE,
    TrainingConfig,
    finish,
    keep_settings,
    make_model,
    make_tokenizer,
    operations,
    run_steps,
)

import countdown_rewards as countdown
from plumbing.models import load_model
from plumbing.processes import derive_seed, init_distributed
from plumbing.start import run_script

# %% [markdown]
# ## 1. Attempts at random


# %%
def write_attempt(numbers, rng):
    """Numbers in random order, each operator drawn evenly from the legal ones.

    Returns (text, value, expression), e.g. ("36-19=17-7=10+55=65", 65, "((36-19)-7)+55").
    """
    value, *others = rng.sample(numbers, len(numbers))
    text = expression = str(value)
    for place, n in enumerate(others):
        legal = operations(value, n)
        more, value, form = legal[rng.choice(list(legal))]
        text = more[1:] if place == 0 and more[0] == "," else text + more
        expression = form.format(f"({expression})" if place else expression)
    return text, value, expression


def other_attempt(numbers, tried, rng):
    """The same, rarely one of those `tried` before; it is added there."""
    for _ in range(8):
        text, value, expression = write_attempt(numbers, rng)
        if expression not in tried:
            break
    tried.add(expression)
    return text, value, expression


# %% [markdown]
# ## 2. Practice
#
# Of each line only what can be known is learned, results and verdicts; not which number a random
# chain takes next. With that, arithmetic is sure after a third of the tokens.


# %%
def write_chain(rng):
    """A chain without a goal, all four operators alike: [(text, whether it is learned)]."""
    value = rng.randint(1, MAX_VALUE) if rng.random() < 0.5 else rng.randint(1, 99)
    parts = [(f"\n{value}", False)]
    for _ in range(rng.randint(3, 6)):
        operator = rng.choice("+-*/")
        if operator == "/":
            n = rng.choice([n for n in range(2, 100) if value % n == 0] or [1])
        elif operator == "*":
            n = rng.randint(1, max(1, min(99, MAX_VALUE // value)))
        else:
            n = rng.randint(1, 99)
        legal = operations(value, n)
        more, value, _ = legal.get(operator) or legal[rng.choice(list(legal))]
        before, result = more.split("=")
        parts += [(f"{before}=", False), (result, True)]
    return parts


def write_pair(rng):
    """Two numbers, a goal that one of the operations reaches, and random attempts at it."""
    a = rng.randint(1, MAX_VALUE) if rng.random() < 0.3 else rng.randint(1, 99)
    n = rng.randint(1, 99)
    if rng.random() < 0.3:  # quotients are rare among random numbers
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    goal = rng.choice(list(operations(a, n).values()))[1]
    return write_tries([a, n], goal, 3, rng)


def write_tries(numbers, goal, tries, rng):
    """Random attempts, each checked, until one reaches the goal or there were so many."""
    text = ""
    tried = set()
    for _ in range(tries):
        line, value, _ = other_attempt(numbers, tried, rng)
        text += f"\n{line} {'yes' if value == goal else 'no'}"
        if value == goal:
            break
    return [(f"\n{numbers} {goal}", False), (text, True)]


def write_expression(numbers, rng):
    """A random line, and how an answer in good form writes it.

    88/22=4,41-4=37
    </think>
    <answer>41-(88/22)</answer>
    """
    line, _, expression = write_attempt(numbers, rng)
    return [(f"\n{line}\n</think>\n<answer>", False), (f"{expression}</answer>", True)]


def write_practice(problems, rng, tokens, tokenizer):
    """(ids, weights) of so many tokens of practice: 0.0 for a token that is not learned."""
    ids = []
    weights = []
    while len(ids) < tokens:
        problem = rng.choice(problems)
        numbers = rng.sample(problem["nums"], len(problem["nums"]))
        kind = rng.random()
        if kind < 0.40:
            parts = write_chain(rng)
        elif kind < 0.65:
            parts = write_pair(rng)
        elif kind < 0.80:
            parts = write_expression(numbers, rng)
        else:
            parts = write_tries(numbers, problem["target"], 4, rng)
        for text, learned in parts:
            new = tokenizer.encode(text)
            ids += new
            weights += [float(learned)] * len(new)
    return ids[:tokens], weights[:tokens]


# %% [markdown]
# ## 3. Who writes, and how often
#
# An author is drawn for each completion, and stays the same to its end.


# %%
class Author(NamedTuple):
    """One type of author."""

    share: float  # of all completions
    patience: float  # probability of another attempt after a failure
    checks: bool  # writes yes or no behind each attempt


AUTHORS = {
    "hasty": Author(0.55, 0.0, False),
    "wavering": Author(0.25, 0.3, True),
    "persistent": Author(0.20, 0.9, True),
}
FORMS = (0.70, 0.12, 0.06, 0.06, 0.06)  # weights of make_base.FORMS, the first is the one asked for
MAX_ATTEMPTS = 8


def write_search(numbers, target, tokenizer, rng):
    """A checked line to go on from, and the lines behind it: (ids before, ids, weights).

    Only the lines are learned: whether one goes on, and whether one checks, is not. Half of the
    targets are what a later line comes to, whichever, so that there are enough `yes`.
    """
    tried = set()
    attempts = [other_attempt(numbers, tried, rng) for _ in range(MAX_ATTEMPTS - 1)]
    if rng.random() < 0.5:
        target = rng.choice(attempts[1:])[1]
    prompt = countdown.format_prompt({"nums": numbers, "target": target}, tokenizer)
    ids = []
    weights = []
    for place, (line, value, _) in enumerate(attempts):
        verdict = "yes" if value == target else "no"
        for text, learned in (("\n", 0.0), (f"{line} {verdict}", 1.0)):
            new = tokenizer.encode(text)
            ids += new
            weights += [learned if place else 0.0] * len(new)
        if value == target:
            break
    return tokenizer.encode(prompt), ids, weights


def write_response(numbers, target, rng):
    """What somebody writes after `<think>`: attempts until success or out of patience, an answer.

    A hasty author's one attempt is the answer, whatever its value.
    """
    author = rng.choices(list(AUTHORS.values()), [a.share for a in AUTHORS.values()])[0]
    lines = []
    tried = set()
    while True:
        text, value, expression = other_attempt(numbers, tried, rng)
        lines.append(f"{text} {'yes' if value == target else 'no'}" if author.checks else text)
        if author.checks and value == target:
            break
        if len(lines) == MAX_ATTEMPTS or rng.random() > author.patience:
            break
    return finish(lines, expression, f"{expression}={target}", rng, FORMS)


# %% [markdown]
# ## 4. Training


# %%
@dataclass
class RandomBaseConfig(TrainingConfig):
    """Settings; the defaults make models/random-base."""

    # where the model goes; OUT.work holds checkpoints until it is done
    out: str = "models/random-base"
    learning_rate: float = 2e-3  # peak of the cosine schedule of the practice
    practice_steps: int = 5000  # steps of practice alone
    practice: int = 32  # sequences of practice per step
    practice_tokens: int = 128  # tokens of each
    task_steps: int = 3000  # steps of the task's form
    completions: int = 32  # of the authors, per step of the task's form
    searches: int = 16  # searches to go on with beside them
    task_practice: int = 16  # and sequences of practice
    other_counts: float = 0.1  # problems with 2, and as many with 5 numbers, for one of the others
    task_learning_rate: float = 1e-3  # peak of the cosine schedule of the task's form
    final_steps: int = 300  # steps of the authors' completions alone
    final_completions: int = 48  # of them per step
    final_learning_rate: float = 5e-4  # peak of their cosine schedule


def practice_rows(config, tokenizer, problems, count, step):
    """`count` rows of practice; by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "practice"))
    for _ in range(count):
        ids, weights = write_practice(problems, rng, config.practice_tokens + 1, tokenizer)
        yield ids[:1], ids[1:], weights[1:]


def task_rows(config, tokenizer, problems, count, step):
    """`count` completions of the authors; by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "completions"))
    for _ in range(count):
        problem = rng.choice(problems)
        numbers = rng.sample(problem["nums"], len(problem["nums"]))
        prompt = countdown.format_prompt({**problem, "nums": numbers}, tokenizer)
        response = write_response(numbers, problem["target"], rng)
        ids = tokenizer.encode(response) + [tokenizer.eos_token_id]
        yield tokenizer.encode(prompt), ids, [1.0] * len(ids)


def search_rows(config, tokenizer, problems, step):
    """Searches to go on with; by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "searches"))
    for _ in range(config.searches):
        problem = rng.choice(problems)
        numbers = rng.sample(problem["nums"], len(problem["nums"]))
        yield write_search(numbers, problem["target"], tokenizer, rng)


def problems_of(config):
    """Problems with 2 to 5 numbers, none of them in `exclude`."""
    problems = countdown.generate_problems(
        "train", config.problems, derive_seed(config.seed, "sft problems")
    )
    rng = random.Random(derive_seed(config.seed, "2 and 5 numbers"))
    for count in (2, 5):
        for _ in range(round(config.other_counts * config.problems)):
            numbers = [rng.randint(1, 99) for _ in range(count)]
            target = rng.randint(10, 100)
            if count == 2:
                target = rng.choice(list(operations(*numbers).values()))[1]
            problems.append({"nums": numbers, "target": target})
    if not config.exclude:
        return problems
    excluded = {countdown.problem_key(p) for p in countdown.load_problems("all", config.exclude)}
    kept = [p for p in problems if countdown.problem_key(p) not in excluded]
    print(f"{len(problems) - len(kept)} problems left out because {config.exclude} has them")
    return kept


def make_random_base(config):
    """Train the base model, or go on with it, and save it."""
    init_distributed()
    tokenizer = make_tokenizer()
    problems = problems_of(config)
    work = f"{os.path.normpath(config.out)}.work"
    keep_settings(config, work)
    practice = functools.partial(practice_rows, config, tokenizer, problems)
    authors = functools.partial(task_rows, config, tokenizer, problems)

    def form(step):
        yield from authors(config.completions, step)
        yield from search_rows(config, tokenizer, problems, step)
        # not what the first stage has seen
        yield from practice(config.task_practice, config.practice_steps + step)

    run = functools.partial(run_steps, config, tokenizer, work)
    practised, formed = (os.path.join(work, f"after-{name}") for name in ("practice", "form"))
    if not os.path.exists(practised):
        model = lambda: make_model(config, tokenizer)
        rows = lambda step: practice(config.practice, step)
        run("practice", model, config.practice_steps, config.learning_rate, rows, practised)
    if not os.path.exists(formed):
        model = lambda: load_model(practised, config.dtype)
        peak = config.task_learning_rate
        run("the task's form", model, config.task_steps, peak, form, formed)
    model = lambda: load_model(formed, config.dtype)
    rows = lambda step: authors(config.final_completions, config.task_steps + step)
    run("the authors", model, config.final_steps, config.final_learning_rate, rows, config.out)
    if dist.get_rank() == 0:
        shutil.rmtree(work)


if __name__ == "__main__":
    import tyro

    description = "Make models/random-base from scratch."
    settings = tyro.cli(RandomBaseConfig, description=description, use_underscores=True)
    again = "The same command continues from the last checkpoint."
    run_script(make_random_base, settings, after_interrupt=again)
