"""A micro-batch as one sequence: without padding, and with the prompt of a group once.

All that a model like Llama does to single tokens is done to that sequence. Attention alone gets
rows back, those of similar length together: a row is a prompt and its completion.
"""

import torch
from torch.nn.functional import embedding as take_rows  # its gradient is faster than indexing's
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

KINDS = ("qwen2", "qwen3", "llama")  # RMSNorm, rotary positions, grouped-query attention, SwiGLU
NAME = "packed"  # of the attention, in a model's config
SIMILAR = 1.25  # times the shortest of the rows that attention computes together


def is_like_llama(config):
    """Whether a model of this config is built like Llama, each layer attending to all before."""
    layers = getattr(config, "layer_types", None) or ()
    return config.model_type in KINDS and not any("sliding" in layer for layer in layers)


def pack(input_ids, mask):
    """(arguments of the model's forward pass, the place of each token in the sequence (B, T)).

    `mask` (B, T) is 1 where a label is scored: what stands before a row's first one is its prompt,
    what stands behind its last one is not needed.
    """
    position = torch.arange(input_ids.shape[1], device=input_ids.device)  # (T,)
    prompt = mask.int().argmax(dim=1, keepdim=True) + 1  # tokens, (B, 1)
    end = (mask * position).amax(dim=1, keepdim=True) + 1  # (B, 1)
    with_prompt = {}  # prompt -> the first row that has it
    first = [
        with_prompt.setdefault(tuple(ids[:length]), row)
        for row, (ids, length) in enumerate(zip(input_ids.tolist(), prompt[:, 0].tolist()))
    ]
    first = torch.tensor(first, device=input_ids.device)  # (B,)
    is_first = first == torch.arange(len(first), device=first.device)
    kept = (position < end) & ((position >= prompt) | is_first[:, None])  # (B, T)
    place = kept.flatten().cumsum(0).view_as(kept) - 1
    place = torch.where(position < prompt, place[first], place).masked_fill(position >= end, 0)
    ends, order = end[:, 0].sort()
    lengths = ends.tolist()
    rows = []  # the places of rows of similar length, (B', T') flattened
    shapes = []
    taken = []  # as many as `rows`: where attention's result is one of the N
    begin = 0
    for i in range(len(lengths)):
        if i + 1 == len(lengths) or lengths[i + 1] > SIMILAR * lengths[begin]:
            similar = order[begin : i + 1]
            rows.append(place[similar, : lengths[i]].flatten())
            taken.append(kept[similar, : lengths[i]].flatten())
            shapes.append((len(similar), lengths[i]))
            begin = i + 1
    rows = torch.cat(rows)
    taken = torch.cat(taken)
    inputs = {
        "input_ids": input_ids[kept][None],  # (1, N)
        "position_ids": position.expand_as(kept)[kept][None],  # (1, N)
        "attention_mask": kept[None, None],  # of four dimensions: transformers makes no other
        "rows": rows,
        "shapes": shapes,
        # Where each of the N is in attention's results, one after the other.
        "kept": taken.nonzero()[:, 0][rows[taken].argsort()],
    }
    return inputs, place


def attention(module, query, key, value, mask, rows=None, shapes=(), kept=None, **options):
    """torch's attention; with `pack`'s rows, of each row. (1, heads, N, D) -> (1, N, heads, D)."""
    if rows is None:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    tokens = [x[0].transpose(0, 1).flatten(1) for x in (query, key, value)]  # (N, heads D) each
    widths = [x.shape[1] for x in tokens]
    taken = take_rows(rows, torch.cat(tokens, dim=1)).split([b * t for b, t in shapes])
    results = []
    for part, shape in zip(taken, shapes):
        heads = [x.view(*shape, -1, query.shape[3]).transpose(1, 2) for x in part.split(widths, 1)]
        out, _ = sdpa_attention_forward(module, *heads, None, **options)  # (B', T', heads, D)
        results.append(out.flatten(2).flatten(0, 1))
    return take_rows(kept, torch.cat(results)).unflatten(-1, (-1, query.shape[3]))[None], None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
