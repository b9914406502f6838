"""The update of nano_r1.py against the loop one writes first, on the same batch of completions.

    python benchmarks/update.py                      # the embedded model, and a small one with Qwen's vocabulary
    python benchmarks/update.py --rounds 3 --questions 8

The naive loop takes eight completions at a time as they come, pads them to the longest, makes the float32
log-softmax of every position over the whole vocabulary, and runs the model over every completion, first once more
without gradient for the old log-probabilities. Both end with the same gradient, whose norm is printed. Each measurement
is a process of its own: peak memory is what it needed beyond model and optimizer. The two run in turn.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

MODELS = ["models/nano-base", "wide"]


def load(name, r1):
    """The embedded model, or random weights: 2 layers of width 128 under Qwen2.5's vocabulary."""
    if name != "wide":
        return r1.load_model(name, "float32")
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=151_936, num_hidden_layers=2, tie_word_embeddings=True, **sizes))


def sample(questions, path):
    """Completions of the embedded model with their advantages, into a file that all measurements read."""
    import countdown_rewards as task
    import nano_r1 as r1

    r1.start_processes()
    config = r1.Config(questions=questions)
    tokenizer, model = r1.load_tokenizer(config.model), r1.load_model(config.model, "float32")
    stop_ids = r1.stop_token_ids(model, tokenizer)
    rollout = r1.TransformersRollout(model, stop_ids, stop_ids[0])
    problems = task.load_problems("train", None, 0)[:questions]
    episodes = r1.sample_completions(rollout, problems, task, tokenizer, config, "benchmark")
    r1.score(episodes, task, config)
    r1.add_advantages(episodes, config)
    rows = [(e.prompt_ids, e.completion.token_ids, e.completion.logprobs, e.advantage) for e in episodes]
    with open(path, "w") as file:
        json.dump(rows, file)


def naive(model, rows, config):
    """Tokens that went through the model with gradient, padding included, and the norm of the gradient."""
    import torch

    total = sum(len(completion) for _, completion, *_ in rows)
    processed = 0
    for with_gradient in (False, True):
        for start in range(0, len(rows), 8):
            batch = rows[start : start + 8]
            width = max(len(p) + len(c) for p, c, *_ in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width)
            for i, (p, c, *_) in enumerate(batch):
                ids[i, : len(p) + len(c)] = torch.tensor(p + c)
                mask[i, len(p) : len(p) + len(c)] = 1
            with torch.set_grad_enabled(with_gradient):
                log_probs = torch.log_softmax(model(ids).logits[:, :-1].float(), dim=-1)
                chosen = log_probs.gather(-1, ids[:, 1:, None])[..., 0]
                entropy = -(log_probs.detach().exp() * log_probs.detach()).sum(-1)
            if with_gradient:
                advantages = torch.tensor([[row[3]] for row in batch])
                (-(advantages * chosen * mask[:, 1:]).sum() / total).backward()
                processed += ids.numel()
                assert entropy.isfinite().all()
    return processed, torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm).item()


def measure(loop, name, path):
    """One update in this process; prints its figures as JSON."""
    import torch

    import nano_r1 as r1

    r1.start_processes()
    config = r1.Config()
    with open(path) as file:
        rows = json.load(file)
    model = load(name, r1)
    engine = r1.make_engine(model, config)
    verdict = {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}
    episodes = [r1.Episode({}, p, r1.Completion(c, s, "stop"), "", verdict, a) for p, c, s, a in rows]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if loop == "naive":
        processed, norm = naive(model, rows, config)
    else:
        measured = r1.update_policy(engine, episodes, config, torch.device("cpu"), world=1)
        processed, norm = measured["tokens/update"], measured["grad_norm"]
    seconds = time.perf_counter() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    useful = sum(len(p) + len(c) for p, c, _, a in rows if a or loop == "naive")
    everything = sum(len(p) + len(c) for p, c, *_ in rows)
    figures = {"padding": 1 - useful / processed, "memory": memory, "speed": everything / seconds, "norm": norm}
    print(json.dumps(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=16, help="with 8 completions each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--batch", default=os.path.join(ROOT, "out", "update_batch.json"), help="where the batch is kept"
    )
    parser.add_argument("--measure", nargs=2, metavar=("LOOP", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(*args.measure, args.batch)

    os.makedirs(os.path.dirname(os.path.abspath(args.batch)), exist_ok=True)
    sample(args.questions, args.batch)
    print(f"{args.questions * 8} completions, {args.rounds} rounds, {os.cpu_count()} cores\n")
    print(
        "| model | loop | padding | peak memory | tokens a second | gradient norm |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name in MODELS:
        figures = {"naive": [], "nano_r1": []}
        for _ in range(args.rounds):
            for loop in figures:
                command = [sys.executable, __file__, "--batch", args.batch, "--measure", loop, name]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr)
                figures[loop].append(json.loads(done.stdout.splitlines()[-1]))
        for loop, rounds in figures.items():
            median = {key: statistics.median(f[key] for f in rounds) for key in rounds[0]}
            speeds = f"{min(f['speed'] for f in rounds):,.0f} to {max(f['speed'] for f in rounds):,.0f}"
            print(
                f"| {name} | {loop} | {median['padding']:.0%} | {median['memory']:,.0f} MiB | {median['speed']:,.0f} "
                f"({speeds}) | {median['norm']:.6f} |"
            )
        ratios = [ours["speed"] / theirs["speed"] for theirs, ours in zip(*figures.values())]
        print(
            f"| {name} | ratio of speeds | | | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | |"
        )


if __name__ == "__main__":
    main()
