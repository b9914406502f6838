"""A lab to copy: what is claimed, in one line."""

from lab import COUNTDOWN, Expected, Lab, Run

import variants


def without_the_best(rewards, config):
    """Step 4 with a change of your own: what is the best of a group counts for nothing."""
    values = variants.advantages(rewards, config)  # (m, n)
    return values.masked_fill(values == values.max(dim=1, keepdim=True).values, 0.0)


LAB = Lab(
    title="The claim as a sentence",
    claim="What the paper says, in its words, with its number, its model and its arXiv number.",
    prediction="What you expect here and why, written down and committed before the first run.",
    runs={
        "GRPO": Run(COUNTDOWN),  # the others are compared with the first
        "a flag": Run(f"{COUNTDOWN} --scale_rewards none"),
        "code of your own": Run(COUNTDOWN, advantages=without_the_best),
    },
    expected=[
        Expected("GRPO", "code of your own", above=0.05),
        Expected("GRPO", "a flag", within=0.1, claim=False),
    ],
    limits="What a model of a million parameters on number puzzles cannot say about it.",
)

if __name__ == "__main__":
    LAB.main()
