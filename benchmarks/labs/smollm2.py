"""Does the reward teach what no example showed, to a model that others trained?

    python models/smollm2.py          # the model, once
    python -m benchmarks.labs.smollm2

Before training, SmolLM2-135M-Instruct never answers in the format that the reward reads. 64 written
answers teach the format and some subtracting. In their questions Ava has more, so nothing shows
what to do if Ben has more. A run takes a quarter of an hour on two cores, a minute on an H200, and
2 GB of disk.
"""

import statistics
from dataclasses import replace
from functools import partial

import nano_r1
from benchmarks import controls, runs
from benchmarks.labs.lab import COINS_TASK, SHORT, Lab, Prediction, Run
from tasks import coins_rewards

ALL = coins_rewards.load_problems("train") + coins_rewards.load_problems("test")
# This model cannot subtract larger numbers.
QUESTIONS = [p for p in ALL if "cleo" not in p and max(p["ava"], p["ben"]) <= 20]
HELD_OUT = QUESTIONS[:64]
TRAINED = QUESTIONS[64:]


def written_answers(config):
    """64 rows in which Ava has more."""
    _, task = runs.load(config)
    rows = []
    for problem in [p for p in TRAINED if p["ava"] > p["ben"]][:64]:
        a, b = problem["ava"], problem["ben"]
        completion = f"\n{a}-{b}={a - b}\n</think>\n<answer>{a - b}</answer>"
        rows.append({"prompt": task.prompt_text(problem), "completion": completion})
    return rows


def on_small_numbers(rollout, sampler, problems, task, config, step):
    return rollout(sampler, TRAINED, task, config, step)


def by_order(config):
    """The share of correct completions, 4 for each held-out question, by who has more."""
    counts = controls.answers(replace(config, temperature=1.0), HELD_OUT, 4)
    found = {"Ava has more": [], "Ben has more": []}
    for problem, correct in zip(HELD_OUT, counts):
        name = "Ava" if problem["ava"] > problem["ben"] else "Ben"
        found[f"{name} has more"].append(correct / 4)
    return {name: statistics.mean(shares) for name, shares in found.items()}


MODEL = f"--model models/smollm2-135m {COINS_TASK} --eval_problems 16 --eval_every 0"
TUNING = f"{MODEL} --batch_size 16 --learning_rate 2e-5 --warmup_steps 4"
REWARD = f"{MODEL} {SHORT} --prompts_per_step 8 --learning_rate 1e-5 --kl_coef 0 --steps 30"
CORRECT = partial(on_small_numbers, nano_r1.rollout)
SELECTED = partial(controls.right_samples, tokens=42_000, rollout=CORRECT)
LAB = Lab(
    title="The reward teaches an order that no example showed",
    claim="SmolLM2-135M imitates 64 written answers. In all of them Ava has more. Then the "
    "reward also teaches the other order (Ben has more); imitation does not.",
    prediction="If Ben has more, the reward reaches 30% correct, imitation of the model's own "
    "correct samples half of that, the others at most 10%.",
    runs={
        "cold start": Run(f"{TUNING} --steps 16", rows=written_answers),
        "more written answers": Run(f"{TUNING} --steps 46", rows=written_answers),
        "format reward": Run(
            REWARD,
            {"rollout": partial(on_small_numbers, controls.format_reward)},
            start="cold start",
        ),
        "its correct samples": Run(f"{TUNING} --steps 30", rows=SELECTED, start="cold start"),
        "correctness reward": Run(REWARD, {"rollout": CORRECT}, start="cold start"),
    },
    predictions=[
        Prediction("correctness reward", 0.3, measure="Ben has more"),
        Prediction("more written answers", 0.0, within=0.1, measure="Ben has more"),
        Prediction("format reward", 0.0, within=0.1, measure="Ben has more"),
        Prediction("correctness reward", "its correct samples", 0.15, measure="Ben has more"),
    ],
    measures=(by_order,),
    found="If Ben has more, the reward reaches 31% correct (23% to 39%), imitation of correct "
    "samples 21% (12% to 33%), the format reward 8%, more written answers 7%, the cold start 4%. "
    "The reward is ahead of imitation, but by less than predicted.",
    limits="There are only 64 questions. The runs used an H200.",
)

if __name__ == "__main__":
    LAB.main()
