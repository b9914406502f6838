"""The sampling loop of nano_r1.py (plumbing/sampler.py) against transformers' `model.generate`, on the same prompts.

    python benchmarks/rollout.py                 # 32 prompts x 8 completions of the embedded model

The two run in turn, A B A B, and the ratio is taken pair by pair: a shared machine's speed drifts. Completions are
sampled, so their lengths differ a little from run to run; tokens a second says what each did with its time.
"""

import argparse
import statistics
import time

import torch

import runs  # before nano_r1, which it makes importable
from nano_r1 import Config
from plumbing.processes import derive_seed


def with_generate(model, prompts, n, max_tokens, stop_ids, pad_id, seed):
    """The same samples' worth of work by `generate`; returns the number of tokens before each row's end."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    torch.manual_seed(seed)
    with torch.no_grad():
        rows = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            num_return_sequences=n, max_new_tokens=max_tokens, eos_token_id=stop_ids, pad_token_id=pad_id,
        )  # fmt: skip
    tokens = 0
    for row in rows[:, width:].tolist():
        tokens += next((i + 1 for i, token in enumerate(row) if token in stop_ids), len(row))
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/nano-base")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    ours, model, task = runs.load_sampler(Config(model=args.model, rollout="transformers"))
    prompts = [task.prompt_ids(p) for p in task.load_problems("test", None, 0)[: args.prompts]]
    print(f"{args.prompts} prompts x {args.group_size} completions, at most {args.max_tokens} tokens, {args.model}")
    print(f"{'round':>5} {'generate':>19} {'nano_r1':>19} {'ratio':>6}")
    ratios = []
    for round_ in range(args.rounds + 1):
        seed = derive_seed("benchmark", round_)
        start = time.perf_counter()
        theirs_tokens = with_generate(
            model, prompts, args.group_size, args.max_tokens, ours.stop_ids, ours.pad_id, seed
        )
        middle = time.perf_counter()
        seeds = [derive_seed(seed, place) for place in range(len(prompts))]
        groups = ours.generate(prompts, args.group_size, 1.0, [args.max_tokens] * len(prompts), seeds)
        end = time.perf_counter()
        ours_tokens = sum(len(c.token_ids) for group in groups for c in group)
        a, b = theirs_tokens / (middle - start), ours_tokens / (end - middle)
        if round_ == 0:
            continue  # warm-up
        ratios.append(b / a)
        print(f"{round_:>5} {middle - start:6.2f} s {a:6.0f} tok/s {end - middle:6.2f} s {b:6.0f} tok/s {b / a:6.2f}")
    print(f"ratio of tokens a second: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
