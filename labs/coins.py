"""A skill that no decoding rule gives: which number comes first depends on a comparison."""

from functools import partial

from lab import COINS, TUNING, Lab, Prediction, Run, controls, tries
from length_alone import K1

# The base's correct, well-formed completions among as many tokens as a run of GRPO samples.
SELECTED = partial(controls.right_samples, tokens=200_000)
REWARD = "correctness reward"
LAB = Lab(
    title="A skill that no rule gives, in two minutes",
    claim="How many more coins does one of two people have? The base has never met the "
    "question. Which number comes first depends on a comparison. So no length, no "
    "format and no decoding rule gives the answer.",
    prediction="The reward teaches both orders; format and rejection sampling find the easy one, "
    "Ava has more.",
    runs={
        REWARD: Run(COINS),
        "GRPO's advantages": Run(COINS.replace("rewards mean", "rewards group")),
        "format reward": Run(COINS, {"rollout": controls.format_reward}),
        "no reward, k1": Run(f"{COINS} {K1}", {"advantages": controls.no_reward}),
        "RFT once": Run(f"{TUNING} --task coins --max_tokens 40", rows=SELECTED),
    },
    predictions=[
        Prediction(REWARD, 0.8, measure="ava_has_more"),
        Prediction(REWARD, 0.8, measure="ben_has_more"),
        Prediction(REWARD, 0.3, measure="two_steps", claim=False),
        Prediction(REWARD, 0.15, measure="held_out", claim=False),
        Prediction(REWARD, "format reward", above=0.3, measure="ben_has_more"),
        Prediction(REWARD, "RFT once", above=0.2, measure="ben_has_more"),
        Prediction(REWARD, "GRPO's advantages", measure="ben_has_more", claim=False),
    ],
    measures=(tries,),
    found="If Ben has more, 96% are correct instead of 0% (99% with GRPO's advantages). The "
    "format reward gives 2%, rejection sampling 27%. Two steps are not learned (2%).",
    limits="A skill of one bit. The base can subtract already.",
)

if __name__ == "__main__":
    LAB.main()
