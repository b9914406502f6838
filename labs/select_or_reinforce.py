"""Rejection sampling and fine-tuning, or reinforcement, at equal sampled tokens?"""

from functools import partial

from lab import COUNTDOWN, TUNING, Lab, Prediction, Run, controls

# The base's correct, well-formed completions among as many tokens as a run of GRPO samples.
SELECTED = partial(controls.right_samples, tokens=140_000)
EACH_STEP = "--loss_type reinforce --baseline none --scale_rewards none --binary_reward"
LAB = Lab(
    title="Select or reinforce",
    claim="Rejection sampling and fine-tuning (RFT, arXiv:2308.01825; STaR, "
    "arXiv:2203.14465) is said to give much of what reinforcement gives.",
    prediction="The base's correct completions are mostly short and lucky: imitation teaches "
    "format and no patience. (The last prediction was written afterwards and does not "
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
    found="The predictions were wrong. One imitation of what the base does correctly gives "
    "60%, 20 steps of GRPO 57%, selection in each step 63%.",
    limits="A base that is correct in one completion of ten.",
)

if __name__ == "__main__":
    LAB.main()
