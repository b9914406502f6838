"""Do a base's habits decide what reinforcement makes of it? (arXiv:2503.01307)"""

import os
import random
import sys

from lab import COUNTDOWN, RANDOM_BASE, ROOT, Expected, Lab, Run, Tuning

from countdown_rewards import format_prompt, load_problems
from plumbing.models import load_tokenizer

sys.path.append(os.path.join(ROOT, "models", "nano-base"))
from make_base import systematic_attempts

KINDS = ("right, searching", "wrong, searching", "right, no search")
LINES = 7  # of a search that does not succeed


def write(kind, problem, rng):
    """A completion of this kind for the problem; None where there is none."""
    nums = rng.sample(problem["nums"], len(problem["nums"]))
    failed = []
    for line, value, expression in systematic_attempts(nums, problem["target"]):
        if value == problem["target"]:
            break
        failed.append((f"{line} no", expression))
    if value != problem["target"] or len(failed) < 2:
        return None
    if kind == "wrong, searching":
        expression = failed[: LINES + 1][-1][1]
        lines = [line for line, _ in failed[:LINES]]
    else:
        searched = [*(line for line, _ in failed), f"{line} yes"]
        lines = searched if kind == "right, searching" else [line]
    return "\n".join(["", *lines, f"</think>\n<answer>{expression}</answer>"])


def primed(kind):
    """`before` of a run: the base after fine-tuning on 1,024 completions of this kind."""

    def rows(seed):
        tokenizer = load_tokenizer("models/random-base")
        rng = random.Random(seed)
        texts = ((p, write(kind, p, rng)) for p in load_problems("train", None, seed)[:8192])
        row = lambda p, t: {"prompt": format_prompt(p, tokenizer), "response": t}
        return [row(p, t) for p, t in texts if t][:1024]

    def before(seed, path):
        flags = f"{RANDOM_BASE} --task countdown --max_tokens 128 --eval_problems 64 --steps 60"
        tuned = f"{path}-primed"
        Tuning(f"{flags} --save_every 0 --no-report", rows).train(tuned, seed)
        return os.path.join(tuned, "model")

    return before


FLAGS = f"{COUNTDOWN} {RANDOM_BASE}"
LAB = Lab(
    title="Habits decide, not right answers",
    claim="On this very game: a model that verifies and goes back improves under reinforcement, "
    "one that does not stays behind; priming it with such traces helps, **even where their answers "
    "are wrong**, as much as right ones (arXiv:2503.01307).",
    prediction="From a base of random authors, primed with 1,024 completions and then 20 steps. "
    "Searching traces with wrong answers end within 0.1 of searching traces with right ones, and "
    "both at least 0.15 above right answers without a search.",
    runs={"not primed": Run(FLAGS)} | {k: Run(FLAGS, before=primed(k)) for k in KINDS},
    expected=[
        Expected("wrong, searching", "right, searching", within=0.1),
        Expected("wrong, searching", "right, no search", above=0.15),
        Expected("right, searching", "not primed", above=0.1, claim=False),
    ],
    found="Priming with right searches brings at once (0.06 to 0.22) more than 20 steps do without "
    "it. Then the habit goes: a search that is cut off does not even earn its form, and in ten "
    "steps completions shrink from 97 to 67 tokens, the wrong searches to a single attempt.",
    limits="The traces are of a program that searches in an order, so that they teach an order "
    "besides the habit. The paper's model had read the web; what it knew before is unknown.",
)

if __name__ == "__main__":
    LAB.main()
