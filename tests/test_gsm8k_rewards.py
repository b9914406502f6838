"""GSM8K: the reward of a completion, how a number is read, the generator, files."""

import re
from fractions import Fraction

import pytest
from test_countdown_rewards import assert_judged, rewards_of_hostile_texts

import countdown_rewards
import gsm8k_rewards
from gsm8k_rewards import (
    final_answer,
    generate_problems,
    gold,
    load_problems,
    parse_number,
    reward,
    subgroups,
    to_problem,
)

PROBLEM = {
    "question": "Iris has 64 eggs and buys 33 more. Then Iris gives 40 of them to Ella. "
    "How many eggs does Iris have left?",
    "answer": "64+33=<<64+33=97>>97\n97-40=<<97-40=57>>57\n#### 57",
}


# The reward of a completion


@pytest.mark.parametrize(
    "answer, form, correct, why",
    [
        ("\n 57.0\t\n", 1, 1, "correct"),
        ("7/14", 1, 0, "is 1/2, not 57"),
        ("7/0", 0.5, 0, "more than one number"),
        ("57 eggs", 0.5, 1, "correct; format: something else in the answer block"),
        ("57 eggs</answer>.", 0, 1, "correct; format: text after </answer>"),
        ("", 0.5, 0, "no answer"),
        ("57 million", 0.5, 0, "'million' may change the number"),
        ("1" + 49 * ",080", 0.5, 0, "not a plain number"),
    ],
)
def test_the_reward_of_an_answer_block_behind_the_thinking(answer, form, correct, why):
    completion = f"\n64+33=97\n97-40=57\n</think>\n<answer>{answer}</answer>"
    assert_judged(reward(completion, PROBLEM), form, correct, why)
    vote = final_answer(completion, PROBLEM)
    assert vote == "57" if correct else vote is None or f"is {vote}, not 57" in why


@pytest.mark.parametrize(
    "answer, gold, correct",
    [
        ("5", "5 meters", 1),
        ("5 Meter.", "5 meters", 1),
        ("5 square meters", "5 meters", 0),
        ("5 inch", "5 inches", 1),
        ("5 glasses", "5 glass", 1),
        ("5 factorial", "5", 0),
    ],
)
def test_a_unit_is_that_of_the_gold_answer_if_both_have_one(answer, gold, correct):
    result = reward(f"</think><answer>{answer}</answer>", {"answer": f"#### {gold}"})
    assert result.answer == correct
    assert (" meter" in result.why or "may change" in result.why) != correct


# How a number is read

NUMBERS = {
    "72": [
        "72 degrees.", "72 °F", "72^\\circ", "72^{\\circ} C", "**72 eggs.**", "\\(72\\)", "`72`",
        "\\[ \\boxed{72} \\]", "$\\boxed{72}$ square inches.", "\\boxed{72 \\text{ cm}}", "72 km/h",
        "72 g/l", "(72 apples)", "72~apples",
    ],
    "7": ["+7", "007", "7\\%", "7¢", "$7", "£7", "14 / 2"],
    "-7": ["- 7", "$-7", "-\\boxed{7}"],
    "5": ["USD 5", "US$5", "A$5.00", "Rs. 5", "₹5", "CA\\$5"],
    "0": ["0  ."],
    "0.5799": [".5799"],
    "1/2": [".5", "$\\tfrac{1}{2}$ cup", "\\cfrac 1 2"],
    "7/2": ["3 \\frac12 cups", "3 1/2", "\\boxed{3 1/2}"],
    "-7/2": ["-3 1/2"],
    "1080": ["1\u2009080", "1\u202f080", "1{,}080", "1\\,080"],
    "2900001/2": ["$1,450,000.5"],
    "-1000000": ["−1\u00a0000\u00a0000", "–1,000,000.00 eggs"],
    30 * "9": [30 * "9"],
}  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS)
def test_how_a_number_is_read(value):
    found = {text: parse_number(text)[0] for text in NUMBERS[value]}
    assert found == dict.fromkeys(found, Fraction(value))


REFUSED = [
    ".", "$", "inf", "\\boxed{}",
    # Two numbers
    "3 or 4", "3, 4", "3 4", "5 apples and 3 pears", "9*8=72", "72 cm^2", "\\boxed{5}600", "1$080",
    "5\\ 6", "1 2/2", "1/2 1/2", "\\frac123", "7/-2", "\\frac{7}{0}",
    # Groups that are not of three
    "1,08", ",080", "1,080 200", "0,123", "1234,567", "1\n080",
    # Words that change the number
    "5 million", "5 Dozen", "5 tens", "3 sevenths", "\\boxed{5} \\text{ million}", "5 is wrong",
    "72 of the very many eggs",
    # A unit of one letter, and what is no unit
    "5x", "5 k/h", "5/x", "US5", "x$5",
    # Notations that are not read
    "1e3", "1_000", "--7", "~7", "7!", "7^2", "about 72", "(5", "７２", 31 * "9",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_clearly_one_number_is_refused(text):
    assert parse_number(text)[0] is None


FRAGMENTS = [
    "<answer>57", "</think><answer>57</answer>", "5", "1,080", "1 080", "1.", ".5", "7/0", "/14",
    "+", "\\$", "%", "°", "**", "\\(", ",", "\\boxed{", "\\boxed{57}", "\\[", "^\\circ", "{", "}",
    "\\text{", "#### 57", "\\frac", "\\frac{57}{1}", "(57)", "USD ", "Rs.", "~", "km/", " eggs",
    "ab", " and ", "５７", "\u00a0",
]  # fmt: skip


def test_hostile_text_up_to_800_kilobytes_gets_a_reward_with_little_work():
    rewards_of_hostile_texts(reward, PROBLEM, FRAGMENTS)


# The generator


TRAIN = generate_problems("train", 500, seed=0)
TEST = load_problems("test")


def test_the_worked_answer_computes_each_step():
    for problem in TRAIN + TEST:
        assert "{" not in problem["question"]
        for step, result, again in re.findall(r"<<(.*)=(\d+)>>(\d+)\n", problem["answer"]):
            assert eval(step) == int(result) == int(again) and 1 <= int(result) <= 999
        assert gold(problem) == (int(result), "")
    assert PROBLEM in TRAIN[:6]  # the module's worked example


def test_ten_stories_are_only_in_the_test_split():
    assert not any("new_story" in row for row in TRAIN)
    assert 120 < [subgroups(row) for row in TEST].count(["new_story"]) < 220


@pytest.mark.parametrize("task", [countdown_rewards, gsm8k_rewards])
def test_no_problem_is_in_both_splits(task):
    train = task.generate_problems("train", 500, 0) + task.generate_problems("train", 500, 1)
    test = task.load_problems("test")
    keys = set(map(task.problem_key, train))
    assert len(keys) > 950 and len(test) == 512 and keys.isdisjoint(map(task.problem_key, test))
    assert task.generate_problems("train", 50, 0) == train[:50] != train[500:550]
    assert task.load_problems("test", seed=123) == test


@pytest.mark.parametrize("steps, names", [(0, []), (3, ["3_steps"]), (9, ["4_or_more_steps"])])
def test_subgroups_name_the_number_of_steps_of_the_worked_answer(steps, names):
    assert subgroups({"question": "?", "answer": "1+1=<<1+1=2>>2\n" * steps + "#### 2"}) == names


# Problems from rows

ROW = {"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}


@pytest.mark.parametrize("answer", [2, "2.0", ROW["answer"]])
def test_the_answer_of_a_row_is_a_number_or_ends_in_one(answer):
    assert to_problem({"question": "A?", "answer": answer, "x": 1}) == {
        "question": "A?",
        "answer": str(answer),
    }


@pytest.mark.parametrize("question", [" \n", 7, "so\fon", "\ud800", "2\times 3", "1\r2"])
def test_a_question_that_is_no_clear_text_is_refused(question):
    with pytest.raises(ValueError, match="needs question, a text|a control character"):
        to_problem({**ROW, "question": question})


@pytest.mark.parametrize("answer", [None, True, "#### 3 or 4\n", "57\n####", "2\x00"])
def test_an_answer_that_is_no_clear_number_is_refused(answer):
    with pytest.raises(ValueError, match="needs .* answer, a number or a text with ####"):
        to_problem({**ROW, "answer": answer})
