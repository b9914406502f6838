"""Countdown: the reward of a completion, what a legal expression is, the generator, files."""

import random
import re
import time
from functools import partial

import pytest
from work import light

from countdown_rewards import (
    PROMPTS,
    Prompt,
    generate_problems,
    load_problems,
    reachable,
    reward,
    subgroups,
    to_problem,
)

# The reward of a completion

STYLES = {  # of PROMPTS, all of which are judged alike, and as in runs/prompts
    "short": PROMPTS["short"],
    "reasoning": Prompt("", opening="", thinking="reasoning", weights=(1, 2)),
    "steps": Prompt("", opening="", stop=("</answer>",), thinking="", steps=True),
}
PROBLEM = {"nums": [2, 3], "target": 5}


def assert_judged(result, form, correct, why):
    """For a prompt whose parts weigh 1; `why` is a part of the reward's sentence."""
    assert result[:3] == (form + correct, form, correct) and why in result.why
    assert (result.why == "correct") == (form == correct == 1)


@pytest.mark.parametrize(
    "completion, form, correct, why",
    [
        ("2+3=5 yes\n</think>\n<answer>2+3</answer>", 1, 1, "correct"),
        # The tags
        ("2+3=5\n<answer>2+3</answer>", 0, 1, "correct; format: no </think>"),
        ("yes</think>So:<answer>2+3</answer>", 0, 1, "text before the answer"),
        ("</think><answer>2+3</answer></answer>", 0, 1, "format: text after </answer>"),
        ("</think><answer>2+3</answer><answer>2*3</answer>", 0, 0, "two answer blocks"),
        ("</think><answer>2*3</answer><answer>2+3</answer>", 0, 1, "two answer blocks"),
        ("</think></think><answer>2+3</answer>", 0, 1, "format: a second </think>"),
        # The prompt's own tag may be repeated.
        ("<think></think><answer>2+3</answer>", 1, 1, "correct"),
        ("so <think></think><answer>2+3</answer>", 0, 1, "format: a second <think>"),
        # A block inside the thinking counts neither for nor against the last one.
        ("<answer>2+3</answer></think><answer>2*3</answer>", 1, 0, "s 6, not 5"),
        ("maybe <answer>2+3</answer>\n</think>", 0, 0, "no answer; format: no <answer>"),
        # Cut off
        ("</think><answer>2+3", 0, 0, "no answer; format: no </answer>"),
        # End markers and newlines
        ("</think><answer>2+3</answer><|im_end|><|eot_id|><|endoftext|>\n</s> ", 1, 1, "correct"),
    ],
)
def test_the_tags_of_a_completion(completion, form, correct, why):
    assert_judged(reward(completion, PROBLEM), form, correct, why)


@pytest.mark.parametrize(
    "completion, total, why",
    [
        ("<reasoning>5</reasoning>\n<answer>2+3</answer>", 3, "correct"),
        ("5</think><answer>2+3</answer>", 2, "no <reasoning> at the start"),
    ],
)
def test_tags_and_weights_are_those_of_the_prompt(completion, total, why):
    result = reward(completion, PROBLEM, STYLES["reasoning"])
    assert result.total == total and why in result.why


def answered(answer, target, nums, style="short"):
    problem = {"nums": nums, "target": target}
    return reward(f"so</think><answer>{answer}</answer>", problem, STYLES[style])


@pytest.mark.parametrize(
    "answer, target",
    [
        ("(-53 - 53 + 54 + 65)", 13),
        ("4 * -(9*2)", -72),
        ("2 - -5", 7),
        ("8/(3-8/3)", 24),
        ("\n( (2 )\t+ 3 )\n ", 5),
        (195 * "(" + "1" + 195 * ")" + "+2", 3),
    ],
)
def test_a_legal_expression_with_the_target_s_exact_value_earns_two(answer, target):
    assert answered(answer, target, re.findall("[0-9]+", answer)).total == 2


NO_EXPRESSION = [
    "36+55=91", "", "()",
    # Python's own operators and spellings
    "2**3", "7//2", "2.5 * 4", "--2+5", "2---5", "2 - - - 5", "2*+5", "6/--2", "2(5)", "2 (5)",
    "2*( )", "(2)(5)", "2 5", "1e1", "5%2",
    "6×2",
    # Too long
    1001 * "1",
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_EXPRESSION)
def test_what_is_no_expression_earns_half_of_the_format(answer):
    result = answered(answer, 7, re.findall("[0-9]+", answer))
    assert (result.format, result.answer) == (0.5, 0)
    assert re.match("not an expression|no answer", result.why)


@pytest.mark.parametrize(
    "answer, nums, target, why",
    [
        ("36/(19+7)*55", [19, 36, 55, 7], 65, "equals 990/13, not 65"),
        ("2*2+3", [2, 3], 7, "uses 2, 2, 3 instead of each of [2, 3] once"),
        ("2+3", [2, 3, 9], 5, "uses 2, 3 instead"),
        ("007+2", [7, 2], 9, "uses 007, 2 instead"),
        ("5/(3-3)", [5, 3, 3], 1, "divides by zero"),
        # As a float, it rounds to the target.
        (f"({10**17}*3+1)/3", [10**17, 3, 1, 3], 10**17, "equals 300000000000000001/3"),
    ],
)
def test_an_expression_that_is_no_solution_earns_the_format(answer, nums, target, why):
    assert_judged(answered(answer, target, nums), 1, 0, why)


@pytest.mark.parametrize(
    "answer, nums, target",
    [
        ("Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1", [1, 2, 3], 1),
        ("Step 1: 3 - 2 = 1.\nStep 2: 1 * 1 = 1.", [1, 2, 3], 1),
        ("(1 + 2) / 3 = 1.0", [1, 2, 3], 1),
        ("(1 + 2) / 3 = 3/3.", [1, 2, 3], 1),
        ("5 / 2 = 2.5\n2.5 * 4 = 10", [2, 4, 5], 10),
        ("43-2=41\n34-75=-41\n(-41)+41=0", [75, 2, 34, 43], 0),
    ],
)
def test_steps_that_lead_to_the_target_earn_two(answer, nums, target):
    assert answered(answer, target, nums, "steps").why == "correct"


@pytest.mark.parametrize(
    "answer, form, why",
    [
        ("1 + 2 = 3\n3 - 2 = 1", 1, "uses 1, 2, 2 instead of"),
        ("2 - 1 = 1\n3 - 3 = 0", 1, "'2 - 1 = 1' is not true, or its result is not used"),
        ("(1 + 2) / 3 = 2", 1, "'(1 + 2) / 3 = 2' is not true"),
        ("(1 + 2) / 3 =", 0.5, "it has '='"),
        ("3 / 2 = 3/2\n3/2 * 1 = 3/2", 0.5, "it has '='"),
        ("3-2*1 = 1" + 1000 * " ", 0.5, "more than 1000 characters"),
    ],
)
def test_steps_that_do_not_lead_to_the_target_earn_the_format(answer, form, why):
    assert_judged(answered(answer, 1, [1, 2, 3], "steps"), form, 0, why)


# Hostile text: no exception, nothing executed, linear time

OF_ALL_TASKS = [
    "<think>", "</think>", "<answer>", "</answer>", "</", "1e999", "9**9**9", 400 * "9", "-", "=",
    "(", "²", "\u200b", "\0", "\ud800", " ", "\n", "</s>", "\\",
]  # fmt: skip
FRAGMENTS = [
    "<answer>(1+2)", "(3*4)</answer>", "</think><answer>1+2+3+4</answer>", "1", "2.5", "1/(2-2)",
    ")", "()", "((((((((", "-(", "+", "*", "/", "//", ".", "٣", "\u3000", "<|endoftext|>",
    "<|im_end", "__import__('os')", "Step 1: 1 + 2 = 3\n", "Step 2: 3 + 3 = 6 ", "Step", " = 10",
    "\n10 = 10", "1=1\n", "<reasoning>", "</reasoning>", "- -",
]  # fmt: skip


AROUND = ["so</think><answer>{}</answer>", "{}", "</think><answer>1</answer>{}x"]


def rewards_of_hostile_texts(reward, problem, fragments, around=AROUND):
    """Fragments at random, and each again and again; most of them where an answer stands."""
    fragments = OF_ALL_TASKS + fragments
    seed = time.time_ns()
    print(f"{seed=}")  # pytest shows it if the test fails
    rng = random.Random(seed)
    texts = ["".join(rng.choices(fragments, k=rng.choice((1, 4, 9, 99)))) for _ in range(3000)]
    texts += [part * (size // len(part)) for part in fragments for size in (190, 490, 990, 800_000)]
    for text in texts:
        result = light(reward, rng.choice(around).replace("{}", text), problem)
        assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
        assert 0 < len(result.why) <= 200 and result.why.isprintable()


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_hostile_text_up_to_800_kilobytes_gets_a_reward_with_little_work(style):
    problem = {"nums": [1, 2, 3, 4], "target": 10}
    rewards_of_hostile_texts(partial(reward, prompt=style), problem, FRAGMENTS)


# The generator


TRAIN = generate_problems("train", 500, seed=0)
TEST = load_problems("test")


def test_generated_problems_are_as_documented():
    assert TRAIN[0] == {"nums": [29, 98, 51, 93], "target": 16}  # as in all versions
    for problem in TRAIN + TEST:
        assert all(type(number) is int and 1 <= number <= 99 for number in problem["nums"])
        assert problem["target"] in reachable(tuple(problem["nums"])) & set(range(10, 101))


def test_reachable_lists_every_value_that_is_whole_and_not_negative():
    assert reachable((2, 2, 2)) == {0, 1, 2, 3, 6, 8}


@pytest.mark.parametrize(
    "nums, target, names",
    [
        ([1, 2, 3], 6, ["3_numbers", "plus_minus"]),
        (list(range(1, 31)), 6, ["30_numbers", "needs_muldiv"]),
    ],
)
def test_the_subgroups_of_a_problem(nums, target, names):
    assert subgroups({"nums": nums, "target": target}) == names


# Problems from rows


NUMS = [
    "30,100,93", "[30 100 93]", "(30, 100, 93)", ["30", "100", "93"], '["30", "100.0", 93]',
    "[30. 100. 93.]", "\n[30,\n100,\n93]\n",
]  # fmt: skip


@pytest.mark.parametrize("nums", NUMS)
def test_the_forms_in_which_others_write_a_row_are_read(nums):
    for target in (37, 37.0, "37", " 37.0"):
        expected = {"nums": [30, 100, 93], "target": 37}
        assert to_problem({"nums": nums, "target": target}) == expected
        assert to_problem({"numbers": nums, "target": target, "x": [1]}) == expected


NO_NUMBERS = [
    None, [1.5], "[1,]", "(1]", [1, -2], "1_000", "07", "٣", True, "",
]  # fmt: skip
NO_TARGETS = [None, 3.5, True, "x"]
MISTAKES = [{"nums": nums, "target": 3} for nums in NO_NUMBERS]
MISTAKES += [{"nums": [1], "target": target} for target in NO_TARGETS]


@pytest.mark.parametrize("row", MISTAKES, ids=str)
def test_numbers_that_are_not_clear_are_refused(row):
    with pytest.raises(ValueError, match="needs nums, such as .* got {'nums': "):
        to_problem(row)
