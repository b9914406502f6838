"""A lab to copy. Say here in one line what is claimed."""

import variants
from benchmarks.labs.lab import COUNTDOWN, Lab, Prediction, Run


def without_the_best(rewards, config):
    """Step 4 with a change of your own: the best completions of a group get an advantage of 0."""
    values = variants.advantages(rewards, config)  # (m, n)
    return values.masked_fill(values == values.max(dim=1, keepdim=True).values, 0.0)


LAB = Lab(
    title="The claim as a sentence",
    claim="Quote what the paper says, with its figure, its model and its arXiv number.",
    prediction="Say what you expect and why. Commit it before the first run.",
    runs={
        "GRPO": Run(COUNTDOWN),
        "a flag": Run(f"{COUNTDOWN} --scale_rewards none"),
        "own code": Run(COUNTDOWN, {"advantages": without_the_best}),
    },
    predictions=[
        Prediction("GRPO", "own code", above=0.05),
        Prediction("GRPO", "a flag", within=0.1, claim=False),
    ],
    found="Say what you saw. Write it after the runs.",
    limits="Say what a model of a million parameters on number puzzles cannot show.",
)

if __name__ == "__main__":
    LAB.main()
