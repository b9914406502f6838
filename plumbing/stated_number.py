r"""Reads the one number that an answer states: -7, $1,080.50, 72 degrees, \boxed{\frac{7}{2}}.

Everything around the number must be known: an answer with a part that is not read is refused.
"""

import re
from fractions import Fraction

from plumbing.arithmetic import CHANGES_THE_NUMBER

MAX_ANSWER = 200  # characters; a longer text is not one number

# ---- The pieces of a number

SIGN = "[-+−–]"  # hyphen, plus, the Unicode minus, and the dash that often stands for it
CURRENCY = r"\\?[$€£]\ ?"
PREFIX = rf"(?:{SIGN}?(?:{CURRENCY})?|{CURRENCY}{SIGN})"
DIGITS = "[0-9]{1,30}"
WITH_COMMAS = "[1-9][0-9]{0,2}(?:,[0-9]{3}){1,9}"  # 43,500
WITH_SPACES = r"[1-9][0-9]{0,2}(?:\ [0-9]{3}){1,9}"  # 43 500
WHOLE = rf"(?:{WITH_COMMAS}|{WITH_SPACES}|{DIGITS})"
NUMBER_ENDS = r"(?![0-9]|[.,][0-9])"
# A whole number with decimals or a denominator, or decimals alone.
PLAIN_NUMBER = rf"(?:{WHOLE}(?:\.[0-9]{{0,30}}|\ ?/\ ?{DIGITS})?|\.{DIGITS}){NUMBER_ENDS}"
LATEX_FRACTION = rf"(?:{DIGITS}\ ?)?\\frac\{{{DIGITS}\}}\{{{DIGITS}\}}"  # also 3\frac{1}{2}
NUMBER = rf"(?:{LATEX_FRACTION}|{PLAIN_NUMBER})"
SYMBOL = r"(?:\\?%|[¢€]|(?:°|\^\\circ|\^\{\\circ\})\s*[CF]?)"  # 50%, 25¢, 72°F
WORD = "[A-Za-z]{2,}"
UNIT = rf"[\s/]*{WORD}(?:[\s/]+{WORD}){{0,2}}"  # miles per hour
ANSWER = re.compile(rf"(?P<prefix>{PREFIX})(?P<number>{NUMBER})(?:\s*{SYMBOL})?(?P<unit>{UNIT})?")
BARE = re.compile(f"{SIGN}?{PLAIN_NUMBER}")
WRAPPERS = (("**", "**"), (r"\boxed{", "}"), (r"\(", r"\)"), (r"\[", r"\]"), ("$", "$"), ("`", "`"))
UNIT_BEHIND = re.compile(r"(?:\s[A-Za-z\s/]*)?")  # \boxed{72} inches
LATEX_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\{([^{}]*)\}")
NO_BREAK_SPACES = str.maketrans("\u00a0\u2009\u202f", "   ")  # in print these group digits
SPELLINGS = (("{,}", ","), (r"\,", " "), (r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"))


def is_bare(text):
    """Whether a text is a number and nothing else."""
    return BARE.fullmatch(text.strip().translate(NO_BREAK_SPACES)) is not None


def parse_number(text):
    """The one number that `text` states, as a Fraction; ValueError with the reason if it does not.

    50% is 50; 3\\frac{1}{2} is 7/2. Refused are: two numbers, groups of digits that are not of
    three (1,08), words that change the number (5 million), a unit of one letter (5k), x = 72.
    """
    text = text.strip()
    if len(text) > MAX_ANSWER:
        raise ValueError(f"answer longer than {MAX_ANSWER} characters")
    shown = f"{text!r:.60}"
    text = text.translate(NO_BREAK_SPACES)
    for written, plain in SPELLINGS:
        text = text.replace(written, plain)
    text = unwrap(LATEX_TEXT.sub(r" \1 ", text))
    match = ANSWER.fullmatch(text)
    if not match:
        count = len(re.findall(r"[0-9][0-9.,]*", text))
        faults = {0: "no number", 1: "not a plain number"}
        raise ValueError(f"{faults.get(count, 'more than one number')}: {shown}")
    for word in re.findall("[A-Za-z]+", match["unit"] or ""):
        if {word.lower(), word.lower().removesuffix("s")} & CHANGES_THE_NUMBER:
            raise ValueError(f"{word!r} may change the number: {shown}")
    value = value_of(match["number"])
    return -value if re.search("[-−–]", match["prefix"]) else value


def unwrap(text):
    """The text without the markup around it and a final full stop; a unit behind it stays."""
    text = text.strip().removesuffix(".").strip()
    for opening, closing in WRAPPERS:
        end = text.rfind(closing)
        if text.startswith(opening) and end > len(opening):
            unit = text[end + len(closing) :]
            if UNIT_BEHIND.fullmatch(unit):
                inside = text[len(opening) : end].strip().removesuffix(".")
                return unwrap(inside + unit)
    return text


def value_of(number):
    """The value of what NUMBER matches."""
    try:
        if "\\frac" in number:
            *whole, over, under = map(int, re.findall("[0-9]+", number))
            return sum(whole) + Fraction(over, under)
        return Fraction(re.sub("[, ]", "", number))
    except ZeroDivisionError:
        raise ValueError("divides by zero") from None
