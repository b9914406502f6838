"""The exact value of an arithmetic expression that a model has written: whole numbers, + - * / and parentheses.
The text is taken apart and computed in fractions; it is never executed, and the work is linear in its length.
Whatever is not such an expression is a ValueError with the reason as a short sentence."""

import operator
import re
from fractions import Fraction
from typing import NamedTuple

TOKEN = re.compile(r"([0-9]+)|([-+*/()])|\s+|(.)", re.DOTALL)
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}


def tokenize(expression):
    """Its numbers (digits as they stand), operators and parentheses, as a list of str."""
    tokens = []
    for number, symbol, other in TOKEN.findall(expression):
        if other:
            raise ValueError(f"{other!r} is not part of a legal expression")
        if number or symbol:
            tokens.append(number or symbol)
    return tokens


def calculate(left, symbol, right):
    """`left symbol right`, exactly, of whole numbers or fractions."""
    try:
        return OPERATIONS[symbol](left, right)
    except ZeroDivisionError:
        raise ValueError("divides by zero") from None


def value_of(tokens):
    """The value of `tokenize`'s tokens as a Fraction. Check the numbers first: their size and count bound the work.

    Dijkstra's shunting-yard: two stacks instead of recursion, so that deep parentheses cannot overflow anything.
    """
    values, operators = [], []

    def apply():
        symbol, right, left = operators.pop(), values.pop(), values.pop()
        values.append(calculate(left, symbol, right))

    # The grammar is: [-] operand (operator operand)*; an operand is a number or ( expression ).
    operand_next = True
    for token in tokens:
        if operand_next and token == "-" and (not operators or operators[-1] == "("):  # a sign: 0 - operand
            values.append(0)
            operators.append(token)
        elif operand_next and token == "(":
            operators.append(token)
        elif operand_next and token.isdigit():
            values.append(int(token))
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
    return Fraction(values[0])


# ---- Sums that are written out in a text

# Overlapping: in 1+2=3*4=12 the 3 belongs to two sums. A result may be a fraction: 6/4=3/2.
SUM = re.compile(r"(?<![\d.])(?=((\d{1,15}) *([-+*/]) *(\d{1,15}) *= *(\d{1,15})(?!\d|\.\d))(?: */ *(\d{1,15}))?)")
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

    What is the end of a longer expression, as in 1+2+3=6, or has a comma that may be one of thousands, is judged only
    if it is right.
    """
    for match in SUM.finditer(text):
        whole, left, symbol, right, result, divisor = match.groups()
        start, end = match.start(), match.start() + len(whole)
        left, right, result, divisor = int(left), int(right), int(result), int(divisor or 1)
        value = OPERATIONS[symbol](left, right) if symbol != "/" or right else None
        if value != result and divisor and value == Fraction(result, divisor):
            result = value
        before = text[max(0, start - 8) : start].rstrip(" ")
        unclear = before.endswith(tuple("+-*/()^")) or THOUSANDS.match(text, start - 1) or THOUSANDS.match(text, end)
        if value == result or not unclear:
            yield WrittenSum(start, end, left, symbol, right, result, value == result)
