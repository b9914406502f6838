"""Numbers about completions: means over all processes, pass@k, maj@k, confidence intervals.

Nothing here samples or trains: it gets completions that have their rewards.
"""

import collections
import math

import numpy as np
import torch
import torch.distributed as dist

from plumbing.processes import all_gather_object, all_reduce


class Meters:
    """Means and maxima over tokens or episodes, accumulated batch by batch, then reduced over all processes."""

    def __init__(self):
        self.sums, self.maxima = {}, {}

    def mean(self, name, values):
        values = torch.as_tensor(values, dtype=torch.float64)
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + values.sum().item(), count + values.numel())

    def sum(self, name, value):
        self.sums[name] = (self.sums.get(name, (0.0, 0))[0] + value, None)

    def max(self, name, values):
        largest = torch.as_tensor(values, dtype=torch.float64).amax().item() if len(values) else -math.inf
        self.maxima[name] = max(self.maxima.get(name, -math.inf), largest)

    def reduce(self):
        """{name: value} over all processes; every process must have measured the same names in the same order."""
        result = {}
        for name, (total, count) in self.sums.items():
            total = all_reduce(total)
            count = 1 if count is None else all_reduce(count)
            if count:  # without a trained token the entropy is left out, not 0
                result[name] = total / count
        maxima = {name: all_reduce(value, dist.ReduceOp.MAX) for name, value in self.maxima.items()}
        return result | {name: value for name, value in maxima.items() if value > -math.inf}


class UpdateMeters(Meters):
    """Metrics of the optimizer steps of one GRPO step; docs/metrics.md explains each name."""

    loss = 0.0  # of this process's micro-batches since the last optimizer step

    def __init__(self, keep_tokens=False):
        super().__init__()
        self.keep_tokens = keep_tokens  # for the record of the tokens; a copy from the GPU for each micro-batch

    def add_micro_batch(self, loss, stats, episodes, out, batch):
        """`stats`: tensors (B, T) by name, from the loss; old log-probs are compared with the sampler's here.

        With `keep_tokens` each of the `episodes` keeps its part of `out`, log-probs and entropies (B, T), of its first
        micro-batch.
        """
        mask, token_entropy = batch["response_mask"], out["token_entropy"]
        if self.keep_tokens:
            scored = [tensor.detach().cpu() for tensor in (out["log_probs"], token_entropy)]
            for e, log_probs, entropy, tokens in zip(episodes, *scored, mask.cpu()):
                e.scored = e.scored or (log_probs[tokens], entropy[tokens])
        self.loss += loss.item()
        self.sum("tokens/update", batch["input_ids"].numel())
        self.mean("entropy", token_entropy[mask])
        for name, values in stats.items():
            self.mean(name, values[mask])
        log_ratio = (batch["old_log_probs"] - batch["sampler_log_probs"])[mask]
        self.mean("sampling/logp_difference_mean", log_ratio.abs())
        self.max("sampling/logp_difference_max", log_ratio.abs())
        self.mean("sampling/ratio_mean", log_ratio.exp())
        self.max("sampling/ratio_max", log_ratio.exp())
        self.mean("sampling/ratio_mean_square", log_ratio.double().exp() ** 2)

    def add_optimizer_step(self, grad_norm):
        """`grad_norm` before clipping; not finite where the step was not applied."""
        finite = math.isfinite(grad_norm)
        self.mean("bad_updates", [not finite])
        self.mean("loss", [self.loss] if finite else [])  # DeepSpeed averages over the processes, and so does this
        self.mean("grad_norm", [grad_norm] if finite else [])
        self.loss = 0.0

    def reduce(self):
        result = super().reduce()
        square = result.pop("sampling/ratio_mean_square", None)
        if square:
            result["sampling/ess"] = result["sampling/ratio_mean"] ** 2 / square
        return result


def measure_episodes(episodes, reward_stats):
    """The metrics of one step's completions and rewards, over all processes."""
    m = Meters()
    m.mean("reward", [e.reward.total for e in episodes])
    m.mean("reward_std", [reward_stats["reward_std"]])
    m.mean("reward/format", [e.reward.format for e in episodes])
    m.mean("reward/answer", [e.reward.answer for e in episodes])
    m.mean("frac_reward_zero_std", [reward_stats["frac_reward_zero_std"]])
    m.mean("completions/mean_length", [e.length for e in episodes])
    m.mean("completions/clipped_ratio", [e.completion.finish_reason == "length" for e in episodes])
    m.sum("tokens/rollout", sum(e.length for e in episodes))
    costs = {name: value for name, value in reward_stats.items() if name.startswith("tokens/")}  # VinePPO's
    return m.reduce() | costs


def confidence_interval(values):
    """95% interval of the mean of values from 0 to 1, one for each problem.

    For right or wrong it is Wilson's (1927), which unlike mean +- 2 sigma stays within [0, 1] and has a width at 0 of
    n; for shares of several samples the normal approximation over problems, and Wilson's where that leaves [0, 1].
    """
    n, z = len(values), 1.96
    mean = math.fsum(values) / n
    if n > 1 and not set(values) <= {0, 1}:
        half = z * float(np.std(values, ddof=1)) / math.sqrt(n)
        if 0 < mean - half and mean + half < 1:
            return mean - half, mean + half
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


def measure_problem(group, task):
    """{metric: value} of the n completions of one problem."""
    n, texts = len(group), [e.text for e in group]
    answers = [e.reward.answer for e in group]
    lenient = task.lenients(texts, [e.problem for e in group])
    formats = [float(e.reward.format == 1) for e in group]
    values = {"pass@1": np.mean(answers).item()}
    for k in sorted({2**i for i in range(1, n.bit_length())} | {n}):
        if k > 1:
            values[f"pass@{k}"] = pass_at_k(n, int(sum(answers)), k)
    if n > 1:
        values[f"maj@{n}"] = majority_vote(task.votes(texts, group[0].problem), answers)
    return values | {
        # Much of a gain can be format alone. strict: right and well-formed; lenient: right anywhere in the text.
        "strict": np.mean([a * f for a, f in zip(answers, formats)]).item(),
        "lenient": np.mean([max(a, b) for a, b in zip(answers, lenient)]).item(),
        "format": np.mean(formats).item(),
        "format_only": np.mean([(1 - a) * f for a, f in zip(answers, formats)]).item(),
        "neither": np.mean([(1 - a) * (1 - f) for a, f in zip(answers, formats)]).item(),
        "mean_length": np.mean([e.length for e in group]).item(),
        "clipped_ratio": np.mean([e.completion.finish_reason == "length" for e in group]).item(),
    }


def measure_evaluation(episodes, task, n):
    """{"eval/pass@1": ..., "eval/SUBGROUP/pass@1": ...} of n completions for each problem, over all processes."""
    groups = [episodes[start : start + n] for start in range(0, len(episodes), n)]
    mine = [(measure_problem(group, task), task.subgroups(group[0].problem)) for group in groups]
    rows_of = collections.defaultdict(list)
    for values, subgroups in (row for rows in all_gather_object(mine) for row in rows):
        for name in ("", *(f"{s}/" for s in subgroups)):
            rows_of[name].append(values)
    metrics = {}
    for name, rows in sorted(rows_of.items()):
        for key in rows[0]:
            metrics[f"eval/{name}{key}"] = math.fsum(row[key] for row in rows) / len(rows)  # same in any order
            if "@" in key or key in ("strict", "lenient"):
                low_high = confidence_interval([row[key] for row in rows])
                metrics[f"eval/{name}{key}_low"], metrics[f"eval/{name}{key}_high"] = low_high
        metrics[f"eval/{name}problems"] = len(rows)
    return metrics
