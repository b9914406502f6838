r"""Takes an answer in LaTeX apart, from the outside in: lists, equations, brackets, units.

What is left are formulas without any of these; math_equality.py compares them.
No part is skipped: an answer that is not read in full is an `Unread`. Nothing is executed.
"""

import re
from typing import NamedTuple

from plumbing.arithmetic import CHANGES_THE_NUMBER


class Unread(ValueError):
    """An answer, or a part of one, that is not understood."""


class Value(NamedTuple):
    """A number or an expression."""

    text: str  # all of it
    formula: str  # without its unit and percent sign
    percent: bool = False
    unit: tuple = ()  # its measures and their power: ("cm", 2)


class Text(NamedTuple):
    """Words."""

    text: str


class Group(NamedTuple):
    r"""Several values. The order of a set, `{` or no bracket, does not matter; \cup is a union."""

    left: str
    right: str
    items: tuple


class Relation(NamedTuple):
    """An equation, an inequality, or a chain of them, as the texts of its sides."""

    sides: tuple
    signs: tuple  # each of = < <= > >= != in ~


# ---- One spelling for what looks the same

SPACE = re.compile(r"\\[\s;:>]|\\q?quad(?![a-zA-Z])|~")
THIN_SPACE_IN_A_NUMBER = re.compile(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))")  # 10\,000
NEGATIVE_SPACE = re.compile(r"\s*\\!\s*")  # 10,\!000
LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![a-zA-Z])")
# A space is needed between two letters or digits only, and in a list between a comma and a digit.
AFTER_A_SIGN = re.compile(r"(?<![0-9A-Za-z])(?<![0-9],) (?![0-9])|(?<![0-9A-Za-z,]) (?=[0-9])")
BEFORE_A_SIGN = re.compile(r" (?![0-9A-Za-z])")
SPACE_IN_A_LIST = re.compile(r"(?<=[0-9]) , ?(?=[0-9])")
COMMA_OF_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


def normalize(text):
    """`text` without what changes the look and not the value: spacing, `\\left`, `$`, a full stop.

    A space between a comma and a digit stays: 32,349 is one number, 32, 349 are two.
    """
    # A double backslash ends the row of a matrix; the space behind it is no command.
    rows = [SPACE.sub(" ", row) for row in text.split("\\\\")]
    text = NEGATIVE_SPACE.sub("", "\\\\".join(rows))
    text = THIN_SPACE_IN_A_NUMBER.sub("", text).replace("\\,", " ")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = " ".join(text.split()).strip(" $").removesuffix(".")
    text = LEFT_RIGHT.sub("", SPACE_IN_A_LIST.sub(", ", text))
    text = AFTER_A_SIGN.sub("", BEFORE_A_SIGN.sub("", text))
    if re.search("[0-9], [0-9]", text):  # in a list written with spaces, 1,000 is one number
        text = COMMA_OF_THOUSANDS.sub("", text)
    return text


SPELLINGS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ",
    r"\not=": r"\ne ", r"\cfrac": r"\frac", "{,}": ",", r"\displaystyle": "", r"\colon": ":",
    r"\mathbb{R}": r"(-\infty,\infty)", r"\varnothing": r"\emptyset", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\$": "", "$": "", r"\%": "%",
}  # fmt: skip
FONT = re.compile(r"\\(math|text|mbox|hbox)(?:rm|bf|it|sf|normal)?\s*\{([^{}]*)\}")
DEGREE = re.compile(
    r"\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|°|\\degree)(?![a-zA-Z])(?:\s*[CF](?![a-zA-Z]))?"
)
AND = re.compile(r",?\s*(?:\\text\{[\s,]*(?:and|or)\s*\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])),?")
ARRAY = re.compile(r"[(\[]\s*\\begin\{array\}(?:\{[^{}]*\})?(.*)\\end\{array\}\s*[)\]]", re.DOTALL)
SCIENTIFIC = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)")  # 1e-05, as csv files have
TAKES_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![a-zA-Z])\s*(\[[^][]*\])?")
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)


def clean(text):
    """`text` in one of several spellings that mean the same."""
    for written, plain in SPELLINGS.items():
        text = text.replace(written, plain)
    text = FONT.sub(plain_font, text)
    text = AND.sub(",", DEGREE.sub("", text))
    text = ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    if SCIENTIFIC.fullmatch(text):
        text = SCIENTIFIC.sub(r"\1*10^{\2}", text)
    return brace_arguments(text).strip().removesuffix(".")


def plain_font(match):
    r"""A single letter of mathematics, also \Gamma, in another font is that letter; all else in it
    are words."""
    letter = TOKEN.fullmatch(match[2].strip())
    return f" {letter[0]} " if match[1] == "math" and letter else rf"\text{{{match[2]}}}"


def brace_arguments(text):
    r"""TeX's own rule for \frac12 and \sqrt2: without braces an argument is a single token."""
    match = TAKES_ARGUMENTS.search(text)
    if not match:
        return text
    done = text[: match.end(1)] + (match[2] or "")
    rest = text[match.end() :]
    for _ in range(1 if match[1] == "sqrt" else 2):
        argument, rest = first_argument(rest.lstrip())
        done += "{" + brace_arguments(argument) + "}"
    return done + brace_arguments(rest)


def first_argument(text):
    """(what the first braces hold, or else the first token; the text after it)."""
    depth = 0
    for token in TOKEN.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            argument = text[: token.end()]
            inside = argument[1:-1] if argument.startswith("{") else argument
            return inside, text[token.end() :]
    raise Unread("an argument is missing")


# ---- From the outside in

OPENING = {"(", "[", "{", r"\{", r"\begin"}
CLOSING = {")", "]", "}", r"\}", r"\end"}
SIGNS = {
    "=": "=", "<": "<", r"\lt": "<", ">": ">", r"\gt": ">", r"\ne": "!=", r"\neq": "!=",
    r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=", r"\ge": ">=", r"\geq": ">=",
    r"\geqslant": ">=", r"\in": "in", r"\approx": "~", r"\sim": "~", r"\simeq": "~",
}  # fmt: skip
BEFORE_THOUSANDS = re.compile(r"(?<![0-9.])[1-9][0-9]{0,2}(?:,[0-9]{3})*$")
THOUSANDS = re.compile(r"[0-9]{3}(?![0-9])")
PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
CLOCK = re.compile(r"\s*[0-9]{1,2}\s*:\s*[0-5][0-9]\s*")  # 5:30 is no sixth


def split(text, separators):
    """(parts, the separators between them), outside of all brackets."""
    parts = []
    found = []
    start = 0
    depth = 0
    for token in TOKEN.finditer(text):
        depth += (token[0] in OPENING) - (token[0] in CLOSING)
        if depth < 0:
            raise Unread("unbalanced brackets")
        if depth == 0 and token[0] in separators:
            parts.append(text[start : token.start()])
            found.append(token[0])
            start = token.end()
    if depth:
        raise Unread("unbalanced brackets")
    return [*parts, text[start:]], found


def split_list(text, in_brackets):
    """The members of a list. Outside of brackets the comma of 1,000 does not separate."""
    parts, _ = split(text, {","})
    members = parts[:1]
    for part in parts[1:]:
        thousands = BEFORE_THOUSANDS.search(members[-1]) and THOUSANDS.match(part)
        if thousands and not in_brackets:
            members[-1] += "," + part
        else:
            members.append(part)
    return members


def read(text):
    """The Value, Text, Group or Relation that a text says, after `clean`."""
    parts, semicolons = split(text, {";"})
    if semicolons:  # a, b; c, d are two pairs
        items = [read(part) for part in parts]
        pairs = [Group("(", ")", item.items) if is_list(item) else item for item in items]
        return Group("", "", tuple(pairs))
    members = split_list(text, in_brackets=False)
    if len(members) > 1:
        return Group("", "", read_members(members))
    sides, signs = split(text, SIGNS)
    if signs:
        sides = tuple(side.strip() for side in sides)
        if not all(sides):
            raise Unread("an equation without a side")
        return Relation(sides, tuple(SIGNS[sign] for sign in signs))
    parts, cups = split(text, {r"\cup"})
    if cups:
        return Group(r"\cup", "", tuple(read(part) for part in parts))
    parts, colons = split(text, {":"})
    if len(colons) > 1 or CLOCK.fullmatch(text):  # 1:2 alone is a ratio, a half
        return Group(":", "", tuple(read(part) for part in parts))
    if PLUS_MINUS.search(text):
        return Group("", "", (read(with_sign(text, "+-")), read(with_sign(text, "-+"))))
    return read_bracket(text.strip()) or read_value(text.strip())


def read_members(members):
    """Each member read; one that is itself several values (3, 1 \\pm 2) counts as these."""
    items = []
    for member in members:
        item = read(member)
        items.extend(item.items if is_list(item) else [item])
    return tuple(items)


def is_list(item):
    """Whether it is several values without a bracket."""
    return isinstance(item, Group) and item.left == ""


def with_sign(text, signs):
    r"""The text with one of two signs for \pm and the other one for \mp; `+3` is 3."""
    text = PLUS_MINUS.sub(lambda sign: signs[0] if sign[1] == "pm" else signs[1], text)
    return text.strip().removeprefix("+")


def read_bracket(text):
    """A tuple, an interval or a set, if the bracket that opens the text is closed at its end."""
    tokens = TOKEN.findall(text)
    if not tokens or tokens[0] not in OPENING - {r"\begin"}:
        return None
    depth = 0
    for position, token in enumerate(tokens, start=1):
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0 and position < len(tokens):
            return None
    inside = "".join(tokens[1:-1])
    if tokens[0] == "{" and tokens[-1] == "}":  # TeX's own braces: they print nothing
        return read(inside)
    if tokens[0] == r"\{" and not inside.strip():
        return Text(r"\emptyset")
    items = read_members(split_list(inside, in_brackets=True))
    if len(items) == 1 and tokens[0] == "(" and tokens[-1] == ")":
        return items[0]
    return Group(tokens[0].removeprefix("\\"), tokens[-1].removeprefix("\\"), items)


# ---- Values, their units, and words

WORDS = re.compile(r"(?:\\text\{[^{}]*\}\s*)+|\(?[A-Za-z]{5,}\)?|\\emptyset")
MEASURES = {  # what they are called; other words are not compared
    "cm": "centimeter centimeters centimetre centimetres",
    "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "sec": "s second seconds",
    "min": "minute minutes",
    "hr": "h hrs hour hours",
    "day": "days",
    "week": "weeks",
    "year": "years",
    "g": "gram grams",
    "kg": "kilogram kilograms",
    "lb": "lbs pound pounds",
    "dollar": "dollars",
    "cent": "cents",
}
MEASURE_OF = {name: unit for unit, names in MEASURES.items() for name in (unit, *names.split())}
PERCENT = re.compile(r"\b(?:percent|pct|percentage)\b", re.IGNORECASE)
POWERS = {"square": 2, "sq": 2, "cubic": 3}
SHORT_WORDS = {"mph", "sq", "per", "pct", "way", "ways"} | {
    unit for unit in MEASURES if len(unit) > 1
}
FUNCTIONS = {"sqrt", "frac", "sinh", "cosh", "tanh", "infty", "infinity", "log", "sin", "cos"}
POWER = r"(?:\s*\^\s*\{?\s*(?P<power>[0-9])\s*\}?)?"
UNIT = re.compile(rf"(?s)(?P<value>.*\S)\s*\\text\{{(?P<unit>[^{{}}]*)\}}{POWER}")
BARE_WORDS = r"[A-Za-z]{2,}(?:[\s/]+[A-Za-z]{2,}){0,3}"
BARE_UNIT = re.compile(rf"(?s)(?P<value>.*[0-9}})\]])\s*(?P<unit>{BARE_WORDS}){POWER}")


def read_value(text):
    """A number or an expression with its unit, or words."""
    if WORDS.fullmatch(text):
        return Text(text)
    formula = text
    unit = ()
    percent = False
    match = UNIT.fullmatch(text) or BARE_UNIT.fullmatch(text)
    if match and (match.re is UNIT or all(map(is_word, re.findall(r"\w+", match["unit"])))):
        formula = match["value"].strip()
        unit = read_unit(match["unit"].lower(), match["power"])
        percent = bool(PERCENT.search(match["unit"]))
    if formula.endswith("%"):
        formula = formula[:-1].strip()
        percent = True
    if not formula:
        raise Unread("nothing is there")
    return Value(text, formula, percent, unit)


def is_word(letters):
    """Whether letters that are not in \\text are a word, and not a product of variables."""
    long = len(letters) >= 4 and letters not in FUNCTIONS
    return letters.lower() in SHORT_WORDS or long or letters.lower() in CHANGES_THE_NUMBER


def read_unit(text, power):
    """The measures in a unit and their power: ("cm", 2); empty if there is none that we know."""
    words = re.findall(r"[^\s/.,()]+", text)
    for word in words:
        if not word.isalpha() or {word, word.removesuffix("s")} & CHANGES_THE_NUMBER:
            raise Unread(f"{word!r} may change the number")
    power = int(power or max([POWERS.get(word, 1) for word in words], default=1))
    measures = sorted({MEASURE_OF[word] for word in words if word in MEASURE_OF})
    return (*measures, power) if measures else ()


def words_of(text):
    """Words without case, fonts and brackets around them: (B) and B are one choice."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    return " ".join(text.lower().split()).strip(" .()")
