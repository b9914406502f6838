"""Does reinforcement forget less than fine-tuning? (RL's razor, arXiv:2509.04259)"""

import random
import statistics
import sys
from dataclasses import replace

from lab import COUNTDOWN, ROOT, TUNING, Lab, Prediction, Run, controls

import gsm8k_rewards
import runs

sys.path.append(f"{ROOT}/models/nano-base")
from make_base import AUTHORS, write_as


def systematic_rows(config):
    """Well-formed attempts by the most systematic programs that wrote the base's training text."""
    _, task = runs.load(config)
    rng = random.Random(config.seed)
    author = AUTHORS["systematic"]._replace(forms=(1, 0, 0, 0, 0))
    rows = []
    for problem in task.load_problems("train", config)[:4096]:
        prompt = task.tokenizer.decode(task.prompt_ids(problem))
        completion = write_as(author, problem["nums"], problem["target"], rng)
        rows.append({"prompt": prompt, "completion": completion})
    return rows


def word_problems(config):
    """pass@1 on 256 word problems: a task that the base could do before."""
    problems = gsm8k_rewards.load_problems("test")[:256]
    correct = controls.answers(replace(config, task="gsm8k", max_tokens=64), problems, 1)
    return {"gsm8k": statistics.mean(correct)}


LAB = Lab(
    title="Reinforcement forgets less than fine-tuning",
    claim="At equal accuracy on a new task, models trained by reinforcement keep more of their "
    "old skills than fine-tuned ones, because their own samples keep them near the base "
    "(RL's razor, arXiv:2509.04259).",
    prediction="Both reach 55% on Countdown. Only fine-tuning harms the word problems.",
    runs={
        "GRPO": Run(COUNTDOWN),
        "fine-tuned, 3e-4": Run(TUNING, rows=systematic_rows),
        "fine-tuned, 1e-3": Run(f"{TUNING} --learning_rate 1e-3", rows=systematic_rows),
    },
    predictions=[
        Prediction("GRPO", "fine-tuned, 3e-4", measure="gsm8k"),
        Prediction("GRPO", "fine-tuned, 1e-3", above=0.05, measure="gsm8k"),
        Prediction("GRPO", "fine-tuned, 3e-4", within=0.15, claim=False),
    ],
    measures=(word_problems,),
    found="The base solves 17% to 18% of the word problems. GRPO leaves 16%. So does "
    "fine-tuning with 3e-4, which is better on Countdown (65%, GRPO 54%). Fine-tuning with 1e-3 "
    "leaves 9%, so a large step forgets here.",
    limits="One new and one old task. The base has learned from the imitated programs.",
)

if __name__ == "__main__":
    LAB.main()
