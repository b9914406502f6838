r"""Whether two answers in LaTeX have the same value, part by part as math_reading.py finds them.

Plain numbers are compared as fractions; expressions by math_expressions.py. That can take years or
fill the memory (9^{9^{9^9}}): math_workers.py calls `verdict` in processes that it can end.
"""

import re

from plumbing.arithmetic import plain_number, same_number
from plumbing.math_expressions import (
    NEEDED,
    close,
    expression,
    number,
    points,
    rounds_expression,
    same_expressions,
)
from plumbing.math_reading import Group, Relation, Text, Unread, Value, clean, read, words_of


def verdict(answer, gold):
    """Whether the two are equal, and if not, why: (bool, str). May take forever."""
    try:
        right = equal(answer, gold)
    except Unread as error:
        why = f"{answer!r:.50} or {gold!r:.40} is not read in full: {str(error)!r:.40}"
        return False, why
    except Exception as error:  # sympy's own, where it cannot compute
        return False, f"{answer!r:.60} cannot be computed: {type(error).__name__}"
    return right, "correct" if right else f"{answer!r:.60} is not {gold!r:.60}"


def equal(answer, gold):
    """Whether two texts have the same value; `Unread` if one is not understood."""
    answer = clean(answer)
    gold = clean(gold)
    if without_space(answer) == without_space(gold):
        return True
    return same(read(answer), read(gold))


def without_space(text):
    """Without spaces but those between two letters or digits."""
    return re.sub(r"(?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z])", "", text)


# ---- Comparing the parts


def same(a, b):
    """Whether two of Value, Text, Group and Relation have the same value."""
    if isinstance(a, Relation) and isinstance(b, Relation):
        return same_relations(a, b)
    if isinstance(a, Relation):
        return has_value(a, b)
    if isinstance(b, Relation):
        return has_value(b, a)
    if isinstance(a, Group) or isinstance(b, Group):
        return same_groups(a, b)
    if isinstance(a, Text) or isinstance(b, Text):
        return words_of(a.text) == words_of(b.text)
    return same_values(a, b)


UNORDERED = {"", "{", r"\cup"}


def same_groups(a, b):
    """Sets in any order, all else in its own; a list without brackets may stand for a tuple."""
    a = a if isinstance(a, Group) else Group("", "", (a,))
    b = b if isinstance(b, Group) else Group("", "", (b,))
    if a.left in UNORDERED and b.left in UNORDERED:
        both = (a.left == r"\cup") == (b.left == r"\cup")
        return both and same_in_some_order(a.items, b.items, same)
    brackets = {(a.left, a.right), (b.left, b.right)}
    if len(brackets) > 1 and brackets != {("", ""), ("(", ")")}:
        return False
    return len(a.items) == len(b.items) and all(map(same, a.items, b.items))


def same_in_some_order(first, second, equal):
    """Whether each member of one has its equal in the other, which has as many."""
    left = list(second)
    for item in first:
        partner = next((other for other in left if equal(item, other)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


def same_values(a, b):
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if a.percent == b.percent:
        return same_formulas(a.formula, b.formula)
    percent, other = (a, b) if a.percent else (b, a)
    hundredth = rf"\frac{{{percent.formula}}}{{100}}"  # 10% may be written 10 or 0.1
    return any(same_formulas(text, other.formula) for text in (percent.formula, hundredth))


BASED = re.compile(r"\(?([0-9]+)\)?_\{?([0-9]+)\}?")  # 2516_8 or (2516)_{8}
INFINITE = re.compile(r"[-+]?\s*\\infty")


def same_formulas(a, b):
    if without_space(a) == without_space(b):
        return True
    number_a = plain_number(a)
    number_b = plain_number(b)
    if number_a and number_b:
        return same_number(number_a, number_b)
    if INFINITE.fullmatch(a) or INFINITE.fullmatch(b):
        return a.lstrip("+ ") == b.lstrip("+ ")
    based_a = BASED.fullmatch(a)
    based_b = BASED.fullmatch(b)
    if based_a and based_b:
        return based_a.groups() == based_b.groups()
    if based_a or based_b:  # the question names the base, the answer need not
        return (based_a[1] if based_a else a) == (based_b[1] if based_b else b)
    x = expression(a)
    y = expression(b)
    if same_expressions(x, y):
        return True
    if number_a:
        return rounds_expression(number_a, y)
    return number_b is not None and rounds_expression(number_b, x)


# ---- Equations and inequalities

# A side that is a name and no value: x, x_1, f(x), \angle ABC, P(A), \frac{NO}{BO}, A:B.
COMMAND_IN_A_NAME = r"\\(?!sqrt|binom|pi(?![a-zA-Z])|infty)[A-Za-z]+"
INDEX = r"_(?:[0-9A-Za-z]|\{[0-9A-Za-z,+-]*\})"
NAME = re.compile(rf"(?:[A-Za-z(){{}},:/\s]|{COMMAND_IN_A_NAME}|{INDEX})+")


def has_value(relation, other):
    """Whether x = 5 says 5, x \\in (1,2) the interval (1,2), and 1 < x < 2 that interval, too."""
    if not set(relation.signs) <= {"=", "in", "~"}:
        interval = as_interval(relation)
        return interval is not None and same(interval, other)
    for side in relation.sides:
        if not NAME.fullmatch(side):
            read_value_of(side)  # even one that is not compared must be understood
    sides = exact_sides(relation)
    if NAME.fullmatch(sides[0]):  # x = 2 + 3 = 5
        return len(relation.sides) > 1 and same(read(sides[-1]), other)
    if NAME.fullmatch(sides[-1]):  # 5 = x
        sides = sides[:-1]
    return all(same(read(side), other) for side in sides)


def exact_sides(relation):
    """Those before an approximation; in x \\approx 5 all there is."""
    exact = [*relation.signs, "~"].index("~") + 1
    if exact == 1 and NAME.fullmatch(relation.sides[0]):
        exact = 2
    return relation.sides[:exact]


def read_value_of(side):
    """The side read, formulas included: `Unread` if it cannot be."""
    part = read(side)
    if isinstance(part, Value) and not plain_number(part.formula):
        expression(part.formula)
    return part


def as_interval(relation):
    """The interval of the numbers x with 1 < x <= 2, or with x > 3; None if there is none."""
    steps = upwards(relation)
    if not all(sign in ("<", "<=") for _, sign, _ in steps) or len(steps) > 2:
        return None
    if len(steps) == 1 and NAME.fullmatch(steps[0][0]):  # x < 3
        steps.insert(0, (r"-\infty", "<", steps[0][0]))
    elif len(steps) == 1:  # 3 < x
        steps.append((steps[0][2], "<", r"\infty"))
    (low, left, name), (_, right, high) = steps
    if not NAME.fullmatch(name):
        return None
    left = "[" if left == "<=" else "("
    right = "]" if right == "<=" else ")"
    return Group(left, right, (read(low), read(high)))


def upwards(relation):
    """Its steps as (left side, sign, right side), with < and <= for > and >=."""
    steps = list(zip(relation.sides, relation.signs, relation.sides[1:]))
    if any(sign in (">", ">=") for sign in relation.signs):
        turned = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
        steps = [(right, turned.get(sign, sign), left) for left, sign, right in reversed(steps)]
    return steps


def same_relations(a, b):
    """The same steps in some order; x = 2 + 3 = 5 counts as x = 5."""
    a = shortened(a)
    b = shortened(b)
    return same_in_some_order(upwards(a), upwards(b), same_steps)


def shortened(relation):
    """A chain of equations as one of its first name and its last exact side."""
    if len(relation.sides) < 3 or not set(relation.signs) <= {"=", "~"}:
        return relation
    if not NAME.fullmatch(relation.sides[0]) or relation.signs[0] != "=":
        return relation
    for side in relation.sides[1:]:
        read_value_of(side)
    return Relation((relation.sides[0], exact_sides(relation)[-1]), ("=",))


def same_steps(a, b):
    """An equation stays the same times any number but 0, an inequality times a positive one."""
    if a[1] != b[1]:
        return False
    left, right, other_left, other_right = (read(side) for side in (a[0], a[2], b[0], b[2]))
    values = all(isinstance(side, Value) for side in (left, right, other_left, other_right))
    if a[1] == "in" or not values:
        return same(left, other_left) and same(right, other_right)
    x = expression(left.formula) - expression(right.formula)
    y = expression(other_left.formula) - expression(other_right.formula)
    return proportional(x, y, positive=a[1] in ("<", "<="))


def proportional(x, y, positive):
    """Whether x / y is the same real number, and not 0, at all points."""
    ratios = []
    for point in points(x.free_symbols | y.free_symbols):
        try:
            over, over_imaginary = number(x, point)
            under, under_imaginary = number(y, point)
        except Unread:
            continue
        if not (over and under) or over_imaginary or under_imaginary:
            return False
        ratios.append((over / under, over_imaginary))
    if len(ratios) < NEEDED or (positive and ratios[0][0] < 0):
        return False
    return all(close(ratio, ratios[0]) for ratio in ratios)
