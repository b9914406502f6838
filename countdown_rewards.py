"""Countdown: reach a target with a few given numbers, + - * / and parentheses, each number used exactly once.

One problem, and one completion that earns the full reward of 2 (the prompt has already opened `<think>`):

    {"nums": [19, 36, 55, 7], "target": 65}

    36-19=17-7=10+55=65 yes
    </think>
    <answer>((36-19)-7)+55</answer>

The reward (0 to 2) is a sum of two parts, as in nano-aha-moment; a prompt may weigh them differently:
    format 1.0  thinking, `</think>`, then one answer block whose content is an arithmetic expression
           0.5  the same tags, but the answer block holds something else
           0.0  anything else
    answer 1.0  the last answer block after the thinking is an exact, legal solution, else 0.0
The expression is parsed and computed in exact rational arithmetic. Text from a model is data: it is never executed,
and no text, however long or hostile, takes more than time linear in its length.
"""

import collections
import functools
import itertools
import random
import re
import zlib
from fractions import Fraction

from plumbing.arithmetic import calculate, is_expression, tokenize, value_of
from plumbing.data import read_problems, whole_number, whole_numbers
from plumbing.tasks import MAX_ANSWER, Prompt, format_reward, last_answer, make_reward, render, strip_end

# ---- The problems

HUB_DATASET = "Jiayi-Pan/Countdown-Tasks-3to4"  # 490,364 problems; TinyZero's and nano-aha-moment's training set
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
    """True for the eighth of all problems that belongs to the test split, whatever the order of the numbers."""
    return zlib.crc32(f"{sorted(nums)}={target}".encode()) % 8 == 0


def generate_problems(split, size, seed):
    """`size` distinct solvable problems with the real set's make-up; train and test never share one.

    As in Countdown-Tasks-3to4: 52% have 3 numbers, the others 4; numbers from 1 to 99, repeats allowed; targets from
    10 to 100; + and - alone suffice for 63% of those with 3 numbers and for 39% of those with 4.
    """
    rng = random.Random(f"countdown {split} {seed}")
    problems, seen = [], set()
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

    source: None for the built-in generator, "hub" for `Jiayi-Pan/Countdown-Tasks-3to4`, else a file's path.
    What is wrong with a source is a ValueError, one sentence; `split` and `seed` are any task's (docs/own_task.md).
    """
    if source is None:  # the test problems are the same 512 for every seed, so that runs can be compared
        return generate_problems(split, BUILT_IN[split], seed if split == "train" else 0)
    columns = ("nums|numbers", "target")
    hub = {"path": HUB_DATASET}
    return read_problems(
        split, source, seed, columns, _problem, hub, hub_has_test=False, key=problem_key
    )


def _problem(row):
    """The two columns as plain integers; ValueError if they are anything else, or if no answer could be paid."""
    nums = whole_numbers(row, "numbers" if row.get("nums") is None and "numbers" in row else "nums")
    if min(nums) < 0 or len("+".join(map(str, nums))) > MAX_ANSWER:
        raise ValueError(f"expected numbers of 0 or more that fit into {MAX_ANSWER} characters, got {nums!r:.80}")
    return {"nums": nums, "target": whole_number(row, "target")}


# ---- The prompt

INSTRUCTIONS = (
    "Using the numbers {nums}, create an equation that equals {target}. You may use the operations + - * / and "
    "parentheses, and you must use each number exactly once. "
)
TAGS = (
    "Think step by step inside <{0}> </{0}> tags, then give only the equation inside <answer> </answer> tags, for "
    "example <answer>(1 + 2) / 3</answer>."
)
PROMPTS = {
    # One short line: what the embedded nano-base was trained on.
    "short": Prompt("Using the numbers {nums}, create an equation that equals {target}."),
    # With instructions: what a model needs that has never seen the task. nano-aha-moment's, in our words.
    "chat": Prompt(INSTRUCTIONS + TAGS.format("think")),
    # The same for a base model that knows no chat template.
    "plain": Prompt(INSTRUCTIONS + TAGS.format("think") + "\n", chat=False),
    # Other tags, written by the model itself, and a right answer worth twice the form (Mystic-Slice/rl-grpo-countdown).
    "reasoning": Prompt(
        INSTRUCTIONS + TAGS.format("reasoning"), opening="", thinking="reasoning", weights=(1.0, 2.0)
    ),
    # The form of the course's assignment: free reasoning, then steps or one equation; sampling stops at </answer>.
    "steps": Prompt(
        INSTRUCTIONS + "Explain your reasoning step by step. Then give your answer inside <answer> </answer> tags, "
        "either as steps, one operation on each line, the last of which gives {target}, or as a single equation. "
        "For example, for the numbers [1, 2, 3] and the target 1:\n<answer>\nStep 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1\n"
        "</answer>\nor\n<answer>\n(1 + 2) / 3\n</answer>\nLet us think step by step.\n",
        chat=False, opening="", thinking="", stop=("</answer>",), steps=True,
    ),
}  # fmt: skip


def format_prompt(problem, tokenizer, style="short"):
    """The prompt as text: the user's turn in the model's chat template, the assistant's turn begun."""
    return render(PROMPTS[style], problem, tokenizer)


def subgroups(problem):
    """The names of the evaluation subgroups a problem belongs to (evaluation reports each on its own).

    `needs_muldiv` is worth watching: a published run of this recipe learned never to multiply (0% where it is needed).
    """
    sums = {0}
    for number in problem["nums"][:12]:  # with either sign: what + and - alone can reach
        sums = {total + signed for total in sums for signed in (number, -number)}
    kind = "plus_minus" if problem["target"] in sums else "needs_muldiv"
    return [f"{len(problem['nums'])}_numbers", *([kind] if len(problem["nums"]) <= 12 else [])]


# ---- The reward

DECIMAL = r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?"
# Step 1: 1 + 2 = 3, where each number may stand in parentheses.
STEP = re.compile(
    rf"(?:Step\s*[0-9]+\s*:)?\s*\(?(?P<left>{DECIMAL})\)?\s*(?P<symbol>[-+*/])"
    rf"\s*\(?(?P<right>{DECIMAL})\)?\s*=\s*\(?(?P<result>{DECIMAL})\)?\.?"
)
VALUE = re.compile(rf"{DECIMAL}|-?[0-9]{{1,12}}/[1-9][0-9]{{0,11}}")  # right of an equation's =


def reward(completion, problem, style="short"):
    """The `Reward` of a completion of `format_prompt(problem, tokenizer, style)`. Never raises."""
    prompt = PROMPTS[style]
    text = strip_end(completion)
    form = format_reward(text, prompt, lambda answer: is_well_formed(answer, prompt))
    try:
        value = answer_value(last_answer(text, prompt), problem, prompt)
    except ValueError as error:
        return make_reward(prompt, form, False, str(error))
    why = f"equals {value!s:.40}, not {problem['target']}"
    return make_reward(prompt, form, value == problem["target"], why)


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the value of its answer as text, or None."""
    prompt = PROMPTS[style]
    try:
        return str(answer_value(last_answer(strip_end(completion), prompt), problem, prompt))
    except ValueError:
        return None


LENIENT_TEXT = 20_000  # characters at the end of a completion in which `lenient` looks for an expression
BETWEEN = re.compile(r"[^A-Za-z\n=:}]+")  # what stands between words, line ends, = : and }
SAME = (("\\times", "*"), ("\\div", "/"), ("\\cdot", "*"), ("×", "*"), ("·", "*"), ("÷", "/"), ("−", "-"), ("–", "-"))
SAME += (("\\[", "\n"), ("\\]", "\n"), ("\\(", "\n"), ("\\)", "\n"), ("[", "("), ("]", ")"))
NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def lenient(completion, problem):
    """1.0 if a right solution stands anywhere in the text, whatever the tags, be it the last word or not, else 0.0.

    Beside the strict reward it tells how much of a gain is format alone. Unicode operators and `= target` are accepted;
    an answer in steps is not looked for.
    """
    text = completion[-LENIENT_TEXT:]
    for written, plain in SAME:
        text = text.replace(written, plain)
    text = NOT_ASCII.sub(lambda other: "a" if other[0].isalpha() else "~", text)  # a letter ends an expression
    block = text.rpartition("<answer>")[2].partition("</answer>")[0]  # may hold line breaks
    needed = sorted(map(str, problem["nums"]))
    shortest = sum(map(len, needed)) + len(needed) - 1
    for part in {block, *BETWEEN.findall(text)}:
        if len(part) < shortest or sorted(re.findall("[0-9]+", part)) != needed:
            continue
        expression = part.strip(" \t.,;$`*\\<>{|/+-")
        sign = "-" if "-" in part[: part.find(expression)] else ""  # or the bullet of a list
        for candidate in {expression, sign + expression}:
            try:
                if evaluate(candidate, problem["nums"]) == problem["target"]:
                    return 1.0
            except ValueError:
                pass
    return 0.0


def is_well_formed(answer, prompt):
    """Whether an answer block holds what the prompt asks for, right or not."""
    if not prompt.steps:
        return is_expression(answer)
    lines = step_lines(answer)
    return bool(lines) and all(STEP.fullmatch(line) or is_equation(line) for line in lines)


def is_equation(line):
    """Whether a line is an expression, alone or with `= number`."""
    left, equals, right = line.partition("=")
    return is_expression(left) and (not equals or bool(VALUE.fullmatch(right.strip(" ."))))


def answer_value(answer, problem, prompt):
    """The exact value of an answer block, or ValueError with the reason why it is not legal."""
    if not prompt.steps:
        return evaluate(answer, problem["nums"])
    lines = step_lines(answer)
    if len(lines) > 1 or (lines and STEP.fullmatch(lines[0])):
        return evaluate_steps(lines, problem["nums"])
    left, equals, right = answer.partition("=")
    value = evaluate(left, problem["nums"])
    right = right.strip().removesuffix(".")
    if equals and (not VALUE.fullmatch(right) or Fraction(right) != value):
        raise ValueError(f"{right[:20]!r} is not what the left side equals: {value}")
    return value


def step_lines(answer):
    if len(answer) > MAX_ANSWER:
        return []
    return [line.strip() for line in re.split(r"\n|(?=Step\b)", answer) if line.strip()]


def evaluate_steps(lines, nums):
    """What remains of `nums` after a list of steps like `Step 1: 1 + 2 = 3`, as a Fraction.

    Each step takes two numbers from the pool and puts its result back; at the end one number is left. Raises
    ValueError, with the reason as a short sentence, for a step that is wrong or takes what is not there.
    """
    pool = collections.Counter(map(Fraction, nums))
    for line in lines:
        match = STEP.fullmatch(line)
        if not match:
            raise ValueError(f"{line!r:.60} is not a step")
        left, right, result = (Fraction(match[name]) for name in ("left", "right", "result"))
        for number in (left, right):
            if not pool[number]:
                raise ValueError(f"{line!r:.60} takes {number}, which is not there")
            pool[number] -= 1
        if calculate(left, match["symbol"], right) != result:
            raise ValueError(f"{line!r:.60} is not true")
        pool[result] += 1
    remaining = list(pool.elements())
    if len(remaining) != 1:
        raise ValueError(f"leaves {', '.join(map(str, remaining[:8]))} instead of one number")
    return remaining[0]


def evaluate(expression, nums):
    """The exact value of an arithmetic expression that uses each of `nums` once, as a Fraction.

    Raises ValueError, with the reason as a short sentence, for everything else. The numbers are compared before
    anything is computed, so the work is bounded by MAX_ANSWER and by len(nums) operations on those numbers.
    """
    if len(expression) > MAX_ANSWER:
        raise ValueError(f"answer longer than {MAX_ANSWER} characters")
    tokens = tokenize(expression)
    used = sorted(token for token in tokens if token.isdigit())
    if used != sorted(map(str, nums)):  # compared as text: `07` is not 7, and a huge integer is never built
        raise ValueError(f"uses {', '.join(n[:12] for n in used[:8]) or 'no number'} instead of each of {nums} once")
    return value_of(tokens)
