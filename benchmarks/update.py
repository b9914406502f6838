"""The update of nano_r1.py against the loop one writes first, on the same batch of completions.

    python benchmarks/update.py                # the embedded model, and one with Qwen's vocabulary
    python benchmarks/update.py --rounds 3 --prompts_per_step 8
    python benchmarks/update.py --busy           # beside a program that keeps one core busy

The naive loop takes eight completions at a time as they come, pads them to the longest, makes the
float32 log-softmax of every position over the whole vocabulary, and runs the model over every
completion, first once more without gradient for the old log-probs. Both have the lesson's loss
without a KL penalty (SETTINGS), so that completions without signal need not be run, and both end
with the same gradient, whose norm is printed. Each measurement is a process of its own: peak memory
is what it needed beyond model and optimizer. The two run in turn.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import time

import runs

MODELS = ["models/nano-base", "wide"]
SETTINGS = {"kl_coef": 0.0}


def load(name):
    """The embedded model, or random weights: 2 layers of width 128 under Qwen2.5's vocabulary."""
    if name != "wide":
        from plumbing.models import load_model

        return load_model(name, "float32")
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from plumbing.packing import NAME

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = Qwen2Config(vocab_size=151_936, tie_word_embeddings=True, **sizes, **heads)
    config._attn_implementation = NAME  # as `load_model` has it
    return Qwen2ForCausalLM(config)


def sample(prompts_per_step, path):
    """Completions of the embedded model with their advantages, into a file for all measurements."""
    import torch

    import nano_r1 as r1

    config = r1.Config(prompts_per_step=prompts_per_step, rollout="transformers")
    sampler, _, task = runs.load_sampler(config)
    problems = task.load_problems("train", None, 0)
    episodes = r1.rollout(sampler, problems, task, config, step=1)
    rewards = torch.tensor([float(e.reward.total) for e in episodes])
    advantages = r1.group_advantages(rewards.view(-1, config.group_size), config)
    rows = [
        (e.prompt_ids, e.completion.token_ids, e.completion.logprobs, advantage)
        for e, advantage in zip(episodes, advantages.flatten().tolist())
    ]
    with open(path, "w") as file:
        json.dump(rows, file)


def naive(model, rows, config):
    """(tokens through the model with gradient, padding included; the gradient's norm).

    Tokens run, in the table: these, in shares of the batch's prompts and completions.
    """
    import torch

    processed = 0
    for with_gradient in (False, True):
        for start in range(0, len(rows), 8):
            batch = rows[start : start + 8]
            width = max(len(p) + len(c) for p, c, *_ in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width - 1)
            for i, (p, c, *_) in enumerate(batch):
                ids[i, : len(p) + len(c)] = torch.tensor(p + c)
                mask[i, len(p) - 1 : len(p) + len(c) - 1] = 1
            with torch.set_grad_enabled(with_gradient):
                log_probs = torch.log_softmax(model(ids).logits[:, :-1].float(), dim=-1)
                chosen = log_probs.gather(-1, ids[:, 1:, None])[..., 0]
                entropy = -(log_probs.detach().exp() * log_probs.detach()).sum(-1)
            if with_gradient:
                advantages = torch.tensor([row[3] for row in batch])
                means = (chosen * mask).sum(dim=1) / mask.sum(dim=1)
                (-(advantages * means).sum() / len(rows)).backward()
                processed += ids.numel()
                assert entropy.isfinite().all()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    return processed, norm.item()


def episodes_of(rows):
    """The rows of `sample` as episodes."""
    from nano_r1 import Episode
    from plumbing.sampler import Completion

    episodes = []
    for prompt, ids, log_probs, advantage in rows:
        e = Episode({}, prompt, Completion(ids, log_probs, "stop"), "", advantage=advantage)
        e.per_token["sampler_log_probs"] = log_probs
        e.per_token["advantages"] = [advantage] * e.length
        episodes.append(e)
    return episodes


def ours(engine, episodes, config):
    """The same of `update`, its metrics included."""
    from nano_r1 import update
    from plumbing.batching import micro_batches
    from plumbing.evaluation import combine

    measured = combine(update(engine, episodes, config, config.learning_rate))
    processed = 0
    for rows in micro_batches(episodes, config, with_gradient=True):
        prompts = {tuple(e.prompt_ids) for e in rows}
        processed += sum(map(len, prompts)) + sum(e.length - 1 for e in rows)
    return processed, measured["grad_norm"]


def measure(loop, name, path):
    """One update in this process; prints its figures as JSON."""
    import nano_r1 as r1

    r1.init_distributed()
    config = r1.Config(**SETTINGS)
    with open(path) as file:
        rows = json.load(file)
    model = load(name)
    # DeepSpeed's hooks forbid the naive loop's own `backward`.
    engine = None if loop == "naive" else r1.make_engine(model, config)
    episodes = episodes_of(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if loop == "naive":
        processed, norm = naive(model, rows, config)
    else:
        processed, norm = ours(engine, episodes, config)
    seconds = time.perf_counter() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    everything = sum(len(p) + len(c) for p, c, *_ in rows)
    figures = {"processed": processed / everything, "memory": memory}
    figures |= {"speed": everything / seconds, "norm": norm}
    print(json.dumps(figures))


def measure_in_turn(name, args):
    """{loop: the figures of each round}."""
    figures = {"naive": [], "nano_r1": []}
    for _ in range(args.rounds):
        for loop in figures:
            command = [sys.executable, __file__, "--batch", args.batch, "--measure", loop, name]
            with runs.busy_program() if args.busy else contextlib.nullcontext():
                said = runs.call(command)
            figures[loop].append(json.loads(said.splitlines()[-1]))
    return figures


def print_figures(name, figures):
    """A model's rows of the table."""
    for loop, rounds in figures.items():
        median = {key: statistics.median(f[key] for f in rounds) for key in rounds[0]}
        speeds = f"{min(f['speed'] for f in rounds):,.0f} to {max(f['speed'] for f in rounds):,.0f}"
        print(
            f"| {name} | {loop} | {median['processed']:.2f} | {median['memory']:,.0f} MiB "
            f"| {median['speed']:,.0f} ({speeds}) | {median['norm']:.6f} |"
        )
    ratios = [ours["speed"] / theirs["speed"] for theirs, ours in zip(*figures.values())]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"| {name} | ratio of speeds | | | {ratio} | |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts_per_step", type=int, default=16, help="with 8 completions each")
    parser.add_argument("--rounds", type=int, default=3)
    batch = os.path.join(runs.OUT, "update_batch.json")
    parser.add_argument("--batch", default=batch, help="where the batch is kept")
    parser.add_argument("--busy", action="store_true", help="beside a program on one core")
    parser.add_argument("--measure", nargs=2, metavar=("LOOP", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(*args.measure, args.batch)

    os.makedirs(os.path.dirname(os.path.abspath(args.batch)), exist_ok=True)
    sample(args.prompts_per_step, args.batch)
    completions = args.prompts_per_step * 8
    print(f"{completions} completions, {args.rounds} rounds, {os.cpu_count()} cores\n")
    print("| model | loop | tokens run | peak memory | tokens a second | gradient norm |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in MODELS:
        print_figures(name, measure_in_turn(name, args))


if __name__ == "__main__":
    main()
