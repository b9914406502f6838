"""Rejection sampling with fine-tuning, or reinforcement, at equal sampled tokens?"""

from functools import partial

from lab import COUNTDOWN, TUNING, Lab, Prediction, Run, controls

# The base samples as many tokens as a GRPO run; these are its correct, well-formed completions.
SELECTED = partial(controls.right_samples, tokens=140_000)
EACH_STEP = "--loss_type reinforce --baseline none --scale_rewards none --binary_reward"
LAB = Lab(
    title="Select or reinforce",
    claim="Rejection sampling followed by fine-tuning (RFT, arXiv:2308.01825; STaR, "
    "arXiv:2203.14465) is said to give much of what reinforcement gives.",
    prediction="The base's correct completions are mostly short and lucky, so imitation teaches "
    "format but no patience. (The last prediction was written afterwards and does not "
    "count.)",
    runs={
        "GRPO": Run(COUNTDOWN),
        "RFT once, 3e-4": Run(TUNING, rows=SELECTED),
        "RFT once, 1e-3": Run(f"{TUNING} --learning_rate 1e-3", rows=SELECTED),
        "RFT each step": Run(f"{COUNTDOWN} {EACH_STEP}"),
    },
    predictions=[
        Prediction("GRPO", "RFT once, 3e-4", above=0.2, claim=False),
        Prediction("GRPO", "RFT once, 1e-3", above=0.2, claim=False),
        Prediction("GRPO", "RFT each step", claim=False),
        Prediction("RFT once, 3e-4", "GRPO", above=-0.2, claim=False),
    ],
    found="The predictions were wrong. Imitating the base's correct completions once gives 60%. "
    "20 steps of GRPO give 57%, and selection in each step gives 63%.",
    limits="The base is correct in one completion of ten. Measured on the base before 69d66df, whose "
    "checks were all true.",
)

if __name__ == "__main__":
    LAB.main()
