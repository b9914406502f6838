# %% [markdown]
# # nano_sft: where a base model comes from
#
# Reinforcement learning can only make likely what a model already does now and then. This file makes the model that
# `nano_r1.py` starts from when no GPU is at hand: a Qwen2-architecture transformer of about a million parameters,
# trained from scratch in two stages, as the large ones are.
#
#     python nano_sft.py --out models/nano-base        # 2 CPU cores, about forty minutes; resumable
#
#  1. Pre-training on scratch work: chains of correct arithmetic, no prompt, no goal. It learns + - * /.
#  2. Mid-training on written-out attempts at Countdown: it learns what an attempt, a check, a second try and an answer
#     look like. The attempts are honest. Most numbers are combined at random, an attempt succeeds only where its
#     arithmetic happens to hit the target, and most authors give up after one or two failures, often in bad form.
#     (Attempts with the solution planted in them teach a model to bend the arithmetic until it fits; we read of it and
#     did not try.)
#
# The result is a base model, not a solver. It can add and multiply, it knows the form loosely, it gives up early. What
# RL then makes likely is all there at low probability: trying again, choosing the last operation with the target in
# view, keeping the form.

# %%
import argparse
import dataclasses
import functools
import math
import os
import random
import re
import time

import torch
import transformers

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
from nano_r1 import (
    derive_seed,
    get_response_log_probs,
    load_checkpoint,
    make_engine,
    masked_normalize,
    pad_prompts_and_outputs,
    save_checkpoint,
    save_policy,
    setting,
    split_by_tokens,
    start_processes,
)


@dataclasses.dataclass
class SFTConfig:
    """Settings of nano_sft.py; the defaults make models/nano-base."""

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
    # what make_engine needs to know
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this norm")
    weight_decay: float = setting(0.0, "AdamW's")
    zero_stage: int = setting(2, "DeepSpeed ZeRO stage")
    dtype: str = setting("float32", "of the weights")


# %% [markdown]
# ## The text

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

    Returns (operator, text, new value, numbers left, form of the expression) for each: `-19=17` goes on from the running
    value; `,90-42=48` puts the other number first.
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
# ## The tokenizer and the untrained model

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

    torch.manual_seed(derive_seed(config.seed, "init"))
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
# ## Training


# %%
def sft_microbatch_train_step(
    policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant=1.0, backward=torch.Tensor.backward
):
    """Negative log-likelihood of the response tokens of one micro-batch, and its backward pass.

    Args:
        policy_log_probs, response_mask: (B, T).
    Returns:
        loss, a scalar: -sum of the response's log-probs / normalize_constant / gradient_accumulation_steps; and a dict
        with the number of response tokens.
    """
    loss = -masked_normalize(policy_log_probs, response_mask, normalize_constant) / gradient_accumulation_steps
    backward(loss)
    return loss.detach(), {"tokens": response_mask.sum()}


def make_rows(config, tokenizer, problems, word_problems, step):
    """One step's training rows as (prompt ids, response ids), derived from the seed and the step alone."""
    rng = random.Random(derive_seed(config.seed, step, "rows"))
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


def main(config):
    start_processes()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    engine = make_engine(make_model(config, tokenizer), config)
    size = sum(p.numel() for p in engine.module.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens in the vocabulary")

    problems = countdown.generate_problems("train", 40_000, derive_seed(config.seed, "sft problems"))
    word_problems = gsm8k.generate_problems("train", 40_000, derive_seed(config.seed, "sft word problems"))
    if config.exclude:
        excluded = {countdown.problem_key(p) for p in countdown.load_problems("all", config.exclude)}
        before = len(problems)
        problems = [p for p in problems if countdown.problem_key(p) not in excluded]
        print(f"{before - len(problems)} of {before} problems left out because {config.exclude} has them")

    work = f"{config.out}.work"
    start, started = load_checkpoint(engine, work), time.time()
    for step in range(start + 1, config.steps + 1):
        progress = step / config.steps
        lr = config.learning_rate * min(1, step / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in engine.optimizer.param_groups:
            group["lr"] = lr
        rows = make_rows(config, tokenizer, problems, word_problems, step)
        tokens = sum(len(response) for _, response in rows)
        loss = 0.0
        for batch in split_by_tokens(rows, lambda row: len(row[0]) + len(row[1]), config.micro_batch_tokens):
            tensors = pad_prompts_and_outputs(*zip(*batch), tokenizer.pad_token_id)
            log_probs = get_response_log_probs(engine, tensors["input_ids"], tensors["labels"])["log_probs"]
            part, _ = sft_microbatch_train_step(
                log_probs, tensors["response_mask"], 1, normalize_constant=tokens, backward=engine.backward
            )
            loss += part.item()
        engine.step()
        if step % 20 == 0:
            left = (time.time() - started) / (step - start) * (config.steps - step) / 60
            stage = "scratch work" if step <= config.pretrain_steps else "attempts"
            print(f"step {step}/{config.steps}  {stage}  loss {loss:.3f}  {left:.0f} min left", flush=True)
        if step % config.save_every == 0:
            os.makedirs(work, exist_ok=True)
            save_checkpoint(engine, tokenizer, work, step, keep=1)
    save_policy(engine.module, tokenizer, config.out)
    print(f"Saved {config.out}")


def parse_args():
    parser = argparse.ArgumentParser(prog="nano_sft.py", description="Make models/nano-base from scratch.")
    for f in dataclasses.fields(SFTConfig):
        parser.add_argument(f"--{f.name}", type=f.type, default=f.default, help=f"{f.metadata['help']} ({f.default})")
    return SFTConfig(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse_args())
