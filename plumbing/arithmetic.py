"""Expressions such as (36-19)*2 and numbers such as 1,000 in a text that a model has written.

The text is taken apart and computed in exact fractions. It is never executed, and the work is
linear in its length. What is not understood is a ValueError with the reason as a short sentence.
"""

import operator
import re
from fractions import Fraction
from typing import NamedTuple

# ---- Expressions

TOKEN = re.compile(r"[0-9]+|\S")
LEGAL = frozenset("0123456789+-*/()")
MINUS_SIGN = "sign"  # the minus of -7, in contrast to that of 9 - 7
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, MINUS_SIGN: 3}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}


def tokenize(expression):
    """Its numbers (digits as they stand), operators and parentheses, as a list of str."""
    tokens = TOKEN.findall(expression)
    for token in tokens:
        if token[0] not in LEGAL:
            raise ValueError(f"{token!r} is not part of a legal expression")
    return tokens


def calculate(left, symbol, right):
    """`left symbol right`, exactly, of whole numbers or fractions."""
    try:
        return OPERATIONS[symbol](left, right)
    except ZeroDivisionError:
        raise ValueError("divides by zero") from None


def to_postfix(tokens):
    """The tokens with each operator behind its operands: 2 * ( 3 - 1 ) becomes 2 3 1 - *.

    The grammar is: operand (operator operand)*; an operand is a number or ( expression ), each
    with one minus sign before it or none. This is Dijkstra's shunting-yard algorithm: a stack
    instead of recursion, so that deep parentheses cannot overflow anything.
    """
    output = []
    waiting = []  # operators whose right operand is not complete, and open parentheses
    operand_next = True
    for token in tokens:
        after_sign = bool(waiting) and waiting[-1] == MINUS_SIGN
        if operand_next and token == "-" and not after_sign:
            waiting.append(MINUS_SIGN)
        elif operand_next and token == "(":
            waiting.append(token)
        elif operand_next and token.isdigit():
            output.append(token)
            operand_next = False
        elif not operand_next and token in OPERATIONS:
            while waiting and PRECEDENCE.get(waiting[-1], 0) >= PRECEDENCE[token]:
                output.append(waiting.pop())
            waiting.append(token)
            operand_next = True
        elif not operand_next and token == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                raise ValueError("unbalanced parentheses")
            waiting.pop()
        else:
            raise ValueError(f"{token!r} out of place")
    if operand_next or "(" in waiting:
        raise ValueError("unfinished expression")
    return output + waiting[::-1]


def value_of(tokens):
    """The exact value of an expression's tokens, as a Fraction.

    Check the numbers first: their size and count bound the work.
    """
    values = []
    for token in to_postfix(tokens):
        if token == MINUS_SIGN:
            values.append(-values.pop())
        elif token in OPERATIONS:
            right = values.pop()
            left = values.pop()
            values.append(calculate(left, token, right))
        else:
            values.append(int(token))
    return Fraction(values[0])


def is_expression(text):
    """Whether the text is an expression, whatever its numbers; nothing is computed."""
    try:
        return bool(to_postfix(tokenize(text)))
    except ValueError:
        return False


# ---- Numbers as people write them

MAX_DIGITS = 100  # a longer text is not a plain number
WHOLE = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"  # 1,000 or 1000
DECIMAL = rf"(?P<decimal>{WHOLE}?\.[0-9]+|{WHOLE}\.?)"
FRACTION = r"(?P<over>[0-9]+)/(?P<under>[0-9]+)"
MIXED = r"(?P<whole>[0-9]*)\\frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\}"
PLAIN = re.compile(f"(?P<sign>[-+]?)(?:{DECIMAL}|{FRACTION}|{MIXED})")
ROUNDED = 6  # significant digits with which a decimal may stand for the number that it rounds


class Number(NamedTuple):
    value: Fraction
    places: int  # digits behind the decimal point
    digits: int  # significant ones, as written


def plain_number(text):
    r"""A `Number` from -7, 1,000, 2.50, 3/4, \frac{3}{4} or the mixed 2\frac{3}{4}; else None."""
    match = PLAIN.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    if not match:
        return None
    written = (match["decimal"] or "").replace(",", "").rstrip(".")
    under = int(match["under"] or match["bottom"] or 1)
    if under == 0:
        return None
    if written:
        value = Fraction(written)
    else:
        value = int(match["whole"] or 0) + Fraction(int(match["over"] or match["top"]), under)
    value = -value if match["sign"] == "-" else value
    places = len(written.partition(".")[2])
    return Number(value, places, len(written.replace(".", "").lstrip("0")))


def same_number(a, b):
    """Exactly equal, or a fraction and a decimal that rounds it: 1/3 and 0.333333."""
    if a.value == b.value:
        return True
    if a.places == 0 and a.value.denominator > 1:
        return rounds(b, a.value)
    if b.places == 0 and b.value.denominator > 1:
        return rounds(a, b.value)
    return False


def rounds(decimal, value):
    """Whether a decimal is another number's value, rounded to the digits that are written."""
    precise = decimal.places > 0 and decimal.digits >= ROUNDED
    return precise and abs(decimal.value - value) * 2 * 10**decimal.places <= 1


# ---- Words that are no unit

CARDINALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand million billion trillion quadrillion"
).split()
ORDINALS = (
    "half halve third fifth eighth ninth twelfth twentieth thirtieth fortieth fiftieth".split()
)
# Behind a number these make it another one: 5 million, 3 sevenths, 2 and a half; so do plurals.
CHANGES_THE_NUMBER = {
    *CARDINALS,
    *(word + "th" for word in CARDINALS),
    *ORDINALS,
    *"and or to plus minus point negative squared cubed dozen grand lakh crore".split(),
    *"k m mil mill mn mio bn tn thou thousandths".split(),
}

# ---- Sums that are written out in a text

WHOLE_NUMBER = r"(\d{1,15})"
# Overlapping (the sum is looked ahead at): in 1+2=3*4=12 the 3 belongs to two sums.
LEFT_AND_RIGHT = rf"{WHOLE_NUMBER} *([-+*/]) *{WHOLE_NUMBER}"
SUM = re.compile(
    rf"(?<![\d.])(?=({LEFT_AND_RIGHT} *= *{WHOLE_NUMBER}(?!\d|\.\d))"
    rf"(?: */ *{WHOLE_NUMBER})?)"  # a result may be a fraction: 6/4=3/2
)
THOUSANDS = re.compile(r",\d{3}(?!\d)")


class WrittenSum(NamedTuple):
    start: int  # where it stands in the text
    end: int
    left: int
    symbol: str  # + - * /
    right: int
    result: int | Fraction  # what the text says
    correct: bool


def written_sums(text):
    """A `WrittenSum` for each `a + b = c` of whole numbers, in order.

    What is the end of a longer expression, as in 1+2+3=6, or has a comma that may be one of
    thousands, is judged only if it is right.
    """
    for match in SUM.finditer(text):
        whole, left, symbol, right, result, divisor = match.groups()
        start = match.start()
        end = start + len(whole)
        left = int(left)
        right = int(right)
        result = int(result)
        divisor = int(divisor or 1)
        value = OPERATIONS[symbol](left, right) if symbol != "/" or right else None
        if value != result and divisor and value == Fraction(result, divisor):
            result = value
        in_a_longer_one = text[max(0, start - 8) : start].rstrip(" ").endswith(tuple("+-*/()^"))
        thousands = THOUSANDS.match(text, start - 1) or THOUSANDS.match(text, end)
        unclear = in_a_longer_one or thousands
        if value == result or not unclear:
            yield WrittenSum(start, end, left, symbol, right, result, value == result)
