"""Does one problem suffice? (arXiv:2504.20571)"""

import random

from lab import COINS, COUNTDOWN, Lab, Prediction, Run

import variants


def one_problem(sampler, problems, task, config, step):
    """`variants.rollout`, but all groups of all steps have one problem, which the seed chooses."""
    problem = random.Random(config.seed).choice(problems)
    return variants.rollout(sampler, [problem] * config.prompts_per_step, task, config, step)


ONE = {"rollout": one_problem}
LAB = Lab(
    title="One problem suffices",
    claim="Training on one problem raises Qwen2.5-Math-1.5B from 36.0% to 73.6% on MATH-500, as "
    "much as 1,200 problems do (arXiv:2504.20571).",
    prediction="On Countdown, even one problem rewards patience and checking. On the coins, one "
    "problem teaches only one order.",
    runs={
        "Countdown, all": Run(COUNTDOWN),
        "Countdown, one": Run(COUNTDOWN, ONE),
        "coins, all": Run(COINS),
        "coins, one": Run(COINS, ONE),
    },
    predictions=[
        Prediction("Countdown, one", above=0.25),
        Prediction("coins, all", "coins, one", above=0.1, claim=False),
    ],
    found="On Countdown, training on one problem gives 47%, 57% or 7%; training on all problems "
    "gives 47% to 60%. The problem that gives 7% is rarely solved. On the coins, one problem "
    "teaches at most its own order, which the base already had.",
    limits="Three problems per task. The paper chose its problems by the variance of the "
    "reward and trained longer. Measured on the base before 69d66df, whose checks were all true.",
)

if __name__ == "__main__":
    LAB.main()
