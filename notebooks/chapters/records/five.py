"""Chapter 5's record: four ways to train one base, at about equal tokens.

    python -m notebooks.chapters.records.five 0 1 2    # the seeds

Imitation learns from a program's traces, selection from the base's own correct completions, and
distillation from the reinforced model, which is run E of six.py. A run that is complete is not
repeated.
"""

import dataclasses
import json
import random
import statistics
import sys
from pathlib import Path

import torch

import evaluate
import nano_r1
from benchmarks import runs
from benchmarks.controls import right_samples
from labs.lab import COUNTDOWN, TUNING
from notebooks.chapters.records import six

sys.path.append("models/nano-base")
import make_base

BASE = nano_r1.Config().model
METHODS = ("base", "reinforce", "imitate", "select", "distil")


def sampled_tokens(path):
    """The number of tokens that a run's steps have sampled."""
    of_steps = runs.metrics(path)[1:]
    return round(sum(row["completions/mean_length"] for row in of_steps) * 16 * 8)


def traces(config, tokens):
    """Rows for nano_sft.py: so many tokens of systematic searches, in good format."""
    _, task = runs.load(config)
    author = make_base.AUTHORS["systematic"]._replace(forms=(1, 0, 0, 0, 0))
    rng = random.Random(config.seed)
    rows = []
    for problem in task.load_problems("train", config):
        text = make_base.write_as(author, problem["nums"], problem["target"], rng)
        rows.append({"prompt": task.tokenizer.decode(task.prompt_ids(problem)), "completion": text})
        tokens -= len(task.tokenizer.encode(text)) + 1
        if tokens <= 0:
            return rows


def train(method, seed, budget):
    """(the trained model, how many tokens the method has used); no training for the base."""
    config = runs.parse("nano_r1", f"{COUNTDOWN} --seed {seed}")
    path = f"out/five/{method}-seed{seed}"
    reinforced = f"out/six/E-seed{seed}"
    if method == "base":
        return BASE, 0
    if method == "reinforce":
        runs.train("nano_r1", f"{six.FLAGS} --seed {seed}", reinforced)
        return f"{reinforced}/model", sampled_tokens(reinforced)
    if method == "distil":
        # 17 steps, because the student soon writes as much as its teacher.
        flags = f"{COUNTDOWN} --steps 17 --seed {seed} --teacher {reinforced}/model"
        runs.train("variants", flags, path)
        return f"{path}/model", sampled_tokens(path)
    make_rows = {"imitate": traces, "select": right_samples}[method]
    nano_r1.write(f"{path}.jsonl", make_rows(config, budget))
    runs.train("nano_sft", f"{TUNING} --seed {seed} --data {path}.jsonl", path)
    return f"{path}/model", budget


def measure(model, seed):
    """{name: number}: at temperature 1, on held-out problems."""
    config = runs.parse("nano_r1", f"{COUNTDOWN} --seed {seed} --model {model}")
    _, task = runs.load(config)
    groups = runs.sample(config, task.load_problems("test", config)[:64], 64)
    of_groups = [evaluate.measure_group(group, task) for group in groups]
    found = {}
    for k in (1, 2, 4, 8, 16, 32, 64):
        found[f"pass@{k}"] = statistics.mean(values[f"pass@{k}"] for values in of_groups)
    found["tokens each"] = statistics.mean(len(e.token_ids) for group in groups for e in group)
    found["kl"] = kl_to_base(config, [e for group in groups for e in group[:4]])
    words = dataclasses.replace(config, task="gsm8k", max_tokens=64)
    _, task = runs.load(words)
    groups = runs.sample(words, task.load_problems("test", words)[:256], 4)
    found["gsm8k"] = statistics.mean(e.reward.answer for group in groups for e in group)
    return found


@torch.no_grad()
def kl_to_base(config, episodes):
    """KL(policy || base) in nats per token, over the whole vocabulary at each token."""
    policy, _ = nano_r1.load_model(config)
    base, _ = nano_r1.load_model(dataclasses.replace(config, model=BASE))
    total = 0.0
    for part in nano_r1.micro_batches(episodes, config):
        batch = nano_r1.collate(part, "cpu")
        ids, mask = batch["input_ids"], batch["response_mask"]
        log_probs = policy(ids).logits[mask].log_softmax(dim=-1)  # (N, V)
        of_base = base(ids).logits[mask].log_softmax(dim=-1)
        total += (log_probs.exp() * (log_probs - of_base)).sum().item()
    return total / sum(len(e.token_ids) for e in episodes)


def main():
    rows = []
    for seed in map(int, sys.argv[1:]):
        budget = 0
        for method in METHODS:
            model, tokens = train(method, seed, budget)
            if method == "reinforce":
                budget = tokens
            rows.append({"method": method, "seed": seed, "tokens": tokens} | measure(model, seed))
            print(rows[-1], flush=True)
    lines = ",\n".join(map(json.dumps, rows))
    (Path(__file__).parent / "five.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
