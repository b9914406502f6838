"""Tiny models with random weights of the families that people train, with a BPE and a template."""

import os
import sys

import torch
import transformers
from helpers import ROOT, main, records
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from plumbing.models import load_model

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

from gpu import coin_task

TEXT = ["Use the numbers 19, 36, 55 and 7 to make 65.", "<answer>36 + 55 - 19 - 7</answer>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # all shows in the logits
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "intermediate_size": 96}  # one for two queries
WIDE = {**GROUPED, "head_dim": 32}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
CAPPED = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 3.0}
FAMILIES = {  # sizes, the prefix of the configuration's class, the model's class
    "Qwen2": (GROUPED, "Qwen2", "Qwen2ForCausalLM"),
    "Qwen3": (WIDE, "Qwen3", "Qwen3ForCausalLM"),
    "Llama": (GROUPED, "Llama", "LlamaForCausalLM"),
    "Gemma3": ({**WIDE, **SLIDING}, "Gemma3Text", "Gemma3ForCausalLM"),
    "Gemma2": ({**WIDE, **SLIDING, **CAPPED}, "Gemma2", "Gemma2ForCausalLM"),
    "GPT2": (SIZES, "GPT2", "GPT2LMHeadModel"),
}
CASES = [(family, tied) for family in FAMILIES for tied in (True, False)]
CASES.remove(("GPT2", False))
RUN = {"prompts_per_step": 2, "group_size": 4, "max_tokens": 24, "eval_problems": 1, "steps": 2}
RUN |= {"save_every": 0, "learning_rate": 1e-3, "warmup_steps": 0, "kl_coef": 0.1}


def make_family(path, family, tied):
    """Model and tokenizer in directory `path`."""
    tokens = Tokenizer(BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|system|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    tokens.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=300, **options))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<|end|>", pad_token="<|end|>", chat_template=TEMPLATE
    )
    sizes, prefix, name = FAMILIES[family]
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    config = getattr(transformers, f"{prefix}Config")(
        **sizes, **ends, vocab_size=len(tokenizer), tie_word_embeddings=tied
    )
    torch.manual_seed(0)
    getattr(transformers, name)(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


def train_two_steps(path, family, tied, **changes):
    """Two steps for a reward by chance: (metrics, weights before, the model after)."""
    base = str(path / "base")
    make_family(path / "base", family, tied)
    sys.modules["coin_rewards"] = coin_task(16)
    run, _ = main(model=base, out=str(path), task="coin", prompt="chat", **{**RUN, **changes})
    before = load_model(base, "float32").state_dict()
    return records(run)[1:], before, load_model(run / "model", "float32")
