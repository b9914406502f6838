"""Countdown: reach a target with a few given numbers, + - * / and parentheses, each number once.

One problem, and one completion that earns the full reward of 2 (the prompt has opened `<think>`):

    {"nums": [19, 36, 55, 7], "target": 65}

    36-19=17-7=10+55=65 yes
    </think>
    <answer>((36-19)-7)+55</answer>

The reward (0 to 2) is a sum of two parts, as in nano-aha-moment; a prompt may weigh them:
    format 1.0  thinking, `</think>`, then one answer block that holds an arithmetic expression
           0.5  the same tags, but the answer block holds something else
           0.0  anything else
    answer 1.0  the last answer block after the thinking is an exact, legal solution, else 0.0
An expression is what plumbing/arithmetic.py can read: whole numbers, operators, parentheses, and
one minus sign before a number or a parenthesis. Its value is exact. Text from a model is data: it
is never executed, and no text, however long or hostile, takes more than time linear in its length.
"""

import functools
import itertools
import random
import re
import zlib

from plumbing.arithmetic import is_expression, tokenize, value_of
from plumbing.data import read_problems, whole_number, whole_numbers
from plumbing.tasks import (
    MAX_ANSWER,
    Prompt,
    format_reward,
    last_answer,
    make_reward,
    render,
    strip_end,
)
from plumbing.written_steps import are_steps, evaluate_steps, is_equation, right_side, step_lines

# ---- The problems

HUB_DATASET = "Jiayi-Pan/Countdown-Tasks-3to4"  # 490,364 problems; TinyZero trains on them
BUILT_IN = {"train": 16_384, "test": 512}  # sizes of the generated splits


def reachable(nums, operators="+-*/"):
    """The set of integers that expressions over `nums` (all of them, each once) can reach.

    An expression's last operation joins two parts that share the numbers between them. Only
    intermediate values that are whole and not negative are followed: all 1,024 real problems we
    looked at are solvable that way.
    """
    return set(_reached(tuple(sorted(nums)), operators))


@functools.lru_cache(maxsize=10_000)
def _reached(nums, operators):
    if len(nums) == 1:
        return frozenset(nums)
    reached = set()
    positions = range(len(nums))
    for size in range(1, len(nums) // 2 + 1):
        for chosen in itertools.combinations(positions, size):
            if 2 * size == len(nums) and 0 not in chosen:
                continue  # the two halves of another choice
            part = tuple(nums[i] for i in chosen)
            rest = tuple(nums[i] for i in positions if i not in chosen)
            for a in _reached(part, operators):
                for b in _reached(rest, operators):
                    reached |= _results(a, b, operators)
    return frozenset(reached)


def _results(a, b, operators):
    """The whole numbers that one operation makes of a and b, neither of them negative."""
    values = {a + b, abs(a - b)}
    if "*" in operators:
        values.add(a * b)
    if "/" in operators and b and a % b == 0:
        values.add(a // b)
    if "/" in operators and a and b % a == 0:
        values.add(b // a)
    return values


def problem_key(problem):
    """What makes two problems the same: the numbers in any order, and the target."""
    return (*sorted(problem["nums"]), problem["target"])


def is_test_problem(nums, target):
    """Whether a problem is of the eighth that is the test split, in any order of its numbers."""
    return zlib.crc32(f"{sorted(nums)}={target}".encode()) % 8 == 0


def generate_problems(split, size, seed):
    """`size` distinct solvable problems like the real ones; train and test never share one.

    As in Countdown-Tasks-3to4: 52% have 3 numbers, the others 4; numbers from 1 to 99, repeats
    allowed; targets from 10 to 100; + and - alone suffice for 63% of those with 3 numbers and for
    39% of those with 4.
    """
    rng = random.Random(f"countdown {split} {seed}")
    problems = []
    seen = set()
    while len(problems) < size:
        count = 3 if rng.random() < 0.52 else 4
        plus_minus = rng.random() < {3: 0.63, 4: 0.39}[count]
        targets = []
        while not targets:  # draw numbers until some target is of the wanted kind
            nums = [rng.randint(1, 99) for _ in range(count)]
            easy = reachable(nums, "+-")
            wanted = easy if plus_minus else reachable(nums) - easy
            targets = sorted(value for value in wanted if 10 <= value <= 100)
        problem = {"nums": nums, "target": rng.choice(targets)}
        key = problem_key(problem)
        if key not in seen and is_test_problem(nums, problem["target"]) == (split == "test"):
            seen.add(key)
            problems.append(problem)
    return problems


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `nums` (list of int) and `target` (int).

    source: None for the built-in generator, "hub" for HUB_DATASET, else a file's path. What is
    wrong with a source is a ValueError, one sentence; docs/own_task.md says what `split` and `seed`
    are.
    """
    if source is None:  # the same 512 test problems for every seed: runs can be compared
        return generate_problems(split, BUILT_IN[split], seed if split == "train" else 0)
    columns = ("nums|numbers", "target")
    hub = {"path": HUB_DATASET}
    return read_problems(
        split, source, seed, columns, _problem, hub, hub_has_test=False, key=problem_key
    )


def _problem(row):
    """The two columns as plain integers; ValueError if they are not, or no answer could be paid."""
    nums = whole_numbers(row, "numbers" if row.get("nums") is None and "numbers" in row else "nums")
    if min(nums) < 0 or len("+".join(map(str, nums))) > MAX_ANSWER:
        expected = f"expected numbers of 0 or more that fit into {MAX_ANSWER} characters"
        raise ValueError(f"{expected}, got {nums!r:.80}")
    return {"nums": nums, "target": whole_number(row, "target")}


# ---- The prompt

INSTRUCTIONS = (
    "Using the numbers {nums}, create an equation that equals {target}. You may use the operations "
    "+ - * / and parentheses, and you must use each number exactly once. "
)
TAGS = (
    "Think step by step inside <{0}> </{0}> tags, then give only the equation inside <answer> "
    "</answer> tags, for example <answer>(1 + 2) / 3</answer>."
)
STEPS = (
    "Explain your reasoning step by step. Then give your answer inside <answer> </answer> tags, "
    "either as steps, one operation on each line, the last of which gives {target}, or as a single "
    "equation. For example, for the numbers [1, 2, 3] and the target 1:\n"
    "<answer>\nStep 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1\n</answer>\n"
    "or\n<answer>\n(1 + 2) / 3\n</answer>\nLet us think step by step.\n"
)
PROMPTS = {
    # One short line: what the embedded nano-base was trained on.
    "short": Prompt("Using the numbers {nums}, create an equation that equals {target}."),
    # With instructions, nano-aha-moment's in our words: for a model that has never seen the task.
    "chat": Prompt(INSTRUCTIONS + TAGS.format("think")),
    # The same for a base model that knows no chat template.
    "plain": Prompt(INSTRUCTIONS + TAGS.format("think") + "\n", chat=False),
    # Other tags, written by the model itself; a right answer is worth twice the form
    # (Mystic-Slice/rl-grpo-countdown).
    "reasoning": Prompt(
        INSTRUCTIONS + TAGS.format("reasoning"), opening="", thinking="reasoning", weights=(1, 2)
    ),
    # The form of the course's assignment: free reasoning, then steps or one equation.
    "steps": Prompt(
        INSTRUCTIONS + STEPS, chat=False, opening="", thinking="", stop=("</answer>",), steps=True
    ),
}


def format_prompt(problem, tokenizer, style="short"):
    """The prompt as text: the user's turn in the chat template, the assistant's turn begun."""
    return render(PROMPTS[style], problem, tokenizer)


def title(problem):
    """The problem in one line, for people."""
    return f"Make {problem['target']} from {', '.join(map(str, problem['nums']))}"


def subgroups(problem):
    """The evaluation subgroups a problem belongs to: evaluation reports each on its own.

    `needs_muldiv` is worth watching: a published run of this recipe learned never to multiply.
    """
    nums = problem["nums"]
    names = [f"{len(nums)}_numbers"]
    if len(nums) <= 12:
        sums = {0}  # what + and - alone can reach: each number with either sign
        for number in nums:
            sums = {total + number for total in sums} | {total - number for total in sums}
        names.append("plus_minus" if problem["target"] in sums else "needs_muldiv")
    return names


# ---- The reward

BOUNDED = True  # linear in the text: no completion needs a limit of time


def reward(completion, problem, style="short"):
    """The `Reward` of a completion of `format_prompt(problem, tokenizer, style)`. Never raises."""
    prompt = PROMPTS[style]
    text = strip_end(completion)
    form = format_reward(text, prompt, is_steps_or_equation if prompt.steps else is_expression)
    try:
        value = answer_value(text, problem, prompt)
    except ValueError as error:
        return make_reward(prompt, form, False, str(error))
    why = f"equals {value!s:.40}, not {problem['target']}"
    return make_reward(prompt, form, value == problem["target"], why)


def answer_value(text, problem, prompt):
    """The exact value of the last answer block; ValueError with the reason why there is none."""
    value_of_answer = evaluate_steps_or_equation if prompt.steps else evaluate
    return value_of_answer(last_answer(text, prompt), problem["nums"])


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the value of its answer as text, or None."""
    prompt = PROMPTS[style]
    try:
        return str(answer_value(strip_end(completion), problem, prompt))
    except ValueError:
        return None


LENIENT_TEXT = 20_000  # characters at the end of a completion in which `lenient` looks
BETWEEN = re.compile(r"[^A-Za-z\n=:}]+")  # what stands between words, line ends, = : and }
SPELLINGS = {
    "\\times": "*", "\\div": "/", "\\cdot": "*", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-",
    "\\[": "\n", "\\]": "\n", "\\(": "\n", "\\)": "\n", "[": "(", "]": ")",
}  # fmt: skip
NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def lenient(completion, problem):
    """1.0 if a right solution stands anywhere in the text, whatever the tags, else 0.0.

    Beside the strict reward it tells how much of a gain is format alone. Unicode operators and
    `= target` are accepted; an answer in steps is not looked for.
    """
    text = completion[-LENIENT_TEXT:]
    for written, plain in SPELLINGS.items():
        text = text.replace(written, plain)
    # A letter ends an expression; other signs do not belong into one.
    text = NOT_ASCII.sub(lambda other: "a" if other[0].isalpha() else "~", text)
    block = text.rpartition("<answer>")[2].partition("</answer>")[0]  # may hold line breaks
    needed = sorted(map(str, problem["nums"]))
    shortest = sum(map(len, needed)) + len(needed) - 1
    for part in {block, *BETWEEN.findall(text)}:
        if len(part) >= shortest and sorted(re.findall("[0-9]+", part)) == needed:
            expression = part.strip(" \t.,;$`*\\<>{|/+-")
            minus = "-" if "-" in part[: part.find(expression)] else ""  # or a list's bullet
            if solves(expression, problem) or solves(minus + expression, problem):
                return 1.0
    return 0.0


def solves(expression, problem):
    try:
        return evaluate(expression, problem["nums"]) == problem["target"]
    except ValueError:
        return False


def evaluate(expression, nums):
    """The exact value of an arithmetic expression that uses each of `nums` once, as a Fraction.

    ValueError, with the reason as a short sentence, for everything else. The numbers are compared
    before anything is computed: that bounds the work to len(nums) operations on those numbers.
    """
    if len(expression) > MAX_ANSWER:
        raise ValueError(f"answer longer than {MAX_ANSWER} characters")
    tokens = tokenize(expression)
    used = sorted(token for token in tokens if token.isdigit())
    if used != sorted(map(str, nums)):  # as text: `07` is not 7, and no huge number is built
        found = ", ".join(number[:12] for number in used[:8]) or "no number"
        raise ValueError(f"uses {found} instead of each of {nums} once")
    return value_of(tokens)


# The prompt "steps"


def is_steps_or_equation(answer):
    return are_steps(answer) or is_equation(answer)


def evaluate_steps_or_equation(answer, nums):
    """`evaluate`, of an answer that may be in steps or end in `= number`."""
    if len(answer) > MAX_ANSWER:
        return evaluate(answer, nums)  # which refuses it
    if are_steps(answer) or len(step_lines(answer)) > 1:
        return evaluate_steps(answer, nums)
    left, equals, right = answer.partition("=")
    value = evaluate(left, nums)
    if equals and right_side(right) != value:
        raise ValueError(f"{right.strip()[:20]!r} is not what the left side equals: {value}")
    return value
