"""Countdown: what a completion earns, what a legal expression is, the generator."""

import json
import operator
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from countdown_rewards import (
    PROMPTS,
    evaluate,
    final_answer,
    generate_problems,
    is_test_problem,
    lenient,
    load_problems,
    problem_key,
    reachable,
    reward,
    subgroups,
)
from plumbing.forms import END_MARKERS
from plumbing.tasks import Reward

PROBLEM = {"nums": [19, 36, 55, 7], "target": 65}
RIGHT = "((36-19)-7)+55"
WRONG = "((36-19)+7)+55"
DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real cases is absent")


def completion(answer, thinking="36-19=17,17-7=10,10+55=65 yes"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


def earned(answer, nums, target, style="short"):
    return reward(completion(answer), {"nums": nums, "target": target}, style)


def real(name):
    return [json.loads(line) for line in open(DATA / name)]


# What a completion earns


@pytest.mark.parametrize(
    "text, parts, why",
    [
        (completion(RIGHT), (2.0, 1.0, 1.0), "correct"),
        (completion(WRONG), (1.0, 1.0, 0.0), "equals 79, not 65"),
        (completion("36/(19+7)*55"), (1.0, 1.0, 0.0), "equals 990/13, not 65"),
        (completion("36+55"), (1.0, 1.0, 0.0), "uses 36, 55 instead of each"),
        (completion("36+19+55+7=65"), (0.5, 0.5, 0.0), "'=' is not part of a legal"),
        (completion("(36+19+55+7"), (0.5, 0.5, 0.0), "unfinished"),
        (completion("36+19+55+7)"), (0.5, 0.5, 0.0), "unbalanced"),
        (completion("36+19+55*/7"), (0.5, 0.5, 0.0), "'/' out of place"),
        (completion("1" * 1001), (0.5, 0.5, 0.0), "longer than 1000"),
        (completion(""), (0.5, 0.5, 0.0), "uses no number"),
        (completion(" \n"), (0.5, 0.5, 0.0), "something else in the answer block"),
        (completion("()"), (0.5, 0.5, 0.0), "uses no number"),
        (completion("+-"), (0.5, 0.5, 0.0), "something else in the answer block"),
        (" yes </think>\n\n<answer>\n( (36 - 19)\t- 7 )\n + 55 </answer> ", (2, 1, 1), "correct"),
        (f"36-19=17\n<answer>{RIGHT}</answer>", (1.0, 0.0, 1.0), "correct; format: no </think>"),
        (f"<answer>{WRONG}</answer>", (0.0, 0.0, 0.0), "equals 79, not 65; format: no </think>"),
        (f"yes</think>So:<answer>{RIGHT}</answer>", (1, 0, 1), "format: text before the answer"),
        (completion(RIGHT) + " Done.", (1.0, 0.0, 1.0), "format: text after </answer>"),
        (completion(RIGHT) + "</answer>", (1.0, 0.0, 1.0), "format: text after </answer>"),
        (completion(RIGHT) + " so </answer>\n", (1.0, 0.0, 1.0), "format: text after </answer>"),
        (completion(WRONG) + f"<answer>{RIGHT}</answer>", (1, 0, 1), "format: two answer blocks"),
        (completion(RIGHT) + f"<answer>{WRONG}</answer>", (0, 0, 0), "format: two answer blocks"),
        (completion(f"<answer>{RIGHT}"), (1.0, 0.0, 1.0), "format: two answer blocks"),
        (completion(RIGHT + "</think>"), (0.0, 0.0, 0.0), "format: <think> in the answer block"),
        ("<think>" + completion(RIGHT), (2.0, 1.0, 1.0), "correct"),
        ("so <think>" + completion(RIGHT), (1.0, 0.0, 1.0), "format: a second <think>"),
        (f"</answer></think><answer>{RIGHT}</answer>", (2.0, 1.0, 1.0), "correct"),
        # A block inside the thinking counts neither for nor against the last one.
        (f"<answer>{RIGHT}</answer></think><answer>{WRONG}</answer>", (1, 1, 0), "equals 79"),
        (f"<answer>{WRONG}</answer></think><answer>{RIGHT}</answer>", (2, 1, 1), "correct"),
        (f"maybe <answer>{RIGHT}</answer>\n</think>", (0, 0, 0), "no answer block after the"),
        ("", (0, 0, 0), "no answer block after the thinking; format: no </think>"),
        ("65", (0, 0, 0), "no answer block"),
        (RIGHT, (0, 0, 0), "no answer block"),
        (f"<answer>{RIGHT}", (0, 0, 0), "no answer block"),
        (f"</think><answer>{RIGHT}", (0, 0, 0), "format: no </answer>"),
        (f"{RIGHT}</answer>", (0, 0, 0), "no answer block"),
        ("</answer></think><answer>", (0, 0, 0), "no answer block"),
    ],
)
def test_what_a_completion_earns_and_why(text, parts, why):
    result = reward(text, PROBLEM)
    assert result[:3] == parts and why in result.why
    assert (result.why == "correct") == (result.total == 2.0)


@pytest.mark.parametrize(
    "end", ["\n", " \n\n", "</s>", "<|im_end|>\n", "<|eot_id|><|endoftext|>\n</s> "]
)
def test_an_end_marker_or_newline_after_the_answer_is_harmless(end):
    assert reward(completion(RIGHT) + end, PROBLEM).total == 2.0


@pytest.mark.parametrize(
    "text, style, parts",
    [
        (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", "reasoning", (3, 1, 1)),
        (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", "short", (1, 0, 1)),
        (completion(RIGHT), "reasoning", (2, 0, 1)),
        (f"17</reasoning>\n<answer>{RIGHT}</answer>", "reasoning", (2, 0, 1)),
        (f"so\n<answer>{RIGHT}</answer>", "steps", (2, 1, 1)),
        (f"so\n{RIGHT}", "steps", (0, 0, 0)),
    ],
)
def test_the_reward_follows_the_tags_and_weights_of_the_prompt(text, style, parts):
    assert reward(text, PROBLEM, style)[:3] == parts


# What is a legal expression


@pytest.mark.parametrize(
    "answer, nums, target, form",
    [
        ("2**3", [2, 3], 8, 0.5),
        ("2* *3", [2, 3], 8, 0.5),
        ("7//2", [7, 2], 3, 0.5),
        ("9**9**9", [9, 9, 9], 9**9, 0.5),
        ("2.5 * 4", [2, 5, 4], 10, 0.5),
        (".5*8", [5, 8], 4, 0.5),
        ("--2+5", [2, 5], 7, 0.5),
        ("2---5", [2, 5], -3, 0.5),
        ("-", [], 0, 0.5),
        ("+2+5", [2, 5], 7, 0.5),
        ("2*+5", [2, 5], 10, 0.5),
        ("2(5)", [2, 5], 10, 0.5),
        ("(2)(5)", [2, 5], 10, 0.5),
        ("2 5", [2, 5], 25, 0.5),
        ("()2+5", [2, 5], 7, 0.5),
        ("2+5+", [2, 5], 7, 0.5),
        ("2_5", [25], 25, 0.5),
        ("1e1", [1, 1], 10, 0.5),
        ("5%2", [5, 2], 1, 0.5),
        ("5^2", [5, 2], 25, 0.5),
        ("max(5,2)", [5, 2], 5, 0.5),
        (r"\boxed{5+2}", [5, 2], 7, 0.5),
        *((f"6{sign}2", [6, 2], value, 0.5) for sign, value in zip("−–×÷∕·", (4, 4, 12, 3, 3, 12))),
        *((text, [1, 2], 3, 0.5) for text in ("１+2", "١+2", "1²+2", "1＋2", "½*2")),
        ("2*2+3", [2, 3], 7, 1.0),  # a number used twice
        ("2+3", [2, 3, 9], 5, 1.0),  # left out
        ("2+3-1", [2, 3], 4, 1.0),  # not given
        ("23", [2, 3], 23, 1.0),  # joined
        ("2+3", [23], 5, 1.0),  # split
        ("7", [7, 7], 7, 1.0),
        ("07+2", [7, 2], 9, 1.0),
        ("1/0", [1, 0], 1, 1.0),
        ("5/(3-3)", [5, 3, 3], 1, 1.0),
        ("1/0*0", [1, 0, 0], 1, 1.0),
        (f"({10**17}*3+1)/3", [10**17, 3, 1, 3], 10**17, 1.0),  # only rounds to it
    ],
)
def test_an_illegal_or_wrong_expression_is_not_paid(answer, nums, target, form):
    assert earned(answer, nums, target)[1:3] == (form, 0.0)


@pytest.mark.parametrize(
    "answer, nums, target",
    [
        ("(-53 - 53 + 54 + 65)", [53, 53, 54, 65], 13),
        ("-(96 - 58) + 92", [96, 58, 92], 54),
        ("-2*3+10", [2, 3, 10], 4),
        ("-12/4/3+2", [12, 4, 3, 2], 1),
        ("-(-(7))", [7], 7),
        ("4 * -(9*2)", [4, 9, 2], -72),
        ("9+-2", [9, 2], 7),
        ("2--5", [2, 5], 7),
        ("6/-2*3", [6, 2, 3], -9),
        ("0+7", [0, 7], 7),
        ("7*7", [7, 7], 49),
        ("8/(3-8/3)", [8, 3, 8, 3], 24),
        ("1+2*3-8/4", [1, 2, 3, 8, 4], 5),
        ("10-3-2", [10, 3, 2], 5),
        ("24/4/2*3", [24, 4, 2, 3], 9),
        ("1/3", [1, 3], Fraction(1, 3)),
        ("(" * 495 + "1" + ")" * 495 + "+2" + " " * 7, [1, 2], 3),  # 1,000 characters
    ],
)
def test_a_right_solution_is_paid(answer, nums, target):
    assert earned(answer, nums, target) == (2.0, 1.0, 1.0, "correct")


def test_a_vote_is_the_value_of_a_legal_answer():
    votes = [final_answer(text, PROBLEM) for text in (completion(RIGHT), completion("55+36-19-7"))]
    assert votes == ["65", "65"]
    assert [final_answer(text, PROBLEM) for text in (completion("36+55"), "65")] == [None, None]


# Against an independent evaluation


@st.composite
def trees(draw, nums):
    """A number, or (operator, left, right), over `nums` in this order."""
    if len(nums) == 1:
        return nums[0]
    cut = draw(st.integers(1, len(nums) - 1))
    return draw(st.sampled_from("+-*/")), draw(trees(nums[:cut])), draw(trees(nums[cut:]))


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def tree_value(tree):
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = map(tree_value, tree[1:])
    return OPERATIONS[tree[0]](left, right)


def text_of(tree, draw):
    """The tree as text: the parentheses it needs, some that it does not, signs and white space."""
    if isinstance(tree, int):
        return draw(st.sampled_from(["{}", "({})", " {}", "{}\n", "-(-{})"])).format(tree)
    rank = {"+": 1, "-": 1, "*": 2, "/": 2}
    sides = []
    for side, least in ((tree[1], rank[tree[0]]), (tree[2], rank[tree[0]] + 1)):
        needed = not isinstance(side, int) and rank[side[0]] < least
        text = text_of(side, draw)
        sides.append(f"({text})" if needed or draw(st.booleans()) else text)
    return tree[0].join(sides)


@st.composite
def expressions(draw):
    nums = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
    tree = draw(trees(nums))
    return text_of(tree, draw), tree, draw(st.permutations(nums))


@settings(max_examples=500)
@given(expressions(), st.integers(-10_000, 10_000))
def test_the_value_is_that_of_a_recursive_evaluation_and_only_it_is_paid(expression, target):
    text, tree, nums = expression
    try:
        value = tree_value(tree)
    except ZeroDivisionError:
        assume(False)
    assert evaluate(text, nums) == value
    assert earned(text, nums, target).answer == (value == target)


def derivable(tokens):
    """Whether `S -> E | S op E; E -> O | -O; O -> n | (S)` gives the tokens: undo its rules."""
    text = "".join("n" if token.isdigit() else token for token in tokens)
    before = None
    while text != before:
        before = text
        text = re.sub(r"(^|[(+*]|n-)-n", r"\1m", text).replace("m", "M")
        text = re.sub(r"[nM][-+*][nM]", "M", text)
        text = re.sub(r"\([nM]\)", "n", text)
    return text in ("n", "M")


@settings(max_examples=600)
@given(st.lists(st.sampled_from(["1", "1", "+", "-", "*", "(", ")"]), max_size=9))
@example(["(", "1", ")", "*", "(", "1", "-", "(", "1", ")", ")"])
@example(["1", "-", "-", "1"])
@example(["1", "-", "-", "-", "1"])
def test_a_format_is_paid_exactly_for_what_the_grammar_derives(tokens):
    paid = earned(" ".join(tokens), [1], 0).format == 1.0
    assert paid == derivable(tokens)


# Steps


@pytest.mark.parametrize(
    "answer, nums, target",
    [
        ("Step 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1", [1, 2, 3], 1),
        ("Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1", [1, 2, 3], 1),
        ("1+2=3\n3/3=1", [1, 2, 3], 1),
        ("Step 1: 3 - 2 = 1.\nStep 2: 1 * 1 = 1.", [1, 2, 3], 1),
        ("(1 + 2) / 3", [1, 2, 3], 1),
        ("(1 + 2) / 3 = 1.0", [1, 2, 3], 1),
        ("(1 + 2) / 3 = 3/3.", [1, 2, 3], 1),
        ("-2 + 1 * 3", [1, 2, 3], 1),
        ("Step 1: 3 - 5 = -2\nStep 2: (-2) + 12 = 10", [3, 5, 12], 10),
        ("Step 1: 5 / 2 = 2.5\nStep 2: 2.5 * 4 = 10", [2, 4, 5], 10),
    ],
)
def test_steps_or_one_equation_earn_the_full_reward(answer, nums, target):
    assert earned(f"\n{answer}\n", nums, target, "steps") == (2.0, 1.0, 1.0, "correct")


@pytest.mark.parametrize(
    "answer, form, why",
    [
        ("Step 1: 1 + 2 = 4\nStep 2: 4 - 3 = 1", 1.0, "'Step 1: 1 + 2 = 4' is not true"),
        ("Step 1: 1 + 2 = 3\nStep 2: 3 - 2 = 1", 1.0, "takes 2, which is not there"),
        ("Step 1: 2 - 1 = 1\nStep 2: 3 - 3 = 0", 1.0, "takes 3, which is not there"),
        ("Step 1: 3 - 2 = 1", 1.0, "leaves 1, 1 instead of one number"),
        ("1 - 1 = 0\n5 / 0 = 5", 1.0, "takes 1, which is not there"),
        ("1 + 2 = 3\n3 - 3 = 0\n1", 0.5, "'1' is not a step"),
        ("first 1 + 2 = 3\nthen 3 / 3 = 1", 0.5, "'first 1 + 2 = 3' is not a step"),
        ("(1 + 2) / 3 = 2", 1.0, "'2' is not what the left side equals: 1"),
        ("(1 + 2) / 3 = 1/0", 0.5, "'1/0' is not what"),
        ("(1 + 2) / 3 = 1e0", 0.5, "'1e0' is not what"),
        ("(1 + 2) / 3 =", 0.5, "'' is not what"),
        ("1 + 2 + 3", 1.0, "equals 6, not 1"),
        ("I do not know", 0.5, "not part of a legal expression"),
        ("", 0.5, "uses no number"),
        ("+", 0.5, "uses no number"),
    ],
)
def test_a_wrong_step_is_not_paid_and_why_says_which(answer, form, why):
    result = earned(answer, [1, 2, 3], 1, "steps")
    assert result[1:3] == (form, 0.0) and why in result.why


# Hostile text

FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>(1+2)", "(3*4)</answer>",
    "</think><answer>1+2+3+4</answer>", "</", "<", ">",
    "1", "2", "3", "4", "07", "2.5", "1e999", "9**9**9", "9" * 400, "1/0", "1/(2-2)",
    "(", ")", "()", "((((((((", "-(", "-1", "1-2-3-4", "[1", "]", "+", "-", "*", "/", "//", ".",
    "=", ",", "e", "_", "０１２", "٣", "²", "½", "𝟙", "×", "÷", "−", "\u200b", "\u3000", "\x00",
    "\x1c", "\ud800", " ", "\n", "\t", *END_MARKERS, "__import__('os')", "import os", "{nums}",
    "%s", "\\boxed{", "Step 1: 1 + 2 = 3\n", "Step 2: 3 + 3 = 6 ", "Step", "Step 1:", " = 10",
    "\n10 = 10", "<reasoning>", "</reasoning>",
]  # fmt: skip
SMALL = {"nums": [1, 2, 3, 4], "target": 10}
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def check_bounded(text):
    start = time.process_time()
    for style, prompt in PROMPTS.items():
        result = reward(text, SMALL, style)
        form, answer = prompt.weights
        assert type(result) is Reward and result.format in (0.0, 0.5, 1.0)
        assert result.answer in (0.0, 1.0)
        assert result.total == form * result.format + answer * result.answer
        assert 0 < len(result.why) <= 160 and result.why.isprintable()
    assert lenient(text, SMALL) in (0.0, 1.0)
    final_answer(text, SMALL)
    assert time.process_time() - start < 1


@settings(max_examples=2500)
@given(st.text(max_size=300) | hostile | st.text("01234+-*/(). ", max_size=60), st.booleans())
@example("(" * 499 + "1" + ")" * 499 + "+", True)
@example("1+" * 499 + "1", True)
def test_hostile_text_gets_a_reward_within_a_second(text, as_answer):
    check_bounded(completion(text) if as_answer else text)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_megabyte_of_one_fragment_gets_a_reward_within_a_second(fragment):
    check_bounded(fragment * (1_000_000 // len(fragment)))
    check_bounded(completion(fragment * (1_000_000 // len(fragment))))


@settings(max_examples=30, phases=[Phase.generate], report_multiple_bugs=False)
@given(hostile, hostile.filter(len), hostile)
def test_a_megabyte_of_mixed_fragments_gets_a_reward_within_a_second(head, body, tail):
    check_bounded(head + body * (1_000_000 // len(body)) + tail)


def test_twenty_thousand_typical_completions_are_scored_a_second():
    thinking = "".join(
        f"{a}+{a + 7}={2 * a + 7},{2 * a + 7}-12={2 * a - 5} no\n" for a in range(20)
    )
    joints = ("+", " - ", "*", "/", " + ", ")-(", "=", "/(", " * ", ") + (")
    cases = []
    for problem in generate_problems("train", 200, seed=1):
        for joint in joints:
            expression = joint.join(map(str, problem["nums"]))
            cases.append((completion(f"({expression})", thinking), problem))
    seconds = []
    for _ in range(5):  # the fastest: a virtual core's speed comes and goes
        start = time.process_time()
        for text, problem in cases:
            reward(text, problem)
        seconds.append(time.process_time() - start)
    assert len(cases) / min(seconds) >= 20_000


# The generator


@pytest.fixture(scope="module")
def generated():
    return generate_problems("train", 2000, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return load_problems("test")


def test_generated_problems_are_as_documented(generated, held_out):
    assert len(held_out) == 512
    for problem in generated + held_out:
        nums = problem["nums"]
        target = problem["target"]
        assert len(nums) in (3, 4) and all(type(n) is int and 1 <= n <= 99 for n in nums)
        assert type(target) is int and 10 <= target <= 100
    assert all(p["target"] in reachable(p["nums"]) for p in generated[:500] + held_out)
    assert len({problem_key(p) for p in generated}) == len(generated)


@pytest.mark.parametrize("count, share_of_all, share_easy", [(3, 0.52, 0.63), (4, 0.48, 0.39)])
def test_generated_problems_are_as_hard_as_documented(generated, count, share_of_all, share_easy):
    problems = [p for p in generated if len(p["nums"]) == count]
    easy = [p for p in problems if p["target"] in reachable(p["nums"], "+-")]
    assert len(problems) / len(generated) == pytest.approx(share_of_all, abs=0.04)
    assert len(easy) / len(problems) == pytest.approx(share_easy, abs=0.045)


def test_no_training_problem_is_a_test_problem_in_any_order_of_numbers(generated, held_out):
    training = generated + generate_problems("train", 1000, seed=1)
    assert {problem_key(p) for p in training}.isdisjoint(map(problem_key, held_out))
    assert all(is_test_problem([a, 5, 9], 30) == is_test_problem([9, a, 5], 30) for a in range(99))


def test_the_seed_decides_the_training_problems_and_never_the_test_problems(held_out):
    first, again, other = (generate_problems("train", 50, seed) for seed in (7, 7, 8))
    assert first == again
    assert {problem_key(p) for p in first}.isdisjoint(map(problem_key, other))
    assert load_problems("test", seed=123) == held_out


@pytest.mark.parametrize(
    "nums, operators, values",
    [
        ([6, 3], "+-*/", {9, 3, 18, 2}),
        ([3, 6], "+-*/", {9, 3, 18, 2}),
        ([0, 5], "+-*/", {5, 0}),
        ([5, 3], "+-*/", {8, 2, 15}),
        ([6, 3], "+-", {9, 3}),
        ([5], "+-*/", {5}),
    ],
)
def test_reachable_lists_every_value_that_is_whole_and_not_negative(nums, operators, values):
    assert reachable(nums, operators) == values


@pytest.mark.parametrize(
    "nums, target, names",
    [
        ([1, 2, 3], 6, ["3_numbers", "plus_minus"]),
        ([5, 7, 9, 2], 315, ["4_numbers", "needs_muldiv"]),
        (list(range(1, 31)), 6, ["30_numbers"]),
    ],
)
def test_subgroups_name_the_count_and_whether_plus_and_minus_suffice(nums, target, names):
    assert subgroups({"nums": nums, "target": target}) == names


@settings(max_examples=50)
@given(st.lists(st.integers(1, 99), min_size=3, max_size=4), st.integers(1, 200))
def test_the_subgroup_plus_minus_is_what_the_search_finds(nums, target):
    names = subgroups({"nums": nums, "target": target})
    assert ("plus_minus" in names) == (target in reachable(nums, "+-"))


# Real cases


@needs_data
def test_the_verdict_agrees_with_every_labelled_real_completion():
    rows = real("countdown_completions.jsonl")
    differ = [r for r in rows if bool(reward(r["completion"], r).answer) != r["exact_last"]]
    assert (len(rows), differ) == (500, [])


@needs_data
def test_lenient_finds_every_labelled_solution_and_fifteen_that_are_not_the_last_answer():
    rows = real("countdown_completions.jsonl")
    found = [bool(lenient(row["completion"], row)) for row in rows]
    assert not [row for row, value in zip(rows, found) if row["lenient_last"] and not value]
    assert sum(found) - sum(row["lenient_last"] for row in rows) == 15


@needs_data
def test_every_real_problem_is_loaded_and_solvable():
    problems = load_problems("all", str(DATA / "countdown_problems.jsonl"))
    assert len(problems) == 1024
    assert [p for p in problems if p["target"] not in reachable(p["nums"])] == []


# The lenient reading


@pytest.mark.parametrize(
    "text, found",
    [
        (f"<answer>{RIGHT} = 65</answer>", 1),
        (f"so it is\n{RIGHT}", 1),
        ("\\boxed{((36-19)-7)+55}", 1),
        ("The equation:\n**((36 − 19) − 7) + 55 = 65**", 1),
        (f"<answer>{RIGHT}</answer> no, <answer>{WRONG}</answer>", 1),
        (f"Thus {RIGHT} = 65, so we are done.", 1),
        (f"The equation: {RIGHT}=65", 1),
        (f"\\[ {RIGHT} = 65 \\]", 1),
        (f"<answer>{RIGHT[:5]}\n{RIGHT[5:]}</answer>", 1),
        ("so -7 + 36 - 19 + 55", 1),
        (f"- {RIGHT}", 1),
        (f"{RIGHT}<|im_end|>", 1),
        (f"ответ {RIGHT}", 1),
        ("", 0),
        ("65 = 65", 0),
        (WRONG, 0),
        ("36 + 55", 0),
        ("the answer is ((36-19)-7)+54 = 65", 0),
        (f"{RIGHT}²", 0),
    ],
)
def test_lenient_finds_a_right_solution_wherever_it_stands(text, found):
    assert lenient(text, PROBLEM) == found
