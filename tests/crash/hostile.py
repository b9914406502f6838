"""Hostile completions of every task: no exception, and none above a second.

    python tests/crash/hostile.py --strings 500000 --tasks countdown gsm8k math

Strings are fragments put together at random, and prefixes, suffixes and repetitions of these.
"""

import argparse
import importlib
import random
import sys
import time
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

from plumbing.forms import END_MARKERS
from plumbing.tasks import Reward

# Of each task: (a problem, what a right answer votes for; None where that has many spellings).
PROBLEMS = {
    "countdown": ({"nums": [1, 2, 3, 4], "target": 10}, "10"),
    "gsm8k": ({"question": "How many?", "answer": "97-40=<<97-40=57>>57\n#### 57"}, "57"),
    "math": ({"problem": "What is $1/4 + 1/4$?", "answer": "\\frac{1}{2}"}, None),
}
AROUND = {
    "countdown": ("so</think><answer>{}</answer>", "{}"),
    "gsm8k": ("so</think><answer>{}</answer>", "{}"),
    "math": ("\\boxed{{{}}}", "{}"),
}
LENGTHS = (190, 490, 990, 1_000_000)  # of one fragment repeated: below each limit, and far above
COUNTDOWN = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>(1+2)", "(3*4)</answer>",
    "</think><answer>1+2+3+4</answer>", "</", "<", ">",
    "1", "2", "3", "4", "07", "2.5", "1e999", "9**9**9", "9" * 400, "1/0", "1/(2-2)",
    "(", ")", "()", "((((((((", "-(", "-1", "1-2-3-4", "[1", "]", "+", "-", "*", "/", "//", ".",
    "=", ",", "e", "_", "０１２", "٣", "²", "½", "𝟙", "×", "÷", "−", "\u200b", "\u3000", "\x00",
    "\x1c", "\ud800", " ", "\n", "\t", *END_MARKERS, "__import__('os')", "import os", "{nums}",
    "%s", "\\boxed{", "Step 1: 1 + 2 = 3\n", "Step 2: 3 + 3 = 6 ", "Step", "Step 1:", " = 10",
    "\n10 = 10", "<reasoning>", "</reasoning>",
]  # fmt: skip
GSM8K = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>57", "</think><answer>57</answer>",
    "<", "</", "5", "57", "057", "1,080", "1,08", "1,", "1 080", "1.", ".5", "1e999", "9**9**9",
    "9" * 400, "7/0", "7/", "/14", "-", "+", "\u2212", "\u2013", "$", "\\$", "€", "%", "\\%", "°",
    "**", "`", "\\(", "\\)", "=", ",", ".", ":", "#", "\\boxed{", "\\boxed{57}", "\\boxed{57} eggs",
    "\\[", "\\]", "^\\circ", " times", "{", "}", "{}", "\\text{", "\\text{ eggs}", "####",
    "#### 57",
    "\\frac", "\\frac{57}{1}", "A:", "A: ", "answer is", "Answer:", " eggs", "ab", "or", " and ",
    "５７", "٧", "²", "½", "\u00a0", "\u2009", "\u200b", "\x00", "\ud800", " ", "\n", "\t", "</s>",
    "<|endoftext|>", "<|im_end|>\n", "__import__('os')", "{question}", "%s",
]  # fmt: skip
MATH = [
    "\\boxed{", "\\boxed{}", "\\boxed{5}", "}", "{", "\\{", "\\", "\\\\", "$", "$$", "\\[", "\\)",
    "\\text{", "\\frac", "\\frac{1}{", "\\sqrt{", "\\infty", "\\pi", "\\pm", "\\cup", "\\int",
    "\\sum_{k=1}^{n}", "\\binom", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "^", "^{", "_", "!",
    "(", ")", "[", "|", "%", "=", "<", "/", "-", "+", "9", "99999999", "1e999", "0", ".", ",", ";",
    "x", "i", "e", "A", " or ", " and ", "answer is ", "Answer:", "\n", " ", "\\!", "\\ ", "\\,",
    "~", "1, ", "1,000", " ,1", "a  b", "\x00", "\ud800", "٣", "½", "√", "{0}", "%s", "\\in",
    "__import__('os')", "<|im_end|>",
]  # fmt: skip
FRAGMENTS = {"countdown": COUNTDOWN, "gsm8k": GSM8K, "math": MATH}


def hostile(rng, fragments):
    """A text of up to 40 fragments, most of fewer, of which a part may be repeated."""
    if rng.random() < 0.2:
        fragments = "".join(fragments)  # single characters
    parts = rng.choices(fragments, k=rng.randint(0, rng.choice((4, 10, 40))))
    if rng.random() < 0.1:
        parts = parts[: rng.randint(1, 3)] * rng.randint(2, 60)
    if rng.random() < 0.1:
        parts.append("".join(chr(rng.randrange(0x3000)) for _ in range(10)))
    text = "".join(parts)
    if text and rng.random() < 0.01:
        text += text * (1_000_000 // len(text)) + rng.choice(fragments)
    return text


def strings(task, count, seed):
    """So many hostile texts, half of them where an answer stands."""
    rng = random.Random(f"{task} {seed}")
    for _ in range(count):
        yield rng.choice(AROUND[task]).format(hostile(rng, FRAGMENTS[task]))


def repetitions(task):
    """Each fragment again and again."""
    for fragment in FRAGMENTS[task]:
        for length in LENGTHS:
            for around in AROUND[task]:
                yield around.format(fragment * (length // len(fragment)))


def check_bounded(task, text):
    """Every function of the task that reads a completion gives what it promises, in time."""
    module = importlib.import_module(f"{task}_rewards")
    problem, right = PROBLEMS[task]
    start = time.process_time()
    rewards = {style: module.reward(text, problem, style) for style in module.PROMPTS}
    anywhere = module.lenient(text, problem)
    vote = module.final_answer(text, problem)
    seconds = time.process_time() - start
    for style, result in rewards.items():
        form, answer = module.PROMPTS[style].weights
        assert type(result) is Reward
        assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
        assert result.total == form * result.format + answer * result.answer
        assert 0 < len(result.why) <= 160 and result.why.isprintable()
    paid = rewards["short"].answer == 1.0
    assert (vote == right) == paid if right else vote or not paid
    assert anywhere in (0.0, 1.0) and (task != "math" or anywhere >= paid)
    assert seconds < 1, f"{seconds:.2f} s"


def attack(task, texts):
    """Check each; prints which took longest, by the clock: MATH asks other processes."""
    check_bounded(task, "\\boxed{\\sqrt{5}}")  # MATH's worker starts
    slowest = (0.0, "")
    for text in tqdm(texts, desc=task, unit=" strings"):
        began = time.monotonic()
        try:
            check_bounded(task, text)
        except Exception:
            print(f"{task}: {text[:2000]!r}", flush=True)
            raise
        slowest = max(slowest, (time.monotonic() - began, text))
    print(f"{task}: at most {slowest[0]:.3f} s: {slowest[1]!r:.60}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strings", type=int, default=500_000)
    parser.add_argument("--tasks", nargs="+", default=list(AROUND))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for task in args.tasks:
        attack(task, strings(task, args.strings, args.seed))
