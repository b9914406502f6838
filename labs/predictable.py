"""Can the second half of a reward curve be told from the first? (arXiv:2505.22617, 2510.13786)"""

import itertools
import os

import numpy as np
from lab import COINS, SHORT, Expected, Lab, Run

import runs

WORDS = f"--task gsm8k --max_tokens 64 {SHORT} --steps 80"


def smooth(values):
    return np.convolve(values, np.ones(5) / 5, mode="valid")


def fitted(columns, target, half):
    """Predictions of the second half by the least squares of the first; with its own error."""
    weights = np.linalg.lstsq(columns[:half], target[:half], rcond=None)[0]
    inside = np.abs(columns[:half] @ weights - target[:half]).mean()
    return columns[half:] @ weights, inside


def errors(model, config):
    """Mean absolute error on the second half of the training accuracy, by each way to foretell.

    R = b - a exp(H), where the second half's entropy H is given; a sigmoid in log steps,
    R = r + (s - r) / (1 + (c / t)^k); and that nothing changes any more.
    """
    rows = runs.records(os.path.dirname(model))[1:]
    right = smooth([row["reward/answer"] for row in rows])
    entropy = smooth([row["entropy"] for row in rows])
    half = len(right) // 2
    ones = np.ones(len(right))
    steps = np.arange(3, 3 + len(right))
    by_entropy, _ = fitted(np.stack([ones, -np.exp(entropy)], axis=1), right, half)
    best = None
    for middle, power in itertools.product(np.geomspace(2, 20 * len(right), 60), (0.5, 1, 2, 3, 4)):
        shape = 1 / (1 + (middle / steps) ** power)
        said, inside = fitted(np.stack([1 - shape, shape], axis=1), right, half)
        if best is None or inside < best[0]:
            best = (inside, said)
    miss = lambda said: float(np.abs(said - right[half:]).mean())
    stays = miss(np.full(len(right) - half, right[half - 1]))
    return {
        "nothing changes": stays,
        "R(H)": miss(by_entropy),
        "sigmoid": miss(best[1]),
        "R(H), better by": stays - miss(by_entropy),
        "sigmoid, better by": stays - miss(best[1]),
    }


LAB = Lab(
    title="Reward curves are predictable",
    claim="Accuracy in training follows the entropy that is spent, R = b - a exp(H) "
    "(arXiv:2505.22617), and a sigmoid of the logarithm of compute, so that the end of a long run "
    "can be told from its first part (arXiv:2510.13786).",
    prediction="Both curves rise early and bend before half time, so that to say that nothing "
    "changes any more is hard to beat. The sigmoid beats it on the word problems, which rise "
    "smoothly from a base that is right in some; not on the coins, which rise skill by skill: a "
    "second one may come after half time. R(H), although it is told the entropy, is worse than "
    "either: entropy falls with form, which is learned first, and accuracy goes on.",
    runs={"word problems": Run(WORDS), "coins": Run(COINS)},
    expected=[
        Expected("word problems", 0.0, measure="R(H), better by"),
        Expected("word problems", 0.0, measure="sigmoid, better by"),
        Expected("coins", 0.0, measure="sigmoid, better by", claim=False),
    ],
    measures=(errors,),
    found="Neither is better than to say that nothing changes any more: on the word problems that "
    "misses the second half by 0.016, R(H), which is told the entropy, by 0.023, the sigmoid by "
    "0.030; on the coins 0.057, 0.054 and 0.093. Both curves have bent before half time.",
    limits="Two curves of 60 and 80 steps at one learning rate; the papers fit runs of many sizes, "
    "and foretell the end of runs that are a hundred times longer than what was fitted.",
)

if __name__ == "__main__":
    LAB.main()
