"""Countdown: reach a target from given numbers with + - * / and parentheses. Use each number once.

Here are a problem and a completion with the full reward of 2 (the prompt has opened `<think>`):

    {"nums": [19, 36, 55, 7], "target": 65}

    36-19=17-7=10+55=65 yes
    </think>
    <answer>((36-19)-7)+55</answer>

The reward (0 to 2) is the sum of two parts, which a prompt can weigh:
    format 1.0  thinking, `</think>`, then one answer block that holds an arithmetic expression
           0.5  the same tags, but the answer block holds something else
           0.0  anything else
    answer 1.0  the last answer block after the thinking is an exact, legal solution; else 0.0
An expression has whole numbers, + - * / and parentheses. One minus sign may stand before a number
or a parenthesis. Nothing is executed: Python's parser reads the expression, and this file computes
its value from the syntax tree, exactly. The time is linear in the completion's length.
"""

import ast
import functools
import itertools
import random
import re
import zlib
from collections import namedtuple
from fractions import Fraction

Reward = namedtuple("Reward", "total format answer why")  # why: "correct", or what is wrong
Prompt = namedtuple(  # a way to ask, and the format of the answer that goes with it
    "Prompt",
    [
        "text",  # the question; the problem's columns stand in {braces}
        "chat",  # True: the user's turn in the chat template; False: the text alone
        # The beginning of the assistant's turn. Without it, a base model may continue the question
        # instead of answering it.
        "opening",
        "stop",  # texts that end a completion; the completion keeps them
        "thinking",  # the tag around the thinking; "": free text before the answer
        "weights",  # of format and answer in the total reward
        "steps",  # True: an answer may also be a list of steps, or end in `= number`
        "partial",  # format reward if the correct tags enclose something other than an expression
    ],
    defaults=(True, "<think>", (), "think", (1.0, 1.0), False, 0.5),
)

HIDDEN = ()  # a problem's columns that a prompt never shows; none, because it states the target

# ---- The problems

HUB_DATASET = "Jiayi-Pan/Countdown-Tasks-3to4"  # 490,364 problems; TinyZero trains on them


@functools.lru_cache(maxsize=10_000)
def reachable(nums):
    """The set of integers that expressions can reach with each number of the tuple `nums` once.

    The last operation of an expression joins two parts; each number belongs to one of them. Only
    intermediate values that are whole and not negative are followed. All 1,024 public problems
    that we looked at are solvable that way.
    """
    if len(nums) == 1:
        return frozenset(nums)
    reached = set()
    for size in range(1, len(nums)):
        for part in itertools.combinations(nums, size):
            rest = list(nums)
            for number in part:
                rest.remove(number)
            for value in reachable(part):
                for other in reachable(tuple(rest)):
                    reached.update((value + other, value * other))
                    if value >= other:
                        reached.add(value - other)
                    if other and value % other == 0:
                        reached.add(value // other)
    return frozenset(reached)


def signed_sums(nums):
    """The set of integers that + and - alone can reach. Each number has either sign."""
    sums = {0}
    for number in nums:
        sums = {total + signed for total in sums for signed in (number, -number)}
    return sums


def problem_key(problem):
    """Two problems with the same key are the same: the numbers in any order, and the target."""
    return f"{sorted(problem['nums'])}={problem['target']}"


def generate_problems(split, size, seed):
    """`size` distinct solvable problems like the public ones; train and test never share one.

    As in Countdown-Tasks-3to4, 52% have 3 numbers and the others have 4. Numbers are from 1 to 99
    and may repeat. Targets are from 10 to 100. + and - suffice for 63% of the problems with 3
    numbers and for 39% of the problems with 4.
    """
    rng = random.Random(f"countdown {split} {seed}")
    problems = {}
    while len(problems) < size:
        count = 3
        share = 0.63
        if rng.random() >= 0.52:
            count = 4
            share = 0.39
        plus_minus = rng.random() < share
        targets = []
        while not targets:  # draw numbers until some target is of the wanted kind
            nums = [rng.randint(1, 99) for _ in range(count)]
            easy = signed_sums(nums)
            wanted = easy if plus_minus else reachable(tuple(nums)) - easy
            targets = sorted(value for value in wanted if 10 <= value <= 100)
        problem = {"nums": nums, "target": rng.choice(targets)}
        key = problem_key(problem)
        # An eighth of all problems, whatever the order of their numbers, belongs to the test split.
        for_test = zlib.crc32(key.encode()) % 8 == 0
        if for_test == (split == "test"):
            problems.setdefault(key, problem)
    return list(problems.values())


def load_problems(split, source=None, seed=0):
    """A list of problems: dicts with `nums` (list of int) and `target` (int).

    Args:
        split: "train", "test", or "all" (every row of a file, in order; the hub's test split).
        source: None for the generator, "hub" for HUB_DATASET, else a file of JSON lines, a JSON
            array, csv or parquet, also with .gz. A tenth of it, at most 500, is the test split.
        seed: the seed of the generated training problems. No test split depends on it.
    Raises:
        problem_files.Refused: what is wrong with the source, in one sentence for the user.
    """
    if source is None:
        if split == "train":
            return generate_problems("train", 16_384, seed)
        return generate_problems(split, 512, 0)  # for every seed, so that runs can be compared
    import problem_files  # only files and the hub need it

    hub = problem_files.Hub(HUB_DATASET, has_test_split=False)
    return problem_files.load(source, split, hub, to_problem, problem_key)


# ---- The prompts

INSTRUCTIONS = (
    "Using the numbers {nums}, create an equation that equals {target}. You may use the operations "
    "+ - * / and parentheses, and you must use each number exactly once. "
    "Think step by step inside <think> </think> tags, then give only the equation inside <answer> "
    "</answer> tags, for example <answer>(1 + 2) / 3</answer>."
)
PROMPTS = {
    # One short line: the embedded nano-base was trained on it.
    "short": Prompt("Using the numbers {nums}, create an equation that equals {target}."),
    # With nano-aha-moment's instructions in our words, for a model that never saw the task.
    "chat": Prompt(INSTRUCTIONS),
    # The same instructions for a base model without a chat template.
    "plain": Prompt(INSTRUCTIONS + "\n", chat=False),
}


def subgroups(problem):
    """The evaluation subgroups of a problem; each is reported separately.

    Watch `needs_muldiv`, because a published run of this recipe learned never to multiply.
    """
    return [
        f"{len(problem['nums'])}_numbers",
        "plus_minus" if problem["target"] in signed_sums(problem["nums"]) else "needs_muldiv",
    ]


# ---- The reward

END = re.compile(r"(?:\s|<\|(?:endoftext|im_end|eot_id|end_of_text)\|>|</s>)*+")


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion. Never raises."""
    answer, fault = read_answer(completion, prompt)
    value, why, is_expression = judge(answer, problem, prompt.steps)
    form = prompt.partial
    if fault:
        form = 0.0
    elif is_expression:
        form = 1.0
    correct = float(value == problem["target"])
    if correct:
        why = "correct"
    elif not answer:
        why = "no answer"
    if fault:
        why += f"; format: {fault}"
    for_format, for_answer = prompt.weights
    return Reward(for_format * form + for_answer * correct, form, correct, why)


def read_answer(text, prompt):
    """(the content of the last answer block after the thinking, the first fault of the format).

    Either is "" if there is none.
    """
    tag = prompt.thinking
    thinking, closed, conclusion = text.rpartition(f"</{tag}>") if tag else ("", "", text)
    _, found, last = conclusion.rpartition("</answer>")[0].rpartition("<answer>")
    answer = last.partition("</answer>")[0] if found else ""
    return answer, format_fault(text, thinking, closed, conclusion, prompt)


def format_fault(text, thinking, closed, conclusion, prompt):
    """The first fault of a completion's format, or ""."""
    opening = f"<{prompt.thinking}>"
    closing = f"</{prompt.thinking}>"
    before, opened, block = conclusion.partition("<answer>")
    _, ended, rest = block.partition("</answer>")
    if prompt.thinking:
        if opening not in prompt.opening + text.lstrip()[: len(opening)]:
            return f"no {opening} at the start"
        if not closed:
            return f"no {closing}"
        if closing in thinking:
            return f"a second {closing}"
        # Some models repeat the tag that the prompt has already opened.
        if opening in thinking.lstrip().removeprefix(opening):
            return f"a second {opening}"
        if opened and before.strip():
            return "text before the answer block"
        if opening in block:
            return f"{opening} after {closing}"
    if not opened:
        return "no <answer>"
    if not ended:
        return "no </answer>"
    if "<answer>" in block:
        return "two answer blocks"
    if not END.fullmatch(rest):
        return "text after </answer>"
    return ""


def judge(answer, problem, steps):
    """(the exact value or None, why it is not the target, whether the answer is an expression)."""
    try:
        if len(answer) > 1_000:  # this bounds the work
            raise SyntaxError("more than 1000 characters")
        expression = join_steps(answer) if steps else answer
        tree = parse(expression)
        used = re.findall("[0-9]+", expression)
        nums = problem["nums"]
        if sorted(used) != sorted(map(str, nums)):
            raise ValueError(f"uses {', '.join(used):.60} instead of each of {nums!s:.60} once")
        value = value_of(tree)
        return value, f"equals {value!s:.40}, not {problem['target']}", True
    except SyntaxError as error:
        return None, f"not an expression: {error.msg}", False
    except (MemoryError, RecursionError):
        return None, "not an expression: nested too deep", False
    except ZeroDivisionError:
        return None, "divides by zero", True
    except ValueError as error:
        return None, str(error), True


# ---- Expressions

OPERATIONS = {
    ast.Add: Fraction.__add__,
    ast.Sub: Fraction.__sub__,
    ast.Mult: Fraction.__mul__,
    ast.Div: Fraction.__truediv__,
}


def parse(text):
    """The syntax tree of an expression, never executed. Other texts raise SyntaxError."""
    # In this order: another character, **, //, (), 5(2), a unary plus, a second unary minus.
    illegal = r"[^0-9+\-*/()\s]|\*\s*\*|/\s*/|\(\s*\)|[0-9)]\s*\(|(?:^|[-+*/(])\s*(?:\+|-\s*-)"
    found = re.search(illegal, text)
    if found:
        raise SyntaxError(f"it has {found[0]!r:.20}")
    text = re.sub(r"\b0+\B", "", text)  # Python does not accept 07
    return ast.parse(" ".join(text.split()), mode="eval").body


def value_of(node):
    """The exact value of a tree from `parse`, as a Fraction."""
    match node:
        case ast.Constant(number):
            return Fraction(number)
        case ast.UnaryOp(_, operand):  # a minus sign
            return -value_of(operand)
        case ast.BinOp(left, operation, right):
            return OPERATIONS[type(operation)](value_of(left), value_of(right))


# A left side and its result, without its last zeros: `Step 1: 1 + 2 = 3`, `3 / 3 = 1.0`.
STEP = re.compile(
    r"\s*(?:Step\s*[0-9]+\s*:)?(?P<left>[-+*/()0-9.\s]+)=\s*\(?(?P<result>-?[0-9]{1,12}"
    r"(?:/[1-9][0-9]{0,11}|\.[0-9]{0,11}[1-9])?)(?:\.?0{1,12})?\)?\.?\s*"
)


def join_steps(answer):
    """The steps of an answer as one expression: 1 + 2 = 3, 3 / 3 = 1 becomes (1 + 2) / 3.

    In a later step, the expression of a result takes the result's place, so that the answer is
    judged like any other. A text that is not a list of steps stays as it is.
    """
    lines = re.split(r"\n|(?=Step\b)", answer)
    steps = [STEP.fullmatch(line) for line in lines if line.strip()]
    if not steps or None in steps:
        return answer
    if len(steps) > 1 and any("/" in step["result"] for step in steps):
        return answer
    rest = "=".join(step["left"] for step in steps)
    for step in steps:
        expression, later, rest = rest.partition("=")
        number = rf"(?<![0-9.])(?<![(=]-)(?<!^-){re.escape(step['result'])}(?:\.0+)?(?![0-9.])"
        rest, found = re.subn(number, f"({expression})", rest, count=1)
        if value_of(parse(expression)) != Fraction(step["result"]) or (later and not found):
            raise ValueError(f"{step[0].strip()!r:.60} is not true, or its result is not used")
    return expression


# ---- Files: a row is read as it is written, or refused

ROW = r"""(?x)  # as in "[19, 36.0] to 55"
    \s* (?: (\[)\s* | (\()\s* )?
    ( (?: ["']? (?: 0 | [1-9][0-9]* ) (?: \.0* )? ["']?  # 19, 36.0, "7"
          (?: \s*,\s* (?=["'0-9]) | \s+ (?=["'0-9]) | (?= \s* [\])]? \s* \ to\  ) ) )+ )
    (?(1)\s*\]) (?(2)\s*\)) \s* \ to\ \s*
    ( -?[0-9]+ ) (?: \.0* )? \s*"""


def to_problem(row):
    """The problem of a row. Its nums are a list, [19, 36.0], or a text such as "[19 36]"."""
    nums = row.get("nums", row.get("numbers"))
    found = re.fullmatch(ROW, f"{nums} to {row.get('target')}")
    if not found:
        raise ValueError(f"needs nums, such as [19, 36], and target, such as 55; got {row!s:.200}")
    numbers = re.findall(r"([0-9]+)\.?0*", found[3])
    return {"nums": [int(number) for number in numbers], "target": int(found[4])}
