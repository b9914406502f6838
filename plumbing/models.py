"""Models and tokenizers: loading from a directory or the hub, adapters, full weights under ZeRO 3.

Weights are read from safetensors alone, and no code that comes with a model is run. A path is
looked up in the working directory, then in the repository, so that the embedded model is found.
"""

import contextlib
import functools
import os

import torch
import torch.distributed as dist
import transformers

from plumbing import packing
from plumbing.processes import derive_seed
from plumbing.settings import UserError, find
from plumbing.timing import out_of_memory
from plumbing.waiting import waiting

BUCKET = 50_000_000  # gradients that DeepSpeed reduces at a time


@contextlib.contextmanager
def loading(path):
    """Errors while a model is read become a UserError."""
    try:
        yield
    except Exception as error:  # transformers and safetensors raise what they like
        if out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:300]
        if "trust_remote_code" in str(error):
            reason = "it brings code of its own, which is not run; take one that transformers knows"
        raise UserError(
            f"The model {path} could not be read, here or on the hub: {reason}"
        ) from None


NO_CODE = {"trust_remote_code": False}  # or transformers would ask whether to run what comes along


def load_config(path):
    """The config of a model."""
    with loading(path):
        return transformers.AutoConfig.from_pretrained(find(path), **NO_CODE)


def load_model(path, dtype):
    """A causal language model, its weights in `dtype` ("float32" or "bfloat16"). UserError."""
    config = load_config(path)
    with loading(path):
        # torch's own ignores the soft-capping of Gemma 2's attention.
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        attention = packing.NAME if packing.is_like_llama(config) else "eager" if capped else None
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            find(path),
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            **NO_CODE,
            attn_implementation=attention,
            ignore_mismatched_sizes=True,  # refused below
            output_loading_info=True,
        )
        # What is not in the file would begin with random numbers.
        shapes = [f"{name}, of another shape" for name, *_ in found["mismatched_keys"]]
        if lacking := sorted(found["missing_keys"]) + shapes:
            raise ValueError(f"{len(lacking)} of its weights are not there: {lacking[0]}")
        return model


def empty_model(config):
    """The policy of a config without memory for its weights, from the model's config.json."""
    shape = load_config(config.model)
    options = {"dtype": getattr(torch, config.dtype), **NO_CODE}
    with loading(config.model), torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(shape, **options)
    return add_lora(model, config) if config.lora_rank else model


def load_policy(config, checkpoint, device):
    """The model to train: --model, with adapters if asked for, or the one of a checkpoint."""
    saved = checkpoint and os.path.join(checkpoint, "policy")
    waiting(f"loading {saved or config.model}")
    base = config.model if config.lora_rank or not saved else saved  # adapters are saved alone
    model = load_model(base, config.dtype).to(device)
    if not config.lora_rank:
        return model
    if not saved:
        return add_lora(model, config)
    import peft

    with loading(saved):
        return peft.PeftModel.from_pretrained(model, saved, is_trainable=True)


def add_lora(model, config):
    """The model with trainable low-rank adapters beside its weights (LoRA, arXiv:2106.09685)."""
    import peft

    named = config.lora_target_modules
    torch.manual_seed(derive_seed(config.seed, "lora"))
    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=named if named == "all-linear" else named.split(","),
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(model, lora)
    except ValueError as error:
        raise UserError(f"--lora_target_modules {named}: {str(error).splitlines()[0]}") from None


def initialize_deepspeed(model, settings, config):
    """DeepSpeed's engine for a model's trainable weights."""
    import deepspeed

    dist.barrier()  # until each process has its vLLM: DeepSpeed's start hangs beside vLLM's
    # Of the buffer in the backward pass; DeepSpeed's default is 0.9 GiB in bfloat16.
    settings["zero_optimization"]["reduce_bucket_size"] = BUCKET
    clip_here = config.zero_stage == 0 and config.dtype == "float32"
    if clip_here:  # there it would clip, and not report the norm
        settings["gradient_clipping"] = 0.0
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=settings)
    if clip_here:
        clip = functools.partial(clip_gradient, engine, config.max_grad_norm)
        engine.optimizer.register_step_pre_hook(clip)
    if config.offload:
        forget_skipped_gradients(engine.optimizer)
    return engine


def forget_skipped_gradients(optimizer):
    """With --offload DeepSpeed 0.19.8 keeps the sum of an update that was not finite.

    Then no later one would be finite.
    """
    reset = optimizer.reset_cpu_buffers  # called after such an update

    def reset_all():
        reset()
        optimizer.averaged_gradients = dict.fromkeys(optimizer.averaged_gradients)

    optimizer.reset_cpu_buffers = reset_all


def clip_gradient(engine, max_grad_norm, *_):
    """Clip, keep the norm for `engine.get_global_grad_norm`, skip a step that is not finite."""
    norm = torch.nn.utils.clip_grad_norm_(engine.module.parameters(), max_grad_norm)
    engine._global_grad_norm = norm
    if not norm.isfinite():
        engine.module.zero_grad()  # a weight without gradient is not updated


@torch.no_grad()
def merged_weights(model):
    """Yield (name, weight) with the adapters merged in; without adapters the plain state dict.

    One at a time: all merged weights would be a second model. The state dict lists a tied output
    embedding too, of which vLLM may hold a copy.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    gemma2 = base.config.model_type == "gemma2"  # always tied: vLLM's has no place for its output
    for name, weight in base.state_dict().items():
        if name.endswith(".base_layer.weight"):
            layer = base.get_submodule(name.removesuffix(".base_layer.weight"))
            delta = layer.get_delta_weight("default")
            weight = (weight.float() + delta.float()).to(weight.dtype)
        if ".lora_" not in name and not (gemma2 and name == "lm_head.weight"):
            yield name.replace(".base_layer.", "."), weight


def load_tokenizer(path):
    """The tokenizer of a model that it fits. Raises UserError."""
    with loading(path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(find(path), **NO_CODE)
    rows = load_config(path).get_text_config().vocab_size
    if not tokenizer.encode("1 + 2"):
        raise UserError(f"{path} has no tokenizer: tokenizer.json is missing or empty.")
    if tokenizer.eos_token_id is None:
        raise UserError(f"The tokenizer of {path} has no end token: no completion could end.")
    # Tokens that were added and that no prompt has need no row (Gemma 3 has one for images).
    added = set(tokenizer.get_added_vocab()) - {tokenizer.eos_token, tokenizer.bos_token}
    written = tokenizer.chat_template or ""
    used = {t: i for t, i in tokenizer.get_vocab().items() if t not in added or t in written}
    last = max(used, key=used.get)
    if used[last] >= rows:
        fault = f"the tokenizer has {last!r} as {used[last]}, the model rows for {rows} tokens"
        raise UserError(f"The tokenizer of {path} is another model's: {fault}.")
    return tokenizer


def vocabulary_size(tokenizer):
    """Number of token ids; the model's embedding may have more rows, to pad it to a round size."""
    return max(tokenizer.get_vocab().values()) + 1


def stop_token_ids(model, tokenizer):
    """Every token that ends a completion: the tokenizer's, and the model's generation config's."""
    listed = model.generation_config.eos_token_id
    listed = listed if isinstance(listed, list) else [listed]
    return sorted({tokenizer.eos_token_id, *(i for i in listed if i is not None)})


def context_length(path):
    """Maximum number of tokens of prompt and completion together; None: no limit is known."""
    return getattr(load_config(path).get_text_config(), "max_position_embeddings", None)


def load_reference(config, policy):
    """The frozen reference of the KL penalty; None without one; with LoRA the policy without it."""
    if config.kl_coef == 0:
        return None
    if config.lora_rank:
        return WithoutAdapters(policy)
    return load_model(config.model, config.dtype).to(policy.device).eval()


class WithoutAdapters:
    """A model whose adapters are off while it is called: the base, without a second copy."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        with self.model.disable_adapter():
            return self.model(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.model, name)


def gathered(model, modify=False):
    """A context with full weights (ZeRO 3 shards them; otherwise it does nothing)."""
    sharded = [p for p in model.parameters() if hasattr(p, "ds_id")]
    if not sharded:
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(sharded, modifier_rank=0 if modify else None)


@contextlib.contextmanager
def perturbed(model):
    """A context in which every trained weight is perturbed; afterwards it is restored exactly."""
    generator = torch.Generator().manual_seed(0)
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad(), gathered(model, modify=True):
        before = [p.detach().to("cpu", copy=True) for p in trained]
        for p in trained:
            p.add_((0.1 * p.abs().mean() + 0.02) * torch.randn(p.shape, generator=generator).to(p))
    yield
    with torch.no_grad(), gathered(model, modify=True):
        for p, old in zip(trained, before):
            p.copy_(old)
