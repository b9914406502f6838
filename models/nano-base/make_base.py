"""The embedded base model, by two processes in somewhat more than two hours:

    torchrun --nproc_per_node 2 models/nano-base/make_base.py --exclude FILE

It writes out/nano-base, a Qwen2 of 1.2 million parameters, after each stage; `--first 3` continues
with stage 3. `--exclude` keeps a file's problems out of the training data, as held-out ones are.

 1. Arithmetic without a prompt: lines, answers written as expressions, pairs of numbers.
 2. Completions of both tasks, and searches without a prompt. Each line ends in yes if its result
    is the target, else in no.
 3. The same with other problems and more pairs.
 4. The same texts, but yes and no are random in all of them. Nothing depends on whether a result is
    the target, except the last operation of an author who *aims*: its result is the nearest one.

The weights in this folder come from an older stage 2 (docs/results.md, "The base").
"""

import itertools
import math
import random
import re
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import tyro
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))  # the repository's root
import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1
import nano_sft
from nano_r1 import RANK, WORLD

# ---- The authors of Countdown's completions

# share of all completions; lines, at most; aims: how often
Author = namedtuple("Author", "share lines aims systematic")
AUTHORS = (Author(0.2, 1, 0.1, False), Author(0.32, 18, 0.3, False), Author(0.48, 18, 1.0, True))
YES = 0.25  # of the results, when checks are random
FORMS = (0.45, 0.25, 0.1, 0.1, 0.1)  # shares of the five forms of `finish`
HABIT = {"+": 0.6, "-": 0.25, "*": 0.1, "/": 0.05}
EVENLY = {"+": 1, "-": 1, "*": 1, "/": 3}  # what is seldom legal weighs more
FOR_EXPRESSIONS = {"+": 1, "-": 2, "*": 2, "/": 6}
MAX_VALUE = 999  # the largest number that is one token

# ---- Arithmetic. A line is (text, value, expression): ("36-19=17-7=10", 10, "(36-19)-7").


def operations(value, n):
    """{operator: (text, result, form)} of a value and one more number; `,90-42=48` swaps them."""
    steps = {
        "+": (f"+{n}=", value + n, f"{{}}+{n}"),
        "-": (f"-{n}=", value - n, f"{{}}-{n}"),
        "*": (f"*{n}=", value * n, f"{{}}*{n}"),
        "/": (f"/{n}=", value / n if n > 1 else 0, f"{{}}/{n}"),
    }
    if value < n:
        steps["-"] = (f",{n}-{value}=", n - value, f"{n}-{{}}")
        steps["/"] = (f",{n}/{value}=", n / value if value > 1 else 0, f"{n}/{{}}")
    legal = {}
    for operator, (text, result, form) in steps.items():
        if 0 < result <= MAX_VALUE and result == int(result):
            legal[operator] = (f"{text}{int(result)}", int(result), form)
    return legal


def write_line(numbers, choose):
    """A line of the numbers in this order; `choose` gives one of the legal steps, or None."""
    text = expression = str(numbers[0])
    value = numbers[0]
    for place, n in enumerate(numbers[1:]):
        step = choose(place, operations(value, n))
        if step is None:
            return None
        more, value, form = step
        if place == 0 and more[0] == ",":
            text, more = "", more[1:]
        text += more
        expression = form.format(f"({expression})" if place else expression)
    return text, value, expression


def nearest(legal, target):
    """The step whose result is nearest to the target: an aimed one."""
    return min(legal.values(), key=lambda step: abs(step[1] - target))


def habitual_line(nums, target, aims, habit, rng):
    """Numbers in random order, operators by habit; with `aims` the last operator is the nearest."""

    def choose(place, legal):
        if aims and place == len(nums) - 2:
            return nearest(legal, target)
        return rng.choices(list(legal.values()), [habit[operator] for operator in legal])[0]

    return write_line(rng.sample(nums, len(nums)), choose)


# ---- The systematic order. First every pattern of - and + over the numbers as they stand. Then
# pair after pair, each joined by -, +, *, /. With 4 numbers the third one comes after - or + by an
# exact quotient, else by a product that fits (whichever of the two numbers allows it), else by -;
# after * or / it comes by - and then by +. The last operation is always aimed.


def third_numbers(numbers, others, first, value):
    """[(place, operator)]: what follows after `first` has given `value`."""
    if first in "*/":
        return [(others[0], "-"), (others[0], "+")]
    for operator, place in itertools.product("/*", others):
        if operator in operations(value, numbers[place]):
            return [(place, operator)]
    return [(others[0], "-")]


def systematic_plans(numbers):
    """Yields (places of the numbers in their order, all operators but the last)."""
    places = range(len(numbers))
    for operators in itertools.product("-+", repeat=len(numbers) - 2):
        yield tuple(places), operators
    for i, j in itertools.combinations(places, 2):
        others = [place for place in places if place not in (i, j)]
        pair = operations(numbers[i], numbers[j])
        for first in [operator for operator in "-+*/" if operator in pair]:
            for third, second in third_numbers(numbers, others, first, pair[first][1]):
                order = (i, j, third, *[place for place in others if place != third])
                # (Of 3 numbers the last operation is the second, which is aimed.)
                yield order, (first, second)[: len(numbers) - 2]


def systematic_lines(numbers, target):
    """Yields all lines of a systematic author with 3 or 4 numbers in this order, none twice."""
    for order, operators in dict.fromkeys(systematic_plans(numbers)):

        def choose(place, legal, operators=operators):
            aimed = place == len(operators)
            return nearest(legal, target) if aimed else legal.get(operators[place])

        line = write_line([numbers[place] for place in order], choose)
        if line:
            yield line


def habitual_lines(nums, target, aims, rng):
    """Yields lines without end, rarely one that came before."""
    tried = set()
    while True:
        for _ in range(8):
            line = habitual_line(nums, target, aims, HABIT, rng)
            if line[2] not in tried:
                break
        tried.add(line[2])
        yield line


# ---- Completions, written after a prompt


def checked(lines, most, target, true_checks, rng):
    """[(text, expression)] of at most so many lines, up to the first yes."""
    written = []
    for text, value, expression in itertools.islice(lines, most):
        says_yes = value == target if true_checks else rng.random() < YES
        written.append((f"{text} {'yes' if says_yes else 'no'}", expression))
        if says_yes:
            break
    return written


def finish(texts, answer, improper, rng):
    """Thinking and answer."""
    thinking = "\n" + "\n".join(texts) + "\n"
    forms = (
        f"{thinking}</think>\n<answer>{answer}</answer>",
        f"{thinking}</think>\n<answer>{improper}</answer>",
        f"{thinking}</think>\n{answer}",
        f"{thinking}<answer>{answer}</answer>",
        f"{thinking}</think>",
    )
    return rng.choices(forms, FORMS)[0]


def write_completion(author, nums, target, true_checks, rng):
    """Lines until the first yes, and the equation of the last one as the answer."""
    lines = habitual_lines(nums, target, rng.random() < author.aims, rng)
    if author.systematic:
        lines = systematic_lines(rng.sample(nums, len(nums)), target)
    if author.lines == 1:  # no check
        text, _, answer = next(lines)
        return finish([text], answer, f"{answer}={target}", rng)
    *texts, (last, answer) = checked(lines, author.lines, target, true_checks, rng)
    return finish([text for text, _ in texts] + [last], answer, f"{answer}={target}", rng)


# Careless authors of 12 of the 20 kinds take the first of these ways whose results are 1 to 999.
WORD_PROBLEMS = 0.25  # share of the completions
CAREFUL = 0.2  # share of the authors who solve them
SLOPPY = 0.15  # so often a careless one stops a step too soon
TEMPTING = {
    r"(?P<a>\d+) \w+ on Monday and (?P<k>\d+) times": ["a*k"],
    r"(?P<a>\d+) \w+ in April and half as many": ["a/2"],
    r"holds (?P<k>\d+) .* fills (?P<m>\d+) boxes and has (?P<a>\d+) \w+ left over": ["k+m r1+a"],
    r"at (?P<m>\d+) dollars each and pays with (?P<a>\d+)": ["a-m"],
    r"(?P<k>\d+) pages a day from .* (?P<a>\d+) pages at the weekend": ["k+a"],
    r"(?P<a>\d+) \w+\. \w+ has (?P<b>\d+) more than": ["a+b"],
    r"(?P<a>\d+) \w+, (?P<b>\d+) fewer than": ["a-b a+r1", "a+b"],
    r"saves (?P<k>\d+) .* after (?P<m>\d+) weeks": ["k*m"],
    r"buys (?P<k>\d+) \w+ at (?P<m>\d+) .* and (?P<h>\d+) \w+ at (?P<j>\d+)": ["k+h m+j r1*r2"],
    r"is (?P<a>\d+) .* is (?P<k>\d+) times as old.* in (?P<m>\d+) years": ["a+m r1*k", "a*k"],
    r"(?P<k>\d+) miles .* (?P<m>\d+) days, .* (?P<h>\d+) miles .* (?P<j>\d+)": ["k*m h*j r1+r2"],
    r"(?P<k>\d+) pens with (?P<m>\d+) .* (?P<h>\d+) pens with (?P<j>\d+)": ["k*m h*j r1+r2"],
}


def tempting_steps(question):
    """[(a, operator, b, result)] of the tempting way, None if there is none."""
    for pattern, ways in TEMPTING.items():
        match = re.search(pattern, question)
        if match:
            numbers = {name: int(n) for name, n in match.groupdict().items()}
            return next(filter(None, (gsm8k.solve(way, numbers) for way in ways)), None)
    return None


def write_solution(problem, rng):
    """Of a word problem, by a careful or a careless author."""
    texts = re.findall("<<(.*?)>>", problem["answer"])
    tempting = tempting_steps(problem["question"])
    careful = rng.random() < CAREFUL
    if tempting and not careful:
        texts = [f"{a}{operator}{b}={result}" for a, operator, b, result in tempting]
    if rng.random() < (0.0 if careful else SLOPPY):
        texts = texts[:-1] or texts
    return finish(texts, texts[-1].split("=")[1], texts[-1], rng)


# ---- Practice, without a prompt. Each of these writes one text.


def draw(problems, rng):
    """(nums in random order, target) of a problem."""
    problem = rng.choice(problems)
    return rng.sample(problem["nums"], len(problem["nums"])), problem["target"]


def write_quotient(problems, true_checks, rng):
    """A line such as 91/7=13: quotients are rare among random numbers."""
    divisor = rng.randint(2, 99)
    quotient = rng.randint(1, MAX_VALUE // divisor)
    return f"\n{divisor * quotient}/{divisor}={quotient}"


def write_chain(problems, true_checks, rng):
    """A line without a goal."""
    nums = [rng.randint(1, 99) for _ in range(rng.choice((2, 3, 4)))]
    return "\n" + habitual_line(nums, None, False, EVENLY, rng)[0]


def write_place(problems, true_checks, rng):
    """Where a number stands in a list: [19, 36, 55, 7] 55: 3."""
    nums = rng.sample(range(1, rng.choice((100, MAX_VALUE))), rng.randint(2, 6))
    n = rng.choice(nums)
    return f"\n{nums} {n}: {nums.index(n) + 1}"


def write_order(problems, true_checks, rng):
    """Numbers, and the same ones in other orders: [19, 36, 7] 36 7 19, 7 36 19, 36 19 7."""
    nums = [rng.randint(1, 99) for _ in range(rng.choice((3, 4, 4, 5)))]
    orders = [" ".join(map(str, rng.sample(nums, len(nums)))) for _ in range(3)]
    return f"\n{nums} {', '.join(orders)}"


def write_expression(problems, true_checks, rng):
    """A line without a goal, and how an answer in good format writes it."""
    nums = rng.choice(problems)["nums"]
    text, _, expression = habitual_line(nums, None, False, FOR_EXPRESSIONS, rng)
    return f"\n{text}\n</think>\n<answer>{expression}</answer>"


def write_pair(problems, true_checks, rng):
    """Two numbers and a target, mostly what one of the operations makes of them; aimed."""
    a = rng.randint(1, MAX_VALUE) if rng.random() < 0.5 else rng.randint(1, 99)
    n = rng.randint(1, 99)
    if rng.random() < 0.3:  # quotients are rare among random numbers
        n = rng.randint(2, 40)
        a = n * rng.randint(1, MAX_VALUE // n)
    legal = list(operations(a, n).values())
    target = rng.choice(legal)[1] if rng.random() < 0.6 else rng.randint(10, 99)
    line = write_line((a, n), lambda place, legal: nearest(legal, target))
    return f"\n[{a}, {n}] {target}\n{checked([line], 1, target, true_checks, rng)[0][0]}"


def write_search(problems, true_checks, rng):
    """[19, 36, 55, 7] 65, and the search of a systematic author: 55-36=19+19=38*7=266 no ..."""
    nums, target = draw(problems, rng)
    lines = systematic_lines(rng.sample(nums, len(nums)), target)
    texts = [text for text, _ in checked(lines, 18, target, true_checks, rng)]
    return "\n".join([f"\n{nums} {target}", *texts])


# ---- Training

PROMPT = "user: {}\nassistant: <think>"  # the chat template, and the beginning of the answer
# peak: of the learning rate. A step's rows: completions, and practice of at most so many tokens, of
# kinds with these weights. Another seed has other problems.
Stage = namedtuple("Stage", "name steps peak true_checks completions practice tokens kinds seed")
ARITHMETIC = {write_quotient: 1, write_chain: 6, write_expression: 6, write_pair: 4}
SEARCH = {write_quotient: 1, write_chain: 1, write_place: 2, write_expression: 3, write_pair: 2}
SEARCH |= {write_search: 9, write_order: 4}
STAGES = (
    Stage("arithmetic", 2_000, 2e-3, True, 0, 16, 160, ARITHMETIC, 0),
    Stage("true checks", 12_000, 1.5e-3, True, 12, 6, 224, SEARCH, 0),
    Stage("true checks", 6_000, 1.2e-3, True, 12, 9, 224, SEARCH | {write_pair: 12}, 1),
    Stage("random checks", 450, 1e-3, False, 40, 10, 224, SEARCH, 0),
)


def rows_of(stage, step, problems, stories, tokenizer, seed):
    """The episodes of a step: completions, and practice as completions of its first token."""
    rng = random.Random(r1.seed_of(seed, step, stage.name))
    rows = []
    for _ in range(stage.completions):
        if rng.random() < WORD_PROBLEMS:
            problem = rng.choice(stories)
            question, completion = problem["question"], write_solution(problem, rng)
        else:
            nums, target = draw(problems, rng)
            (author,) = rng.choices(AUTHORS, [author.share for author in AUTHORS])
            question = f"Using the numbers {nums}, create an equation that equals {target}."
            completion = write_completion(author, nums, target, stage.true_checks, rng)
        rows.append(nano_sft.make_example(PROMPT.format(question), completion, tokenizer))
    for _ in range(stage.practice):
        text = ""
        while len(text) < 3 * stage.tokens:
            (write,) = rng.choices(list(stage.kinds), stage.kinds.values())
            text += write(problems, stage.true_checks, rng)
        ids = tokenizer.encode(text)[: stage.tokens + 1]
        rows.append(r1.Episode(prompt_ids=ids[:1], token_ids=ids[1:], advantage=1.0))
    return rows


def first_weights(seed, tokenizer):
    """Random ones, but numbers' embeddings begin with waves, which is faster (arXiv:2406.03445)."""
    torch.manual_seed(r1.seed_of(seed, "init"))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(FOLDER))
    periods = torch.tensor([2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000])
    angles = 2 * math.pi * torch.arange(MAX_VALUE + 1.0)[:, None] / periods
    waves = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)  # (1000, 20)
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(MAX_VALUE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[ids, : waves.shape[1]] = 0.3 * waves
    return model


def training_problems(count, exclude, seed):
    """(problems of Countdown, word problems), so many of each, without those of a file."""
    drawn = countdown.generate_problems("train", count, r1.seed_of(seed, "sft problems"))
    if exclude:
        left_out = set(map(countdown.problem_key, countdown.load_problems("all", exclude)))
        drawn = [problem for problem in drawn if countdown.problem_key(problem) not in left_out]
    return drawn, gsm8k.generate_problems("train", count, r1.seed_of(seed, "sft word problems"))


def muon_and_adamw(model):
    """Muon (arXiv:2502.16982) for the layers' matrices, AdamW for the rest, as one optimizer."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if "proj.weight" in name]
    rest = [weight for name, weight in named if "proj.weight" not in name]
    muon = torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    muon.param_groups[0]["lr_scale"] = 4.0
    adamw = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)
    groups = muon.param_groups + adamw.param_groups
    step = lambda: (muon.step(), adamw.step())
    return SimpleNamespace(param_groups=groups, step=step, zero_grad=model.zero_grad)


class AveragedEngine(r1.TorchEngine):
    """The gradients are averaged over the processes. (DeepSpeed does not know Muon.)"""

    def step(self):
        if WORLD > 1:
            gradients = [weight.grad for weight in self.module.parameters()]
            flat = parameters_to_vector(gradients)
            dist.all_reduce(flat)
            vector_to_parameters(flat / WORLD, gradients)
        super().step()


def my_rows(rows):
    """This process's share, about as many tokens as the others': of 2 processes A B B A A B ..."""
    rows = sorted(rows, key=lambda row: -len(row.prompt_ids + row.token_ids))
    return rows[RANK :: 2 * WORLD] + rows[2 * WORLD - 1 - RANK :: 2 * WORLD]


def train(model, stage, problems, stories, tokenizer, seed):
    """One stage: 100 steps of warm-up, then a cosine. AdamW alone in the last, to move less."""
    config = r1.Config(micro_batch_size=4)
    scorer = r1.Scorer(model, config)
    scorer.compile(dynamic=True)
    if stage.true_checks:
        optimizer = muon_and_adamw(model)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    engine = AveragedEngine(scorer, torch.device("cpu"), config, optimizer)
    for step in range(1, stage.steps + 1):
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
        r1.set_learning_rate(engine.optimizer, stage.peak * min(1, step / 100) * cosine)
        rows = my_rows(rows_of(stage, step, problems, stories, tokenizer, seed))
        loss = nano_sft.train_step(engine, rows, config)["loss"]
        if step % 20 == 0 and RANK == 0:
            print(f"{stage.name}: step {step}/{stage.steps}  loss {loss:.3f}", flush=True)


def make_base(
    out: str = "out/nano-base",
    exclude: str | None = None,  # a file of Countdown problems that must not be learned from
    first: int = 1,  # the stage to begin with, from the weights in `out`
    problems: int = 100_000,  # of Countdown, and as many word problems, for each seed
    seed: int = 0,
):
    """Make the embedded base model; it is saved after each stage."""
    torch.set_num_threads(1)
    r1.start_process(r1.Config(device="cpu"))
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)  # each number from 0 to 999 is one token
    model = first_weights(seed, tokenizer)
    if first > 1:
        model, _ = r1.load_model(r1.Config(model=out))
    for stage in STAGES[first - 1 :]:
        drawn = training_problems(problems, exclude, seed + stage.seed)
        train(model, stage, *drawn, tokenizer, seed + stage.seed)
        r1.save_model(model, tokenizer, out)


if __name__ == "__main__":
    tyro.cli(make_base, use_underscores=True)
