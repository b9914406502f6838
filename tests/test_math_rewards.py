"""MATH: what a completion earns, which answers are equivalent, hostile texts, files of problems."""

import random
import re

import pytest
from test_countdown_rewards import assert_judged, rewards_of_hostile_texts
from work import light

from tasks.math_rewards import (
    equivalent,
    final_answer,
    load_problems,
    reward,
    same_answer,
    subgroups,
    to_problem,
)

PROBLEM = {"problem": "What is $1/4 + 1/4$?", "answer": "\\frac{1}{2}"}


# What a completion earns


@pytest.mark.parametrize(
    "completion, total, why",
    [
        (r"The final answer is $\boxed{\frac{1}{2}}$.", 2, "correct"),
        (r"\boxed{\frac{1}{2} x 3}", 1, "not read in full"),
        ("\\boxed{" + 501 * "0" + "}", 1, "longer than 500 characters"),
        # The last box counts.
        (r"\boxed{2}, no, \boxed{0.5}", 2, "correct"),
        (r"\boxed{0.5}, no, \boxed{2}", 1, "'2' is not"),
        (r"\boxed{0.5} \boxed{", 0.5, "empty or never closed"),
        # A box ends at its own brace.
        (r"\boxed{\{1, 2\}}", 1, r"'\\{1, 2\\}' is not"),
        (r"\boxed{1\}", 0.5, "empty or never closed"),
        ("\\boxed{ \n }", 0.5, "empty or never closed"),
        (r"\fbox{0.5}", 0, r"no \boxed{...}"),
    ],
)
def test_what_a_completion_earns(completion, total, why):
    assert_judged(reward(completion, PROBLEM), min(total, 1), total == 2, why)


# Which answers are equivalent

CASES = [  # (gold, right answers, wrong answers)
    # Numbers
    (r"\frac{1}{2}", [r"\dfrac12", ".5"], ["½"]),
    ("3.5", [r"3\frac12"], [r"2\frac{3}{2}", "2 3/2", r"2^3\frac12"]),
    (r"\frac{1}{3}", [r"\frac{3}{9}"], ["0.333333", r"0.\overline{3}"]),
    (r"\sqrt{8}", [r"\sqrt[3]{8}\sqrt{2}"], []),
    (r"1-\mathrm{e}", ["-(e-1)"], [r"1-\mathrm{f}"]),
    ("2i", [r"\sqrt{-4}", "(1+i)^2"], ["-2i"]),
    ("1e-5", ["0.00001"], []),
    ("4!", [], ["24"]),
    ("0", ["0.0"], ["10^{-40}", "10^{-200}"]),
    ("10^{60}", [r"10^30\cdot 10^{30}"], ["10^{60}+1"]),
    # What stands side by side is not a sum, and braces that print nothing are not read.
    ("40", ["4(10)"], ["4{10}", "4 10", r"\frac{80}2 0", "3 37"]),
    # Signs that are characters, and those with several names
    ("-6", ["−6", "-2×3", "-2·3"], []),
    (r"(-\infty,2\pi)\cup(7,8)", ["(-∞,2π)∪(7,8)"], []),
    (r"x\le 3", ["x≤3", "x<=3", r"x\leqslant 3"], ["x<3"]),
    (r"x\ge 3", ["x≥3", "x>=3", r"x\geq 3"], [r"x\gt 3"]),
    ("x>3", [r"x\gt 3"], [r"x\lt 3"]),
    (r"(-\infty,\infty)", [r"\mathbb{R}"], []),
    # Thousands
    (
        "43500",
        ["43{,}500", r"43\,500", r"43,\!500", "43\u202f500"],
        ["43, 500", "43 500", "4,3500"],
    ),
    ("(100, 200)", ["(100,200)"], ["100200"]),
    ("2000, 1000", ["1,000, 2,000"], []),
    # A part that is not read, or that says something else, is not dropped.
    (
        "5",
        ["5 = x", "x = 10/2 = 5", "f(2)=5", "$5$.", "(5)", r"\text{5}"],
        [
            "2x=10",
            "x = 2x = 5",
            "6 = 5",
            "5...",
            r"5\approx 5.0",
            "5\u200b",
            "5 or more",
            r"\text{about }5",
            r"\geq 5",
            r"\neq 5",
            "f(5",
            "{1}05",
            "5_{99}",
            "5!!",
            "5, 7",
            r"5\text{ million}",
        ],
    ),
    ("f(2)=18", ["18"], ["f(3)=18"]),
    # Units, and words
    (
        "5",
        [
            r"5\text{ cm}",
            "5 cm",
            r"\text{5 cm}",
            r"\text{ }5",
            r"5\%",
            "5°",
            r"\$5",
            r"5\mathrm{kg}",
        ],
        [r"5\text{ M}", "5 apples", "5 am", "5 pi", r"\text{5 or 6}"],
    ),
    (
        r"5\text{ cm}^2",
        ["5 square centimeters", "5 cm²", r"5\text{ sq. cm}"],
        [r"5\text{ cm}^3", r"5\text{ m}^2", r"5\text{ cm}"],
    ),
    (r"5\text{ cm}^3", ["5 cubic centimeters"], []),
    (r"7\text{ girls}", [r"\text{7 girls}"], [r"7\text{ cm}"]),
    (r"90^\circ", [r"90^{\circ}"], [r"9^\circ 0"]),
    (r"\frac12", [r"\sin\frac{\pi}{6}"], [r"\sin 30^\circ"]),
    (r"28\%", ["28 percent"], ["0.28"]),
    ("32348", [r"\$32,\!348", r"\$32{,}348"], []),
    (r"\$18.90", ["18.9"], [r"18.90\text{ cents}"]),
    ("2516_8", ["2516", "2516_{8}"], ["2516_9"]),
    # Formulas with letters
    ("x^2 + 2x + 1", ["y=(x+1)^2", "x²+2x+1"], ["(X+1)^2"]),
    (r"\frac12c", ["c/2"], ["1/2c"]),
    (r"\sin x\cos y", [r"\cos y \sin x"], [r"\sin(x\cos y)"]),
    (r"\frac{\sin x}{2}", [r"\frac12\sin x"], [r"\sin x/2"]),
    ("1", [], [r"1+\sin(128\pi x)", "x/x"]),
    ("I(0)e^{-t}", [r"I(0) \cdot e^{-1t}"], ["I(1)e^{-t}"]),
    # Letters that are a text
    ("HHTT", [r"\text{HHTT}"], ["HTHT"]),
    ("A-C-B", [], ["A-B-C"]),
    (r"\text{Evelyn}", ["Evelyn", r"\textbf{evelyn}"], [r"\text{Eve}"]),
    (r"\text{(B)}", ["b"], [r"\text{(B) } 5"]),
    # Lists, pairs, sets
    ("1, 2", [r"\{2, 1\}", r"2 \text{ and } 1", "x=2 or x=1", "2; 1"], ["1,2,2", "1,2,", "1"]),
    ("(2,1)", ["(x,y)=(2,1)"], ["(1,2)", "[2,1]", "(2,1"]),
    (r"1\pm\sqrt2", [r"1-\sqrt{2},\ 1+\sqrt 2"], [r"1+\sqrt 2", r"\pm 1\pm\sqrt2"]),
    ("x=5,y=6", ["y=6, x=5", "5,6"], ["x=6,y=5", "6,5"]),
    # Intervals
    ("[1,2)", [r"x\in[1,2)", r"2>x\ge 1"], ["(1,2)", "1,2"]),
    (r"(3,\infty)", ["x>3", "(3,∞)"], [r"x\ge 3", "x<3"]),
    ("2<x<3", [r"2 \lt x \lt 3"], ["2<y<3", r"2<x\le 3", "2<3", "3>x<2"]),
    (
        r"(-\infty,1)\cup(2,\infty)",
        [r"(2,\infty)\cup(-\infty,1)"],
        [r"(-\infty,1),(2,\infty)", r"(-\infty,1)\cap(2,\infty)"],
    ),
    (r"x \neq 1", ["x != 1"], [r"x \ne 2", r"y \ne 1", "1", "x=1"]),
    # Equations are compared side by side.
    ("y = 3x+5", ["3x+5", "y=5+3x"], ["3x-y=-5"]),
    ("5x - 7y + 4 = 0", ["4+5x-7y = 0"], ["0"]),
    (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        [r"\begin{bmatrix}2/2\\ 2\end{bmatrix}", r"\left[\begin{array}{c}1\\2\end{array}\right]"],
        [r"\begin{pmatrix}1&2\end{pmatrix}"],
    ),
]


@pytest.mark.parametrize("gold, right, wrong", CASES)
def test_which_answers_are_equivalent(gold, right, wrong):
    assert [answer for answer in right if not equivalent(answer, gold)[0]] == []
    assert [answer for answer in wrong if equivalent(answer, gold)[0]] == []


# Votes and subgroups


def test_equivalent_answers_vote_together():
    boxes = ["\\boxed{1/2}", "\\boxed{ 0.5 }", "\\boxed{3}", "\\boxed{9!}", "\\boxed{}"]
    votes = [final_answer(box, PROBLEM) for box in boxes]
    assert votes == ["1/2", "0.5", "3", "9!", None]
    assert [same_answer(vote, "0.5", PROBLEM) for vote in votes[:4]] == [True, True, False, False]


def test_an_answer_that_is_not_read_equals_itself():
    assert same_answer(r"9^{9^{9}} !", r"9^{9^{9}}!", PROBLEM)


def test_subgroups_are_those_that_are_known():
    columns = {"level": "Level 5", "subject": "Counting & Probability"}
    assert subgroups(PROBLEM | columns) == ["level_5", "counting_probability"]
    assert subgroups(PROBLEM) == []


# Hostile texts

FRAGMENTS = [
    r"\sqrt", "^", "_", r"\sin x+", "x^{400}+", "1,", "x=1,", "1<", r"\pm", r"\cup", "(1,2);",
    r"\text{a}", "5 cm", "$", "1,000", "°", "{", "}", r"\boxed{", r"\boxed {", "1 ",
    r"\begin{pmatrix}", "HT",
]  # fmt: skip
LARGE = [
    "9^{9^{9^9}}", "((9!)!)!", "(x+y+z+w)^{300}", "0.1^{99999999}", r"\pi^{\pi^{\pi^\pi}}",
    r"\exp\exp\exp\exp 9", r"\ln 0", r"\tan\frac{\pi}2", "(1+i)^{10^{60}}", r"\sqrt[0]{2}",
    "(1/3)^{10^{98}}", "x^{x^{x^{x}}}", r"\sin(10^{99})", "__import__('os').abort()", "0^{-1}",
]  # fmt: skip
BRACKETS = [("\\sqrt{", "}"), ("(", ")"), ("\\frac{1}{1+", "}"), ("\\{", "\\}")]
for opening, closing in BRACKETS:
    LARGE += [depth * opening + "2" + depth * closing for depth in (30, 120, 5_000)]


def test_hostile_text_up_to_800_kilobytes_gets_a_reward_with_little_work():
    rewards_of_hostile_texts(reward, PROBLEM, FRAGMENTS + LARGE, ["\\boxed{{}}"])


def test_a_large_number_or_a_deep_bracket_is_wrong():
    for text in LARGE:
        assert light(equivalent, text, "1/2")[0] is False


def test_hostile_votes_are_compared_with_little_work():
    rng = random.Random(0)
    for _ in range(2_000):
        vote = "".join(rng.choices([*FRAGMENTS, *LARGE, *"+=()[]|&;:0.9xie"], k=rng.randint(1, 12)))
        light(same_answer, vote, vote[::-1], PROBLEM)


@pytest.mark.parametrize("item", ["\\sin {}x", "y<{}x", "\\{{{},x\\}}", "\\sqrt{{x+{}}}"])
def test_long_lists_in_another_order_take_little_work(item):
    items = [item.format(number) for number in range(2, 27)]
    assert light(equivalent, ",".join(items), ",".join(reversed(items)))[0]


# Rows of problems


@pytest.mark.parametrize(
    "column, value, answer",
    [
        ("answer", 0.5, "0.5"),
        ("answer", ["2"], "2"),
        ("answer", r"$\boxed{2}$.", "2"),
        ("solution", r"it is \fbox{7}", "7"),
        ("solution", r"it is \boxed 7.", "7"),
    ],
)
def test_the_answer_is_read_from_a_column_or_from_the_last_box_of_a_solution(column, value, answer):
    problem = to_problem({"problem": "?", "type": "Algebra", "level": "Level 3", column: value})
    assert problem == {"problem": "?", "answer": answer, "level": "Level 3", "subject": "Algebra"}


@pytest.mark.parametrize(
    "column, value, said",
    [
        ("problem", ["?"], "needs problem, a text"),
        ("answer", "2}", "and balanced braces"),
        ("answer", 501 * "2", "at most 500 characters"),
        ("solution", "it is 2", "or solution with \\boxed"),
        ("answer", ["1", "2"], "needs answer"),
        ("answer", "NaN", "an answer that is not NaN"),
        # What json makes of one backslash: \frac, \text, \neq, \times.
        ("answer", "x \neq 5", "a control character"),
        ("problem", "What is 2 \times 3?", "a control character"),
    ],
)
def test_a_row_that_is_not_clear_is_refused_with_what_is_needed(column, value, said):
    row = {"problem": "?", "answer": None if column == "solution" else "2"}
    with pytest.raises(ValueError, match=re.escape(said)):
        to_problem(row | {column: value})


def test_a_matrix_in_several_lines_is_clear():
    matrix = "\\begin{pmatrix}\n1 \\\\\nx\n\\end{pmatrix}"
    row = {"problem": "1\t2\nx\r\ny", "answer": matrix}
    assert to_problem(row) == row


def test_without_a_source_a_sentence_says_what_to_type():
    with pytest.raises(ValueError, match="MATH has no built-in problems: use `--data hub`"):
        load_problems("train", None)
