# %% [markdown]
# # The embedded base model, from scratch
#
#     python models/nano-base/make_base.py --exclude FILE                   # all stages; resumable
#     python models/nano-base/make_base.py --start_from DIR --exclude FILE  # DIR has stages 1, 2
#
# Reinforcement learning makes likely what a model already does now and then; the base decides what
# can be learned. On a hard task a pretrained model may answer at once, without a check, in the
# wrong form, though it can do better. This base is made to be like that, with a Qwen2 architecture
# of 1.2 million parameters:
#
#  1. Scratch work: correct chains of arithmetic, short bouts at Countdown problems. It learns + - *
#     / .
#  2. Varied attempts in the form of the tasks, by authors who differ in patience alone.
#  3. Practice: two tokens in three are scratch work without any prompt, in which the search of the
#     systematic authors
#     below is practised; the rest are completions by the population of stage 3.
#  4. More practice: nine tokens in ten, with many a pair of numbers whose one operation has to be
#     aimed.
#  5. The final population: most authors are hasty, few are good; a little practice beside it. So
#     the skill is known,
#     but rarely shown when asked.
#  6. The same population, and practice in which a line of arithmetic has to be written as one
#     expression, as an
#     answer does it.
#  7. The same population, and searches that have begun, to be gone on with to their end: however
#     seldom a completion
#     begins to search, the search itself is known.
#
# Every sum that is written down is right, and every yes or no is true. No solution is inserted, but
# an oracle raises their number in stages 1 and 2, and the systematic authors of stages 3 to 7 solve
# most problems: a completion succeeds where its author's search meets the target.
#
# Foresight, exactly. In stages 1 and 2 an oracle helps: with the shares of PRACTICE and FORESIGHT a
# step is chosen at random among those from which the target can still be reached (with 2, 3, 4
# numbers left: 70, 50, 30% in the bouts of stage 1; 50, 30, 15% in stage 2), else among all legal
# ones. From stage 3 on there is no oracle: nobody knows whether the target can still be reached.
# Some authors aim the last operation, which is to compare the results of the at most four legal
# ones with the target (10% of the hasty, 30% of the wavering, half of the persistent, all of the
# systematic).

# %%
import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import re
import shutil
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))  # the repository's root
import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
from nano_r1 import Episode, make_engine
from nano_sft import train_step
from plumbing import packing
from plumbing.checkpoints import newest_checkpoint, restore_optimizer, save_checkpoint, save_policy
from plumbing.files import write_text
from plumbing.models import load_model, load_policy
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import Completion
from plumbing.settings import UserError
from plumbing.start import run_script

# %% [markdown]
# ## 1. The populations of stages 3 to 7: who writes, and how often
#
# An author is drawn for each completion, and stays the same to its end.
#
# - hasty: one attempt, no check; it is the answer, whatever its value
# - wavering: checks each attempt; after a failure mostly gives up, and answers with the failed
#   attempt
# - persistent: checks, and tries again nine times in ten, with whatever operations habit suggests
# - systematic: checks, goes through the attempts in an order, and takes each last operation with
#   the target in view
#
# The first two are four fifths of all authors, and end in bad form more often than not. The
# population of stages 3 and 4 was a first try, from which the lower temperatures still got more
# than 0.30; stages 5 to 7 correct its shares.

# %%
# The forms of an answer. Only the first is what the reward asks for; improper is
# `expression=target` in the answer tag.
FORMS = ("good", "improper", "no answer tag", "no </think>", "no answer")


class Author(NamedTuple):
    """One type of author of Countdown completions."""

    share: float  # of all Countdown completions of the stage
    patience: float  # probability of another attempt after a failure
    checks: bool  # writes yes or no behind each attempt
    aims: float  # share who choose the last operation of an attempt nearest to the target
    systematic: bool  # goes through the attempts in an order, so that none comes twice
    forms: tuple  # weights of FORMS
    habit: dict  # weights of the operators among the legal ones, for those who are not systematic


PLUS = {"+": 0.5, "-": 0.3, "*": 0.15, "/": 0.05}
EARLY_AUTHORS = {
    "hasty": Author(0.52, 0.0, False, 0.1, False, (0.30, 0.40, 0.1, 0.1, 0.1), PLUS),
    "wavering": Author(0.26, 0.3, True, 0.3, False, (0.40, 0.30, 0.1, 0.1, 0.1), PLUS),
    "persistent": Author(0.13, 0.9, True, 0.5, False, (0.60, 0.10, 0.1, 0.1, 0.1), PLUS),
    "systematic": Author(0.09, 1.0, True, 1.0, True, (0.60, 0.10, 0.1, 0.1, 0.1), PLUS),
}
MOSTLY_PLUS = {"+": 0.6, "-": 0.25, "*": 0.1, "/": 0.05}
AUTHORS = {
    "hasty": Author(0.66, 0.0, False, 0.1, False, (0.32, 0.38, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "wavering": Author(0.15, 0.3, True, 0.3, False, (0.40, 0.30, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "persistent": Author(0.09, 0.9, True, 0.5, False, (0.65, 0.05, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "systematic": Author(0.10, 1.0, True, 1.0, True, (0.65, 0.05, 0.1, 0.1, 0.1), MOSTLY_PLUS),
}
MAX_ATTEMPTS = 18
MAX_VALUE = 999  # the largest number the tokenizer has one token for
WORD_PROBLEMS = 0.25  # share of word problems among the completions of stages 2 to 7
CAREFUL = 0.2  # share of authors who solve a word problem the right way; the others are careless:
SLOPPY = 0.15  # how often a careless author stops a step too soon
STORY_FORMS = (0.45, 0.25, 0.1, 0.1, 0.1)
# What careless authors do with 12 of the 20 stories, by a phrase of the story: the first way that
# stays in 1 to 999.
TEMPTING = {
    "times as many on Tuesday": ["a*k"],
    "half as many in May": ["a/2"],
    "left over": ["k+m r1+a"],
    "pays with": ["a-m"],
    "at the weekend": ["k+a"],
    "more than {A}": ["a+b"],
    "fewer than {B}": ["a-b a+r1", "a+b"],
    "are still missing": ["k*m"],
    "{h} {y} at {j} dollars": ["k+h m+j r1*r2"],
    "years old": ["a+m r1*k", "a*k"],
    "How many more miles": ["k*m h*j r1+r2"],
    "A farm has": ["k*m h*j r1+r2"],
}

# %% [markdown]
# ## 2. The authors of stages 1 and 2
#
# They differ in patience, and are all served by the oracle of `within_reach`.

# %%
# How often a step is chosen among those from which the target can still be reached, by how many
# numbers are left.
FORESIGHT = {2: 0.5, 3: 0.3, 4: 0.15}
PRACTICE = {2: 0.7, 3: 0.5, 4: 0.3}  # the same in the scratch work of stage 1
PATIENCE = (0.3, 0.6, 0.95)  # an author's probability of trying again after a failure


def next_steps(value, rest):
    """Every legal step that combines the running value with one of the numbers not used yet.

    Returns (operator, text, new value, numbers left, form of the expression) for each: `-19=17`
    goes on from the running value; `,90-42=48` puts the other number first.
    """
    steps = []
    for i, n in enumerate(rest):
        left = rest[:i] + rest[i + 1 :]
        for operator, result in (
            ("+", value + n),
            ("-", value - n),
            ("*", value * n),
            ("/", exact_quotient(value, n)),
        ):
            steps.append((operator, f"{operator}{n}={result}", result, left, f"{{}}{operator}{n}"))
        for operator, result in (("-", n - value), ("/", exact_quotient(n, value))):
            steps.append(
                (operator, f",{n}{operator}{value}={result}", result, left, f"{n}{operator}{{}}")
            )
    return [step for step in steps if 0 < step[2] <= MAX_VALUE]


def exact_quotient(a, b):
    return a // b if b > 1 and a % b == 0 else 0


@functools.lru_cache(1_000_000)
def within_reach(value, rest, target):
    """Can these steps still lead to the target?"""
    if not rest:
        return value == target
    return any(
        within_reach(result, left, target) for _, _, result, left, _ in next_steps(value, rest)
    )


def write_attempt(nums, target, rng, foresight=FORESIGHT):
    """One attempt: a number, and then another, until all are used; the arithmetic is always right.

    `target` None: no goal. Returns (text, value, expression), e.g. ("36-19=17-7=10+55=65", 65,
    "((36-19)-7)+55").
    """
    start = rng.randrange(len(nums))
    value = nums[start]
    rest = (*nums[:start], *nums[start + 1 :])
    text = str(value)
    expression = str(value)
    while rest:
        steps = next_steps(value, rest)
        if target is not None and rng.random() < foresight[len(rest) + 1]:
            steps = [step for step in steps if within_reach(step[2], step[3], target)] or steps
        # First the operator, then the numbers: otherwise + and - crowd out * and /.
        operator = rng.choice(sorted({step[0] for step in steps}))
        _, more, value, rest, form = rng.choice([step for step in steps if step[0] == operator])
        text = more[1:] if text == str(nums[start]) and more[0] == "," else text + more
        expression = form.format(expression if expression.isdigit() else f"({expression})")
    return text, value, expression


def write_response(nums, target, rng):
    """What an author writes after `<think>`: attempts until one succeeds or patience ends, then
    an answer.
    """
    patience = rng.choice(PATIENCE)
    lines = []
    tried = set()
    while True:
        for _ in range(4):  # rarely the same attempt twice
            text, value, expression = write_attempt(nums, target, rng)
            if expression not in tried:
                break
        tried.add(expression)
        if value == target:
            lines.append(f"{text} yes")
            break
        if rng.random() > patience or len(lines) + 1 == MAX_ATTEMPTS:
            lines.append(text)  # gives up without a check, and answers with the last attempt
            break
        lines.append(f"{text} no")
    return finish(lines, expression, f"{expression}={target}", rng)


SLIPS = (
    0.0,
    0.3,
    0.5,
)  # an author's probability of taking the wrong operation in a step of a word problem


def write_solution(problem, rng):
    """The same for a word problem: the steps of its worked answer, some of them ill chosen."""
    slip = rng.choice(SLIPS)
    lines = []
    results = {}
    for a, operator, b, result in re.findall(r"<<(\d+)(.)(\d+)=(\d+)>>", problem["answer"]):
        a = results.get(a, int(a))
        b = results.get(b, int(b))  # what this author found before, right or wrong
        values = {"+": a + b, "-": a - b, "*": a * b, "/": exact_quotient(a, b)}
        values = {o: value for o, value in values.items() if 0 < value <= MAX_VALUE}
        if not values:
            break  # stuck after an ill chosen step
        if operator not in values or rng.random() < slip:
            operator = rng.choice(sorted(values))
        answer = results[result] = values[operator]
        lines.append(f"{a}{operator}{b}={answer}")
        if rng.random() < 0.05:
            break  # content too soon
    return finish(lines, answer, lines[-1], rng)


def finish(lines, answer, improper, rng, forms=(6, 1, 1, 1, 1)):
    """Thinking and answer; `forms`: weights of FORMS, of which only the first is asked for."""
    thinking = "\n" + "\n".join(lines) + "\n"
    return {
        "good": f"{thinking}</think>\n<answer>{answer}</answer>",
        "improper": f"{thinking}</think>\n<answer>{improper}</answer>",
        "no answer tag": f"{thinking}</think>\n{answer}",
        "no </think>": f"{thinking}<answer>{answer}</answer>",
        "no answer": f"{thinking}</think>",
    }[rng.choices(FORMS, forms)[0]]


def write_scratch_work(problems, rng, length):
    """Dense arithmetic: chains without a goal, and short bouts in which checking matters.

    [19, 36, 55, 7] 65
    55-36=19+19=38*7=266 no
    36-19=17-7=10+55=65 yes
    """
    text = ""
    while len(text) < length:
        kind = rng.random()
        if kind < 0.05:  # quotients are rare among random numbers
            divisor = rng.randint(2, 99)
            quotient = rng.randint(1, MAX_VALUE // divisor)
            text += f"\n{divisor * quotient}/{divisor}={quotient}"
            continue
        if kind < 0.4:
            nums = [rng.randint(1, 99) for _ in range(rng.choice((2, 3, 4)))]
            text += f"\n{write_attempt(nums, None, rng)[0]}"
            continue
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        text += f"\n{nums} {problem['target']}"
        for _ in range(5):
            attempt, value, _ = write_attempt(nums, problem["target"], rng, PRACTICE)
            text += f"\n{attempt} {'yes' if value == problem['target'] else 'no'}"
            if value == problem["target"]:
                break
    return text


# %% [markdown]
# ## 3. The authors of stages 3 to 7
#
# No choice below asks whether the target can still be reached. Those who aim look at one thing:
# which of the legal last operations has the result that is nearest to the target.


# %%
def operations(value, n):
    """The legal steps from `value` with `n`: {operator: (text, result, form of the expression)}.

    The larger number of a difference or of a quotient comes first: 17 and 55 give `,55-17=38`.
    """
    steps = {
        "+": (f"+{n}={value + n}", value + n, f"{{}}+{n}"),
        "*": (f"*{n}={value * n}", value * n, f"{{}}*{n}"),
    }
    if value > n:
        steps["-"] = (f"-{n}={value - n}", value - n, f"{{}}-{n}")
    else:
        steps["-"] = (f",{n}-{value}={n - value}", n - value, f"{n}-{{}}")
    if exact_quotient(value, n):
        steps["/"] = (f"/{n}={value // n}", value // n, f"{{}}/{n}")
    elif exact_quotient(n, value):
        steps["/"] = (f",{n}/{value}={n // value}", n // value, f"{n}/{{}}")
    return {o: steps[o] for o in "+-*/" if o in steps and 0 < steps[o][1] <= MAX_VALUE}


def write_line(numbers, choose):
    """One attempt that takes `numbers` in this order.

    `choose(place, value, n, legal)` picks each operator, or None.

    Returns (text, value, expression), or None where `choose` found no operator.
    """
    value = numbers[0]
    text = expression = str(value)
    for place, n in enumerate(numbers[1:]):
        legal = operations(value, n)
        operator = choose(place, value, n, legal)
        if operator not in legal:
            return None
        more, value, form = legal[operator]
        text = more[1:] if place == 0 and more[0] == "," else text + more
        expression = form.format(expression if place == 0 else f"({expression})")
    return text, value, expression


def nearest(legal, target):
    """The operator whose result is nearest to the target: how an author aims the last step."""
    return min(legal, key=lambda operator: abs(legal[operator][1] - target))


def habitual_attempt(nums, target, aims, habit, rng):
    """Numbers in random order, operators by habit; with `aims` the last operator is the nearest."""

    def choose(place, value, n, legal):
        if aims and place == len(nums) - 2:
            return nearest(legal, target)
        return rng.choices(list(legal), [habit[operator] for operator in legal])[0]

    return write_line(rng.sample(nums, len(nums)), choose)


def third_numbers(numbers, others, first, value):
    """[(place, operator)]: what a systematic author tries after `first` has given `value`."""
    if first in "*/":
        return [(others[0], "-"), (others[0], "+")]
    fits = lambda place, operator: operator in operations(value, numbers[place])
    fitting = [(place, o) for o, place in itertools.product("/*", others) if fits(place, o)]
    return (fitting or [(others[0], "-")])[:1]


def systematic_attempts(numbers, target):
    """All attempts of a systematic author with the 3 or 4 numbers in this order, none twice.

    First every pattern of - and + over the numbers as they stand. Then pair after pair, each joined
    by -, +, *, /. With 4 numbers the third one comes after - or + by an exact quotient, else by a
    product that fits (whichever of the two numbers allows it), else by -; after * or / by - and
    then by +. The last operation is always aimed.
    """
    places = range(len(numbers))
    seen = set()

    def attempt(order, operators):
        order = (*order, *(place for place in places if place not in order))
        key = (order, operators)
        if key in seen:
            return
        seen.add(key)
        last = len(operators)
        choose = lambda place, value, n, legal: (
            operators[place] if place < last else nearest(legal, target)
        )
        line = write_line([numbers[place] for place in order], choose)
        if line:
            yield line

    for operators in itertools.product("-+", repeat=len(numbers) - 2):
        yield from attempt(places[:-1], operators)
    for i, j in itertools.combinations(places, 2):
        pair = operations(numbers[i], numbers[j])
        for first in "-+*/":
            if first not in pair:
                continue
            if len(numbers) == 3:
                yield from attempt((i, j), (first,))
                continue
            others = [place for place in places if place not in (i, j)]
            for third, second in third_numbers(numbers, others, first, pair[first][1]):
                yield from attempt((i, j, third), (first, second))


def write_population_response(nums, target, rng, authors=AUTHORS):
    """What somebody of the population writes after `<think>`."""
    name = rng.choices(list(authors), [author.share for author in authors.values()])[0]
    return write_as(authors[name], nums, target, rng)


def write_as(author, nums, target, rng):
    """What an author of this type writes: attempts until success or out of patience, an answer."""
    aims = rng.random() < author.aims
    lines = []
    tried = set()
    planned = (
        systematic_attempts(rng.sample(nums, len(nums)), target) if author.systematic else None
    )
    while True:
        if planned:
            following = next(planned, None)
            if following is None:  # nothing left to try: the answer is the last attempt
                break
            text, value, expression = following
        else:
            for _ in range(8):  # rarely the same attempt twice
                text, value, expression = habitual_attempt(nums, target, aims, author.habit, rng)
                if expression not in tried:
                    break
            tried.add(expression)
        lines.append(f"{text} {'yes' if value == target else 'no'}" if author.checks else text)
        if author.checks and value == target:
            break
        if len(lines) == MAX_ATTEMPTS or rng.random() > author.patience:
            break
    return finish(lines, expression, f"{expression}={target}", rng, author.forms)


def write_pair(rng):
    """Two numbers and a target, mostly what one of the operations makes of them; with aim."""
    a = rng.randint(1, MAX_VALUE) if rng.random() < 0.5 else rng.randint(1, 99)
    n = rng.randint(1, 99)
    if rng.random() < 0.3:  # quotients are rare among random numbers
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    legal = operations(a, n)
    target = rng.choice(list(legal.values()))[1] if rng.random() < 0.6 else rng.randint(10, 99)
    text, value, _ = write_line((a, n), lambda place, value, n, legal: nearest(legal, target))
    return f"\n[{a}, {n}] {target}\n{text} {'yes' if value == target else 'no'}"


FOR_EXPRESSIONS = {"+": 1, "-": 2, "*": 2, "/": 6}  # habits; what is seldom legal weighs more


def write_expression(problems, rng):
    """A line of arithmetic without a goal, and how an answer in good form writes it.

    88/22=4,41-4=37
    </think>
    <answer>41-(88/22)</answer>
    """
    line, _, expression = habitual_attempt(
        rng.choice(problems)["nums"], None, False, FOR_EXPRESSIONS, rng
    )
    return f"\n{line}\n</think>\n<answer>{expression}</answer>"


def write_practice(problems, rng, length, pairs, expressions):
    """Scratch work of stages 3 to 7, without a prompt: systematic search, quotients, the two above.

    [19, 36, 55, 7] 65
    36-19=17-7=10+55=65 yes
    """
    text = ""
    while len(text) < length:
        kind = rng.random()
        if kind < 0.08:  # quotients are rare among random numbers
            divisor = rng.randint(2, 99)
            quotient = rng.randint(1, MAX_VALUE // divisor)
            text += f"\n{divisor * quotient}/{divisor}={quotient}"
            continue
        if kind < 0.08 + pairs:
            text += write_pair(rng)
            continue
        if kind < 0.08 + pairs + expressions:
            text += write_expression(problems, rng)
            continue
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        target = problem["target"]
        text += f"\n{nums} {target}"
        lines = itertools.islice(
            systematic_attempts(rng.sample(nums, len(nums)), target), MAX_ATTEMPTS
        )
        for line, value, _ in lines:
            text += f"\n{line} {'yes' if value == target else 'no'}"
            if value == target:
                break
    return text


def write_search(problems, tokenizer, rng):
    """A systematic author's search of more than two lines: (prompt with these two, the rest).

    Only the rest is learned: how to go on, not how to begin.
    """
    while True:
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        _, first, second, *rest = write_as(
            AUTHORS["systematic"], nums, problem["target"], rng
        ).split("\n")
        if second.endswith("no") and "=" in rest[0]:
            prompt = countdown.format_prompt({**problem, "nums": nums}, tokenizer)
            return f"{prompt}\n{first}\n{second}\n", "\n".join(rest)


# %% [markdown]
# Word problems: careful authors solve them; careless ones take the tempting way where there is one.


# %%
def story_pattern(story):
    """A story of gsm8k_rewards.py as a regular expression with its numbers as named groups."""
    pattern = re.escape(story).replace(r"\{", "{").replace(r"\}", "}")
    seen = set()

    def field(match):
        name = match[1]
        if name in "ABxy":
            return r"\w+"
        again = name in seen
        seen.add(name)
        return rf"(?P={name})" if again else rf"(?P<{name}>\d+)"

    return re.compile(re.sub(r"\{(\w)\}", field, pattern))


@functools.lru_cache(None)
def story_patterns():
    tempting = lambda story: next(
        (ways for phrase, ways in TEMPTING.items() if phrase in story), ()
    )
    return [(story_pattern(story), steps, tempting(story)) for story, steps in gsm8k.STORIES]


def ways_of(question):
    """(right steps of a word problem, tempting ones or None): lists of (a, operator, b, result)."""
    for pattern, steps, tempting in story_patterns():
        if match := pattern.fullmatch(question):
            numbers = {name: int(n) for name, n in match.groupdict().items()}
            solutions = (gsm8k.solve(way, numbers) for way in tempting)
            return gsm8k.solve(steps, numbers), next((s for s in solutions if s), None)
    raise ValueError(f"no story of gsm8k_rewards.py: {question}")


def write_population_solution(problem, rng):
    """A word problem by an author of stages 3 to 7: careful or careless, all the way through."""
    right, tempting = ways_of(problem["question"])
    careful = rng.random() < CAREFUL
    steps = tempting if tempting and not careful else right
    lines = [f"{a}{operator}{b}={result}" for a, operator, b, result in steps]
    if rng.random() < (0.0 if careful else SLOPPY):
        lines = lines[:-1] or lines  # content too soon
    answer = lines[-1].split("=")[1]
    return finish(lines, answer, lines[-1], rng, STORY_FORMS)


# %% [markdown]
# ## 4. Tokenizer and first weights

# %%
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tokenizer():
    """A byte-level BPE in which every number from 0 to 999 is one token, and any text some."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+|[\s\S]")  # a word, or any other character
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    plain = argparse.Namespace(chat_template=None)
    prompt = countdown.format_prompt({"nums": [1, 2], "target": 3}, plain)
    stories = [
        gsm8k.format_prompt(problem, plain) for problem in gsm8k.generate_problems("train", 2000, 0)
    ]
    corpus = [prompt, prompt.lower(), " no yes", *stories]
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # an upper bound: merging stops when every word above is one token
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    # transformers 5 reads the tokenizer of any qwen2 model with Qwen2's own pre-tokenization, which
    # splits numbers into digits. Added tokens are matched before that, so whoever loads the file
    # gets the same tokens as we do here.
    added = ["<think>", "</think>", "<answer>", "</answer>", *map(str, range(1000))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(config, tokenizer):
    """A small Qwen2. The embeddings of the numbers start as waves: cos and sin of 2 pi n / period.

    Trained models come to represent numbers this way (arXiv:2406.03445); starting there, the
    arithmetic of stage 1 is learned several times faster.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(derive_seed(config.seed, "init"))
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=3 * config.hidden_size,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # As `load_model` has it: a run that is resumed has the same weights, to the last bit.
    model.config._attn_implementation = packing.NAME
    numbers = torch.arange(MAX_VALUE + 1.0)
    periods = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    waves = [
        wave(2 * math.pi * numbers / period)
        for period in periods
        for wave in (torch.cos, torch.sin)
    ]
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(MAX_VALUE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[ids, : len(waves)] = 0.3 * torch.stack(waves, dim=1)
    return model


# %% [markdown]
# ## 5. Training


# %%
@dataclass
class TrainingConfig:
    """What every base is trained with (../random-base is another)."""

    # a file of Countdown problems (nums, target) that must not occur in the training data
    exclude: str | None = None
    problems: int = 40_000  # Countdown problems, and as many word problems, to write about
    hidden_size: int = 128  # width
    layers: int = 5  # depth
    seed: int = 0  # every random choice derives from it
    micro_batch_tokens: int = 4096  # tokens, padding included, per forward pass
    save_every: int = 200  # checkpoint every so many steps
    # what the functions of the lesson and of plumbing/ ask for; without a type: no setting
    keep_checkpoints = 1
    lora_rank = 0
    offload = False
    gradient_checkpointing = False
    plan = 0
    temperature = 1.0
    kl_coef = 0.0
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    weight_decay: float = 0.0  # AdamW's
    zero_stage: int = 2  # DeepSpeed ZeRO stage
    dtype: str = "float32"  # of the weights


@dataclass
class BaseConfig(TrainingConfig):
    """Settings of make_base.py; the defaults make models/nano-base."""

    # where the model goes; OUT.work holds checkpoints until it is done
    out: str = "models/nano-base"
    start_from: str | None = None  # a model in which stages 1 and 2 are done already: only the rest
    pretrain_steps: int = 5000  # steps of stage 1, of 32 sequences of 128 tokens
    attempt_steps: int = 4500  # steps of stage 2, of batch_size completions
    practice_steps: int = 1200  # steps of stage 3, of batch_size completions and of practice
    aim_steps: int = 800  # steps of stage 4, of the same
    final_steps: int = 300  # steps of stage 5, of the same
    expression_steps: int = 500  # steps of stage 6, of the same
    search_steps: int = 1500  # steps of stage 7, of the same and of searches to go on with
    batch_size: int = 48  # written-out attempts per step of stages 2, 3, 5 and 6
    search_batch_size: int = 24  # the same for stage 7
    aim_batch_size: int = 16  # the same for stage 4
    practice: int = 24  # sequences of scratch work per step of stage 3
    aim_practice: int = 40  # the same for stage 4
    final_practice: int = 6  # the same for stage 5
    expression_practice: int = 32  # the same for stage 6
    search_practice: int = 8  # the same for stage 7
    searches: int = 16  # searches to go on with per step of stage 7
    aim_pairs: float = 0.27  # share of pairs among the scratch work of stage 4
    # share of lines to be written as an expression among the scratch work of stage 6
    expressions: float = 0.4
    search_expressions: float = 0.15  # the same for stage 7
    practice_tokens: int = 224  # tokens of each sequence
    search_tokens: int = 384  # the same for stage 7: a search through all attempts
    learning_rate: float = 2e-3  # peak of the cosine schedule of stages 1 and 2
    practice_learning_rate: float = 1e-3  # peak of the cosine schedules of stages 3, 4, 6 and 7
    final_learning_rate: float = 5e-4  # peak of the cosine schedule of stage 5


def early_rows(config, tokenizer, problems, word_problems, step):
    """Training rows of one step of stages 1 and 2, (prompt ids, response ids); by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "rows"))
    if step <= config.pretrain_steps:
        texts = (tokenizer.encode(write_scratch_work(problems, rng, 220)) for _ in range(32))
        return [(ids[:1], ids[1:129]) for ids in texts]
    count = config.batch_size
    return completions(
        count, tokenizer, problems, word_problems, rng, write_response, write_solution
    )


@dataclass(frozen=True, kw_only=True)
class LateStage:
    """What the training rows of one of the stages 3 to 7 are made of, and how it learns."""

    name: str
    seed_label: str
    authors: dict  # of the completions
    completions: int  # per step
    practice: int  # sequences without a prompt per step
    pairs: float = 0.0  # share of pairs to be aimed in the practice
    expressions: float = 0.0  # share of lines to be written as an expression in the practice
    searches: int = 0  # searches to go on with, behind a prompt, per step
    steps: int
    learning_rate: float  # peak
    tokens: int  # of each sequence of practice


def late_stages(config):
    stage = functools.partial(
        LateStage,
        authors=AUTHORS,
        learning_rate=config.practice_learning_rate,
        tokens=config.practice_tokens,
    )
    attempts = (
        stage(
            name="stage 3",
            seed_label="population",
            authors=EARLY_AUTHORS,
            completions=config.batch_size,
            practice=config.practice,
            steps=config.practice_steps,
        ),
        stage(
            name="stage 4",
            seed_label="drill",
            authors=EARLY_AUTHORS,
            completions=config.aim_batch_size,
            practice=config.aim_practice,
            pairs=config.aim_pairs,
            steps=config.aim_steps,
        ),
        stage(
            name="stage 5",
            seed_label="stage 5",
            completions=config.batch_size,
            practice=config.final_practice,
            steps=config.final_steps,
            learning_rate=config.final_learning_rate,
        ),
    )
    return (*attempts, *search_stages(config, stage))


def search_stages(config, stage):
    return (
        stage(
            name="stage 6",
            seed_label="expressions",
            completions=config.batch_size,
            practice=config.expression_practice,
            expressions=config.expressions,
            steps=config.expression_steps,
        ),
        stage(
            name="stage 7",
            seed_label="searches",
            completions=config.search_batch_size,
            practice=config.search_practice,
            expressions=config.search_expressions,
            searches=config.searches,
            steps=config.search_steps,
            tokens=config.search_tokens,
        ),
    )


def late_rows(config, tokenizer, problems, word_problems, stage, step):
    """The same for a `LateStage`: completions of its population, and sequences of practice."""
    rng = random.Random(derive_seed(config.seed, step, stage.seed_label))
    write = functools.partial(write_population_response, authors=stage.authors)
    rows = completions(
        stage.completions, tokenizer, problems, word_problems, rng, write, write_population_solution
    )
    for _ in range(stage.practice):
        ids = tokenizer.encode(
            write_practice(problems, rng, 3 * stage.tokens, stage.pairs, stage.expressions)
        )
        rows.append((ids[:1], ids[1 : stage.tokens + 1]))
    for _ in range(stage.searches):
        prompt, response = write_search(problems, tokenizer, rng)
        rows.append(
            (tokenizer.encode(prompt), tokenizer.encode(response) + [tokenizer.eos_token_id])
        )
    return rows


def completions(count, tokenizer, problems, word_problems, rng, write_attempts, write_story):
    rows = []
    for _ in range(count):
        if rng.random() < WORD_PROBLEMS:
            problem = rng.choice(word_problems)
            prompt = gsm8k.format_prompt(problem, tokenizer)
            response = write_story(problem, rng)
        else:
            problem = rng.choice(problems)
            nums = rng.sample(problem["nums"], len(problem["nums"]))
            prompt = countdown.format_prompt({**problem, "nums": nums}, tokenizer)
            response = write_attempts(nums, problem["target"], rng)
        rows.append(
            (tokenizer.encode(prompt), tokenizer.encode(response) + [tokenizer.eos_token_id])
        )
    return rows


def number_problems(config):
    """Those of Countdown, without the ones that `config.exclude` has."""
    seed = derive_seed(config.seed, "sft problems")
    problems = countdown.generate_problems("train", config.problems, seed)
    if not config.exclude:
        return problems
    excluded = {countdown.problem_key(p) for p in countdown.load_problems("all", config.exclude)}
    kept = [p for p in problems if countdown.problem_key(p) not in excluded]
    left_out = f"{len(problems) - len(kept)} of {len(problems)} problems left out"
    print(f"{left_out} because {config.exclude} has them")
    return kept


def make_base(config):
    """Train the base model in one process, or go on with it, and save it."""
    init_distributed()
    tokenizer = make_tokenizer()
    problems = number_problems(config)
    word_problems = gsm8k.generate_problems(
        "train", config.problems, derive_seed(config.seed, "sft word problems")
    )
    work = f"{os.path.normpath(config.out)}.work"
    keep_settings(config, work)
    known = (config, tokenizer, problems, word_problems)
    run = functools.partial(run_steps, config, tokenizer, work)
    second = config.start_from or os.path.join(work, "after-stage-2")
    if not os.path.exists(second):
        model = lambda: make_model(config, tokenizer)
        rows = functools.partial(early_rows, *known)
        run(
            "stages 1 and 2",
            model,
            config.pretrain_steps + config.attempt_steps,
            config.learning_rate,
            rows,
            second,
        )
    before = second
    for stage in late_stages(config):
        after = os.path.join(work, f"after-{stage.name.replace(' ', '-')}")
        if stage.name == "stage 7":
            after = config.out
        if after == config.out or not os.path.exists(after):
            model = functools.partial(load_model, before, config.dtype)
            rows = functools.partial(late_rows, *known, stage)
            run(stage.name, model, stage.steps, stage.learning_rate, rows, after)
        before = after
    shutil.rmtree(work)


def as_episode(prompt_ids, response_ids, weights=None):
    """A training row as nano_sft.py has it: a token's weight, 1 by default, is its advantage."""
    e = Episode({}, prompt_ids, Completion(response_ids, [], "stop"), "")
    e.per_token["advantages"] = weights or [1.0] * e.length
    return e


def keep_settings(config, work):
    """Write the settings of a run down; UserError where it was begun with others."""
    path = os.path.join(work, "settings.json")
    settings = dataclasses.asdict(config)
    os.makedirs(work, exist_ok=True)
    if dist.get_rank() == 0 and not os.path.exists(path):
        write_text(path, json.dumps(settings))
    dist.barrier()
    with open(path) as file:
        saved = json.load(file)
    free = ("out", "save_every")
    changed = [n for n in settings if n not in free and settings[n] != saved.get(n)]
    if changed:
        raise UserError(f"{work} is of a run with another --{changed[0]}; delete it to start anew.")


def run_steps(config, tokenizer, work, name, new_model, steps, peak, rows_of, out):
    """AdamW with a cosine schedule; `work` holds checkpoints, `out` gets the result.

    A row is (prompt ids, response ids), with a third entry for the weights of its tokens. Several
    processes share each step's rows.
    """
    work = os.path.join(work, name.replace(" ", "-"))
    device = init_distributed()
    checkpoint, start = newest_checkpoint(work)
    model = load_policy(config, checkpoint, device) if checkpoint else new_model().to(device)
    if dist.get_rank() == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{name}: {parameters:,} parameters, {len(tokenizer)} tokens", flush=True)
    engine = make_engine(model, config)
    restore_optimizer(engine, checkpoint)
    started = time.time()
    losses = []
    for step in range(start + 1, steps + 1):
        # 100 steps of warm-up, then a cosine down to a fiftieth of the peak
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        lr = peak * min(1, step / 100) * cosine
        episodes = [as_episode(*row) for row in rows_of(step)]
        mine = episodes[dist.get_rank() :: dist.get_world_size()]
        losses.append(train_step(engine, mine, config, lr)["loss"])
        if step % 20 == 0 and dist.get_rank() == 0:
            left = (time.time() - started) / (step - start) * (steps - step) / 60
            loss = sum(losses[-20:]) / len(losses[-20:])
            print(f"{name}: step {step}/{steps}  loss {loss:.3f}  {left:.0f} min left", flush=True)
        if step % config.save_every == 0:
            save_checkpoint(engine, tokenizer, work, step, config)
    save_policy(engine.module, tokenizer, out)
    if dist.get_rank() == 0:
        print(f"Saved {out}")


if __name__ == "__main__":
    import tyro

    description = "Make models/nano-base from scratch."
    settings = tyro.cli(BaseConfig, description=description, use_underscores=True)
    again = "The same command continues from the last checkpoint."
    run_script(make_base, settings, after_interrupt=again)
