# %% [markdown]
# # nano_sft: supervised training, before reinforcement learning
#
#     python nano_sft.py tune --data ROWS.jsonl          # fine-tune a model on rows {"prompt", "response"}
#     python nano_sft.py tune --resume out/NAME          # go on after an interruption
#
# This is the warm start that precedes RL in practice, and the supervised half of the course's assignment: cross-entropy
# on the responses alone, validation by sampling with the engine of `nano_r1.py`, the same run directory and curves.
# `python nano_r1.py --model out/NAME/model` goes on from its result. Where the embedded base model comes from is in
# `models/nano-base/make_base.py`.

# %%
import argparse
import dataclasses
import functools
import math
import os
import random
import sys
import time
from dataclasses import dataclass

import torch

import countdown_rewards as countdown
import nano_r1 as r1
from nano_r1 import setting

# %% [markdown]
# ## 1. The update
#
# Supervised fine-tuning is the policy gradient on somebody else's completions, each with advantage 1.


# %%
def sft_microbatch_train_step(
    policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant=1.0, backward=torch.Tensor.backward
):
    """Negative log-likelihood of the responses of one micro-batch, and its backward pass.

    Args:
        policy_log_probs, response_mask: (B, T).
    Returns:
        loss, a scalar: for each row the sum of the response's log-probs, divided by normalize_constant; its mean over
        the rows, negative, divided by gradient_accumulation_steps; and a dict with the number of response tokens.
    """
    per_row = r1.masked_normalize(policy_log_probs, response_mask, normalize_constant, dim=1)  # (B,)
    loss = -per_row.mean() / gradient_accumulation_steps
    backward(loss)
    return loss.detach(), {"tokens": response_mask.sum()}


def train_step(engine, batches, device, world):
    """One optimizer step on micro-batches of `input_ids`, `labels`, `response_mask`: the mean over all their tokens."""
    total_tokens = r1.all_reduce(sum(int(t["response_mask"].sum()) for t in batches))
    measured, loss_sum = r1.Measurements(), 0.0
    for t in batches:
        t = {name: tensor.to(device) for name, tensor in t.items()}
        mask = t["response_mask"]
        out = r1.get_response_log_probs(
            engine, t["input_ids"], t["labels"], return_token_entropy=True, response_mask=mask
        )
        loss, _ = sft_microbatch_train_step(
            out["log_probs"],
            mask,
            gradient_accumulation_steps=1,
            # the mean over rows becomes a sum, the sum a mean over the step; DeepSpeed averages over the processes
            normalize_constant=total_tokens / world / len(mask),
            backward=engine.backward,
        )
        loss_sum += loss.item() / world
        measured.mean("entropy", out["token_entropy"][mask])
    engine.step()
    loss, grad_norm = r1.all_reduce(loss_sum), float(engine.get_global_grad_norm())
    return {"loss": loss, "grad_norm": grad_norm, **measured.reduce(), "tokens/update": total_tokens}


# %% [markdown]
# ## 2. Fine-tuning a model on rows of prompt and response


# %%
@dataclass
class TuneConfig(r1.Config):
    """Settings of `nano_sft.py tune`: those of nano_r1.py that apply, with other defaults, and two more."""

    data: str = setting(
        None,
        "rows to learn from: a jsonl/json/csv/parquet file with the columns prompt and response. prompt is used as it "
        "is: it must be what --prompt renders, chat template and opening tag included; the end token is added",
    )
    examples: int = setting(0, "learn from so many rows (0: all); the assignment compares 128, 256, 512, 1024, all")
    batch_size: int = setting(32, "rows per step")
    task: str = setting("countdown", "the task to validate on: the module TASK_rewards.py beside this file")
    eval_data: str = setting(None, "validate on every row of this file instead of the task's held-out problems")
    steps: int = setting(100, "optimizer steps")
    temperature: float = setting(1.0, "of the samples of the validation; training knows no temperature")
    learning_rate: float = setting(3e-4, "peak [0.5B-3B: 1e-5 to 2e-5]")
    name: str = setting(None, "name of the run's directory; left out: `sft`, date and time")


RL_ONLY = (  # settings of nano_r1.py that mean nothing here
    "questions completions sampling_rounds loss baseline normalize_by_std std_of advantage_eps aggregate cliprange "
    "cliprange_high credit vine_segments vine_samples epochs minibatches kl_coef kl_estimator entropy_coef "
    "mask_truncated overlong_buffer importance_cap check_sync max_bad_steps eval_only eval_samples"
).split()
TUNE_PANELS = [
    ("accuracy", []),
    ("loss (nats a token)", [("loss", None)]),
    ("entropy (nats a token)", [("entropy", None)]),
    ("gradient norm", [("grad_norm", None)]),
    ("learning rate", [("lr", None)]),
    ("validation", [("eval/format", "in form"), ("eval/clipped_ratio", "cut off")]),
]


def load_examples(config, tokenizer, context):
    """(rows to train on as (prompt, response), how many were left out for their length).

    Raises UserError with one sentence for a file that is missing or unreadable, or a row without prompt or response.
    """
    try:
        table = countdown.load_rows(config.data, ("prompt", "response"), hub=None)
    except ValueError as error:
        raise r1.UserError(str(error)) from None
    rows = {}  # unique, in order
    for number, row in enumerate(table, start=1):
        for name in ("prompt", "response"):
            if not isinstance(row[name], str) or not row[name].strip():
                raise r1.UserError(f"{config.data}, row {number}: {name} must be a text, got {row[name]!r:.80}.")
        rows[row["prompt"], row["response"]] = None
    rows = list(rows)
    random.Random(r1.derive_seed(config.seed, "examples")).shuffle(rows)
    # A token is at least a byte: most rows need no tokenizing.
    fits = lambda row: len((row[0] + row[1]).encode()) < context or token_count(row, tokenizer) <= context
    kept = [row for row in rows if fits(row)]
    if not kept:
        raise r1.UserError(f"No row of {config.data} fits into the model's context of {context} tokens.")
    return kept[: config.examples or None], len(rows) - len(kept)


def token_count(row, tokenizer):
    prompt, response = row
    return len(r1.encode_prompt(prompt, tokenizer)) + len(tokenizer.encode(response, add_special_tokens=False)) + 1


def tune_batches(rows, tokenizer, step, config, rank, world):
    """This process's micro-batches of a step, a list; the rows are shuffled anew for each pass over them."""
    start = (step - 1) * config.batch_size
    picked = []
    for place in range(start, start + config.batch_size):
        epoch, index = divmod(place, len(rows))
        order = shuffled(len(rows), r1.derive_seed(config.seed, epoch, "order of rows"))
        picked.append(rows[order[index]])
    length = lambda row: token_count(row, tokenizer)
    batches = r1.split_by_tokens(picked[rank::world], length, config.micro_batch_tokens)
    result = []
    for batch in r1.as_many_everywhere(batches, filler=lambda row: (row[0], "")):
        responses = [response + tokenizer.eos_token * bool(response) for _, response in batch]
        result.append(r1.tokenize_prompt_and_output([prompt for prompt, _ in batch], responses, tokenizer))
    return result


@functools.lru_cache(2)
def shuffled(n, seed):
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order


def tune(config):
    """Validate, fine-tune, validate again, save. Returns the run's directory."""
    rank, world, device = r1.start_processes()
    if not config.data:
        raise r1.UserError("tune needs --data FILE: rows with the columns prompt and response.")
    if config.batch_size < 1 or config.batch_size % world:
        raise r1.UserError(f"--batch_size {config.batch_size} cannot be shared equally by {world} process(es).")
    if config.examples < 0:
        raise r1.UserError("--examples must not be negative.")
    config = dataclasses.replace(config, name=config.name or f"sft-{time.strftime('%Y%m%d-%H%M%S')}")
    # What the functions of nano_r1.py are told: one sample a problem, no problems to train on, none from --data.
    once = dataclasses.replace(config, completions=1, eval_only=True, data=None)
    task = r1.load_task(config.task)
    try:
        _, problems = r1.load_all_problems(task, once)
    except r1.UserError as error:
        raise r1.UserError(f"{error} (For the validation of `tune`: --eval_data FILE.)") from None
    tokenizer = r1.load_tokenizer(config.model)
    checkpoint, done = None, 0
    if config.resume:
        checkpoint, done = r1.newest_checkpoint(os.path.join(config.resume, "checkpoints"), config)
    policy = r1.load_policy(config, checkpoint).to(device)
    rows, left_out = load_examples(config, tokenizer, policy.config.max_position_embeddings)
    problems, max_length = r1.fit_into_context(problems, task, tokenizer, policy, once)
    stop_ids, stop_texts = r1.stop_token_ids(policy, tokenizer), task.PROMPTS[config.prompt].stop

    run = r1.Run(config, first=rank == 0)
    run.say(
        f"{config.model}: {sum(p.numel() for p in policy.parameters()) / 1e6:.1f}M parameters, {world} process(es)\n"
        f"{len(rows)} rows of {config.data}" + (f"; {left_out} left out, they are too long" if left_out else "") + "\n"
        f"{config.steps} steps of {config.batch_size} rows: {config.steps * config.batch_size / len(rows):.1f} passes\n"
        f"validation on {len(problems)} problems of {config.task}\nrecord: {run.path}\n"
        f"the first row's prompt:\n{r1.quoted(rows[0][0][:2000])}\n"
        f"the first validation prompt; it should look alike:\n"
        f"{r1.quoted(task.format_prompt(problems[0], tokenizer, config.prompt)[:2000])}"
    )
    rollout = r1.make_rollout(config, policy, tokenizer, stop_ids, stop_texts, max_length, rank, world)
    engine = r1.make_engine(policy, config)
    rollout.sleep()
    if checkpoint:
        r1.restore_optimizer(engine, checkpoint)
    if config.resume:
        run.rewind(done)
        run.say(f"Going on after step {done}.\n")

    def validation(step):
        rollout.wake()
        rollout.sync_weights(policy)
        metrics, episodes = r1.evaluate(rollout, problems, task, tokenizer, once, rank, world)
        rollout.sleep()
        run.save_episodes(f"episodes/step_{step:06d}", episodes)
        run.show_evaluation(step, metrics, episodes)
        return metrics

    if done == 0:
        run.log({"step": 0, **validation(0)})
    pace = []  # seconds of recent steps
    r1.catch_signals()
    for step in range(done + 1, config.steps + 1):
        clock = r1.Clock(config)
        lr = r1.set_learning_rate(engine, config, step)
        batches = tune_batches(rows, tokenizer, step, config, rank, world)
        with r1.enough_memory("update", config):
            metrics = {"step": step, **train_step(engine, batches, device, world), "lr": lr, **clock.seconds}
        if not math.isfinite(metrics["grad_norm"]):
            run.say("  WARNING: loss or gradient not finite: the weights stay as they were")
        pace = [*pace[-9:], metrics["time/step"]]
        left = (config.steps - step) * sum(pace) / len(pace) / 60
        run.say(
            f"step {step:>4}/{config.steps}  loss {metrics['loss']:.3f}  grad {metrics['grad_norm']:.2f}  "
            f"{metrics['time/step']:.1f} s  {left:.0f} min left"
        )
        evaluate_now = step == config.steps or (config.eval_every and step % config.eval_every == 0)
        if evaluate_now:
            metrics |= validation(step)
        run.log(metrics)
        if evaluate_now:
            run.plot(TUNE_PANELS)
        leaving = r1.asked_to_leave()
        if leaving or (config.save_every and step % config.save_every == 0):
            r1.save_checkpoint(engine, tokenizer, run.checkpoints, step, config)
        if leaving:
            run.say(f"Saved after step {step}: --resume {run.path} goes on.")
            return run.path
    r1.save_policy(policy, tokenizer, os.path.join(run.path, "model"), merge=config.lora_merge)
    r1.conclude(run)
    return run.path


# %%
def command_line(argv):
    description = "Supervised training, before reinforcement learning."
    parser = argparse.ArgumentParser(prog="nano_sft.py", description=description)
    parser.add_argument("what", choices=["tune"], help="tune: fine-tune a model on rows of prompt and response")
    parser.parse_args(argv[:1])
    description = "Fine-tune a model on rows of prompt and response, with validation by sampling."
    return tune(r1.parse_args(argv[1:], TuneConfig, "nano_sft.py tune", description, hidden=RL_ONLY))


if __name__ == "__main__":
    try:
        command_line(sys.argv[1:])
        r1.stop_processes()
        sys.exit(128 + r1.SIGNALS[0][0] if r1.SIGNALS else 0)
    except r1.UserError as error:
        print(f"nano_sft.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nInterrupted: --resume RUN_DIRECTORY goes on.", file=sys.stderr)
        sys.exit(130)
