"""GSM8K: what a completion earns, how a number is read, the generator."""

import re
import time
import timeit
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from labelled import DATA, needs_data, real

import gsm8k_rewards
from gsm8k_rewards import (
    NEW_STORIES,
    STORIES,
    final_answer,
    generate_problems,
    gold,
    lenient,
    load_problems,
    parse_number,
    reward,
    solve,
    subgroups,
)
from plumbing.arithmetic import calculate

PROBLEM = {
    "question": "Iris has 64 eggs and buys 33 more. Then Iris gives 40 of them to Ella. "
    "How many eggs does Iris have left?",
    "answer": "64+33=<<64+33=97>>97\n97-40=<<97-40=57>>57\n#### 57",
}


def completion(answer, thinking="\n64+33=97\n97-40=57"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


def with_gold(number):
    return {"question": "How many?", "answer": f"#### {number}"}


# What a completion earns: (total, format, answer)

PAID = (2.0, 1.0, 1.0)
FORM = (1.0, 1.0, 0.0)
MORE = (1.5, 0.5, 1.0)  # more than the number in the block
TAGS_ALONE = (0.5, 0.5, 0.0)
NUMBER_ALONE = (1.0, 0.0, 1.0)
NOTHING = (0.0, 0.0, 0.0)
ROWS = [
    (completion("57"), PAID, "correct"),
    (completion("\n 57\t\n"), PAID, "correct"),
    (completion("57.0"), PAID, "correct"),
    (completion("57") + "<|im_end|>\n", PAID, "correct"),
    (completion("58"), FORM, "is 58, not 57"),
    (completion("7/14"), FORM, "is 1/2, not 57"),
    (completion("7/0"), FORM, "divides by zero"),
    (completion("57 eggs"), MORE, "correct; format: something else in the answer block"),
    (completion("$57"), MORE, "correct"),
    (completion("57%"), MORE, "correct"),
    (completion("`57`"), MORE, "correct"),
    (completion("**57**"), MORE, "correct"),
    (completion("$57$"), MORE, "correct"),
    (completion(r"\$57.00"), MORE, "correct"),
    (completion(r"\boxed{57}"), MORE, "correct"),
    (completion(r"\frac{114}{2}"), MORE, "correct"),
    (completion(""), TAGS_ALONE, "no number: ''"),
    (completion("fifty-seven"), TAGS_ALONE, "no number"),
    (completion("97-40=57"), TAGS_ALONE, "more than one number"),
    (completion("57 or 58"), TAGS_ALONE, "more than one number"),
    (completion("x = 57"), TAGS_ALONE, "not a plain number"),
    (completion("57 million"), TAGS_ALONE, "'million' may change the number"),
    (completion("5" * 201), TAGS_ALONE, "longer than 200"),
    # Just short enough to be read, and slow to read for a careless expression
    (completion("a " * 100), TAGS_ALONE, "no number"),
    (completion("5" + " " * 190 + "!"), TAGS_ALONE, "not a plain number"),
    (completion("5 " + "ab " * 60), TAGS_ALONE, "not a plain number"),
    (completion("$" * 200), TAGS_ALONE, "no number"),
    (completion("**" * 100), TAGS_ALONE, "no number"),
    (completion("1" + ",080" * 49), TAGS_ALONE, "not a plain number"),
    ("64+33=97\n<answer>57</answer>", NUMBER_ALONE, "correct; format: no </think>"),
    (completion("57") + "</answer>", NUMBER_ALONE, "format: text after </answer>"),
    (completion("57") + "<answer>58</answer>", NOTHING, "is 58, not 57; format: two answer"),
    (completion("58") + "<answer>57</answer>", NUMBER_ALONE, "correct; format: two answer"),
    ("<answer>57</answer></think><answer>58</answer>", FORM, "is 58"),
    ("<answer>57</answer></think>", NOTHING, "no answer block"),
    ("", NOTHING, "no answer block"),
    ("57", NOTHING, "no answer block"),
    ("</think>57", NOTHING, "no answer block"),
    ("57</answer>", NOTHING, "no answer block"),
    ("</think><answer>57", NOTHING, "no </answer>"),
    ("</answer></think><answer>", NOTHING, "no </answer>"),
]


@pytest.mark.parametrize("text, verdict, why", ROWS, ids=range(len(ROWS)))
@pytest.mark.parametrize("style", gsm8k_rewards.PROMPTS)
def test_what_a_completion_earns_why_and_for_which_number_it_votes(text, verdict, why, style):
    result = reward(text, PROBLEM, style)
    assert result[:3] == verdict and why in result.why
    assert (result.why == "correct") == (result.total == 2.0)
    vote = final_answer(text, PROBLEM, style)
    assert (vote == "57") if result.answer else (vote is None or f"is {vote}, not" in result.why)


# How a number is read


def read(text):
    try:
        return parse_number(text)
    except ValueError:
        return None


@pytest.mark.parametrize(
    "value, texts",
    [
        (72, ["72", "72.", "72 degrees", "72 degrees.", "72°", "72 °F", r"72^\circ", "**72**"]),
        (72, ["**72 eggs.**", "**72** eggs", r"\(72\)", "$72$", "`72`", r"\boxed{72}.", "72th"]),
        (72, [r"\boxed{72} inches", r"\boxed{72 inches}", r"$\boxed{72}$ square inches."]),
        (72, [r"\[ \boxed{72} \]", r"\( \boxed{72} \)", r"72^{\circ} C", r"\boxed{72 \text{ cm}}"]),
        (72, [r"\boxed{72} \text{ hours}", r"\text{72}", "72 miles/hour", "72 miles per hour"]),
        (7, ["+7", "007", "7.0", "7kg", "7 percent", "7%", r"7\%", "7¢", "7 times", "7/1"]),
        (7, ["$7", "$ 7", "£7", r"\$7", r"$\$7$", "14 / 2", r"\frac{14}{2}", "7 quarters"]),
        (-7, ["-7", "\u22127", "\u20137", "-$7", "$-7", r"$\boxed{-7}$", r"-\frac{7}{1}"]),
        (0, ["0", "-0", "0.0"]),
        (Fraction(1, 2), [".5", "7/14", r"\frac{7}{14}", r"\dfrac{1}{2}", r"$\tfrac{1}{2}$ cup"]),
        (Fraction(7, 2), [r"3\frac{1}{2}", r"3 \frac{1}{2} cups", r"\boxed{\frac{7}{2}}"]),
        (1080, ["1,080", "1 080", "1\u00a0080", "1\u2009080", "1\u202f080", "1{,}080", r"1\,080"]),
        (Fraction(2_900_001, 2), ["1,450,000.50", "$1,450,000.5"]),
        (10**30 - 1, ["9" * 30]),
        # Not clearly one number
        (None, ["", ".", "-", "$", "%", "eggs", "-eggs", "NaN", "inf", "**", "\\boxed{}", "$$"]),
        (
            None,
            ["3 or 4", "3, 4", "3 4", "5 apples and 3 pears", "1 1/2", "3-4", "9*8=72", "72 cm^2"],
        ),
        (
            None,
            [
                "5:30",
                "1,08",
                "12,34,56",
                "1,0800",
                ",080",
                "1,080 200",
                "0,123",
                "1234,567",
                "1 08",
            ],
        ),
        (None, ["1\n080", "1.2.3", "1.000,5", "9" * 31, "72 of the very many eggs"]),
        (
            None,
            [
                "5 million",
                "5 Dozen",
                "2 and a half",
                "3 or four",
                "3 to five",
                "5 squared",
                "5 tens",
            ],
        ),
        (
            None,
            [
                "5 minus two",
                "1 third",
                "5 lakh",
                "5 less than ten",
                "5 times two",
                "5 grand",
                "5 mil",
            ],
        ),
        (
            None,
            ["5 bn", "5 mn", "3 sevenths", "2 ninths", "3 tenths", "7 hundredths", "4 twelfths"],
        ),
        (
            None,
            [
                r"\boxed{5} million",
                r"\boxed{5} tens",
                r"\boxed{5} \text{ million}",
                "5k",
                "5x",
                "5 M",
            ],
        ),
        (
            None,
            ["2i", "5π", "1e3", "0x10", "1_000", "--7", "-$-7", "- 7", "~7", "=7", "x = 72", "(7)"],
        ),
        (None, ["about 72", "not 72", "7!", "√4", "7/2/3", "7.5/2", "7/-2", "7/0", r"\frac{7}{0}"]),
        (
            None,
            [
                "７２",
                "٧٢",
                "²",
                "½",
                "五",
                "7²",
                "7\u200b2",
                "\ud800",
                "5 <b>eggs</b>",
                "3 times 4",
            ],
        ),
        (None, [r"\boxed{5} or \boxed{6}", r"\boxed{5} 6", r"\boxed{5}6", r"\boxed{5", "$5$ $6$"]),
        (
            None,
            [
                "**5** or **6**",
                r"\frac{7}{14}\frac{1}{2}",
                r"\frac{7}{x}",
                r"\frac{7}",
                r"3\sqrt{2}",
            ],
        ),
    ],
)
def test_a_number_is_read_with_its_sign_separators_unit_and_markup_or_refused(value, texts):
    assert {text: read(text) for text in texts} == dict.fromkeys(texts, value)


WRITTEN = ["{:d}", "{:,d}", "${:d}", "{:,d} eggs", "{:d}.00", r"\frac{{{:d}}}{{1}}"]
COMMAS = st.sampled_from([",", " ", "\u00a0", "\u2009", "\u202f"])
MINUS = st.sampled_from(["", "-", "\u2212"])


@given(st.integers(0, 10**12), st.sampled_from(WRITTEN), COMMAS, MINUS)
def test_every_integer_is_read_back_in_every_form(number, form, comma, minus):
    text = minus + form.format(number).replace(",", comma)
    assert parse_number(text) == (-number if minus else number)


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=4), st.integers(1, 999))
def test_every_decimal_and_fraction_is_read_back_exactly(number, denominator):
    assert parse_number(f"{number:f}") == Fraction(number)
    assert parse_number(f"-7/{denominator}") == Fraction(-7, denominator)


@settings(max_examples=1000)
@given(st.text("0123456789,. ", max_size=12))
@example("1,234.5")
@example("12,345,678")
@example("0  .")
def test_separators_are_accepted_only_between_groups_of_three(text):
    text = text.strip()
    whole = r"(\d+|[1-9]\d?\d?((,\d{3})+|( \d{3})+))?"
    grouped = re.fullmatch(rf"{whole}(\.\d*)? *\.?", text) and re.search(r"\d", text)
    expected = Fraction(re.sub("[, ]|[.]$", "", text).rstrip(".")) if grouped else None
    assert read(text) == expected


JOINTS = [" or ", " and ", ", ", "; ", " - ", "\n", " = ", " "]


@given(st.integers(0, 99), st.sampled_from(JOINTS), st.integers(0, 99))
def test_two_numbers_are_never_read_as_one(first, joint, second):
    assert read(f"{first}{joint}{second}") is None


def mutants(number):
    """The number with one sign, digit or separator changed."""
    yield "-" + number
    for i, character in enumerate(number):
        before = number[:i]
        after = number[i + 1 :]
        yield before + after
        if character.isdigit():
            for new in (str((int(character) + 1) % 10), character * 2, character + "."):
                yield before + new + after


@needs_data
def test_no_real_gold_answer_is_paid_after_one_sign_digit_or_separator_is_changed():
    value = lambda number: float(number.replace(",", ""))
    for row in real("gsm8k_test"):
        number = row["answer"].rpartition("####")[2].strip()
        for text in mutants(number):
            # Equal are a zero more or less in front, a full stop behind, no comma.
            assert not reward(completion(text), row).answer or value(text) == value(number), text


@pytest.mark.parametrize(
    "number, found, texts",
    [
        (57, 1, [completion("57"), completion("the answer is 57"), "<answer>57", "\\boxed{57}"]),
        (57, 1, ["<answer> so \\boxed{57 \\text{ eggs}} remain </answer>", "so 57 remain"]),
        (57, 1, ["64+33=97 \\[ \\boxed{57} \\] and 97 before", "97-40=57\n#### 57\nnext: 12"]),
        (57, 1, ["The answer is 57 because 97-40 is that, see 40", "A: 57\nQ: 40", "\\boxed{57"]),
        (57, 1, ["The answer is: **$57**, see 40", "Answer: \\(57\\) of 97", "97-40=57<|im_end|>"]),
        (57, 1, ["A: Iris had 97 and gave away 40, so 57.", "57" + " " * 19_900 + "eggs"]),
        (Fraction(7, 2), 1, ["so \\frac{7}{2} remain", "\\boxed{\\frac{7}{2}} of 3", "#### 3.5"]),
        (-7, 1, ["it is -7.", "A: −$7"]),
        (3, 1, ["10-3", "(10)-3"]),  # a minus behind a number is an operator
        (57, 0, ["", "no number", "57 or 58", "#### 57\n#### 58\n57"]),
        (57, 0, ["<answer>58</answer> \\boxed{57}", "\\boxed{57} \\boxed{58} 57"]),
        (57, 0, ["<answer>57</answer> <answer>58</answer>", "A: 58\n57"]),
        (57, 0, ["the answer is 58, not 57", "-57", "is −57", "57,5", "1,057", "57.5"]),
        (57, 0, ["57/2", "157", "x57", "57" + " " * 20_000 + "eggs"]),
        (7, 0, ["it is -7."]),
        (16, 0, ["\\boxed{\\frac{1}{16}}", "\\boxed{\\sqrt{16}}", "the answer is \\frac{3}{16}"]),
    ],
    ids=str,
)
def test_the_lenient_reading_takes_the_number_that_a_reader_would_take(number, found, texts):
    assert [lenient(text, with_gold(number)) for text in texts] == [found] * len(texts)


def test_five_thousand_typical_completions_are_scored_a_second():
    thinking = "".join(f"{a}+{a + 7}={2 * a + 7}\n" for a in range(30))
    forms = ["{}", "{}.00", "${}", "{} eggs", r"\boxed{{{}}}", "{} or 3", "x", "10-3={}", "-{}"]
    cases = []
    for problem in generate_problems("train", 100, seed=1):
        cases += [(completion(form.format(gold(problem)), thinking), problem) for form in forms]
    score = lambda: [(reward(*case), lenient(*case)) for case in cases]
    # The fastest of five: a virtual core's speed comes and goes.
    seconds = min(timeit.repeat(score, timer=time.process_time, repeat=5, number=1))
    assert len(cases) / seconds >= 5_000


# The generator


@pytest.fixture(scope="module")
def generated():
    return generate_problems("train", 2000, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return load_problems("test")


def test_the_worked_answer_computes_each_step_and_ends_in_the_last_result(generated):
    for problem in generated:
        steps = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)\n", problem["answer"])
        for left, symbol, right, result, again in steps:
            value = calculate(int(left), symbol, int(right))
            assert value == int(result) == int(again) and 1 <= value <= 999
        assert gold(problem) == int(result)


def tellings(stories, problems):
    """The questions that each story is told in."""
    blanks = [r"\w+".join(map(re.escape, re.split(r"\{\w\}", story))) for story, _ in stories]
    return [[p for p in problems if re.fullmatch(blank, p["question"])] for blank in blanks]


def test_every_story_is_told_and_ten_in_the_test_split_alone(generated, held_out):
    assert all(tellings(STORIES, generated))
    assert tellings(NEW_STORIES, generated) == [[]] * 10
    new = [row for row in held_out if "new_story" in subgroups(row)]
    assert sum(map(len, tellings(NEW_STORIES, held_out))) == len(new)
    assert 120 < len(new) < 220


def test_every_placeholder_is_filled_and_two_people_have_two_names(generated):
    questions = "\n".join(problem["question"] for problem in generated)
    pairs = re.findall(r"(\w+) has \d+ \w+\. (\w+) has \d+ more than \1", questions)
    assert len(pairs) > 20 and all(first != second for first, second in pairs)
    assert "{" not in questions


@pytest.mark.parametrize(
    "steps, solution",
    [
        ("a+b r1-c", [(64, "+", 33, 97), (97, "-", 40, 57)]),
        ("a/b", None),
        ("b-a", None),
        ("a-a", None),
        ("a*a", None),
    ],
)
def test_solve_gives_the_steps_of_a_story_with_results_from_1_to_999(steps, solution):
    assert solve(steps, {"a": 64, "b": 33, "c": 40}) == solution


def test_no_question_occurs_twice_nor_in_both_splits(generated, held_out):
    questions = {problem["question"] for problem in generated}
    other = {problem["question"] for problem in generate_problems("train", 1000, seed=1)}
    assert len(held_out) == 512 and len(questions) == len(generated)
    assert (questions | other).isdisjoint(problem["question"] for problem in held_out)


def test_the_seed_decides_the_training_problems_and_never_the_test_problems(generated, held_out):
    assert generate_problems("train", 50, seed=0) == generated[:50]
    assert generate_problems("train", 50, seed=8) != generated[:50]
    assert load_problems("test", seed=123) == held_out
    assert PROBLEM in generated[:6]  # the module's worked example


# Gold answers and real cases


@pytest.mark.parametrize(
    "steps, names", [(0, []), (1, ["1_step"]), (3, ["3_steps"]), (9, ["4_or_more_steps"])]
)
def test_subgroups_name_the_number_of_steps_of_the_worked_answer(steps, names):
    assert subgroups({"question": "?", "answer": "1+1=<<1+1=2>>2\n" * steps + "#### 2"}) == names


@needs_data
@pytest.mark.parametrize("name, count", [("gsm8k_test", 1319), ("gsm8k_train_sample", 2000)])
def test_every_real_gold_answer_is_read(name, count):
    problems = load_problems("all", str(DATA / f"{name}.jsonl"))
    assert len(problems) == count
    assert all(gold(p) == int(p["answer"].split("####")[1].replace(",", "")) for p in problems)


# Rows of gsm8k_completions.jsonl on which the lenient reading and the label differ. Both ran out of
# tokens just after the right number: one inside \boxed{, one behind the last sum. We read it, the
# label wants a finished box or block.
DISAGREEMENTS = [192, 373]


@needs_data
def test_the_verdicts_agree_with_the_labels_of_real_completions():
    rows = real("gsm8k_completions")
    found = [lenient(r["completion"], with_gold(r["gold"])) for r in rows]
    differ = [i for i, (r, value) in enumerate(zip(rows, found)) if value != r["label_correct"]]
    assert (len(rows), differ) == (500, DISAGREEMENTS)
    paid = [r for r in rows if reward(r["completion"], with_gold(r["gold"])).answer]
    assert len(paid) >= 50 and all(r["label_correct"] for r in paid)
