"""Models and tokenizers: reading them from a directory or the hub, adapters, whole weights under ZeRO 3."""

import contextlib
import os

import torch

from plumbing.processes import derive_seed
from plumbing.settings import UserError


@contextlib.contextmanager
def loading(path):
    """Turns what goes wrong while reading a model into one sentence."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"The model {path} could not be read from a local directory or the hub: {reason}") from None


def load_model(path, dtype):
    """A causal language model from a local directory or the hub, its weights in safetensors, no remote code."""
    import transformers

    with loading(path):
        dtype = getattr(torch, dtype)
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True)


def load_policy(config, checkpoint=None):
    """The model to train: --model, with adapters if asked for, or all that as a checkpoint has it."""
    saved = checkpoint and os.path.join(checkpoint, "policy")
    if not config.lora_rank:
        return load_model(saved or config.model, config.dtype)
    import peft

    model = load_model(config.model, config.dtype)
    if saved:
        with loading(saved):
            return peft.PeftModel.from_pretrained(model, saved, is_trainable=True)
    return add_lora(model, config)


def add_lora(model, config):
    """The model with trainable low-rank adapters; its own weights stay as they are (LoRA, arXiv:2106.09685)."""
    import peft

    targets = config.lora_targets if config.lora_targets == "all-linear" else config.lora_targets.split(",")
    torch.manual_seed(derive_seed(config.seed, "lora"))
    lora = peft.LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    try:
        return peft.get_peft_model(model, lora)
    except ValueError as error:
        raise UserError(f"--lora_targets {config.lora_targets}: {str(error).splitlines()[0]}") from None


def merged_weights(model):
    """name -> weight, adapters added in: W + alpha / rank * B A. Without adapters the plain state dict.

    state_dict and not named_parameters: it lists a tied output embedding too, of which vLLM may hold a copy.
    """
    if not hasattr(model, "peft_config"):
        return model.state_dict()
    base = model.get_base_model()
    layers, weights = dict(base.named_modules()), {}
    for name, weight in base.state_dict().items():
        if name.endswith(".base_layer.weight"):
            delta = layers[name.removesuffix(".base_layer.weight")].get_delta_weight("default")
            weight = (weight.float() + delta.float()).to(weight.dtype)
        if ".lora_" not in name:
            weights[name.replace(".base_layer.", ".")] = weight
    return weights


def load_tokenizer(path):
    from transformers import AutoTokenizer

    with loading(path):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if tokenizer.eos_token_id is None:
        raise UserError(f"The tokenizer of {path} has no end-of-sequence token, so no completion could ever end.")
    return tokenizer


def vocabulary_size(tokenizer):
    return max(tokenizer.get_vocab().values()) + 1


def stop_token_ids(model, tokenizer):
    """Every token that ends a completion: the tokenizer's and all that the model's generation config lists."""
    listed = model.generation_config.eos_token_id
    listed = listed if isinstance(listed, list) else [listed]
    return sorted({tokenizer.eos_token_id, *(i for i in listed if i is not None)})


def gathered(model, modify=False):
    """Whole weights inside this context (ZeRO 3 keeps shards; otherwise there is nothing to do)."""
    sharded = [p for p in model.parameters() if hasattr(p, "ds_id")]
    if not sharded:
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(sharded, modifier_rank=0 if modify else None)
