"""Hostile completions of every task: no exception, and none above a second.

    python tests/crash/hostile.py --strings 500000 --tasks countdown gsm8k math

Strings are fragments put together at random, and prefixes, suffixes and repetitions of these; the
checks are those of tests/test_TASK_rewards.py.
"""

import argparse
import importlib
import random
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (2, 1)]
AROUND = {
    "countdown": ("so</think><answer>{}</answer>", "{}"),
    "gsm8k": ("so</think><answer>{}</answer>", "{}"),
    "math": ("\\boxed{{{}}}", "{}"),
}


def hostile(rng, fragments):
    """A text of up to 40 fragments, most of fewer, of which a part may be repeated."""
    parts = rng.choices(fragments, k=rng.randint(0, rng.choice((4, 10, 40))))
    if rng.random() < 0.1:
        parts = parts[: rng.randint(1, 3)] * rng.randint(2, 60)
    if rng.random() < 0.1:
        parts.append("".join(chr(rng.randrange(0x3000)) for _ in range(10)))
    return "".join(parts)


def attack(task, strings, seed):
    """Check so many, and print the slowest one."""
    tests = importlib.import_module(f"test_{task}_rewards")
    rng = random.Random(f"{task} {seed}")
    tests.check_bounded("\\boxed{\\sqrt{5}}")  # MATH's worker starts
    slowest = (0.0, "")
    for number in range(1, strings + 1):
        text = rng.choice(AROUND[task]).format(hostile(rng, tests.FRAGMENTS))
        began = time.monotonic()
        try:
            tests.check_bounded(text)
        except Exception as error:
            error.add_note(f"{task}, string {number}: {text!r}")
            raise
        slowest = max(slowest, (time.monotonic() - began, text))
        if number % 10_000 == 0 or number == strings:
            seconds, text = slowest
            print(f"{task}: {number:,} strings, at most {seconds:.3f} s: {text!r:.60}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strings", type=int, default=500_000)
    parser.add_argument("--tasks", nargs="+", default=list(AROUND))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for task in args.tasks:
        attack(task, args.strings, args.seed)
