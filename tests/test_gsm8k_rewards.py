"""GSM8K: the reward of a completion, how a number is read, the generator, files."""

import random
import re
from fractions import Fraction

import pytest
from labelled import DATA, needs_data, real
from tables import columns, lines
from test_countdown_rewards import rewards_of_hostile_texts

import countdown_rewards
import gsm8k_rewards
from gsm8k_rewards import (
    PROMPTS,
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

WORDS = [("«", "\n64+33=97\n97-40=57\n</think>\n<answer>"), ("»", "</answer>")]
# completion | total, format and answer | a part of the reason. «57» is a completion with thinking
# whose answer block holds 57.
ROWS = r"""
«57» | 2 1 1 | correct
«⏎ 57\u0009⏎» | 2 1 1 | correct
«57.0» | 2 1 1 | correct
«57»<|im_end|>⏎ | 2 1 1 | correct
«58» | 1 1 0 | is 58, not 57
«7/14» | 1 1 0 | is 1/2, not 57
«7/0» | 0.5 0.5 0 | more than one number
«57 eggs» | 1.5 0.5 1 | correct; format: something else in the answer block
«$57» | 1.5 0.5 1 | correct
«57%» | 1.5 0.5 1 | correct
«`57`» | 1.5 0.5 1 | correct
«**57**» | 1.5 0.5 1 | correct
«$57$» | 1.5 0.5 1 | correct
«\$57.00» | 1.5 0.5 1 | correct
«\boxed{57}» | 1.5 0.5 1 | correct
«\frac{114}{2}» | 1.5 0.5 1 | correct
«» | 0.5 0.5 0 | no number: ''
«fifty-seven» | 0.5 0.5 0 | no number
«97-40=57» | 0.5 0.5 0 | more than one number
«57 or 58» | 0.5 0.5 0 | more than one number
«x = 57» | 0.5 0.5 0 | not a plain number
«57 million» | 0.5 0.5 0 | 'million' may change the number
«⟨201×5⟩» | 0.5 0.5 0 | not a plain number
# Just short enough to be read, and slow to read for a careless expression
«⟨100×a ⟩» | 0.5 0.5 0 | no number
«5⟨190× ⟩!» | 0.5 0.5 0 | not a plain number
«5 ⟨60×ab ⟩» | 0.5 0.5 0 | not a plain number
«⟨200×$⟩» | 0.5 0.5 0 | no number
«⟨100×**⟩» | 0.5 0.5 0 | no number
«1⟨49×,080⟩» | 0.5 0.5 0 | not a plain number
64+33=97⏎<answer>57</answer> | 1 0 1 | correct; format: no </think>
«57»</answer> | 1 0 1 | format: text after </answer>
«57»<answer>58</answer> | 0 0 0 | is 58, not 57; format: two answer
«58»<answer>57</answer> | 1 0 1 | correct; format: two answer
<answer>57</answer></think><answer>58</answer> | 1 1 0 | is 58
<answer>57</answer></think> | 0 0 0 | no answer block; format: no <answer>
EMPTY | 0 0 0 | no answer block, for the completion was cut off; format: no </think>
57 | 0 0 0 | no answer block, for the completion was cut off
</think>57 | 0 0 0 | no answer block; format: no <answer>
57</answer> | 0 0 0 | no answer block, for the completion was cut off
</think><answer>57 | 0 0 0 | no </answer>
</answer></think><answer> | 0 0 0 | no </answer>
"""


@pytest.mark.parametrize("line", lines(ROWS))
def test_the_reward_of_a_completion_its_reason_and_its_vote(line):
    text, parts, why = columns(line, WORDS)
    result = reward(text, PROBLEM)
    assert result[:3] == tuple(map(float, parts.split())) and why in result.why
    assert (result.why == "correct") == (result.total == 2.0)
    vote = final_answer(text, PROBLEM)
    assert vote == "57" if result.answer else vote is None or f"is {vote}, not 57" in result.why


@pytest.mark.parametrize(
    "answer, correct",
    [("5", 1), ("5 meters", 1), ("5 Meter.", 1), ("5 feet", 0), ("5 square meters", 0)],
)
def test_a_unit_is_that_of_the_gold_answer_if_both_have_one(answer, correct):
    result = reward(f"</think><answer>{answer}</answer>", {"answer": "#### 5 meters"})
    assert result.answer == correct and ("not in meter" in result.why) != correct


# How a number is read

# value | texts; two spaces stand between texts
NUMBERS = r"""
# Real answers of models
975 | \boxed{975}\) dollars
26 | \[ \boxed{26} \)
101 | \boxed{}101
-7 | - 7  -\boxed{7}  \boxed{-\$7}  **-$7**
7/2 | \$\frac{7}{2}  \boxed{$3.50$}.
None | 5 $600  $5$600  \boxed{5}600  \boxed{1} 080  5**600**  1$080  €5 $6
None | \text{5}600  \(5\)000  `1`,080  5 hundredths  7...
72 | 72  72.  72 degrees  72 degrees.  72°  72 °F  72^\circ  **72**
72 | **72 eggs.**  **72** eggs  \(72\)  $72$  `72`  \boxed{72}.  72th
72 | \boxed{72} inches  \boxed{72 inches}  $\boxed{72}$ square inches.
72 | \[ \boxed{72} \]  \( \boxed{72} \)  72^{\circ} C  \boxed{72 \text{ cm}}
72 | \boxed{72} \text{ hours}  \text{72}  72 miles/hour  72 miles per hour
7 | +7  007  7.0  7kg  7 percent  7%  7\%  7¢  7 times  7/1
7 | $7  $ 7  £7  \$7  $\$7$  14 / 2  \frac{14}{2}  7 quarters
-7 | -7  \u22127  \u20137  -$7  $-7  $\boxed{-7}$  -\frac{7}{1}
0 | 0  -0  0.0
1/2 | .5  7/14  \frac{7}{14}  \dfrac{1}{2}  $\tfrac{1}{2}$ cup
7/2 | 3\frac{1}{2}  3 \frac{1}{2} cups  \boxed{\frac{7}{2}}
1080 | 1,080  1 080  1\u00a0080  1\u2009080  1\u202f080  1{,}080  1\,080
2900001/2 | 1,450,000.50  $1,450,000.5
⟨30×9⟩ | ⟨30×9⟩
1000000000000 | 1,000,000,000,000  $1 000 000 000 000  1\u202f000\u202f000\u202f000\u202f000 eggs
-1000000 | -1,000,000  −1\u00a0000\u00a0000  –1,000,000.00 eggs  −\frac{1000000}{1}
-7/123456 | -7/123456  −7/123456
12.0345 | 12.0345  012.0345
# Not clearly one number
None | EMPTY  .  -  $  %  eggs  -eggs  NaN  inf  **  \boxed{}  $$
None | 3 or 4  3, 4  3 4  5 apples and 3 pears  3-4  9*8=72  72 cm^2
None | 1 3/2  1 2/2  1/2 1/2  1 1/2/3  1 1/2 1  1/2 1
None | 5:30  1,08  12,34,56  1,0800  ,080  1,080 200  0,123  1234,567  1 08
None | 1⏎080  1.2.3  1.000,5  ⟨31×9⟩  72 of the very many eggs
None | 5 million  5 Dozen  2 and a half  3 or four  3 to five  5 squared  5 tens
None | 5 minus two  1 third  5 lakh  5 less than ten  5 times two  5 grand  5 mil
None | 5 bn  5 mn  3 sevenths  2 ninths  3 tenths  7 hundredths  4 twelfths
None | \boxed{5} million  \boxed{5} tens  \boxed{5} \text{ million}  5k  5x  5 M
None | 2i  5π  1e3  0x10  1_000  --7  -$-7  ~7  =7  x = 72  (7)8
None | about 72  not 72  7!  √4  7/2/3  7.5/2  7/-2  7/0  \frac{7}{0}
None | ７２  ٧٢  ²  ½  五  7²  7\u200b2  \ud800  5 <b>eggs</b>  3 times 4
None | \boxed{5} or \boxed{6}  \boxed{5} 6  \boxed{5}6  \boxed{5  $5$ $6$
None | **5** or **6**  \frac{7}{14}\frac{1}{2}  \frac{7}{x}  \frac{7}  3\sqrt{2}
# Currencies, rates, brackets and short fractions are read, and other words are not.
8 | \boxed{8}\ years old.  8\ years  8~apples  8\;cm  \boxed{8}\ \text{ years}
100 | 100 km/h  100km/h.  100 km/hr  100 m/s  100 miles/h  100 g/l  100 dollars / hour
100 | 100 miles north
18 | (18)  (18).  **(18)**  \((18)\)  (\boxed{18})  (18 apples)  ($18)
1/2 | \frac12  \frac1{2}  \frac{1}2  \dfrac12  \cfrac 1 2  \frac12 cup  \boxed{\tfrac12}
7/2 | 3\frac12  3 \frac1{2} cups  3 1/2  3 1/2 cups  $3 1/2  \boxed{3 1/2}  **3 1/2**  3\ 1/2
-7/2 | -3 1/2  -3\frac{1}{2}
27/2 | 13 1/2  13 2/4
5 | USD 5  US$5  US$ 5  A$5.00  Rs. 5  Rs 5  EUR 5  ₹5  ¥5  5 USD  5€  $5 USD  CA\$5
-5 | -US$5  US$-5  -₹5  -USD 5  USD -5
None | 5 pi  0.3 repeating  5 recurring  5 gross  5 score  5 is wrong  5 not  5 incorrect  5 none
None | 5 undefined  5 per mille  5 infinite  5 invalid  5 k/h  5/x  5 x/y  5 m/2  ~5  5 squared
None | (5)(6)  (5) 6  (5  5)  ((5)+1)  US5  XUSD 5  x$5  5 USD 6  1 USD 080  1$080  1₹080  (1)080
None | \frac123  \frac{1}23  \frac1  5\ 6  5~6  \frac12\frac12
"""


@pytest.mark.parametrize("line", lines(NUMBERS))
def test_a_number_is_read_with_its_sign_separators_unit_and_markup_or_refused(line):
    value, texts = columns(line)
    expected = None if value == "None" else Fraction(value)
    found = {text: parse_number(text)[0] for text in texts.split("  ")}
    assert found == dict.fromkeys(found, expected)


def test_separators_are_accepted_only_between_groups_of_three_and_two_numbers_are_never_one():
    rng = random.Random(0)
    texts = ["1,234.5", "12,345,678", "0  .", "0..", "0..."]
    texts += ["".join(rng.choices("0123456789,. -", k=rng.randint(0, 9))) for _ in range(9999)]
    for joint in (" or ", " and ", ", ", "; ", " - ", "\n", " = ", " ", "$ $", "**", "}{"):
        texts += [f"{rng.randrange(100)}{joint}{rng.randrange(100)}" for _ in range(100)]
    grouped = re.compile(r"(- *)?(\d+|[1-9]\d?\d?((,\d{3})+|( \d{3})+))?(\.\d*)? *\.?")
    for text in texts:
        one = grouped.fullmatch(text.strip()) and re.search(r"\d", text)
        value = Fraction(re.sub("[, ]", "", text).rstrip(".")) if one else None
        assert parse_number(text)[0] == value, text


FRAGMENTS = columns(r"""
<think> | </think> | <answer> | </answer> | <answer>57 | </think><answer>57</answer> | < | </ | 5 |
57 | 057 | 1,080 | 1,08 | 1, | 1 080 | 1. | .5 | 1e999 | 9**9**9 | ⟨400×9⟩ | 7/0 | 7/ | /14 | - |
+ | − | – | $ | \$ | € | % | \% | ° | ** | ` | \( | \) | = | , | . | : | # | \boxed{ | \boxed{57} |
\boxed{57} eggs | \[ | \] | ^\circ | \u0020times | { | } | {} | \text{ | \text{ eggs} | #### 57 |
\frac | \frac{57}{1} | \frac5 | ( | (57) | USD\u0020 | Rs. | ~ | \\u0020 | km/ | /h | ₹ |
answer is | \u0020eggs | ab | or | \u0020and\u0020 | ５７ | ٧ | ² | ½ | \ | \u00a0 | \u2009 |
\u200b | \u0000 | \ud800 | \u0020 | ⏎ | \u0009 | </s> | <|im_end|>⏎ | {question} | %s
""")


def test_hostile_text_up_to_800_kilobytes_gets_a_reward_with_little_work():
    rewards_of_hostile_texts(gsm8k_rewards, PROBLEM, FRAGMENTS, PROMPTS)


# The generator


TRAIN = generate_problems("train", 2000, seed=0)
TEST = load_problems("test")


def test_the_worked_answer_computes_each_step_and_ends_in_the_last_result():
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
def test_no_problem_occurs_twice_nor_in_both_splits_and_the_seed_decides_only_training(task):
    train = task.generate_problems("train", 2000, 0) + task.generate_problems("train", 1000, 1)
    test = task.load_problems("test")
    keys = set(map(task.problem_key, train))
    assert len(keys) > 2900 and len(test) == 512 and keys.isdisjoint(map(task.problem_key, test))
    assert task.generate_problems("train", 50, 0) == train[:50] != train[2000:2050]
    assert task.load_problems("test", seed=123) == test


@pytest.mark.parametrize(
    "steps, names", [(0, []), (1, ["1_step"]), (3, ["3_steps"]), (9, ["4_or_more_steps"])]
)
def test_subgroups_name_the_number_of_steps_of_the_worked_answer(steps, names):
    assert subgroups({"question": "?", "answer": "1+1=<<1+1=2>>2\n" * steps + "#### 2"}) == names


# Public problems and completions


@needs_data
@pytest.mark.parametrize("name, count", [("gsm8k_test", 1319), ("gsm8k_train_sample", 2000)])
def test_every_public_gold_answer_is_read(name, count):
    problems = load_problems("all", str(DATA / f"{name}.jsonl"))
    assert len(problems) == count
    assert all(gold(p)[0] == int(p["answer"].split("####")[1].replace(",", "")) for p in problems)


@needs_data
def test_every_rewarded_public_completion_has_the_label_correct():
    rows = real("gsm8k_completions")
    correct = [row for row in rows if reward(row["completion"], {"answer": row["gold"]}).answer]
    assert len(correct) >= 50 and all(row["label_correct"] for row in correct)


# Problems from rows

ROW = {"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}


@pytest.mark.parametrize("answer", [2, "2", "2.0", ROW["answer"]])
def test_the_answer_of_a_row_is_a_number_or_ends_in_one(answer):
    assert to_problem({"question": "A?", "answer": answer, "x": 1}) == {
        "question": "A?",
        "answer": str(answer),
    }


@pytest.mark.parametrize("question", ["", " \n", None, 7, "so\fon", "2\times 3", "1\r2"])
def test_a_question_that_is_no_clear_text_is_refused(question):
    with pytest.raises(ValueError, match="needs question, a text|a control character"):
        to_problem({**ROW, "question": question})


@pytest.mark.parametrize("answer", [None, True, [2], "many", "#### 3 or 4\n", "57\n####", "2\x00"])
def test_an_answer_that_is_no_clear_number_is_refused(answer):
    with pytest.raises(ValueError, match="needs .* answer, a number or a text with ####"):
        to_problem({**ROW, "answer": answer})
