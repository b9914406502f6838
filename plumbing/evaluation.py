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
    """Sums and maxima over tokens or episodes, batch by batch, then over all processes."""

    def __init__(self):
        self.totals = {}  # name -> [sum, count]; the result is their quotient
        self.sums = {}
        self.maxima = {}

    def mean(self, name, values):
        values = torch.as_tensor(values, dtype=torch.float64)
        self.add(name, values.sum().item(), values.numel())

    def add(self, name, total, count):
        entry = self.totals.setdefault(name, [0.0, 0])
        entry[0] += total
        entry[1] += count

    def sum(self, name, value):
        self.sums[name] = self.sums.get(name, 0) + value

    def max(self, name, values):
        values = torch.as_tensor(values, dtype=torch.float64)
        largest = values.amax().item() if values.numel() else -math.inf
        self.maxima[name] = max(self.maxima.get(name, -math.inf), largest)

    def merge(self, other):
        for name, (total, count) in other.totals.items():
            self.add(name, total, count)
        for name, value in other.sums.items():
            self.sum(name, value)
        for name, value in other.maxima.items():
            self.max(name, [value])

    def reduce(self):
        """{name: value}, with one sum and one maximum over the processes.

        Every process must have measured the same names in the same order.
        """
        totals = [number for entry in self.totals.values() for number in entry]
        reduced = all_reduce([*totals, *self.sums.values()])
        result = dict(zip(self.sums, reduced[len(totals) :]))
        for place, name in enumerate(self.totals):
            total, count = reduced[2 * place : 2 * place + 2]
            if count:  # without a trained token the entropy is left out, not 0
                result[name] = total / count
        for name, value in zip(self.maxima, all_reduce([*self.maxima.values()], dist.ReduceOp.MAX)):
            if value > -math.inf:
                result[name] = value
        return result


def measure_update(batches, grad_norm):
    """`Meters` of one optimizer step; docs/metrics.md explains each name.

    Args:
        batches: of each micro-batch (episodes, tensors (B, T) by name, each completion's part of
            the loss (B,), tensors (B, T) to log). The episodes keep their rows of it.
        grad_norm: before clipping; not finite where the step was not applied.
    """
    meters = Meters()
    finite = math.isfinite(grad_norm)
    total = 0.0
    for rows, batch, parts, stats in batches:
        keep_measurements(rows, batch, parts)
        total += parts.sum().item()
        measure_tokens(meters, batch, stats)
    meters.mean("bad_updates", [not finite])
    meters.add("loss", total if finite else 0.0, int(finite))  # averaged over the processes
    meters.add("grad_norm", grad_norm if finite else 0.0, int(finite))
    meters.sum("tokens/update", sum(batch["input_ids"].numel() for _, batch, _, _ in batches))
    return meters


def keep_measurements(rows, batch, parts):
    """Each episode's part of the loss, and its log-probs and entropies before its first update."""
    mask = batch["response_mask"].cpu()
    log_probs = batch["log_probs"].cpu()
    entropy = batch["entropy"].detach().cpu()
    for i, e in enumerate(rows):
        if "loss" not in e.measured:  # its first update in this step
            e.measured["log_probs"] = log_probs[i][mask[i]]
            e.measured["entropy"] = entropy[i][mask[i]]
            e.measured["loss"] = parts[i].item()


def measure_tokens(meters, batch, stats):
    """Means over the response tokens of a micro-batch."""
    mask = batch["response_mask"]
    meters.mean("entropy", batch["entropy"].detach()[mask])
    for name, values in stats.items():
        meters.mean(name, values.detach()[mask])
    if "ref_log_probs" in batch:  # two more estimates of the KL, to compare with the loss's k3
        d = (batch["ref_log_probs"] - batch["log_probs"])[mask]
        meters.mean("kl/k1", -d)
        meters.mean("kl/k2", d * d / 2)
    if "sampler_log_probs" in batch:
        log_ratio = (batch["old_log_probs"] - batch["sampler_log_probs"])[mask]
        meters.mean("sampling/logp_difference_mean", log_ratio.abs())
        meters.max("sampling/logp_difference_max", log_ratio.abs())
        meters.mean("sampling/ratio_mean", log_ratio.exp())
        meters.max("sampling/ratio_max", log_ratio.exp())
        meters.mean("sampling/ratio_mean_square", log_ratio.double().exp() ** 2)


def measure_step(episodes, config, update):
    """The metrics of one GRPO step over all processes; `update`: the `Meters` of its update."""
    meters = Meters()
    rewards = torch.tensor([float(e.reward.total) for e in episodes]).view(-1, config.group_size)
    std = rewards.std(dim=1) if config.group_size > 1 else torch.zeros(len(rewards))  # (m,)
    equal = (rewards == rewards[:, :1]).all(dim=1)  # (m,)
    meters.mean("reward", [e.reward.total for e in episodes])
    meters.mean("reward_std", std.mean().item())
    meters.mean("reward/format", [e.reward.format for e in episodes])
    meters.mean("reward/answer", [e.reward.answer for e in episodes])
    meters.mean("frac_reward_zero_std", equal.float().mean().item())
    meters.mean("completions/mean_length", [e.length for e in episodes])
    cut_off = [e.completion.finish_reason == "length" for e in episodes]
    meters.mean("completions/clipped_ratio", cut_off)
    meters.sum("tokens/rollout", sum(e.length for e in episodes))
    meters.sum("sampling/rounds", len(episodes) / (config.prompts_per_step * config.group_size))
    meters.merge(update)
    metrics = meters.reduce()
    square = metrics.pop("sampling/ratio_mean_square", None)
    if square:
        metrics["sampling/ess"] = metrics["sampling/ratio_mean"] ** 2 / square
    return metrics


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
            metrics[f"eval/{name}{key}"] = math.fsum(row[key] for row in rows) / len(
                rows
            )  # same in any order
            if "@" in key or key in ("strict", "lenient"):
                low_high = confidence_interval([row[key] for row in rows])
                metrics[f"eval/{name}{key}_low"], metrics[f"eval/{name}{key}_high"] = low_high
        metrics[f"eval/{name}problems"] = len(rows)
    return metrics
