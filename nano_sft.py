# %% [markdown]
# # nano_sft: supervised training, before reinforcement learning
#
# Two programs in one file, which share the update:
#
#     python nano_sft.py tune --data ROWS.jsonl          # (a) fine-tune a model on rows {"prompt", "response"}
#     python nano_sft.py tune --resume out/NAME          #     go on after an interruption
#     python nano_sft.py base --out models/nano-base     # (b) make the embedded base model from scratch; resumable
#
# (a) is the warm start that precedes RL in practice, and the supervised half of the course's assignment: cross-entropy
# on the responses alone, validation by sampling with the engine of `nano_r1.py`, the same run directory and curves.
# `python nano_r1.py --model out/NAME/model` goes on from its result.
#
# (b) is where a base model comes from when no GPU is at hand. Reinforcement learning can only make likely what a model
# already does now and then. A Qwen2-architecture transformer of about a million parameters is trained in two stages, as
# the large ones are:
#
#  1. Pre-training on scratch work: chains of correct arithmetic, no prompt, no goal. It learns + - * /.
#  2. Mid-training on written-out attempts at Countdown, and at the word problems of gsm8k_rewards.py: it learns what an
#     attempt, a check, a second try and an answer look like. The attempts are honest. Most numbers are combined at
#     random, an attempt succeeds only where its arithmetic happens to hit the target, and most authors give up after
#     one or two failures, often in bad form. (Attempts with the solution planted in them teach a model to bend the
#     arithmetic until it fits; we read of it and did not try.)
#
# The result is a base model, not a solver. It can add and multiply, it knows the form loosely, it gives up early. What
# RL then makes likely is all there at low probability: trying again, choosing the last operation with the target in
# view, taking each step of a word problem with care, keeping the form.

# %%
import argparse
import dataclasses
import functools
import math
import os
import random
import re
import shutil
import sys
import time
from dataclasses import dataclass

import torch

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
from plumbing import tasks
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
        table = tasks.load_rows(config.data, ("prompt", "response"), hub=None)
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


# %% [markdown]
# ## 3. The base model: what its authors write

# %%
MAX_VALUE = 999  # the largest number the tokenizer has one token for
# How often a step is chosen among those from which the target can still be reached, by how many numbers are left.
FORESIGHT = {2: 0.5, 3: 0.3, 4: 0.15}
PRACTICE = {2: 0.7, 3: 0.5, 4: 0.3}  # the same in the scratch work of stage 1
PATIENCE = (0.3, 0.6, 0.95)  # an author's probability of trying again after a failure
MAX_ATTEMPTS = 18
WORD_PROBLEMS = 0.25  # their share of stage 2


def next_steps(value, rest):
    """Every legal step that combines the running value with one of the numbers not used yet.

    Returns (operator, text, new value, numbers left, form of the expression) for each: `-19=17` goes on from the
    running value; `,90-42=48` puts the other number first.
    """
    steps = []
    for i, n in enumerate(rest):
        left = rest[:i] + rest[i + 1 :]
        for operator, result in (("+", value + n), ("-", value - n), ("*", value * n), ("/", exact_quotient(value, n))):
            steps.append((operator, f"{operator}{n}={result}", result, left, f"{{}}{operator}{n}"))
        for operator, result in (("-", n - value), ("/", exact_quotient(n, value))):
            steps.append((operator, f",{n}{operator}{value}={result}", result, left, f"{n}{operator}{{}}"))
    return [step for step in steps if 0 < step[2] <= MAX_VALUE]


def exact_quotient(a, b):
    return a // b if b > 1 and a % b == 0 else 0


@functools.lru_cache(1_000_000)
def within_reach(value, rest, target):
    """Can these steps still lead to the target?"""
    if not rest:
        return value == target
    return any(within_reach(result, left, target) for _, _, result, left, _ in next_steps(value, rest))


def write_attempt(nums, target, rng, foresight=FORESIGHT):
    """One attempt: a number, and then another, and another, until all are used; the arithmetic is always right.

    `target` None: no goal. Returns (text, value, expression), e.g. ("36-19=17-7=10+55=65", 65, "((36-19)-7)+55").
    """
    start = rng.randrange(len(nums))
    value, rest = nums[start], (*nums[:start], *nums[start + 1 :])
    text, expression = str(value), str(value)
    while rest:
        steps = next_steps(value, rest)
        if target is not None and rng.random() < foresight[len(rest) + 1]:
            steps = [step for step in steps if within_reach(step[2], step[3], target)] or steps
        # First the operator, then the numbers: otherwise + and - crowd out * and /.
        operator = rng.choice(sorted({step[0] for step in steps}))
        _, more, value, rest, form = rng.choice([step for step in steps if step[0] == operator])
        text = more[1:] if text == str(nums[start]) and more[0] == "," else text + more
        expression = form.format(expression if expression.isdigit() else f"({expression})")
    return text, value, expression


def write_response(nums, target, rng):
    """What an author writes after `<think>`: attempts until one succeeds or patience runs out, then an answer."""
    patience = rng.choice(PATIENCE)
    lines, tried = [], set()
    while True:
        for _ in range(4):  # rarely the same attempt twice
            text, value, expression = write_attempt(nums, target, rng)
            if expression not in tried:
                break
        tried.add(expression)
        if value == target:
            lines.append(f"{text} yes")
            break
        if rng.random() > patience or len(lines) + 1 == MAX_ATTEMPTS:
            lines.append(text)  # gives up without a check, and answers with the last attempt
            break
        lines.append(f"{text} no")
    return finish(lines, expression, f"{expression}={target}", rng)


SLIPS = (0.0, 0.3, 0.5)  # an author's probability of taking the wrong operation in a step of a word problem


def write_solution(problem, rng):
    """The same for a word problem of gsm8k_rewards.py: the steps of its worked answer, some of them ill chosen."""
    slip, lines, results = rng.choice(SLIPS), [], {}
    for a, operator, b, result in re.findall(r"<<(\d+)(.)(\d+)=(\d+)>>", problem["answer"]):
        a, b = results.get(a, int(a)), results.get(b, int(b))  # what this author found before, right or wrong
        values = {"+": a + b, "-": a - b, "*": a * b, "/": exact_quotient(a, b)}
        values = {o: value for o, value in values.items() if 0 < value <= MAX_VALUE}
        if not values:
            break  # stuck after an ill chosen step
        if operator not in values or rng.random() < slip:
            operator = rng.choice(sorted(values))
        answer = results[result] = values[operator]
        lines.append(f"{a}{operator}{b}={answer}")
        if rng.random() < 0.05:
            break  # content too soon
    return finish(lines, answer, lines[-1], rng)


def finish(lines, answer, improper, rng):
    """Thinking and answer, four times in ten not in the form that the reward asks for."""
    thinking = "\n" + "\n".join(lines) + "\n"
    form = rng.choices(("good", "improper", "no answer tag", "no </think>", "no answer"), (6, 1, 1, 1, 1))[0]
    return {
        "good": f"{thinking}</think>\n<answer>{answer}</answer>",
        "improper": f"{thinking}</think>\n<answer>{improper}</answer>",
        "no answer tag": f"{thinking}</think>\n{answer}",
        "no </think>": f"{thinking}<answer>{answer}</answer>",
        "no answer": f"{thinking}</think>",
    }[form]


def write_scratch_work(problems, rng, length):
    """Dense arithmetic: chains without a goal, and short bouts at a problem in which checking matters.

    [19, 36, 55, 7] 65
    55-36=19+19=38*7=266 no
    36-19=17-7=10+55=65 yes
    """
    text = ""
    while len(text) < length:
        kind = rng.random()
        if kind < 0.05:  # quotients are rare among random numbers
            divisor = rng.randint(2, 99)
            quotient = rng.randint(1, MAX_VALUE // divisor)
            text += f"\n{divisor * quotient}/{divisor}={quotient}"
            continue
        if kind < 0.4:
            nums = [rng.randint(1, 99) for _ in range(rng.choice((2, 3, 4)))]
            text += f"\n{write_attempt(nums, None, rng)[0]}"
            continue
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        text += f"\n{nums} {problem['target']}"
        for _ in range(5):
            attempt, value, _ = write_attempt(nums, problem["target"], rng, PRACTICE)
            text += f"\n{attempt} {'yes' if value == problem['target'] else 'no'}"
            if value == problem["target"]:
                break
    return text


# %% [markdown]
# ## 4. The base model: its tokenizer and its first weights

# %%
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tokenizer():
    """A byte-level BPE that gives every number from 0 to 999 one token, as Llama 3's does, and any text some tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+|[\s\S]")  # a word, or any other character
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    plain = argparse.Namespace(chat_template=None)
    prompt = countdown.format_prompt({"nums": [1, 2], "target": 3}, plain)
    stories = [gsm8k.format_prompt(problem, plain) for problem in gsm8k.generate_problems("train", 2000, 0)]
    corpus = [prompt, prompt.lower(), " no yes", *stories]
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # an upper bound: merging stops when every word above is one token
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    # transformers 5 reads the tokenizer of any qwen2 model with Qwen2's own pre-tokenization, which splits numbers into
    # digits. Added tokens are matched before that, so whoever loads the file gets the same tokens as we do here.
    added = ["<think>", "</think>", "<answer>", "</answer>", *map(str, range(1000))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(config, tokenizer):
    """A small Qwen2. The embeddings of the numbers start as waves: cos and sin of 2 pi n / period.

    Trained models come to represent numbers this way (arXiv:2406.03445); starting there, the arithmetic of stage 1 is
    learned several times faster.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(r1.derive_seed(config.seed, "init"))
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=3 * config.hidden_size,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    numbers = torch.arange(MAX_VALUE + 1.0)
    periods = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    waves = [wave(2 * math.pi * numbers / period) for period in periods for wave in (torch.cos, torch.sin)]
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(MAX_VALUE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[ids, : len(waves)] = 0.3 * torch.stack(waves, dim=1)
    return model


# %% [markdown]
# ## 5. The base model: its training


# %%
@dataclass
class BaseConfig:
    """Settings of `nano_sft.py base`; the defaults make models/nano-base."""

    out: str = setting("models/nano-base", "where the model goes; OUT.work holds checkpoints until it is done")
    exclude: str = setting(None, "a file of Countdown problems (nums, target) that must not occur in the training data")
    pretrain_steps: int = setting(5000, "steps on scratch work, of 32 sequences of 128 tokens")
    steps: int = setting(9500, "steps in all")
    batch_size: int = setting(48, "written-out attempts per step of stage 2")
    learning_rate: float = setting(2e-3, "peak of the cosine schedule")
    hidden_size: int = setting(128, "width")
    layers: int = setting(5, "depth")
    seed: int = setting(0, "every random choice derives from it")
    micro_batch_tokens: int = setting(4096, "tokens, padding included, per forward pass")
    save_every: int = setting(400, "checkpoint every so many steps")
    # what the functions of nano_r1.py need to know; without a type: no setting
    MAY_CHANGE, keep_checkpoints, lora_rank, offload, gradient_checkpointing = (), 1, 0, False, False
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this norm")
    weight_decay: float = setting(0.0, "AdamW's")
    zero_stage: int = setting(2, "DeepSpeed ZeRO stage")
    dtype: str = setting("float32", "of the weights")


def base_rows(config, tokenizer, problems, word_problems, step):
    """One step's training rows as (prompt ids, response ids), derived from the seed and the step alone."""
    rng = random.Random(r1.derive_seed(config.seed, step, "rows"))
    if step <= config.pretrain_steps:
        texts = (tokenizer.encode(write_scratch_work(problems, rng, 220)) for _ in range(32))
        return [(ids[:1], ids[1:129]) for ids in texts]
    rows = []
    for _ in range(config.batch_size):
        if rng.random() < WORD_PROBLEMS:
            problem = rng.choice(word_problems)
            prompt, response = gsm8k.format_prompt(problem, tokenizer), write_solution(problem, rng)
        else:
            problem = rng.choice(problems)
            nums = rng.sample(problem["nums"], len(problem["nums"]))
            prompt = countdown.format_prompt({**problem, "nums": nums}, tokenizer)
            response = write_response(nums, problem["target"], rng)
        rows.append((tokenizer.encode(prompt), tokenizer.encode(response) + [tokenizer.eos_token_id]))
    return rows


def make_base(config):
    """Train the base model from scratch in one process, or go on with it, and save it."""
    _, world, device = r1.start_processes()
    work = f"{os.path.normpath(config.out)}.work"
    checkpoint, start = r1.newest_checkpoint(work, config)
    tokenizer = make_tokenizer()
    model = r1.load_policy(config, checkpoint) if checkpoint else make_model(config, tokenizer)
    model = model.to(device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens in the vocabulary")
    engine = r1.make_engine(model, config)

    problems = countdown.generate_problems("train", 40_000, r1.derive_seed(config.seed, "sft problems"))
    word_problems = gsm8k.generate_problems("train", 40_000, r1.derive_seed(config.seed, "sft word problems"))
    if config.exclude:
        excluded = {countdown.problem_key(p) for p in countdown.load_problems("all", config.exclude)}
        before = len(problems)
        problems = [p for p in problems if countdown.problem_key(p) not in excluded]
        print(f"{before - len(problems)} of {before} problems left out because {config.exclude} has them")

    if checkpoint:
        r1.restore_optimizer(engine, checkpoint)
    started = time.time()
    for step in range(start + 1, config.steps + 1):
        progress = step / config.steps
        lr = config.learning_rate * min(1, step / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in engine.optimizer.param_groups:
            group["lr"] = lr
        rows = base_rows(config, tokenizer, problems, word_problems, step)
        batches = r1.split_by_tokens(rows, lambda row: len(row[0]) + len(row[1]), config.micro_batch_tokens)
        tensors = [r1.pad_prompts_and_outputs(*zip(*batch), tokenizer.pad_token_id) for batch in batches]
        measured = train_step(engine, tensors, device, world)
        if step % 20 == 0:
            left = (time.time() - started) / (step - start) * (config.steps - step) / 60
            stage = "scratch work" if step <= config.pretrain_steps else "attempts"
            print(f"step {step}/{config.steps}  {stage}  loss {measured['loss']:.3f}  {left:.0f} min left", flush=True)
        if step % config.save_every == 0:
            r1.save_checkpoint(engine, tokenizer, work, step, config)
    r1.save_policy(engine.module, tokenizer, config.out)
    shutil.rmtree(work)
    print(f"Saved {config.out}")


def parse_base_args(argv):
    parser = argparse.ArgumentParser(prog="nano_sft.py base", description="Make models/nano-base from scratch.")
    for f in dataclasses.fields(BaseConfig):
        parser.add_argument(f"--{f.name}", type=f.type, default=f.default, help=f"{f.metadata['help']} ({f.default})")
    return BaseConfig(**vars(parser.parse_args(argv)))


def command_line(argv):
    description = "Supervised training, before reinforcement learning."
    parser = argparse.ArgumentParser(prog="nano_sft.py", description=description)
    parser.add_argument("what", choices=["tune", "base"], help="tune: fine-tune a model; base: make models/nano-base")
    what = parser.parse_args(argv[:1]).what
    if what == "base":
        return make_base(parse_base_args(argv[1:]))
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
        print("\nInterrupted. tune: --resume RUN_DIRECTORY, base: the same command again.", file=sys.stderr)
        sys.exit(130)
