"""Countdown: what a completion earns, what a legal expression is, the generator."""

import re
import time
import timeit
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from labelled import DATA, needs_data, real

from countdown_rewards import (
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


def of(target, *nums, style="short"):
    return {"nums": list(nums), "target": target, "style": style}


def completion(answer, thinking="36-19=17,17-7=10,10+55=65 yes"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


# What a completion earns

RIGHT = "((36-19)-7)+55"
WRONG = "((36-19)+7)+55"
PROBLEM = of(65, 19, 36, 55, 7)
TAGS = of(65, 19, 36, 55, 7, style="reasoning")
STEPS = of(1, 1, 2, 3, style="steps")
PAID = (2.0, 1.0, 1.0)  # total, format, answer
FORM = (1.0, 1.0, 0.0)
TAGS_ALONE = (0.5, 0.5, 0.0)
VALUE_ALONE = (1.0, 0.0, 1.0)
NOTHING = (0.0, 0.0, 0.0)
ROWS = [
    (completion(RIGHT), PROBLEM, PAID, "correct"),
    (completion(WRONG), PROBLEM, FORM, "equals 79, not 65"),
    (completion("36/(19+7)*55"), PROBLEM, FORM, "equals 990/13, not 65"),
    (completion("36+55"), PROBLEM, FORM, "uses 36, 55 instead of each"),
    (completion("36+19+55+7=65"), PROBLEM, TAGS_ALONE, "'=' is not part of a legal"),
    (completion("(36+19+55+7"), PROBLEM, TAGS_ALONE, "unfinished"),
    (completion("36+19+55+7)"), PROBLEM, TAGS_ALONE, "unbalanced"),
    (completion("36+19+55*/7"), PROBLEM, TAGS_ALONE, "'/' out of place"),
    (completion("1" * 1001), PROBLEM, TAGS_ALONE, "longer than 1000"),
    (completion("(" * 499 + "1" + ")" * 499 + "+"), PROBLEM, TAGS_ALONE, "uses 1 instead"),
    (completion("1+" * 499 + "1"), PROBLEM, FORM, "uses 1, 1, 1, 1, 1, 1, 1, 1 instead"),
    (completion(""), PROBLEM, TAGS_ALONE, "uses no number"),
    (completion(" \n"), PROBLEM, TAGS_ALONE, "something else in the answer block"),
    (completion("()"), PROBLEM, TAGS_ALONE, "uses no number"),
    (completion("+-"), PROBLEM, TAGS_ALONE, "something else in the answer block"),
    # The tags
    (" yes </think>\n\n<answer>\n( (36 - 19)\t- 7 )\n + 55 </answer> ", PROBLEM, PAID, ""),
    (f"36-19=17\n<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "correct; format: no </think>"),
    (f"<answer>{WRONG}</answer>", PROBLEM, NOTHING, "equals 79, not 65; format: no </think>"),
    (f"yes</think>So:<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "text before the answer"),
    (completion(RIGHT) + " Done.", PROBLEM, VALUE_ALONE, "format: text after </answer>"),
    (completion(RIGHT) + "</answer>", PROBLEM, VALUE_ALONE, "format: text after </answer>"),
    (completion(RIGHT) + " so </answer>\n", PROBLEM, VALUE_ALONE, "text after </answer>"),
    (completion(WRONG) + f"<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "two answer blocks"),
    (completion(RIGHT) + f"<answer>{WRONG}</answer>", PROBLEM, NOTHING, "two answer blocks"),
    (completion(f"<answer>{RIGHT}"), PROBLEM, VALUE_ALONE, "format: two answer blocks"),
    (completion(RIGHT + "</think>"), PROBLEM, NOTHING, "format: <think> in the answer block"),
    ("<think>" + completion(RIGHT), PROBLEM, PAID, ""),
    ("so <think>" + completion(RIGHT), PROBLEM, VALUE_ALONE, "format: a second <think>"),
    (f"</answer></think><answer>{RIGHT}</answer>", PROBLEM, PAID, ""),
    # A block inside the thinking counts neither for nor against the last one.
    (f"<answer>{RIGHT}</answer></think><answer>{WRONG}</answer>", PROBLEM, FORM, "equals 79"),
    (f"<answer>{WRONG}</answer></think><answer>{RIGHT}</answer>", PROBLEM, PAID, ""),
    (f"maybe <answer>{RIGHT}</answer>\n</think>", PROBLEM, NOTHING, "no answer block after the"),
    ("", PROBLEM, NOTHING, "no answer block after the thinking; format: no </think>"),
    ("65", PROBLEM, NOTHING, "no answer block"),
    (RIGHT, PROBLEM, NOTHING, "no answer block"),
    (f"<answer>{RIGHT}", PROBLEM, NOTHING, "no answer block"),
    (f"</think><answer>{RIGHT}", PROBLEM, NOTHING, "format: no </answer>"),
    (f"{RIGHT}</answer>", PROBLEM, NOTHING, "no answer block"),
    ("</answer></think><answer>", PROBLEM, NOTHING, "no answer block"),
    # An end marker or a newline behind the answer is harmless.
    (completion(RIGHT) + "\n", PROBLEM, PAID, ""),
    (completion(RIGHT) + " \n\n", PROBLEM, PAID, ""),
    (completion(RIGHT) + "</s>", PROBLEM, PAID, ""),
    (completion(RIGHT) + "<|im_end|>\n", PROBLEM, PAID, ""),
    (completion(RIGHT) + "<|eot_id|><|endoftext|>\n</s> ", PROBLEM, PAID, ""),
    # Tags and weights are those of the prompt.
    (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", TAGS, (3, 1, 1), "correct"),
    (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "no </think>"),
    (completion(RIGHT), TAGS, (2, 0, 1), "no <reasoning> at the start"),
    (f"17</reasoning>\n<answer>{RIGHT}</answer>", TAGS, (2, 0, 1), "no <reasoning> at the start"),
    ("so\n<answer>3-2*1</answer>", STEPS, PAID, ""),
    ("so\n3-2*1", STEPS, NOTHING, "no answer block"),
    # Legal: one minus sign before a number or a parenthesis, any depth, exact fractions.
    (completion("(-53 - 53 + 54 + 65)"), of(13, 53, 53, 54, 65), PAID, ""),
    (completion("-(96 - 58) + 92"), of(54, 96, 58, 92), PAID, ""),
    (completion("-2*3+10"), of(4, 2, 3, 10), PAID, ""),
    (completion("-12/4/3+2"), of(1, 12, 4, 3, 2), PAID, ""),
    (completion("-(-(7))"), of(7, 7), PAID, ""),
    (completion("4 * -(9*2)"), of(-72, 4, 9, 2), PAID, ""),
    (completion("9+-2"), of(7, 9, 2), PAID, ""),
    (completion("2--5"), of(7, 2, 5), PAID, ""),
    (completion("6/-2*3"), of(-9, 6, 2, 3), PAID, ""),
    (completion("0+7"), of(7, 0, 7), PAID, ""),
    (completion("7*7"), of(49, 7, 7), PAID, ""),
    (completion("8/(3-8/3)"), of(24, 8, 3, 8, 3), PAID, ""),
    (completion("1+2*3-8/4"), of(5, 1, 2, 3, 8, 4), PAID, ""),
    (completion("10-3-2"), of(5, 10, 3, 2), PAID, ""),
    (completion("24/4/2*3"), of(9, 24, 4, 2, 3), PAID, ""),
    (completion("1/3"), of(Fraction(1, 3), 1, 3), PAID, ""),
    (completion("(" * 495 + "1" + ")" * 495 + "+2" + " " * 7), of(3, 1, 2), PAID, ""),
    # No expression: Python's own operators and spellings, other scripts' digits and signs.
    (completion("2**3"), of(8, 2, 3), TAGS_ALONE, ""),
    (completion("2* *3"), of(8, 2, 3), TAGS_ALONE, ""),
    (completion("7//2"), of(3, 7, 2), TAGS_ALONE, ""),
    (completion("9**9**9"), of(9**9, 9, 9, 9), TAGS_ALONE, ""),
    (completion("2.5 * 4"), of(10, 2, 5, 4), TAGS_ALONE, ""),
    (completion(".5*8"), of(4, 5, 8), TAGS_ALONE, ""),
    (completion("--2+5"), of(7, 2, 5), TAGS_ALONE, ""),
    (completion("2---5"), of(-3, 2, 5), TAGS_ALONE, ""),
    (completion("-"), of(0), TAGS_ALONE, ""),
    (completion("+2+5"), of(7, 2, 5), TAGS_ALONE, ""),
    (completion("2*+5"), of(10, 2, 5), TAGS_ALONE, ""),
    (completion("2(5)"), of(10, 2, 5), TAGS_ALONE, ""),
    (completion("(2)(5)"), of(10, 2, 5), TAGS_ALONE, ""),
    (completion("2 5"), of(25, 2, 5), TAGS_ALONE, ""),
    (completion("()2+5"), of(7, 2, 5), TAGS_ALONE, ""),
    (completion("2+5+"), of(7, 2, 5), TAGS_ALONE, ""),
    (completion("2_5"), of(25, 25), TAGS_ALONE, ""),
    (completion("1e1"), of(10, 1, 1), TAGS_ALONE, ""),
    (completion("5%2"), of(1, 5, 2), TAGS_ALONE, ""),
    (completion("5^2"), of(25, 5, 2), TAGS_ALONE, ""),
    (completion("max(5,2)"), of(5, 5, 2), TAGS_ALONE, ""),
    (completion(r"\boxed{5+2}"), of(7, 5, 2), TAGS_ALONE, ""),
    (completion("6−2"), of(4, 6, 2), TAGS_ALONE, ""),
    (completion("6–2"), of(4, 6, 2), TAGS_ALONE, ""),
    (completion("6×2"), of(12, 6, 2), TAGS_ALONE, ""),
    (completion("6÷2"), of(3, 6, 2), TAGS_ALONE, ""),
    (completion("6∕2"), of(3, 6, 2), TAGS_ALONE, ""),
    (completion("6·2"), of(12, 6, 2), TAGS_ALONE, ""),
    (completion("１+2"), of(3, 1, 2), TAGS_ALONE, ""),
    (completion("١+2"), of(3, 1, 2), TAGS_ALONE, ""),
    (completion("1²+2"), of(3, 1, 2), TAGS_ALONE, ""),
    (completion("1＋2"), of(3, 1, 2), TAGS_ALONE, ""),
    (completion("½*2"), of(3, 1, 2), TAGS_ALONE, ""),
    # An expression, but no solution.
    (completion("2*2+3"), of(7, 2, 3), FORM, ""),  # a number used twice
    (completion("2+3"), of(5, 2, 3, 9), FORM, ""),  # left out
    (completion("2+3-1"), of(4, 2, 3), FORM, ""),  # not given
    (completion("23"), of(23, 2, 3), FORM, ""),  # joined
    (completion("2+3"), of(5, 23), FORM, ""),  # split
    (completion("7"), of(7, 7, 7), FORM, ""),
    (completion("07+2"), of(9, 7, 2), FORM, ""),
    (completion("1/0"), of(1, 1, 0), FORM, "divides by zero"),
    (completion("5/(3-3)"), of(1, 5, 3, 3), FORM, ""),
    (completion("1/0*0"), of(1, 1, 0, 0), FORM, ""),
    (completion(f"({10**17}*3+1)/3"), of(10**17, 10**17, 3, 1, 3), FORM, ""),  # rounds to it
    # Steps, or one equation
    (completion("\nStep 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1\n"), STEPS, PAID, ""),
    (completion("Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1"), STEPS, PAID, ""),
    (completion("1+2=3\n3/3=1"), STEPS, PAID, ""),
    (completion("Step 1: 3 - 2 = 1.\nStep 2: 1 * 1 = 1."), STEPS, PAID, ""),
    (completion("(1 + 2) / 3"), STEPS, PAID, ""),
    (completion("(1 + 2) / 3 = 1.0"), STEPS, PAID, ""),
    (completion("(1 + 2) / 3 = 3/3."), STEPS, PAID, ""),
    (completion("-2 + 1 * 3"), STEPS, PAID, ""),
    (completion("3 - 5 = -2\n(-2) + 12 = 10"), of(10, 3, 5, 12, style="steps"), PAID, ""),
    (completion("5 / 2 = 2.5\n2.5 * 4 = 10"), of(10, 2, 4, 5, style="steps"), PAID, ""),
    (completion("Step 1: 1 + 2 = 4\nStep 2: 4 - 3 = 1"), STEPS, FORM, "1 + 2 = 4' is not true"),
    (
        completion("Step 1: 1 + 2 = 3\nStep 2: 3 - 2 = 1"),
        STEPS,
        FORM,
        "takes 2, which is not there",
    ),
    (
        completion("Step 1: 2 - 1 = 1\nStep 2: 3 - 3 = 0"),
        STEPS,
        FORM,
        "takes 3, which is not there",
    ),
    (completion("Step 1: 3 - 2 = 1"), STEPS, FORM, "leaves 1, 1 instead of one number"),
    (completion("1 - 1 = 0\n5 / 0 = 5"), STEPS, FORM, "takes 1, which is not there"),
    (completion("1 + 2 = 3\n3 - 3 = 0\n1"), STEPS, TAGS_ALONE, "'1' is not a step"),
    (completion("first 1 + 2 = 3\nthen 3 / 3 = 1"), STEPS, TAGS_ALONE, "is not a step"),
    (completion("(1 + 2) / 3 = 2"), STEPS, FORM, "'2' is not what the left side equals: 1"),
    (completion("(1 + 2) / 3 = 1/0"), STEPS, TAGS_ALONE, "'1/0' is not what"),
    (completion("(1 + 2) / 3 = 1e0"), STEPS, TAGS_ALONE, "'1e0' is not what"),
    (completion("(1 + 2) / 3 ="), STEPS, TAGS_ALONE, "'' is not what"),
    (completion("1 + 2 + 3"), STEPS, FORM, "equals 6, not 1"),
    (completion("I do not know"), STEPS, TAGS_ALONE, "not part of a legal expression"),
    (completion(""), STEPS, TAGS_ALONE, "uses no number"),
    (completion("+"), STEPS, TAGS_ALONE, "uses no number"),
    (completion("3-2*1 = 1" + " " * 1000), STEPS, TAGS_ALONE, "longer than 1000"),
]


@pytest.mark.parametrize("text, problem, verdict, why", ROWS, ids=range(len(ROWS)))
def test_what_a_completion_earns_why_and_for_which_value_it_votes(text, problem, verdict, why):
    result = reward(text, problem, problem["style"])
    assert result[:3] == verdict and why in result.why
    assert (result.why == "correct") == (result.format == result.answer == 1.0)
    vote = final_answer(text, problem, problem["style"])
    right = str(problem["target"])
    assert (vote == right) if result.answer else (vote is None or f"equals {vote}," in result.why)


# Against Python's own arithmetic, and a second grammar

TOKENS = st.lists(st.sampled_from(["1", "1", "+", "-", "*", "(", ")"]), max_size=9)
OPERATIONS = ["{}+{}", "{} - {}", "{}*{}", "{}/{}", "({})", "-({})\n", " {}"]
LEGAL = st.recursive(
    st.integers(0, 99).map(str),
    lambda parts: st.builds(str.format, st.sampled_from(OPERATIONS), parts, parts),
    max_leaves=20,
)


def derivable(text):
    """Whether `S -> E | S op E; E -> O | -O; O -> n | (S)` gives the text: undo its rules."""
    text = re.sub("[0-9]+", "n", text)
    text = re.sub(r"\s", "", text)
    before = None
    while text != before:
        before = text
        text = re.sub(r"(^|(?<=[(+*/])|(?<=[nM)]-))-n", "M", text)
        text = re.sub(r"[nM][-+*/][nM]", "M", text)
        text = re.sub(r"\([nM]\)", "n", text)
    return text in ("n", "M")


@settings(max_examples=1000)
@given(LEGAL | TOKENS.map(" ".join))
@example("( 1 ) * ( 1 - ( 1 ) )")
@example("1 - - 1")
@example("1 - - - 1")
def test_a_form_is_paid_for_what_the_grammar_derives_and_its_value_is_pythons(text):
    nums = [int(number) for number in re.findall("[0-9]+", text)]
    paid = reward(completion(text), of(0, *nums)).format == 1.0
    assert paid == derivable(text)
    try:
        value = eval("(" + re.sub("([0-9]+)", r"Fraction(\1)", text) + ")") if paid else None
    except ZeroDivisionError:
        value = None
    assert final_answer(completion(text), of(0, *nums)) == (None if value is None else str(value))


def test_twenty_thousand_typical_completions_are_scored_a_second():
    thinking = "13+20=33,33-12=21 no\n" * 20
    cases = []
    for problem in generate_problems("train", 200, seed=1):
        for joint in ("+", " - ", "*", "/", " + ", ")-(", "=", "/(", " * ", ") + ("):
            expression = joint.join(map(str, problem["nums"]))
            cases.append((completion(f"({expression})", thinking), problem))
    score = lambda: [reward(*case) for case in cases]
    # The fastest of five: a virtual core's speed comes and goes.
    seconds = min(timeit.repeat(score, timer=time.process_time, repeat=5, number=1))
    assert len(cases) / seconds >= 20_000


# The generator


@pytest.fixture(scope="module")
def generated():
    return generate_problems("train", 2000, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return load_problems("test")


def test_generated_problems_are_as_documented(generated, held_out):
    assert len(held_out) == 512
    for p in generated + held_out:
        assert len(p["nums"]) in (3, 4) and all(type(n) is int and 1 <= n <= 99 for n in p["nums"])
        assert type(p["target"]) is int and 10 <= p["target"] <= 100
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


def test_the_seed_decides_the_training_problems_and_never_the_test_problems(generated, held_out):
    other = generate_problems("train", 50, seed=8)
    assert generate_problems("train", 50, seed=0) == generated[:50]
    assert {problem_key(p) for p in generated[:50]}.isdisjoint(map(problem_key, other))
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
    rows = real("countdown_completions")
    differ = [r for r in rows if reward(r["completion"], r).answer != r["exact_last"]]
    assert (len(rows), differ) == (500, [])


@needs_data
def test_lenient_finds_every_labelled_solution_and_fifteen_that_are_not_the_last_answer():
    rows = real("countdown_completions")
    more = [lenient(row["completion"], row) - row["lenient_last"] for row in rows]
    assert (len(rows), more.count(1), more.count(-1)) == (500, 15, 0)


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
