# %% [markdown]
# # nano_sft: supervised fine-tuning, the warm start before reinforcement learning
#
# The second lesson, on top of `nano_r1.py`: fine-tune a model on rows of prompt and response, with cross-entropy on the
# response alone: the policy gradient on given completions instead of sampled ones, each with advantage 1.
#
#     python nano_sft.py --data ROWS.jsonl                      # rows {"prompt": ..., "response": ...}
#     python nano_sft.py --resume out/NAME                      # go on after an interruption
#     python nano_r1.py --model out/NAME/model                  # reinforcement learning from there
#
# One step:
#
#  1. Draw a batch of rows.
#  2. Loss of each response token:  L_t = -log pi(y_t | prompt, y_<t);  its mean over all response tokens of the batch.
#  3. One AdamW step.
#  4. Log; every N steps evaluate on the task's held-out problems by sampling, as in `nano_r1.py`.

# %%
from dataclasses import dataclass
from typing import Literal

from plumbing.settings import Engine, Evaluation, Record, UserError, check_run_settings, require
from plumbing.start import parse_or_exit


# %%
@dataclass
class Tuning:
    """fine-tuning"""

    model: str = "models/nano-base"  # a local directory or a hub id [Qwen/Qwen2.5-1.5B]
    # rows to learn from: a jsonl/json/csv/parquet file with the columns prompt and response. The prompt is used as it
    # is: it must be what the task's format_prompt renders, chat template and opening tag included. The end token is
    # added.
    data: str | None = None
    examples: int = 0  # learn from this many rows (0: all); the assignment compares 128, 256, 512, 1024, all
    steps: int = 100  # optimizer steps
    batch_size: int = 32  # rows per step
    learning_rate: float = 3e-4  # AdamW's, times warm-up and decay [0.5B-3B: 1e-5 to 2e-5]
    warmup_steps: int = 10  # linear warm-up
    lr_scheduler_type: Literal["linear", "constant"] = "linear"  # decay towards 0 from the first step on, or none
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    weight_decay: float = 0.0  # AdamW's


@dataclass
class Validation:
    """the task to validate on, by sampling"""

    task: str = "countdown"  # the module TASK_rewards.py
    prompt: str = "short"  # one of the task's prompts: short, chat, plain; countdown also reasoning, steps
    max_tokens: int = 320  # completions longer than this are cut off [1024]
    temperature: float = 1.0  # of the samples; training uses 1


@dataclass
class Config(Record, Evaluation, Engine, Validation, Tuning):
    """Everything a run depends on; saved as `config.json` in the run's directory. Raises UserError."""

    label = "sft"  # the name of the run's directory begins with it

    def __post_init__(self):
        check_run_settings(self)
        require(self, "at least 1", "steps batch_size max_tokens")
        require(self, "not negative", "examples warmup_steps weight_decay")
        require(self, "above 0", "learning_rate max_grad_norm temperature")
        if not self.data:
            raise UserError("--data FILE is missing: rows with the columns prompt and response.")


DESCRIPTION = "Fine-tune a model on rows of prompt and response, with validation by sampling."
if __name__ == "__main__" and "__file__" in globals():
    CONFIG = parse_or_exit(Config, "nano_sft.py", DESCRIPTION)

# %%
import functools
import math
import random

import torch.distributed as dist

from nano_r1 import evaluate, get_response_log_probs, make_engine, make_sampler, masked_normalize, set_learning_rate
from nano_r1 import tokenize_prompt_and_output
from plumbing.batching import equalize_micro_batches, split_by_tokens
from plumbing.checkpoints import restore_optimizer, resume_point, save_checkpoint, save_policy
from plumbing.curves import TUNING_PANELS
from plumbing.data import load_rows
from plumbing.evaluation import Meters
from plumbing.models import context_length, load_policy, load_tokenizer
from plumbing.processes import all_reduce, catch_signals, cleaned_up, derive_seed, init_distributed
from plumbing.processes import stop_requested
from plumbing.record import RunLog, Timer
from plumbing.script import run_script
from plumbing.tasks import drop_long_prompts, encode_prompt, load_problems, load_task

# %% [markdown]
# ## 1. The objective


# %%
def sft_loss(policy_log_probs, response_mask, normalize_constant=1.0):
    """Minus the mean over rows of (sum of the response's log-probs / normalize_constant): (B, T), (B, T) -> scalar."""
    per_row = masked_normalize(policy_log_probs, response_mask, normalize_constant, dim=1)  # (B,)
    return -per_row.mean()


def sft_microbatch_train_step(policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant=1.0):
    """The course's form: `sft_loss` divided by gradient_accumulation_steps, and its backward pass. Returns the loss,
    and a dict with the number of response tokens."""
    loss = sft_loss(policy_log_probs, response_mask, normalize_constant) / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {"tokens": response_mask.sum()}


def train_step(engine, batches):
    """One optimizer step on micro-batches of `input_ids`, `labels`, `response_mask`: the mean over all tokens."""
    total_tokens = all_reduce(sum(int(batch["response_mask"].sum()) for batch in batches))
    meters = Meters()
    for batch in batches:
        batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}  # (B, T) each
        mask = batch["response_mask"]
        out = get_response_log_probs(engine, batch["input_ids"], batch["labels"], True, response_mask=mask)  # (B, T)
        # The mean over rows becomes a sum, the sum a mean over the step; DeepSpeed averages over the processes.
        loss = sft_loss(out["log_probs"], mask, total_tokens / dist.get_world_size() / len(mask))
        engine.backward(loss)
        meters.sum("loss", loss.item() / dist.get_world_size())
        meters.mean("entropy", out["token_entropy"][mask])
    engine.step()
    grad_norm = float(engine.get_global_grad_norm())
    return {**meters.reduce(), "grad_norm": grad_norm, "tokens/update": total_tokens}


# %% [markdown]
# ## 2. The rows


# %%
def load_examples(config, tokenizer):
    """(rows to train on as (prompt, response), how many were left out as too long for the model). Raises UserError."""
    try:
        table = load_rows(config.data, ("prompt", "response"), hub=None)
    except ValueError as error:
        raise UserError(str(error)) from None
    rows = {}  # without duplicates, in order
    for number, row in enumerate(table, start=1):
        for name, text in row.items():
            if name in ("prompt", "response") and not (isinstance(text, str) and text.strip()):
                raise UserError(f"{config.data}, row {number}: {name} must be a text, got {text!r:.80}.")
        rows[row["prompt"], row["response"]] = None
    rows = list(rows)
    random.Random(derive_seed(config.seed, "examples")).shuffle(rows)
    context = context_length(config.model)
    kept = [row for row in rows if context is None or token_count(row, tokenizer) <= context]
    if not kept:
        raise UserError(f"No row of {config.data} fits into the model's context of {context} tokens.")
    if config.examples > len(kept):
        raise UserError(f"--examples {config.examples}: {config.data} has {len(kept)} different rows that fit.")
    return kept[: config.examples or None], len(rows) - len(kept)


def token_count(row, tokenizer):
    prompt, response = row
    return len(encode_prompt(prompt, tokenizer)) + len(tokenizer.encode(response, add_special_tokens=False)) + 1


@functools.lru_cache(2)  # the current pass over the rows, and the next
def shuffled(n, seed):
    return random.Random(seed).sample(range(n), n)


def draw_batches(rows, tokenizer, step, config):
    """This process's micro-batches of a step; the rows are reshuffled for each pass."""
    drawn = []
    for place in range((step - 1) * config.batch_size, step * config.batch_size):
        epoch, index = divmod(place, len(rows))
        drawn.append(rows[shuffled(len(rows), derive_seed(config.seed, epoch, "order of rows"))[index]])
    mine = drawn[dist.get_rank() :: dist.get_world_size()]
    batches = split_by_tokens(mine, lambda row: token_count(row, tokenizer), config.micro_batch_tokens)
    batches = equalize_micro_batches(batches, lambda row: (row[0], ""))  # a dummy has no response
    end = tokenizer.eos_token  # learned too, or the model would never stop
    batches = [[(prompt, response and response + end) for prompt, response in batch] for batch in batches]
    return [tokenize_prompt_and_output(*zip(*batch), tokenizer) for batch in batches]


def validate(step, sampler, policy, problems, task, log):
    """Evaluate the current weights on the held-out problems. Returns the metrics."""
    sampler.wake()
    sampler.sync_weights(policy)
    metrics, episodes = evaluate(sampler, problems, task, log.config, 1, log.config.temperature)
    sampler.sleep()
    log.save_episodes(f"episodes/step_{step:06d}", episodes)
    return log.save_evaluation(step, metrics, episodes)


# %% [markdown]
# ## 3. The loop


# %%
@cleaned_up()
def main(config):
    """Validate, fine-tune, validate again, save. Returns the run's directory."""
    device = init_distributed(config)
    checkpoint, start = resume_point(config)
    if config.batch_size % dist.get_world_size():
        raise UserError(f"--batch_size {config.batch_size} cannot be shared by {dist.get_world_size()} processes.")
    tokenizer = load_tokenizer(config.model)
    task = load_task(config.task, config.prompt, tokenizer)
    _, problems = load_problems(task, None, config.eval_data, config.eval_problems, config.seed, train=False)
    problems, max_length = drop_long_prompts(problems, task, config.max_tokens, context_length(config.model))
    rows, left_out = load_examples(config, tokenizer)
    policy = load_policy(config, checkpoint, device)
    log = RunLog(config, TUNING_PANELS)
    log.print_tuning_header(rows, left_out, task, problems)
    sampler = make_sampler(config, policy, task, max_length)
    engine = make_engine(policy, config)
    if config.resume:
        log.rewind(start)
        restore_optimizer(engine, checkpoint)
    sampler.sleep()
    if start == 0:
        log.write_metrics({"step": 0} | validate(0, sampler, policy, problems, task, log))
    catch_signals()
    stopping = False
    for step in range(start + 1, config.steps + 1):
        timer = Timer(config)
        lr = set_learning_rate(engine, config, step)
        with timer("update"):
            # 1. A batch of rows. 2. The loss and its gradient. 3. One AdamW step.
            metrics = train_step(engine, draw_batches(rows, tokenizer, step, config))
        # 4. Log, validate, save.
        metrics |= {"step": step, "lr": lr, **timer.seconds}
        log.print_progress(metrics, f"loss {metrics['loss']:.3f}  grad {metrics['grad_norm']:.2f}")
        log.stop_if_not_finite(not math.isfinite(metrics["grad_norm"]))
        if log.is_due(step, config.eval_every):
            metrics |= validate(step, sampler, policy, problems, task, log)
        log.write_metrics(metrics)
        stopping = stop_requested()
        if stopping or config.save_every and log.is_due(step, config.save_every):
            save_checkpoint(engine, tokenizer, log.checkpoints, step, config)
        if stopping:
            break
    if not stopping:
        save_policy(policy, tokenizer, log.model, merge=config.lora_merge)
    log.print_summary(stopping)
    return log.path


if __name__ == "__main__" and "__file__" in globals():
    run_script(main, CONFIG)
