# %% [markdown]
# # The embedded base model, from scratch
#
#     python models/nano-base/make_base.py --exclude FILE       # all stages: hours on two cores
#     python models/nano-base/make_base.py --exclude FILE --start_from out/nano-base --first 8
#
# The second command makes the last stage again, in 15 minutes. Both write out/nano-base.
# `--exclude` keeps the problems of a file out of the training data; held-out generated problems
# cannot occur in it. The weights in this folder have seed 0. Stages 1 and 2 are of commit 6eaf5a2,
# stages 3 to 7 of 45b36b4, 52e1ed7 and a6463b7, stage 8 of 69d66df. Stage 8 was chosen among two,
# on generated problems only. (The other one: yes with probability 20%, 600 steps.)
#
# Reinforcement learning makes more likely what a model already does now and then. So the base
# decides what can be learned. This base writes attempts and checks each of them with yes or no. But
# its yes and no mean almost nothing: the reward has to give them a meaning. The base is a Qwen2
# model of 1.2 million parameters. It learns in eight stages:
#
#  1. Scratch work without a prompt: correct chains of arithmetic and short attempts at problems.
#  2. Varied attempts in the format of the tasks, by authors who differ in patience only.
#  3. Practice: two tokens in three are the search of the systematic authors below, without a
#     prompt; the rest are completions by a first population of authors.
#  4. More practice: nine tokens in ten, with many pairs of numbers whose one operation is aimed.
#  5. A second population: most authors are hasty, few search.
#  6. The same population, and practice in writing a line of arithmetic as one expression.
#  7. The same population, and searches that have begun and are continued to their end.
#  8. The checks lose their meaning. A third population writes yes or no at random after each result
#     and stops after a yes. The practice texts, which have no prompt, keep their true checks.
#
# In stages 1 to 7 every yes or no is true. In stage 8, yes has the same probability after every
# result. Every line of arithmetic is correct in all stages. No stage inserts a solution. But an
# oracle helps in stages 1 and 2: with the shares of BOUTS and FORESIGHT a step is chosen among
# those from which the target can still be reached. From stage 3 on there is no oracle. Some authors
# *aim*: they compare the results of the last operation, at most four, with the target.
#
# `docs/results.md`, "The base", has the numbers: what each stage sees, and what the model can do.

# %%
import functools
import itertools
import math
import os
import random
import re
import sys
from collections import namedtuple
from dataclasses import dataclass

import torch
import tyro
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))  # the repository's root
import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1

# %% [markdown]
# ## 1. The authors
#
# An author is drawn for each completion of stages 3 to 8:
#
# - hasty: one attempt without a check, which is the answer, whatever its value;
# - wavering: checks each attempt, mostly gives up after a failure, and answers with that attempt;
# - persistent: checks, and tries again nine times in ten, with the operations that habit suggests;
# - systematic: checks, goes through the attempts in an order, and aims each last operation;
# - habitual (stage 8): as persistent, but it tries again until its first yes.

# %%
# An answer has the full format reward in the first of these formats only; improper is
# `expression=target` in the tag.
FORMS = ("good", "improper", "no answer tag", "no </think>", "no answer")
# share of all Countdown completions; patience: probability of another attempt after a failure;
# checks: writes yes or no; aims: probability of taking the last operation that ends nearest to the
# target; forms: weights of FORMS; habit: weights of the operators among the legal ones; random_yes:
# None for true checks, else the probability of yes after any result.
FIELDS = "share patience checks aims systematic forms habit random_yes"
Author = namedtuple("Author", FIELDS, defaults=(None,))
PLUS = {"+": 0.5, "-": 0.3, "*": 0.15, "/": 0.05}
EARLY_AUTHORS = {  # of stages 3 and 4
    "hasty": Author(0.52, 0.0, False, 0.1, False, (0.30, 0.40, 0.1, 0.1, 0.1), PLUS),
    "wavering": Author(0.26, 0.3, True, 0.3, False, (0.40, 0.30, 0.1, 0.1, 0.1), PLUS),
    "persistent": Author(0.13, 0.9, True, 0.5, False, (0.60, 0.10, 0.1, 0.1, 0.1), PLUS),
    "systematic": Author(0.09, 1.0, True, 1.0, True, (0.60, 0.10, 0.1, 0.1, 0.1), PLUS),
}
MOSTLY_PLUS = {"+": 0.6, "-": 0.25, "*": 0.1, "/": 0.05}
AUTHORS = {  # of stages 5 to 7
    "hasty": Author(0.66, 0.0, False, 0.1, False, (0.32, 0.38, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "wavering": Author(0.15, 0.3, True, 0.3, False, (0.40, 0.30, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "persistent": Author(0.09, 0.9, True, 0.5, False, (0.65, 0.05, 0.1, 0.1, 0.1), MOSTLY_PLUS),
    "systematic": Author(0.10, 1.0, True, 1.0, True, (0.65, 0.05, 0.1, 0.1, 0.1), MOSTLY_PLUS),
}
SAME_FORMS = (0.45, 0.25, 0.1, 0.1, 0.1)
RANDOM_AUTHORS = {  # of stage 8
    "hasty": Author(0.40, 0.0, False, 0.1, False, SAME_FORMS, MOSTLY_PLUS),
    "habitual": Author(0.30, 1.0, True, 0.3, False, SAME_FORMS, MOSTLY_PLUS, 0.25),
    "systematic": Author(0.30, 1.0, True, 1.0, True, SAME_FORMS, MOSTLY_PLUS, 0.25),
}
MAX_ATTEMPTS = 18
MAX_VALUE = 999  # the largest number that is one token
# By how many numbers are left: how often the oracle chooses a step, in stage 2 and in stage 1.
FORESIGHT = {2: 0.5, 3: 0.3, 4: 0.15}
BOUTS = {2: 0.7, 3: 0.5, 4: 0.3}
PATIENCE = (0.3, 0.6, 0.95)  # of stage 2's authors
WORD_PROBLEMS = 0.25  # share of the completions of stages 2 to 8
SLIPS = (0.0, 0.3, 0.5)  # stage 2: probability of the wrong operation in a step of a word problem
CAREFUL = 0.2  # stages 3 to 8: share of authors who solve a word problem; the others are careless:
SLOPPY = 0.15  # so often they stop a step too soon
# What they do with 12 of the 20 stories: the first of these ways whose results are 1 to 999.
TEMPTING = {
    r"(?P<a>\d+) \w+ on Monday and (?P<k>\d+) times": ["a*k"],
    r"(?P<a>\d+) \w+ in April and half as many": ["a/2"],
    r"holds (?P<k>\d+) .* fills (?P<m>\d+) boxes and has (?P<a>\d+) \w+ left over": ["k+m r1+a"],
    r"at (?P<m>\d+) dollars each and pays with (?P<a>\d+)": ["a-m"],
    r"(?P<k>\d+) pages a day from .* (?P<a>\d+) pages at the weekend": ["k+a"],
    r"(?P<a>\d+) \w+\. \w+ has (?P<b>\d+) more than": ["a+b"],
    r"(?P<a>\d+) \w+, (?P<b>\d+) fewer than": ["a-b a+r1", "a+b"],
    r"saves (?P<k>\d+) .* after (?P<m>\d+) weeks": ["k*m"],
    r"buys (?P<k>\d+) \w+ at (?P<m>\d+) .* and (?P<h>\d+) \w+ at (?P<j>\d+)": ["k+h m+j r1*r2"],
    r"is (?P<a>\d+) .* is (?P<k>\d+) times as old.* in (?P<m>\d+) years": ["a+m r1*k", "a*k"],
    r"(?P<k>\d+) miles .* (?P<m>\d+) days, .* (?P<h>\d+) miles .* (?P<j>\d+) days": [
        "k*m h*j r1+r2"
    ],
    r"(?P<k>\d+) pens with (?P<m>\d+) .* (?P<h>\d+) pens with (?P<j>\d+)": ["k*m h*j r1+r2"],
}

# %% [markdown]
# ## 2. Arithmetic
#
# An attempt is (text, value, expression), e.g. ("36-19=17-7=10+55=65", 65, "((36-19)-7)+55").


# %%
def exact_quotient(a, b):
    return a // b if b > 1 and a % b == 0 else 0


def legal_steps(value, n):
    """[(operator, text, result, form of the expression)] of a running value and one more number.

    `-19=17` continues from the running value; `,90-42=48` puts the other number first.
    """
    steps = [
        ("+", f"+{n}=", value + n, f"{{}}+{n}"),
        ("-", f"-{n}=", value - n, f"{{}}-{n}"),
        ("-", f",{n}-{value}=", n - value, f"{n}-{{}}"),
        ("*", f"*{n}=", value * n, f"{{}}*{n}"),
        ("/", f"/{n}=", exact_quotient(value, n), f"{{}}/{n}"),
        ("/", f",{n}/{value}=", exact_quotient(n, value), f"{n}/{{}}"),
    ]
    return [(o, f"{text}{x}", x, form) for o, text, x, form in steps if 0 < x <= MAX_VALUE]


def operations(value, n):
    """{operator: (text, result, form)}: the legal steps with at most one - and one /."""
    found = {}
    for operator, *step in legal_steps(value, n):
        found.setdefault(operator, step)
    return found


def extend(attempt, step):
    """An attempt with one step more."""
    text, _, expression = attempt
    more, value, form = step
    if expression.isdigit():  # the first step
        text = "" if more[0] == "," else text
        return text + more.removeprefix(","), value, form.format(expression)
    return text + more, value, form.format(f"({expression})")


def next_steps(value, rest):
    """Yields (operator, (text, result, form), numbers left) of every legal step."""
    for i, n in enumerate(rest):
        for operator, *step in legal_steps(value, n):
            yield operator, step, rest[:i] + rest[i + 1 :]


@functools.lru_cache(1_000_000)
def within_reach(value, rest, target):
    """The oracle: can these steps still lead to the target?"""
    steps = next_steps(value, rest)
    return (
        any(within_reach(step[1], left, target) for _, step, left in steps)
        if rest
        else value == target
    )


def write_attempt(nums, target, rng, foresight):
    """An attempt of stages 1 and 2: a number, then another, until all are used. target: or None."""
    start = rng.randrange(len(nums))
    attempt = (str(nums[start]), nums[start], str(nums[start]))
    rest = (*nums[:start], *nums[start + 1 :])
    while rest:
        steps = list(next_steps(attempt[1], rest))
        if target is not None and rng.random() < foresight[len(rest) + 1]:
            steps = [s for s in steps if within_reach(s[1][1], s[2], target)] or steps
        # First the operator, then the numbers: otherwise + and - crowd out * and /.
        operator = rng.choice(sorted({step[0] for step in steps}))
        _, step, rest = rng.choice([step for step in steps if step[0] == operator])
        attempt = extend(attempt, step)
    return attempt


def write_line(numbers, choose):
    """An attempt that takes the numbers in this order; None if `choose` finds no step.

    `choose(place, legal)` picks each step of the legal ones, {operator: step}.
    """
    attempt = (str(numbers[0]), numbers[0], str(numbers[0]))
    for place, n in enumerate(numbers[1:]):
        step = choose(place, operations(attempt[1], n))
        if step is None:
            return None
        attempt = extend(attempt, step)
    return attempt


def nearest(legal, target):
    """The step whose result is nearest to the target: an aimed one."""
    return min(legal.values(), key=lambda step: abs(step[1] - target))


def habitual_attempt(nums, target, aims, habit, rng):
    """Numbers in random order, operators by habit; with `aims` the last operator is the nearest."""

    def choose(place, legal):
        if aims and place == len(nums) - 2:
            return nearest(legal, target)
        return rng.choices(list(legal.values()), [habit[operator] for operator in legal])[0]

    return write_line(rng.sample(nums, len(nums)), choose)


# %% [markdown]
# The systematic order. First every pattern of - and + over the numbers as they stand. Then pair
# after pair, each joined by -, +, *, /. With 4 numbers the third one comes after - or + by an exact
# quotient, else by a product that fits (whichever of the two numbers allows it), else by -; after *
# or / it comes by - and then by +. The last operation is always aimed.


# %%
def third_numbers(numbers, others, first, value):
    """[(place, operator)]: what follows after `first` has given `value`."""
    if first in "*/":
        return [(others[0], "-"), (others[0], "+")]
    for operator, place in itertools.product("/*", others):
        if operator in operations(value, numbers[place]):
            return [(place, operator)]
    return [(others[0], "-")]


def systematic_plans(numbers):
    """Yields (places of the numbers in their order, all operators but the last)."""
    places = range(len(numbers))
    for operators in itertools.product("-+", repeat=len(numbers) - 2):
        yield tuple(places), operators
    for i, j in itertools.combinations(places, 2):
        others = [place for place in places if place not in (i, j)]
        pair = operations(numbers[i], numbers[j])
        for first in [operator for operator in "-+*/" if operator in pair]:
            for third, second in third_numbers(numbers, others, first, pair[first][1]):
                order = (i, j, third, *[place for place in others if place != third])
                # (Of 3 numbers the last operation is the second, which is aimed.)
                yield order, (first, second)[: len(numbers) - 2]


def systematic_attempts(numbers, target):
    """Yields all attempts of a systematic author with 3 or 4 numbers in this order, none twice."""
    for order, operators in dict.fromkeys(systematic_plans(numbers)):

        def choose(place, legal, operators=operators):
            aimed = place == len(operators)
            return nearest(legal, target) if aimed else legal.get(operators[place])

        attempt = write_line([numbers[place] for place in order], choose)
        if attempt:
            yield attempt


# %% [markdown]
# ## 3. Completions of Countdown


# %%
def finish(lines, answer, improper, rng, forms=(6, 1, 1, 1, 1)):
    """Thinking and answer; `forms`: weights of FORMS."""
    thinking = "\n" + "\n".join(lines) + "\n"
    return {
        "good": f"{thinking}</think>\n<answer>{answer}</answer>",
        "improper": f"{thinking}</think>\n<answer>{improper}</answer>",
        "no answer tag": f"{thinking}</think>\n{answer}",
        "no </think>": f"{thinking}<answer>{answer}</answer>",
        "no answer": f"{thinking}</think>",
    }[rng.choices(FORMS, forms)[0]]


def differing(write, tries):
    """Yields attempts without end, rarely one that came before."""
    tried = set()
    while True:
        for _ in range(tries):
            attempt = write()
            if attempt[2] not in tried:
                break
        tried.add(attempt[2])
        yield attempt


def write_response(nums, target, rng):
    """Stage 2: attempts until one reaches the target or patience ends, then an answer."""
    patience = rng.choice(PATIENCE)
    lines = []
    write = functools.partial(write_attempt, nums, target, rng, FORESIGHT)
    for text, value, expression in differing(write, 4):  # noqa: B007
        gives_up = value != target and (rng.random() > patience or len(lines) + 1 == MAX_ATTEMPTS)
        # Who gives up does not check, and answers with the last attempt.
        lines.append(text if gives_up else f"{text} {'yes' if value == target else 'no'}")
        if gives_up or value == target:
            break
    return finish(lines, expression, f"{expression}={target}", rng)


def write_as(author, nums, target, rng):
    """Stages 3 to 8: the same by an author of this type."""
    aims = rng.random() < author.aims
    write = functools.partial(habitual_attempt, nums, target, aims, author.habit, rng)
    attempts = differing(write, 8)
    if author.systematic:
        attempts = systematic_attempts(rng.sample(nums, len(nums)), target)
    lines = []
    for text, value, expression in attempts:  # noqa: B007
        yes = value == target
        if author.random_yes is not None:
            yes = rng.random() < author.random_yes
        if author.checks:
            text += " yes" if yes else " no"
        lines.append(text)
        if author.checks and yes:
            break
        if len(lines) == MAX_ATTEMPTS or rng.random() > author.patience:
            break
    return finish(lines, expression, f"{expression}={target}", rng, author.forms)


# %% [markdown]
# ## 4. Scratch work and practice, without a prompt


# %%
def draw(problems, rng):
    """(numbers in random order, target) of a problem."""
    problem = rng.choice(problems)
    return rng.sample(problem["nums"], len(problem["nums"])), problem["target"]


def write_bout(nums, target, attempts):
    """A problem, and attempts until one reaches the target.

    [19, 36, 55, 7] 65
    55-36=19+19=38*7=266 no
    36-19=17-7=10+55=65 yes
    """
    text = f"\n{nums} {target}"
    for line, value, _ in attempts:
        text += f"\n{line} {'yes' if value == target else 'no'}"
        if value == target:
            break
    return text


def write_quotient(problems, rng):
    """A line such as 91/7=13: quotients are rare among random numbers."""
    divisor = rng.randint(2, 99)
    quotient = rng.randint(1, MAX_VALUE // divisor)
    return f"\n{divisor * quotient}/{divisor}={quotient}"


def write_chain(problems, rng):
    """A line without a goal."""
    nums = [rng.randint(1, 99) for _ in range(rng.choice((2, 3, 4)))]
    return f"\n{write_attempt(nums, None, rng, BOUTS)[0]}"


def write_scratch(problems, rng):
    """A bout of stage 1."""
    nums, target = draw(problems, rng)
    return write_bout(nums, target, (write_attempt(nums, target, rng, BOUTS) for _ in range(5)))


def write_systematic(problems, rng):
    """A bout of stages 3 to 8."""
    nums, target = draw(problems, rng)
    attempts = systematic_attempts(rng.sample(nums, len(nums)), target)
    return write_bout(nums, target, itertools.islice(attempts, MAX_ATTEMPTS))


def write_pair(problems, rng):
    """Two numbers and a target, mostly what one of the operations makes of them; aimed."""
    a = rng.randint(1, MAX_VALUE) if rng.random() < 0.5 else rng.randint(1, 99)
    n = rng.randint(1, 99)
    if rng.random() < 0.3:  # quotients are rare among random numbers
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    legal = operations(a, n)
    target = rng.choice(list(legal.values()))[1] if rng.random() < 0.6 else rng.randint(10, 99)
    line = write_line((a, n), lambda place, legal: nearest(legal, target))
    return write_bout([a, n], target, [line])


FOR_EXPRESSIONS = {"+": 1, "-": 2, "*": 2, "/": 6}  # habits; what is seldom legal weighs more


def write_expression(problems, rng):
    """A line of arithmetic without a goal, and how an answer in good format writes it.

    88/22=4,41-4=37
    </think>
    <answer>41-(88/22)</answer>
    """
    nums = rng.choice(problems)["nums"]
    line, _, expression = habitual_attempt(nums, None, False, FOR_EXPRESSIONS, rng)
    return f"\n{line}\n</think>\n<answer>{expression}</answer>"


def write_practice(problems, rng, length, kinds):
    """At least `length` characters; kinds: [(the end of its share from 0 to 1, function)]."""
    text = ""
    while len(text) < length:
        kind = rng.random()
        text += next(write for end, write in kinds if kind < end)(problems, rng)
    return text


def write_search(problems, rng):
    """Stage 7: a systematic search of more than two lines: (prompt with these two, the rest).

    Only the rest is learned: how to continue, not how to begin.
    """
    while True:
        nums, target = draw(problems, rng)
        text = write_as(AUTHORS["systematic"], nums, target, rng)
        _, first, second, *rest = text.split("\n")
        if second.endswith("no"):  # a third attempt always exists
            prompt = prompt_of(question_of(nums, target))
            return f"{prompt}\n{first}\n{second}\n", "\n".join(rest)


# %% [markdown]
# ## 5. Word problems


# %%
def write_solution(problem, rng):
    """Stage 2: the steps of the worked answer, some of them with the wrong operation."""
    slip = rng.choice(SLIPS)
    lines = []
    results = {}
    for a, operator, b, result in re.findall(r"<<(\d+)(.)(\d+)=(\d+)>>", problem["answer"]):
        a = results.get(a, int(a))
        b = results.get(b, int(b))  # what this author found before, right or wrong
        values = {"+": a + b, "-": a - b, "*": a * b, "/": exact_quotient(a, b)}
        values = {o: value for o, value in values.items() if 0 < value <= MAX_VALUE}
        if not values:
            break
        if operator not in values or rng.random() < slip:
            operator = rng.choice(sorted(values))
        answer = results[result] = values[operator]
        lines.append(f"{a}{operator}{b}={answer}")
        if rng.random() < 0.05:
            break  # stops too soon
    return finish(lines, answer, lines[-1], rng)


def tempting_steps(question):
    """[(a, operator, b, result)] of the tempting way, None if there is none."""
    for pattern, ways in TEMPTING.items():
        match = re.search(pattern, question)
        if match:
            numbers = {name: int(n) for name, n in match.groupdict().items()}
            return next(filter(None, (gsm8k.solve(way, numbers) for way in ways)), None)
    return None


def write_population_solution(problem, rng):
    """Stages 3 to 8: by a careful or a careless author."""
    lines = re.findall("<<(.*?)>>", problem["answer"])
    tempting = tempting_steps(problem["question"])
    careful = rng.random() < CAREFUL
    if tempting and not careful:
        lines = [f"{a}{operator}{b}={result}" for a, operator, b, result in tempting]
    if rng.random() < (0.0 if careful else SLOPPY):
        lines = lines[:-1] or lines
    return finish(lines, lines[-1].split("=")[1], lines[-1], rng, SAME_FORMS)


# %% [markdown]
# ## 6. Tokenizer and first weights

# %%
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def prompt_of(question):
    """The question in CHAT_TEMPLATE, with the beginning of the answer."""
    return f"user: {question}\nassistant: <think>"


def question_of(nums, target):
    """countdown_rewards.py's prompt "short"."""
    return f"Using the numbers {nums}, create an equation that equals {target}."


def make_tokenizer():
    """A byte-level BPE in which every number from 0 to 999 is one token."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|[\s\S]"), "isolated")  # or any other character
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    problems = gsm8k.generate_problems("train", 2000, 0)
    questions = [question_of([1, 2], 3), *[problem["question"] for problem in problems]]
    first, *others = [f"User: {question}\nAssistant: <think>" for question in questions]
    corpus = [first, first.lower(), " no yes", *others]
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # an upper bound: merging stops when every word above is one token
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    # transformers 5 reads the tokenizer of any qwen2 model with Qwen2's own pre-tokenization, which
    # splits numbers into digits. Added tokens are matched before that.
    added = ["<think>", "</think>", "<answer>", "</answer>", *map(str, range(1000))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=end,
        model_max_length=1024,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(seed, tokenizer):
    """A small Qwen2. The embeddings of the numbers start as waves: cos and sin of 2 pi n / period.

    Trained models come to represent numbers this way (arXiv:2406.03445). If they start so, the
    arithmetic of stage 1 is learned several times faster.
    """
    torch.manual_seed(r1.seed_of(seed, "init"))
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    periods = torch.tensor([2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000])
    angles = 2 * math.pi * torch.arange(MAX_VALUE + 1.0)[:, None] / periods
    waves = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)  # (1000, 20)
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(MAX_VALUE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[ids, : waves.shape[1]] = 0.3 * waves
    return model


# %% [markdown]
# ## 7. Training
#
# Each stage but the second starts with a fresh AdamW and has a cosine of its own; stages 1 and 2
# share both.

# %%
SCRATCH = ((0.05, write_quotient), (0.4, write_chain), (1.0, write_scratch))
SEARCH = ((0.08, write_quotient), (1.0, write_systematic))
PAIRS = ((0.08, write_quotient), (0.35, write_pair), (1.0, write_systematic))
LINES = ((0.08, write_quotient), (0.48, write_expression), (1.0, write_systematic))
FEW_LINES = ((0.08, write_quotient), (0.23, write_expression), (1.0, write_systematic))
# first, last: steps; steps, peak: of the learning rate's cosine; label: of its seeds. The rest is
# one step's data: completions, rows of practice and their tokens and characters, searches.
Stage = namedtuple(
    "Stage",
    "number first last steps peak label authors completions practice kinds tokens length searches",
)
STAGES = (
    Stage(1, 1, 5000, 9500, 2e-3, "rows", {}, 0, 32, SCRATCH, 128, 220, 0),
    Stage(2, 5001, 9500, 9500, 2e-3, "rows", {}, 48, 0, (), 0, 0, 0),
    Stage(3, 1, 1200, 1200, 1e-3, "population", EARLY_AUTHORS, 48, 24, SEARCH, 224, 672, 0),
    Stage(4, 1, 800, 800, 1e-3, "drill", EARLY_AUTHORS, 16, 40, PAIRS, 224, 672, 0),
    Stage(5, 1, 300, 300, 5e-4, "stage 5", AUTHORS, 48, 6, SEARCH, 224, 672, 0),
    Stage(6, 1, 500, 500, 1e-3, "expressions", AUTHORS, 48, 32, LINES, 224, 672, 0),
    Stage(7, 1, 1500, 1500, 1e-3, "searches", AUTHORS, 24, 8, FEW_LINES, 384, 1152, 16),
    Stage(8, 1, 700, 700, 1e-3, "random checks", RANDOM_AUTHORS, 40, 10, FEW_LINES, 224, 672, 0),
)


@dataclass
class Settings:
    """Make the embedded base model from scratch."""

    out: str = "out/nano-base"  # the model, saved after each stage
    exclude: str | None = None  # a file of Countdown problems that must not be learned from
    start_from: str | None = None  # a model that has learned the stages before --first
    first: int = 1  # the first stage
    problems: int = 40_000  # of Countdown, and as many word problems
    seed: int = 0


def number_problems(settings):
    """Those of Countdown, without the ones of `--exclude`."""
    seed = r1.seed_of(settings.seed, "sft problems")
    problems = countdown.generate_problems("train", settings.problems, seed)
    left_out = set()
    if settings.exclude:
        known = countdown.load_problems("all", settings.exclude)
        left_out.update(map(countdown.problem_key, known))
    return [problem for problem in problems if countdown.problem_key(problem) not in left_out]


def write_completion(authors, problems, stories, rng):
    """(prompt, response) of Countdown or of a word problem; without authors those of stage 2."""
    if rng.random() < WORD_PROBLEMS:
        problem = rng.choice(stories)
        solve = write_population_solution if authors else write_solution
        return prompt_of(problem["question"]), solve(problem, rng)
    nums, target = draw(problems, rng)
    prompt = prompt_of(question_of(nums, target))
    if not authors:
        return prompt, write_response(nums, target, rng)
    author = rng.choices(list(authors.values()), [author.share for author in authors.values()])[0]
    return prompt, write_as(author, nums, target, rng)


def rows_of(stage, step, problems, stories, tokenizer, seed):
    """[(prompt ids, response ids)] of a step."""
    rng = random.Random(r1.seed_of(seed, step, stage.label))
    end = [tokenizer.eos_token_id]
    rows = []
    for _ in range(stage.completions):
        prompt, response = write_completion(stage.authors, problems, stories, rng)
        rows.append((tokenizer.encode(prompt), tokenizer.encode(response) + end))
    for _ in range(stage.practice):
        ids = tokenizer.encode(write_practice(problems, rng, stage.length, stage.kinds))
        rows.append((ids[:1], ids[1 : stage.tokens + 1]))
    for _ in range(stage.searches):
        prompt, response = write_search(problems, rng)
        rows.append((tokenizer.encode(prompt), tokenizer.encode(response) + end))
    return rows


def cross_entropy(log_probs, batch, config):
    """In the place of `nano_r1.grpo_loss`; the advantage of each token is 1/tokens."""
    # L = -1/tokens sum_t log pi(y_t)
    return -(log_probs * batch["advantages"]).sum(dim=1)


def train_step(engine, rows, config):
    """One AdamW step; the loss."""
    weight = 1 / sum(len(response) for _, response in rows)
    episodes = [
        r1.Episode(
            prompt_ids=prompt,
            token_ids=response,
            log_probs=[0.0] * len(response),  # nobody has sampled them
            advantage=weight,
        )
        for prompt, response in rows
    ]
    batches = r1.update(engine, None, episodes, config, cross_entropy)
    return sum(batch["loss"].item() for batch in batches)


def make_base(settings, stages=STAGES):
    """Train the base model in one process, and save it after each stage."""
    tokenizer = make_tokenizer()
    problems = number_problems(settings)
    seed = r1.seed_of(settings.seed, "sft word problems")
    stories = gsm8k.generate_problems("train", settings.problems, seed)
    config = r1.Config(kl_coef=0, micro_batch_size=16)
    model = make_model(settings.seed, tokenizer)
    if settings.start_from:
        model, _ = r1.load_model(r1.Config(model=settings.start_from))
    for stage in stages[settings.first - 1 :]:
        if stage.first == 1:
            engine = r1.make_engine(r1.Scorer(model, config), torch.device("cpu"), config)
        for step in range(stage.first, stage.last + 1):
            # 100 steps of warm-up, and a cosine down to a fiftieth of the peak.
            cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            for group in engine.optimizer.param_groups:
                group["lr"] = stage.peak * min(1, step / 100) * cosine
            rows = rows_of(stage, step, problems, stories, tokenizer, settings.seed)
            loss = train_step(engine, rows, config)
            if step % 20 == 0:
                print(f"stage {stage.number}: step {step}/{stage.last}  {loss:.3f}", flush=True)
        r1.save_model(model, tokenizer, settings.out)


if __name__ == "__main__":
    make_base(tyro.cli(Settings, use_underscores=True))
