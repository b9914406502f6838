"""Numbers about completions: means over all processes, pass@k, maj@k, intervals."""

import collections
import math

import numpy as np
import torch
import torch.distributed as dist

from plumbing.processes import all_reduce


class Measurements:
    """Means and maxima over tokens or episodes, gathered bit by bit, then over all processes."""

    def __init__(self):
        self.sums, self.maxima = {}, {}

    def mean(self, name, values):
        values = torch.as_tensor(values, dtype=torch.float64)
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + values.sum().item(), count + values.numel())

    def max(self, name, values):
        largest = torch.as_tensor(values, dtype=torch.float64).amax().item() if len(values) else -math.inf
        self.maxima[name] = max(self.maxima.get(name, -math.inf), largest)

    def reduce(self):
        """{name: value} over all processes; every process must have measured the same names in the same order."""
        result = {}
        for name, (total, count) in self.sums.items():
            total, count = all_reduce(total), all_reduce(count)
            if count:  # where no token was trained on there is no entropy, rather than one of 0
                result[name] = total / count
        maxima = {name: all_reduce(value, dist.ReduceOp.MAX) for name, value in self.maxima.items()}
        return result | {name: value for name, value in maxima.items() if value > -math.inf}


def measure_episodes(episodes, metadata):
    """The metrics of one step's completions and rewards."""
    m = Measurements()
    m.mean("reward", [e.reward["reward"] for e in episodes])
    m.mean("reward_std", [metadata["reward_std"]])
    m.mean("reward/format", [e.reward["format_reward"] for e in episodes])
    m.mean("reward/answer", [e.reward["answer_reward"] for e in episodes])
    m.mean("frac_reward_zero_std", [metadata["frac_reward_zero_std"]])
    m.mean("completions/mean_length", [e.length for e in episodes])
    m.mean("completions/clipped_ratio", [e.completion.finish_reason == "length" for e in episodes])
    return m.reduce() | {"tokens/rollout": all_reduce(sum(e.length for e in episodes))}


def confidence_interval(values):
    """95% interval of the mean of values from 0 to 1, one for each problem.

    For right or wrong it is Wilson's (1927), which unlike mean +- 2 sigma stays within [0, 1] and has a width at 0 of
    n; for shares of several samples the normal approximation over problems.
    """
    n, z = len(values), 1.96
    mean = math.fsum(values) / n
    if not set(values) <= {0, 1}:
        half = z * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 1.0
        return max(0.0, mean - half), min(1.0, mean + half)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n, correct, k):
    """Chance that one of k samples is right, estimated without bias from n >= k samples (arXiv:2107.03374, eq. 1)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority_vote(votes, answers):
    """maj@n: 1.0 if the most frequent vote is right (arXiv:2203.11171); a tie counts in proportion; None abstains."""
    counts = collections.Counter(vote for vote in votes if vote is not None)
    winners = [vote for vote, count in counts.items() if count == max(counts.values())]
    right = {vote for vote, answer in zip(votes, answers) if answer == 1}
    return sum(vote in right for vote in winners) / max(1, len(winners))
