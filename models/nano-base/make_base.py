# %% [markdown]
# # The embedded base model, from scratch
#
#     torchrun --nproc_per_node 2 models/nano-base/make_base.py --exclude FILE     # resumable
#
# Reinforcement learning makes likely what a model does now and then; so the base decides what can
# be learned, and a base that was shown how to solve the task proves little. This one was never
# shown. It is a Qwen2 of 1.2 million parameters that has learned two things:
#
#  1. Practice, without any prompt: arithmetic, to check a result against a goal, to write a line
#     of arithmetic as one expression, to try again with the same numbers.
#  2. The form of the tasks, from authors who take **random numbers and random legal operators**,
#     and differ in patience, checking and form alone.
#
# Nobody aims, nobody follows an order, nobody looks ahead, and no oracle chooses: an author's next
# operation depends on which operations are legal, never on the target. A completion succeeds where
# chance meets the target. Every sum that is written down is right, and every yes or no is true.
#
# (Word problems are another matter: a fifth of the authors solve them the right way, see below.)

# %%
import argparse
import dataclasses
import functools
import json
import math
import os
import random
import re
import shutil
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))  # the repository's root
import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
from nano_r1 import Episode, make_engine
from nano_sft import train_step
from plumbing.checkpoints import newest_checkpoint, restore_optimizer, save_checkpoint, save_policy
from plumbing.files import write_text
from plumbing.models import load_model, load_policy
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import Completion
from plumbing.settings import UserError
from plumbing.start import run_script

# %% [markdown]
# ## 1. One attempt
#
#     88/22=4,41-4=37+5=42
#
# goes on from the running value; a comma puts the other number first.

# %%
MAX_VALUE = 999  # the largest number the tokenizer has one token for


def exact_quotient(a, b):
    return a // b if b > 1 and a % b == 0 else 0


def operations(value, n):
    """The legal steps from `value` with `n`: {operator: (text, result, form of the expression)}.

    The larger number of a difference or of a quotient comes first: 17 and 55 give `,55-17=38`.
    """
    steps = {
        "+": (f"+{n}={value + n}", value + n, f"{{}}+{n}"),
        "*": (f"*{n}={value * n}", value * n, f"{{}}*{n}"),
    }
    if value > n:
        steps["-"] = (f"-{n}={value - n}", value - n, f"{{}}-{n}")
    else:
        steps["-"] = (f",{n}-{value}={n - value}", n - value, f"{n}-{{}}")
    if exact_quotient(value, n):
        steps["/"] = (f"/{n}={value // n}", value // n, f"{{}}/{n}")
    elif exact_quotient(n, value):
        steps["/"] = (f",{n}/{value}={n // value}", n // value, f"{n}/{{}}")
    return {o: steps[o] for o in "+-*/" if o in steps and 0 < steps[o][1] <= MAX_VALUE}


def write_attempt(numbers, rng):
    """Numbers in random order, each operator drawn evenly from the legal ones.

    Returns (text, value, expression), e.g. ("36-19=17-7=10+55=65", 65, "((36-19)-7)+55").
    """
    first, *others = rng.sample(numbers, len(numbers))
    text = expression = str(first)
    value = first
    for n in others:
        legal = operations(value, n)
        more, value, form = legal[rng.choice(list(legal))]
        text = more[1:] if expression == str(first) and more[0] == "," else text + more
        expression = form.format(expression if expression == str(first) else f"({expression})")
    return text, value, expression


def other_attempt(numbers, tried, rng):
    """The same, rarely one that was `tried` already; it is added there."""
    for _ in range(8):
        text, value, expression = write_attempt(numbers, rng)
        if expression not in tried:
            break
    tried.add(expression)
    return text, value, expression


# %% [markdown]
# ## 2. Practice
#
# No prompt, and of each line only what can be known is learned: results, verdicts, which numbers
# are still there; not which number a random chain takes next.


# %%
def write_chain(rng):
    """A chain without a goal, all four operators alike: [(text, whether it is learned)]."""
    value = rng.randint(1, MAX_VALUE) if rng.random() < 0.5 else rng.randint(1, 99)
    parts = [(f"\n{value}", False)]
    for _ in range(rng.randint(3, 6)):
        operator = rng.choice("+-*/")
        if operator == "/":
            divisors = [n for n in range(2, 100) if value % n == 0]
            n = rng.choice(divisors or [1])
        elif operator == "*":
            n = rng.randint(1, max(1, min(99, MAX_VALUE // value)))
        else:
            n = rng.randint(1, 99)
        legal = operations(value, n)
        more, value, _ = legal.get(operator) or legal[rng.choice(list(legal))]
        before, result = more.split("=")
        parts += [(f"{before}=", False), (result, True)]
    return parts


def write_pair(rng):
    """Two numbers, a goal that one of the operations reaches, and random attempts at it."""
    a = rng.randint(1, MAX_VALUE) if rng.random() < 0.3 else rng.randint(1, 99)
    n = rng.randint(1, 99)
    if rng.random() < 0.3:  # quotients are rare among random numbers
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    goal = rng.choice(list(operations(a, n).values()))[1]
    return write_tries([a, n], goal, 3, rng)


def write_tries(numbers, goal, tries, rng):
    """Random attempts, each checked, until one reaches the goal or there were so many."""
    text = ""
    tried = set()
    for _ in range(tries):
        line, value, _ = other_attempt(numbers, tried, rng)
        text += f"\n{line} {'yes' if value == goal else 'no'}"
        if value == goal:
            break
    return [(f"\n{numbers} {goal}", False), (text, True)]


def write_question(rng):
    """Which operation was it? `36?19=17 -` or, as a list, `[36, 19] 17 -`."""
    a, n = rng.sample([rng.randint(1, MAX_VALUE), rng.randint(1, 99), rng.randint(1, 99)], 2)
    if rng.random() < 0.2:
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    legal = operations(a, n)
    operator = rng.choice(list(legal))
    result = legal[operator][1]
    shown = f"{a}?{n}={result}" if rng.random() < 0.5 else f"{[a, n]} {result}"
    return [(f"\n{shown} ", False), (operator, True)]


def write_expression(numbers, rng):
    """A random line, and how an answer in good form writes it.

    88/22=4,41-4=37
    </think>
    <answer>41-(88/22)</answer>
    """
    line, _, expression = write_attempt(numbers, rng)
    return [(f"\n{line}\n</think>\n<answer>", False), (f"{expression}</answer>", True)]


def write_practice(problems, rng, tokens, tokenizer):
    """(ids, weights) of so many tokens of practice: 0.0 for a token that is not learned."""
    ids, weights = [], []
    while len(ids) < tokens:
        kind = rng.random()
        problem = rng.choice(problems)
        numbers = rng.sample(problem["nums"], len(problem["nums"]))
        if kind < 0.25:
            parts = write_chain(rng)
        elif kind < 0.55:
            parts = write_question(rng)
        elif kind < 0.7:
            parts = write_pair(rng)
        elif kind < 0.8:
            parts = write_expression(numbers, rng)
        else:
            parts = write_tries(numbers, problem["target"], 4, rng)
        for text, learned in parts:
            new = tokenizer.encode(text)
            ids += new
            weights += [float(learned)] * len(new)
    return ids[:tokens], weights[:tokens]


# %% [markdown]
# ## 3. The population: who writes, and how often
#
# An author is drawn for each completion, and stays the same to its end.
#
# - hasty: one attempt, no check; it is the answer, whatever its value
# - wavering: checks each attempt; after a failure mostly gives up, and answers with it
# - persistent: checks, and tries again nine times in ten

# %%
# The forms of an answer. Only the first is what the reward asks for; improper is
# `expression=target` in the answer tag.
FORMS = ("good", "improper", "no answer tag", "no </think>", "no answer")


class Author(NamedTuple):
    """One type of author of Countdown completions."""

    share: float  # of all Countdown completions
    patience: float  # probability of another attempt after a failure
    checks: bool  # writes yes or no behind each attempt
    forms: tuple  # weights of FORMS


AUTHORS = {
    "hasty": Author(0.55, 0.0, False, (0.70, 0.12, 0.06, 0.06, 0.06)),
    "wavering": Author(0.25, 0.3, True, (0.70, 0.12, 0.06, 0.06, 0.06)),
    "persistent": Author(0.20, 0.9, True, (0.70, 0.12, 0.06, 0.06, 0.06)),
}
MAX_ATTEMPTS = 8


def write_response(numbers, target, rng):
    """What somebody of the population writes after `<think>`."""
    name = rng.choices(list(AUTHORS), [author.share for author in AUTHORS.values()])[0]
    return write_as(AUTHORS[name], numbers, target, rng)


def write_as(author, numbers, target, rng):
    """What an author of this type writes: attempts until success or out of patience, an answer."""
    lines, tried = [], set()
    while True:
        text, value, expression = other_attempt(numbers, tried, rng)
        lines.append(f"{text} {'yes' if value == target else 'no'}" if author.checks else text)
        if author.checks and value == target:
            break
        if len(lines) == MAX_ATTEMPTS or rng.random() > author.patience:
            break
    return finish(lines, expression, f"{expression}={target}", rng, author.forms)


def finish(lines, answer, improper, rng, forms):
    """Thinking and answer; `forms`: weights of FORMS, of which only the first is asked for."""
    thinking = "\n" + "\n".join(lines) + "\n"
    return {
        "good": f"{thinking}</think>\n<answer>{answer}</answer>",
        "improper": f"{thinking}</think>\n<answer>{improper}</answer>",
        "no answer tag": f"{thinking}</think>\n{answer}",
        "no </think>": f"{thinking}<answer>{answer}</answer>",
        "no answer": f"{thinking}</think>",
    }[rng.choices(FORMS, forms)[0]]


# %% [markdown]
# Word problems: careful authors solve them the right way from beginning to end; careless ones take
# the tempting way where there is one.

# %%
WORD_PROBLEMS = 0.25  # share of word problems among the completions
CAREFUL = 0.2  # share of authors who solve a word problem the right way
SLOPPY = 0.15  # how often a careless author stops a step too soon
ALL_STORIES = gsm8k.STORIES + gsm8k.NEW_STORIES  # the base has met the new ones too; RL has not
STORY_FORMS = (0.45, 0.25, 0.1, 0.1, 0.1)
# What careless authors do with a story, by a phrase of it: the first way that stays in 1 to 999.
TEMPTING = {
    "times as many on Tuesday": ["a*k"],
    "half as many in May": ["a/2"],
    "left over": ["k+m r1+a"],
    "pays with": ["a-m"],
    "at the weekend": ["k+a"],
    "more than {A}": ["a+b"],
    "fewer than {B}": ["a-b a+r1", "a+b"],
    "are still missing": ["k*m"],
    "{h} {y} at {j} dollars": ["k+h m+j r1*r2"],
    "times as old": ["a+m r1*k", "a*k"],
    "How many more miles": ["k*m h*j r1+r2"],
    "A farm has": ["k*m h*j r1+r2"],
    "around the house": ["k+m r1+a"],
    "years younger": ["a-k", "a+k"],
    "on every one of": ["a+b"],
    "flow out": ["a-k"],
}


def story_pattern(story):
    """A story of gsm8k_rewards.py as a regular expression with its numbers as named groups."""
    pattern = re.escape(story).replace(r"\{", "{").replace(r"\}", "}")
    seen = set()

    def field(match):
        name = match[1]
        if name in "ABxy":
            return r"\w+"
        again = name in seen
        seen.add(name)
        return rf"(?P={name})" if again else rf"(?P<{name}>\d+)"

    return re.compile(re.sub(r"\{(\w)\}", field, pattern))


@functools.lru_cache(None)
def story_patterns():
    tempting = lambda story: next(
        (ways for phrase, ways in TEMPTING.items() if phrase in story), ()
    )
    return [(story_pattern(story), steps, tempting(story)) for story, steps in ALL_STORIES]


def ways_of(question):
    """(right steps of a word problem, tempting ones or None): lists of (a, operator, b, result)."""
    for pattern, steps, tempting in story_patterns():
        if match := pattern.fullmatch(question):
            numbers = {name: int(n) for name, n in match.groupdict().items()}
            solutions = (gsm8k.solve(way, numbers) for way in tempting)
            return gsm8k.solve(steps, numbers), next((s for s in solutions if s), None)
    raise ValueError(f"no story of gsm8k_rewards.py: {question}")


def write_population_solution(problem, rng):
    """A word problem by one of the authors: careful or careless, all the way through."""
    right, tempting = ways_of(problem["question"])
    careful = rng.random() < CAREFUL
    steps = tempting if tempting and not careful else right
    lines = [f"{a}{operator}{b}={result}" for a, operator, b, result in steps]
    if rng.random() < (0.0 if careful else SLOPPY):
        lines = lines[:-1] or lines  # content too soon
    answer = lines[-1].split("=")[1]
    return finish(lines, answer, lines[-1], rng, STORY_FORMS)


# %% [markdown]
# ## 4. Tokenizer and first weights

# %%
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tokenizer():
    """A byte-level BPE in which every number from 0 to 999 is one token, and any text some."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+|[\s\S]")  # a word, or any other character
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    plain = argparse.Namespace(chat_template=None)
    prompt = countdown.format_prompt({"nums": [1, 2], "target": 3}, plain)
    stories = [
        gsm8k.format_prompt(problem, plain)
        for problem in gsm8k.generate_problems("train", 2000, 0, ALL_STORIES)
    ]
    corpus = [prompt, prompt.lower(), " no yes", *stories]
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # an upper bound: merging stops when every word above is one token
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    # transformers 5 reads the tokenizer of any qwen2 model with Qwen2's own pre-tokenization, which
    # splits numbers into digits. Added tokens are matched before that, so whoever loads the file
    # gets the same tokens as we do here.
    added = ["<think>", "</think>", "<answer>", "</answer>", *map(str, range(1000))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(config, tokenizer):
    """A small Qwen2. The embeddings of the numbers start as waves: cos and sin of 2 pi n / period.

    Trained models come to represent numbers this way (arXiv:2406.03445); starting there, the
    arithmetic is learned several times faster.
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
    waves = [
        wave(2 * math.pi * numbers / period)
        for period in periods
        for wave in (torch.cos, torch.sin)
    ]
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(MAX_VALUE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[ids, : len(waves)] = 0.3 * torch.stack(waves, dim=1)
    return model


# %% [markdown]
# ## 5. Training


# %%
@dataclass
class BaseConfig:
    """Settings of make_base.py; the defaults make models/nano-base."""

    # where the model goes; OUT.work holds checkpoints until it is done
    out: str = "models/nano-base"
    # a file of Countdown problems (nums, target) that must not occur in the training data
    exclude: str | None = None
    practice_steps: int = 1800  # steps of stage 1, practice alone
    practice: int = 32  # sequences of practice per step of stage 1
    practice_tokens: int = 128  # tokens of each
    task_steps: int = 800  # steps of stage 2
    completions: int = 48  # of the population, per step of stage 2
    task_practice: int = 16  # sequences of practice beside them
    other_numbers: float = 0.1  # problems with 2, and as many with 5 numbers, for one of the others
    learning_rate: float = 2e-3  # peak of the cosine schedule of stage 1
    task_learning_rate: float = 1e-3  # the same for stage 2
    problems: int = 40_000  # Countdown problems, and as many word problems, to write about
    hidden_size: int = 128  # width
    layers: int = 5  # depth
    seed: int = 0  # every random choice derives from it
    micro_batch_tokens: int = 4096  # tokens, padding included, per forward pass
    save_every: int = 200  # checkpoint every so many steps
    # what the functions of the lesson and of plumbing/ ask for; without a type: no setting
    keep_checkpoints = 1
    lora_rank = 0
    offload = False
    gradient_checkpointing = False
    plan = 0
    temperature = 1.0
    kl_coef = 0.0
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    weight_decay: float = 0.0  # AdamW's
    zero_stage: int = 2  # DeepSpeed ZeRO stage
    dtype: str = "float32"  # of the weights


def practice_rows(config, tokenizer, problems, count, step):
    """`count` episodes of practice; by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "practice"))
    for _ in range(count):
        ids, weights = write_practice(problems, rng, config.practice_tokens + 1, tokenizer)
        yield as_episode(ids[:1], ids[1:], weights[1:])


def task_rows(config, tokenizer, problems, word_problems, step):
    """The population's completions of one step, as episodes; by seed and step."""
    rng = random.Random(derive_seed(config.seed, step, "completions"))
    for _ in range(config.completions):
        if rng.random() < WORD_PROBLEMS:
            problem = rng.choice(word_problems)
            prompt = gsm8k.format_prompt(problem, tokenizer)
            response = write_population_solution(problem, rng)
        else:
            problem = rng.choice(problems)
            numbers = rng.sample(problem["nums"], len(problem["nums"]))
            prompt = countdown.format_prompt({**problem, "nums": numbers}, tokenizer)
            response = write_response(numbers, problem["target"], rng)
        ids = tokenizer.encode(response) + [tokenizer.eos_token_id]
        yield as_episode(tokenizer.encode(prompt), ids, [1.0] * len(ids))


def as_episode(prompt_ids, response_ids, weights):
    """A training row as nano_sft.py has it; a token's weight is its advantage."""
    e = Episode({}, prompt_ids, Completion(response_ids, [], "stop"), "")
    e.per_token["advantages"] = weights
    return e


def countdown_problems(config):
    """Problems with 2 to 5 numbers, none of them in `exclude`."""
    problems = countdown.generate_problems(
        "train", config.problems, derive_seed(config.seed, "sft problems")
    )
    rng = random.Random(derive_seed(config.seed, "2 and 5 numbers"))
    for count in (2, 5):
        for _ in range(round(config.other_numbers * config.problems)):
            nums = [rng.randint(1, 99) for _ in range(count)]
            reached = list(operations(*nums).values()) if count == 2 else []
            target = rng.choice(reached)[1] if reached else rng.randint(10, 100)
            problems.append({"nums": nums, "target": target})
    if not config.exclude:
        return problems
    excluded = {countdown.problem_key(p) for p in countdown.load_problems("all", config.exclude)}
    kept = [p for p in problems if countdown.problem_key(p) not in excluded]
    print(f"{len(problems) - len(kept)} problems left out because {config.exclude} has them")
    return kept


def make_base(config):
    """Train the base model, or go on with it, and save it."""
    init_distributed()
    tokenizer = make_tokenizer()
    problems = countdown_problems(config)
    word_problems = gsm8k.generate_problems(
        "train", config.problems, derive_seed(config.seed, "sft word problems"), ALL_STORIES
    )
    work = f"{os.path.normpath(config.out)}.work"
    keep_settings(config, work)
    run = functools.partial(run_steps, config, tokenizer, work)
    practised = os.path.join(work, "after-practice")
    if not os.path.exists(practised):
        rows = lambda step: practice_rows(config, tokenizer, problems, config.practice, step)
        model = lambda: make_model(config, tokenizer)
        run("practice", model, config.practice_steps, config.learning_rate, rows, practised)

    def rows(step):
        yield from task_rows(config, tokenizer, problems, word_problems, step)
        later = config.practice_steps + step  # not what stage 1 has seen
        yield from practice_rows(config, tokenizer, problems, config.task_practice, later)

    model = lambda: load_model(practised, config.dtype)
    run("tasks", model, config.task_steps, config.task_learning_rate, rows, config.out)
    if dist.get_rank() == 0:
        print(f"Saved {config.out}")
        shutil.rmtree(work)


def keep_settings(config, work):
    """Write the settings of a run down; UserError where it was begun with others."""
    path = os.path.join(work, "settings.json")
    settings = dataclasses.asdict(config)
    os.makedirs(work, exist_ok=True)
    if dist.get_rank() == 0 and not os.path.exists(path):
        write_text(path, json.dumps(settings))
    dist.barrier()
    with open(path) as file:
        saved = json.load(file)
    free = ("out", "save_every")
    changed = [n for n in settings if n not in free and settings[n] != saved.get(n)]
    if changed:
        raise UserError(f"{work} is of a run with another --{changed[0]}; delete it to start anew.")


def run_steps(config, tokenizer, work, name, new_model, steps, peak, rows_of, out):
    """AdamW with a cosine schedule; `work` holds checkpoints, `out` gets the result."""
    work = os.path.join(work, name.replace(" ", "-"))
    device = init_distributed()
    checkpoint, start = newest_checkpoint(work)
    model = load_policy(config, checkpoint, device) if checkpoint else new_model().to(device)
    engine = make_engine(model, config)
    restore_optimizer(engine, checkpoint)
    started = time.time()
    losses = []
    for step in range(start + 1, steps + 1):
        # 100 steps of warm-up, then a cosine down to a fiftieth of the peak
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        lr = peak * min(1, step / 100) * cosine
        rows = list(rows_of(step))[dist.get_rank() :: dist.get_world_size()]
        losses.append(train_step(engine, rows, config, lr)["loss"])
        if step % 20 == 0 and dist.get_rank() == 0:
            left = (time.time() - started) / (step - start) * (steps - step) / 60
            loss = sum(losses[-20:]) / len(losses[-20:])
            print(f"{name}: step {step}/{steps}  loss {loss:.3f}  {left:.0f} min left", flush=True)
        if step % config.save_every == 0:
            save_checkpoint(engine, tokenizer, work, step, config)
    save_policy(engine.module, tokenizer, out)


if __name__ == "__main__":
    import tyro

    description = "Make models/nano-base from scratch."
    settings = tyro.cli(BaseConfig, description=description, use_underscores=True)
    again = "The same command continues from the last checkpoint."
    run_script(make_base, settings, after_interrupt=again)
