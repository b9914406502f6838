"""GSM8K: word problems of primary school; the answer is one number."""

import random
import re
import zlib

# %% [markdown]
# ## The problems

# %%
BUILT_IN = {"train": 16_384, "test": 512}  # sizes of the generated splits
NAMES = "Ava Ben Carla Dan Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul".split()
THINGS = "apples books cards coins eggs flowers marbles pencils shells stamps stickers toys".split()
# A story, and the steps that solve it: a letter stands for the number of that name, r1 for the result of step 1.
# a, b, c are drawn from 2 to 99, the others from 2 to 12, again and again until every result is a whole number above 0.
STORIES = [
    ("{A} has {a} {x} and buys {b} more. Then {A} gives {c} of them to {B}. How many {x} does {A} have left?", "a+b r1-c"),
    ("{A} picks {a} {x} on Monday and {k} times as many on Tuesday. How many {x} does {A} pick in all?", "a*k a+r1"),
    ("{A} sells {a} {x} in April and half as many in May. How many {x} does {A} sell altogether?", "a/2 a+r1"),
    ("A box holds {k} {x}. {A} fills {m} boxes and has {a} {x} left over. How many {x} are there in all?", "m*k r1+a"),
    ("{A} buys {k} {x} at {m} dollars each and pays with {a} dollars. How many dollars does {A} get back?", "k*m a-r1"),
    ("{A} reads {k} pages a day from Monday to Friday and {a} pages at the weekend. How many pages is that?", "k*5 r1+a"),
    ("{A} has {a} {x}. {B} has {b} more than {A}. How many {x} do they have together?", "a+b a+r1"),
    ("{A} has {a} {x}, {b} fewer than {B}. How many {x} do they have together?", "a+b a+r1"),
    ("{A} shares {a} {x} equally among {k} friends and gives each of them {m} more. How many {x} does each get?", "a/k r1+m"),
    ("{A} bakes {a} cakes and eats {k} of them. The others go on {m} plates, equally many on each. How many are on a plate?", "a-k r1/m"),
    ("{A} earns {k} dollars an hour and works {m} hours a day. How many dollars does {A} earn in {h} days?", "k*m r1*h"),
    ("A bus carries {a} people. At the first stop {b} get off and {c} get on. How many people are on the bus now?", "a-b r1+c"),
    ("{A} saves {k} dollars a week for a bicycle that costs {a} dollars. How many are still missing after {m} weeks?", "k*m a-r1"),
    ("A hall has {k} rows of {m} chairs. {a} people sit down, one on each chair. How many chairs are free?", "k*m r1-a"),
    ("{A} buys {k} {x} at {m} dollars each and {h} {y} at {j} dollars each. How many dollars does {A} pay?", "k*m h*j r1+r2"),
    ("{A} is {a} years old and {B} is {k} times as old. How old will {B} be in {m} years?", "a*k r1+m"),
    ("{A} runs {k} miles on each of {m} days, {B} runs {h} miles on each of {j} days. How many more miles does {A} run?", "k*m h*j r1-r2"),
    ("{A} has {a} {x}. {A} gives half of them to {B}, buys {b} and loses {k}. How many {x} does {A} have now?", "a/2 r1+b r2-k"),
    ("A farm has {k} pens with {m} sheep in each and {h} pens with {j} goats in each. {a} animals are sold. How many are left?", "k*m h*j r1+r2 r3-a"),
    ("{A} needs {a} {x} and has {b}. They are sold in packs of {k}. How many packs must {A} buy?", "a-b r1/k"),
]


def solve(steps, numbers):
    """The steps of a story with its numbers, as (left, operator, right, result); None where a result is not whole or < 1."""
    values, solution = dict(numbers), []
    for index, step in enumerate(steps.split(), start=1):
        left, operator, right = re.fullmatch(r"(\w+)([-+*/])(\w+)", step).groups()
        a, b = (values[name] if name in values else int(name) for name in (left, right))
        if operator == "/" and a % b:
            return None
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        if not 1 <= result <= 999:
            return None
        values[f"r{index}"] = result
        solution.append((a, operator, b, result))
    return solution


def is_test_problem(question):
    """True for the eighth of all problems that belongs to the test split."""
    return zlib.crc32(question.encode()) % 8 == 0


def generate_problems(split, size, seed):
    """`size` distinct word problems with GSM8K's columns: `question`, and `answer` with the worked solution.

        {"question": "Ava has 12 coins and buys 5 more. ...", "answer": "12+5=<<12+5=17>>17\\n17-4=<<17-4=13>>13\\n#### 13"}

    Twenty stories of 2 to 4 steps; train and test never share a problem.
    """
    rng = random.Random(f"gsm8k {split} {seed}")
    problems, seen = [], set()
    while len(problems) < size:
        story, steps = rng.choice(STORIES)
        solution = None
        while not solution:
            numbers = {name: rng.randint(2, 99 if name in "abc" else 12) for name in "abckmhj"}
            solution = solve(steps, numbers)
        (first, second), (x, y) = rng.sample(NAMES, 2), rng.sample(THINGS, 2)
        question = story.format(A=first, B=second, x=x, y=y, **numbers)
        if question in seen or is_test_problem(question) != (split == "test"):
            continue
        seen.add(question)
        lines = [f"{a}{o}{b}=<<{a}{o}{b}={result}>>{result}" for a, o, b, result in solution]
        problems.append({"question": question, "answer": "\n".join([*lines, f"#### {solution[-1][-1]}"])})
    return problems


# %% [markdown]
# ## The prompt

# %%
PROMPTS = {
    # The question alone: what the embedded nano-base was trained on.
    "short": "{question}",
}


def format_prompt(problem, tokenizer, style="short"):
    question = PROMPTS[style].format(question=problem["question"])
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": question}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + "<think>"
    return f"User: {question}\nAssistant: <think>"
