"""A step of nano_r1.py against one of TRL's GRPOTrainer: same model, prompts, groups and lengths.

    pip install -r requirements-dev.txt
    python benchmarks/against_trl.py                    # 2 rounds of 3 steps, 32 x 8 completions
    python benchmarks/against_trl.py --model out/NAME/model  # trained: its completions are longer
    python benchmarks/against_trl.py --rounds 1 --steps 2 --prompts_per_step 8

The two run in turn, each round in a process of its own, whose first step warms up and is not
counted. Both have our default's objective, with its KL penalty and so a reference model, one AdamW
step a batch, and float32. The learning rate is all but 0, so that completions stay as long as the
base's. TRL samples with transformers' `generate`, as it does without vLLM; its gradient
checkpointing, which only costs time here, is off, and `--trl_rows` completions go through its model
at once. Its process has our setting of OpenMP. Of a step's time, that until the rewards
are known is shown apart: in TRL the reference's log-probs are in it, in nano_r1.py in the rest.
(Not named trl.py, which `import trl` would find.)
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time

import runs

SIZES = ("model", "prompts_per_step", "group_size", "max_tokens")


def our_flags(args):
    sizes = [f"--{name} {getattr(args, name)}" for name in SIZES]
    alone = ["--eval_every 0", "--eval_problems 1", "--save_every 0", "--record_tokens_every 0"]
    return " ".join(["--learning_rate 1e-12", *alone, *sizes])


def ours(args, out):
    """[(seconds, completion tokens, seconds until the rewards)] of each step of nano_r1.py."""
    where = ["--steps", str(args.steps + 1), "--out", out, "--name", "ours"]
    runs.call([sys.executable, "nano_r1.py", *shlex.split(our_flags(args)), *where])
    rows = runs.records(os.path.join(out, "ours"))[2:]
    return [
        (r["time/step"], r["tokens/rollout"], r["time/rollout"] + r["time/reward"]) for r in rows
    ]


def theirs(args, out):
    """The same of TRL, from a process of its own."""
    import plumbing  # noqa: F401  sets what OpenMP reads

    names = (*SIZES, "steps", "trl_rows", "trl_continuous")
    sizes = [f"--{name}={getattr(args, name)}" for name in names]
    command = [sys.executable, __file__, "--measure", out, *sizes]
    return json.loads(runs.call(command).splitlines()[-1])


def trl_settings(args):
    """The settings of `Config` under TRL's names, as far as they make a step what it is."""
    config = runs.config_of(our_flags(args))
    return {
        "loss_type": "grpo",  # the mean of each completion's mean
        "scale_rewards": "group",
        "beta": config.kl_coef,
        "epsilon": config.cliprange,
        "temperature": config.temperature,
        "num_generations": config.group_size,
        "max_completion_length": config.max_tokens,
        "per_device_train_batch_size": args.trl_rows,
        "gradient_accumulation_steps": (
            config.prompts_per_step * config.group_size // args.trl_rows
        ),
        "learning_rate": config.learning_rate,
        "adam_beta2": 0.95,
        "max_grad_norm": config.max_grad_norm,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_transformers_continuous_batching": bool(args.trl_continuous),
    }


def measure(args):
    """Train with TRL; prints [[seconds, tokens, seconds until the rewards], ...] from step 2 on."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from plumbing.models import load_tokenizer
    from plumbing.settings import find
    from plumbing.tasks import load_task

    tokenizer = load_tokenizer(args.model)
    task = load_task("countdown", "short", tokenizer)
    steps = []
    ends = []
    rewarded = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            ends.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    def reward(completions, problem, completion_ids, **_):
        steps.append(sum(map(len, completion_ids)))
        totals = [
            r.total for r in task.rewards(completions, [json.loads(text) for text in problem])
        ]
        rewarded.append(time.perf_counter())
        return totals

    problems = task.load_problems("train", None, 0)[: (args.steps + 1) * args.prompts_per_step]
    rows = [{"prompt": task.prompt_text(p), "problem": json.dumps(p)} for p in problems]
    config = GRPOConfig(output_dir=args.measure, max_steps=args.steps + 1, **trl_settings(args))
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(find(args.model), dtype="float32"),
        reward,
        config,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    print(
        json.dumps([(b - a, n, r - a) for a, b, n, r in zip(ends, ends[1:], steps, rewarded)][1:])
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="models/nano-base")
    parser.add_argument("--prompts_per_step", type=int, default=32)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each round, counted")
    parser.add_argument(
        "--trl_rows", type=int, default=32, help="completions in one of TRL's forward passes"
    )
    parser.add_argument(
        "--trl_continuous", type=int, default=0, help="1: TRL samples with continuous batching"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args)

    found = {"TRL": [], "nano_r1": []}
    for round_ in range(args.rounds):
        for name, loop in zip(found, (theirs, ours)):
            with tempfile.TemporaryDirectory() as out:
                found[name].append(loop(args, out))
            seconds = ", ".join(f"{s:.1f}" for s, _, _ in found[name][-1])
            print(f"round {round_ + 1}, {name}: {seconds} s a step", flush=True)
    print(
        f"\n{args.prompts_per_step} x {args.group_size} completions, at most {args.max_tokens} "
        f"tokens, {args.model}, {os.cpu_count()} cores, {args.rounds * args.steps} steps each; "
        "medians, smallest and largest in brackets\n"
    )
    head = [
        "",
        "seconds a step",
        "until the rewards",
        "from there on",
        "completion tokens",
        "tokens a second",
    ]
    lines = [head]
    medians = []
    for name, rounds in found.items():
        columns = list(zip(*[(s, first, s - first, n, n / s) for s, n, first in sum(rounds, [])]))
        digits = (1, 1, 1, 0, 0)
        cells = [
            f"{statistics.median(c):,.{d}f} ({min(c):,.{d}f} to {max(c):,.{d}f})"
            for c, d in zip(columns, digits)
        ]
        lines.append([name, *cells])
        medians.append([statistics.median(column) for column in columns])
    trl, nano = medians
    ratios = [f"{a / b:.1f}" for a, b in zip(trl[:3], nano)] + ["", f"{nano[4] / trl[4]:.1f}"]
    print(runs.table([*lines, ["ratio", *ratios]]))


if __name__ == "__main__":
    main()
