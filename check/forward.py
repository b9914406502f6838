"""Is your training forward the model? Score the same tokens in each way that a trainer may.

    python check/forward.py MODEL

MODEL is a causal language model of transformers: a directory, or a name on the hub. The tokens 0 to
15 are scored with model(input_ids) in float32. Each other way should give the same log-probs: with
a cache, as samplers do; with padding; with nano_r1.py's Scorer, which never has all logits; with
vLLM, if it is installed, and with 8 tokens that it samples after them. If two differ by more than
1e-3, sampler and loss have different distributions. The exit code is then 1.
"""

import importlib.util
import os
import sys
from pathlib import Path

import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM

sys.path.append(str(Path(__file__).parents[1]))
import nano_r1

IDS = torch.arange(16)[None]  # (1, T)


@torch.no_grad()
def differences(model):
    """{way: the largest difference of a log-prob from those of model(input_ids)}"""
    seen = torch.ones_like(IDS)
    first = model(IDS[:, :8], use_cache=True)
    right = model(pad(IDS, (0, 4)), attention_mask=pad(seen, (0, 4))).logits
    padded = {"input_ids": pad(IDS, (4, 0)), "attention_mask": pad(seen, (4, 0))}
    left = model(**padded, position_ids=padded["input_ids"]).logits  # token i is at place i
    found = {
        "padding on the right": right[:, :16],
        "padding on the left": left[:, 4:],
        "the same without position_ids": model(**padded).logits[:, 4:],
    }
    cache = first.get("past_key_values")
    if cache:  # without one, a model's own state is not looked at
        second = model(IDS[:, 8:], past_key_values=cache)
        found["a cache"] = torch.cat([first.logits, second.logits], dim=1)
    expected = model(IDS).logits.log_softmax(dim=-1)
    gaps = {way: x.log_softmax(dim=-1) - expected for way, x in found.items()}
    e = nano_r1.Episode(prompt_ids=[0], token_ids=list(range(1, 16)))
    scorer = nano_r1.Scorer(model, nano_r1.Config(dtype="float32"))
    labels = expected[0].diagonal(offset=1)  # the log-prob of token i + 1 after token i
    gaps["Scorer of nano_r1.py"] = scorer(nano_r1.collate([e], model.device))[0] - labels[:15]
    return {way: gap.abs().max().item() for way, gap in gaps.items()}


@torch.no_grad()
def difference_of_vllm(model, path):
    """The largest difference of vLLM's log-probs from those of model(input_ids)."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # or two more processes import it
    import vllm

    llm = vllm.LLM(
        model=path,
        dtype="float32",
        max_model_len=24,
        skip_tokenizer_init=True,
        enforce_eager=True,  # compiling takes minutes on a CPU
    )
    wanted = vllm.SamplingParams(max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    (result,) = llm.generate([{"prompt_token_ids": IDS[0].tolist()}], wanted, use_tqdm=False)
    (sampled,) = result.outputs
    ids = torch.tensor([result.prompt_token_ids + list(sampled.token_ids)])
    found = result.prompt_logprobs[1:] + list(sampled.logprobs)  # dicts: {token: its Logprob}
    expected = model(ids).logits.log_softmax(dim=-1)[0]
    gaps = [of[i].logprob - row[i] for i, of, row in zip(ids[0, 1:].tolist(), found, expected)]
    return torch.stack(gaps).abs().max().item()


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    gaps = differences(model)
    if importlib.util.find_spec("vllm"):
        gaps["vLLM"] = difference_of_vllm(model, sys.argv[1])
    for way, gap in gaps.items():
        print(f"{'✓' if gap < 1e-3 else '✗'} {way:32}differs by {gap:.1e} at most")
    sys.exit(max(gaps.values()) >= 1e-3)


if __name__ == "__main__":
    main()
