# %% [markdown]
# # nano_sft: supervised fine-tuning, the warm start before reinforcement learning
#
# The second lesson, on top of `nano_r1.py`: fine-tune a model on rows of prompt and response, with
# cross-entropy on the response alone. That is the policy gradient on completions that are given
# instead of sampled, each with advantage 1; the update is the one of `nano_r1.py`.
#
#     python nano_sft.py --data ROWS.jsonl              # rows {"prompt": ..., "response": ...}
#     python nano_sft.py --resume out/NAME              # go on after an interruption
#     python nano_r1.py --model out/NAME/model          # reinforcement learning from there
#
# One step:
#
#  1. Draw a batch of rows.
#  2. Loss of each response token:  L_t = -log pi(y_t | prompt, y_<t);  its mean over all response
#     tokens of the batch.
#  3. One AdamW step.
#  4. Log; every N steps evaluate on the task's held-out problems by sampling, as in `nano_r1.py`.

# %%
from dataclasses import dataclass
from typing import Literal

from plumbing.settings import Engine, Evaluation, NonNegativeFloat, NonNegativeInt, PositiveFloat
from plumbing.settings import PositiveInt, Record, UserError, check_settings
from plumbing.start import parse_or_exit


# %%
@dataclass(kw_only=True)
class Tuning:
    """fine-tuning"""

    model: str = "models/nano-base"  # a local directory or a hub id [Qwen/Qwen2.5-1.5B]
    # rows to learn from: a jsonl/json/csv/parquet file with the columns prompt and response. The
    # prompt is used as it is: it must be what the task's format_prompt renders, chat template and
    # opening tag included. The end token is added.
    data: str | None = None
    # learn from this many rows (0: all); the assignment compares 128, 256, 512, 1024, all
    examples: NonNegativeInt = 0
    steps: PositiveInt = 100  # optimizer steps
    batch_size: PositiveInt = 32  # rows per step
    learning_rate: PositiveFloat = 3e-4  # AdamW's [0.5B-3B: 1e-5 to 2e-5]
    warmup_steps: NonNegativeInt = 10  # linear warm-up
    # linear: the learning rate falls towards 0
    lr_scheduler_type: Literal["linear", "constant"] = "linear"
    max_grad_norm: PositiveFloat = 1.0  # gradients are scaled down to this norm
    weight_decay: NonNegativeFloat = 0.0  # AdamW's


@dataclass(kw_only=True)
class Validation:
    """the task to validate on, by sampling"""

    task: str = "countdown"  # the module TASK_rewards.py
    # one of the task's prompts: short, chat, plain; countdown also reasoning, steps
    prompt: str = "short"
    max_tokens: PositiveInt = 320  # completions longer than this are cut off [1024]
    temperature: PositiveFloat = 1.0  # of the samples; training uses 1


@dataclass(kw_only=True)
class Config(Tuning, Validation, Engine, Evaluation, Record):
    """Everything a run depends on; saved as `config.json` in its directory. Raises UserError."""

    label = "sft"  # the name of the run's directory begins with it

    def __post_init__(self):
        check_settings(self)
        if not self.data:
            raise UserError("--data FILE is missing: rows with the columns prompt and response.")


IS_SCRIPT = __name__ == "__main__" and "__file__" in globals()  # not in a notebook
DESCRIPTION = "Fine-tune a model on rows of prompt and response, with validation by sampling."
if IS_SCRIPT:
    CONFIG = parse_or_exit(Config, "nano_sft.py", DESCRIPTION)

# %%
import dataclasses
import functools
import random

import torch.distributed as dist

from nano_r1 import Episode, evaluate, learning_rate, make_engine, make_sampler, update
from plumbing.checkpoints import restore_optimizer, resume_point, save_checkpoint, save_policy
from plumbing.curves import TUNING_PANELS
from plumbing.data import load_rows
from plumbing.evaluation import combine
from plumbing.models import context_length, load_policy, load_tokenizer
from plumbing.processes import all_reduce, catch_signals, derive_seed, init_distributed
from plumbing.processes import stop_requested
from plumbing.record import RunLog
from plumbing.sampler import Completion
from plumbing.start import run_safely, run_script
from plumbing.tasks import drop_long_prompts, encode_prompt, load_problems, load_task
from plumbing.timing import take_seconds, timed

# %% [markdown]
# ## 1. The objective


# %%
def sft_loss(log_probs, batch, completions, config, tokens):
    """Each row's part of the loss, (B,); it takes the place of `nano_r1.grpo_loss`.

    `tokens`: all response tokens of the step, a process's share of them.
    """
    # L = -1/tokens sum_t A_t log pi(y_t | prompt, y_<t), where A_t is 1: REINFORCE on given text
    return -(log_probs * batch["advantages"]).sum(dim=1) / tokens, {}


def train_step(engine, rows, config, lr):
    """One optimizer step on the rows, as episodes. Returns its metrics."""
    # DeepSpeed averages over the processes: a process's share of the tokens of all.
    tokens = all_reduce(sum(e.length for e in rows)) / dist.get_world_size()
    loss = functools.partial(sft_loss, tokens=tokens)
    rows = [dataclasses.replace(e, measured={}) for e in rows]  # nothing is kept of a step
    return combine(update(engine, rows, config, lr, loss))


# %% [markdown]
# ## 2. The rows


# %%
def load_examples(config, tokenizer):
    """(rows to train on as episodes, how many were too long for the model). Raises UserError."""
    try:
        table = load_rows(config.data, ("prompt", "response"), hub=None)
    except ValueError as error:
        raise UserError(str(error)) from None
    rows = {}  # without duplicates, in order
    for number, row in enumerate(table, start=1):
        for name in ("prompt", "response"):
            text = row[name]
            if not (isinstance(text, str) and text.strip()):
                fault = f"{name} must be a text, got {text!r:.80}"
                raise UserError(f"{config.data}, row {number}: {fault}.")
        rows[row["prompt"], row["response"]] = None
    rows = list(rows)
    random.Random(derive_seed(config.seed, "examples")).shuffle(rows)
    examples = [make_example(prompt, response, tokenizer) for prompt, response in rows]
    context = context_length(config.model)
    if context is not None:
        examples = [e for e in examples if len(e.prompt_ids) + e.length <= context]
    if not examples:
        raise UserError(f"No row of {config.data} fits into the model's {context} tokens.")
    if config.examples > len(examples):
        there = f"{config.data} has {len(examples)} different rows that fit"
        raise UserError(f"--examples {config.examples}: {there}.")
    return examples[: config.examples or None], len(rows) - len(examples)


def make_example(prompt, response, tokenizer):
    """A row as an episode whose completion is the response; all its tokens have advantage 1."""
    ids = tokenizer.encode(response, add_special_tokens=False)
    ids.append(tokenizer.eos_token_id)  # learned too, or the model would never stop
    row = {"prompt": prompt, "response": response}
    example = Episode(row, encode_prompt(prompt, tokenizer), Completion(ids, [], "stop"), response)
    example.per_token["advantages"] = [1.0] * len(ids)
    return example


@functools.lru_cache(2)  # the current pass over the rows, and the next
def shuffled(n, seed):
    return random.Random(seed).sample(range(n), n)


def draw_batch(examples, step, config):
    """This process's rows of a step; they are reshuffled for each pass."""
    drawn = []
    for place in range((step - 1) * config.batch_size, step * config.batch_size):
        epoch, index = divmod(place, len(examples))
        order = shuffled(len(examples), derive_seed(config.seed, epoch, "order of rows"))
        drawn.append(examples[order[index]])
    return drawn[dist.get_rank() :: dist.get_world_size()]


def validate(step, sampler, policy, problems, task, log):
    """Evaluate the current weights on the held-out problems. Returns the metrics."""
    sampler.sync_weights(policy)
    metrics, episodes = evaluate(sampler, problems, task, log.config, 1, log.config.temperature)
    sampler.sleep()
    log.save_episodes(f"episodes/step_{step:06d}", episodes)
    log.save_evaluation(step, metrics, episodes)
    return metrics


# %% [markdown]
# ## 3. The loop


# %%
@run_safely
def main(config):
    """Validate, fine-tune, validate again, save. Returns the run's directory."""
    device = init_distributed(config)
    checkpoint, start = resume_point(config)
    if config.batch_size % dist.get_world_size():
        shares = f"{dist.get_world_size()} processes"
        raise UserError(f"--batch_size {config.batch_size} cannot be shared by {shares}.")
    tokenizer = load_tokenizer(config.model)
    task = load_task(config.task, config.prompt, tokenizer)
    _, problems = load_problems(
        task, None, config.eval_data, config.eval_problems, config.seed, train=False
    )
    context = context_length(config.model)
    problems, max_length = drop_long_prompts(problems, task, config.max_tokens, context)
    examples, left_out = load_examples(config, tokenizer)
    policy = load_policy(config, checkpoint, device)
    log = RunLog(config, TUNING_PANELS)
    log.start_tuning(examples, left_out, task, problems)
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
    at_one = dataclasses.replace(config, temperature=1.0)  # of the loss: the softmax as it is
    for step in range(start + 1, config.steps + 1):
        # 1. A batch of rows. 2. The loss and its gradient. 3. One AdamW step.
        lr = learning_rate(step, config)
        with timed("update"):
            metrics = train_step(engine, draw_batch(examples, step, config), at_one, lr)
        # 4. Log, validate, save.
        metrics |= {"step": step, "lr": lr, **take_seconds()}
        log.print_step(metrics)
        if log.is_due(step, "evaluation"):
            metrics |= validate(step, sampler, policy, problems, task, log)
        log.write_metrics(metrics)
        stopping = stop_requested()
        if stopping or log.is_due(step, "checkpoint"):
            save_checkpoint(engine, tokenizer, log.checkpoints, step, config)
        if stopping:
            break
    if not stopping:
        save_policy(policy, tokenizer, log.model, merge=config.lora_merge)
    log.finish(stopping)
    return log.path


if IS_SCRIPT:
    run_script(main, CONFIG)
