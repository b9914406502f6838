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

The reader of LaTeX below decides whether two values are the same. It brings a text into one
spelling. Then it takes the text apart from the outside in: lists and brackets, equations, units,
formulas. Recursive descent computes a formula exactly if it is rational, else to 300 digits. A
formula with letters is computed at ten points. No part of a text is executed or skipped. Every
operation is bounded, so no time limit is needed. A text that is not read in full equals
only itself. Words beside two equal numbers must agree, except units of which one side has none.

    problem's answer   correct                                  wrong
    1/2                0.5, \frac24, \sqrt{1/4}, √¼             0.51, 1 2
    3/2                1.5, 1\frac12, 1 1/2                     11/2, 1 3/2
    1/3                0.333333 (six digits or more), 0.33...   0.333, 0.333334
    0.1\overline{6}    1/6, 0.1666..., 0.1\dot{6}               0.16, 0.1\text{ repeating}
    43500              43,500, 43{,}500, \$43,500               43, 500
    40                 4(10), 4 \cdot 10                        4{10}, which prints 410
    5                  x = 5, f(2) = 5, 2+3 = 5, 5 apples       2x = 10, \geq 5, 5 or more, 5 pi
    5\text{ cm}^2      5, 5 square centimeters                  5\text{ cm}, 5\text{ m}^2
    10\%               10, 0.1                                  1
    5\text{ km east}   5, 5\text{ km}                           5\text{ km west}
    2516_8             2516, 2516_{(8)}                         2516_9
    2x/3               \frac{2x}{3}                             2/3x (it has two readings)
    x^2+2x+1           (x+1)^2, y = (1+x)^2, x²+2x+1            (t+1)^2
    xy                 yx                                       x+y
    HHTT               \text{HHTT}                              HTHT
    2\sqrt{3}          2√3                                      √12x
    \frac23            \frac23 \approx 0.67                     \frac23 \approx 0.5, \frac23 \sim 1
    y = 3x+5           3x-y = -5                                y = 3x
    1, 2               2 and 1, \{2, 1\}, x=1 or x=2            1, 2, 2
    (1, 2)             1, 2                                     (2, 1), [1, 2]
    (3, \infty)        x > 3, 3 < x                             x \ge 3
    x \ne 1, 2         \mathbb{R}\setminus\{1, 2\}              x \ne 1
    \text{(B)}         B, b, (B)                                C
    1:58\text{ a.m.}   1:58 am, 1:58                            1:58 pm

Left out: sums with \sum, integrals, limits, piecewise functions, sums and products of matrices,
conversions of units. The reward cannot tell an answer from an expression that only repeats the
question: \binom{5}{2} equals 10. docs/own_task.md compares the verdicts with other people's.
"""

import math
import operator
import random
import re
import unicodedata
from collections import namedtuple
from fractions import Fraction
from itertools import accumulate

from mpmath import MPContext

Reward = namedtuple("Reward", "total format answer why")  # why: "correct", or what is wrong
Prompt = namedtuple(  # a way to ask
    "Prompt",
    [
        "text",  # the question; {problem} stands for the problem's column
        "chat",  # True: the user's turn in the chat template; False: the text alone
        # The beginning of the assistant's turn. Without it, a base model may continue the question
        # instead of answering it.
        "opening",
        "stop",  # texts that end a completion; the completion keeps them
    ],
    defaults=(True, "", ()),
)

HIDDEN = ("answer",)  # the columns of a problem that a prompt never shows

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
    import problem_files  # only files and the hub need it

    if source is None:
        raise problem_files.Refused(
            "MATH has no built-in problems: use `--data hub` or `--data FILE`."
        )
    hub = problem_files.Hub(HUB_DATASET)
    return problem_files.load(source, split, hub, to_problem, problem_key)


def title(problem):
    """The problem in one line, for people."""
    return " ".join(problem["problem"].split())


def problem_key(problem):
    """Two problems with the same key are the same: the text, whatever its spacing and case."""
    return title(problem).lower()


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
    """(whether the contents of two boxes have the same value, "correct" or why not)."""
    if max(len(answer), len(gold)) > MAX_ANSWER:
        return False, f"answer longer than {MAX_ANSWER} characters"
    try:
        correct = same(tokenize(answer), tokenize(gold))
    except (ArithmeticError, LookupError, ValueError, RecursionError) as error:
        return False, f"{answer!r:.50} or {gold!r:.40} is not read in full: {str(error)!r:.40}"
    return correct, "correct" if correct else f"{answer!r:.60} is not {gold!r:.60}"


def expect(condition, fault):
    """ValueError for a text that is not understood. Such a text equals only itself."""
    if not condition:
        raise ValueError(fault)


# ---- Reading, 1: one spelling for what looks the same, and its tokens

# Characters that stand for a command, by their names in Unicode.
NAMED = r"""
- MINUS SIGN, - EN DASH, - HYPHEN, * ASTERISK OPERATOR, \times MULTIPLICATION SIGN, : RATIO
\cdot MIDDLE DOT, \cdot DOT OPERATOR, \cdot BULLET OPERATOR, \cdot BULLET
/ DIVISION SIGN, / DIVISION SLASH, / FRACTION SLASH
\pm PLUS-MINUS SIGN, \mp MINUS-OR-PLUS SIGN, \infty INFINITY, \angle ANGLE
\le LESS-THAN OR EQUAL TO, \le LESS-THAN OR SLANTED EQUAL TO, \le LESS-THAN OVER EQUAL TO
\ge GREATER-THAN OVER EQUAL TO, \ge GREATER-THAN OR EQUAL TO
\ge GREATER-THAN OR SLANTED EQUAL TO, \ne NOT EQUAL TO, \approx ALMOST EQUAL TO, \in ELEMENT OF
\cup UNION, \cap INTERSECTION, \setminus SET MINUS, \emptyset EMPTY SET, \ell SCRIPT SMALL L
\lfloor LEFT FLOOR, \rfloor RIGHT FLOOR, \lceil LEFT CEILING, \rceil RIGHT CEILING, ' PRIME
( MATHEMATICAL LEFT ANGLE BRACKET, ) MATHEMATICAL RIGHT ANGLE BRACKET, | DIVIDES
\mathbb{R} DOUBLE-STRUCK CAPITAL R, \mathbb{C} DOUBLE-STRUCK CAPITAL C
\mathbb{N} DOUBLE-STRUCK CAPITAL N, \mathbb{Z} DOUBLE-STRUCK CAPITAL Z
° DEGREE SIGN, ° MASCULINE ORDINAL INDICATOR, ° RING ABOVE, \circ RING OPERATOR
\cdots MIDLINE HORIZONTAL ELLIPSIS
\root{2}√ SQUARE ROOT, \root{3}√ CUBE ROOT, \root{4}√ FOURTH ROOT
"""
COMMANDS = {}
for entry in re.split(r",\s|\n", NAMED.strip()):
    command, _, character_name = entry.partition(" ")
    COMMANDS[character_name] = f"{command} " if command[-1].isalpha() else command


NOT_ASCII = re.compile(r"[^\x00-\x7f]")
RAISED = "\ue000"  # around a raised character, and
LOWERED = "\ue001"  # around a lowered one: x¹⁰ has one power


def in_ascii(text):
    """The text with LaTeX in place of characters such as √ ² ½ ± θ. Unknown ones stay."""
    text = NOT_ASCII.sub(command_of, text)
    for mark, command in ((RAISED, "^"), (LOWERED, "_")):
        text = text.replace(2 * mark, "")
        text = re.sub(f"{mark}(.*?){mark}", rf"{command}{{\1}}", text)
    return text


def command_of(match):
    """The LaTeX of one character, from its name or from the characters that it is made of."""
    character = match[0]
    name = unicodedata.name(character, "")
    if not name:
        return r"\beside "  # a command that nothing reads
    if name in COMMANDS:
        return COMMANDS[name]
    greek = re.fullmatch("GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?([A-Z]+)", name)
    if greek:
        letter = greek[2].replace("LAMDA", "LAMBDA")
        return f"\\{letter.lower() if greek[1] == 'SMALL' else letter.capitalize()} "
    normal = unicodedata.normalize("NFKC", character)
    if normal == character or re.match("CIRCLED|PARENTHESIZED|DIGIT .* FULL STOP", name):
        return character
    made_of = NOT_ASCII.sub(command_of, normal)
    kind = unicodedata.decomposition(character)
    if "<super>" in kind:
        return f"{RAISED}{made_of}{RAISED}"
    if "<sub>" in kind:
        return f"{LOWERED}{made_of}{LOWERED}"
    if "<fraction>" in kind:
        return re.sub("(.*)/(.*)", r"\\frac{\1}{\2} ", made_of)
    return made_of


SPELLINGS = [  # (pattern, the spelling that takes its place), in this order
    # Repeating decimals: 0.1‾6 stands for 0.1\overline{6}. Dots after other numbers are kept.
    (r"(\.[0-9]*) *\\dot *\{?([0-9])\}? *([0-9]*) *\\dot *\{?([0-9])\}?"
     r"(?! *(?:[0-9{]|\\(?:overline|bar|dot)))", r"\1‾\2\3\4"),
    (r"(\.[0-9]*) *(?:\\(?:overline|bar|dot) *(?:\{ *([0-9]+) *\}|([0-9]))|(?<=\.)\(([0-9]+)\))"
     r"(?! *(?:[0-9{]|\\(?:overline|bar|dot)))", r"\1‾\2\3\4"),
    ("(\\.[0-9]*)([0-9])[\u0304\u0305\u0307](?! *[0-9])", r"\1‾\2"),
    (r"(\.[0-9]*?)(?:([0-9])\2+|([0-9]{2,6}?)\3+) *(?:\.\.\.|\\[lc]?dots(?![a-z]))(?! *[0-9.])",
     r"\1‾\2\3"),
    (r"\.\.\.", r"\\ldots "),
    # Roots without a command: of a number, a letter or what brackets hold.
    (r"(?<![\\A-Za-z])sqrt(?![A-Za-z])", r"\\root{2}√"), (r"√ *\(([^()]*)\)", r"{\1}"),
    (r"√ *\{", "{"),
    (r"√ *(\\frac\{[0-9]+\}\{[0-9]+\}|[0-9]+(?:\.[0-9]+)?|[A-Za-z]|\\[a-z]+)"
     r"(?! *(?:[\w({^!]|\.[0-9]|\\(?:pi|root|frac)))", r"{\1}"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
    # Functions without a command, before their argument: not 5 sec, sinh or cost.
    (r"(?<![\\A-Za-z])(sin|cos|tan|cot|ln|log|arcsin|arccos|arctan)"
     r"(?= *(?:[(^0-9]|\\[a-z])| +[A-Za-z](?![A-Za-z])|[xy](?![A-Za-z]))", r"\\\1 "),
    # Mixed numbers: 1 1/2.
    (r"((?:^|[-+=,;(])\s*[0-9]+) +([0-9]+)/([0-9]+)(?= *(?:$|[,;)$]|\\text|[A-Za-z]{2}))",
     r"\1\\frac{\2}{\3}"),
    # Spaces, sizes and dollars. A double backslash ends the row of a matrix.
    (r"\\\\", r"\\cr "),
    (r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])", ""),
    (r"\\!", ""),
    (r"\{,\}", ","),
    (r"\\\$ *([0-9]+(?:[.,][0-9]+)*)(?= *(?:$|[,;)$]|\\text|[A-Za-z]{2}))", r"\1\\text{ dollars}"),
    (r"\\\$", " "),
    (r"\\[()\[\]]", "$"),
    (r"\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\s+", " "),
    (r"^[ $]+|[ $.]+$", ""),
    (r"\$ *\$", r" \\beside "),  # two formulas side by side: a command that nothing reads
    (r"\$", " "),
    # Signs and commands with several names.
    (r"<=|\\leq(?:slant)?(?![a-z])", r"\\le "),
    (r">=|\\geq(?:slant)?(?![a-z])", r"\\ge "), (r"!=|/=|\\neq(?![a-z])|\\not *=", r"\\ne "),
    (r"\\lt(?![a-z])", "<"), (r"\\gt(?![a-z])", ">"),
    (r"\\(?:simeq|approxeq)(?![a-z])", r"\\approx "),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"), (r"\\[dt]binom(?![a-z])", r"\\binom"),
    (r"\\colon(?![a-z])", ":"), (r"\\[lr]?vert(?![a-z])", "|"), (r"\\lg(?![a-z])", r"\\log "),
    (r"\\lbrace(?![a-z])", r"\\{"), (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\langle(?![a-z])", "("), (r"\\rangle(?![a-z])", ")"),
    (r"\\mathbb *(?:\{ *R *\}|R(?![a-zA-Z]))|\\R(?:eals)?(?![a-zA-Z])", r"(-\\infty,\\infty)"),
    (r"\(-\\infty,\\infty\) *(?:\\backslash|\\setminus|-) *(\\\{.*\\\}|\{.*\})$",
     r"(-\\infty,\\infty)\\setminus \1"),
    # Commands that others can say.
    (r"\\(sin|cos|tan) *\^ *\{ *-1 *\}", r"\\arc\1 "),
    (r"\\lceil((?:(?!\\[lr]ceil).)*)\\rceil", r"(-\\lfloor -(\1)\\rfloor )"),
    (r"\\sqrt *\[([^][]*)\]", r"\\root{\1}"), (r"\\sqrt(?![a-z])", r"\\root{2}"),
    (r"\\binom *([0-9]) *([0-9])", r"\\binom{\1}{\2}"),
    (r"\\binom *\{([^{}]*)\} *\{([^{}]*)\}", r"\\frac{(\1)!}{(\2)!((\1)-(\2))!}"),
    (r"\\Gamma *\(([^()]*)\)", r"((\1)-1)!"),
    (r"(\^ *(?:\{[^{}]*\}|[0-9A-Za-z])) *(_ *(?:\{[^{}]*\}|[0-9A-Za-z]+))", r"\2\1"),  # x^2_1
    (r"_ *(?:\{ *\( *([0-9]+) *\) *\}|\( *([0-9]+) *\))", r"_{\1\2}"),  # 101_{(2)}
    (r"(?<=[0-9)]) *_ *([0-9]+)", r"_{\1}"), (r"_ *([0-9A-Za-z])", r"_{\1}"),
    (r"^([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)$", r"\1*10^{\2}"),  # as csv files have it
    (r"^(?!\\pi)((?:[A-Za-z]|\\[a-z]+)(?:_\{[^{}]*\})?) *\\approx", r"\1="),
    # Matrices.
    (r"[\[(] *\\begin *\{array\} *\{[lcr|]*\}(.*?)(?:\\cr *)?\\end *\{array\} *[\])]",
     r"\\matrix \1\\endmatrix "),
    (r"\\begin *\{[bp]?matrix\}", r"\\matrix "),
    (r"(?:\\cr *)?\\end *\{[bp]?matrix\}", r"\\endmatrix "),
    # Fonts: a single letter of mathematics is that letter; all else is a text.
    (r"(?<=[0-9)}]) *\\mathrm *\{ *([mgsLNJW]) *\}(?= *(?:$|[,^]))", r"\\text{\1}"),
    (r"\\(?:math(?:rm|bf|it|sf|normal)|boldsymbol) *\{ *(\\?[A-Za-z]|\\[a-zA-Z]+) *\}", r" \1 "),
    (r"\\(?:text|math)(?:bf|rm|it|sf|normal)? *\{|\\[mh]box *\{", r"\\text{"),
    (r"\\(?:varnothing|emptyset)(?![a-z])|\\\{ *\\\}", r"\\text{empty set}"),
    # Words: lists, numbers in a text, times of day, words and units without a command.
    (r",? *(?:\\text\{[ ,]*(?:and|or|,)[ ,]*\}"
     r"|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])(?![^{}]*\})) *,?", ","),
    (r"\\text\{ *([-+]?[0-9][0-9.,:/]*)(?=[ }])", r" \1\\text{"),
    (r"(?i)(:[0-5][0-9]|^[0-9]+) *(?:\\text\{ *)?([ap])\.? ?m\.?(?: *\}|$)", r"\1\\text{\2m}"),
    (r"^0([0-9]:)", r"\1"),
    (r"^\(?(?=.*[A-Za-z]{5})([A-Za-z]+(?:[ -][A-Za-z]+)*)\)?$", r"\\text{\1}"),
    (r"(?<=[0-9)}\]])(?: +(?=[A-Za-z]{4}|(?:[ckm]m|kg|ft|in|mi|yds?|lbs?|mph|pct|sq|sec|min|hrs?"
     r"|days?|per)(?![a-zA-Z]))|(?=(?:[ckm]m|kg|ft)(?![a-zA-Z])))"
     r"([A-Za-z]+(?:[ /]+[A-Za-z]{2,}){0,3})(?= *(?:$|[,;^]))", r"\\text{\1}"),
    (r"(\\text\{[^{}]*)\b(?:square|sq\.?) ([^{}^]+)\}", r"\1\2^2}"),
    (r"(\\text\{[^{}]*)\bcubic ([^{}^]+)\}", r"\1\2^3}"),
    (r"(\\text\{[^{}]*)\} *\^ *(?:([0-9])|\{ *([0-9]) *\})", r"\1^\2\3}"),
    (r"(\\text\{[^{}]*)\^\{([0-9])\} *\}", r"\1^\2}"),
    # Degrees and percent are units; a sine needs radians, or else is not read.
    (r" *(?:\^ *(?:\\circ|\{ *\\circ *\})|°|\\degree)(?![a-z])", "°"),
    (r"° *([CF])(?![a-zA-Z])", r"\\text{\1}"),
    (r"\\(sin|cos|tan|cot|sec|csc)( *\^ *\{? *[0-9] *\}?)? *(?:([0-9.]+)°|[({] *([0-9.]+)° *[)}])",
     r"\\\1\2(\3\4\\pi /180)"),
    (r"\\(sin|cos|tan|cot|sec|csc)([^°]*)°", r"\\beside \\\1\2"),
    (r"°(?=$| *\\text\{(?! *[CF] *\}))", r"\\text{degrees}"), ("°", " "),
    (r"(?:\\?% *){2}", r"\\beside "), (r" *\\?%", r"\\text{percent}"),
    (r"(\\text\{[^{}]*)\} *\\text\{", r"\1 "), (r"\\text\{[ .]*\}", " "),
    (r"(\\text\{[^{}]*)\bmph\b", r"\1mi/h"), (r"(\\text\{[^{}]*)\b(?:kph|kmh)\b", r"\1km/h"),
    (r"(\\text\{percent)\} *([A-Za-z]{4,}(?: [A-Za-z]+){0,2})$", r"\1 \2}"),
    # Real numbers without some points: x \ne 1, and x \ne 1, 2 or x \ne 1, x \ne 2.
    *[(r"^ *([A-Za-z]) *\\ne *([^;=<>]+), *\1 *\\ne *(?=[^;=<>]+$)", r"\1\\ne \2,")] * 3,
    (r"^ *([A-Za-z]) *\\ne *([^;=<>]+)$", r"\1\\in (-\\infty,\\infty)\\setminus \\{\2\\}"),
    (r"^ *([^,;=<>]+) *\\ne *([A-Za-z]) *$", r"\2\\in (-\\infty,\\infty)\\setminus \\{\1\\}"),
]  # fmt: skip
COMPILED = [(re.compile(pattern), plain) for pattern, plain in SPELLINGS]
THOUSANDS = re.compile(
    r"(?<![0-9.,])[1-9][0-9]{0,2}(?:(?:,|\{,\}|\s*,?\s*\\!\s*|\\,)[0-9]{3})+(?![0-9])"
)
NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+|\.(?=‾))(?:‾[0-9]+)?")
INDEX = r"_\{(?:[^{}]|\{[^{}]*\})*\}"
TOKEN = re.compile(
    rf"\\text\{{[^{{}}]*\}}|(?:[A-Za-z]|\\[a-zA-Z]+){INDEX}|{INDEX}|\\[a-zA-Z]+|\\."
    r"|(?<![0-9:])[0-9]{1,2}:[0-5][0-9](?![0-9:])"  # a time of day
    r"|[A-Za-df-hj-z]\(-?(?:[0-9][0-9.,/]*|\\frac(?:\{[0-9]+\}|[0-9]){2})\)"  # f(2): not 2f
    rf"|{NUMBER.pattern}|\S"
)
OPENING = {
    "(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\matrix": r"\endmatrix"
}  # fmt: skip
MAX_DEPTH = 40  # brackets within brackets
MAX_PARTS = 25  # of a list or a chain of equations


def tokenize(text):
    """The tokens (str) of a text in one spelling."""
    text = THOUSANDS.sub(join_thousands, in_ascii(text))
    for pattern, plain in COMPILED:
        text = pattern.sub(plain, text)
    return TOKEN.findall(re.sub("(?<![0-9a-zA-Z]) +| +(?![0-9a-zA-Z])", "", " ".join(text.split())))


def join_thousands(match):
    """43,500 without its comma. In brackets, as in (100,200), the comma separates two numbers.

    But it joins thousands in (1,000, 20), a list with spaces, and in 43{,}500 and 43,\\!500.
    """
    before = match.string[: match.start()]
    opened = re.findall(r"(?<!\\)[(\[]|\\{", before)
    closed = re.findall(r"(?<!\\)[)\]]|\\}", before)
    spaced = re.search(r"[0-9] ?,[ ~\\]+[0-9]", match.string)
    plain = re.fullmatch("[0-9,]+", match[0])
    if plain and not spaced and len(opened) > len(closed):
        return match[0]
    return re.sub("[^0-9]", "", match[0])


def depths(tokens):
    """How many brackets are open after each token. An interval's two may differ: [1, 2)."""
    found = []
    depth = 0
    for token in tokens:
        if token in OPENING:
            depth += 1
        elif token in OPENING.values():
            depth -= 1
        expect(0 <= depth <= MAX_DEPTH, "unbalanced brackets, or too many")
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
    expect(len(parts) <= MAX_PARTS, "too many parts")
    expect(not found or all(parts), "an empty part")
    return parts, found


# ---- Reading, 2: lists, pairs, sets, intervals, unions, matrices


def group(tokens):
    r"""(kind, items): the kind of a list, and its items as lists of tokens.

    The kind is the brackets, such as "()", "[)" or "{}", or "" without brackets, which includes a
    single value. It is "=" for a relation, whose items are steps. Other kinds are "\cup", ":", and
    "matrix" with its shape.
    """
    expect(tokens, "nothing is there")
    for signs in {";"}, {","}, {r"\approx"}, RELATIONS, {r"\cup"}, {r"\setminus"}, {":"}:
        parts, found = split(tokens, signs)
        if found:
            break
    if ";" in found:  # a, b; c, d are two pairs
        return "", [["(", *part, ")"] if "," in part else part for part in parts]
    if "," in found:
        return "", items_of(parts)
    if r"\approx" in found:  # keep 1/3 of 1/3 \approx 0.33; the others must be near it
        for part in parts[1:]:
            value, _ = split(parts[0], RELATIONS)
            expect(near(value[-1], part), "an approximation that is not near")
        return group(parts[0])
    if RELATIONS & set(found):
        return "=", steps_of(parts, found)
    if r"\setminus" in found:
        return r"\cup", intervals_between(parts)
    if r"\cup" in found or len(found) > 1:  # 1:2 alone is a ratio, a half
        return found[0], parts
    if tokens[-1] == r"\endmatrix" and tokens.count(r"\matrix") == 1:
        return matrix(tokens)
    enclosed = tokens[0] in ("(", "[", "{", r"\{") and 0 not in depths(tokens)[:-1]
    if enclosed and tokens[0] == r"\{":
        return "{}", items_of([tokens[1:-1]])
    if {r"\pm", r"\mp"} & set(tokens):
        expect(max(map(tokens.count, (r"\pm", r"\mp"))) == 1, "more than one \\pm")
        signs = ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"})
        return "", [[sign.get(token, token) for token in tokens] for sign in signs]
    if not enclosed:
        return "", [tokens]
    items, _ = split(tokens[1:-1], {",", ";"})
    if tokens[0] == "{" or (tokens[0] == "(" and tokens[-1] == ")" and len(items) == 1):
        return group(tokens[1:-1])
    return tokens[0] + tokens[-1], items


def intervals_between(parts):
    """The intervals that are left of the real numbers without the points of a set."""
    reals, points = parts
    expect("".join(reals) == r"(-\infty,\infty)", "a set without another one")
    expect(points[0] + points[-1] in (r"\{\}", "{}"), "a set without braces")
    items = items_of([points[1:-1]])
    places = []
    for point in items:
        formula = Formula(point, 0)
        expect(not formula.letters or len(items) == 1, "points whose order is unknown")
        places.append((approximate(formula.value).real, point))
    ends = [["-", r"\infty"], *(point for _, point in sorted(places)), [r"\infty"]]
    return [["(", *low, ",", *high, ")"] for low, high in zip(ends, ends[1:])]


def items_of(parts):
    r"""The items of a list. A part that is several values, as in 3, 1 \pm 2, gives all of them."""
    items = []
    for part in parts:
        kind, inner = group(part)
        items.extend(inner if kind == "" else [part])
    return items


def matrix(tokens):
    """A matrix, or a number times a matrix, as its entries."""
    start = tokens.index(r"\matrix")
    factor = tokens[:start]
    rows, _ = split(tokens[start + 1 : -1], {r"\cr"})
    shape = []
    entries = []
    for row in rows:
        cells, _ = split(row, {"&"})
        shape.append(len(cells))
        for cell in cells:
            entries.append([*factor, "(", *cell, ")"])
    return f"matrix {shape}", entries


def same(a, b):
    """Whether two lists of tokens have the same value."""
    if a == b:
        return True
    kind, items = group(a)
    other_kind, others = group(b)
    kinds = {kind, other_kind}
    if kinds == {"="}:
        return same_in_any_order(items, others, same_steps)
    if "=" in kinds:
        return has_value(items, b) if kind == "=" else has_value(others, a)
    if kinds == {""} and len(items) == len(others) == 1:
        return same_values(items[0], others[0])
    listed = kinds <= {"", "{}"} and has_names(items) == has_names(others)
    if listed or kinds == {r"\cup"}:
        return same_in_any_order(items, others, same)
    if kinds not in ({kind}, {"", "()"}) or has_percent(a) != has_percent(b):
        return False  # a list without brackets may stand for a pair
    return len(items) == len(others) and all(map(same, items, others))


def has_names(items):
    """Whether a list names its values, like x = 1, y = 2. Then the order of 1, 2 counts."""
    return len({tuple(item[: item.index("=")]) for item in items if "=" in item}) > 1


def same_in_any_order(items, others, equal):
    """Whether each item of one list has its equal in the other."""
    left = list(others)
    for item in items:
        partner = next((other for other in left if equal(item, other)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


# ---- Reading, 3: equations and inequalities

TURNED = {">": "<", r"\ge": r"\le", "<": ">", r"\le": r"\ge"}
LAW = re.compile("[A-WYZ]=[A-Z]{2}")  # V = RI is V = IR; HT alone is no product (SEQUENCE)
RELATIONS = {"=", r"\ne", r"\in", *TURNED}


def is_name(tokens):
    r"""Whether a side is a name, not a value: x, x_1, f(x), f(2), P(A), \angle ABC, A:B."""
    for token in filter(is_text, tokens):
        unit_and_words(token)  # "not x" is no name
    return all(
        token in IN_A_NAME or token[0] == "_" or is_text(token) or LETTER.fullmatch(token)
        for token in tokens
    )


def steps_of(sides, signs):
    """The steps (left, sign, right) of an equation, inequality or chain, in rising order."""
    steps = list(zip(sides, signs, sides[1:]))
    if {">", r"\ge"} & set(signs):
        steps = [(right, TURNED.get(sign, sign), left) for left, sign, right in reversed(steps)]
    if len(steps) > 1 and set(signs) == {"="}:  # x = 2 + 3 = 5 is x = 5
        *values, value = stated(steps)
        expect(all(same(side, value) for side in values), "an equation that is not true")
        steps = [(sides[0], "=", value)]
    return steps


def stated(steps):
    """The sides that give a chain's names their value: 2+3 and 5 of x = 2+3 = 5."""
    sides = [steps[0][0], *(right for _, _, right in steps)]
    return [side for side in sides if not is_name(side)] or sides[-1:]


def has_value(steps, value):
    """Whether steps state a value: x = 5 states 5, and 1 < x < 2 or x in (1, 2) an interval."""
    if all(sign in ("=", r"\in") for _, sign, _ in steps):
        return all(same(side, value) for side in stated(steps))
    return same(interval(steps), value)


def interval(steps):
    r"""The numbers with 1 < x \le 2 or x > 3, as the tokens of an interval."""
    left, _, right = steps[0]
    if len(steps) == 1 and is_name(left):
        steps = [(["-", r"\infty"], "<", left), *steps]
    elif len(steps) == 1:
        steps = [*steps, (right, "<", [r"\infty"])]
    (low, opens, name), (other, closes, high) = steps
    expect(name == other and is_name(name), "no interval")
    first = "(" if opens == "<" else "["
    last = ")" if closes == "<" else "]"
    return [first, *low, ",", *high, last]


def same_steps(a, b):
    """Whether two steps are equal up to a factor. That of an inequality must be positive."""
    left, sign, right = a
    other_left, other_sign, other_right = b
    if sign != other_sign:
        return False
    if left == other_left and sign in ("=", r"\in"):
        if LAW.fullmatch("".join([*left, "=", *right])) and sorted(right) == sorted(other_right):
            return True
        return has_percent(right) == has_percent(other_right) and same(right, other_right)
    values = []
    ratios = []
    for x, y in at_points(difference(left, right), difference(other_left, other_right)):
        values.append(x.value)
        ratios.append(approximate(calculate("/", x.value, y.value)))
    if len(ratios) < NEEDED:
        return False
    first = ratios[0]
    if all(close(value, values[0]) for value in values):  # 1 = 2 is not 3 = 4
        return False
    if not all(close(ratio, first) for ratio in ratios):
        return False
    return sign in ("=", r"\ne") or close(first, abs(first))


def difference(left, right):
    """left - right, as tokens."""
    return ["(", *left, ")", "-", "(", *right, ")"]


# ---- Reading, 4: values, their units, and words

# A measure on each line, with its other names. The words for a time of day are am and pm.
MEASURES = """
cm centimeter centimetre
mm millimeter millimetre
nm nanometer nanometre
m meter metre
km kilometer kilometre
in inch inche
ft foot feet
yd yard
mi mile
acre
l liter litre
ml milliliter millilitre
gallon gal
quart qt
pint pt
cup
tablespoon tbsp
teaspoon tsp
g gram
kg kilogram
mg milligram
lb pound
oz ounce
ton
s sec second
ms millisecond
min minute
h hr hour
day
week wk
month mo
year yr
am midnight morning
pm noon afternoon evening
dollar usd buck
euro eur
cent
percent pct percentage
degree deg
radian rad
revolution rev
celsius c
fahrenheit f
n newton
j joule
kj kilojoule
w watt
kw kilowatt
v volt
hz hertz
pa pascal
mol mole
cal calorie
kcal kilocalorie
"""
MEASURE_OF = {}
for line in MEASURES.strip().splitlines():
    for other_name in line.split():
        MEASURE_OF[other_name] = line.split()[0]
# These words say nothing about a number. All others must agree if both answers have some.
FILLERS = set(
    "a an the of in on at for by with from per each every all total altogether exactly about "
    "approximately due possible different distinct unit".split()
)
# These words and their plurals change the number before them: 5 million, 5 pi, 5 is wrong.
# gsm8k_rewards.py has the same.
CHANGES_THE_NUMBER = set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty "
    "ninety hundred thousand million billion trillion quadrillion quintillion half halve third "
    "fifth eighth ninth twelfth twentieth thirtieth fortieth fiftieth dozen gross score grand "
    "lakh crore mil mill mille permille promille ppm ppb mn mio bn tn thou kilo mega giga milli "
    "micro nano and or to plus minus point negative squared cubed pi repeating repeated recurring "
    "periodic undefined indeterminate infinite infinity nan dne none null nothing invalid "
    "impossible unknown wrong incorrect false untrue not no never neither cannot".split()
)
# So do these, though not in the answer to a story about five apples more.
CHANGES_THE_NUMBER |= set(
    "k M B T bar dots etc choose quarter double triple twice inverse reciprocal mod modulo "
    "remainder factorial base root power more less fewer least most than is are was if when "
    "unless otherwise except above below over under infty sqrt sin cos tan sinh cosh tanh arcsin "
    "arccos arctan ln log exp alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu "
    "nu xi rho sigma tau upsilon phi chi psi omega".split()
)
BASED = re.compile(r"(?:\( )?([0-9]+)(?: \))? _\{([2-9]|[12][0-9]|3[0-6])\}")  # 2516_8


def is_text(token):
    return token.startswith(r"\text{")


def has_percent(tokens):
    return "percent" in "".join(tokens)


def read_value(tokens):
    """(a value's formula as tokens, its unit, other words). A unit has measures and a power."""
    unit = ()
    words = set()
    if is_text(tokens[-1]):
        unit, words = unit_and_words(tokens[-1])
        tokens = tokens[:-1]
    based = BASED.fullmatch(" ".join(tokens))
    if based:
        int(based[1], int(based[2]))  # ValueError for a digit that the base lacks
        return [based[1]], based.groups(), words
    return tokens, unit, words


def unit_and_words(token):
    r"""The measures in a \text{...} with their power, and the other words that say something.

    ValueError if it may change the number.
    """
    text, _, power = token[len(r"\text{") : -1].replace(".", "").partition("^")
    expect(power in ("", *"0123456789"), "a power that is not a digit")
    measures = set()
    words = set()
    for word in re.findall(r"[^\s/,()-]+", re.sub(r"\bin +(?!per)", "", text)):  # not: in total
        small = word.lower()
        singular = re.sub("(?<=..)s$", "", small)
        forms = {word, small, singular, re.sub("ths?$", "", small)}
        expect(word.isalpha() and not forms & CHANGES_THE_NUMBER, f"{word!r} changes the number")
        known = forms & MEASURE_OF.keys()
        expect(known or len(word) > 1 or word in "aAC", f"{word!r} may be a number's letter")
        if known:
            measures.add(MEASURE_OF[min(known)])
        elif singular not in FILLERS:
            words.add(singular)
    expect(measures or not power, "a power of a word")
    return (*sorted(measures), power) if measures else (), words


def words_of(tokens):
    """Words without case, fonts and brackets around them: (B) and B are one choice."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", "".join(tokens))
    return " ".join(text.lower().split()).strip(" .()")


def same_values(a, b):
    """Whether two single values are the same: words, or numbers with or without their unit."""
    if all(map(is_text, a)) or all(map(is_text, b)):
        return words_of(a) == words_of(b)
    formula, unit, words = read_value(a)
    other, other_unit, other_words = read_value(b)
    for said, other_said in (
        (unit, other_unit),
        (words, other_words),
        (unit or words, other_unit or other_words),  # apples are no meters
    ):
        if said and other_said and said != other_said:
            return False
    if same_formulas(formula, other):
        return True
    return same_formulas(hundredth(formula, unit), hundredth(other, other_unit))


def hundredth(formula, unit):
    """A formula in percent, divided by 100: 10% equals both 10 and 0.1."""
    return ["(", *formula, ")", "/", "100"] if "percent" in unit else formula


# ---- Computing, 1: whether two formulas agree

# HHTT, ClNa, CO_2 and A-C-B are texts, not products or differences: capitals with a small letter
# each, or letters that occur twice.
LETTERS = re.compile(r"(?:[A-Za-z-]|_\{[0-9]+\})+")
SEQUENCE = re.compile(
    r"(?:[A-Z](?:_\{[0-9]+\})?[a-z]?(?:_\{[0-9]+\})?){2,}|(?=.*([A-Za-z]).*\1)[A-Za-z]+"
    r"|[A-Z](?:-[A-Z]){2,}"
)
POINTS = 10  # points at which formulas with letters are computed
NEEDED = 3  # so many points must give numbers
ROUNDED = re.compile(r"-?(?=[0.]*(?:[0-9]\.?){6})[0-9]*\.[0-9]+")  # six significant digits
PLAIN = re.compile(r"-?[0-9]*\.?[0-9]+")


def at_points(a, b):
    """The two `Formula`s at each point where both are defined."""
    for point in range(POINTS):
        try:
            yield Formula(a, point), Formula(b, point)
        except ArithmeticError:  # a division by zero
            continue


def same_formulas(a, b):
    """Whether two formulas have the same value, whatever the value of their letters."""
    if a == b:
        return True
    texts = ["".join(a), "".join(b)]
    if all(map(LETTERS.fullmatch, texts)) and any(map(SEQUENCE.fullmatch, texts)):
        return False
    if r"\infty" in (*a, *b):
        return texts[0].lstrip("+") == texts[1].lstrip("+")
    compared = 0
    for x, y in at_points(a, b):
        agree = close(x.value, y.value)
        if not x.letters + y.letters:
            return agree or rounds(a, b, y.value) or rounds(b, a, x.value)
        if not agree:
            return False
        compared += x.value != 0  # zeros do not show how two formulas differ
    return compared >= NEEDED


def rounds(tokens, formula, value):
    """Whether a decimal of six digits or more is the value of a fraction or a root, rounded."""
    text = "".join(tokens)
    if not ROUNDED.fullmatch(text) or PLAIN.fullmatch("".join(formula)):
        return False
    return last_digits_apart(text, value) * 2 <= 1


def near(tokens, approximation):
    """Whether a decimal is the value of tokens, rounded to its last digit."""
    exact = Formula(read_value(tokens)[0], 0)
    rough = "".join(read_value(approximation)[0])
    expect(PLAIN.fullmatch(rough) and not exact.letters, "no approximation of a number")
    return last_digits_apart(rough, exact.value) * 2 <= 1


def last_digits_apart(text, value):
    """How far a decimal is from a value, in units of its last digit."""
    _, _, digits = text.partition(".")
    return abs(calculate("-", Fraction(text), value)) * 10 ** len(digits)


# ---- Computing, 2: a formula at a point

numbers = MPContext()
numbers.dps = 300  # digits of what is not rational
FUNCTIONS = {
    r"\sin": numbers.sin, r"\cos": numbers.cos, r"\tan": numbers.tan, r"\cot": numbers.cot,
    r"\sec": numbers.sec, r"\csc": numbers.csc, r"\sinh": numbers.sinh, r"\cosh": numbers.cosh,
    r"\tanh": numbers.tanh, r"\arcsin": numbers.asin, r"\arccos": numbers.acos,
    r"\arctan": numbers.atan, r"\ln": numbers.ln, r"\log": numbers.log10, r"\exp": numbers.exp,
}  # fmt: skip
CONSTANTS = {r"\pi": +numbers.pi, "e": +numbers.e, "i": numbers.mpc(0, 1)}
LETTER = re.compile(
    r"[A-Za-z](?:\(.*\)|_.*)?|\\(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu"
    r"|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|omega|varepsilon|vartheta|varrho|varsigma|varphi|ell"
    r"|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega)(?:_.*)?"
)
IN_A_NAME = {
    *"(){},:/'", r"\frac", r"\angle", r"\triangle", r"\overline", r"\vec", r"\hat", r"\bar",
    *FUNCTIONS,
}  # fmt: skip
MIXED = re.compile(r"\\frac(?:\{[0-9]+\}|[0-9]){2}")
OVER = {"/", r"\div", ":"}
FACTOR = re.compile(
    rf"[(\[|]|{NUMBER.pattern}|{LETTER.pattern}|\\(?:lfloor|frac|root|pi)$"
    rf"|(?:{'|'.join(map(re.escape, FUNCTIONS))})(?:_.*)?$"
)


class Formula:
    """Reads the tokens of a formula from left to right and computes it, by recursive descent.

    sum = product + product - ...; product = power * power / ...; power = atom ^ argument. A value
    is a `Fraction` if it is rational, else a number of mpmath.
    """

    def __init__(self, tokens, point):
        self.rest = tokens[::-1]  # the tokens not read yet, the next one last
        self.point = point  # a number; letters have other values at each point
        self.letters = []  # in the order of reading
        self.value = self.sum()
        expect(not self.rest, f"{self.next()} is out of place")

    def next(self):
        """The next token, or "". Braces that only group are skipped, because they print nothing."""
        while self.rest[-1:] == ["{"]:
            nesting = accumulate((token == "{") - (token == "}") for token in reversed(self.rest))
            del self.rest[-1 - list(nesting).index(0)]
            del self.rest[-1]
        return self.rest[-1] if self.rest else ""

    def take(self, *expected):
        """Read the next token and return it if it is one of the expected, else return ""."""
        return self.rest.pop() if self.next() and self.next() in expected else ""

    def sum(self, end=""):
        """The value of a sum up to the bracket `end`, or to the end of the text."""
        value = self.product(end)
        while sign := self.take("+", "-"):
            value = calculate(sign, value, self.product(end))
        expect(not end or self.take(end), f"{end} is missing")
        return value

    def product(self, end):
        value = self.joined({end})
        while sign := self.take("*", r"\cdot", r"\times", *OVER):
            factor = self.joined({end}, alone=sign in OVER)
            value = calculate("/" if sign in OVER else "*", value, factor)
        return value

    def joined(self, stop, alone=False):
        """The product of the powers that stand side by side, up to a token of `stop`."""
        value, closed = self.power()
        while self.next() not in stop and FACTOR.match(self.next()):
            expect(closed or not NUMBER.fullmatch(self.next()), "a number right after something")
            expect(not alone, "1/2x has two readings")
            factor, closed = self.power()
            value = calculate("*", value, factor)
        return value

    def power(self):
        """(the value, whether a number may follow directly). It may in 2^6 3^5, not in 2 3."""
        value = self.atom()
        closed = self.next() in ("!", "^")
        if self.take("!"):
            value = factorial(value)
        if self.take("^"):
            value = raised(value, self.argument(digits=500))
        return value, closed

    def atom(self):
        token = self.take(self.next())
        if NUMBER.fullmatch(token):
            self.next()  # skips braces
            mixed = MIXED.match("".join(self.rest[:-8:-1]))  # 2\frac{1}{2} is a sum
            fraction = self.atom() if mixed else 0
            expect(fraction < 1 and not (mixed and "." in token), "a number beside a fraction")
            return decimal(token) + fraction
        if token in ("+", "-"):  # -2, 9+-1, 2*-3
            return calculate(token, Fraction(0), self.power()[0])
        if token in ("(", "[", "|"):
            inside = self.sum(OPENING.get(token, "|"))
            return abs(inside) if token == "|" else inside
        if token == r"\lfloor":
            return self.floor()
        if token == r"\frac":
            over = self.argument()
            return calculate("/", over, self.argument())
        if token == r"\root":
            exponent = calculate("/", Fraction(1), self.argument())
            return raised(self.argument(), exponent)
        if token.partition("_")[0] in FUNCTIONS:
            return self.function(token)
        if token in CONSTANTS:
            return CONSTANTS[token]
        expect(LETTER.fullmatch(token), f"{token or 'the end'} is not known here")
        self.letters.append(token)
        return made_up(f"{token} {self.point}")

    def argument(self, digits=1):
        r"""An argument: braces, a letter, a command, or so many digits, as 1 and 2 of \frac12."""
        if self.rest[-1:] == ["{"]:
            self.rest.pop()
            return self.sum("}")
        token = self.next()
        if not NUMBER.fullmatch(token):
            expect(token not in ("+", "-", "(", "[", "|"), "an argument without braces")
            return self.atom()
        self.rest[-1:] = [token[digits:]] if token[digits:] else []
        return Fraction(token[:digits])

    def floor(self):
        r"""x minus its fractional part; \lceil x \rceil is spelled -\lfloor -x \rfloor.

        If x has letters, a number made up from the fractional part takes the part's place. So
        \lfloor n/8 \rfloor differs from \lfloor n/9 \rfloor at every point, even near 0.
        """
        letters = len(self.letters)
        value = self.sum(r"\rfloor")
        number = approximate(value)
        expect(number.imag == 0 and abs(number) < LARGE, "no real number, or a large one")
        part = calculate("-", value, Fraction(int(numbers.floor(number.real + NOISE))))
        if len(self.letters) > letters:
            part = made_up(numbers.nstr(approximate(part), 50))
        return calculate("-", value, part)

    def function(self, token):
        r"""\sin^2 2x, \log_2 8. Without brackets, read up to the next sign, bracket or function."""
        name, _, base = token.partition("_")
        power = self.argument(digits=500) if self.take("^") else Fraction(1)
        expect(power != -1, "an inverse or a reciprocal")
        if self.next() == "(":
            value = self.atom()
        else:
            value = self.joined({"(", "|", *FUNCTIONS})
            if self.next() in OVER:  # sin x/2 has two readings, ln 8/ln 2 has one
                expect(self.rest[-2:-1] in ([r"\log"], [r"\ln"]), "two readings")
        value = approximate(value)
        expect(abs(value) < LARGE, "too large")
        result = FUNCTIONS[name](value)
        if base:
            expect(name == r"\log", "an index")
            base = Formula(TOKEN.findall(base[1:-1]), self.point)
            result /= numbers.log10(approximate(base.value))
        expect(numbers.isfinite(result), "not finite")
        return raised(result if abs(result) > NOISE else Fraction(0), power)


# ---- Computing, 3: bounded arithmetic

MAX_BITS = 30_000  # bits of a numerator or denominator
LARGE = 10**200
NOISE = numbers.mpf(10) ** -280  # relative; smaller differences are rounding
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def decimal(token):
    """The value of a number such as 12.5 or 0.1‾6, in which the digits after ‾ repeat."""
    start, _, repeated = token.partition("‾")
    value = Fraction(f"0{start}")
    if repeated:
        _, _, fixed = start.partition(".")
        value += Fraction(int(repeated), 10 ** len(fixed) * (10 ** len(repeated) - 1))
    return value


def made_up(name):
    """A name's number between -2 and 2, the same in every run, never a simple fraction."""
    return Fraction(2 * random.Random(name).randrange(256) - 255, 128)


def approximate(value):
    """A fraction as a number of mpmath. ValueError if it has too many digits."""
    if not isinstance(value, Fraction):
        return value
    over = numbers.mpf(value.numerator)
    under = numbers.mpf(value.denominator)
    expect(over == value.numerator and under == value.denominator, "too many digits")
    return over / under


def bits(value):
    """The length of a fraction's numerator or denominator, whichever is longer."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def calculate(sign, x, y):
    """x + y, x - y, x * y or x / y. The result is exact for fractions."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        value = OPERATIONS[sign](x, y)
        expect(bits(value) <= MAX_BITS, "too many digits")
        return value
    x = approximate(x)
    y = approximate(y)
    value = OPERATIONS[sign](x, y)
    if sign in "+-" and x and y:
        expect(1 / LARGE < abs(x / y) < LARGE, "too far apart to be added")
        value = value if abs(value) > NOISE * abs(x) else Fraction(0)
    return value


def raised(base, power):
    """base to the power."""
    whole = isinstance(power, Fraction) and power.denominator == 1
    if whole and isinstance(base, Fraction):
        expect((bits(base) - 1) * abs(power) <= MAX_BITS, "too many digits")
        return base ** int(power)
    base = approximate(base)
    expect(abs(power) * (1 + abs(numbers.mag(base or 1))) < 10**6, "too large")
    return base ** (int(power) if whole else approximate(power))


def factorial(value):
    """value!, or the gamma function of value + 1."""
    number = approximate(value)
    whole = isinstance(value, Fraction) and value.denominator == 1
    expect(number.imag == 0 and abs(number) <= (3_000 if whole else 100), "no factorial")
    if whole and value >= 0:
        return Fraction(math.factorial(int(value)))
    return numbers.gamma(number + 1)


def close(x, y):
    """Whether two values are equal, up to rounding if they are not rational."""
    return calculate("-", x, y) == 0


# ---- Files: a row is read as it is written, or refused

CONTROL = (
    re.compile(  # characters that no text has, some of them the rest of \\frac, \\text, \\right
        "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]|\t(?=ext|imes|heta|frac)|\r(?!\n)"
    )
)
LOST = re.compile("\t|(?<![\\\\}&])(?<![\\\\}&] )\n(?=[a-z])")  # of \tan or \neq, in an answer


def to_problem(row):
    """The problem of a row. ValueError if a text is missing or no box could hold the answer."""
    for name in ("problem", "answer", "solution"):
        text = f"{row.get(name)}"
        lost = CONTROL.search(text) or (name == "answer" and LOST.search(text))
        expect(not lost, f"a control character in {text!r:.200}; json needs \\\\ for a backslash")
    problem = {"problem": row.get("problem"), "answer": read_answer(row)}
    for name, text in problem.items():
        stated = isinstance(text, str) and text.strip()
        expect(stated, f"needs {name}, a text, or solution with \\boxed{{}}; got {row!s:.300}")
    answer = problem["answer"]
    fits = len(answer) <= MAX_ANSWER and last_boxed(f"\\boxed{{{answer}}}") == answer.strip()
    expect(fits, f"needs at most {MAX_ANSWER} characters and balanced braces; got {answer!r:.80}")
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
