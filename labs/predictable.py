"""Does the first half of a reward curve predict the second? (arXiv:2505.22617, 2510.13786)"""

import itertools
import os

import numpy as np
from lab import COINS, SHORT, Lab, Prediction, Run

import runs

WORDS = f"--task gsm8k --max_tokens 64 --steps 80 --eval_problems 256 {SHORT}"


def smooth(values):
    return np.convolve(values, np.ones(5) / 5, mode="valid")


def fitted(columns, target):
    """Least squares on the first half: (error in the first half, error in the second half)."""
    half = len(target) // 2
    weights = np.linalg.lstsq(columns[:half], target[:half], rcond=None)[0]
    error = np.abs(columns @ weights - target)
    return error[:half].mean(), error[half:].mean()


def errors(config):
    """Mean absolute errors of three predictions for the second half of the training accuracy.

    The predictions are: R = b - a exp(H), which is given the second half's entropy H; a sigmoid in
    log steps, R = r + (s - r) / (1 + (c / t)^k); and "it stays as it is".
    """
    rows = runs.metrics(os.path.dirname(config.model))[1:]
    right = smooth([row["reward/answer"] for row in rows])
    entropy = smooth([row["entropy"] for row in rows])
    ones = np.ones(len(right))
    steps = np.arange(3, 3 + len(right))
    half = len(right) // 2
    stays = np.abs(right[half:] - right[half - 1]).mean()
    by_entropy = fitted(np.stack([ones, -np.exp(entropy)], axis=1), right)[1]
    sigmoids = []
    for middle, power in itertools.product(np.geomspace(2, 20 * len(right), 60), (0.5, 1, 2, 3, 4)):
        shape = 1 / (1 + (middle / steps) ** power)
        sigmoids.append(fitted(np.stack([1 - shape, shape], axis=1), right))
    by_sigmoid = min(sigmoids)[1]  # the one that fits the first half best
    return {
        "error of `it stays`": float(stays),
        "R(H), better by": float(stays - by_entropy),
        "sigmoid, better by": float(stays - by_sigmoid),
    }


LAB = Lab(
    title="Reward curves are predictable",
    claim="Training accuracy R follows the entropy H, as R = b - a exp(H) (arXiv:2505.22617), and "
    "a sigmoid of log compute (arXiv:2510.13786).",
    prediction="Both curves bend before the halfway point. Only the sigmoid, and only on the word "
    "problems, beats the guess that nothing changes.",
    runs={"word problems": Run(WORDS), "coins": Run(COINS)},
    predictions=[
        Prediction("word problems", 0.0, measure="R(H), better by"),
        Prediction("word problems", 0.0, measure="sigmoid, better by"),
        Prediction("coins", 0.0, measure="sigmoid, better by", claim=False),
    ],
    measures=(errors,),
    found="Neither formula beats the guess that nothing changes. The guess's error on the "
    "second half is 0.016 on the word problems (R(H) 0.023, sigmoid 0.030) and 0.057 on the "
    "coins (R(H) 0.054, sigmoid 0.093).",
    limits="The two curves have 60 and 80 steps. The papers fit runs a hundred times longer.",
)

if __name__ == "__main__":
    LAB.main()
