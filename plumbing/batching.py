"""Packing rows of different lengths into micro-batches: little padding, a bounded number of tokens.

Under ZeRO 2 and 3 each backward pass is a collective, so all processes need the same number of
micro-batches.
"""

import dataclasses

import torch.distributed as dist

from plumbing.processes import all_reduce


def micro_batches(episodes, config, with_gradient=False):
    """Lists of episodes of similar length, for one forward pass each; masked ones are left out.

    Each has at most --micro_batch_tokens tokens, padding included, or is one episode alone. Every
    process gets the same number: where it has too few, lists are cut, or a masked copy fills in.
    `with_gradient`: leave out those of advantage 0, if no penalty acts on their tokens either.
    """
    kept = [e for e in episodes if not e.masked]
    penalty = getattr(config, "kl_coef", 0) or getattr(config, "entropy_coef", 0)
    if with_gradient and not penalty:
        kept = [e for e in kept if any(e.per_token["advantages"])]
    batches = split_by_tokens(kept or [masked(episodes[0])], config.micro_batch_tokens)
    at_least = int(all_reduce(len(batches), dist.ReduceOp.MAX))
    while len(batches) < at_least:
        largest = max(batches, key=len)
        if len(largest) == 1:
            batches.append([masked(largest[0])])
            continue
        batches.remove(largest)
        batches += [largest[::2], largest[1::2]]
    return batches


def masked(episode):
    """A copy of which no token counts, and of which nothing is kept."""
    per_token = dict(episode.per_token)
    return dataclasses.replace(episode, masked=True, measured={}, per_token=per_token)


def split_by_tokens(episodes, budget):
    """Lists of episodes of similar length, each of at most `budget` tokens, padding included."""
    tokens = lambda e: len(e.prompt_ids) + e.length
    longest = {}  # of a group, whose members stay together: their prompt is computed once
    for e in sorted(episodes, key=tokens):
        longest[tuple(e.prompt_ids)] = tokens(e)
    batches = []
    batch = []
    place = lambda e: (longest[tuple(e.prompt_ids)], e.prompt_ids, tokens(e))
    for e in sorted(episodes, key=place):
        if batch and max(map(tokens, [*batch, e])) * (len(batch) + 1) > budget:
            batches.append(batch)
            batch = []
        batch.append(e)
    return [*batches, batch]
