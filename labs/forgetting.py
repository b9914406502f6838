"""Does reinforcement forget less than fine-tuning? (RL's razor, arXiv:2509.04259)"""

import os
import random
import sys

from lab import COUNTDOWN, ROOT, Expected, Lab, Run, Tuning, on_task
from select_or_reinforce import TUNING

import countdown_rewards
from plumbing.models import load_tokenizer

sys.path.append(os.path.join(ROOT, "models", "nano-base"))
from make_base import AUTHORS, write_as


def systematic_rows(seed):
    """Attempts written by the most systematic authors of the base's training, in good form."""
    tokenizer = load_tokenizer("models/nano-base")
    rng = random.Random(seed)
    author = AUTHORS["systematic"]._replace(forms=(1, 0, 0, 0, 0))
    rows = []
    for problem in countdown_rewards.load_problems("train", None, seed)[:4096]:
        response = write_as(author, problem["nums"], problem["target"], rng)
        prompt = countdown_rewards.format_prompt(problem, tokenizer)
        rows.append({"prompt": prompt, "response": response})
    return rows


LAB = Lab(
    title="Reinforcement forgets less than fine-tuning",
    claim="At equal accuracy on the new task, models that were trained by reinforcement keep more "
    "of what they could before than fine-tuned ones, because samples of their own keep them near "
    "the base (RL's razor, arXiv:2509.04259).",
    prediction="Both reach 0.55 on Countdown. The word problems, which the base does at 0.24, stay "
    "within 0.05 after reinforcement; they lose more than 0.1 after fine-tuning with 1e-3 and "
    "less with 3e-4.",
    runs={
        "GRPO": Run(COUNTDOWN),
        "fine-tuned, 3e-4": Tuning(f"{TUNING} --steps 100", systematic_rows),
        "fine-tuned, 1e-3": Tuning(f"{TUNING} --steps 100 --learning_rate 1e-3", systematic_rows),
    },
    expected=[
        Expected("GRPO", "fine-tuned, 3e-4", above=0.0, measure="gsm8k, T 1"),
        Expected("GRPO", "fine-tuned, 1e-3", above=0.05, measure="gsm8k, T 1"),
        Expected("GRPO", "fine-tuned, 3e-4", within=0.15, claim=False),
    ],
    measures=(on_task("gsm8k"),),
    found="The word problems, of which the base does 0.17 to 0.18 (the 0.24 of the prediction was "
    "without the new stories), stay at 0.16 after reinforcement, and after fine-tuning with 3e-4 "
    "as well, which is no worse on Countdown. With 1e-3 half of them are lost. What forgets here "
    "is a large step, not what the step follows.",
    limits="One new task and one old one, both of numbers, in a model that has seen nothing else. "
    "The traces are of authors that the base has learned from: fine-tuning on another's habits "
    "would move it further.",
)

if __name__ == "__main__":
    LAB.main()
