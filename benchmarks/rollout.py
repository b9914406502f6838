"""The rollout loop of nano_r1.py against transformers' `model.generate`, on the same prompts.

    python benchmarks/rollout.py                 # 32 prompts x 8 completions of the embedded model

The two run in turn, A B A B, and the ratio is taken pair by pair: a shared machine's speed drifts. Completions are
sampled, so their lengths differ a little from run to run; tokens a second says what each did with its time.
"""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import countdown_rewards as task
from nano_r1 import TransformersRollout, derive_seed, load_model, load_tokenizer, start_processes, stop_token_ids


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
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--max_tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    start_processes()
    tokenizer, model = load_tokenizer(args.model), load_model(args.model, "float32").eval()
    stop_ids = stop_token_ids(model, tokenizer)
    prompts = [tokenizer.encode(task.format_prompt(p, tokenizer)) for p in task.load_problems("test")[: args.prompts]]
    ours = TransformersRollout(model, stop_ids, stop_ids[0])
    print(f"{args.prompts} prompts x {args.completions} completions, at most {args.max_tokens} tokens, {args.model}")
    print(f"{'round':>5} {'generate':>19} {'nano_r1':>19} {'ratio':>6}")
    ratios = []
    for round_ in range(args.rounds + 1):
        seed = derive_seed("benchmark", round_)
        start = time.perf_counter()
        theirs_tokens = with_generate(
            model, prompts, args.completions, args.max_tokens, stop_ids, stop_ids[0], seed
        )
        middle = time.perf_counter()
        seeds = [derive_seed(seed, place) for place in range(len(prompts))]
        groups = ours.generate(prompts, args.completions, 1.0, args.max_tokens, seeds)
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
