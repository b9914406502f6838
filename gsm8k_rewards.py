r"""GSM8K: word problems of primary school; the answer is one number.

A problem of the generator, and a completion that earns the full reward of 2 (the prompt has opened
`<think>`):

    question: Iris has 64 eggs and buys 33 more. Then Iris gives 40 of them to Ella. How many eggs
              does Iris have left?
    answer:   64+33=<<64+33=97>>97\n97-40=<<97-40=57>>57\n#### 57

    64+33=97
    97-40=57
    </think>
    <answer>57</answer>

The reward (0 to 2) is a sum of two parts:
    format 1.0  thinking, `</think>`, then one answer block with a bare number: -7, 43,500, 7/14
           0.5  the same tags, but something else, or more than the number: $8,400, 72 degrees
           0.0  anything else
    answer 1.0  the number in the last answer block after the thinking is the one after `####`

How a number is read (plumbing/stated_number.py), as an exact fraction: 7, 7.0 and 14/2 are the
same, 33.3 and 100/3 are not.
    read      thousands in groups of three, by commas or spaces; a sign (- + − –) and $ £ € before
              it; % ° ¢ and up to three words, the unit, after it; \frac{7}{2}; ** **, \boxed{ },
              \( \), \[ \], $ $ and ` ` around it; a final full stop
    percent   50% is 50: GSM8K asks "what percent" and answers with the bare number
    refused   two numbers (3 or 4, 1 1/2, x = 5 + 1 = 6), groups that are not of three (1,08),
              words that change the number (5 million, 3 sevenths), a unit of one letter (5k, 5x),
              digits other than 0-9, x = 72
A refused answer pays nothing, and `why` says what was wrong. No text is executed, and none takes
more than linear time. Measured against other people's verdicts: docs/agreement.md.
"""

import random
import re
import zlib

from plumbing.data import read_problems, text_column
from plumbing.stated_number import NUMBER, PREFIX, is_bare, parse_number
from plumbing.tasks import Prompt, format_reward, last_answer, make_reward, render, strip_end

# ---- The problems

BUILT_IN = {"train": 16_384, "test": 512}  # sizes of the generated splits
NAMES = "Ava Ben Carla Dan Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul".split()
THINGS = "apples books cards coins eggs flowers marbles pencils shells stamps stickers toys".split()
# A story, and below it the steps that solve it: a is the number put in for {a}, r1 the result of
# step 1. a, b, c are drawn from 2 to 99, the others from 2 to 12, until every result is a whole
# number from 1 to 999.
STORIES = """
{A} has {a} {x} and buys {b} more. Then {A} gives {c} of them to {B}. How many {x}
does {A} have left?
    a+b r1-c
{A} picks {a} {x} on Monday and {k} times as many on Tuesday. How many {x} does {A}
pick in all?
    a*k a+r1
{A} sells {a} {x} in April and half as many in May. How many {x} does {A} sell
altogether?
    a/2 a+r1
A box holds {k} {x}. {A} fills {m} boxes and has {a} {x} left over. How many {x} are
there in all?
    m*k r1+a
{A} buys {k} {x} at {m} dollars each and pays with {a} dollars. How many dollars
does {A} get back?
    k*m a-r1
{A} reads {k} pages a day from Monday to Friday and {a} pages at the weekend. How
many pages is that?
    k*5 r1+a
{A} has {a} {x}. {B} has {b} more than {A}. How many {x} do they have together?
    a+b a+r1
{A} has {a} {x}, {b} fewer than {B}. How many {x} do they have together?
    a+b a+r1
{A} shares {a} {x} equally among {k} friends and gives each of them {m} more. How
many {x} does each get?
    a/k r1+m
{A} bakes {a} cakes and eats {k} of them. The others go on {m} plates, equally many
on each. How many are on a plate?
    a-k r1/m
{A} earns {k} dollars an hour and works {m} hours a day. How many dollars does {A}
earn in {h} days?
    k*m r1*h
A bus carries {a} people. At the first stop {b} get off and {c} get on. How many
people are on the bus now?
    a-b r1+c
{A} saves {k} dollars a week for a bicycle that costs {a} dollars. How many are
still missing after {m} weeks?
    k*m a-r1
A hall has {k} rows of {m} chairs. {a} people sit down, one on each chair. How many
chairs are free?
    k*m r1-a
{A} buys {k} {x} at {m} dollars each and {h} {y} at {j} dollars each. How many
dollars does {A} pay?
    k*m h*j r1+r2
{A} is {a} years old and {B} is {k} times as old. How old will {B} be in {m} years?
    a*k r1+m
{A} runs {k} miles on each of {m} days, {B} runs {h} miles on each of {j} days. How
many more miles does {A} run?
    k*m h*j r1-r2
{A} has {a} {x}. {A} gives half of them to {B}, buys {b} and loses {k}. How many {x}
does {A} have now?
    a/2 r1+b r2-k
A farm has {k} pens with {m} sheep in each and {h} pens with {j} goats in each. {a}
animals are sold. How many are left?
    k*m h*j r1+r2 r3-a
{A} needs {a} {x} and has {b}. They are sold in packs of {k}. How many packs must
{A} buy?
    a-b r1/k
"""
# Of the test split alone. The embedded base has not met them either.
NEW_STORIES = """
{A} is {a} years old and {B} is {k} years younger. How old are the two together?
    a-k a+r1
{A} walks {k} miles in the morning and {m} miles in the evening, on each of {h}
days. How many miles is that?
    k+m r1*h
A tank holds {a} liters. In each of {m} hours {k} liters flow out. How many liters
are left?
    k*m a-r1
A book has {a} pages and {A} has read {b} of them. From now on {A} reads {k} pages
a day. How many days are needed for the others?
    a-b r1/k
{A} has {a} {x}. {B} has half as many and finds {k} more. How many {x} does {B}
have?
    a/2 r1+k
{A} cuts a rope of {a} feet into {k} equal pieces. How many feet are {m} such pieces?
    a/k r1*m
A train has {k} cars with {m} seats in each. {a} seats are taken. How many seats
are free?
    k*m r1-a
{A} needs {a} points to win. {A} has {b} points and gets {k} more. How many points
are still missing?
    b+k a-r1
{A} plants {k} rows of {m} trees and {h} of them die. {B} plants {a} trees. How many
trees are there now?
    k*m r1-h r2+a
A shop has {a} {x}. {A} buys {k} of them and {B} twice as many. How many {x} are
left?
    k*2 k+r1 a-r2
"""


def read_stories(text):
    """[(story, steps)]"""
    pairs = re.findall(r"((?:\S.*\n)+)    (.*)\n", text)
    return [(" ".join(story.split()), steps) for story, steps in pairs]


STORIES = read_stories(STORIES)
NEW_STORIES = read_stories(NEW_STORIES)


def solve(steps, numbers):
    """The solved steps of a story: (left, operator, right, result); or None."""
    values = dict(numbers)
    solution = []
    for index, step in enumerate(steps.split(), start=1):
        left, operator, right = re.fullmatch(r"(\w+)([-+*/])(\w+)", step).groups()
        a = values[left] if left in values else int(left)
        b = values[right] if right in values else int(right)
        if operator == "/" and a % b:
            return None
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]  # b is not 0
        if not 1 <= result <= 999:
            return None
        values[f"r{index}"] = result
        solution.append((a, operator, b, result))
    return solution


def is_test_problem(question):
    """True for the eighth of all problems that belongs to the test split."""
    return zlib.crc32(question.encode()) % 8 == 0


def generate_problems(split, size, seed):
    """`size` distinct word problems with GSM8K's columns: `question` and the worked `answer`.

    Twenty stories of 2 to 4 steps, far narrower than GSM8K, in both splits, which share no problem;
    ten more in the test split alone (`new_story` is 1).
    """
    rng = random.Random(f"gsm8k {split} {seed}")
    stories = STORIES + NEW_STORIES if split == "test" else STORIES
    problems = {}
    while len(problems) < size:
        story, steps = rng.choice(stories)
        solution = None
        while not solution:
            numbers = {name: rng.randint(2, 99 if name in "abc" else 12) for name in "abckmhj"}
            solution = solve(steps, numbers)
        first, second = rng.sample(NAMES, 2)
        x, y = rng.sample(THINGS, 2)
        question = story.format(A=first, B=second, x=x, y=y, **numbers)
        if is_test_problem(question) == (split == "test"):
            lines = [f"{a}{o}{b}=<<{a}{o}{b}={result}>>{result}" for a, o, b, result in solution]
            answer = "\n".join([*lines, f"#### {solution[-1][-1]}"])
            row = {"question": question, "answer": answer}
            new = {"new_story": 1} if (story, steps) in NEW_STORIES else {}
            problems.setdefault(question, row | new)
    return list(problems.values())


HUB_DATASET = {
    "path": "openai/gsm8k",
    "name": "main",
}  # 7,473 problems to train on, 1,319 to test on
MAX_TEXT = 100_000  # characters in a row's question or answer; the longest real one has 1,228


def problem_key(problem):
    """What makes two problems the same: the question, whatever its spacing and case."""
    return " ".join(problem["question"].lower().split())


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `question` and `answer` (str), which ends in `#### 57` or is 57.

    source: None for the built-in generator, "hub" for `openai/gsm8k` with its own two splits, else
    a file's path. What is wrong with a source is a ValueError, one sentence; docs/own_task.md says
    what `split` and `seed` are.
    """
    if source is None:  # the same 512 test problems for every seed: runs can be compared
        return generate_problems(split, BUILT_IN[split], seed if split == "train" else 0)
    columns = ("question", "answer")
    return read_problems(split, source, seed, columns, _problem, HUB_DATASET, key=problem_key)


def _problem(row):
    """The two columns; ValueError if they are not what they should be."""
    answer = row["answer"]
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        row = {**row, "answer": str(answer)}
    problem = {name: text_column(row, name, MAX_TEXT) for name in ("question", "answer")}
    gold(problem)
    return problem


def gold(problem):
    """The number after the last `####` of the answer, or all of it, as a Fraction."""
    answer = problem["answer"]
    number = answer.rpartition("####")[2]
    try:
        return parse_number(number)
    except ValueError:
        got = f"{answer[-60:]!r:.80}"
        expected = "expected an answer that ends in #### and a number, or is a number"
        raise ValueError(f"{expected}, got {got}") from None


# ---- The prompt

INSTRUCTIONS = (
    "{question}\n\nThink step by step inside <think> </think> tags, then give only the final "
    "number inside <answer> </answer> tags, for example <answer>42</answer>."
)
PROMPTS = {
    # The question alone: what the embedded nano-base was trained on.
    "short": Prompt("{question}"),
    # With instructions: what a model needs that has never seen the task.
    "chat": Prompt(INSTRUCTIONS),
    # The same for a base model that knows no chat template.
    "plain": Prompt(INSTRUCTIONS + "\n", chat=False),
}


def format_prompt(problem, tokenizer, style="short"):
    """The prompt as text: the user's turn in the chat template, the assistant's turn begun."""
    return render(PROMPTS[style], problem, tokenizer)


def subgroups(problem):
    """The evaluation subgroup of a problem: the steps of its worked answer (<<3+4=7>> is one).

    A story that is in the test split alone is a subgroup for itself.
    """
    if problem.get("new_story"):
        return ["new_story"]
    steps = problem["answer"].count("<<")
    return (
        [{1: "1_step", 2: "2_steps", 3: "3_steps"}.get(steps, "4_or_more_steps")] if steps else []
    )


# ---- The reward

BOUNDED = True  # linear in the text: no completion needs a limit of time


def reward(completion, problem, style="short"):
    """The `Reward` of a completion of `format_prompt(problem, tokenizer, style)`. Never raises."""
    prompt = PROMPTS[style]
    text = strip_end(completion)
    expected = gold(problem)
    form = format_reward(text, prompt, is_bare)
    try:
        value = parse_number(last_answer(text, prompt))
    except ValueError as error:
        return make_reward(prompt, form, False, str(error))
    why = f"is {value!s:.40}, not {expected!s:.40}"
    return make_reward(prompt, form, value == expected, why)


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the number of its answer block as text, or None."""
    try:
        return str(parse_number(last_answer(strip_end(completion), PROMPTS[style])))
    except ValueError:
        return None


LENIENT_TEXT = 20_000  # characters at the end of a completion in which `lenient` looks
# A minus belongs to the number unless a word, a number or a bracket stands right before it:
# 10-3 and (10)-3 end in 3.
IN_TEXT = rf"(?<![\w)\]])(?<![0-9][.,]){PREFIX}{NUMBER}"
BOXED = re.compile(r"\\boxed ?\{((?:[^{}]|\{[^{}]*\}){0,200})\}")
PLACES = (
    re.compile(rf"####\s*({IN_TEXT})"),
    re.compile(rf"(?:(?i:answer is|answer:)|\bA:)[\s:*\\(]*({IN_TEXT})"),
    re.compile(f"({IN_TEXT})"),
)


def lenient(completion, problem):
    """1.0 if the right number stands where a reader would look for it, whatever the form, else 0.0.

    The first of these that holds a number decides: the last answer block, the last \\boxed{}, what
    follows the last `####`, what follows the last "answer is" or "A:", the last number of all.
    Beside the strict reward it tells how much of a gain is format alone.
    """
    expected = gold(problem)
    for candidate in candidates(strip_end(completion[-LENIENT_TEXT:])):
        try:
            return float(parse_number(candidate) == expected)
        except ValueError:
            pass
    return 0.0


def candidates(text):
    """Where the answer may stand, the likeliest place first."""
    _, block, inside = text.rpartition("<answer>")
    if block:
        yield inside.partition("</answer>")[0]
    box = BOXED.match(text, max(0, text.rfind("\\boxed")))
    if box:
        yield box[1]
        if re.search("[0-9]", box[1]):  # \boxed{\sqrt{16}} does not say 16
            return
    for place in PLACES:
        yield from place.findall(text)[-1:]
