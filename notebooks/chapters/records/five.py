"""Chapter 5's record: five ways to teach the same base, at equal tokens.

    OMP_NUM_THREADS=1 python notebooks/chapters/records/five.py --seeds 0 1 2

One method after the other, some ten minutes of one core a seed. What is complete is not done again:
the same command goes on. Runs are kept in out/five, the numbers in five.json beside this file.
"""

import argparse
import dataclasses
import functools
import json
import os
import sys
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
for folder in ("labs", "benchmarks", "."):
    sys.path.insert(0, os.path.join(ROOT, folder))

import nano_r1
import runs
from plumbing.batching import micro_batches

# ---- On-policy distillation


def reverse_kl(policy, teacher):
    """KL(policy || teacher) of each token, over the whole vocabulary: (N, V), (N, V) -> (N,).

    Both are log-probs. One of the divergences of GKD, arXiv:2306.13649.
    """
    # KL(pi || pi_T) = sum_v pi(v) (log pi(v) - log pi_T(v))
    return (policy.exp() * (policy - teacher)).sum(dim=-1)


def log_probs_at(model, batch):
    """log pi of every entry of the vocabulary at the N response tokens: (N, V)."""
    logits = model(batch["input_ids"]).logits  # (B, T, V)
    return logits[batch["response_mask"]].float().log_softmax(dim=-1)


def distil(engine, episodes, config, lr, loss=None, *, teacher):
    """In the place of `nano_r1.update`: towards the teacher, at tokens that the student sampled.

    No reward and no advantage is used, and of the tokens only that they were met.
    """
    tokens = sum(e.length for e in episodes)
    total = 0.0
    for rows in micro_batches(episodes, config):
        batch = nano_r1.collate(rows, engine.device)
        with torch.no_grad():
            target = log_probs_at(teacher, batch)  # (N, V)
        part = reverse_kl(log_probs_at(engine, batch), target).sum() / tokens
        engine.backward(part)
        total += part.item()
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    engine.step()
    norm = float(engine.get_global_grad_norm())
    measured = {"loss": total, "grad_norm": norm, "bad_updates": False}
    return {name: [torch.tensor([value])] for name, value in measured.items()}


# ---- The methods: each trains a model in `path`, and returns the tokens that it has used


def reinforce(path, seed, args, budget):
    from lab import COUNTDOWN, Run

    Run(f"{COUNTDOWN} --steps {args.steps}").train(path, seed)
    return sampled_tokens(path)


def imitate(path, seed, args, budget):
    """As many tokens of a program's traces as the reinforced run has sampled."""
    from forgetting import systematic_rows

    tokenizer = nano_r1.load_tokenizer("models/nano-base")
    rows = []
    tokens = 0
    for row in systematic_rows(seed):
        if tokens >= budget:
            break
        rows.append(row)
        tokens += len(tokenizer.encode(row["response"], add_special_tokens=False)) + 1
    fine_tune(path, seed, args, lambda seed: rows)
    return tokens


def select(path, seed, args, budget):
    """RFT: the base's right completions among as many tokens as the reinforced run has sampled."""
    from lab import COUNTDOWN
    from select_or_reinforce import selected

    fine_tune(path, seed, args, selected(COUNTDOWN, budget))
    return budget  # the batch that passes it is sampled to its end


def distil_on_policy(path, seed, args, budget):
    """The reinforced model is the teacher, and the student's steps are of the same size.

    17 of them for 20: the student soon writes as much as its teacher, and 20 would be 1.2 times the
    budget.
    """
    from lab import COUNTDOWN, config_of

    teacher = os.path.join(os.path.dirname(path), "reinforce", "model")
    config = config_of(f"{COUNTDOWN} --steps {args.steps * 17 // 20} --kl_coef 0")
    where = {"out": os.path.dirname(path), "name": os.path.basename(path)}
    config = dataclasses.replace(config, seed=seed, **where)
    model = nano_r1.load_policy(dataclasses.replace(config, model=teacher), None, "cpu").eval()
    nano_r1.main(config, update=functools.partial(distil, teacher=model))
    return sampled_tokens(path)


def fine_tune(path, seed, args, rows):
    from lab import Tuning
    from select_or_reinforce import TUNING

    Tuning(f"{TUNING} --steps {args.steps * 5} --eval_every 1000", rows).train(path, seed)


def sampled_tokens(path):
    return round(sum(row.get("tokens/rollout", 0) for row in runs.records(path)))


METHODS = {
    "base": None,
    "reinforce": reinforce,
    "imitate": imitate,
    "select": select,
    "distil": distil_on_policy,
}


# ---- Measures


def measure(model, seed, args):
    """What a model can do on held-out problems at temperature 1; how far it is from the base."""
    import lab

    config = dataclasses.replace(lab.config_of(lab.COUNTDOWN), seed=seed)
    metrics, episodes = lab.sampled(model, config, args.problems, args.samples)
    counts, pass_at = lab.chances(episodes, args.samples, (1, 2, 4, 8, 16, 32, 64))
    found = {"samples": args.samples, "right": counts, "mean_length": metrics["eval/mean_length"]}
    found |= {f"pass@{k}": value for k, value in pass_at.items()}
    found["kl"] = kl_to_base(model, episodes[:: args.samples // 4], config)
    words = dataclasses.replace(config, max_tokens=64)
    metrics, _ = lab.sampled(model, words, 4 * args.problems, 4, task="gsm8k")
    return found | {"gsm8k": metrics["eval/pass@1"]}


@torch.no_grad()
def kl_to_base(model, episodes, config):
    """Nats a token, exact at each token of the model's own completions of four a problem."""
    policy = nano_r1.load_policy(dataclasses.replace(config, model=model), None, "cpu").eval()
    base = nano_r1.load_policy(config, None, "cpu").eval()
    kl = []
    for rows in micro_batches(episodes, config):
        batch = nano_r1.collate(rows, "cpu")
        kl.append(reverse_kl(log_probs_at(policy, batch), log_probs_at(base, batch)))
    return torch.cat(kl).mean().item()


def complete(method, seed, budget, args):
    """The row of a method and a seed; made if it is not there."""
    from plumbing.files import write_text

    path = os.path.join(args.out, f"seed{seed}", method)
    file = f"{path}.row.json"
    if os.path.exists(file):
        with open(file) as opened:
            return json.load(opened)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    row = {"method": method, "seed": seed, "tokens": 0, "seconds": 0, "commit": runs.commit()}
    model = "models/nano-base"
    if METHODS[method]:
        start = time.time()
        row["tokens"] = METHODS[method](path, seed, args, budget)
        row["seconds"] = round(time.time() - start)
        model = os.path.join(path, "model")
        if not os.path.isdir(model):
            sys.exit(130)  # it was stopped; the same command goes on
        if os.path.exists(f"{path}.jsonl"):
            with open(f"{path}.jsonl") as opened:
                row["rows"] = sum(1 for _ in opened)
    row |= measure(model, seed, args)
    write_text(file, json.dumps(row))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add(
        "--steps", type=int, default=20, help="of reinforcement; fine-tuning 5x, distillation 0.85x"
    )
    add("--problems", type=int, default=64)
    add("--samples", type=int, default=64, help="completions of each problem")
    add("--out", default=os.path.join(ROOT, "out", "five"))
    add("--record", default=os.path.join(HERE, "five.json"))
    args = parser.parse_args()
    os.chdir(ROOT)
    rows = []
    for seed in args.seeds:
        budget = 0
        for method in METHODS:
            rows.append(complete(method, seed, budget, args))
            budget = budget or rows[-1]["tokens"]  # the reinforced run comes first
            print({k: v for k, v in rows[-1].items() if k != "right"}, flush=True)
        with open(args.record, "w") as file:  # of complete seeds
            lines = ",\n".join(json.dumps(row) for row in rows)
            file.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
