"""Countdown: the reward of a completion, what a legal expression is, the generator, files."""

import random
import re
import time
from fractions import Fraction

import pytest
from labelled import DATA, needs_data, real
from tables import columns, lines
from work import light

import countdown_rewards
from countdown_rewards import (
    PROMPTS,
    Prompt,
    generate_problems,
    judge,
    load_problems,
    reachable,
    reward,
    subgroups,
    to_problem,
)


def of(target, *nums):
    return {"nums": list(nums), "target": target}


# The reward of a completion

STYLES = PROMPTS | {  # and as in runs/prompts
    "reasoning": Prompt("", opening="", thinking="reasoning", weights=(1, 2)),
    "steps": Prompt("", opening="", stop=("</answer>",), thinking="", steps=True),
}
WORDS = [
    ("«", "36-19=17,17-7=10,10+55=65 yes\n</think>\n<answer>"),
    ("»", "</answer>"),
    ("RIGHT", "((36-19)-7)+55"),
    ("WRONG", "((36-19)+7)+55"),
]
# completion | nums = target | total, format and answer | a part of the reason. «36» is a completion
# with thinking whose answer block holds 36. A prompt other than `short` stands behind the target.
ROWS = r"""
«RIGHT» | 19 36 55 7 = 65 | 2 1 1 | correct
«WRONG» | 19 36 55 7 = 65 | 1 1 0 | equals 79, not 65
«36/(19+7)*55» | 19 36 55 7 = 65 | 1 1 0 | equals 990/13, not 65
«36+55» | 19 36 55 7 = 65 | 1 1 0 | uses 36, 55 instead of each
«36+19+55+7=65» | 19 36 55 7 = 65 | 0.5 0.5 0 | it has '='
«(36+19+55+7» | 19 36 55 7 = 65 | 0.5 0.5 0 | '(' was never closed
«36+19+55+7)» | 19 36 55 7 = 65 | 0.5 0.5 0 | unmatched ')'
«36+19+55*/7» | 19 36 55 7 = 65 | 0.5 0.5 0 | not an expression
«⟨1001×1⟩» | 19 36 55 7 = 65 | 0.5 0.5 0 | more than 1000 characters
«⟨499×(⟩1⟨499×)⟩+» | 19 36 55 7 = 65 | 0.5 0.5 0 | not an expression
«⟨499×1+⟩1» | 19 36 55 7 = 65 | 1 1 0 | uses 1, 1, 1, 1, 1, 1, 1, 1
«» | 19 36 55 7 = 65 | 0.5 0.5 0 | not an expression
« ⏎» | 19 36 55 7 = 65 | 0.5 0.5 0 | not an expression
«()» | 19 36 55 7 = 65 | 0.5 0.5 0 | it has '()'
«+-» | 19 36 55 7 = 65 | 0.5 0.5 0 | it has '+'
# The tags
\u0020yes </think>⏎⏎<answer>⏎( (36 - 19)\u0009- 7 )⏎ + 55 </answer>\u0020 | 19 36 55 7 = 65 | 2 1 1
36-19=17⏎<answer>RIGHT</answer> | 19 36 55 7 = 65 | 1 0 1 | correct; format: no </think>
<answer>WRONG</answer> | 19 36 55 7 = 65 | 0 0 0 | equals 79, not 65; format: no </think>
yes</think>So:<answer>RIGHT</answer> | 19 36 55 7 = 65 | 1 0 1 | text before the answer
«RIGHT» Done. | 19 36 55 7 = 65 | 1 0 1 | format: text after </answer>
«RIGHT»</answer> | 19 36 55 7 = 65 | 1 0 1 | format: text after </answer>
«RIGHT» so </answer>⏎ | 19 36 55 7 = 65 | 1 0 1 | text after </answer>
«WRONG»<answer>RIGHT</answer> | 19 36 55 7 = 65 | 1 0 1 | two answer blocks
«RIGHT»<answer>WRONG</answer> | 19 36 55 7 = 65 | 0 0 0 | two answer blocks
«<answer>RIGHT» | 19 36 55 7 = 65 | 1 0 1 | format: two answer blocks
«RIGHT</think>» | 19 36 55 7 = 65 | 0 0 0 | format: a second </think>
<think>«RIGHT» | 19 36 55 7 = 65 | 2 1 1
so <think>«RIGHT» | 19 36 55 7 = 65 | 1 0 1 | format: a second <think>
</answer></think><answer>RIGHT</answer> | 19 36 55 7 = 65 | 2 1 1
# A block inside the thinking counts neither for nor against the last one.
<answer>RIGHT</answer></think><answer>WRONG</answer> | 19 36 55 7 = 65 | 1 1 0 | equals 79
<answer>WRONG</answer></think><answer>RIGHT</answer> | 19 36 55 7 = 65 | 2 1 1
maybe <answer>RIGHT</answer>⏎</think> | 19 36 55 7 = 65 | 0 0 0 | no answer block; format: no <answer>
EMPTY | 19 36 55 7 = 65 | 0 0 0 | ; format: no </think>
65 | 19 36 55 7 = 65 | 0 0 0 | no answer block, for the completion was cut off; format: no </think>
RIGHT | 19 36 55 7 = 65 | 0 0 0 | no answer block, for the completion was cut off
RIGHT</think> | 19 36 55 7 = 65 | 0 0 0 | no answer block; format: no <answer>
<answer>RIGHT | 19 36 55 7 = 65 | 0 0 0 | no answer block, for the completion was cut off
</think><answer>RIGHT | 19 36 55 7 = 65 | 0 0 0 | was cut off; format: no </answer>
RIGHT</answer> | 19 36 55 7 = 65 | 0 0 0 | no answer block, for the completion was cut off
</answer></think><answer> | 19 36 55 7 = 65 | 0 0 0 | no answer block, for the completion was cut off
<reasoning>17 | 19 36 55 7 = 65 reasoning | 0 0 0 | no answer block, for the completion was cut off
# An end marker or a newline behind the answer is harmless.
«RIGHT»⏎ | 19 36 55 7 = 65 | 2 1 1
«RIGHT» ⏎⏎ | 19 36 55 7 = 65 | 2 1 1
«RIGHT»</s> | 19 36 55 7 = 65 | 2 1 1
«RIGHT»<|im_end|>⏎ | 19 36 55 7 = 65 | 2 1 1
«RIGHT»<|eot_id|><|endoftext|>⏎</s>\u0020 | 19 36 55 7 = 65 | 2 1 1
# Tags and weights are those of the prompt.
<reasoning>17</reasoning>⏎<answer>RIGHT</answer> | 19 36 55 7 = 65 reasoning | 3 1 1 | correct
<reasoning>17</reasoning>⏎<answer>RIGHT</answer> | 19 36 55 7 = 65 | 1 0 1 | no </think>
«RIGHT» | 19 36 55 7 = 65 reasoning | 2 0 1 | no <reasoning> at the start
17</reasoning>⏎<answer>RIGHT</answer> | 19 36 55 7 = 65 reasoning | 2 0 1 | no <reasoning> at the start
so⏎<answer>3-2*1</answer> | 1 2 3 = 1 steps | 2 1 1
so⏎3-2*1 | 1 2 3 = 1 steps | 0 0 0 | no answer block; format: no <answer>
so⏎<answer>3-2*1 | 1 2 3 = 1 steps | 0 0 0 | no answer block, for the completion was cut off
# Legal: one minus sign before a number or a parenthesis, any depth, exact fractions.
«(-53 - 53 + 54 + 65)» | 53 53 54 65 = 13 | 2 1 1
«-(96 - 58) + 92» | 96 58 92 = 54 | 2 1 1
«-2*3+10» | 2 3 10 = 4 | 2 1 1
«-12/4/3+2» | 12 4 3 2 = 1 | 2 1 1
«-(-(7))» | 7 = 7 | 2 1 1
«4 * -(9*2)» | 4 9 2 = -72 | 2 1 1
«9+-2» | 9 2 = 7 | 2 1 1
«2--5» | 2 5 = 7 | 2 1 1
«6/-2*3» | 6 2 3 = -9 | 2 1 1
«0+7» | 0 7 = 7 | 2 1 1
«7*7» | 7 7 = 49 | 2 1 1
«8/(3-8/3)» | 8 3 8 3 = 24 | 2 1 1
«1+2*3-8/4» | 1 2 3 8 4 = 5 | 2 1 1
«10-3-2» | 10 3 2 = 5 | 2 1 1
«24/4/2*3» | 24 4 2 3 = 9 | 2 1 1
«1/3» | 1 3 = 1/3 | 2 1 1
«⟨195×(⟩1⟨195×)⟩+2⟨607× ⟩» | 1 2 = 3 | 2 1 1
«⟨195×-(⟩1⟨195×)⟩+2» | 1 2 = 1 | 2 1 1
# Python's parser takes at most 200 parentheses within each other.
«⟨495×(⟩1⟨495×)⟩+2       » | 1 2 = 3 | 0.5 0.5 0
# No expression: Python's own operators and spellings, other scripts' digits and signs.
«2**3» | 2 3 = 8 | 0.5 0.5 0
«2* *3» | 2 3 = 8 | 0.5 0.5 0
«7//2» | 7 2 = 3 | 0.5 0.5 0
«9**9**9» | 9 9 9 = 387420489 | 0.5 0.5 0
«2.5 * 4» | 2 5 4 = 10 | 0.5 0.5 0
«.5*8» | 5 8 = 4 | 0.5 0.5 0
«--2+5» | 2 5 = 7 | 0.5 0.5 0
«2---5» | 2 5 = -3 | 0.5 0.5 0
«-» | = 0 | 0.5 0.5 0
«+2+5» | 2 5 = 7 | 0.5 0.5 0
«2*+5» | 2 5 = 10 | 0.5 0.5 0
«2(5)» | 2 5 = 10 | 0.5 0.5 0
«(2)(5)» | 2 5 = 10 | 0.5 0.5 0
«2 5» | 2 5 = 25 | 0.5 0.5 0
«()2+5» | 2 5 = 7 | 0.5 0.5 0
«2+5+» | 2 5 = 7 | 0.5 0.5 0
«2_5» | 25 = 25 | 0.5 0.5 0
«1e1» | 1 1 = 10 | 0.5 0.5 0
«5%2» | 5 2 = 1 | 0.5 0.5 0
«5^2» | 5 2 = 25 | 0.5 0.5 0
«max(5,2)» | 5 2 = 5 | 0.5 0.5 0
«\boxed{5+2}» | 5 2 = 7 | 0.5 0.5 0
«6−2» | 6 2 = 4 | 0.5 0.5 0
«6–2» | 6 2 = 4 | 0.5 0.5 0
«6×2» | 6 2 = 12 | 0.5 0.5 0
«6÷2» | 6 2 = 3 | 0.5 0.5 0
«6∕2» | 6 2 = 3 | 0.5 0.5 0
«6·2» | 6 2 = 12 | 0.5 0.5 0
«１+2» | 1 2 = 3 | 0.5 0.5 0
«١+2» | 1 2 = 3 | 0.5 0.5 0
«1²+2» | 1 2 = 3 | 0.5 0.5 0
«1＋2» | 1 2 = 3 | 0.5 0.5 0
«½*2» | 1 2 = 3 | 0.5 0.5 0
# An expression, but no solution: a number used twice, left out, not given, joined, split.
«2*2+3» | 2 3 = 7 | 1 1 0
«2+3» | 2 3 9 = 5 | 1 1 0
«2+3-1» | 2 3 = 4 | 1 1 0
«23» | 2 3 = 23 | 1 1 0
«2+3» | 23 = 5 | 1 1 0
«7» | 7 7 = 7 | 1 1 0
«07+2» | 7 2 = 9 | 1 1 0
«1/0» | 1 0 = 1 | 1 1 0 | divides by zero
«5/(3-3)» | 5 3 3 = 1 | 1 1 0
«1/0*0» | 1 0 0 = 1 | 1 1 0
# As a float, it rounds to the target.
«(100000000000000000*3+1)/3» | 100000000000000000 3 1 3 = 100000000000000000 | 1 1 0
# Steps, or one equation
«⏎Step 1: 1 + 2 = 3⏎Step 2: 3 / 3 = 1⏎» | 1 2 3 = 1 steps | 2 1 1
«Step 1: 1 + 2 = 3 Step 2: 3 / 3 = 1» | 1 2 3 = 1 steps | 2 1 1
«1+2=3⏎3/3=1» | 1 2 3 = 1 steps | 2 1 1
«Step 1: 3 - 2 = 1.⏎Step 2: 1 * 1 = 1.» | 1 2 3 = 1 steps | 2 1 1
«(1 + 2) / 3» | 1 2 3 = 1 steps | 2 1 1
«(1 + 2) / 3 = 1.0» | 1 2 3 = 1 steps | 2 1 1
«(1 + 2) / 3 = 3/3.» | 1 2 3 = 1 steps | 2 1 1
«-2 + 1 * 3» | 1 2 3 = 1 steps | 2 1 1
«3 - 5 = -2⏎(-2) + 12 = 10» | 3 5 12 = 10 steps | 2 1 1
«5 / 2 = 2.5⏎2.5 * 4 = 10» | 2 4 5 = 10 steps | 2 1 1
«Step 1: 1 + 2 = 4⏎Step 2: 4 - 3 = 1» | 1 2 3 = 1 steps | 1 1 0 | 1 + 2 = 4' is not true
«Step 1: 1 + 2 = 3⏎Step 2: 3 - 2 = 1» | 1 2 3 = 1 steps | 1 1 0 | uses 1, 2, 2 instead of
«Step 1: 2 - 1 = 1⏎Step 2: 3 - 3 = 0» | 1 2 3 = 1 steps | 1 1 0 | 'Step 1: 2 - 1 = 1' is not true, or its result is not used
«Step 1: 3 - 2 = 1» | 1 2 3 = 1 steps | 1 1 0 | uses 3, 2 instead of
«1 - 1 = 0⏎5 / 0 = 5» | 1 2 3 = 1 steps | 1 1 0 | divides by zero
«1 + 2 = 3⏎3 - 3 = 0⏎1» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has '='
«first 1 + 2 = 3⏎then 3 / 3 = 1» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has 'f'
«(1 + 2) / 3 = 2» | 1 2 3 = 1 steps | 1 1 0 | '(1 + 2) / 3 = 2' is not true
«(1 + 2) / 3 = 1/0» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has '='
«(1 + 2) / 3 = 1e0» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has '='
«(1 + 2) / 3 =» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has '='
«1 + 2 + 3» | 1 2 3 = 1 steps | 1 1 0 | equals 6, not 1
«I do not know» | 1 2 3 = 1 steps | 0.5 0.5 0 | it has 'I'
«» | 1 2 3 = 1 steps | 0.5 0.5 0 | not an expression
«+» | 1 2 3 = 1 steps | 0.5 0.5 0 | not an expression
«3-2*1 = 1⟨1000× ⟩» | 1 2 3 = 1 steps | 0.5 0.5 0 | more than 1000 characters
«3 - 5 = -2⏎-2 + 12 = 10» | 3 5 12 = 10 steps | 2 1 1
«6 / 2 = 3.0⏎3 * 4 = 12» | 6 2 4 = 12 steps | 2 1 1
«6/2=3⏎4-1=3⏎3*3=9» | 6 2 4 1 = 9 steps | 2 1 1
«43-2=41⏎34-75=-41⏎(-41)+41=0» | 75 2 34 43 = 0 steps | 2 1 1
«(1 + 2)⏎/ 3» | 1 2 3 = 1 steps | 2 1 1
«1 + 2 = 4⏎4 / 3 = 1» | 1 2 3 = 1 steps | 1 1 0 | is not true
«2 + 2 = 4⏎(1 + 2) / 3 = 1» | 1 2 3 = 1 steps | 1 1 0 | its result is not used
«3 / 2 = 3/2⏎3/2 * 1 = 3/2» | 1 2 3 = 1 steps | 0.5 0.5 0
«(1 + 2) / 3 = 3 / 3 = 1» | 1 2 3 = 1 steps | 0.5 0.5 0
"""  # noqa: E501


@pytest.mark.parametrize("line", lines(ROWS))
def test_the_reward_of_a_completion_and_its_reason(line):
    text, numbers, parts, *why = columns(line, WORDS)
    nums, target = numbers.split("=")
    target, style = f"{target} short".split()[:2]
    target = Fraction(target) if "/" in target else int(target)
    problem = of(target, *map(int, nums.split()))
    prompt = STYLES[style]
    result = reward(text, problem, prompt)
    assert result[:3] == tuple(map(float, parts.split())) and "".join(why) in result.why
    assert (result.why == "correct") == (result.format == result.answer == 1.0)


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
        result = reward(f"so</think><answer>{text}</answer>", problem)
        assert (result.format == 1.0) == derivable(text), text
        value, why, _ = judge(text, problem, steps=False)
        if value is None:
            assert "zero" in why or not derivable(text) or re.search(r"\b0[0-9]", text)
        else:
            assert value == eval(re.sub("([0-9]+)", r"Fraction(\1)", f"({text})"))


# Hostile text: no exception, nothing executed, linear time

FRAGMENTS = columns(r"""
<think> | </think> | <answer> | </answer> | <answer>(1+2) | (3*4)</answer> | </ | < |
</think><answer>1+2+3+4</answer> | 1 | 07 | 2.5 | 1e999 | 9**9**9 | ⟨400×9⟩ | 1/0 | 1/(2-2) | ( |
) | () | (((((((( | -( | -1 | 1-2-3-4 | [1 | ] | + | - | * | / | // | . | = | , | e | _ | ０１２ |
٣ | ² | ½ | 𝟙 | × | ÷ | − | \u200b | \u3000 | \u0000 | \u001c | \ud800 | \u0020 | ⏎ | \u0009 |
<|endoftext|> | </s> | <|im_end | import os | __import__('os') | {nums} | %s | \boxed{ |
Step 1: 1 + 2 = 3⏎ | Step 2: 3 + 3 = 6\u0020 | Step | Step 1: | \u0020= 10 | ⏎10 = 10 | 1=1⏎ |
<reasoning> | </reasoning> | \ | - -
""")


def rewards_of_hostile_texts(module, problem, fragments, prompts):
    """Fragments at random, and each again and again; most of them where an answer stands."""
    rng = random.Random(time.time_ns())
    texts = ["".join(rng.choices(fragments, k=rng.choice((1, 4, 9, 99)))) for _ in range(3000)]
    texts += [part * (size // len(part)) for part in fragments for size in (190, 990, 800_000)]
    around = ["so</think><answer>{}</answer>", "{}", "</think><answer>1</answer>{}x"]
    for text in texts:
        completion = rng.choice(around).replace("{}", text)
        for prompt in prompts.values():
            result = light(module.reward, completion, problem, prompt)
            assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
            assert 0 < len(result.why) <= 200 and result.why.isprintable()


def test_hostile_text_up_to_800_kilobytes_gets_a_reward_with_little_work():
    rewards_of_hostile_texts(countdown_rewards, of(10, 1, 2, 3, 4), FRAGMENTS, STYLES)


# The generator


TRAIN = generate_problems("train", 2000, seed=0)
TEST = load_problems("test")


def test_generated_problems_are_as_documented():
    assert TRAIN[0] == {"nums": [29, 98, 51, 93], "target": 16}  # as in all versions
    for problem in TRAIN + TEST:
        assert all(type(number) is int and 1 <= number <= 99 for number in problem["nums"])
        assert problem["target"] in reachable(tuple(problem["nums"])) & set(range(10, 101))


REACHED = """
6 3 | 2 3 9 18
3 6 | 2 3 9 18
0 5 | 0 5
5 3 | 2 8 15
5 | 5
2 2 2 | 0 1 2 3 6 8
"""


@pytest.mark.parametrize("line", lines(REACHED))
def test_reachable_lists_every_value_that_is_whole_and_not_negative(line):
    nums, values = [tuple(map(int, column.split())) for column in columns(line)]
    assert reachable(nums) == set(values)


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
