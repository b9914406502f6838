"""What a step costs as it grows: completions, tokens, parameters; beside its arithmetic.

    python benchmarks/cost_curve.py                      # all three curves
    python benchmarks/cost_curve.py --only completions

One step of the lesson (sampling, the reference's log-probs, the update) of models with random
weights whose completions all reach the limit. Each point is measured in a process of its own, the
second of two such steps: the first also waits for its memory, page by page. Its arithmetic: 2 N
operations a sampled token, 2 N for the reference, 6 N for the update, a prompt once a group, and
attention's products; N are the layers' matrices and the output layer. Its share of the time is what
would be left if every product ran at the speed of large matrices here, on one core. Memory is the
most that the process had, less what it had when the model and AdamW were there.
"""

import argparse
import dataclasses
import json
import os
import resource
import sys
import time

import runs

GROUP = 8
# hidden, intermediate, layers, heads, heads of keys: 1.2 (models/nano-base), 5, 20, 60, 140 million
SHAPES = {
    "1.2M": (128, 384, 5, 4, 2),
    "5M": (256, 768, 6, 4, 2),
    "20M": (448, 1344, 9, 7, 7),
    "60M": (512, 1536, 18, 8, 8),
    "140M": (576, 1536, 40, 9, 3),
}
CURVES = {  # (shape, completions, tokens of each)
    "completions": [("1.2M", n, 64) for n in (64, 256, 1024, 4096)],
    "tokens": [("1.2M", 64, n) for n in (64, 256, 512, 960)],
    "parameters": [(shape, 32, 64) for shape in SHAPES],
}


def model_of(shape):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from plumbing.packing import NAME

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = dict(zip((*names, "num_key_value_heads"), SHAPES[shape]))
    torch.manual_seed(0)
    config = Qwen2Config(**sizes, vocab_size=1640, tie_word_embeddings=True, eos_token_id=0)
    config._attn_implementation = NAME
    return Qwen2ForCausalLM(config)


def operations(shape, prompts, lengths):
    """Floating-point operations of (sampling, reference, update), attention's included."""
    hidden, intermediate, layers, heads, kv_heads = SHAPES[shape]
    matrices = 2 * hidden * hidden * (1 + kv_heads / heads) + 3 * hidden * intermediate
    n = layers * matrices + 1640 * hidden
    tokens = sum(prompts) + sum(lengths)
    # A token's queries and weights with all before it; the prompt's own are left out.
    before = [p + length / 2 for p in prompts for length in lengths[:GROUP]]
    seen = sum(b * length for b, length in zip(before, lengths))
    attention = 4 * hidden * layers * seen
    return [
        2 * n * sum(lengths) + attention,
        2 * n * tokens + attention,
        3 * (2 * n * tokens + attention),
    ]


def measure(shape, completions, tokens):
    """Of one point, in this process: seconds of the three parts, operations, memory."""
    import torch
    from step_profile import Machine

    import nano_r1 as r1
    from plumbing.models import load_tokenizer
    from plumbing.sampler import TransformersSampler
    from plumbing.tasks import load_task

    r1.init_distributed()
    config = r1.Config(prompts_per_step=completions // GROUP, max_tokens=tokens, engine="torch")
    policy = model_of(shape)
    task = load_task("countdown", "short", load_tokenizer("models/nano-base"))
    sampler = TransformersSampler(policy, task, [-1], r1.sample_token, config)  # nothing ends one
    reference = model_of(shape).eval()
    engine = r1.make_engine(policy, config)
    problems = task.load_problems("train", None, 0)

    def step(number, config):
        clock = [time.perf_counter()]
        episodes = r1.rollout(sampler, problems, task, config, number)
        for place, e in enumerate(episodes):
            e.per_token["advantages"] = [(-1.0) ** place] * e.length
        clock.append(time.perf_counter())
        r1.add_log_probs(reference, episodes, "ref_log_probs", config)
        clock.append(time.perf_counter())
        r1.update(engine, episodes, config, 1e-9)
        clock.append(time.perf_counter())
        return [b - a for a, b in zip(clock, clock[1:])], episodes

    step(1, dataclasses.replace(config, prompts_per_step=2, max_tokens=16))  # makes AdamW's state
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    before = peak()
    step(2, config)
    seconds, episodes = step(3, config)
    prompts = [len(e.prompt_ids) for e in episodes[::GROUP]]
    found = {"seconds": seconds, "memory": peak() - before}
    found["operations"] = operations(shape, prompts, [e.length for e in episodes])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return found | {"speed": Machine().flops, "threads": threads}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point:
        shape, completions, tokens = args.point
        return print(json.dumps(measure(shape, int(completions), int(tokens))))
    head = ["parameters", "completions", "tokens of each", "sampling, s", "reference, s"]
    lines = [[*head, "update, s", "ms a completion token", "MiB more"]]
    for curve in args.only:
        for point in CURVES[curve]:
            words = [sys.executable, os.path.abspath(__file__), "--point", *map(str, point)]
            found = json.loads(runs.call(words).splitlines()[-1])
            cells = [*map(str, point)]
            for seconds, count in zip(found["seconds"], found["operations"]):
                # Sampling has one thread, but for large models.
                cells.append(f"{seconds:.2f} ({count / found['speed'] / seconds:.0%})")
            cells.append(f"{sum(found['seconds']) / (point[1] * point[2]) * 1e3:.3f}")
            lines.append([*cells, f"{found['memory'] / 2**20:,.0f}"])
            print(runs.table(lines).splitlines()[-1], flush=True)
    print(f"\n{found['threads']} threads; a core here: {found['speed'] / 1e9:.0f} GFLOP/s. In ")
    print(
        "brackets the arithmetic's share of the time, if one core did it all: two can reach 200%."
    )
    print(f"\n{runs.table(lines)}")


if __name__ == "__main__":
    main()
