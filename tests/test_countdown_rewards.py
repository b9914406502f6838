import gzip
import json
import re
import socket
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas
import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

import countdown_rewards
from countdown_rewards import (
    evaluate,
    final_answer,
    format_prompt,
    generate_problems,
    lenient,
    load_problems,
    reachable,
    reward,
    subgroups,
)
from plumbing.tasks import END_MARKERS, Reward

PROBLEM = {"nums": [19, 36, 55, 7], "target": 65}
RIGHT = "((36-19)-7)+55"
WRONG = "((36-19)+7)+55"
DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real cases is absent")


def completion(answer, thinking="36-19=17,17-7=10,10+55=65 yes"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


def answer_score(answer, nums, target):
    return reward(completion(answer), {"nums": nums, "target": target}).answer


# The reward's values


def test_a_well_formed_exact_solution_earns_two():
    assert reward(completion(RIGHT), PROBLEM) == (2.0, 1.0, 1.0, "correct")


def test_a_well_formed_wrong_expression_earns_the_format_point_only():
    assert reward(completion(WRONG), PROBLEM) == (1.0, 1.0, 0.0, "equals 79, not 65")


def test_an_equation_in_the_answer_block_earns_half_a_format_point():
    assert reward(completion("1+2=3"), {"nums": [1, 2], "target": 3})[:3] == (0.5, 0.5, 0.0)


def test_an_empty_answer_block_earns_half_a_format_point():
    assert reward(completion(""), PROBLEM)[:3] == (0.5, 0.5, 0.0)


def test_without_the_closing_think_tag_a_solution_earns_the_answer_point_only():
    assert reward(f"36-19=17\n<answer>{RIGHT}</answer>", PROBLEM) == (1.0, 0.0, 1.0, "correct")


@pytest.mark.parametrize(
    "text", ["", "65", RIGHT, f"<answer>{RIGHT}", f"{RIGHT}</answer>", "</answer></think><answer>"]
)
def test_without_an_answer_block_nothing_is_earned(text):
    assert reward(text, PROBLEM) == (0.0, 0.0, 0.0, "no answer block after the thinking")


def test_text_between_thinking_and_answer_costs_the_format_point_only():
    assert reward(f"yes</think>So:<answer>{RIGHT}</answer>", PROBLEM)[:3] == (1.0, 0.0, 1.0)


def test_text_after_the_answer_costs_the_format_point_only():
    assert reward(completion(RIGHT) + " Done.", PROBLEM)[:3] == (1.0, 0.0, 1.0)


def test_repeating_the_think_tag_of_the_prompt_is_harmless():
    assert reward("<think>" + completion(RIGHT), PROBLEM).total == 2.0


def test_a_second_think_tag_costs_the_format_point_only():
    assert reward("so <think>" + completion(RIGHT), PROBLEM)[:3] == (1.0, 0.0, 1.0)


def test_white_space_around_and_inside_the_answer_is_harmless():
    assert reward(" yes </think>\n\n<answer>\n( (36 - 19)\t- 7 )\n + 55 </answer> ", PROBLEM).total == 2.0


@pytest.mark.parametrize(
    "end", ["\n", " \n\n", "<|endoftext|>", "<|im_end|>\n", "</s>", "<|eot_id|><|endoftext|>\n</s> "]
)
def test_an_end_marker_or_newline_after_the_answer_is_harmless(end):
    assert reward(completion(RIGHT) + end, PROBLEM).total == 2.0


# Which answer counts


def test_a_right_answer_inside_the_thinking_does_not_beat_a_wrong_final_one():
    text = f"maybe <answer>{RIGHT}</answer>\n</think>\n<answer>{WRONG}</answer>"
    assert reward(text, PROBLEM).answer == 0.0


def test_a_wrong_answer_inside_the_thinking_does_not_spoil_a_right_final_one():
    text = f"maybe <answer>{WRONG}</answer>\n</think>\n<answer>{RIGHT}</answer>"
    assert reward(text, PROBLEM).answer == 1.0


def test_an_answer_only_inside_the_thinking_pays_nothing():
    assert reward(f"maybe <answer>{RIGHT}</answer>\n</think>", PROBLEM).total == 0.0


def test_the_last_answer_block_decides_when_it_is_wrong():
    assert reward(completion(RIGHT) + f"<answer>{WRONG}</answer>", PROBLEM)[:3] == (0.0, 0.0, 0.0)


def test_a_stray_closing_tag_costs_the_format_point_only():
    assert reward(completion(RIGHT) + "</answer>", PROBLEM)[:3] == (1.0, 0.0, 1.0)
    assert reward(completion(RIGHT) + " so </answer>\n", PROBLEM)[:3] == (1.0, 0.0, 1.0)
    assert reward(f"</answer></think><answer>{RIGHT}</answer>", PROBLEM)[:3] == (2.0, 1.0, 1.0)


def test_the_last_answer_block_decides_when_it_is_right():
    assert reward(completion(WRONG) + f"<answer>{RIGHT}</answer>", PROBLEM)[:3] == (1.0, 0.0, 1.0)


# What is a legal expression


@pytest.mark.parametrize(
    "answer, nums, target",
    [
        ("2**3", [2, 3], 8),
        ("2* *3", [2, 3], 8),
        ("7//2", [7, 2], 3),
        ("7/ /2", [7, 2], 3),
        ("9**9**9", [9, 9, 9], 9**9),
        ("2.5 * 4", [2, 5, 4], 10),
        (".5*8", [5, 8], 4),
        ("--2+5", [2, 5], 7),
        ("2--5", [2, 5], 7),
        ("-", [], 0),
        ("+2+5", [2, 5], 7),
        ("2*-5", [2, 5], -10),
        ("2(5)", [2, 5], 10),
        ("(2)(5)", [2, 5], 10),
        ("2 5", [2, 5], 25),
        ("()2+5", [2, 5], 7),
        ("(2+5", [2, 5], 7),
        ("2+5)", [2, 5], 7),
        ("2+5+", [2, 5], 7),
        ("2+5=7", [2, 5], 7),
        ("2_5", [25], 25),
        ("1e1", [1, 1], 10),
        ("0x7", [0, 7], 7),
        ("5%2", [5, 2], 1),
        ("5^2", [5, 2], 25),
        ("max(5,2)", [5, 2], 5),
        (r"\boxed{5+2}", [5, 2], 7),
    ],
)
def test_an_illegal_expression_pays_nothing(answer, nums, target):
    assert answer_score(answer, nums, target) == 0.0


@pytest.mark.parametrize(
    "answer, nums, target",
    [
        ("(-53 - 53 + 54 + 65)", [53, 53, 54, 65], 13),
        ("-(96 - 58) + 92", [96, 58, 92], 54),
        ("-2+5", [2, 5], 3),
        ("5*(-2+4)", [2, 5, 4], 10),
        ("-2*3+10", [2, 3, 10], 4),
        ("-12/4/3+2", [12, 4, 3, 2], 1),
        ("-(-(7))", [7], 7),
    ],
)
def test_a_minus_sign_at_the_start_or_after_a_parenthesis_is_paid(answer, nums, target):
    assert reward(completion(answer), {"nums": nums, "target": target}) == (2.0, 1.0, 1.0, "correct")


def test_a_number_used_twice_pays_nothing():
    assert answer_score("2*2+3", [2, 3], 7) == 0.0


def test_a_number_left_out_pays_nothing():
    assert answer_score("2+3", [2, 3, 9], 5) == 0.0


def test_a_number_that_was_not_given_pays_nothing():
    assert answer_score("2+3-1", [2, 3], 4) == 0.0


def test_numbers_may_not_be_joined_or_split():
    assert answer_score("23", [2, 3], 23) == answer_score("2+3", [23], 5) == 0.0


def test_a_number_given_twice_must_be_used_twice():
    assert answer_score("7*7", [7, 7], 49) == 1.0
    assert answer_score("7", [7, 7], 7) == 0.0


def test_leading_zeros_pay_nothing():
    assert answer_score("07+2", [7, 2], 9) == 0.0


def test_zero_itself_is_a_number():
    assert answer_score("0+7", [0, 7], 7) == 1.0


@pytest.mark.parametrize("answer", ["１+2", "١+2", "1²+2", "1＋2", "½*2"])
def test_unicode_digits_and_plus_signs_are_refused(answer):
    assert reward(completion(answer), {"nums": [1, 2], "target": 3})[:3] == (0.5, 0.5, 0.0)


@pytest.mark.parametrize("answer, target", [("6−2", 4), ("6×2", 12), ("6÷2", 3), ("6∕2", 3), ("6·2", 12), ("6–2", 4)])
def test_unicode_operators_are_refused(answer, target):
    assert reward(completion(answer), {"nums": [6, 2], "target": target})[:3] == (0.5, 0.5, 0.0)


def test_values_are_exact_rationals():
    assert answer_score("8/(3-8/3)", [8, 3, 8, 3], 24) == 1.0
    assert evaluate("1/3", [1, 3]) == Fraction(1, 3)


def test_a_value_that_only_rounds_to_the_target_pays_nothing():
    nums, answer = [10**17, 3, 1], f"({10**17}*3+1)/3"
    assert answer_score(answer, [*nums, 3], 10**17) == 0.0


def test_multiplication_binds_tighter_than_addition():
    assert evaluate("1+2*3-8/4", [1, 2, 3, 8, 4]) == 5


def test_operators_of_one_rank_are_left_associative():
    assert evaluate("10-3-2", [10, 3, 2]) == 5
    assert evaluate("24/4/2*3", [24, 4, 2, 3]) == 9


@pytest.mark.parametrize(
    "answer, nums", [("1/0", [1, 0]), ("5/(3-3)", [5, 3, 3]), ("0/0", [0, 0]), ("1/0*0", [1, 0, 0])]
)
def test_division_by_zero_is_a_reason_not_an_exception(answer, nums):
    assert reward(completion(answer), {"nums": nums, "target": 1}) == (1.0, 1.0, 0.0, "divides by zero")


def test_an_answer_of_a_thousand_characters_is_read_and_a_longer_one_is_not():
    deepest = "(" * 495 + "1" + ")" * 495
    assert answer_score(deepest + "+2" + " " * 7, [1, 2], 3) == 1.0
    assert answer_score(deepest + "+2" + " " * 8, [1, 2], 3) == 0.0


@pytest.mark.parametrize(
    "answer, why",
    [
        (RIGHT, "correct"),
        (WRONG, "equals 79, not 65"),
        ("36/(19+7)*55", "equals 990/13, not 65"),
        ("36+55", "uses 36, 55 instead of each of [19, 36, 55, 7] once"),
        ("", "uses no number instead of each of [19, 36, 55, 7] once"),
        ("36+19+55+7=65", "'=' is not part of a legal expression"),
        ("(36+19+55+7", "unfinished expression"),
        ("36+19+55+7)", "unbalanced parentheses"),
        ("36+19+55*/7", "'/' out of place"),
        ("1" * 1001, "answer longer than 1000 characters"),
    ],
)
def test_why_says_what_is_wrong_in_a_few_words(answer, why):
    assert reward(completion(answer), PROBLEM).why == why


# Hostile text

FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>(1+2)", "(3*4)</answer>",
    "</think><answer>1+2+3+4</answer>", "</", "<", ">",
    "1", "2", "3", "4", "07", "2.5", "1e999", "9**9**9", "9" * 400, "1/0", "1/(2-2)",
    "(", ")", "()", "((((((((", "-(", "-1", "1-2-3-4", "[1", "]", "+", "-", "*", "/", "//", ".", "=", ",", "e", "_",
    "０１２", "٣", "²", "½", "𝟙", "×", "÷", "−", "\u200b", "\u3000", "\x00", "\x1c", "\ud800", " ", "\n", "\t",
    "</s>", "<|endoftext|>", "<|im_end|>\n", "<|eot_id|> ", "<|end_of_text|>",
    "__import__('os')", "import os", "{nums}", "%s", "\\boxed{",
    "Step 1: 1 + 2 = 3\n", "Step 2: 3 + 3 = 6 ", "Step", "Step 1:", " = 10", "\n10 = 10", "<reasoning>", "</reasoning>",
]  # fmt: skip
SMALL = {"nums": [1, 2, 3, 4], "target": 10}
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def check_bounded(text):
    for style, prompt in countdown_rewards.PROMPTS.items():
        start = time.process_time()
        result = reward(text, SMALL, style)
        seconds = time.process_time() - start
        assert type(result) is Reward
        assert result.total == prompt.weights[0] * result.format + prompt.weights[1] * result.answer
        assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
        assert 0 < len(result.why) <= 160 and result.why.isprintable()
        assert seconds < 1
    start = time.process_time()
    assert lenient(text, SMALL) in (0.0, 1.0)
    assert final_answer(text, SMALL) is None or Fraction(final_answer(text, SMALL)) is not None
    assert time.process_time() - start < 1


@settings(max_examples=2500)
@given(st.text(max_size=300))
def test_arbitrary_text_gets_a_reward_within_a_second(text):
    check_bounded(text)


@settings(max_examples=3500)
@given(hostile)
def test_hostile_text_gets_a_reward_within_a_second(text):
    check_bounded(text)


@settings(max_examples=1500)
@given(st.text(max_size=300))
def test_arbitrary_answers_get_a_reward_within_a_second(answer):
    check_bounded(completion(answer))


@settings(max_examples=2500)
@given(st.text("01234+-*/(). ", max_size=60) | hostile)
@example("(" * 499 + "1" + ")" * 499 + "+")
@example("1+" * 499 + "1")
def test_hostile_answers_get_a_reward_within_a_second(answer):
    check_bounded(completion(answer))


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_megabyte_of_one_fragment_gets_a_reward_within_a_second(fragment):
    check_bounded(fragment * (1_000_000 // len(fragment)))
    check_bounded(completion(fragment * (1_000_000 // len(fragment))))


@settings(max_examples=60, phases=[Phase.generate], report_multiple_bugs=False)  # shrinking megabytes takes minutes
@given(hostile, hostile.filter(len), hostile)
def test_a_megabyte_of_mixed_fragments_gets_a_reward_within_a_second(head, body, tail):
    check_bounded(head + body * (1_000_000 // len(body)) + tail)


@pytest.mark.parametrize("marker", END_MARKERS)
def test_a_megabyte_of_spaced_end_markers_gets_a_reward_within_a_second(marker):
    check_bounded("a" + f"{marker} " * (1_000_000 // len(marker)))


# Against an independent evaluation


@st.composite
def trees(draw, nums):
    """A number, or (operator, left, right), over `nums` in this order."""
    if len(nums) == 1:
        return nums[0]
    cut = draw(st.integers(1, len(nums) - 1))
    return draw(st.sampled_from("+-*/")), draw(trees(nums[:cut])), draw(trees(nums[cut:]))


def value_of(tree):
    if isinstance(tree, int):
        return Fraction(tree)
    operator, left, right = tree[0], value_of(tree[1]), value_of(tree[2])
    return {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}[operator](
        left, right
    )


def text_of(tree, draw):
    """The tree as text, with the parentheses it needs and some that it does not, and some white space."""
    if isinstance(tree, int):
        return draw(st.sampled_from(["{}", "({})", " {}", "{}\n"])).format(tree)
    rank = {"+": 1, "-": 1, "*": 2, "/": 2}
    sides = []
    for side, least in ((tree[1], rank[tree[0]]), (tree[2], rank[tree[0]] + 1)):
        needed = not isinstance(side, int) and rank[side[0]] < least
        sides.append(("({})" if needed or draw(st.booleans()) else "{}").format(text_of(side, draw)))
    return tree[0].join(sides)


@st.composite
def expressions(draw):
    """(text, tree, numbers in some order)."""
    nums = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
    tree = draw(trees(nums))
    return text_of(tree, draw), tree, draw(st.permutations(nums))


@settings(max_examples=1000)
@given(expressions())
def test_evaluate_agrees_with_a_recursive_evaluation_in_fractions(expression):
    text, tree, nums = expression
    try:
        expected = value_of(tree)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="divides by zero"):
            evaluate(text, nums)
    else:
        assert evaluate(text, nums) == expected


@settings(max_examples=500)
@given(expressions(), st.integers(-10_000, 10_000))
def test_only_the_exact_target_pays(expression, target):
    text, tree, nums = expression
    try:
        value = value_of(tree)
    except ZeroDivisionError:
        assume(False)
    assert answer_score(text, nums, target) == (value == target)
    if value.denominator == 1:
        assert answer_score(text, nums, int(value)) == 1.0


def derivable(tokens):
    """True if the grammar `S -> E | -E, E -> number | (S) | E op E` produces the tokens: undo its rules to the end."""
    text, before = "^" + "".join("n" if token.isdigit() else token for token in tokens), None
    while text != before:
        before = text
        text = re.sub(r"n[-+*]n", "n", text).replace("(n)", "n")
        text = re.sub(r"([\^(])-n(?=[-+*)]|$)", r"\1n", text)
    return text == "^n"


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(["1", "1", "+", "-", "*", "(", ")"]), max_size=9))
@example(["(", "1", ")", "*", "(", "1", "-", "(", "1", ")", ")"])
@example(["-", "1", "-", "1"])
@example(["1", "-", "-", "1"])
def test_evaluate_accepts_exactly_what_the_grammar_derives(tokens):
    try:
        evaluate(" ".join(tokens), [1] * tokens.count("1"))
        accepted = True
    except ValueError:
        accepted = False
    assert accepted == derivable(tokens)


# Speed


def test_twenty_thousand_typical_completions_are_scored_a_second():
    problems = generate_problems("train", 500, seed=1)
    thinking = "".join(f"{a}+{a + 7}={2 * a + 7},{2 * a + 7}-12={2 * a - 5} no\n" for a in range(20))
    joints = ("+", " - ", "*", "/", " + ", ")-(", "=", "/(", " * ", ") + (")
    cases = [(completion(f"({joint.join(map(str, p['nums']))})", thinking), p) for p in problems for joint in joints]
    assert len(cases) == 5000
    seconds = []
    for _ in range(5):
        start = time.process_time()
        for text, problem in cases:
            reward(text, problem)
        seconds.append(time.process_time() - start)
    assert len(cases) / min(seconds) >= 20_000


@needs_data
def test_ten_thousand_real_completions_are_read_leniently_a_second():
    rows = [json.loads(line) for line in open(DATA / "countdown_completions.jsonl")]
    seconds = []
    for _ in range(40):  # the fastest: a virtual core's speed comes and goes
        start = time.process_time()
        for row in rows:
            lenient(row["completion"], row)
        seconds.append(time.process_time() - start)
    assert len(rows) / min(seconds) >= 10_000


# The generator


@pytest.fixture(scope="module")
def generated():
    return generate_problems("train", 4000, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return load_problems("test")


def key(problem):
    return (*sorted(problem["nums"]), problem["target"])


def test_every_generated_problem_is_solvable(generated, held_out):
    assert all(p["target"] in reachable(p["nums"]) for p in generated[:1000] + held_out)


def test_generated_problems_have_three_or_four_numbers(generated, held_out):
    assert {len(p["nums"]) for p in generated} == {len(p["nums"]) for p in held_out} == {3, 4}


def test_generated_numbers_lie_between_1_and_99(generated):
    numbers = {n for p in generated for n in p["nums"]}
    assert numbers == set(range(1, 100))


def test_generated_targets_lie_between_10_and_100(generated):
    assert {p["target"] for p in generated} == set(range(10, 101))


def test_generated_problems_hold_plain_integers(generated):
    assert all(type(n) is int for p in generated for n in (*p["nums"], p["target"]))


def test_the_splits_have_the_promised_sizes(held_out):
    assert len(held_out) == 512
    assert len(load_problems("train", seed=3)) == 16_384


def test_no_generated_problem_occurs_twice(generated):
    assert len({key(p) for p in generated}) == len(generated)


def test_generated_train_and_test_share_no_problem_in_any_order_of_numbers(generated, held_out):
    other_seed = generate_problems("train", 2000, seed=1)
    assert {key(p) for p in generated + other_seed}.isdisjoint(key(p) for p in held_out)


def test_whether_a_problem_is_held_out_does_not_depend_on_the_order_of_its_numbers():
    for a in range(1, 100):
        assert countdown_rewards.is_test_problem([a, 5, 9], 30) == countdown_rewards.is_test_problem([9, a, 5], 30)


def test_the_generator_is_reproducible_from_its_seed():
    assert generate_problems("train", 50, seed=7) == generate_problems("train", 50, seed=7)


def test_different_seeds_generate_different_problems():
    first, second = (generate_problems("train", 50, seed) for seed in (7, 8))
    assert {key(p) for p in first}.isdisjoint(key(p) for p in second)


def test_the_test_split_is_the_same_for_every_seed(held_out):
    assert load_problems("test", seed=123) == held_out


def test_half_of_the_generated_problems_have_three_numbers(generated):
    assert sum(len(p["nums"]) == 3 for p in generated) / len(generated) == pytest.approx(0.52, abs=0.03)


@pytest.mark.parametrize("count, share", [(3, 0.63), (4, 0.39)])
def test_plus_and_minus_suffice_for_the_documented_share(generated, count, share):
    problems = [p for p in generated if len(p["nums"]) == count]
    easy = sum(p["target"] in reachable(p["nums"], "+-") for p in problems)
    assert easy / len(problems) == pytest.approx(share, abs=0.035)


def test_reachable_lists_every_value_of_two_numbers():
    assert reachable([6, 3]) == {9, 3, 18, 2}
    assert reachable([3, 6]) == {9, 3, 18, 2}


def test_reachable_divides_only_without_remainder_and_never_by_zero():
    assert reachable([0, 5]) == {5, 0}
    assert reachable([5, 3]) == {8, 2, 15}


def test_reachable_with_plus_and_minus_only_neither_multiplies_nor_divides():
    assert reachable([6, 3], "+-") == {9, 3}


def test_subgroups_name_the_count_and_whether_plus_and_minus_suffice():
    assert subgroups({"nums": [1, 2, 3], "target": 6}) == ["3_numbers", "plus_minus"]
    assert subgroups({"nums": [5, 7, 9, 2], "target": 315}) == ["4_numbers", "needs_muldiv"]


@given(st.lists(st.integers(1, 99), min_size=3, max_size=5), st.integers(1, 200))
def test_the_subgroup_plus_minus_is_what_the_search_finds(nums, target):
    assert ("plus_minus" in subgroups({"nums": nums, "target": target})) == (target in reachable(nums, "+-"))


def test_subgroups_of_five_numbers_take_less_than_a_tenth_of_a_millisecond():
    start = time.process_time()
    for target in range(1000):
        subgroups({"nums": [3, 14, 15, 92, 65], "target": target})
    assert time.process_time() - start < 0.1


def test_subgroups_of_many_numbers_name_the_count_only():
    assert subgroups({"nums": list(range(1, 31)), "target": 6}) == ["30_numbers"]


# Problems from files

ROWS = [{"nums": [n, n + 1, 3 * n], "target": 10 + n} for n in range(1, 41)]


@pytest.fixture
def lookups(tmp_path, monkeypatch):
    """No network: each host that somebody looks up is refused and recorded. `datasets` keeps its copies in tmp_path."""
    hosts = []

    def refuse(host, *_, **__):
        hosts.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return hosts


@pytest.fixture
def write(tmp_path, lookups):
    """Write rows (or plain text) to a file of the given name; returns its path."""

    def write_file(name, rows):
        path = tmp_path / name
        suffix = path.suffix.lower()
        if isinstance(rows, str):
            path.write_text(rows)
        elif suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif suffix == ".gz":
            path.write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
        elif suffix == ".arrow":
            datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
            (saved,) = (tmp_path / "saved").glob("*.arrow")
            saved.rename(path)
        elif suffix == ".json":
            path.write_text(json.dumps(rows))
        elif suffix == ".csv":
            pandas.DataFrame(rows).to_csv(path, index=False)
        else:
            pandas.DataFrame(rows).to_parquet(path)
        return str(path)

    return write_file


@pytest.mark.parametrize(
    "name",
    [
        "rows.jsonl",
        "rows.json",
        "rows.csv",
        "rows.parquet",
        "ROWS.JSONL",
        "rows.jsonl.gz",
        "rows.json.gz",
        "rows.arrow",
    ],
)
def test_all_rows_of_a_file_are_loaded_in_order(write, name):
    assert load_problems("all", write(name, ROWS)) == ROWS


def test_reading_a_local_file_asks_nothing_of_the_network(write, lookups):
    load_problems("all", write("rows.jsonl", ROWS))
    assert lookups == []


def test_loaded_numbers_are_plain_integers_whatever_the_file_holds(write):
    problems = load_problems("all", write("rows.jsonl", [{"nums": [1.0, 2.0], "target": "3"}]))
    assert problems == [{"nums": [1, 2], "target": 3}]
    assert all(type(n) is int for n in (*problems[0]["nums"], problems[0]["target"]))


@pytest.mark.parametrize(
    "nums", ["30,100,93", "[30 100 93]", "[30, 100, 93]", "30, 100, 93", " [ 30 100  93 ] ", '["30", "100.0", "93"]']
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_numbers_may_be_a_text_with_commas_or_in_brackets(write, name, nums):
    path = write(name, [{"nums": nums, "target": 37}])
    assert load_problems("all", path) == [{"nums": [30, 100, 93], "target": 37}]


def test_the_column_of_the_numbers_may_be_called_numbers(write):
    rows = [{"numbers": row["nums"], "target": row["target"]} for row in ROWS]
    assert load_problems("all", write("rows.jsonl", rows)) == ROWS


def test_columns_that_are_not_needed_are_ignored(write):
    assert load_problems("all", write("rows.jsonl", [{**row, "comment": "x"} for row in ROWS])) == ROWS


def test_train_and_test_split_a_file_without_overlap_or_loss(write):
    path = write("rows.jsonl", ROWS)
    train, test = load_problems("train", path), load_problems("test", path)
    assert (len(train), len(test)) == (36, 4)
    assert sorted(map(key, train + test)) == sorted(map(key, ROWS))


def test_the_split_of_a_file_depends_on_the_seed_only(write):
    path = write("rows.jsonl", ROWS)
    assert load_problems("test", path, 5) == load_problems("test", path, 5) != load_problems("test", path, 6)


def test_a_file_of_two_rows_gives_one_to_each_split(write):
    path = write("rows.jsonl", ROWS[:2])
    assert sorted(map(key, load_problems("train", path) + load_problems("test", path))) == sorted(map(key, ROWS[:2]))


def error_of(split, path):
    with pytest.raises(ValueError) as caught:
        load_problems(split, path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 400 and path in message
    return message


def test_a_missing_file_is_a_sentence(tmp_path):
    assert "No such data file" in error_of("train", str(tmp_path / "none.jsonl"))


def test_a_directory_is_a_sentence_of_its_own(tmp_path):
    assert error_of("train", str(tmp_path)) == f"{tmp_path} is a directory: name one of its files."


def test_an_unknown_extension_is_a_sentence_that_lists_the_known_ones(write):
    message = error_of("train", write("rows.txt", "1"))
    assert all(extension in message for extension in (".jsonl", ".json", ".csv", ".parquet"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_an_empty_file_is_a_sentence(write, name):
    assert "is empty" in error_of("train", write(name, ""))


@pytest.mark.parametrize("name, text", [("rows.csv", "nums,target\n"), ("rows.json", "[]")])
def test_a_file_without_rows_is_a_sentence(write, name, text):
    error_of("train", write(name, text))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_an_unreadable_file_is_a_sentence(write, name):
    assert "could not be read" in error_of("train", write(name, '{"nums": [1, 2'))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_missing_column_is_named(write, name):
    assert "target missing" in error_of("train", write(name, [{"nums": [1, 2], "result": 3}]))


@pytest.mark.parametrize(
    "bad",
    [
        {"nums": [1.5, 2], "target": 3},
        {"nums": [1, 2], "target": 3.5},
        {"nums": [], "target": 3},
        {"nums": None, "target": 3},
        {"nums": [1, None], "target": 3},
        {"nums": [1, 2], "target": None},
        {"nums": [1, 2]},
        {"nums": [-1, 2], "target": 1},
        {"nums": list(range(400)), "target": 1},
    ],
)
def test_a_bad_row_is_named(write, bad):
    assert ", row 2:" in error_of("train", write("rows.jsonl", [ROWS[0], bad, ROWS[1]]))


@pytest.mark.parametrize(
    "nums",
    ["[1, 2", "1 2", "7", "{}", "null", "[[1], 2]", '["a"]', "[true, 2]", "[NaN]", "[1e999]", "[]", ",", "[-1, 2]"],
)
def test_a_bad_cell_of_a_csv_file_is_named(write, nums):
    assert ", row 2:" in error_of("train", write("rows.csv", [ROWS[0], {"nums": nums, "target": 3}, ROWS[1]]))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_broken_line_is_named_as_an_editor_counts(tmp_path, lookups, name):
    good, broken = json.dumps(ROWS[0]), '{"nums": [1, 2], "target": '
    for lines, number in (([good, broken, good], 2), ([broken, good], 1), ([good, "", good, "no json"], 4)):
        text = "\n".join(lines).encode()
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        assert f"could not be read: JSON parse error in line {number}: " in error_of("train", str(path))


def test_a_file_that_only_calls_itself_compressed_is_a_sentence(write, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(b"no gzip")
    assert "could not be read" in error_of("train", str(path))


def test_a_compressed_file_without_rows_is_a_sentence(tmp_path, lookups):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    assert "has no rows" in error_of("train", str(path))


def test_a_whole_number_too_large_for_a_float_is_a_bad_row(write):
    assert ", row 2:" in error_of("train", write("rows.csv", [ROWS[0], {"nums": f"[{10**400}]", "target": 3}]))


def test_one_row_cannot_be_split(write):
    path = write("rows.jsonl", ROWS[:1])
    assert "at least 2" in error_of("train", path)
    assert "at least 2" in error_of("test", path)


def test_one_row_is_enough_to_evaluate_on(write):
    assert load_problems("all", write("rows.jsonl", ROWS[:1])) == ROWS[:1]


# Real cases


@needs_data
def test_the_verdict_agrees_with_every_labelled_real_completion():
    rows = [json.loads(line) for line in open(DATA / "countdown_completions.jsonl")]
    assert len(rows) == 500
    assert [r for r in rows if bool(reward(r["completion"], r).answer) != r["exact_last"]] == []


@needs_data
def test_every_real_problem_is_loaded_and_solvable(lookups):
    problems = load_problems("all", str(DATA / "countdown_problems.jsonl"))
    assert len(problems) == 1024
    assert [p for p in problems if p["target"] not in reachable(p["nums"])] == []


# The prompt


@pytest.mark.parametrize("tokenizer", [SimpleNamespace(chat_template=None), SimpleNamespace()])
def test_without_a_chat_template_the_prompt_is_plain_and_opens_the_thinking(tokenizer):
    assert format_prompt({"nums": [19, 36, 55, 7], "target": 65}, tokenizer) == (
        "User: Using the numbers [19, 36, 55, 7], create an equation that equals 65.\nAssistant: <think>"
    )


def test_with_a_chat_template_the_prompt_is_the_users_turn_and_opens_the_thinking():
    def apply_chat_template(messages, tokenize, add_generation_prompt):
        assert [m["role"] for m in messages] == ["user"] and not tokenize and add_generation_prompt
        return f"[user]{messages[0]['content']}[assistant]"

    tokenizer = SimpleNamespace(chat_template="...", apply_chat_template=apply_chat_template)
    assert format_prompt({"nums": [3, 4], "target": 7}, tokenizer) == (
        "[user]Using the numbers [3, 4], create an equation that equals 7.[assistant]<think>"
    )


@pytest.mark.parametrize("style", countdown_rewards.PROMPTS)
def test_every_prompt_holds_the_numbers_and_the_target_and_ends_with_the_opening(style):
    prompt = format_prompt(PROBLEM, SimpleNamespace(chat_template=None), style)
    assert "[19, 36, 55, 7]" in prompt and "65" in prompt
    assert prompt.endswith(countdown_rewards.PROMPTS[style].opening)


@pytest.mark.parametrize("style", ["plain", "steps"])
def test_prompts_for_base_models_use_no_template(style):
    tokenizer = SimpleNamespace(chat_template="...", apply_chat_template=lambda *_, **__: "template")
    assert format_prompt(PROBLEM, tokenizer, style).startswith("Using the numbers")


# Other forms of the answer

THREE = {"nums": [1, 2, 3], "target": 1}


def steps_reward(answer, problem=THREE):
    return reward(f"Let us see.\n<answer>\n{answer}\n</answer>", problem, "steps")


@pytest.mark.parametrize(
    "answer",
    [
        "Step 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1",
        "Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1",
        "1+2=3\n3/3=1",
        "Step 1: 3 - 2 = 1.\nStep 2: 1 * 1 = 1.",
        "(1 + 2) / 3",
        "(1 + 2) / 3 = 1",
        "(1 + 2) / 3 = 1.0",
        "(1 + 2) / 3 = 3/3.",
        "-2 + 1 * 3",
    ],
)
def test_steps_or_one_equation_earn_the_full_reward(answer):
    assert steps_reward(answer) == (2.0, 1.0, 1.0, "correct")


def test_steps_may_pass_through_negative_and_decimal_numbers():
    assert steps_reward("Step 1: 3 - 5 = -2\nStep 2: -2 + 12 = 10", {"nums": [3, 5, 12], "target": 10}).answer == 1
    assert steps_reward("Step 1: 5 / 2 = 2.5\nStep 2: 2.5 * 4 = 10", {"nums": [2, 4, 5], "target": 10}).answer == 1


@pytest.mark.parametrize(
    "answer, why",
    [
        ("Step 1: 1 + 2 = 4\nStep 2: 4 - 3 = 1", "'Step 1: 1 + 2 = 4' is not true"),
        ("Step 1: 1 + 2 = 3\nStep 2: 3 - 2 = 1", "'Step 2: 3 - 2 = 1' takes 2, which is not there"),
        ("Step 1: 3 - 2 = 1", "leaves 1, 1 instead of one number"),
        ("Step 1: 1 + 2 = 3\nStep 2: 3 + 3 = 6", "equals 6, not 1"),
        ("Step 1: 2 - 1 = 1\nStep 2: 3 - 3 = 0", "'Step 2: 3 - 3 = 0' takes 3, which is not there"),
        ("Step 1: 1 - 1 = 0", "'Step 1: 1 - 1 = 0' takes 1, which is not there"),
        ("Step 1: 2 / 0 = 0\n1", "'Step 1: 2 / 0 = 0' takes 0, which is not there"),
        ("first 1 + 2 = 3\nthen 3 / 3 = 1", "'first 1 + 2 = 3' is not a step"),
        ("(1 + 2) / 3 = 2", "'2' is not what the left side equals: 1"),
        ("(1 + 2) / 3 = 1/0", "'1/0' is not what the left side equals: 1"),
        ("(1 + 2) / 3 = 1e0", "'1e0' is not what the left side equals: 1"),
        ("(1 + 2) / 3 =", "'' is not what the left side equals: 1"),
        ("1 + 2 + 3", "equals 6, not 1"),
    ],
)
def test_a_wrong_step_earns_no_answer_point_and_why_says_which(answer, why):
    assert steps_reward(answer)[2:] == (0.0, why)


def test_division_by_zero_in_a_step_is_refused():
    assert steps_reward("1 - 1 = 0\n5 / 0 = 5", {"nums": [1, 1, 5], "target": 5})[2:] == (0.0, "divides by zero")


@pytest.mark.parametrize("answer", ["", " \n ", "1 = I do not know", "+", "( )"])
def test_an_answer_block_without_steps_or_an_equation_earns_half_a_format_point(answer):
    assert steps_reward(answer)[:2] == (0.5, 0.5)


@pytest.mark.parametrize("answer", [" ", "\n", "()", "+-"])
def test_an_answer_block_without_a_number_earns_half_a_format_point(answer):
    assert reward(completion(answer), PROBLEM)[:2] == (0.5, 0.5)


def test_words_in_the_answer_block_of_steps_earn_half_a_format_point():
    assert steps_reward("I do not know").format == 0.5 and steps_reward("Step 1: 1 + 2 = 3").format == 1.0


def test_sampling_of_steps_stops_at_the_closing_tag_and_keeps_it():
    assert countdown_rewards.PROMPTS["steps"].stop == ("</answer>",)


def test_the_reward_follows_the_tags_of_the_prompt():
    text = f"<reasoning>36-19=17</reasoning>\n<answer>{RIGHT}</answer>"
    assert reward(text, PROBLEM, "reasoning") == (3.0, 1.0, 1.0, "correct")  # a right answer weighs twice the form
    assert reward(text, PROBLEM).format == 0.0
    assert reward(completion(RIGHT), PROBLEM, "reasoning").format == 0.0


def test_a_tag_that_the_model_has_to_open_itself_is_required():
    assert reward(f"36-19=17</reasoning>\n<answer>{RIGHT}</answer>", PROBLEM, "reasoning").format == 0.0


@pytest.mark.parametrize(
    "text",
    [
        f"<answer>{RIGHT} = 65</answer>",
        f"so it is\n{RIGHT}",
        "\\boxed{((36-19)-7)+55}",
        "The equation:\n**((36 − 19) − 7) + 55 = 65**",
        f"<answer>{RIGHT}</answer> no, <answer>{WRONG}</answer>",
        f"Thus {RIGHT} = 65, so we are done.",
        f"The equation: {RIGHT}=65",
        f"\\[ {RIGHT} = 65 \\]",
        f"<answer>{RIGHT[:5]}\n{RIGHT[5:]}</answer>",
        "so -7 + 36 - 19 + 55",
        f"- {RIGHT}",
        f"{RIGHT}<|im_end|>",
        f"ответ {RIGHT}",
    ],
)
def test_lenient_finds_a_right_solution_wherever_it_stands(text):
    assert lenient(text, PROBLEM) == 1.0


@pytest.mark.parametrize(
    "text", ["", "65", "65 = 65", WRONG, "36 + 55", "the answer is ((36-19)-7)+54 = 65", f"{RIGHT}²"]
)
def test_lenient_finds_nothing_where_there_is_no_solution(text):
    assert lenient(text, PROBLEM) == 0.0


def test_the_vote_of_a_completion_is_the_value_of_its_answer():
    assert final_answer(completion(RIGHT), PROBLEM) == final_answer(completion("55+((36-19)-7)"), PROBLEM) == "65"
    assert final_answer(completion("36+55"), PROBLEM) is None and final_answer("65", PROBLEM) is None


@needs_data
def test_lenient_misses_no_real_completion_that_is_right_without_its_form():
    # It also accepts 15 in which a right expression stands in the text and is not the last one.
    rows = [json.loads(line) for line in (DATA / "countdown_completions.jsonl").open()]
    found = [lenient(row["completion"], row) for row in rows]
    missed = [row for row, value in zip(rows, found) if row["lenient_last"] and not value]
    assert missed == [] and sum(found) - sum(row["lenient_last"] for row in rows) == 15
