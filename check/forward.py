"""Is your training forward the model? Score the same tokens in each way that a trainer may.

    python check/forward.py MODEL

MODEL is a causal language model of transformers: a directory, or a name on the hub. The tokens 0
to 15 are scored with model(input_ids).logits in float32. Each other way should give the same
log-probs: with a cache, as samplers do; with padding; with nano_r1.py's Scorer, which never has all
logits; with vLLM, if it is installed. If two differ by more than 1e-3, sampler and loss have
different distributions.
"""

import importlib.util
import os
import sys

import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import nano_r1


def scores(logits, ids):
    """(1, T, V), (1, T) -> (T - 1,), the log-prob of each token but the first."""
    return logits[0, :-1].log_softmax(dim=-1).gather(-1, ids[0, 1:, None])[:, 0]


def by_vllm(path):
    import vllm

    llm = vllm.LLM(path, dtype="float32", enforce_eager=True, max_model_len=64)
    options = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate({"prompt_token_ids": list(range(16))}, options)
    return torch.tensor([output.prompt_logprobs[i][i].logprob for i in range(1, 16)])


@torch.no_grad()
def ways(path):
    """{way: the log-probs of the same tokens}. The first is the model itself."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.arange(16)[None]
    first = model(ids[:, :8], use_cache=True)
    second = model(ids[:, 8:], past_key_values=first.past_key_values)
    seen = torch.ones_like(ids)
    right = model(pad(ids, (0, 4)), attention_mask=pad(seen, (0, 4)))
    padded = {"input_ids": pad(ids, (4, 0)), "attention_mask": pad(seen, (4, 0))}
    places = pad(torch.arange(16)[None], (4, 0))
    e = nano_r1.Episode(problem={}, prompt_ids=[0], token_ids=list(range(1, 16)))
    scorer = nano_r1.Scorer(model, nano_r1.Config(dtype="float32"))
    found = {
        "the model's logits": scores(model(ids).logits, ids),
        "a cache": scores(torch.cat([first.logits, second.logits], dim=1), ids),
        "padding on the right": scores(right.logits[:, :16], ids),
        "padding on the left": scores(model(**padded, position_ids=places).logits[:, 4:], ids),
        "the same without position_ids": scores(model(**padded).logits[:, 4:], ids),
        "Scorer of nano_r1.py": scorer(nano_r1.collate([e], model.device))[0],
    }
    if importlib.util.find_spec("vllm"):
        found["vLLM"] = by_vllm(path)
    return found


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = ways(sys.argv[1])
    model = found["the model's logits"]
    gaps = {way: (model - others).abs().max().item() for way, others in found.items()}
    for way, gap in gaps.items():
        print(f"{'✓' if gap < 1e-3 else '✗'} {way:32}differs by {gap:.1e} at most")
    sys.exit(max(gaps.values()) >= 1e-3)


if __name__ == "__main__":
    main()
