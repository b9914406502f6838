import json
import re
import socket
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import gsm8k_rewards
from gsm8k_rewards import (
    STORIES,
    final_answer,
    format_prompt,
    generate_problems,
    gold,
    lenient,
    load_problems,
    parse_number,
    reward,
    solve,
    subgroups,
)
from plumbing.tasks import Reward

PROBLEM = {
    "question": "Iris has 64 eggs and buys 33 more. Then Iris gives 40 of them to Ella. "
    "How many eggs does Iris have left?",
    "answer": "64+33=<<64+33=97>>97\n97-40=<<97-40=57>>57\n#### 57",
}
DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real cases is absent")


def completion(answer, thinking="\n64+33=97\n97-40=57"):
    return f"{thinking}\n</think>\n<answer>{answer}</answer>"


def with_gold(number):
    return {"question": "How many?", "answer": f"#### {number}"}


# The reward's values


def test_a_bare_right_number_earns_two():
    assert reward(completion("57"), PROBLEM) == (2.0, 1.0, 1.0, "correct")


def test_a_bare_wrong_number_earns_the_format_point_only():
    assert reward(completion("58"), PROBLEM) == (1.0, 1.0, 0.0, "is 58, not 57")


@pytest.mark.parametrize("answer", ["57 eggs", "$57", "57%", r"\boxed{57}", "**57**", "`57`", "$57$", r"\$57.00"])
def test_a_unit_or_markup_around_the_right_number_costs_half_a_format_point(answer):
    assert reward(completion(answer), PROBLEM) == (1.5, 0.5, 1.0, "correct")


@pytest.mark.parametrize("answer", ["", "97-40=57", "x = 57", "57 or 58", "fifty-seven", "50 7"])
def test_what_is_not_one_number_earns_half_a_format_point_only(answer):
    assert reward(completion(answer), PROBLEM)[:3] == (0.5, 0.5, 0.0)


def test_without_the_closing_think_tag_a_right_number_earns_the_answer_point_only():
    assert reward("64+33=97\n<answer>57</answer>", PROBLEM) == (1.0, 0.0, 1.0, "correct")


@pytest.mark.parametrize("text", ["", "57", "</think>57", "<answer>57", "57</answer>", "</answer></think><answer>"])
def test_without_an_answer_block_nothing_is_earned(text):
    assert reward(text, PROBLEM) == (0.0, 0.0, 0.0, "no answer block after the thinking")


@pytest.mark.parametrize("end", ["\n", "<|endoftext|>", "<|im_end|>\n", "</s> "])
def test_an_end_marker_or_newline_after_the_answer_is_harmless(end):
    assert reward(completion("57") + end, PROBLEM).total == 2.0


def test_white_space_around_the_number_is_harmless():
    assert reward(completion("\n 57\t\n"), PROBLEM).total == 2.0


def test_a_right_answer_inside_the_thinking_does_not_beat_a_wrong_final_one():
    assert reward("<answer>57</answer></think><answer>58</answer>", PROBLEM).answer == 0.0


def test_a_stray_closing_tag_costs_the_format_point_only():
    assert reward(completion("57") + "</answer>", PROBLEM)[:3] == (1.0, 0.0, 1.0)


def test_the_last_answer_block_decides():
    assert reward(completion("57") + "<answer>58</answer>", PROBLEM).answer == 0.0
    assert reward(completion("58") + "<answer>57</answer>", PROBLEM).answer == 1.0


@pytest.mark.parametrize("style", gsm8k_rewards.PROMPTS)
def test_every_prompt_style_pays_two_for_the_form_it_asks_for(style):
    assert reward(completion("57"), PROBLEM, style).total == 2.0


@pytest.mark.parametrize(
    "answer, why",
    [
        ("57.0", "correct"),
        ("7/14", "is 1/2, not 57"),
        ("", "no number: ''"),
        ("many", "no number: 'many'"),
        ("3 or 4", "more than one number: '3 or 4'"),
        ("1,08", "not a plain number: '1,08'"),
        ("5 million", "'million' may change the number: '5 million'"),
        ("7/0", "divides by zero"),
        ("5" * 201, "answer longer than 200 characters"),
    ],
)
def test_why_says_what_is_wrong_in_a_few_words(answer, why):
    assert reward(completion(answer), PROBLEM).why == why


# How a number is read


@pytest.mark.parametrize(
    "text, value",
    [
        ("72", 72),
        ("-7", -7),
        ("+7", 7),
        ("\u22127", -7),
        ("\u20137", -7),
        ("007", 7),
        ("0", 0),
        ("-0", 0),
        ("7.0", 7),
        ("72.", 72),
        (".5", Fraction(1, 2)),
        ("-0.25", Fraction(-1, 4)),
        ("7/14", Fraction(1, 2)),
        ("-7 / 14", Fraction(-1, 2)),
        ("43,500", 43_500),
        ("1,450,000.50", Fraction(2_900_001, 2)),
        ("1 080", 1080),
        ("1\u00a0080", 1080),
        ("1\u2009080", 1080),
        ("1\u202f080\u202f000", 1_080_000),
        ("1{,}080", 1080),
        (r"1\,080", 1080),
        ("$8,400", 8400),
        (r"\$8,400", 8400),
        ("$ 5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("£5", 5),
        ("72 degrees", 72),
        ("72 degrees.", 72),
        ("72°", 72),
        ("72 °F", 72),
        ("5kg", 5),
        ("6th", 6),
        ("60 miles/hour", 60),
        ("60 miles per hour", 60),
        ("25¢", 25),
        ("50%", 50),
        (r"20\%", 20),
        ("50 percent", 50),
        ("**72**", 72),
        ("**72 eggs.**", 72),
        (r"\boxed{72}", 72),
        (r"\boxed{72}.", 72),
        (r"$\boxed{-72}$", -72),
        (r"\boxed{80 \text{ cm}}", 80),
        (r"\(72\)", 72),
        ("$72$", 72),
        (r"$\$8,400$", 8400),
        ("`72`", 72),
        (r"\boxed{72} inches", 72),
        (r"\boxed{72 inches}", 72),
        (r"$\boxed{72}$ square inches.", 72),
        ("**72** eggs", 72),
        (r"\[ \boxed{75} \]", 75),
        (r"\( \boxed{75} \)", 75),
        (r"72^\circ", 72),
        (r"72^{\circ} C", 72),
        ("3 times", 3),
    ],
)
def test_a_number_is_read_with_its_sign_separators_unit_and_markup(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "-", "$", "%", "eggs", "-eggs", "NaN", "inf", "**", "\\boxed{}", "$$"),
        *("3 or 4", "3, 4", "3 4", "5 apples and 3 pears", "1 1/2", "3-4", "3 - 4", "9*8=72", "72 cm^2", "5:30"),
        *("1,08", "12,34,56", "1,0800", ",080", "1,080 200", "0,123", "1234,567", "1 08", "1\n080", "1.2.3", "1.000,5"),
        *("5 million", "5 Dozen", "2 and a half", "3 or four", "3 to five", "5 squared", "5 minus two", "1 third"),
        *("5 tens", "5 lakh", "5 less than ten", "5 times two", "5 grand", r"\boxed{5} million", r"\boxed{5} tens"),
        *("5k", "5x", "5 M", "2i", "5π", "1e3", "0x10", "1_000"),
        *("--7", "-$-7", "- 7", "~7", "=7", "x = 72", "about 72", "not 72", "(7)", "7!", "√4"),
        *("7/2/3", "7.5/2", "7/-2", "7/0"),
        *("７２", "٧٢", "²", "½", "五", "7²", "7\u200b2", "\ud800"),
        *(
            r"\boxed{5} or \boxed{6}",
            r"\boxed{5} 6",
            r"\boxed{5}6",
            "3 times 4",
            r"\boxed{5",
            "**5** or **6**",
            "$5$ $6$",
            r"\frac{7}{14}",
            "5 <b>eggs</b>",
        ),
        "72 of the very many eggs",
    ],
)
def test_what_is_not_clearly_one_number_is_refused(text):
    with pytest.raises(ValueError):
        parse_number(text)


def test_a_number_of_thirty_digits_is_read_and_a_longer_one_is_not():
    assert parse_number("9" * 30) == 10**30 - 1
    with pytest.raises(ValueError):
        parse_number("9" * 31)


def test_numbers_are_compared_exactly():
    third = with_gold("100/3")
    assert reward(completion("33.333333333333333333"), third).answer == 0.0
    assert reward(completion("200/6"), third).answer == 1.0


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{:d}", "{:,d}", "${:d}", "{:,d} eggs", "**{:d}**", "{:d}.00"]))
def test_every_integer_is_read_back_in_every_form(number, form):
    assert parse_number(form.format(number)) == number


@given(st.integers(0, 10**12), st.sampled_from([" ", "\u00a0", "\u2009", "\u202f"]), st.sampled_from(["-", "\u2212"]))
def test_every_integer_is_read_back_with_spaces_between_thousands(number, space, minus):
    assert parse_number(minus + f"{number:,}".replace(",", space)) == -number


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=4))
def test_every_decimal_is_read_back_exactly(number):
    assert parse_number(f"{number:f}") == Fraction(number)


@given(st.integers(-999, 999), st.integers(1, 999))
def test_every_fraction_is_read_back_exactly(numerator, denominator):
    assert parse_number(f"{numerator}/{denominator}") == Fraction(numerator, denominator)


@settings(max_examples=2000)
@given(st.text("0123456789,. ", max_size=12))
@example("1,234.5")
@example("12,345,678")
@example("0  .")
def test_separators_are_accepted_only_between_groups_of_three(text):
    text = text.strip()
    grouped = re.fullmatch(r"(\d+|[1-9]\d?\d?((,\d{3})+|( \d{3})+))?(\.\d*)? *\.?", text) and re.search(r"\d", text)
    try:
        number = parse_number(text)
    except ValueError:
        number = None
    assert number == (Fraction(re.sub("[, ]|[.]$", "", text).rstrip(".")) if grouped else None)


@given(st.integers(0, 99), st.sampled_from([" or ", " and ", ", ", "; ", " - ", "\n", " = ", " "]), st.integers(0, 99))
def test_two_numbers_are_never_read_as_one(first, joint, second):
    with pytest.raises(ValueError, match="more than one number"):
        parse_number(f"{first}{joint}{second}")


# What a completion votes for


@pytest.mark.parametrize("answer, vote", [("57", "57"), ("$57.00", "57"), ("14/4", "7/2"), ("-3.5", "-7/2")])
def test_equal_numbers_vote_for_the_same_text(answer, vote):
    assert final_answer(completion(answer), PROBLEM) == vote


@pytest.mark.parametrize("text", ["", "57", completion("57 or 58"), completion(""), "<answer>57</answer></think>"])
def test_a_completion_without_a_legible_answer_block_does_not_vote(text):
    assert final_answer(text, PROBLEM) is None


# The lenient reading


@pytest.mark.parametrize(
    "text",
    [
        completion("57"),
        completion("the answer is 57"),
        "<answer>57",
        "<answer> so \\boxed{57 \\text{ eggs}} remain </answer>",
        "\\boxed{57}",
        "64+33=97 \\[ \\boxed{57} \\] and 97 before",
        "97-40=57\n#### 57\nnext question: 12",
        "The answer is 57 because 97-40 is that, see 40",
        "The answer is: **$57**, see 40",
        "A: 57\nQ: 40",
        "Answer: \\(57\\) of 97",
        "so 57 remain",
        "97-40=57<|im_end|>",
        "A: Iris had 97 and gave away 40, so 57.",
        "\\boxed{57",
    ],
)
def test_the_lenient_reading_finds_the_right_number(text):
    assert lenient(text, PROBLEM) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no number",
        "57 or 58",
        "<answer>58</answer> \\boxed{57}",
        "<answer>57</answer> <answer>58</answer>",
        "\\boxed{57} \\boxed{58} 57",
        "#### 57\n#### 58\n57",
        "A: 58\n57",
        "the answer is 58, not 57",
        "-57",
        "is −57",
        "57,5",
        "1,057",
        "57.5",
        "57/2",
        "157",
        "x57",
    ],
)
def test_the_lenient_reading_takes_no_other_number_for_the_right_one(text):
    assert lenient(text, PROBLEM) == 0.0


def test_the_lenient_reading_does_not_drop_a_sign():
    assert lenient("it is -7.", with_gold(-7)) == lenient("A: −$7", with_gold(-7)) == 1.0
    assert lenient("it is -7.", with_gold(7)) == 0.0


def test_the_lenient_reading_takes_a_minus_between_numbers_for_an_operator():
    assert lenient("10-3", with_gold(3)) == lenient("(10)-3", with_gold(3)) == 1.0


def test_the_lenient_reading_looks_at_the_last_twenty_thousand_characters():
    assert lenient("57" + " " * 19_900 + "eggs", PROBLEM) == 1.0
    assert lenient("57" + " " * 20_000 + "eggs", PROBLEM) == 0.0


@given(st.text(max_size=200), st.integers(-(10**9), 10**9))
def test_a_number_after_four_hashes_at_the_end_is_found_whatever_comes_before(before, number):
    before = before.replace("<answer>", "").replace("\\boxed", "")
    assert lenient(f"{before}\n#### {number:,}", with_gold(number)) == 1.0


# Hostile text

FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>57", "</think><answer>57</answer>", "<", "</",
    "5", "57", "057", "1,080", "1,08", "1,", "1 080", "1.", ".5", "1e999", "9**9**9", "9" * 400, "7/0", "7/", "/14",
    "-", "+", "\u2212", "\u2013", "$", "\\$", "€", "%", "\\%", "°", "**", "`", "\\(", "\\)", "=", ",", ".", ":", "#",
    "\\boxed{", "\\boxed{57}", "\\boxed{57} eggs", "\\[", "\\]", "^\\circ", " times", "{", "}", "{}", "\\text{",
    "\\text{ eggs}", "####", "#### 57", "A:", "A: ", "answer is",
    "Answer:", " eggs", "ab", "or", " and ", "５７", "٧", "²", "½", "\u00a0", "\u2009", "\u200b", "\x00", "\ud800",
    " ", "\n", "\t", "</s>", "<|endoftext|>", "<|im_end|>\n", "__import__('os')", "{question}", "%s",
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def check_bounded(text):
    start = time.process_time()
    result = reward(text, PROBLEM)
    vote = final_answer(text, PROBLEM)
    anywhere = lenient(text, PROBLEM)
    seconds = time.process_time() - start
    assert type(result) is Reward
    assert result.total == result.format + result.answer
    assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0) and anywhere in (0.0, 1.0)
    assert (vote == "57") == (result.answer == 1.0)
    assert 0 < len(result.why) <= 160 and result.why.isprintable()
    assert seconds < 1


@settings(max_examples=1000)
@given(st.text(max_size=300))
def test_arbitrary_text_is_judged_within_a_second(text):
    check_bounded(text)


@settings(max_examples=2000)
@given(hostile)
def test_hostile_text_is_judged_within_a_second(text):
    check_bounded(text)


@settings(max_examples=1000)
@given(st.text(max_size=210))
def test_arbitrary_answers_are_judged_within_a_second(answer):
    check_bounded(completion(answer))


@settings(max_examples=2000)
@given(st.text("0123456789,. -$/%a{}*`", max_size=60) | hostile)
@example("a " * 100)
@example("5" + " " * 190 + "!")
@example("5 " + "ab " * 60)
@example("$" * 200)
@example("**" * 100)
@example("1" + ",080" * 49)
def test_hostile_answers_are_judged_within_a_second(answer):
    check_bounded(completion(answer))


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_megabyte_of_one_fragment_is_judged_within_a_second(fragment):
    check_bounded(fragment * (1_000_000 // len(fragment)))
    check_bounded(completion(fragment * (1_000_000 // len(fragment))))


@settings(max_examples=60, phases=[Phase.generate], report_multiple_bugs=False)  # shrinking megabytes takes minutes
@given(hostile, hostile.filter(len), hostile)
def test_a_megabyte_of_mixed_fragments_is_judged_within_a_second(head, body, tail):
    check_bounded(head + body * (1_000_000 // len(body)) + tail)


# Speed


def test_ten_thousand_typical_completions_are_scored_in_two_seconds():
    problems = generate_problems("train", 200, seed=1)
    thinking = "".join(f"{a}+{a + 7}={2 * a + 7}\n" for a in range(30))
    answers = ("{}", "{}.00", "${}", "{} eggs", r"\boxed{{{}}}", "{} or 3", "x", "10-3={}", "{}5", "-{}")
    cases = [(completion(answer.format(gold(p)), thinking), p) for p in problems for answer in answers]
    assert len(cases) == 2000
    seconds = []
    for _ in range(5):
        start = time.process_time()
        for text, problem in cases:
            reward(text, problem)
            lenient(text, problem)
        seconds.append(time.process_time() - start)
    assert len(cases) / min(seconds) >= 5_000


# The generator


@pytest.fixture(scope="module")
def generated():
    return generate_problems("train", 4000, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return load_problems("test")


def test_problems_have_the_data_sets_two_columns(generated, held_out):
    assert all(list(p) == ["question", "answer"] for p in generated + held_out)


def test_the_worked_answer_computes_each_step_and_ends_in_the_last_result(generated):
    for problem in generated:
        steps = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)\n", problem["answer"])
        for left, operator, right, result, again in steps:
            left, right, result = int(left), int(right), int(result)
            expected = {"+": left + right, "-": left - right, "*": left * right, "/": Fraction(left, right)}
            assert expected[operator] == result == int(again)
        assert gold(problem) == result


def test_every_result_lies_between_1_and_999(generated):
    results = [int(n) for p in generated for n in re.findall(r"=(\d+)>>", p["answer"])]
    assert 1 <= min(results) and max(results) <= 999


def test_every_story_is_told(generated):
    for story, _ in STORIES:
        pattern = re.compile(r"\w+".join(map(re.escape, re.split(r"\{\w\}", story))))
        assert any(pattern.fullmatch(p["question"]) for p in generated), story


def test_no_placeholder_is_left_in_a_question(generated):
    assert not any("{" in p["question"] for p in generated)


def test_two_people_of_a_story_have_different_names(generated):
    pairs = [m for p in generated if (m := re.match(r"(\w+) has \d+ \w+\. (\w+) has \d+ more than \1", p["question"]))]
    assert len(pairs) > 50 and all(first != second for first, second in (m.groups() for m in pairs))


def test_solve_gives_the_steps_of_a_story():
    assert solve("a+b r1-c", {"a": 64, "b": 33, "c": 40}) == [(64, "+", 33, 97), (97, "-", 40, 57)]


@pytest.mark.parametrize("steps", ["a/b", "b-a", "a-a", "a*a"])
def test_solve_refuses_fractions_results_below_1_and_above_999(steps):
    assert solve(steps, {"a": 64, "b": 33}) is None


def test_the_splits_have_the_promised_sizes(held_out):
    assert len(held_out) == 512
    assert len(load_problems("train", seed=3)) == 16_384


def test_no_generated_question_occurs_twice(generated):
    assert len({p["question"] for p in generated}) == len(generated)


def test_generated_train_and_test_share_no_question(generated, held_out):
    other_seed = generate_problems("train", 2000, seed=1)
    assert {p["question"] for p in generated + other_seed}.isdisjoint(p["question"] for p in held_out)


def test_the_generator_is_reproducible_from_its_seed():
    assert generate_problems("train", 50, seed=7) == generate_problems("train", 50, seed=7)


def test_different_seeds_generate_different_problems():
    assert generate_problems("train", 50, seed=7) != generate_problems("train", 50, seed=8)


def test_the_test_split_is_the_same_for_every_seed(held_out):
    assert load_problems("test", seed=123) == held_out


def test_the_worked_example_of_the_module_is_a_generated_problem_and_earns_two():
    assert PROBLEM in generate_problems("train", 6, seed=0)
    assert PROBLEM["question"] in gsm8k_rewards.__doc__
    text = re.search(r"\n\n(    64\+33=97\n.*?</answer>)", gsm8k_rewards.__doc__, re.DOTALL)[1]
    assert reward(text.replace("    ", ""), PROBLEM).total == 2.0


# Subgroups and gold


@pytest.mark.parametrize(
    "steps, names",
    [(0, []), (1, ["1_step"]), (2, ["2_steps"]), (3, ["3_steps"]), (4, ["4_or_more_steps"]), (9, ["4_or_more_steps"])],
)
def test_subgroups_name_the_number_of_steps_of_the_worked_answer(steps, names):
    assert subgroups({"question": "?", "answer": "1+1=<<1+1=2>>2\n" * steps + "#### 2"}) == names


def test_gold_is_the_number_after_the_last_four_hashes():
    assert gold({"answer": "#### 3\n8*1000=8000\n#### -1,080.5"}) == Fraction(-2161, 2)


@pytest.mark.parametrize("answer", ["", "57", "57\n####", "#### many", "#### 3 or 4", "#### 57\n####"])
def test_an_answer_without_a_gold_number_is_refused(answer):
    with pytest.raises(ValueError, match="ends in #### and a number"):
        gold({"answer": answer})


# Problems from files and from the hub

ROWS = [
    {"question": f"How much is {n}+{n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
    for n in range(1, 41)
]


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
    """Write rows (or bytes) to a file of the given name; returns its path."""

    def write_file(name, rows):
        path = tmp_path / name
        if isinstance(rows, bytes):
            path.write_bytes(rows)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows))
        elif path.suffix == ".csv":
            datasets.Dataset.from_list(rows).to_csv(path)
        else:
            datasets.Dataset.from_list(rows).to_parquet(path)
        return str(path)

    return write_file


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_all_rows_of_a_file_are_loaded_in_order(write, name):
    assert load_problems("all", write(name, ROWS)) == ROWS


def test_reading_a_local_file_asks_nothing_of_the_network(write, lookups):
    load_problems("all", write("rows.jsonl", ROWS))
    assert lookups == []


def test_columns_that_are_not_needed_are_dropped(write):
    assert load_problems("all", write("rows.jsonl", [{**row, "level": 1} for row in ROWS])) == ROWS


def test_train_and_test_split_a_file_without_overlap_or_loss(write):
    path = write("rows.jsonl", ROWS)
    train, test = load_problems("train", path), load_problems("test", path)
    assert (len(train), len(test)) == (36, 4)
    assert sorted(p["question"] for p in train + test) == sorted(p["question"] for p in ROWS)


def test_the_split_of_a_file_depends_on_the_seed_only(write):
    path = write("rows.jsonl", ROWS)
    assert load_problems("test", path, 5) == load_problems("test", path, 5) != load_problems("test", path, 6)


@pytest.mark.parametrize("split, asked", [("train", "train"), ("test", "test"), ("all", "test")])
def test_the_hubs_own_splits_are_used_whole_and_in_order(monkeypatch, lookups, split, asked):
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_problems(split, "hub") == ROWS
    assert calls == [((), {"path": "openai/gsm8k", "name": "main", "split": asked})]


def error_of(path):
    with pytest.raises(ValueError) as caught:
        load_problems("train", path)
    message = str(caught.value)
    assert type(caught.value) is ValueError and path in message
    assert len(message.splitlines()) == 1 and len(message) < 400
    return message


def test_a_missing_file_is_a_sentence(tmp_path):
    assert "No such data file" in error_of(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_an_empty_file_is_a_sentence(write, name):
    assert "is empty" in error_of(write(name, b""))


@pytest.mark.parametrize(
    "name, content",
    [
        ("rows.jsonl", b'{"question": "caf\xe9", "answer": "#### 2"}\n'),
        ("rows.json", b'[{"question": "caf\xe9", "answer": "#### 2"}]'),
        ("rows.csv", b"question,answer\ncaf\xe9,#### 2\n"),
    ],
)
def test_a_file_that_is_not_utf_8_is_a_sentence(write, name, content):
    assert "could not be read" in error_of(write(name, content))


def test_a_missing_column_is_named(write):
    assert "answer missing" in error_of(write("rows.jsonl", [{"question": "How many?", "solution": "#### 2"}]))


@pytest.mark.parametrize(
    "bad, expected",
    [
        ({"question": "", "answer": "#### 2"}, "expected text as question, got ''"),
        ({"question": " \n", "answer": "#### 2"}, "expected text as question"),
        ({"question": None, "answer": "#### 2"}, "expected text as question, got None"),
        ({"question": 7, "answer": "#### 2"}, "expected text as question, got 7"),
        ({"question": ["a"], "answer": "#### 2"}, "expected text as question, got ['a']"),
        ({"question": "How many?", "answer": 2}, "expected text as answer, got 2"),
        ({"question": "How many?"}, "expected text as answer, got None"),
        ({"question": "How many?", "answer": "2"}, "ends in #### and a number, got '2'"),
        ({"question": "How many?", "answer": "#### 3 or 4\n"}, "ends in #### and a number, got '#### 3 or 4"),
        ({"question": "x" * 100_001, "answer": "#### 2"}, "at most 100,000 characters as question, got 100,001"),
        ({"question": "x", "answer": " " * 100_000 + "#### 2"}, "at most 100,000 characters as answer"),
    ],
)
def test_a_bad_row_is_named_with_what_was_expected(write, bad, expected):
    message = error_of(write("rows.jsonl", [ROWS[0], bad, ROWS[1]]))
    assert ", row 2: " in message and expected in message


# Real cases


@needs_data
@pytest.mark.parametrize("name, count", [("gsm8k_test", 1319), ("gsm8k_train_sample", 2000)])
def test_every_real_gold_answer_is_read(lookups, name, count):
    problems = load_problems("all", str(DATA / f"{name}.jsonl"))
    assert len(problems) == count
    assert all(gold(p) == int(p["answer"].split("####")[1].replace(",", "")) for p in problems)


# Rows of gsm8k_completions.jsonl on which the lenient reading and the label differ. Both ran out of tokens just after
# the right number: one inside \boxed{, one behind the last sum. We read it, the label wants a finished box or block.
DISAGREEMENTS = [192, 373]


@needs_data
def test_the_lenient_verdict_agrees_with_all_but_two_labels_of_real_completions():
    rows = [json.loads(line) for line in open(DATA / "gsm8k_completions.jsonl")]
    assert len(rows) == 500
    differ = [i for i, r in enumerate(rows) if lenient(r["completion"], with_gold(r["gold"])) != r["label_correct"]]
    assert differ == DISAGREEMENTS
    assert not any(rows[i]["label_correct"] for i in differ)


@needs_data
def test_the_strict_verdict_never_pays_a_real_completion_labelled_wrong():
    rows = [json.loads(line) for line in open(DATA / "gsm8k_completions.jsonl")]
    paid = [r for r in rows if reward(r["completion"], with_gold(r["gold"])).answer]
    assert len(paid) >= 50 and all(r["label_correct"] for r in paid)


# The prompt


@pytest.mark.parametrize("tokenizer", [SimpleNamespace(chat_template=None), SimpleNamespace()])
def test_the_short_prompt_is_the_question_alone_and_opens_the_thinking(tokenizer):
    assert format_prompt(with_gold(2), tokenizer) == "User: How many?\nAssistant: <think>"


def test_with_a_chat_template_the_question_is_the_users_turn():
    def apply_chat_template(messages, tokenize, add_generation_prompt):
        assert [m["role"] for m in messages] == ["user"] and not tokenize and add_generation_prompt
        return f"[user]{messages[0]['content']}[assistant]"

    tokenizer = SimpleNamespace(chat_template="...", apply_chat_template=apply_chat_template)
    assert format_prompt(with_gold(2), tokenizer) == "[user]How many?[assistant]<think>"


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_prompts_with_instructions_hold_the_question_and_name_the_tags(style):
    prompt = format_prompt(PROBLEM, SimpleNamespace(chat_template=None), style)
    assert PROBLEM["question"] in prompt and "<answer>" in prompt and prompt.endswith("<think>")


def test_the_plain_prompt_knows_no_roles():
    prompt = format_prompt(PROBLEM, SimpleNamespace(chat_template="..."), "plain")
    assert prompt.startswith(PROBLEM["question"]) and prompt.endswith("\n<think>")


def test_braces_in_a_question_stay_as_they_are():
    problem = {"question": "Is {answer} in {0} or {}?", "answer": "#### 2"}
    assert format_prompt(problem, SimpleNamespace()) == "User: Is {answer} in {0} or {}?\nAssistant: <think>"
