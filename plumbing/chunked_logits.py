"""The logits of a batch are its largest tensor: 5 GB for 8 x 1,024 tokens of Qwen in float32.

Here they are made only at response tokens, a chunk at a time, and again in the backward pass. The
same numbers as from `model(input_ids).logits`, with less memory and less work.
"""

import torch
from torch.nn.functional import embedding as take_rows
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from plumbing.packing import NAME, pack
from plumbing.settings import UserError

# Logits computed at once, float32 numbers: 0.5 GiB on a GPU, 128 MiB without one; 883 or 220
# tokens of Qwen's 151,936.
CHUNK = {"cuda": 2**27, "cpu": 2**25}
# With one of these in its config a model changes what its output layer returns: soft-capping.
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def score_in_chunks(model, input_ids, labels, mask, score):
    """`score(logits (C, V), labels (C,))`, two tensors (C,), where `mask` is 1; 0 elsewhere.

    Returns two tensors (B, T).
    """
    mask = mask.bool()
    # A DeepSpeed engine's own config is another thing.
    config = getattr(model, "module", model).config
    if any(getattr(config, name, None) for name in SCALED):
        log_probs, entropy = score(model(input_ids).logits, labels)
        return log_probs.masked_fill(~mask, 0.0), entropy.masked_fill(~mask, 0.0)
    layer = model.get_output_embeddings()
    to_logits = layer.forward
    rows_per_chunk = max(1, CHUNK["cuda" if input_ids.is_cuda else "cpu"] // layer.out_features)
    results = []
    inputs = {"input_ids": input_ids}
    place = torch.arange(input_ids.numel(), device=input_ids.device).view_as(input_ids)
    if config._attn_implementation == NAME:
        inputs, place = pack(input_ids, mask)

    def score_chunk(hidden, label):  # (C, H), (C,) -> (C, 2)
        return torch.stack(score(to_logits(hidden), label), dim=-1)

    def forward(hidden):  # (1, N, H) or (B, T, H) -> (B, T, 2), in place of logits
        hidden = take_rows(place[mask], hidden.flatten(0, 1))  # of the response tokens
        chunks = list(zip(hidden.split(rows_per_chunk), labels[mask].split(rows_per_chunk)))
        if len(chunks) == 1:
            rows = score_chunk(*chunks[0])
        else:
            scored = [recompute_in_backward(score_chunk, *c, use_reentrant=False) for c in chunks]
            rows = torch.cat(scored)
        # masked_scatter puts the rows, one after the other, where the mask is 1.
        results.append(rows.new_zeros(*mask.shape, 2).masked_scatter(mask[..., None], rows))
        return results[-1]

    # Inside the model's own forward pass, because ZeRO 3 gathers weights layer by layer.
    layer.forward = forward
    try:
        out = model(**inputs, use_cache=False).logits
    finally:
        layer.forward = to_logits
    if not torch.allclose(out, results[-1], rtol=0, atol=0, equal_nan=True):
        raise UserError("This model changes its logits after the output layer: not supported.")
    return out.unbind(-1)
