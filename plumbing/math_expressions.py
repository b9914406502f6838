r"""Formulas in LaTeX as expressions of sympy, and whether two of them are equal.

The grammar of latex2sympy2_extended reads them. Two are equal if they agree to 50 digits, relative
to their size, with several numbers for their variables: no simplification is needed.
"""

import functools
import re
import zlib
from fractions import Fraction

from plumbing.arithmetic import plain_number, rounds
from plumbing.math_reading import COMMA_OF_THOUSANDS, Unread

# ---- Reading a formula

# A letter that the grammar takes for the square root of -1, for the E of 1E5, or (gamma of both
# sizes) for Euler's constant; or a command, such as the function \Gamma(5).
RESERVED = re.compile(
    r"(?P<letter>I|E(?=_)|\\gamma(?![a-zA-Z])|\\Gamma(?!\s*\(|[a-zA-Z]))|\\[a-zA-Z]+"
)
SKIPPED = re.compile(r"['\"]|\^\s*\{?\s*(?:T|\\top)(?![a-zA-Z])")  # signs the grammar passes over


@functools.cache
def grammar():
    """The parser of latex2sympy2_extended, strict where it guesses. Importing it takes a second."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    class Converter(_Latex2Sympy):
        def convert_postfix_list(self, parts, i=0):
            r"""What stands side by side is multiplied, and only 2\frac{1}{2} is a sum."""
            texts = [part.getText() for part in parts]
            if any(text[0] in ".0123456789" for text in texts[1:]):
                raise Unread("a number right after something else")
            values = [self.convert_postfix(part) for part in parts]
            mixed = plain_number("".join(texts[:2])) if texts[0].isdigit() else None
            if mixed and len(texts) > 1:
                values[:2] = [sympy.Rational(mixed.value.numerator, mixed.value.denominator)]
            product = values[0]
            for value in values[1:]:
                matrix = product.is_Matrix or value.is_Matrix
                product = (self.mat_mul_flat if matrix else self.mul_flat)(product, value)
            return product

        def convert_atom(self, atom):
            number = atom.number_subexpr()
            if number and number.getText() != number.NUMBER().getText():
                raise Unread("a number with an index")
            return super().convert_atom(atom)

        def parse_number(self, text):
            return sympy.Rational(text.replace(",", ""))  # exactly: 0.1 is a tenth

    return lambda text: Converter(config=ConversionConfig(lowercase_symbols=False)).parse(text)


@functools.lru_cache(maxsize=2_000)  # a problem's answer is compared with each of its completions
def expression(formula):
    """The expression of sympy that a formula says; `Unread` if it is none."""
    import sympy

    if SKIPPED.search(formula):
        raise Unread("a sign that is not known")
    formula = COMMA_OF_THOUSANDS.sub("", formula)
    formula = RESERVED.sub(as_name, formula)
    try:
        result = grammar()(formula)
    except Exception as error:  # the parser raises what comes to hand
        raise Unread(str(error).partition("\n")[0]) from None
    if isinstance(result, sympy.MatrixBase):
        result = sympy.ImmutableMatrix(result)
    elif not isinstance(result, sympy.Expr):
        raise Unread("not an expression")
    if not re.search(r"\\(?:sum|prod)", formula):  # there i counts
        result = result.xreplace({sympy.Symbol("i"): sympy.I})
    return result


def as_name(match):
    """A reserved letter in a font in which it is a variable like others."""
    return rf"\mathrm{{{match['letter']}}}" if match["letter"] else match[0]


# ---- Comparing two

POINTS = 5  # at which two expressions are computed
NEEDED = 3  # of them must give numbers
DIGITS = 60  # to which they are computed
AGREE = 50  # digits in which they must agree, counted from the first of the larger
MOST_DIGITS = 1_000  # whole numbers up to this size must agree in all digits


def same_expressions(x, y):
    if x == y:
        return True
    if x.is_Matrix or y.is_Matrix:
        if not (x.is_Matrix and y.is_Matrix) or x.shape != y.shape:
            return False
        return all(map(same_expressions, x.doit().as_explicit(), y.doit().as_explicit()))
    if x.is_infinite or y.is_infinite:
        return False
    if not (x.free_symbols or y.free_symbols):
        return same_constants(x, y)
    compared = 0
    for point in points(x.free_symbols | y.free_symbols):
        try:
            a = number(x, point)
            b = number(y, point)
        except Unread:  # not defined there
            continue
        if not close(a, b):
            return False
        compared += 1
    return compared >= NEEDED


def same_constants(x, y):
    a = number(x)
    b = number(y)
    if not close(a, b):
        return False
    digits = min(max(size_of(part) for part in (*a, *b)), MOST_DIGITS)
    if digits <= AGREE:
        return True
    a = number(x, digits=digits + 20)
    b = number(y, digits=digits + 20)
    return close(a, b, digits + 10)


def size_of(number):
    """How many digits a number has before its decimal point, about."""
    _, _, exponent, bits = number._mpf_
    return int((exponent + bits) * 0.30103) if number else 0


def points(symbols):
    """A number for each symbol, between -2 and 2, other ones at each of several points."""
    import sympy

    for i in range(POINTS):
        point = {}
        for symbol in symbols:
            draw = zlib.crc32(f"{symbol} {i}".encode()) % 4_001 - 2_000  # the same in every run
            point[symbol] = sympy.Rational(draw, 1_009)
        yield point


def number(x, point=None, digits=DIGITS):
    """(real part, imaginary part) of an expression; `Unread` if it is not a finite number."""
    import sympy

    parts = x.evalf(digits, subs=point).as_real_imag()
    if not all(part.is_Number and part.is_finite for part in parts):
        raise Unread("not a number")
    # What is left of a difference of equal numbers has no digit that counts: it is 0.
    lost = [getattr(part, "_prec", DIGITS) == 1 for part in parts]
    return tuple(sympy.Float(0 if gone else part, digits) for part, gone in zip(parts, lost))


def close(a, b, digits=AGREE):
    """Whether two complex numbers agree to so many digits of the larger."""
    size = max(abs(part) for part in (*a, *b))
    return all(abs(x - y) * 10**digits <= size for x, y in zip(a, b))


def rounds_expression(decimal, x):
    """Whether a decimal is what an expression such as \\pi is, to the digits that are written."""
    if x.free_symbols or x.is_Matrix or x.is_Rational:
        return False
    real, imaginary = number(x)
    return not imaginary and rounds(decimal, Fraction(int(real * 10**50), 10**50))
