"""Countdown: reach a target with a few given numbers, + - * / and parentheses, each number used exactly once.

One problem, and one completion that earns the full reward of 2 (the prompt has already opened `<think>`):

    {"nums": [19, 36, 55, 7], "target": 65}

    36-19=17-7=10+55=65 yes
    </think>
    <answer>((36-19)-7)+55</answer>

A task is a module like this one; copy it to add a task. The loop uses its
    PROMPTS                                       the ways to ask, by name
    load_problems(split, source, seed)            dicts with the data set's own columns
    format_prompt(problem, tokenizer, style)      the prompt as text
    reward(completion, problem, style)            a `Reward`
and evaluation also
    subgroups(problem)                            the subgroups it reports on their own
    lenient(completion, problem)                  is the right answer there, whatever the form?
    final_answer(completion, problem, style)      what a completion votes for in maj@k

The reward (0 to 2) is a sum of two parts, as in nano-aha-moment; a prompt may weigh them differently:
    format 1.0  thinking, `</think>`, then one answer block whose content is an arithmetic expression
           0.5  the same tags, but the answer block holds something else
           0.0  anything else
    answer 1.0  the last answer block after the thinking is an exact, legal solution, else 0.0
The expression is parsed and computed in exact rational arithmetic. Text from a model is data: it is never executed,
and no text, however long or hostile, takes more than time linear in its length.
"""

import collections
import json
import os
import random
import re
import zlib
from fractions import Fraction
from typing import NamedTuple

# %% [markdown]
# ## The problems

# %%
HUB_DATASET = "Jiayi-Pan/Countdown-Tasks-3to4"  # 490,364 problems; TinyZero's and nano-aha-moment's training set
HELD_OUT = 500  # problems kept for the test split of a hub or file source
BUILT_IN = {"train": 16_384, "test": 512}  # sizes of the generated splits
FILE_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def reachable(nums, operators="+-*/"):
    """The set of integers that expressions over `nums` (all of them, each once) can reach with these operators.

    Only whole-number intermediate values are followed: all 1,024 real problems we looked at are solvable that way.
    """
    if len(nums) == 1:
        return {nums[0]}
    found = set()
    for i in range(len(nums)):
        for j in range(i + 1, len(nums)):
            a, b = nums[i], nums[j]
            rest = nums[:i] + nums[i + 1 : j] + nums[j + 1 :]
            values = {a + b, abs(a - b)}
            if "*" in operators:
                values.add(a * b)
            if "/" in operators and b and a % b == 0:
                values.add(a // b)
            if "/" in operators and a and b % a == 0:
                values.add(b // a)
            for value in values:
                found |= reachable(rest + [value], operators)
    return found


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


def load_rows(source, columns, hub, split="train"):
    """Rows of a local file (jsonl, json, csv, parquet) or of a hub data set, read by `datasets`.

    Args:
        source: a file's path, or "hub".
        columns: the names that must be there.
        hub: what `datasets.load_dataset` calls the set, as keyword arguments, e.g. {"path": "openai/gsm8k"}.
        split: of the hub's set; a file is one split.
    Raises:
        ValueError: one sentence for the user: no such file, unreadable, a missing column, no rows, no network.
    """
    if source == "hub" and hub is None:
        raise ValueError("--data must be a file here: no hub data set has these columns.")
    import datasets  # heavy: imported only when a file or the hub is asked for

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what goes wrong is said below, in one sentence
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or reading a local file waits for the network
    if source != "hub":
        if not os.path.isfile(source):
            raise ValueError(f"No such data file: {source}.")
        reader = FILE_READERS.get(os.path.splitext(source)[1].lower())
        if reader is None:
            raise ValueError(f"{source}: the name must end in one of {', '.join(FILE_READERS)}.")
        if os.path.getsize(source) == 0:
            raise ValueError(f"{source} is empty.")
    try:
        if source == "hub":
            rows = datasets.load_dataset(**hub, split=split)
        else:
            rows = datasets.load_dataset(reader, data_files=source, split="train")
        names, rows = rows.column_names, list(rows)  # bytes become text only here
    except Exception as error:  # what `datasets` raises differs by reader, version and network
        error = error.__cause__ or error
        if "corresponds to no data" in str(error):
            raise ValueError(f"{source} has no rows.") from None
        where = f"The hub data set {hub['path']}" if source == "hub" else source
        hint = " (is there a network? `--data FILE` reads a local copy)" if source == "hub" else ""
        raise ValueError(f"{where} could not be read: {_first_line(error)}{hint}") from None
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{source} has columns {names}; {' and '.join(missing)} missing.")
    if not rows:
        raise ValueError(f"{source} has no rows.")
    return rows


def hold_out(problems, split, source, seed):
    """One split of a source that has none of its own: HELD_OUT problems (at most a tenth) are kept for the test."""
    if split == "all":
        return problems
    problems = problems.copy()
    random.Random(f"held out {seed}").shuffle(problems)
    held_out = min(HELD_OUT, max(1, len(problems) // 10))
    if len(problems) <= held_out:
        raise ValueError(f"{source} has {len(problems)} row: at least 2 are needed, to train on and to test on.")
    return problems[:held_out] if split == "test" else problems[held_out:]


def _first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `nums` (list of int) and `target` (int).

    Args:
        split: "train", "test", or "all" (every row of a file: an evaluation set of one's own).
        source: None for the built-in generator, "hub" for `Jiayi-Pan/Countdown-Tasks-3to4`, else a file's path.
        seed: of the generator, and of the shuffle that picks the held-out rows of a file or of the hub.
    Raises:
        ValueError: one sentence saying which file, which row, what was expected.
    """
    if source is None:
        # The test problems are the same 512 for every seed, so that runs can be compared.
        return generate_problems(split, BUILT_IN[split], seed if split == "train" else 0)
    problems = []
    for number, row in enumerate(load_rows(source, ("nums", "target"), {"path": HUB_DATASET}), start=1):
        try:
            nums = json.loads(row["nums"]) if isinstance(row["nums"], str) else row["nums"]  # csv: "[19, 36, 55, 7]"
            problem = {"nums": [_whole(n) for n in nums], "target": _whole(row["target"])}
            if not problem["nums"]:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            expected = "a list of whole numbers and a whole target"
            got = f"nums={row['nums']!r:.80}, target={row['target']!r:.80}"
            raise ValueError(f"{source}, row {number}: expected {expected}, got {got}.") from None
        problems.append(problem)
    return hold_out(problems, split, source, seed)


def _whole(value):
    """An int from 19, 19.0 or "19"; ValueError otherwise (3.5, nan, True)."""
    number = float(value)
    if isinstance(value, bool) or not number.is_integer():
        raise ValueError
    return int(number)


# %% [markdown]
# ## The prompt

# %%
class Prompt(NamedTuple):
    """A way to ask, and with it the form of the answer that the reward expects."""

    text: str  # the question, with the problem's columns as {placeholders}
    chat: bool = True  # as the user's turn in the model's chat template; False: the text alone, for base models
    opening: str = "<think>"  # the assistant's turn begins with it, written by us
    thinking: str = "think"  # the tag around the thinking; empty: free text before the answer
    stop: tuple = ()  # texts that end a completion; the completion keeps them
    weights: tuple = (1.0, 1.0)  # of format and answer in the total reward
    steps: bool = False  # the answer may be a list of steps, or an equation with `= target`


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
    prompt = PROMPTS[style]
    return render(prompt, prompt.text.format(**problem), tokenizer)


def render(prompt, question, tokenizer):
    """A question in the form that `prompt` asks for; a model without a chat template gets `User:` and `Assistant:`."""
    if not prompt.chat:
        return question + prompt.opening
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": question}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + prompt.opening
    return f"User: {question}\nAssistant: {prompt.opening}".rstrip()


def subgroups(problem):
    """The names of the evaluation subgroups a problem belongs to (evaluation reports each on its own).

    `needs_muldiv` is worth watching: a published run of this recipe learned never to multiply (0% where it is needed).
    """
    numbers = f"{len(problem['nums'])}_numbers"
    # Beyond 5 numbers the search of `reachable` would take seconds.
    if len(problem["nums"]) > 5:
        return [numbers]
    easy = problem["target"] in reachable(problem["nums"], "+-")
    return [numbers, "plus_minus" if easy else "needs_muldiv"]


# %% [markdown]
# ## The reward

# %%
class Reward(NamedTuple):
    """A verifier's verdict on one completion: `answer` is 0 or 1, `total` the weighted sum; `why` is for people."""

    total: float
    format: float
    answer: float
    why: str


MAX_EXPRESSION = 1_000  # characters; a longer answer block is no solution to a handful of numbers
EXPRESSION = re.compile(r"(?=[^0-9]*[0-9])[0-9+\-*/().\s]+")
EQUATION = re.compile(rf"{EXPRESSION.pattern}(?:=\s*-?[0-9./]+\s*)?")
TOKEN = re.compile(r"([0-9]+)|([-+*/()])|\s+|(.)", re.DOTALL)
NUMBER = r"\(?(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\)?"
STEP = re.compile(rf"(?:Step\s*[0-9]+\s*:)?\s*{NUMBER}\s*([-+*/])\s*{NUMBER}\s*=\s*{NUMBER}\.?")
END_MARKERS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


def reward(completion, problem, style="short"):
    """Score one completion of `format_prompt(problem, tokenizer, style)`: a `Reward`. Never raises, never hangs."""
    prompt = PROMPTS[style]
    text = strip_end(completion)
    form = format_reward(text, prompt, lambda answer: is_well_formed(answer, prompt))
    try:
        value = answer_value(last_answer(text, prompt), problem, prompt)
        right, why = value == problem["target"], f"equals {value}, not {problem['target']}"
    except ValueError as error:
        right, why = False, str(error)
    return verdict(form, right, why, prompt)


def verdict(form, right, why, prompt):
    """A `Reward` from its parts: format and answer, each with the prompt's weight."""
    total = prompt.weights[0] * form + prompt.weights[1] * right
    return Reward(total, form, float(right), "correct" if right else why)


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the value of its answer as text, or None if it has no legal answer."""
    prompt = PROMPTS[style]
    try:
        return str(answer_value(last_answer(strip_end(completion), prompt), problem, prompt))
    except ValueError:
        return None


LENIENT_TEXT = 20_000  # characters at the end of a completion in which `lenient` looks for an expression
LENIENT_CANDIDATES = 200
BETWEEN = re.compile(r"<answer>|</answer>|\\boxed\{|\}|\n|=|:|[^\W\d_]+")  # tags, line ends, words


def lenient(completion, problem):
    """1.0 if a right solution stands anywhere in the text, whatever the tags, be it the last word or not, else 0.0.

    Beside the strict reward it tells how much of a gain is format alone. Unicode operators and `= target` are accepted;
    an answer in steps is not looked for.
    """
    text = re.sub(r"\\[\[\]()]", "\n", completion[-LENIENT_TEXT:])  # LaTeX's \[ and \(
    text = text.translate(str.maketrans("×·÷−–[]", "**/--()"))
    text = text.replace("\\times", "*").replace("\\div", "/").replace("\\cdot", "*")
    candidates = [part for part in BETWEEN.split(text) if any(digit in part for digit in "0123456789")]
    for candidate in candidates[-LENIENT_CANDIDATES:]:
        try:
            if evaluate(candidate.strip(" .,;$`*\\+-"), problem["nums"]) == problem["target"]:
                return 1.0
        except ValueError:
            pass
    return 0.0


def strip_end(text):
    """`text` without the end-of-sequence markers and white space around its end."""
    end, before = len(text), None
    while end != before:  # an index moves, no text is copied: linear time whatever the text
        before = end
        while end and text[end - 1].isspace():
            end -= 1
        end -= max(len(marker) * text.endswith(marker, 0, end) for marker in END_MARKERS)
    return text[:end]


def format_reward(text, prompt, well_formed):
    """1.0 for thinking, then one answer block whose content is `well_formed`; 0.5 if it is not; 0.0 for anything else.

    With the tag `think` that is `thinking </think> <answer> ... </answer>`, without `... <answer> ... </answer>`.
    """
    tags = ["<answer>", "</answer>"]
    if prompt.thinking:
        opening, closing = f"<{prompt.thinking}>", f"</{prompt.thinking}>"
        tags += [opening, closing]
        text = text.lstrip()
        if text.startswith(opening):  # some models repeat the tag that the prompt has already opened
            text = text[len(opening) :]
        elif opening not in prompt.opening:
            return 0.0
        thinking, closed, rest = text.partition(closing)
        rest = rest.strip()
        if not closed or opening in thinking or not rest.startswith("<answer>"):
            return 0.0
    else:
        rest = text[max(0, text.find("<answer>")) :]
    answer = rest[len("<answer>") : -len("</answer>")]
    if not (rest.startswith("<answer>") and rest.endswith("</answer>")) or any(tag in answer for tag in tags):
        return 0.0
    return 1.0 if len(answer) <= MAX_EXPRESSION and well_formed(answer) else 0.5


def last_answer(text, prompt):
    """What the last `<answer>` block after the thinking holds; ValueError if there is no such block."""
    # All of the text where the closing tag is missing: rfind is -1 there.
    conclusion = text[text.rfind(f"</{prompt.thinking}>") + 1 :] if prompt.thinking else text
    end = conclusion.rfind("</answer>")
    start = conclusion.rfind("<answer>", 0, max(end, 0))
    if end < 0 or start < 0:
        raise ValueError("no answer block after the thinking")
    return conclusion[start + len("<answer>") : end]


def is_well_formed(answer, prompt):
    if prompt.steps:
        lines = step_lines(answer)
        return bool(lines) and all(STEP.fullmatch(line) or EQUATION.fullmatch(line) for line in lines)
    return EXPRESSION.fullmatch(answer) is not None


def answer_value(answer, problem, prompt):
    """The exact value of an answer block, or ValueError with the reason why it is not legal."""
    if not prompt.steps:
        return evaluate(answer, problem["nums"])
    lines = step_lines(answer)
    if len(lines) > 1 or (lines and STEP.fullmatch(lines[0])):
        return evaluate_steps(lines, problem["nums"])
    left, equals, right = answer.partition("=")
    value = evaluate(left, problem["nums"])
    if equals and right.strip().removesuffix(".") != str(value):
        raise ValueError(f"{right.strip()[:20]!r} is not what the left side equals: {value}")
    return value


def step_lines(answer):
    if len(answer) > MAX_EXPRESSION:
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
        left, operator, right, result = (part if part in PRECEDENCE else Fraction(part) for part in match.groups())
        for number in (left, right):
            if not pool[number]:
                raise ValueError(f"{line!r:.60} takes {number}, which is not there")
            pool[number] -= 1
        if compute(left, operator, right) != result:
            raise ValueError(f"{line!r:.60} is not true")
        pool[result] += 1
    remaining = list(pool.elements())
    if len(remaining) != 1:
        raise ValueError(f"leaves {', '.join(map(str, remaining[:8]))} instead of one number")
    return remaining[0]


def compute(left, operator, right):
    if operator == "/" and right == 0:
        raise ValueError("divides by zero")
    return (
        left + right if operator == "+" else
        left - right if operator == "-" else
        left * right if operator == "*" else left / right
    )  # fmt: skip


def evaluate(expression, nums):
    """The exact value of an arithmetic expression that uses each of `nums` once, as a Fraction.

    Raises ValueError, with the reason as a short sentence, for everything else. The numbers are compared before
    anything is computed, so the work is bounded by MAX_EXPRESSION and by len(nums) operations on those numbers.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"answer longer than {MAX_EXPRESSION} characters")
    tokens = []
    for number, operator, other in TOKEN.findall(expression):
        if other:
            raise ValueError(f"{other!r} is not part of a legal expression")
        if number or operator:
            tokens.append(number or operator)
    used = sorted(token for token in tokens if token.isdigit())
    if used != sorted(map(str, nums)):  # compared as text: `07` is not 7, and a huge integer is never built
        raise ValueError(f"uses {', '.join(n[:12] for n in used[:8]) or 'no number'} instead of each of {nums} once")

    # Dijkstra's shunting-yard: two stacks instead of recursion, so that deep parentheses cannot overflow anything.
    values, operators = [], []

    def apply():
        operator, right, left = operators.pop(), values.pop(), values.pop()
        values.append(compute(left, operator, right))

    operand_next = True  # the grammar is: operand (operator operand)*; an operand is a number or ( expression )
    for token in tokens:
        if operand_next and token == "(":
            operators.append(token)
        elif operand_next and token.isdigit():
            values.append(Fraction(int(token)))
            operand_next = False
        elif not operand_next and token in PRECEDENCE:
            while operators and PRECEDENCE.get(operators[-1], 0) >= PRECEDENCE[token]:
                apply()
            operators.append(token)
            operand_next = True
        elif not operand_next and token == ")":
            while operators and operators[-1] != "(":
                apply()
            if not operators:
                raise ValueError("unbalanced parentheses")
            operators.pop()
        else:
            raise ValueError(f"{token!r} out of place")
    if operand_next or "(" in operators:
        raise ValueError("unfinished expression")
    while operators:
        apply()
    return values[0]
