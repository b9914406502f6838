"""The controls beside a gain: what comes as far as the correctness reward without it?

    python -m benchmarks.controls --data FILE                  # Countdown, three seeds
    python -m benchmarks.controls --steps 20 --only random rft --seeds 0
    python -m benchmarks.controls --data FILE --steps 0 --seeds    # without a seed: only the base

A gain is learning only if none of these reaches it, with the same model, problems and steps:

    temperatures  the base and every trained model; each is judged at its best temperature
    majority      (Countdown) the most frequent value among 8 answers of the base
    asked         (Countdown) the base is asked in each form that its texts have: the question, and
                  the practice that has no prompt; with no, one or three solved examples before it,
                  whose checks are true. The line with its first yes is its answer
    a rule        (Countdown) tokens of the question form are forced by a rule that knows the
                  numbers and not the target. "format": each line ends in yes or no, and only a yes
                  ends the search. "begun": also, the first line is written up to its last
                  operation: the numbers, subtracted
    threshold     (Countdown) each of these, but yes is written if its probability is above a
                  threshold, else no: the best threshold on generated training problems
    random        the reward of each completion is 0 or 1 at random
    format        the reward is the format only
    rft           rejection sampling and fine-tuning: the base samples as many tokens as the run
                  did; nano_sft.py imitates those that are correct and well-formed

For Countdown, the tables of checks.py follow: do yes and no mean anything?

Intervals are 95% over problems; the difference is paired by problem. --data FILE judges on your own
problems. Complete runs are kept while code and base are the same; stopped ones continue. So two
processes can share the seeds, and a third one prints all of them.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import operator
import os
import random
import statistics
from collections import namedtuple
from types import SimpleNamespace

import torch

import countdown_rewards as countdown
import nano_eval
import nano_r1
from benchmarks import checks, runs
from tasks.checker_rewards import steps_of

# ---- Runs without the correctness reward


def rewarded(total):
    """`nano_r1.rollout`, but the reward of episode e is total(e, rng)."""

    def with_reward(sampler, problems, task, config, step):
        episodes = nano_r1.rollout(sampler, problems, task, config, step)
        rng = random.Random(nano_r1.seed_of(config.seed, step, "random reward"))
        for e in episodes:
            e.reward = total(e, rng)
        return episodes

    return with_reward


def right_samples(config, tokens):
    """Rows for nano_sft.py: the correct, well-formed completions among so many sampled tokens."""
    sampler, task = runs.load(config)
    problems = task.load_problems("train", config)
    rows = []
    sampled = 0
    step = 0
    while sampled < tokens:
        step += 1
        for e in nano_r1.rollout(sampler, problems, task, config, step):
            sampled += len(e.token_ids)
            if e.answer_reward == 1 and e.format_reward == 1:
                rows.append(
                    {"prompt": task.tokenizer.decode(e.prompt_ids), "response": e.completion}
                )
    return rows


REWARDS = {
    "random": lambda e, rng: float(rng.random() < 0.5),
    "format": lambda e, rng: e.format_reward,
}

SFT = "--steps 300 --learning_rate 3e-4"  # of rft

# ---- The base asked in another way, for Countdown

Way = namedtuple("Way", "form examples rule")
WAYS = [Way("question", 0, "format"), Way("question", 0, "begun")]
for form, examples in itertools.product(("question", "practice"), (0, 1, 3)):
    WAYS.append(Way(form, examples, "no rule"))
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
IN_STEPS = countdown.Prompt("", opening="", thinking="", steps=True)


def line_of(numbers, operators):
    """(a line of a search, its result), e.g. ("55-36=19,90-19=71", 71).

    `-36=19` continues from the running value; `,90-19=71` puts the other, larger number first.
    """
    value = numbers[0]
    line = str(value)
    for number, name in zip(numbers[1:], operators):
        if name == "-" and number >= value:
            before = f"{line}," if "=" in line else ""
            line = f"{before}{number}-{value}"
        else:
            line += f"{name}{number}"
        value = abs(OPERATIONS[name](value, number))
        line += f"={value}"
    return line, value


def subtracted(nums):
    """The numbers in random order, the larger minus the smaller, without the last operation."""
    order = random.Random(str(nums)).sample(nums, len(nums))
    return line_of(order[:-1], "-" * len(nums))[0]


@functools.cache
def example_problems():
    """Training problems that + and - solve, so a line does, too; their seed is no run's."""
    problems = countdown.generate_problems("train", 1024, 1001)
    return [p for p in problems if countdown.subgroups(p)[1] == "plus_minus"]


def question_of(form, problem, task):
    """A problem in a form of the base's texts, up to the first line of the search."""
    if form == "practice":
        return f"\n{problem['nums']} {problem['target']}\n"
    return task.prompt_text(problem) + "\n"


def example(form, task, rng):
    """A solved training problem: at most three wrong lines and a right one, truly checked."""
    problem = rng.choice(example_problems())
    nums = problem["nums"]
    wrong = []
    line, result = line_of(nums, "+" * len(nums))
    while result != problem["target"]:
        if result < 1000:  # as in the base's texts
            wrong.append(f"{line} no")
        line, result = line_of(rng.sample(nums, len(nums)), rng.choices("+-*", k=len(nums)))
    text = question_of(form, problem, task) + "\n".join([*wrong[-3:], f"{line} yes"])
    if form == "question":
        text += f"\n</think>\n<answer>{countdown.join_steps(steps_of(line))}</answer>\n"
    return text


class Rule:
    """transformers' `prefix_allowed_tokens_fn`: what may follow in a row. It knows no target."""

    def __init__(self, name, tokenizer, numbers, width):
        self.name = name
        self.width = width  # of the prompts, whose last token is a newline
        self.ids = [tokenizer.encode(text)[0] for text in ("=", "\n", " yes", " no", "</think>")]
        banned = {tokenizer.eos_token_id, *self.ids[1:]}
        others = [token for token in range(len(tokenizer)) if token not in banned]
        self.others = torch.tensor(others)  # a list would be slow
        self.numbers = numbers  # of the rows
        self.begun = [tokenizer.encode(subtracted(nums)) for nums in numbers]

    def __call__(self, row, ids):
        equals, newline, yes, no, _ = self.ids
        ids = ids[self.width - 1 :].tolist()
        if ids[-1] == no:
            return [newline]
        line = ids[len(ids) - ids[::-1].index(newline) :]
        if line.count(equals) == len(self.numbers[row]) - 1 and line[-1] != equals:
            return [yes, no]  # the last result stands there
        if self.name == "begun" and len(line) == len(ids) - 1 < len(self.begun[row]):
            return [self.begun[row][len(line)]]
        return self.others


class Threshold:
    """transformers' LogitsProcessor: one of yes and no gets the probability of both."""

    def __init__(self, threshold, tokenizer):
        self.threshold = threshold
        self.words = [tokenizer.encode(word)[0] for word in (" yes", " no")]
        self.seen = []  # P(yes) instead of no, where one of them is likely

    def __call__(self, input_ids, scores):
        yes, no = self.words
        either = torch.logsumexp(scores[:, self.words], dim=1)  # (R,)
        p_yes = torch.exp(scores[:, yes] - either)
        likely = either > torch.logsumexp(scores, dim=1) - 0.7  # above a half
        self.seen += p_yes[likely].tolist()
        says_yes = p_yes > self.threshold
        scores[:, yes] = torch.where(says_yes, either, -torch.inf)
        scores[:, no] = torch.where(says_yes, -torch.inf, either)
        return scores


def searches(config, problems, way, threshold=None):
    """(a completion of each problem up to its first yes or answer, P(yes) of all checks)."""
    sampler, task = runs.load(config)
    encode = task.tokenizer.encode
    ends = task.stop_ids | {encode(text)[-1] for text in (" yes", "</answer>")}
    prompts = []
    for place, problem in enumerate(problems):
        rng = random.Random(nano_r1.seed_of("examples", place))
        before = [example(way.form, task, rng) for _ in range(way.examples)]
        prompts.append(encode("".join(before) + question_of(way.form, problem, task)))
    batch = task.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    width = batch["input_ids"].shape[1]
    check = Threshold(threshold, task.tokenizer)
    options = {"logits_processor": [] if threshold is None else [check], "do_sample": False}
    if config.temperature:
        options |= {"do_sample": True, "temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    if way.rule != "no rule":
        numbers = [problem["nums"] for problem in problems]
        options["prefix_allowed_tokens_fn"] = Rule(way.rule, task.tokenizer, numbers, width)
    torch.manual_seed(config.seed)
    rows = sampler.model.generate(
        **batch.to(sampler.model.device),
        max_new_tokens=config.max_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=task.tokenizer.pad_token_id,
        **options,
    )
    # After a row's end there is only padding, which is a special token.
    texts = task.tokenizer.batch_decode(rows[:, width:], skip_special_tokens=True)
    return texts, check.seen


def is_solved(text, problem):
    """1.0 if the line that ends in yes is right or, without a yes, the answer; else 0.0."""
    line, _, word = text.rpartition("\n")[2].rpartition(" ")
    if word == "yes":
        text = f"<answer>{steps_of(line)}</answer>"
    return countdown.reward(text, problem, IN_STEPS).answer


def asked(config, problems, way, threshold=None):
    """For each problem: does the base, asked this way, solve it? A list of 0.0 and 1.0."""
    texts, _ = searches(config, problems, way, threshold)
    return list(map(is_solved, texts, problems))


def with_threshold(config, problems, way):
    """The same with the best of six thresholds on 128 generated training problems."""
    training = countdown.generate_problems("train", 128, 1000)  # a seed that no run has
    at_one = dataclasses.replace(config, temperature=1.0)
    _, seen = searches(at_one, training, way, 1.0)  # never a yes: whole searches
    seen = sorted([*seen, 1.0])  # 1.0: it may never come to a check
    solved = {}
    for share in (0.4, 0.55, 0.7, 0.8, 0.9, 0.95):
        threshold = seen[int(share * len(seen))]
        solved[threshold] = statistics.mean(asked(config, training, way, threshold))
    print(f"{way}, T {config.temperature}, solved by threshold: {solved}")
    return asked(config, problems, way, max(solved, key=solved.get))


# ---- The tables


def sampled(config, problems, n):
    """n episodes of each problem, a tuple; greedily one."""
    sampler, task = runs.load(config)
    with nano_r1.threads_for(sampler.model):
        return nano_eval.sample(sampler, problems, task, dataclasses.replace(config, samples=n))


def answers(config, problems, n):
    """How many of n completions of each problem are correct?"""
    return [sum(e.answer_reward for e in group) for group in sampled(config, problems, n)]


def value_of(text, problem, prompt):
    """The exact value of a Countdown answer; None if it is no answer."""
    answer, _ = countdown.read_answer(text, prompt)
    return countdown.judge(answer, problem, False)[0]


def voted(config, problems, n):
    """Is the most frequent value among n answers to each problem the target? Ties are shared."""
    voters = SimpleNamespace(final_answer=value_of)
    task = SimpleNamespace(module=voters, prompt=countdown.PROMPTS[config.prompt])
    return [nano_eval.majority(group, task) for group in sampled(config, problems, n)]


def judged(folder, function, config, models, problems, more):
    """The results of a function for each model; each is kept in a file of its own."""
    results = []
    for model in models:
        # It is the same after any number of steps.
        of_model = dataclasses.replace(config, model=model, steps=0)
        what = [function.__name__, more, dataclasses.asdict(of_model), runs.version(model)]
        file = f"{folder}/{runs.checksum(json.dumps([what, problems]))}.json"
        if not os.path.exists(file):
            nano_r1.write_rows(file, function(of_model, problems, more))
        results.append(nano_r1.read_rows(file))
    return results


def control_table(correct):
    """`correct`: {name: {temperature: for each problem the mean over the seeds}}."""
    best = {name: max(of.values(), key=statistics.mean) for name, of in correct.items()}
    names = [f"T {temperature:g}" for temperature in correct["base"]]
    lines = [["pass@1", *names, "at its best", "the reward's best minus this"]]
    for name, of in correct.items():
        cells = [f"{statistics.mean(shares):.3f}" for shares in of.values()]
        mean, low, high = runs.mean_interval(best[name])
        compared = ""
        if "reward" in best:
            compared = runs.signed(*runs.difference(best["reward"], best[name]))
        lines.append([name, *cells, f"{mean:.3f} [{low:.3f}, {high:.3f}]", compared])
    return runs.table(lines)


def train(name, flags, args, seed):
    """The run of a control or, with the name "reward", of the command itself; its directory."""
    path = runs.place(args.out, f"{name} {flags}", seed)
    config = runs.parse("nano_r1", f"{flags} --seed {seed}")
    if name == "reward":
        runs.train("nano_r1", f"{flags} --seed {seed}", path)
    elif name == "rft":
        file = f"{path}.jsonl"
        if not os.path.exists(file):
            like = runs.metrics(runs.place(args.out, f"reward {flags}", seed))
            lengths = [row.get("completions/mean_length", 0) for row in like]
            tokens = sum(lengths) * config.prompts_per_step * config.group_size
            nano_r1.write_rows(file, right_samples(config, tokens))
        same = ("task", "model", "prompt", "max_tokens", "seed")
        words = [f"--{name} {getattr(config, name)}" for name in same]
        runs.train("nano_sft", f"{' '.join(words)} --data {file} {SFT}", path)
    else:
        config.eval_every = config.record_tokens_every = 0  # the models are judged below
        config.eval_problems = 16
        runs.complete(nano_r1.main, config, path, rollout=rewarded(REWARDS[name]))
    return path


def compare(flags, args):
    """Train and judge everything for one number of steps; print its tables."""
    config = runs.parse("nano_eval", flags)
    models = {"base": [config.model]}
    paths = {}
    for name in ("reward", *args.only) if args.seeds else ():
        paths[name] = [train(name, flags, args, seed) for seed in args.seeds]
        models[name] = [f"{path}/model" for path in paths[name]]
    module = nano_r1.import_task(config.task)
    problems = module.load_problems("all" if args.data else "test", args.data, 0)[: args.problems]
    rows = [(name, answers, of_name, 1) for name, of_name in models.items()]
    if config.task == "countdown":
        rows.append(("base, majority of 8", voted, models["base"], 8))
        for way in WAYS:
            name = f"base, {way.form}, {way.examples} examples, {way.rule}"
            rows.append((name, asked, models["base"], way))
            rows.append((f"{name}, threshold", with_threshold, models["base"], way))
    folder = f"{args.out}/results"
    correct = {}
    for name, function, of_name, more in rows:
        correct[name] = {}
        for temperature in args.temperatures:
            config.temperature = temperature
            columns = judged(folder, function, config, of_name, problems, more)
            # The mean over the seeds for each problem.
            correct[name][temperature] = list(map(statistics.mean, zip(*columns)))
    print(f"\n{flags}, seeds {args.seeds}; commit {runs.commit()}; {len(problems)} problems")
    print(f"\n{control_table(correct)}\n")
    if config.task == "countdown" and paths:
        print(f"{checks.tables(paths['reward'])}\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--flags", default="--task countdown", help="flags of the command, in one text")
    add("--steps", type=int, nargs="+", default=[20, 60], help="numbers of steps to compare at")
    add("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: only the base is judged")
    names = [*REWARDS, "rft"]
    add("--only", nargs="*", choices=names, default=names, help="these controls")
    add("--data", metavar="FILE", help="problems to judge on; left out: held-out generated ones")
    add("--problems", type=int, default=512, help="at most")
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.3, 0.6, 1.0])
    add("--out", default="out/controls", help="where runs and results are kept")
    args = parser.parse_args()
    for steps in args.steps:
        compare(f"{args.flags} --steps {steps}", args)


if __name__ == "__main__":
    main()
