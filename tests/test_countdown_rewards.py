"""Countdown: the reward of a completion, what a legal expression is, the generator, files."""

import json
import random
import re
import time
from fractions import Fraction
from pathlib import Path
from unittest import mock

import pytest

import countdown_rewards
from countdown_rewards import (
    HUB_DATASET,
    PROMPTS,
    generate_problems,
    judge,
    load_problems,
    problem_key,
    reachable,
    read_answer,
    reward,
    subgroups,
    to_problem,
)

# Public problems and completions with other people's labels: docs/agreement.md.
DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of public data is absent")


def real(name):
    return [json.loads(line) for line in open(DATA / f"{name}.jsonl", encoding="utf-8")]


def of(target, *nums, style="short"):
    return {"nums": list(nums), "target": target, "style": style}


def completion(answer, thinking="36-19=17,17-7=10,10+55=65 yes"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


# The reward of a completion

RIGHT = "((36-19)-7)+55"
WRONG = "((36-19)+7)+55"
PROBLEM = of(65, 19, 36, 55, 7)
TAGS = of(65, 19, 36, 55, 7, style="reasoning")
STEPS = of(1, 1, 2, 3, style="steps")
FULL = (2.0, 1.0, 1.0)  # total, format, answer
FORM = (1.0, 1.0, 0.0)
TAGS_ALONE = (0.5, 0.5, 0.0)
VALUE_ALONE = (1.0, 0.0, 1.0)
NOTHING = (0.0, 0.0, 0.0)
ROWS = [
    (completion(RIGHT), PROBLEM, FULL, "correct"),
    (completion(WRONG), PROBLEM, FORM, "equals 79, not 65"),
    (completion("36/(19+7)*55"), PROBLEM, FORM, "equals 990/13, not 65"),
    (completion("36+55"), PROBLEM, FORM, "uses 36, 55 instead of each"),
    (completion("36+19+55+7=65"), PROBLEM, TAGS_ALONE, "it has '='"),
    (completion("(36+19+55+7"), PROBLEM, TAGS_ALONE, "'(' was never closed"),
    (completion("36+19+55+7)"), PROBLEM, TAGS_ALONE, "unmatched ')'"),
    (completion("36+19+55*/7"), PROBLEM, TAGS_ALONE, "not an expression"),
    (completion("1" * 1001), PROBLEM, TAGS_ALONE, "more than 1000 characters"),
    (completion("(" * 499 + "1" + ")" * 499 + "+"), PROBLEM, TAGS_ALONE, "not an expression"),
    (completion("1+" * 499 + "1"), PROBLEM, FORM, "uses 1, 1, 1, 1, 1, 1, 1, 1"),
    (completion(""), PROBLEM, TAGS_ALONE, "not an expression"),
    (completion(" \n"), PROBLEM, TAGS_ALONE, "not an expression"),
    (completion("()"), PROBLEM, TAGS_ALONE, "it has '()'"),
    (completion("+-"), PROBLEM, TAGS_ALONE, "it has '+'"),
    # The tags
    (" yes </think>\n\n<answer>\n( (36 - 19)\t- 7 )\n + 55 </answer> ", PROBLEM, FULL, ""),
    (f"36-19=17\n<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "correct; format: no </think>"),
    (f"<answer>{WRONG}</answer>", PROBLEM, NOTHING, "equals 79, not 65; format: no </think>"),
    (f"yes</think>So:<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "text before the answer"),
    (completion(RIGHT) + " Done.", PROBLEM, VALUE_ALONE, "format: text after </answer>"),
    (completion(RIGHT) + "</answer>", PROBLEM, VALUE_ALONE, "format: text after </answer>"),
    (completion(RIGHT) + " so </answer>\n", PROBLEM, VALUE_ALONE, "text after </answer>"),
    (completion(WRONG) + f"<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "two answer blocks"),
    (completion(RIGHT) + f"<answer>{WRONG}</answer>", PROBLEM, NOTHING, "two answer blocks"),
    (completion(f"<answer>{RIGHT}"), PROBLEM, VALUE_ALONE, "format: two answer blocks"),
    (completion(RIGHT + "</think>"), PROBLEM, NOTHING, "format: a second </think>"),
    ("<think>" + completion(RIGHT), PROBLEM, FULL, ""),
    ("so <think>" + completion(RIGHT), PROBLEM, VALUE_ALONE, "format: a second <think>"),
    (f"</answer></think><answer>{RIGHT}</answer>", PROBLEM, FULL, ""),
    # A block inside the thinking counts neither for nor against the last one.
    (f"<answer>{RIGHT}</answer></think><answer>{WRONG}</answer>", PROBLEM, FORM, "equals 79"),
    (f"<answer>{WRONG}</answer></think><answer>{RIGHT}</answer>", PROBLEM, FULL, ""),
    (
        f"maybe <answer>{RIGHT}</answer>\n</think>",
        PROBLEM,
        NOTHING,
        "no answer block; format: no <answer>",
    ),
    ("", PROBLEM, NOTHING, "; format: no </think>"),
    (
        "65",
        PROBLEM,
        NOTHING,
        "no answer block, for the completion was cut off; format: no </think>",
    ),
    (RIGHT, PROBLEM, NOTHING, "no answer block, for the completion was cut off"),
    (
        f"{RIGHT}</think>",
        PROBLEM,
        NOTHING,
        "no answer block; format: no <answer>",
    ),
    (f"<answer>{RIGHT}", PROBLEM, NOTHING, "no answer block, for the completion was cut off"),
    (
        f"</think><answer>{RIGHT}",
        PROBLEM,
        NOTHING,
        "was cut off; format: no </answer>",
    ),
    (f"{RIGHT}</answer>", PROBLEM, NOTHING, "no answer block, for the completion was cut off"),
    (
        "</answer></think><answer>",
        PROBLEM,
        NOTHING,
        "no answer block, for the completion was cut off",
    ),
    ("<reasoning>17", TAGS, NOTHING, "no answer block, for the completion was cut off"),
    # An end marker or a newline behind the answer is harmless.
    (completion(RIGHT) + "\n", PROBLEM, FULL, ""),
    (completion(RIGHT) + " \n\n", PROBLEM, FULL, ""),
    (completion(RIGHT) + "</s>", PROBLEM, FULL, ""),
    (completion(RIGHT) + "<|im_end|>\n", PROBLEM, FULL, ""),
    (completion(RIGHT) + "<|eot_id|><|endoftext|>\n</s> ", PROBLEM, FULL, ""),
    # Tags and weights are those of the prompt.
    (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", TAGS, (3, 1, 1), "correct"),
    (f"<reasoning>17</reasoning>\n<answer>{RIGHT}</answer>", PROBLEM, VALUE_ALONE, "no </think>"),
    (completion(RIGHT), TAGS, (2, 0, 1), "no <reasoning> at the start"),
    (f"17</reasoning>\n<answer>{RIGHT}</answer>", TAGS, (2, 0, 1), "no <reasoning> at the start"),
    ("so\n<answer>3-2*1</answer>", STEPS, FULL, ""),
    ("so\n3-2*1", STEPS, NOTHING, "no answer block; format: no <answer>"),
    ("so\n<answer>3-2*1", STEPS, NOTHING, "no answer block, for the completion was cut off"),
    # Legal: one minus sign before a number or a parenthesis, any depth, exact fractions.
    (completion("(-53 - 53 + 54 + 65)"), of(13, 53, 53, 54, 65), FULL, ""),
    (completion("-(96 - 58) + 92"), of(54, 96, 58, 92), FULL, ""),
    (completion("-2*3+10"), of(4, 2, 3, 10), FULL, ""),
    (completion("-12/4/3+2"), of(1, 12, 4, 3, 2), FULL, ""),
    (completion("-(-(7))"), of(7, 7), FULL, ""),
    (completion("4 * -(9*2)"), of(-72, 4, 9, 2), FULL, ""),
    (completion("9+-2"), of(7, 9, 2), FULL, ""),
    (completion("2--5"), of(7, 2, 5), FULL, ""),
    (completion("6/-2*3"), of(-9, 6, 2, 3), FULL, ""),
    (completion("0+7"), of(7, 0, 7), FULL, ""),
    (completion("7*7"), of(49, 7, 7), FULL, ""),
    (completion("8/(3-8/3)"), of(24, 8, 3, 8, 3), FULL, ""),
    (completion("1+2*3-8/4"), of(5, 1, 2, 3, 8, 4), FULL, ""),
    (completion("10-3-2"), of(5, 10, 3, 2), FULL, ""),
    (completion("24/4/2*3"), of(9, 24, 4, 2, 3), FULL, ""),
    (completion("1/3"), of(Fraction(1, 3), 1, 3), FULL, ""),
    (completion("(" * 195 + "1" + ")" * 195 + "+2" + " " * 607), of(3, 1, 2), FULL, ""),
    (completion("-(" * 195 + "1" + ")" * 195 + "+2"), of(1, 1, 2), FULL, ""),
    # Python's parser takes at most 200 parentheses within each other.
    (completion("(" * 495 + "1" + ")" * 495 + "+2" + " " * 7), of(3, 1, 2), TAGS_ALONE, ""),
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
    (completion("\nStep 1: 1 + 2 = 3\nStep 2: 3 / 3 = 1\n"), STEPS, FULL, ""),
    (completion("Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1"), STEPS, FULL, ""),
    (completion("1+2=3\n3/3=1"), STEPS, FULL, ""),
    (completion("Step 1: 3 - 2 = 1.\nStep 2: 1 * 1 = 1."), STEPS, FULL, ""),
    (completion("(1 + 2) / 3"), STEPS, FULL, ""),
    (completion("(1 + 2) / 3 = 1.0"), STEPS, FULL, ""),
    (completion("(1 + 2) / 3 = 3/3."), STEPS, FULL, ""),
    (completion("-2 + 1 * 3"), STEPS, FULL, ""),
    (completion("3 - 5 = -2\n(-2) + 12 = 10"), of(10, 3, 5, 12, style="steps"), FULL, ""),
    (completion("5 / 2 = 2.5\n2.5 * 4 = 10"), of(10, 2, 4, 5, style="steps"), FULL, ""),
    (completion("Step 1: 1 + 2 = 4\nStep 2: 4 - 3 = 1"), STEPS, FORM, "1 + 2 = 4' is not true"),
    (
        completion("Step 1: 1 + 2 = 3\nStep 2: 3 - 2 = 1"),
        STEPS,
        FORM,
        "uses 1, 2, 2 instead of",
    ),
    (
        completion("Step 1: 2 - 1 = 1\nStep 2: 3 - 3 = 0"),
        STEPS,
        FORM,
        "'Step 1: 2 - 1 = 1' is not true, or its result is not used",
    ),
    (completion("Step 1: 3 - 2 = 1"), STEPS, FORM, "uses 3, 2 instead of"),
    (completion("1 - 1 = 0\n5 / 0 = 5"), STEPS, FORM, "divides by zero"),
    (completion("1 + 2 = 3\n3 - 3 = 0\n1"), STEPS, TAGS_ALONE, "it has '='"),
    (completion("first 1 + 2 = 3\nthen 3 / 3 = 1"), STEPS, TAGS_ALONE, "it has 'f'"),
    (completion("(1 + 2) / 3 = 2"), STEPS, FORM, "'(1 + 2) / 3 = 2' is not true"),
    (completion("(1 + 2) / 3 = 1/0"), STEPS, TAGS_ALONE, "it has '='"),
    (completion("(1 + 2) / 3 = 1e0"), STEPS, TAGS_ALONE, "it has '='"),
    (completion("(1 + 2) / 3 ="), STEPS, TAGS_ALONE, "it has '='"),
    (completion("1 + 2 + 3"), STEPS, FORM, "equals 6, not 1"),
    (completion("I do not know"), STEPS, TAGS_ALONE, "it has 'I'"),
    (completion(""), STEPS, TAGS_ALONE, "not an expression"),
    (completion("+"), STEPS, TAGS_ALONE, "not an expression"),
    (completion("3-2*1 = 1" + " " * 1000), STEPS, TAGS_ALONE, "more than 1000 characters"),
    (completion("3 - 5 = -2\n-2 + 12 = 10"), of(10, 3, 5, 12, style="steps"), FULL, ""),
    (completion("6 / 2 = 3.0\n3 * 4 = 12"), of(12, 6, 2, 4, style="steps"), FULL, ""),
    (completion("6/2=3\n4-1=3\n3*3=9"), of(9, 6, 2, 4, 1, style="steps"), FULL, ""),
    (completion("43-2=41\n34-75=-41\n(-41)+41=0"), of(0, 75, 2, 34, 43, style="steps"), FULL, ""),
    (completion("(1 + 2)\n/ 3"), STEPS, FULL, ""),
    (completion("1 + 2 = 4\n4 / 3 = 1"), STEPS, FORM, "is not true"),
    (completion("2 + 2 = 4\n(1 + 2) / 3 = 1"), STEPS, FORM, "its result is not used"),
    (completion("3 / 2 = 3/2\n3/2 * 1 = 3/2"), STEPS, TAGS_ALONE, ""),
    (completion("(1 + 2) / 3 = 3 / 3 = 1"), STEPS, TAGS_ALONE, ""),
]


@pytest.mark.parametrize("text, problem, parts, why", ROWS, ids=range(len(ROWS)))
def test_the_reward_of_a_completion_its_reason_and_its_vote(text, problem, parts, why):
    prompt = PROMPTS[problem["style"]]
    result = reward(text, problem, prompt)
    assert result[:3] == parts and why in result.why
    assert (result.why == "correct") == (result.format == result.answer == 1.0)
    value = judge(read_answer(text, prompt)[0], problem, prompt.steps)[0]
    right = value == problem["target"]
    assert right == result.answer and (right or value is None or f"equals {value}," in result.why)


# Against Python's own arithmetic, and a second grammar


def derivable(text):
    """Whether `S -> E | S op E; E -> O | -O; O -> n | (S)` gives the text: undo its rules."""
    text = re.sub(r"\s", "", re.sub("[0-9]+", "n", text))
    for _ in range(len(text)):
        text = re.sub(r"(^|(?<=[(+*/])|(?<=[nM]-))-n", "M", text)
        text = re.sub(r"(^|(?<=\())[nM][-+*/][nM]", "M", text)
        text = re.sub(r"\([nM]\)", "n", text)
    return text in ("n", "M")


def random_expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return str(rng.randint(0, 99))
    form = rng.choice(["{}+{}", "{} - {}", "{}*{}", "{}/{}", "({})", "-({})\n", " {}", "(({})-{})"])
    return form.format(random_expression(rng, depth - 1), random_expression(rng, depth - 1))


def test_the_format_is_what_the_grammar_derives_and_the_value_is_pythons():
    rng = random.Random(0)
    texts = ["( 1 ) * ( 1 - ( 1 ) )", "1 - - 1", "1 - - - 1", "007 - 7", "1 + 00"]
    texts += [random_expression(rng, 5) for _ in range(3000)]
    texts += [" ".join(rng.choices("11+-*/()", k=rng.randint(1, 9))) for _ in range(3000)]
    for text in texts:
        problem = of(0, *map(int, re.findall("[0-9]+", text)))
        result = reward(completion(text), problem)
        assert (result.format == 1.0) == derivable(text), text
        value, why, _ = judge(text, problem, steps=False)
        if value is None:
            assert "zero" in why or not derivable(text) or re.search(r"\b0[0-9]", text)
        else:
            assert value == eval(re.sub("([0-9]+)", r"Fraction(\1)", f"({text})"))


# Hostile text: no exception, nothing executed, linear time

FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>(1+2)", "(3*4)</answer>", "</", "<",
    "</think><answer>1+2+3+4</answer>", "1", "07", "2.5", "1e999", "9**9**9", "9" * 400, "1/0",
    "1/(2-2)", "(", ")", "()", "((((((((", "-(", "-1", "1-2-3-4", "[1", "]", "+", "-", "*", "/",
    "//", ".", "=", ",", "e", "_", "０１２", "٣", "²", "½", "𝟙", "×", "÷", "−", "\u200b", "\u3000",
    "\x00", "\x1c", "\ud800", " ", "\n", "\t", "<|endoftext|>", "</s>", "<|im_end", "import os",
    "__import__('os')", "{nums}", "%s", "\\boxed{", "Step 1: 1 + 2 = 3\n", "Step 2: 3 + 3 = 6 ",
    "Step", "Step 1:", " = 10", "\n10 = 10", "1=1\n", "<reasoning>", "</reasoning>", "\\", "- -",
]  # fmt: skip


def rewards_of_hostile_texts(module, problem, fragments):
    """Fragments at random, and each again and again; most of them where an answer stands."""
    rng = random.Random(time.time_ns())
    texts = ["".join(rng.choices(fragments, k=rng.choice((1, 4, 9, 99)))) for _ in range(3000)]
    texts += [part * (size // len(part)) for part in fragments for size in (190, 990, 800_000)]
    around = ["so</think><answer>{}</answer>", "{}", "</think><answer>1</answer>{}x"]
    for text in texts:
        completion = rng.choice(around).replace("{}", text)
        for prompt in module.PROMPTS.values():
            start = time.process_time()
            result = module.reward(completion, problem, prompt)
            assert time.process_time() - start < 1, completion[:200]
            assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
            assert 0 < len(result.why) <= 200 and result.why.isprintable()


def test_hostile_text_up_to_800_kilobytes_gets_a_reward_below_a_second():
    rewards_of_hostile_texts(countdown_rewards, of(10, 1, 2, 3, 4), FRAGMENTS)


# The generator


TRAIN = generate_problems("train", 2000, seed=0)
TEST = load_problems("test")


def test_generated_problems_are_as_documented():
    assert TRAIN[0] == {"nums": [29, 98, 51, 93], "target": 16}  # as in all versions
    for problem in TRAIN + TEST:
        assert all(type(number) is int and 1 <= number <= 99 for number in problem["nums"])
        assert problem["target"] in reachable(tuple(problem["nums"])) & set(range(10, 101))
    for count, share_of_all, share_easy in [(3, 0.52, 0.63), (4, 0.48, 0.39)]:
        kinds = [subgroups(problem)[1] for problem in TRAIN if len(problem["nums"]) == count]
        assert len(kinds) / len(TRAIN) == pytest.approx(share_of_all, abs=0.04)
        assert kinds.count("plus_minus") / len(kinds) == pytest.approx(share_easy, abs=0.045)


def test_no_training_problem_is_a_test_problem_and_the_seed_decides_only_training():
    keys = set(map(problem_key, TRAIN + generate_problems("train", 1000, seed=1)))
    assert len(keys) > 2900 and len(TEST) == 512 and keys.isdisjoint(map(problem_key, TEST))
    assert generate_problems("train", 50, seed=0) == TRAIN[:50] != generate_problems("train", 50, 1)
    assert load_problems("test", seed=123) == TEST


@pytest.mark.parametrize(
    "nums, values", [((6, 3), {9, 3, 18, 2}), ((3, 6), {9, 3, 18, 2}), ((0, 5), {5, 0}),
                     ((5, 3), {8, 2, 15}), ((5,), {5}), ((2, 2, 2), {6, 2, 8, 0, 3, 1})],
)  # fmt: skip
def test_reachable_lists_every_value_that_is_whole_and_not_negative(nums, values):
    assert reachable(nums) == values


@pytest.mark.parametrize(
    "nums, target, names",
    [
        ([1, 2, 3], 6, ["3_numbers", "plus_minus"]),
        ([5, 7, 9, 2], 315, ["4_numbers", "needs_muldiv"]),
        (list(range(1, 31)), 6, ["30_numbers", "needs_muldiv"]),
    ],
)
def test_subgroups_name_the_count_and_whether_plus_and_minus_suffice(nums, target, names):
    assert subgroups({"nums": nums, "target": target}) == names


# Public problems and completions


@needs_data
def test_the_answer_agrees_with_every_labelled_completion_and_every_problem_is_solvable():
    rows = real("countdown_completions")
    differ = [row for row in rows if reward(row["completion"], row).answer != row["exact_last"]]
    assert (len(rows), differ) == (500, [])
    problems = load_problems("all", str(DATA / "countdown_problems.jsonl"))
    solvable = [problem["target"] in reachable(tuple(problem["nums"])) for problem in problems]
    assert solvable == [True] * 1024


# Problems from rows


NUMS = [
    "30,100,93", "[30 100 93]", "(30, 100, 93)", "30 100 93", [30.0, 100, 93], ["30", "100", "93"],
    '["30", "100.0", 93]', "[30. 100. 93.]", "\n[30,\n100,\n93]\n",
]  # fmt: skip


@pytest.mark.parametrize("nums", NUMS, ids=range(len(NUMS)))
def test_the_forms_in_which_others_write_a_row_are_read(nums):
    for target in (37, 37.0, "37", " 37.0"):
        expected = {"nums": [30, 100, 93], "target": 37}
        assert to_problem({"nums": nums, "target": target}) == expected
        assert to_problem({"numbers": nums, "target": target, "x": [1]}) == expected


MISTAKES = """
[]|3 None|3 [1,None]|3 [1.5]|3 1.5|3 [a]|3 [[1]2]|3 {}|3 {1,2}|3 [1|3 1]|3 [1,]|3 [1,,2]|3 (1]|3
1;2|3 -1|3 [1,-2]|3 1_000|3 [1,000,2]|3 07|3 1e2|3 nan|3 ٣|3 True|3 [1]|None [1]|3.5 [1]|True
[1]|x [1]|NaN [1]| |3 [1]|٣
"""


@pytest.mark.parametrize("mistake", MISTAKES.split())
def test_numbers_that_are_not_clear_are_refused_with_what_is_needed_and_found(mistake):
    nums, target = mistake.split("|")
    with pytest.raises(ValueError, match="needs nums, such as .* got {'nums': "):
        to_problem({"nums": nums, "target": target})


@pytest.mark.parametrize("split, count", [("train", 36), ("test", 4), ("all", 40)])
def test_the_hub_has_one_split_of_which_a_tenth_is_held_out(monkeypatch, split, count):
    rows = [{"nums": [n, n + 1, 3 * n], "target": 10 + n} for n in range(1, 41)]
    load_dataset = mock.Mock(return_value=rows)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert len(load_problems(split, "hub")) == count
    load_dataset.assert_called_once_with(HUB_DATASET, split="train")
