r"""MATH: competition mathematics. The answer is a number or an expression in LaTeX.

Here are a problem and a completion with the full reward of 2:

    {"problem": "What is the probability that two fair coins both show heads?",
     "answer": "\\frac{1}{4}"}

    Each coin shows heads with probability 1/2, so both do with probability 1/4 = 0.25.
    The answer is $\boxed{0.25}$.

The reward (0 to 2) is a sum of two parts. Both judge the last `\boxed{` of the completion:
    format 1.0  the box is closed and holds something
           0.5  the box is empty, or not closed within 100,000 characters
           0.0  there is no box
    answer 1.0  the box holds the same value as the problem's answer, else 0.0

The reader of LaTeX below decides whether two values are the same. It is small and strict: it reads
the notation of MATH's answers, and a text that it does not read in full equals only itself. It
brings a text into one spelling, takes it apart from the outside in (lists and brackets, equations,
units) and computes formulas to 300 digits by recursive descent, those with letters at six points.
No part of a text is executed or skipped, and every operation is bounded: no time limit is needed.

    problem's answer   correct                                 wrong
    1/2                0.5, \frac24, \sqrt{1/4}                0.51, 1 2
    3/2                1.5, 1\frac12                           11/2, 1 1/2 (no fraction of LaTeX)
    1/3                2/6                                     0.333333 (rounded), 0.\overline{3}
    43500              43,500, 43{,}500, \$43,500              43, 500
    40                 4(10), 4 \cdot 10                       4{10}, which prints 410
    5                  x = 5, f(2) = 5, 2+3 = 5                2x = 10, \geq 5, 5 or more, \approx 5
    5                  5\text{ cm}, 5\%, 5 units               5\text{ million}, 5 apples
    5\text{ cm}^2      5, 5 square centimeters                 5\text{ cm}, 5\text{ m}^2
    7\text{ girls}     7, 7 girls                              7\text{ boys}, 7\text{ cm}
    2516_8             2516, 2516_{8}                          2516_9
    2x/3               \frac{2x}{3}                            2/3x (it has two readings)
    x^2+2x+1           (x+1)^2, y = (1+x)^2                    (t+1)^2
    y = 3x+5           y = 5+3x, 3x+5                          y = 3x, 3x-y = -5
    1, 2               2 and 1, \{2, 1\}, x=1 or x=2           1, 2, 2
    (1, 2)             (1, 4/2)                                (2, 1), [1, 2], 1, 2
    (3, \infty)        x > 3, 3 < x                            x \ge 3
    \text{(B)}         B, b, (B)                               C, \text{(B) } 5
    HHTT               \text{HHTT}                             HTHT

Read only as texts, so that they equal only themselves: factorials and binomials, floors, repeating
decimals, times of day, ratios, |x|, \approx, sums and integrals, powers and indices of functions,
x < 1 or x > 2 (as a union), words around a formula (f(x) = cx for any c), yx for xy, 43 500 with
plain spaces, numbers above 10^100, and what is no LaTeX (√2, ½, sqrt(2), sin x, oo, an invisible
character).
docs/own_task.md compares the verdicts with other people's labels.
"""

import functools
import random
import re

from mpmath import MPContext

import gsm8k_rewards
import problem_files
from gsm8k_rewards import Reward

Prompt = functools.partial(gsm8k_rewards.Prompt, opening="")  # a thinking tag is not asked for

# ---- The problems

HUB_DATASET = "hiyouga/math12k"  # MATH: 12,000 problems to train on, and the 500 of MATH-500
MAX_ANSWER = 500  # characters; the longest answer of MATH-500 has 53


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `problem` and `answer` (str), and `level` and `subject` if known.

    Rows of the original data set (problem, level, type, solution) are also read. Their answer is
    the last box of the solution.

    Args:
        split: "train", "test", or "all" (every row of a file, in order; the hub's test split).
        source: "hub" for HUB_DATASET with its own two splits, else a file of JSON lines, a JSON
            array, csv or parquet, also with .gz. A tenth of it, at most 500, is the test split.
        seed: every task takes one; no split of this task depends on it.
    Raises:
        problem_files.Refused: what is wrong with the source, in one sentence for the user.
    """
    if source is None:
        raise problem_files.Refused(
            "MATH has no built-in problems: use `--data hub` or `--data FILE`."
        )
    hub = problem_files.Hub(HUB_DATASET)
    return problem_files.load(source, split, hub, to_problem, problem_key, gold)


def gold(problem):
    """The answer: two rows that ask the same must have the same."""
    return problem["answer"]


def problem_key(problem):
    """Two problems with the same key are the same: the text, whatever its spacing and case."""
    return " ".join(problem["problem"].lower().split())


def subgroups(problem):
    """A problem's evaluation subgroups: its level and its subject, if known."""
    names = []
    level = re.search(r"[0-9]+", f"{problem.get('level')}")  # 5 or "Level 5"
    if level:
        names.append(f"level_{level[0]}")
    words = re.findall("[a-z0-9]+", f"{problem.get('subject', '')}".lower())
    if words:
        names.append("_".join(words))
    return names


# ---- The prompt


INSTRUCTIONS = (
    "Solve this math problem. Think step by step and explain each step before you answer. "
    "Conclude with the final answer in the form\n\n"
    "The final answer is $\\boxed{answer}$.\n\n"
    "where the answer is nothing but the number or expression asked for (for a multiple choice "
    "question, the letter of your choice).\n\n"
)
PROMPTS = {
    # The question, and the instruction to put the answer into a box.
    "short": Prompt("{problem}\nPut the final answer in \\boxed{}."),
    # With instructions, for a model that follows them.
    "chat": Prompt(INSTRUCTIONS + "{problem}"),
    # The same for a base model without a chat template, in the form of the course's assignment.
    "plain": Prompt(INSTRUCTIONS + "Problem: {problem}\n\nSolution:", chat=False),
}

# ---- The reward

BOX = re.compile(r"\\boxed\s*\{")
MAX_BOX = 100_000  # characters in which a box must end, spaces included
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` and `\}` are skipped: they print a brace


def reward(completion, problem, prompt=PROMPTS["short"]):
    """The `Reward` of a completion. It never raises, and its time is bounded."""
    boxed = last_boxed(completion)
    if boxed is None:
        return Reward(0.0, 0.0, 0.0, "no \\boxed{...}")
    if boxed == "":
        return Reward(0.5, 0.5, 0.0, "the last \\boxed{ is empty or never closed")
    correct, why = equivalent(boxed, problem["answer"])
    return Reward(1.0 + correct, 1.0, float(correct), why)


def last_boxed(text):
    """The content of the last `\\boxed{...}`; "" if empty or not closed; None without a box."""
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    depth = 1
    for match in BRACE.finditer(text, start, start + MAX_BOX):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
        if depth == 0:
            return text[start : match.start()].strip()
    return ""


def final_answer(completion, problem, prompt=PROMPTS["short"]):
    """The vote of a completion in maj@k: the text in its last box, or None."""
    return last_boxed(completion) or None


def same_answer(vote, other, problem):
    """Whether two votes count as the same answer, as 1/2 and 0.5 do."""
    return vote == other or equivalent(vote, other)[0]


def equivalent(answer, gold):
    """(whether the content of a box has the gold answer's value, "correct" or why not)."""
    if max(len(answer), len(gold)) > MAX_ANSWER:
        return False, f"answer longer than {MAX_ANSWER} characters"
    try:
        correct = same(tokenize(answer), tokenize(gold))
    except (ArithmeticError, ValueError, RecursionError) as error:
        return False, f"{answer!r:.50} or {gold!r:.40} is not read in full: {str(error)!r:.40}"
    return correct, "correct" if correct else f"{answer!r:.60} is not {gold!r:.60}"


def expect(condition, fault):
    """ValueError for a text that is not understood. Such a text equals only itself."""
    if not condition:
        raise ValueError(fault)


# ---- Reading, 1: one spelling for what looks the same, and its tokens

FONT = "(?:rm|bf|it|sf|tt|normal)"
SPELLINGS = [  # (pattern, what takes its place), in this order
    # Spaces, sizes, dollars. A double backslash ends the row of a matrix.
    (r"\\\\", r"\\cr "),
    (r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])", ""),
    (r"^[\s$]+|[\s$]*\.?[\s$]*$", ""),
    # 43{,}500, 43,\!500, 43\,500 and the same with a narrow space are one number.
    ("(?<=[0-9])(?:\\{,\\}|,? *\\\\! *|\\\\,|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))", ""),
    (r"\\\$ *([0-9.,]*[0-9])", r"\1\\text{dollars}"),
    (r"\\[,;:!> ]|\\q?quad(?![a-zA-Z])|~|\s+", " "),
    # Signs and commands with several names.
    ("[−–]", "-"),
    ("×", r"\\times "),
    ("·", r"\\cdot "),
    ("π", r"\\pi "),
    ("∞", r"\\infty "),
    ("∪", r"\\cup "),
    ("²", "^2"),
    (r"<=|≤|\\leq(?:slant)?(?![a-z])", r"\\le "),
    (r">=|≥|\\geq(?:slant)?(?![a-z])", r"\\ge "),
    (r"\\lt(?![a-z])", "<"),
    (r"\\gt(?![a-z])", ">"),
    (r"!=|≠|\\neq(?![a-z])", r"\\ne "),
    (r"\\mathbb *\{ *R *\}", r"(-\\infty,\\infty)"),
    (r"\\sqrt *\[ *([0-9]+) *\]", r"\\root{\1}"),
    (r"\\sqrt(?![a-z])", r"\\root{2}"),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"(\\frac|\\root\{[0-9]+\}) *([0-9])", r"\1{\2}"),
    (r"(\\frac *\{[^{}]*\}) *([0-9])", r"\1{\2}"),
    (r"_ *([0-9A-Za-z])", r"_{\1}"),
    (r"^([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)$", r"\1*10^{\2}"),  # as csv files have it
    (r"\\begin *\{[bp]matrix\}|[([] *\\begin *\{array\} *\{[lcr]*\}", r"\\matrix "),
    (r"(?:\\cr *)?(?:\\end *\{[bp]matrix\}|\\end *\{array\} *[])])", r"\\endmatrix "),
    # Fonts: a letter of mathematics is that letter, and all else is a text.
    (rf"\\(?:math{FONT}|boldsymbol) *\{{ *(\\[A-Za-z]+|[A-Za-z]) *\}}", r" \1 "),
    (rf"\\(?:text{FONT}?|math{FONT}|mbox|textnormal) *\{{", r"\\text{"),
    # "2 and 3" is a list, and \text{5 cm} a number with a unit.
    (r",? *(?:\\text\{ *(?:and|or) *\}|(?<= )(?:and|or)(?= )(?![^{}]*\})) *", ","),
    (r"\\text\{ *([-+]?[0-9][0-9.,/]*)(?=[ }])", r"\1\\text{"),
    (r"(?<=[0-9)}])((?: *(?:[ckm]m|kg)| +[A-Za-z]{3,})(?: [A-Za-z]+)*)(?=$| *\^)", r"\\text{\1}"),
    (r" *(?:\^ *(?:\\circ|\{ *\\circ *\})|°|\\degree)(?![a-z])", r"\\text{degree}"),
    (r" *\\?%", r"\\text{percent}"),
    (r"\\text\{([^{}]*)\} *\^ *(?:([0-9])|\{ *([0-9]) *\})", r"\\text{\1^\2\3}"),
    (r"\b(?:square|sq\.?) ([^{}^]+)\}", r"\1^2}"),
    (r"\b(?:cubic|cu\.?) ([^{}^]+)\}", r"\1^3}"),
    (r"(\\text\{[^{}]*)\} *\\text\{", r"\1 "),
    (r"\\text\{[ .]*\}", " "),
]  # fmt: skip
THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])")
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
TOKEN = re.compile(
    r"\\text\{[^{}]*\}|(?:[A-Za-z]|\\[a-zA-Z]+|)_\{[^{}]*\}|\\[a-zA-Z]+|\\."
    r"|[A-Za-df-hj-z]\(-?[0-9]+\)"  # f(2): not 2f
    rf"|{NUMBER.pattern}|\S"
)
OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\matrix": r"\endmatrix"}
MAX_DEPTH = 40  # brackets within brackets
MAX_PARTS = 25  # of a list or a chain of equations


def tokenize(text):
    """The tokens (str) of a text in one spelling."""
    for pattern, plain in SPELLINGS:
        text = re.sub(pattern, plain, text)
    if not re.search(r"[(\[]|\\\{", text):  # in (100,200), a comma separates two numbers
        text = THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    return TOKEN.findall(text)


def depths(tokens):
    """How many brackets are open after each token. An interval's two may differ: [1, 2)."""
    found = []
    depth = 0
    for token in tokens:
        if token in OPENING:
            depth += 1
        elif token in OPENING.values():
            depth -= 1
        expect(0 <= depth <= MAX_DEPTH, "a bracket is not opened, or too many are")
        found.append(depth)
    expect(depth == 0, "a bracket is not closed")
    return found


def split(tokens, separators):
    """(the parts between separators that stand outside of all brackets, the separators)."""
    parts = [[]]
    found = []
    for token, depth in zip(tokens, depths(tokens)):
        if depth == 0 and token in separators:
            found.append(token)
            parts.append([])
        else:
            parts[-1].append(token)
    expect(all(parts) and len(parts) <= MAX_PARTS, "an empty part, or too many parts")
    return parts, found


# ---- Reading, 2: lists, pairs, sets, intervals, unions, matrices, relations


def same(answer, gold):
    """Whether two lists of tokens have the same value."""
    if answer == gold:
        return True
    if all(map(is_text, answer)) or all(map(is_text, gold)):
        return words_of(answer) == words_of(gold)
    kind, items = group(answer)
    gold_kind, gold_items = group(gold)
    stated = kind.endswith("=")
    if stated and not gold_kind.endswith("="):  # x = 5 for 5
        return all(same(value, gold) for value in items)
    if gold_kind.endswith("=") and not stated:
        return all(same(answer, value) for value in gold_items)
    if kind == gold_kind == "" and len(items) == len(gold_items) == 1:
        return same_values(items[0], gold_items[0])
    listed = {kind, gold_kind} <= {"", "{}"} and has_names(items) == has_names(gold_items)
    if listed or kind == gold_kind == r"\cup":
        return same_in_any_order(items, gold_items)
    return kind == gold_kind and len(items) == len(gold_items) and all(map(same, items, gold_items))


def group(tokens):
    r"""(kind, items): the kind of a list, and its items as lists of tokens.

    The kind is the brackets, such as "()", "[)" or "{}", or "" without brackets, which includes a
    single value. Others are "\cup", "matrix" with its shape, and those of `relation`.
    """
    for signs in {",", ";"}, RELATIONS, {r"\cup"}:
        parts, found = split(tokens, signs)
        if found:
            break
    if set(found) in ({","}, {";"}):
        return "", items_of(parts)
    expect(";" not in found, "a list of lists")
    if RELATIONS & set(found):
        return relation(parts, found)
    if found:
        return r"\cup", parts
    if tokens[0] in OPENING and 0 not in depths(tokens)[:-1]:
        inside = tokens[1:-1]
        if tokens[0] == r"\matrix":
            rows = [split(row, {"&"})[0] for row in split(inside, {r"\cr"})[0]]
            return f"matrix {list(map(len, rows))}", sum(rows, [])
        items, _ = split(inside, {","})
        if tokens[0] == r"\{":
            return "{}", items_of(items)
        if len(items) > 1:
            return tokens[0] + tokens[-1], items
        if tokens[0] + tokens[-1] == "()":
            return group(inside)
    if r"\pm" in tokens:
        expect(tokens.count(r"\pm") == 1, "more than one \\pm")
        return "", [[sign if token == r"\pm" else token for token in tokens] for sign in "+-"]
    return "", [tokens]


def items_of(parts):
    r"""The items of a list. A part that is several values, as in 3, 1 \pm 2, gives all of them."""
    items = []
    for part in parts:
        kind, inner = group(part)
        items.extend(inner if kind == "" else [part])
    return items


def has_names(items):
    """Whether a list names its values, like x = 1, y = 2. Then the order of 1, 2 counts."""
    return len({tuple(item[: item.index("=")]) for item in items if "=" in item}) > 1


def same_in_any_order(items, others):
    """Whether each item of one list has its equal in the other."""
    left = list(others)
    for item in items:
        partner = next((other for other in left if same(item, other)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


TURNED = {">": "<", r"\ge": r"\le"}
RELATIONS = {"=", r"\ne", r"\in", "<", r"\le", *TURNED}
GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi"
    "|chi|psi|omega|varepsilon|varphi|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell"
)
LETTER = re.compile(rf"[A-Za-z]\(-?[0-9]+\)|(?:[A-Za-z]|\\(?:{GREEK}))(?:_\{{.*\}})?")
SEGMENT = "[A-Z](?:[A-Z]|:[A-Z])+"  # AB, A:B
NAME = re.compile(
    rf"(?![ei]$)(?:{LETTER.pattern})|[A-Za-z]\([A-Za-z0-9,-]+\)|\([A-Za-z](?:,[A-Za-z])+\)"
    rf"|{SEGMENT}|\\frac\{{{SEGMENT}\}}\{{{SEGMENT}\}}"
)


def is_name(tokens):
    return bool(NAME.fullmatch("".join(tokens)))


def relation(sides, signs):
    r"""(kind, values) of x = 5, x = 2+3 = 5, x \in [1, 2), 1 < x \le 2, x > 3 or x \ne 0.

    The kind is the names with "=" or "\ne"; a value is a side that is no name, or an interval.
    """
    names = sorted({"".join(side) for side in sides if is_name(side)})
    values = [side for side in sides if not is_name(side)]
    expect(values, "only names")
    if r"\ne" in signs:
        return f"{names} \\ne", values
    if not set(signs) <= {"=", r"\in"}:
        values = [interval(sides, signs)]
    return f"{names} =", values


def interval(sides, signs):
    r"""The numbers with 1 < x \le 2, or with x > 3, as the tokens of an interval."""
    if signs[0] in TURNED:
        sides = sides[::-1]
        signs = [TURNED.get(sign) for sign in reversed(signs)]
    if is_name(sides[0]):
        sides = [["-", r"\infty"], *sides]
        signs = ["<", *signs]
    elif is_name(sides[-1]):
        sides = [*sides, [r"\infty"]]
        signs = [*signs, "<"]
    expect(len(sides) == 3 and is_name(sides[1]) and set(signs) <= {"<", r"\le"}, "no interval")
    first = "(" if signs[0] == "<" else "["
    last = ")" if signs[1] == "<" else "]"
    return [first, *sides[0], ",", *sides[2], last]


# ---- Reading, 3: a value, its unit, and words

SAME_UNIT = {
    "centimeter": "cm", "millimeter": "mm", "meter": "m", "kilometer": "km", "in": "inch",
    "inche": "inch", "ft": "foot", "feet": "foot", "yard": "yd", "mile": "mi", "gram": "g",
    "kilogram": "kg", "pound": "lb", "ounce": "oz", "liter": "L", "s": "second", "sec": "second",
    "min": "minute", "h": "hour", "hr": "hour", "pct": "percent", "rad": "radian",
}  # fmt: skip
# An answer may have these where the gold answer has no words. All other words must be its own.
UNITS = {
    *SAME_UNIT.values(),
    *"mL mg day week month year dollar cent degree unit ^2 ^3".split(),
}


def is_text(token):
    return token.startswith(r"\text{")


def words_of(tokens):
    """Words without case, fonts and brackets around them: (B) and B are one choice."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", " ".join(tokens))
    return "".join(text.lower().split()).strip(".()")


def read_value(tokens):
    r"""(a value's formula, its words): 5 and ("cm", "^2") of 5\text{ square cm}, 12 and _{8}."""
    *formula, last = tokens
    if re.fullmatch(r"_\{[0-9]+\}", last):
        expect("".join(formula).isdigit(), "an index")
        return formula, (last,)
    if not is_text(last):
        return tokens, ()
    words = []
    for word in re.findall(r"[A-Za-z]+|\^[0-9]|\S", last[len(r"\text{") : -1]):
        singular = re.sub("(?<=..)s$", "", word.lower() if len(word) > 2 else word)
        if singular not in ("/", "per", "."):
            words.append(SAME_UNIT.get(singular, singular))
    expect("degree" not in words or not FUNCTIONS.keys() & set(formula), "a function of degrees")
    return formula, tuple(words)


def same_values(answer, gold):
    """Whether two single values are the same, with or without their unit."""
    formula, words = read_value(answer)
    gold_formula, gold_words = read_value(gold)
    if words and words != gold_words and (gold_words or not UNITS.issuperset(words)):
        return False
    return same_formulas(formula, gold_formula)


# ---- Computing: a formula at a point, by recursive descent

LETTERS = re.compile(r"(?:[A-Za-z]|_\{[0-9]+\}|-(?=[A-Z]))+")  # HHTT, NaCl, CO_2, A-C-B
POINTS = 6  # at which formulas with letters are computed


def same_formulas(answer, gold):
    """Whether two formulas have the same value, whatever the value of their letters."""
    if answer == gold:
        return True
    texts = ["".join(answer), "".join(gold)]
    if all(map(LETTERS.fullmatch, texts)):
        return False
    if r"\infty" in (*answer, *gold):
        return texts[0].lstrip("+") == texts[1].lstrip("+")
    for point in range(POINTS):
        left = Formula(answer, point)
        right = Formula(gold, point)
        if left.letters != right.letters or not close(left.value, right.value):
            return False
    return True


numbers = MPContext()
numbers.dps = 300
LARGE = numbers.mpf(10) ** 100  # larger numbers are not computed, nor smaller ones than 1/LARGE
FUNCTIONS = {
    r"\sin": numbers.sin, r"\cos": numbers.cos, r"\tan": numbers.tan, r"\cot": numbers.cot,
    r"\sec": numbers.sec, r"\csc": numbers.csc, r"\arcsin": numbers.asin,
    r"\arccos": numbers.acos, r"\arctan": numbers.atan, r"\ln": numbers.ln,
    r"\log": numbers.log10, r"\exp": numbers.exp,
}  # fmt: skip
CONSTANTS = {r"\pi": +numbers.pi, "e": +numbers.e, "i": numbers.mpc(0, 1)}
OVER = ("/", r"\div")
TIMES = ("*", r"\cdot", r"\times")
FACTOR = re.compile(
    rf"\(|{NUMBER.pattern}|{LETTER.pattern}|\\(?:frac|root|pi)|"
    + "|".join(map(re.escape, FUNCTIONS))
)
MIXED = re.compile(r"\\frac\{[0-9]+\}\{[0-9]+\}")


def bounded(value):
    """The value, if it is 0 or of a size at which 300 digits are exact enough."""
    expect(value == 0 or 1 / LARGE < abs(value) < LARGE, "too large or too small")
    return value


def close(x, y):
    """Whether two values agree in 250 digits."""
    return abs(x - y) <= abs(x) / 10**250


class Formula:
    """Reads the tokens of a formula from left to right and computes it.

    sum = product + product - ...; product = power power * power / ...; power = atom ^ argument
    """

    def __init__(self, tokens, point):
        self.rest = ["", *tokens[::-1]]  # those not read yet, the next one last; "" is the end
        self.point = point  # a number; letters have other values at each point
        self.letters = set()
        self.value = self.sum("")

    def next(self):
        return self.rest[-1]

    def take(self, *expected):
        """Read the next token and return it if it is one of the expected, else return ""."""
        return self.rest.pop() if self.next() in expected else ""

    def sum(self, end):
        """The value of a sum up to the bracket `end`, or to the end of the text."""
        value = self.product()
        while sign := self.take("+", "-"):
            term = self.product()
            value = bounded(value + term if sign == "+" else value - term)
        expect(self.next() == end, f"{self.next() or 'the end'} is out of place")
        self.take(end)
        return value

    def product(self):
        value = self.joined()
        while sign := self.take(*TIMES, *OVER):
            if sign in TIMES:
                value = bounded(value * self.joined())
            else:
                value = bounded(value / self.power())
                expect(not self.factor_follows(), "1/2x has two readings")
        return value

    def joined(self):
        """The product of the powers that stand side by side."""
        value = self.power()
        while self.factor_follows():
            expect(not NUMBER.fullmatch(self.next()), "a number right after something")
            value = bounded(value * self.power())
        return value

    def factor_follows(self):
        return FACTOR.fullmatch(self.next())

    def power(self):
        value = self.atom()
        if self.take("^"):
            value = bounded(value ** self.argument(digits=500))
        return value

    def atom(self):
        token = self.take(self.next())
        if NUMBER.fullmatch(token):
            value = numbers.mpf(token)
            if MIXED.match("".join(self.rest[:-8:-1])):  # 2\frac{1}{2} is a sum
                fraction = self.atom()
                expect(fraction < 1 and token.isdigit(), "a number beside a fraction")
                value += fraction
            return bounded(value)
        if token in ("+", "-"):  # -2, 9+-1, 2*-3
            value = self.power()
            return -value if token == "-" else value
        if token == "(":
            return self.sum(")")
        if token == r"\frac":
            over = self.argument()
            return bounded(over / self.argument())
        if token == r"\root":
            index = self.argument()
            return bounded(self.argument() ** (1 / index))
        if token in FUNCTIONS:
            return bounded(self.function(token))
        if token in CONSTANTS:
            return CONSTANTS[token]
        expect(LETTER.fullmatch(token), f"{token or 'the end'} is not known here")
        expect(token not in "fgh" or self.next() != "(", "a function that is not given")
        self.letters.add(token)
        random_bits = random.Random(f"{token} {self.point}").getrandbits(900)
        return numbers.mpf(random_bits) / 2**898 - 2  # between -2 and 2

    def argument(self, digits=1):
        r"""An argument: braces, or a letter, a command or so many digits, as x of x^2."""
        if self.take("{"):
            return self.sum("}")
        token = self.next()
        if NUMBER.fullmatch(token):
            expect(len(token) <= digits, "an argument without braces")
            return numbers.mpf(self.take(token))
        expect(token not in ("+", "-", "("), "an argument without braces")
        return self.atom()

    def function(self, name):
        r"""\sin 2x: without brackets, read up to the next sign, bracket or function."""
        if self.next() == "(":
            value = self.atom()
        else:
            value = self.power()
            while self.factor_follows() and self.next() not in FUNCTIONS:
                expect(self.next() != "(", "two readings")
                value = bounded(value * self.power())
        expect(self.next() not in OVER, "sin x/2 has two readings")
        return FUNCTIONS[name](value)


# ---- Files: a row is read as it is written, or refused

LOST = re.compile("\t|(?<![\\\\}&])(?<![\\\\}&] )\n(?=[a-z])")  # of \tan or \neq, in an answer


def to_problem(row):
    """The problem of a row. ValueError if a text is missing or no box could hold the answer."""
    for name in ("problem", "answer", "solution"):
        text = f"{row.get(name)}"
        lost = problem_files.CONTROL.search(text) or (name == "answer" and LOST.search(text))
        expect(not lost, f"a control character in {text!r:.200}; json needs \\\\ for a backslash")
    problem = {"problem": row.get("problem"), "answer": read_answer(row)}
    for name, text in problem.items():
        stated = isinstance(text, str) and text.strip()
        expect(stated, f"needs {name}, a text, or solution with \\boxed{{}}; got {row!s:.300}")
    answer = problem["answer"]
    fits = len(answer) <= MAX_ANSWER and last_boxed(f"\\boxed{{{answer}}}") == answer.strip()
    expect(fits, f"needs at most {MAX_ANSWER} characters and balanced braces; got {answer!r:.80}")
    finite = answer.strip().lstrip("+-").lower() not in ("nan", "inf", "infinity")
    expect(finite, f"needs an answer that is not {answer}")
    for name, other in (("level", "level"), ("subject", "type")):
        value = row.get(name, row.get(other))
        if value is not None:
            problem[name] = value
    return problem


def read_answer(row):
    """The answer as text: from 2, "2", ["2"], "\\boxed{2}", or the last box of a solution."""
    answer = row.get("answer")
    solution = row.get("solution")
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if type(answer) in (int, float):
        return str(answer)
    if answer is None and isinstance(solution, str):  # old rows also have \fbox{2}, \boxed 2
        solution = solution.replace("\\fbox{", "\\boxed{")
        return last_boxed(re.sub(r"\\boxed\s+([^\s{}$.]+)", r"\\boxed{\1}", solution))
    if isinstance(answer, str) and BOX.match(answer.strip(" $.")):
        return last_boxed(answer)
    return answer
