"""The memory plan printed at the start of a run: an estimate for one process.

Weights, gradients and AdamW's states always take memory; the KV cache and the activations take turns.
"""

import os

import torch
import torch.distributed as dist

from plumbing.oom import advice
from plumbing.sampler import TransformersSampler, sampler_kind

# Logits computed at once, float32 numbers: 0.5 GiB or 128 MiB, 883 or 220 tokens of Qwen's vocabulary of 151,936.
LOGITS_PER_CHUNK = 2**27 if torch.cuda.is_available() else 2**25


def memory_plan(policy, config, max_length):
    """Estimate for one process: {part: bytes} always there, {part: bytes} taking turns, bytes available."""
    shape, tokens, world_size = policy.config.get_text_config(), config.micro_batch_tokens, dist.get_world_size()
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    everything = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    size, stage = {"float32": 4, "bfloat16": 2}[config.dtype], config.zero_stage
    master = 0 if config.dtype == "float32" and stage == 0 else 4
    on_gpu = policy.device.type == "cuda"
    if on_gpu:
        available = torch.cuda.get_device_properties(policy.device).total_memory
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world_size
    kind = sampler_kind(config)
    always = {
        "weights": everything * size // (world_size if stage == 3 else 1),
        "reference": everything * size if config.kl_coef > 0 and not config.lora_rank else 0,
        "sampler's copy": everything * size if stage == 3 and kind == "transformers" else 0,
        "gradients": trained * size // (world_size if stage >= 2 else 1),
        "AdamW": 0 if config.offload else trained * (master + 8) // (world_size if stage else 1),
    }
    rows = max(config.prompts_per_step // world_size * config.group_size, config.eval_problems // world_size)
    rows = min(TransformersSampler.MAX_ROWS, rows)
    cache = rows * max_length * layers * 2 * heads * head_size * size
    in_turn = {
        "KV cache": int(config.vllm_gpu_memory_utilization * available) if kind == "vllm" and on_gpu else cache,
        # Korthikanti et al. 2022 (arXiv:2205.05198), table 2: 34 bytes a layer and number in 16 bits, 2 if recomputed;
        # and four tensors of the size of a chunk of logits
        "activations and logits": tokens * layers * hidden * (2 if config.gradient_checkpointing else 34) * size // 2
        + 4 * 4 * min(LOGITS_PER_CHUNK, tokens * shape.vocab_size),
    }
    return {name: value for name, value in always.items() if value}, in_turn, available


def describe_memory(policy, config, max_length):
    """The plan as one line, with a warning below it if it exceeds the memory available."""
    always, in_turn, available = memory_plan(policy, config, max_length)
    needed = sum(always.values()) + max(in_turn.values())
    listed = [", ".join(f"{name} {value / 2**20:,.0f}" for name, value in parts.items()) for parts in (always, in_turn)]
    text = f"{needed / 2**20:,.0f} of {available / 2**20:,.0f} MiB a process ({'; '.join(listed)})"
    if needed <= available:
        return text
    largest = "rollout" if max(in_turn, key=in_turn.get) == "KV cache" else "update"
    part = "start" if sum(always.values()) > available else largest
    return f"{text}\nWARNING: that is more than is available: {advice(part, config)}"
