"""Does punishing wrong answers alone work, and does it keep pass@k? (arXiv:2506.01347)"""

from lab import COUNTDOWN, Expected, Lab, Run, tries

import variants


def only_negative(rewards, config):
    return variants.advantages(rewards, config).clamp(max=0)


def only_positive(rewards, config):
    return variants.advantages(rewards, config).clamp(min=0)


VERDICT = f"{COUNTDOWN} --binary_reward"

LAB = Lab(
    title="Punishing alone works and keeps pass@k",
    claim="Training on wrong answers alone, by making them less likely, raises Qwen2.5-Math-7B "
    "over all of pass@1 to pass@256 on MATH, often as far as PPO and GRPO or further; on right "
    "answers alone pass@1 rises and pass@k falls (arXiv:2506.01347).",
    prediction="Punishing alone raises pass@1 by at least 0.15, less than both signs do: it takes "
    "away the giving up, which is wrong most of the time. pass@64 is within 0.05 of GRPO's: the "
    "base solves most of these problems in 64 tries, so there is little to lose. Right answers "
    "alone: pass@1 near GRPO's.",
    runs={
        "both signs": Run(VERDICT),
        "wrong alone": Run(VERDICT, advantages=only_negative),
        "right alone": Run(VERDICT, advantages=only_positive),
    },
    expected=[
        Expected("wrong alone", above=0.15),
        Expected("wrong alone", "both signs", above=-0.05, measure="pass@64 of 64"),
        Expected("both signs", "right alone", within=0.1, claim=False),
    ],
    measures=(tries(),),
    found="To punish alone takes pass@1 from 0.10 to 0.49; that much held. But it does worse than "
    "both signs at every k here, and to reward alone does as well as both: no sign that it costs "
    "pass@k.",
    limits="64 problems and 64 tries; at this size the base has 0.9 in that many, so that a loss "
    "of pass@k can be seen and a gain cannot.",
)

if __name__ == "__main__":
    LAB.main()
