"""How long does a step take, and what takes it? Two programs in turn, in pairs.

    python -m benchmarks.speed trl                     # against TRL's GRPOTrainer
    python -m benchmarks.speed checkout --there DIR    # git worktree add DIR COMMIT

A shared machine's speed drifts. So the two run in turn, A B and then B A, each round in a process
of its own, and ratios are taken pair by pair. The first step of a round warms up and does not
count. The learning rate is almost 0, so that completions stay as long as the model's. TRL has our
default's objective, in float32. It samples with `generate`, as it does without vLLM.
"""

import argparse
import functools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import nano_r1
from benchmarks import runs

FLAGS = """--prompts_per_step 32 --max_tokens 320 --learning_rate 1e-12 --eval_every 0
--eval_problems 1 --record_tokens_every 0"""


def output(command, folder):
    """What a program prints; if it fails, its last words and the end."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"$ {shlex.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout


# ---- What is measured: functions of (args, round) -> [(seconds, tokens)], a pair for each step


def checkout(args, round_, folder=runs.ROOT):
    """The steps of `python nano_r1.py` in a checkout."""
    name = f"speed-{time.time_ns()}"
    flags = f"{args.flags} --steps {args.steps + 1} --seed {round_} --name {name}"
    output([sys.executable, "nano_r1.py", *shlex.split(flags)], folder)
    rows = nano_r1.read_rows(os.path.join(folder, "out", name, "metrics.jsonl"))[2:]
    shutil.rmtree(os.path.join(folder, "out", name))
    count = args.config.prompts_per_step * args.config.group_size
    steps = []
    for row in rows:
        tokens = round(row["completions/mean_length"] * count)
        steps.append((row["time/step"], tokens))
    return steps


def there(args, round_):
    return checkout(args, round_, args.there)


def trl(args, round_):
    """The same of TRL, in a process of its own."""
    words = [*sys.argv[1:], "--child", str(round_)]
    printed = output([sys.executable, "-m", "benchmarks.speed", *words], runs.ROOT)
    return json.loads(printed.splitlines()[-1])


def train_with_trl(args):
    """Print the steps of TRL's trainer as JSON."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config = args.config
    _, task = runs.load(config)
    ends = []
    sampled = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            ends.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    def reward(completions, problem, completion_ids, **_):
        totals = []
        for text, row in zip(completions, problem):
            totals.append(task.reward(text, json.loads(row))[0])
        sampled.append(sum(map(len, completion_ids)))
        return totals

    rows = []
    count = (args.steps + 1) * config.prompts_per_step
    for problem in task.load_problems("train", config)[:count]:
        prompt = task.tokenizer.decode(task.prompt_ids(problem))
        rows.append({"prompt": prompt, "problem": json.dumps(problem)})
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=args.steps + 1,
        loss_type="grpo",  # the mean of each completion's mean
        scale_rewards="group",
        beta=config.kl_coef,
        epsilon=config.cliprange,
        temperature=config.temperature,
        num_generations=config.group_size,
        max_completion_length=config.max_tokens,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=config.prompts_per_step * config.group_size // 16,
        learning_rate=config.learning_rate,
        adam_beta2=0.95,
        max_grad_norm=config.max_grad_norm,
        seed=args.child,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype="float32")
    parts = {"processing_class": task.tokenizer, "callbacks": [Clock()]}
    GRPOTrainer(model, reward, settings, Dataset.from_list(rows), **parts).train()
    steps = []
    for began, ended, tokens in zip(ends, ends[1:], sampled):
        steps.append((ended - began, tokens))
    print(json.dumps(steps[1:]))


# ---- The comparison

PAIRS = {  # the first one's time is divided by the second one's
    "trl": {"TRL": trl, "nano_r1": checkout},
    "checkout": {"there": there, "here": checkout},
}


def comparison(steps):
    """The table. `steps`: {name: [(seconds, tokens)]}, in pairs."""
    lines = [["", "seconds per step", "tokens", "tokens per second"]]
    median = functools.partial(runs.spread, middle=statistics.median)
    columns = {}
    for name, rows in steps.items():
        speeds = [tokens / seconds for seconds, tokens in rows]
        columns[name] = [*zip(*rows), speeds]
        cells = [median(column, digits) for column, digits in zip(columns[name], (2, 0, 0))]
        lines.append([name, *cells])
    ratios = []
    for theirs, ours in zip(*columns.values()):
        ratios.append(median([a / b for a, b in zip(theirs, ours)], 2))
    lines.append(["ratio, pair by pair", *ratios])
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("against", choices=PAIRS)
    add("--rounds", type=int, default=2)
    add("--steps", type=int, default=3, help="of each round that count")
    add("--flags", default="", help="flags of nano_r1.py, in one text")
    add("--there", metavar="DIR", help="another checkout")
    add("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.flags = f"{FLAGS} {args.flags}"
    args.config = runs.parse("nano_r1", args.flags)
    if args.child is not None:
        return train_with_trl(args)
    pair = PAIRS[args.against]
    steps = {name: [] for name in pair}
    for round_ in range(args.rounds):
        for name in list(pair)[:: -1 if round_ % 2 else 1]:
            found = pair[name](args, round_)
            steps[name] += found
            print(f"round {round_}, {name}: {', '.join(f'{s:.2f}' for s, *_ in found)} s per step")
    print(f"\n{args.flags}; {os.cpu_count()} cores, commit {runs.commit()}")
    print(f"median (smallest to largest)\n\n{comparison(steps)}")


if __name__ == "__main__":
    main()
