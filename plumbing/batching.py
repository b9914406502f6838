"""Packing rows of different lengths into micro-batches: little padding, a bounded number of tokens.

Under ZeRO 2 and 3 each backward pass is a collective, so all processes need the same number of
micro-batches.
"""

import dataclasses

import torch.distributed as dist

from plumbing.processes import all_reduce

MORE_PADDING = 1.1  # times as many tokens with padding, for groups that stay together


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
    """Lists of episodes of similar length, each of at most `budget` tokens, padding included.

    Groups stay together, so that their prompt is computed once, where that makes little padding:
    models that are not packed (plumbing/packing.py) compute all of it.
    """
    tokens = lambda e: len(e.prompt_ids) + e.length
    by_length = sorted(episodes, key=tokens)
    longest = {tuple(e.prompt_ids): tokens(e) for e in by_length}  # the last one's
    by_group = sorted(by_length, key=lambda e: (longest[tuple(e.prompt_ids)], e.prompt_ids))
    found = []
    for order in (by_group, by_length):
        batches = [[]]
        for e in order:
            batch = [*batches[-1], e]
            if batches[-1] and len(batch) * max(map(tokens, batch)) > budget:
                batches.append([])
            batches[-1].append(e)
        found.append(batches)
    together, apart = found
    padded = lambda batches: sum(len(batch) * max(map(tokens, batch)) for batch in batches)
    return together if padded(together) <= MORE_PADDING * padded(apart) else apart
