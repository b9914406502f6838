"""The memory plan of one process: computed from the model's shape, and printed at the start of a run or by --plan.

Weights and AdamW's states are always there. Rollout and update take turns with what else they need.
"""

import os
from typing import NamedTuple

import torch
import torch.distributed as dist

from plumbing.chunked_logits import CHUNK
from plumbing.models import BUCKET, empty_model
from plumbing.sampler import TransformersSampler, sampler_kind
from plumbing.timing import advice

GIB = 2**30
USABLE = 0.91  # of the size that a card is sold by: a T4 has 14.6 GiB of 16, an L4 22.0 of 24, an L40S 44.4 of 48
OUTSIDE = int(1.5 * GIB)  # CUDA's context, NCCL, vLLM's graphs
PROMPT = 256  # tokens of a prompt, where no problems have been read


class Plan(NamedTuple):
    """Bytes of one process, by part."""

    always: dict
    rollout: dict  # beside `always` while the sampler samples
    update: dict  # beside `always` in the update
    available: int

    @property
    def needed(self):
        return sum(self.always.values()) + max(sum(self.rollout.values()), sum(self.update.values()))


def layer_shape(model):
    """(layers, hidden, width of all queries, width of all keys, width of the MLP) of a model."""
    shape = model.config.get_text_config()
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    head_size = getattr(shape, "head_dim", None) or hidden // heads
    intermediate = getattr(shape, "intermediate_size", None) or 4 * hidden
    return shape.num_hidden_layers, hidden, heads * head_size, kv_heads * head_size, intermediate


def activations(model, tokens, size, checkpointing):
    """Bytes that a forward pass of `tokens` tokens keeps for the backward pass, with `size` bytes a number.

    For Qwen2, Llama and their like: RMSNorm, a gated MLP, attention that never stores its T x T weights. With
    checkpointing each layer keeps its input, and one at a time, computed again, all else.
    """
    layers, hidden, queries, keys, intermediate = layer_shape(model)
    norm = (4 + 2 * size) * hidden  # its input in float32, the normalized input, the result
    attention = 2 * size * (queries + keys)  # queries and what it returns, keys and values
    layer = 2 * norm + attention + 4 * size * intermediate  # of the MLP: gate, its activation, up, their product
    return tokens * ((layers * size * hidden + layer if checkpointing else layers * layer) + norm)


def memory_plan(policy, config, max_length, card=None):
    """The `Plan` of one process, on a GPU of `card` bytes, or on what is here. Of `policy` only shapes are used."""
    world_size = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
    everything = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    size, stage = {"float32": 4, "bfloat16": 2}[config.dtype], config.zero_stage
    on_gpu = card is not None or policy.device.type == "cuda"
    available = card or available_memory(policy.device, world_size)
    kind = "vllm" if card and config.rollout == "auto" else sampler_kind(config)
    master = 4 if stage else 0  # ZeRO's float32 weights, beside float32 ones too
    setting = lambda name: getattr(config, name, 0)  # nano_sft.py lacks some
    always = {
        "weights": everything * size // (world_size if stage == 3 else 1),
        "reference": everything * size if setting("kl_coef") > 0 and not config.lora_rank else 0,
        "sampler's copy": everything * size if stage == 3 and kind == "transformers" else 0,
        "AdamW": 0 if config.offload else trained * (master + 8) // (world_size if stage else 1),
        "CUDA": OUTSIDE if on_gpu else 0,
    }

    layers, hidden, _, keys, _ = layer_shape(policy)
    rows = max(setting("prompts_per_step") * setting("group_size"), config.eval_problems)
    if setting("eval_only"):
        rows = config.eval_problems * config.eval_samples
    rows = min(TransformersSampler.MAX_ROWS, rows // world_size)
    vocabulary = policy.config.get_text_config().vocab_size
    rollout = {"KV cache": rows * max_length * layers * 2 * keys * size, "logits": 24 * rows * vocabulary}
    if kind == "vllm" and on_gpu:
        rollout = {"vLLM": int(config.vllm_gpu_memory_utilization * available)}

    tokens = max(config.micro_batch_tokens, max_length)  # one completion alone may be longer than that
    kept = activations(policy, tokens, size, config.gradient_checkpointing)
    chunk = 4 * min(CHUNK["cuda" if on_gpu else "cpu"], tokens * vocabulary)
    update = {
        "gradients": trained * 4 // (world_size if stage >= 2 else 1),  # summed in float32
        # As the backward pass frees activations, the micro-batch's own gradients take their place.
        "activations": max(kept, trained * size if stage else 0) + (BUCKET * size if stage else 0) * on_gpu,
        # And the output layer's gradient of a chunk beside that of the chunks before.
        "logits": (6 if setting("entropy_coef") else 4) * chunk
        + (0 if config.lora_rank else 2 * vocabulary * hidden * size),
    }
    if setting("eval_only"):
        always, update = {"weights": everything * size, "CUDA": always["CUDA"]}, {}
    used = lambda parts: {name: count for name, count in parts.items() if count}
    return Plan(used(always), used(rollout), used(update), available)


def available_memory(device, world_size):
    """Bytes of the GPU, or a process's share of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world_size


def describe_memory(policy, config, max_length, card=None):
    """The plan as one line, with a warning below it if it exceeds the memory available."""
    plan = memory_plan(policy, config, max_length, card)
    unit, name = (GIB, "GiB") if plan.needed >= GIB else (2**20, "MiB")
    listed = lambda parts: ", ".join(f"{part} {count / unit:.1f}" for part, count in parts.items())
    turns = [
        f"{part}: {listed(parts)}" for part, parts in (("rollout", plan.rollout), ("update", plan.update)) if parts
    ]
    text = f"{plan.needed / unit:.1f} of {plan.available / unit:,.1f} {name} a process "
    text += f"({listed(plan.always)}; in turn {'; '.join(turns)})"
    always, rollout, update = (sum(parts.values()) for parts in plan[:3])
    if plan.needed > plan.available:
        part = "start" if always > plan.available else "rollout" if rollout > update else "update"
        text += f"\nWARNING: that is more than is available: {advice(part, config)}"
    weights = sum(p.numel() for p in policy.parameters()) * (4 if config.dtype == "float32" else 2)
    if plan.rollout.get("vLLM", GIB + weights) < GIB + weights:
        text += f"\nWARNING: vLLM's own weights take {weights / GIB:.1f} GiB: raise --vllm_gpu_memory_utilization"
    return text


def plan_for_card(config):
    """(the plan for a GPU of --plan GB as text, whether it fits); from the model's config.json, without weights."""
    card = int(config.plan * USABLE * GIB)
    text = describe_memory(empty_model(config), config, PROMPT + config.max_tokens, card)
    return f"{config.model} in {config.dtype}, prompts of {PROMPT} tokens: {text}", "WARNING" not in text
