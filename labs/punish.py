"""Does punishing wrong answers alone work, and does it keep pass@k? (arXiv:2506.01347)"""

from lab import COUNTDOWN, Lab, Prediction, Run, tries

import variants


def only_negative(rewards, config):
    return variants.advantages(rewards, config).clamp(max=0)


def only_positive(rewards, config):
    return variants.advantages(rewards, config).clamp(min=0)


BINARY = f"{COUNTDOWN} --binary_reward"
LAB = Lab(
    title="Punishing alone works and keeps pass@k",
    claim="Training only on wrong answers, by making them less likely, raises pass@k of "
    "Qwen2.5-Math-7B on MATH for k from 1 to 256, often as much as GRPO. With only correct "
    "answers, pass@k falls (arXiv:2506.01347).",
    prediction="Punishment removes giving up, which is mostly wrong.",
    runs={
        "both signs": Run(BINARY),
        "wrong only": Run(BINARY, {"advantages": only_negative}),
        "correct only": Run(BINARY, {"advantages": only_positive}),
    },
    predictions=[
        Prediction("wrong only", above=0.15),
        Prediction("wrong only", "both signs", above=-0.05, measure="pass@64 of 64"),
        Prediction("both signs", "correct only", within=0.1, claim=False),
    ],
    measures=(tries,),
    found="Training only on wrong answers raises pass@1 from 10% to 49%, but stays below both "
    "signs at every k (pass@64: 69% and 84%). Training only on correct answers matches both "
    "signs (pass@1 63%, pass@64 84%).",
    limits="The base solves 90% of the 64 problems in 64 tries, so a loss of pass@k can be seen "
    "but a gain cannot.",
)

if __name__ == "__main__":
    LAB.main()
