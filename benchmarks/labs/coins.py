"""A skill that no decoding rule gives, because a comparison decides which number comes first."""

from functools import partial

from benchmarks import controls
from benchmarks.labs.lab import COINS, COINS_TASK, TUNING, Lab, Prediction, Run

# The base samples as many tokens as a GRPO run; these are its correct, well-formed completions.
SELECTED = partial(controls.right_samples, tokens=200_000)
REWARD = "correctness reward"
K1 = "--kl_estimator k1 --kl_coef 1"  # as a loss, it is a reward for length
LAB = Lab(
    title="A skill that no rule gives, in two minutes",
    claim="How many more coins does one of two people have? The base has never met this "
    "question. A comparison decides which number comes first, so no length, format or "
    "decoding rule gives the answer.",
    prediction="The reward teaches both orders. The others find only the easy one: Ava has more.",
    runs={
        REWARD: Run(COINS),
        "GRPO's advantages": Run(COINS.replace("rewards mean", "rewards group")),
        "format reward": Run(COINS, {"rollout": controls.format_reward}),
        "no reward, k1": Run(f"{COINS} {K1}", {"advantages": controls.no_reward}),
        "RFT once": Run(f"{TUNING} {COINS_TASK}", rows=SELECTED),
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
    found="If Ben has more, the reward raises correct answers from 0% to 97% (97% with GRPO's "
    "advantages). The format reward reaches 2%, rejection sampling 12%. Questions with two "
    "comparisons are not learned (2%).",
    limits="The skill is a single yes or no.",
)

if __name__ == "__main__":
    LAB.main()
