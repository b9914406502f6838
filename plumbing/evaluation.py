"""Numbers about completions: means over all processes, pass@k, maj@k, confidence intervals.

Nothing here samples or trains: it gets completions that have their rewards.
"""

import collections
import math

import numpy as np
import torch
import torch.distributed as dist

from plumbing.processes import all_gather_object, all_reduce

# Metrics of a step that are summed. Those that end in _max are maxima, all others are means.
SUMS = ("tokens/rollout", "tokens/vine", "tokens/update", "sampling/rounds")


def combine(measured):
    """{name: number} over all processes, of {name: [tensors]}.

    Each process must have measured the same names in the same order. A name without any number is
    left out: if no token was trained, the step has no entropy.
    """
    totals = [sum(t.double().sum().item() for t in tensors) for tensors in measured.values()]
    counts = [sum(t.numel() for t in tensors) for tensors in measured.values()]
    values = [[t.max().item() for t in tensors if len(t)] for tensors in measured.values()]
    totals, counts = all_reduce([totals, counts])
    largest = all_reduce([max(some, default=-math.inf) for some in values], dist.ReduceOp.MAX)
    metrics = {}
    for name, total, count, maximum in zip(measured, totals, counts, largest):
        if count:
            value = maximum if name.endswith("_max") else total / count
            metrics[name] = total if name in SUMS else value
    return metrics


def measure_update(batches, grad_norm):
    """{name: [tensors]} of one optimizer step, for `combine`; docs/metrics.md explains the names.

    Args:
        batches: of each micro-batch (episodes, tensors (B, T) by name, each completion's part of
            the loss (B,), tensors (B, T) to log). The episodes keep their rows of it.
        grad_norm: before clipping; not finite where the step was not applied.
    """
    measured = collections.defaultdict(list)
    loss = 0.0
    for rows, batch, parts, stats in batches:
        loss += parts.double().sum().item()  # what the parts in episodes/ add up to, exactly
        mask = batch["response_mask"].cpu()
        kept = {"log_probs": batch["log_probs"].cpu(), "entropy": batch["entropy"].cpu()}
        for name, values in stats.items():
            if name.startswith("kl"):  # k3, unless variants.py names another one after it
                kept["kl"] = values.cpu()
        for i, e in enumerate(rows):
            if "loss" not in e.measured:  # of several steps on a batch, the first
                e.measured["loss"] = parts[i].item()
                e.measured |= {name: values[i][mask[i]] for name, values in kept.items()}
        for name, values in measure_tokens(batch, stats).items():
            measured[name].append(values)
        tokens = sum(len(e.prompt_ids) + e.length for e in rows)  # without padding
        measured["tokens/update"].append(torch.tensor([tokens]))
    finite = math.isfinite(grad_norm)
    measured["bad_updates"].append(torch.tensor([not finite]))
    measured["loss"].append(torch.tensor([loss] if finite else [], dtype=torch.float64))
    measured["grad_norm"].append(torch.tensor([grad_norm] if finite else [], dtype=torch.float64))
    return measured


def measure_tokens(batch, stats):
    """{name: (tokens,)} of a micro-batch's response tokens."""
    mask = batch["response_mask"]
    values = {"entropy": batch["entropy"][mask]}
    values |= {name: tensor[mask] for name, tensor in stats.items()}
    if "ref_log_probs" in batch:  # two more estimates of the KL, to compare with the loss's k3
        d = (batch["ref_log_probs"] - batch["log_probs"])[mask]
        values |= {"kl/k1": -d, "kl/k2": d * d / 2}
    if "sampler_log_probs" in batch:
        log_ratio = (batch["old_log_probs"] - batch["sampler_log_probs"])[mask]
        for end in ("mean", "max"):
            values[f"sampling/logp_difference_{end}"] = log_ratio.abs()
            values[f"sampling/ratio_{end}"] = log_ratio.exp()
        values["sampling/ratio_mean_square"] = log_ratio.double().exp() ** 2
    return values


def measure_step(episodes, config, update):
    """The metrics of one GRPO step over all processes; `update`: `measure_update`'s."""
    rewards = torch.tensor([float(e.reward.total) for e in episodes]).view(-1, config.group_size)
    std = rewards.std(dim=1) if config.group_size > 1 else torch.zeros(len(rewards))  # (m,)
    equal = (rewards == rewards[:, :1]).all(dim=1)  # (m,)
    planned = config.prompts_per_step * config.group_size
    step = {
        "reward": [e.reward.total for e in episodes],
        "reward_std": [std.mean().item()],
        "reward/format": [e.reward.format for e in episodes],
        "reward/answer": [e.reward.answer for e in episodes],
        "frac_reward_zero_std": [equal.float().mean().item()],
        "completions/mean_length": [e.length for e in episodes],
        "completions/clipped_ratio": [e.completion.finish_reason == "length" for e in episodes],
        "tokens/rollout": [e.length for e in episodes],
        "sampling/rounds": [len(episodes) / planned],
    }
    step = {name: [torch.tensor(values, dtype=torch.float64)] for name, values in step.items()}
    metrics = combine({**step, **update})
    square = metrics.pop("sampling/ratio_mean_square", None)
    if square:
        metrics["sampling/ess"] = metrics["sampling/ratio_mean"] ** 2 / square
    return metrics


def confidence_interval(values):
    """95% interval (low, high) of the mean of values from 0 to 1, one for each problem.

    For right or wrong it is Wilson's (1927), which unlike mean +- 2 sigma stays within [0, 1] and
    has a width at 0 of n; for shares of several samples the normal approximation over problems,
    and Wilson's where that leaves [0, 1].
    """
    n = len(values)
    z = 1.96
    mean = math.fsum(values) / n
    if n > 1 and not set(values) <= {0, 1}:
        half = z * float(np.std(values, ddof=1)) / math.sqrt(n)
        if 0 < mean - half and mean + half < 1:
            return mean - half, mean + half
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n, correct, k):
    """Chance that one of k samples is right, without bias from n >= k (arXiv:2107.03374, eq. 1)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority_vote(votes, answers):
    """maj@n: 1.0 if the most frequent vote is right (arXiv:2203.11171).

    A tie counts in proportion; None abstains.
    """
    counts = collections.Counter(vote for vote in votes if vote is not None)
    winners = [vote for vote, count in counts.items() if count == max(counts.values())]
    right = {vote for vote, answer in zip(votes, answers) if answer == 1}
    return sum(vote in right for vote in winners) / max(1, len(winners))


def measure_problem(group, task):
    """{metric: value} of the n completions of one problem."""
    n = len(group)
    texts = [e.text for e in group]
    problems = [e.problem for e in group]
    right = np.array([e.reward.answer for e in group])
    anywhere = np.maximum(right, task.rewards(texts, problems, task.lenient))
    well_formed = np.array([float(e.reward.format == 1) for e in group])
    values = {"pass@1": right.mean()}
    for k in sorted({2**i for i in range(1, n.bit_length())} | {n} - {1}):
        values[f"pass@{k}"] = pass_at_k(n, int(right.sum()), k)
    if n > 1:
        values[f"maj@{n}"] = majority_vote(task.votes(texts, group[0].problem), right)
    values |= {  # much of a gain can be form alone
        "strict": (right * well_formed).mean(),
        "lenient": anywhere.mean(),
        "format": well_formed.mean(),
        "format_only": ((1 - right) * well_formed).mean(),
        "neither": ((1 - right) * (1 - well_formed)).mean(),
        "mean_length": np.mean([e.length for e in group]),
        "clipped_ratio": np.mean([e.completion.finish_reason == "length" for e in group]),
    }
    return {name: float(value) for name, value in values.items()}


def measure_evaluation(episodes, task, n):
    """{"eval/pass@1": ..., "eval/SUBGROUP/pass@1": ...} over all processes.

    `episodes`: n completions for each of this process's problems.
    """
    groups = [episodes[start : start + n] for start in range(0, len(episodes), n)]
    mine = [(measure_problem(group, task), task.subgroups(group[0].problem)) for group in groups]
    rows_of = collections.defaultdict(list)
    for rows in all_gather_object(mine):
        for values, subgroups in rows:
            for name in ("", *(f"{s}/" for s in subgroups)):
                rows_of[f"eval/{name}"].append(values)
    metrics = {}
    for name, rows in sorted(rows_of.items()):
        for key in rows[0]:
            column = [row[key] for row in rows]
            metrics[name + key] = math.fsum(column) / len(column)  # fsum: the same in any order
            if "@" in key or key in ("strict", "lenient"):
                interval = confidence_interval(column)
                metrics[f"{name}{key}_low"], metrics[f"{name}{key}_high"] = interval
        metrics[f"{name}problems"] = len(rows)
    return metrics
