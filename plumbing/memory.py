"""The memory plan of one process: computed from the model's shape, for the header and for --plan.

Weights and AdamW's states are always there. Rollout and update take turns with what else they need.
"""

import os

import torch

from plumbing.chunked_logits import CHUNK
from plumbing.models import BUCKET, empty_model
from plumbing.sampler import PreallocatedKVLayer, TransformersSampler, sampler_kind
from plumbing.systems import memory_size
from plumbing.timing import advice
from plumbing.torch_engine import engine_kind

GIB = 2**30
# Of the size that a card is sold by: a T4 has 14.6 GiB of 16, an L4 22.0 of 24, an L40S 44.4 of 48.
USABLE = 0.91
OUTSIDE = int(1.5 * GIB)  # CUDA's context, NCCL, vLLM's graphs
LIBRARIES = 420 * 2**20  # Python, torch, transformers, DeepSpeed on a CPU, measured
PROMPT = 256  # tokens of a prompt, where no problems have been read


def layer_shape(model):
    """(layers, hidden, width of all queries, width of all keys, width of the MLP) of a model."""
    shape = model.config.get_text_config()
    hidden = shape.hidden_size
    heads = shape.num_attention_heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    head_size = getattr(shape, "head_dim", None) or hidden // heads
    intermediate = getattr(shape, "intermediate_size", None) or 4 * hidden
    return shape.num_hidden_layers, hidden, heads * head_size, kv_heads * head_size, intermediate


def activations(model, tokens, size, checkpointing, length=0):
    """Bytes that a forward pass of `tokens` tokens keeps for the backward pass, `size` a number.

    For Qwen2, Llama and their like: RMSNorm, a gated MLP, attention that stores its T x T weights
    only with `length`, the T: in float32 on a GPU, where several heads share keys and values. With
    checkpointing each layer keeps its input, and one at a time, computed again, all. (A pack keeps
    attention's result twice, 3% more; but the tokens of a shared prompt once, and no padding.)
    """
    layers, hidden, queries, keys, intermediate = layer_shape(model)
    norm = (4 + 2 * size) * hidden  # its input in float32, the normalized input, the result
    attention = 2 * size * (queries + keys)  # queries and what it returns, keys and values
    if length:  # the weights of all heads, keys and values repeated for each of them
        heads = model.config.get_text_config().num_attention_heads
        attention += size * heads * length + 2 * size * (queries - keys)
    mlp = 4 * size * intermediate  # gate, its activation, up, their product
    layer = 2 * norm + attention + mlp
    kept = layers * size * hidden + layer if checkpointing else layers * layer
    return tokens * (kept + norm)


def memory_plan(policy, config, max_length, card=None):
    """Bytes of one process, by part: {"always": {name: bytes}, "rollout": ..., "update": ...}.

    On a GPU of `card` bytes, or on what is here. Of `policy` only shapes are used.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    everything = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    size = {"float32": 4, "bfloat16": 2}[config.dtype]
    stage = config.zero_stage
    on_gpu = card is not None or policy.device.type == "cuda"
    vllm = on_gpu and (card and config.rollout == "auto" or sampler_kind(config) == "vllm")
    engine = config.engine if card else engine_kind(config)
    shared = engine == "torch" and config.dtype == "float32"  # its float32 weights are the model's
    setting = lambda name: getattr(config, name, 0)  # nano_sft.py lacks some
    always = {
        "weights": everything * size // (world_size if stage == 3 else 1),
        "reference": everything * size if setting("kl_coef") and not config.lora_rank else 0,
        "sampler's copy": everything * size if stage == 3 and not vllm else 0,
        # Two moments and float32 weights, which ZeRO keeps beside float32 ones too.
        "AdamW": 0 if config.offload else trained * (8 if shared else 12) // world_size,
        "CUDA": OUTSIDE if on_gpu else 0,
        "libraries": 0 if on_gpu else LIBRARIES,
    }
    drawn = 0 if setting("eval_only") else setting("prompts_per_step") * setting("group_size")
    # Each token's id, log-probs and advantage, as numbers of Python and of torch.
    always["episodes"] = 64 * (drawn // world_size) * max_length

    evaluated = config.eval_problems * (config.eval_samples if setting("eval_only") else 1)
    rows = max(drawn, evaluated) // world_size
    if vllm:
        rollout = vllm_memory(policy, config, everything * size, card)
    else:
        rollout = sampling_memory(policy, min(TransformersSampler.MAX_ROWS, rows), max_length, size)
    if setting("eval_only"):
        weights = {"weights": everything * size, "libraries": always["libraries"]}
        return {"always": weights, "rollout": rollout, "update": {}}
    tokens = max(config.micro_batch_tokens, max_length)  # one completion alone may be longer
    gradients = trained * 4 // (world_size if stage >= 2 else 1)  # summed in float32
    length = max_length if on_gpu and config.dtype == "float32" else 0
    parts = update_memory(policy, config, tokens, size, on_gpu, length)
    return {"always": always, "rollout": rollout, "update": {"gradients": gradients, **parts}}


def sampling_memory(policy, rows, max_length, size):
    """Bytes of the sampling loop, by part, for so many completions at a time."""
    layers, _, _, keys, _ = layer_shape(policy)
    return {
        "KV cache": rows * (max_length + PreallocatedKVLayer.ROOM) * layers * 2 * keys * size,
        "logits": 24 * rows * policy.config.get_text_config().vocab_size,
    }


def vllm_memory(policy, config, weights, card):
    """Bytes of vLLM and of the sync, which happens while it is awake."""
    _, hidden, _, _, intermediate = layer_shape(policy)
    # ZeRO 3 gathers all weights, adapters are merged one by one.
    sync = 16 * hidden * intermediate if config.lora_rank else 0
    if config.zero_stage == 3 and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        sync = weights
    share = config.vllm_gpu_memory_utilization
    return {"vLLM": int(share * available_memory(policy.device, card)), "sync": sync}


def update_memory(policy, config, tokens, size, on_gpu, length):
    """Bytes of a micro-batch of so many tokens, by part; a number has `size` bytes."""
    _, hidden, _, _, _ = layer_shape(policy)
    vocabulary = policy.config.get_text_config().vocab_size
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    kept = activations(policy, tokens, size, config.gradient_checkpointing, length)
    chunk = 4 * min(CHUNK["cuda" if on_gpu else "cpu"], tokens * vocabulary)
    return {
        # As the backward pass frees activations, the micro-batch's own gradients take their place.
        "activations": max(kept, trained * size) + BUCKET * size * on_gpu,
        # And the output layer's gradient of a chunk beside that of the chunks before.
        "logits": (6 if getattr(config, "entropy_coef", 0) else 4) * chunk
        + (0 if config.lora_rank else 2 * vocabulary * hidden * size),
    }


def available_memory(device, card):
    """`card` if given, else bytes of the GPU, or a process's share of the machine's memory."""
    if card or device.type == "cuda":
        return card or torch.cuda.get_device_properties(device).total_memory
    return memory_size() // int(os.environ.get("WORLD_SIZE", 1))


def describe_memory(policy, config, max_length, card=None):
    """The plan as one line, with a warning below it if it exceeds the memory available.

    Of the parts those that are worth a number: not 0.0.
    """
    plan = memory_plan(policy, config, max_length, card)
    available = available_memory(policy.device, card)
    always, rollout, update = (sum(parts.values()) for parts in plan.values())
    needed = always + max(rollout, update)
    unit, name = (GIB, "GiB") if needed >= GIB else (2**20, "MiB")
    text = f"{needed / unit:.1f} of {available / unit:,.1f} {name} a process"
    for turn, parts in plan.items():
        parts = {part: f"{count / unit:.1f}" for part, count in parts.items()}
        listed = [f"{part} {size}" for part, size in parts.items() if size != "0.0"]
        text += f"; {turn}: {', '.join(listed)}" if listed else ""
    if needed > available:
        on_gpu = card is not None or policy.device.type == "cuda"
        part = "start" if always > available else "rollout" if rollout > update else "update"
        text += f"\nWARNING: that is more than is available: {advice(part, config, on_gpu)}"
    if "vLLM" in plan["rollout"] and rollout < GIB + plan["always"]["weights"]:
        text += "\nWARNING: vLLM's own weights take more: raise --vllm_gpu_memory_utilization"
    return text


def plan_for_card(config):
    """(the plan for a GPU of --plan GB as text, whether it fits); the weights are not loaded."""
    card = int(config.plan * USABLE * GIB)
    text = describe_memory(empty_model(config), config, PROMPT + config.max_tokens, card)
    about = f"{config.model} in {config.dtype}, prompts of {PROMPT} tokens"
    return f"{about}: {text}", "WARNING" not in text
