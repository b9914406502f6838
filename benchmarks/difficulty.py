"""How much does a problem count, by its solve rate? Exact: nothing is sampled.

    python -m benchmarks.difficulty              # a table; docs/difficulty.png

The reward is 1 or 0, a problem is solved with probability p, and a group has 8 completions. The
expected gradient of the problem is w(p) grad p. Of n completions, k are correct with the binomial
probability. E[grad log pi] is grad p / p for a correct one, -grad p / (1 - p) for a wrong one:

    w(p) = 1/n sum_k Bin(k; n, p) (k A_correct / p - (n - k) A_wrong / (1 - p))
"""

import math

import torch

import variants
from benchmarks import runs

N = 8
ALGORITHMS = {
    "GRPO": variants.Config(),
    "Dr. GRPO": variants.Config(scale_rewards="none"),
    "MaxRL": variants.Config(scale_rewards="mean"),
    "REINFORCE": variants.Config(scale_rewards="none", baseline="none"),
}


def weight(p, config, n=N):
    """w(p), with the advantages of variants.py."""
    total = 0.0
    for k in range(n + 1):
        rewards = torch.tensor([[1.0] * k + [0.0] * (n - k)], dtype=torch.float64)
        advantages = variants.advantages(rewards, config)[0]
        chance = math.comb(n, k) * p**k * (1 - p) ** (n - k)
        total += chance * (advantages[:k].sum() / p - advantages[k:].sum() / (1 - p)).item()
    return total / n


def main():
    from matplotlib.figure import Figure

    rates = [i / 100 for i in range(1, 100)]
    figure = Figure(figsize=(5, 3), layout="constrained")
    axis = figure.subplots()
    lines = [["solve rate p", *ALGORITHMS]]
    for name, config in ALGORITHMS.items():
        axis.plot(rates, [weight(p, config) for p in rates], label=name)
    for p in (0.02, 0.1, 0.5, 0.9, 0.98):
        lines.append([p, *(f"{weight(p, config):.2f}" for config in ALGORITHMS.values())])
    axis.set(xlabel="solve rate p of a problem", ylabel="weight w(p)", ylim=(0, None))
    axis.legend()
    figure.savefig(f"{runs.ROOT}/docs/difficulty.png", dpi=90)
    print(runs.table(lines))


if __name__ == "__main__":
    main()
