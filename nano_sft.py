"""Supervised fine-tuning: cross-entropy on given completions, a warm start for nano_r1.py.

    python nano_sft.py --task gsm8k --data ROWS.jsonl      # rows {"prompt": ..., "completion": ...}
    python nano_sft.py --task gsm8k --data ROWS.jsonl --resume out/NAME    # continue a stopped run
    python nano_r1.py --task gsm8k --model out/NAME/model  # reinforcement learning from there
    torchrun --nproc_per_node 8 nano_sft.py ...            # eight GPUs, with DeepSpeed

One step:

 1. Draw a batch of rows.
 2. Compute the loss of each completion token, L_t = -log pi(y_t | prompt, y_<t), and its mean over
    all completion tokens of the batch.
 3. Take one AdamW step.
 4. Log; every N steps evaluate on the task's held-out problems, and save a checkpoint.

This is the policy gradient on given completions instead of sampled ones, each with advantage 1, so
the program uses the update, the evaluation and the checkpoints of nano_r1.py. A stopped run
continues at its last checkpoint, with the same rows in the same order.

Left out: several rows packed into one sequence, weights for rows or tokens, low-rank adapters.
"""

import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest import mock

import nano_r1
import problem_files
from nano_r1 import RANK, WORLD, gather, seed_of


@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """Supervised fine-tuning on rows of prompt and completion.

    It is validated on the problems of --task.

    Settings of groups, advantages, clip, KL and recorder have no effect here.
    """

    # rows to learn from: a jsonl, json, csv or parquet file with the columns prompt and completion
    # (or response). The prompt is used as it is. The end token is added to the completion.
    data: str = field()
    eval_data: str | None = None  # validation: a file of problems, or hub; None: held-out problems
    eval_problems: int | None = None  # validation: at most so many problems; None: all
    examples: int = 0  # learn from this many rows; 0: all
    batch_size: int = 32  # rows per step, over all processes
    steps: int = 100  # optimizer steps
    learning_rate: float = 3e-4  # learning rate of AdamW [1e-5 to 2e-5]

    ABOVE_0 = [*set(nano_r1.Config.ABOVE_0) - {"temperature"}, "batch_size"]  # 0 is greedy


def read_texts(config):
    """The file's different rows, (prompt, completion), in its order."""
    return list(dict.fromkeys(problem_files.load(config.data, "all", None, to_texts, None)))


def to_texts(row):
    """(prompt, completion) of a row."""
    texts = (row.get("prompt"), row.get("completion", row.get("response")))
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"needs texts in the columns prompt and completion; got {row!s:.200}")
    return texts


def make_examples(texts, task, config):
    """Texts as episodes, shuffled, without those that are too long."""
    examples = [make_example(*row, task.tokenizer) for row in texts]
    examples = [e for e in examples if len(e.prompt_ids + e.token_ids) <= task.max_length]
    print(f"{len(texts)} different rows; {len(texts) - len(examples)} have too many tokens")
    random.Random(seed_of(config.seed, "examples")).shuffle(examples)
    return examples[: config.examples or None]


def make_example(prompt, completion, tokenizer):
    """A row as an episode. Its end token is learned, too, or the model would never stop."""
    token_ids = tokenizer.encode(completion, add_special_tokens=False)
    if token_ids[-1:] != [tokenizer.eos_token_id]:
        token_ids.append(tokenizer.eos_token_id)
    return nano_r1.Episode(
        problem={"prompt": prompt},
        prompt_ids=nano_r1.encode_prompt(tokenizer, prompt),
        token_ids=token_ids,
        completion=completion,
        advantage=1.0,
    )


def draw_rows(examples, step, config):
    """Step 1: this process's rows. Each pass over all rows has its own seed and order."""
    epoch, begin = divmod((step - 1) * config.batch_size, len(examples))
    order = []
    for number in (epoch, epoch + 1):  # a batch may end in the next pass
        rng = random.Random(seed_of(config.seed, number, "order of rows"))
        order += rng.sample(examples, len(examples))
    return order[begin : begin + config.batch_size][RANK::WORLD]


def train_step(engine, rows, config):
    """Steps 2 and 3: one AdamW step on this process's rows. Returns metrics over all processes."""
    # The step has one denominator: the completion tokens of all processes and micro-batches. It is
    # divided by WORLD, because the gradients are averaged over the processes.
    tokens = sum(gather([len(e.token_ids) for e in rows])) / WORLD

    def sft_loss(log_probs, batch, config):
        """(B, T), 0 at tokens outside the completions -> (B,), each row's part of the loss."""
        # L = -1/tokens sum_t log pi(y_t | prompt, y_<t)
        return -log_probs.sum(dim=1) / tokens

    batches = nano_r1.update(engine, None, rows, config, sft_loss)
    return {
        "loss": sum(gather([batch["loss"].item() for batch in batches])) / WORLD,
        "grad_norm": float(engine.get_global_grad_norm()),
    }


@mock.patch.dict(os.environ)
def main(config):
    """Validate, fine-tune, validate again, save. Returns the run's directory.

    If Ctrl-C or SIGTERM stops it, the run is saved, and then KeyboardInterrupt is raised.
    """
    nano_r1.check_numbers(config)
    device = nano_r1.start_process(config)
    module, prompt = nano_r1.find_task(config)
    split = "all" if config.eval_data else "test"
    problems = module.load_problems(split, config.eval_data, config.seed)
    texts = read_texts(config)
    path, settings = nano_r1.find_run(config, {"update": train_step}, texts)
    policy, tokenizer = nano_r1.load_model(config)
    task = nano_r1.Task(tokenizer, policy, config, (module, prompt))
    problems = task.with_room(problems, config)[: config.eval_problems]
    examples = make_examples(texts, task, config)
    if config.batch_size % WORLD or max(config.batch_size, config.examples) > len(examples):
        raise SystemExit(
            f"--batch_size and --examples must be at most the {len(examples)} rows; --batch_size a "
            f"multiple of the {WORLD} processes"
        )
    # If they differ, the validation samples with prompts that the model was not tuned on.
    prompts = (
        f"A row's prompt:\n{examples[0].problem['prompt']}\n\nA validation prompt must end "
        f"alike:\n{task.prompt_text(problems[0])}"
    )
    print(nano_r1.printable(prompts))
    with ExitStack() as at_end:  # gives back what the run has changed in this process
        sampler = nano_r1.make_sampler(policy, task, device, config)
        at_end.callback(sampler.close)
        at_end.enter_context(nano_r1.threads_for(policy))
        # The loss has the temperature 1. A row can have more tokens than a sampled completion.
        loss_config = replace(config, temperature=1.0, max_tokens=task.max_length)
        engine = nano_r1.make_engine(nano_r1.Scorer(policy, loss_config), device, config)
        nano_r1.create_run(path, settings)  # all settings have been checked
        wandb_run = nano_r1.open_wandb(path, config, at_end)
        start = nano_r1.load_checkpoint(engine, path)
        history = nano_r1.read_history(path, start)
        if not history:
            sampler.sleep()  # `sync` expects a sleeping sampler
            sampler.sync(policy)  # the checkpoint's weights, if metrics.jsonl was deleted
            metrics = nano_r1.evaluate(sampler, problems, task, config, path, start)
            nano_r1.log({"step": start} | metrics, history, path, wandb_run)
        stop_requests = nano_r1.catch_signals(at_end)
        sampler.sleep()  # vLLM frees its share of the GPU
        for step in range(start + 1, config.steps + 1):
            began = time.monotonic()
            rate = nano_r1.learning_rate(step, config)
            nano_r1.set_learning_rate(engine.optimizer, rate)
            # 1. Draw a batch of rows. 2. The loss and its gradient. 3. One AdamW step.
            metrics = train_step(engine, draw_rows(examples, step, config), config)
            # 4. Log, evaluate, save.
            metrics |= {"step": step, "lr": rate, "time/step": time.monotonic() - began}
            print("step {step:4}  loss {loss:.3f}  {time/step:.1f} s".format(**metrics), flush=True)
            if nano_r1.is_due(step, config.eval_every, config):
                sampler.sync(policy)
                metrics |= nano_r1.evaluate(sampler, problems, task, config, path, step)
                sampler.sleep()
            nano_r1.log(metrics, history, path, wandb_run)
            nano_r1.save_or_stop(engine, path, step, stop_requests, config)
        nano_r1.save_model(policy, tokenizer, f"{path}/model")
    print(f"Model: {path}/model")
    return path


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    nano_r1.run_command(main, Config)
