"""One token for each row of a batch, for models built like Llama: Qwen2, Qwen3, Llama itself.

The same modules and the same numbers up to rounding as in transformers' forward pass, with less
Python and fewer small operations between them. Other models take transformers' own.
"""

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def decode(model, token, position, mask, cache):
    """Logits (R, V) behind `token` (R, 1) at `position` (R, 1); the cache gets keys and values.

    `mask`: (R, S), whether each of the S tokens so far counts, this one included.
    """
    inner = model.get_decoder()
    rows = len(token)
    hidden = inner.embed_tokens(token[:, 0])  # (R, H)
    cos, sin = inner.rotary_emb(hidden, position)  # (R, 1, D)
    bias = hidden.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)[:, None, None]
    for layer, kept in zip(inner.layers, cache.layers):
        attention = layer.self_attn
        size = attention.head_dim
        x = layer.input_layernorm(hidden)
        keys = attention.k_proj(x).view(rows, -1, 1, size)  # (R, KV, 1, D)
        values = attention.v_proj(x).view(rows, -1, 1, size)  # (R, KV, 1, D)
        # Query heads that share keys and values are positions of one head: no copies for each.
        query = attention.q_proj(x).view(rows, keys.shape[1], -1, size)  # (R, KV, heads / KV, D)
        if hasattr(attention, "q_norm"):  # Qwen3
            query = attention.q_norm(query)
            keys = attention.k_norm(keys)
        query, keys = apply_rotary_pos_emb(query, keys, cos, sin)  # the same in all of them
        keys, values = kept.update(keys, values)  # (R, KV, S, D)
        out = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, bias, scale=attention.scaling
        )
        hidden = hidden + attention.o_proj(out.reshape(rows, -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.get_output_embeddings()(inner.norm(hidden))


def forward(model, token, position, mask, cache):
    """The same by transformers, for any model."""
    out = model(
        input_ids=token,
        attention_mask=mask,
        position_ids=position,
        past_key_values=cache,
        use_cache=True,
    )
    return out.logits[:, -1]
