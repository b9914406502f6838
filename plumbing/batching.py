"""Packing rows of different lengths into micro-batches: little padding, a bounded number of tokens.

Under ZeRO 2 and 3 each backward pass is a collective, so all processes need the same number of micro-batches.
"""

import torch.distributed as dist

from plumbing.processes import all_reduce


def split_by_tokens(items, length, budget):
    """Lists of items of similar length, each of at most `budget` tokens, padding included."""
    batches, batch = [], []
    for item in sorted(items, key=length):
        if batch and length(item) * (len(batch) + 1) > budget:
            batches.append(batch)
            batch = []
        batch.append(item)
    return [*batches, batch]


def equalize_micro_batches(batches, make_dummy):
    """Split until every process has as many; if nothing can be split, add dummies, whose tokens do not count."""
    at_least = int(all_reduce(len(batches), dist.ReduceOp.MAX))
    while len(batches) < at_least:
        largest = max(batches, key=len)
        if len(largest) == 1:
            batches.append([make_dummy(largest[0])])
        else:
            batches.remove(largest)
            batches += [largest[::2], largest[1::2]]
    return batches
