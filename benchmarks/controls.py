"""The controls beside a gain: what comes as far as the correctness reward without it?

    python -m benchmarks.controls --data FILE                  # Countdown, three seeds
    python -m benchmarks.controls --steps 20 --only random rft --seeds 0

A gain is learning only if none of these reaches it, with the same model, problems and steps:

    temperatures  the base and every trained model; each is judged at its best temperature
    majority      (Countdown) the most frequent value among 8 answers of the base
    practice      (Countdown) the base is asked in the form of its practice texts, in which checks
                  are true, and stops at its first yes
    constrained   (Countdown) tokens of the base are forbidden or forced by a rule that uses the
                  numbers and not the target; RULES lists them
    random        the reward of each completion is 0 or 1 at random
    format        the reward is the format only
    length        the reward is the length
    none          no reward: all advantages are 0, and the k1 estimate of the KL is the loss
    rft           rejection sampling and fine-tuning: the base samples as many tokens as the run
                  did; nano_sft.py imitates those that are correct and well-formed

For Countdown, the tables of checks.py follow: do yes and no mean anything?

Intervals are 95% over problems; the difference is paired by problem. --data FILE judges on your own
problems. A run that is complete is not repeated, unless the code or the base has changed. One that
was stopped continues. Results are kept, so two processes can share the seeds, and a third one
prints all of them.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import re
import statistics
from types import SimpleNamespace

import torch
from transformers import LogitsProcessorList

import countdown_rewards as countdown
import nano_eval
import nano_r1
from benchmarks import checks, runs

# ---- Runs without the correctness reward. Each takes the place of a function of nano_r1.main.


def rewarded(total):
    """`nano_r1.rollout`, or another one, but the reward of episode e is total(e, config, rng)."""

    def with_reward(sampler, problems, task, config, step, rollout=nano_r1.rollout):
        episodes = rollout(sampler, problems, task, config, step)
        rng = random.Random(nano_r1.seed_of(config.seed, step, "random reward"))
        for e in episodes:
            e.reward = total(e, config, rng)
        return episodes

    return with_reward


random_reward = rewarded(lambda e, config, rng: float(rng.random() < 0.5))
format_reward = rewarded(lambda e, config, rng: e.format_reward)
length_reward = rewarded(lambda e, config, rng: len(e.token_ids) / config.max_tokens)


def no_reward(rewards, config):
    """`nano_r1.group_advantages`, but all are 0."""
    return rewards * 0


def k1_loss(log_probs, batch, config):
    """The k1 estimate of the KL as the loss, each completion's mean.

    Its gradient is 0 on average, except that the mean divides by a length that depends on the
    completion: so it is the gradient of E[1/length], a reward for length.
    """
    mask = batch["response_mask"]
    # 1/N sum_i 1/|o_i| sum_t (log pi - log pi_ref)
    k1 = log_probs - batch["ref_log_probs"]  # (B, T)
    return (k1 * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1) / batch["completions"]


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


CONTROLS = {
    "random": {"rollout": random_reward},
    "format": {"rollout": format_reward},
    "length": {"rollout": length_reward},
    "none": {"advantages": no_reward, "loss": k1_loss},
    "rft": {},
}

# ---- Constrained decoding of Countdown

RULES = {  # each one with those before it
    "format": "each line ends in yes or no; the thinking ends only after a yes or at the limit; "
    "the answer's tags are written for the model",
    "begun": "the first line is written up to its last operation: the numbers, subtracted",
    "threshold": "yes is written if its probability is above a threshold, else no; the threshold "
    "is the best one on generated training problems",
}
ANSWER_ROOM = 28  # tokens for the end of the thinking and the answer


def subtracted(nums):
    """The numbers in random order, the larger minus the smaller, without the last operation."""
    order = random.Random(str(nums)).sample(nums, len(nums))
    value = order[0]
    line = str(value)
    for place, number in enumerate(order[1:-1]):
        if value > number:
            line += f"-{number}={value - number}"
        else:
            line = f"{line},{number}-{value}" if place else f"{number}-{value}"
            line += f"={number - value}"
        value = abs(value - number)
    return line


class Rule:
    """transformers' LogitsProcessor: which tokens may follow in each row."""

    def __init__(self, name, tokenizer, problems, width, max_tokens, threshold=None):
        self.name = name
        self.threshold = threshold
        self.width = width  # of the prompts
        self.max_tokens = max_tokens
        self.end = tokenizer.eos_token_id
        texts = ("\n", "=", " yes", " no", "</think>", "<answer>", "</answer>")
        self.ids = [tokenizer.encode(text)[0] for text in texts]
        self.counts = [len(problem["nums"]) for problem in problems]  # of the rows
        self.begun = [tokenizer.encode(subtracted(problem["nums"])) for problem in problems]

    def __call__(self, input_ids, scores):
        for row, ids in enumerate(input_ids[:, self.width :].tolist()):
            allowed, banned = self.after(ids, row)
            if self.threshold is not None and len(allowed) == 2:  # yes and no
                p_yes = torch.softmax(scores[row, allowed], 0)[0]
                allowed = allowed[:1] if p_yes > self.threshold else allowed[1:]
            if allowed:
                kept = scores[row, allowed].clone()
                scores[row] = -torch.inf
                scores[row, allowed] = kept
            scores[row, banned] = -torch.inf
        return scores

    def after(self, ids, row):
        """(the tokens that are allowed, [] for all; those that are banned) behind `ids`."""
        newline, equals, yes, no, close, opened, closed = self.ids
        numbers = self.counts[row]
        if self.end in ids:
            return [], []
        if close in ids:
            answer = ids[ids.index(close) + 1 :]
            if len(answer) < 2:
                return [(newline, opened)[len(answer)]], []
            if closed in answer:
                return [self.end], []
            return [], [newline, equals, close, self.end]
        if not ids or ids[-1] in (yes, no):
            return [newline], []
        line = ids[len(ids) - ids[::-1].index(newline) :]
        room = self.max_tokens - len(ids) - ANSWER_ROOM - 6 * numbers
        if not line and (yes in ids or room < 0):
            return [close], []
        if line.count(equals) == numbers - 1 and line[-1] != equals:
            return [yes, no], []  # the last result stands there
        if self.name != "format" and len(line) == len(ids) - 1 < len(self.begun[row]):
            return [self.begun[row][len(line)]], []
        return [], [newline, yes, no, close, self.end]


def constrained(config, problems, rule, threshold=None):
    """Is one completion of each problem correct, sampled under the rule? A list of 0.0 and 1.0."""
    if rule == "threshold" and threshold is None:
        threshold = best_threshold(config)
    sampler, task = runs.load(config)
    torch.manual_seed(config.seed)
    correct = []
    for start in range(0, len(problems), 128):
        part = problems[start : start + 128]
        prompts = [task.prompt_ids(problem) for problem in part]
        width = max(map(len, prompts))
        of_part = Rule(rule, task.tokenizer, part, width, config.max_tokens, threshold)
        processors = LogitsProcessorList([of_part])
        rows = runs.generate(sampler, prompts, 1, config.temperature, logits_processor=processors)
        for problem, row in zip(part, rows):
            text = task.text_of(row)
            correct.append(task.reward(text, problem)[2])
    return correct


def best_threshold(config):
    """The threshold with the most correct completions of 128 generated training problems."""
    problems = countdown.load_problems("train", None, 1000)[:128]  # a seed that no run has
    at_one = dataclasses.replace(config, temperature=1.0)
    seen = sorted(p for p, _ in checks.checks(at_one, problems))
    correct = {}
    for share in (0.8, 0.9, 0.95, 0.98, 0.99):
        threshold = seen[int(share * len(seen))]
        correct[threshold] = statistics.mean(constrained(config, problems, "threshold", threshold))
    best = max(correct, key=correct.get)
    print(f"T {config.temperature:g}: threshold {best:.3f} of {correct}", flush=True)
    return best


# ---- The tables


def answers(config, problems, n):
    """How many of n completions of each problem are correct?"""
    groups = runs.sample(config, problems, n)
    return [sum(e.answer_reward for e in group) for group in groups]


def value_of(text, problem, prompt):
    """The exact value of a Countdown answer; None if it is no answer."""
    answer, _ = countdown.read_answer(text, prompt)
    return countdown.judge(answer, problem, False)[0]


def voted(config, problems, n):
    """Is the most frequent value among n answers to each problem the target? Ties are shared."""
    n = n if config.temperature else 1  # greedy completions are equal
    voters = SimpleNamespace(final_answer=value_of)
    task = SimpleNamespace(module=voters, prompt=countdown.PROMPTS[config.prompt])
    return [nano_eval.majority(group, task) for group in runs.sample(config, problems, n)]


def as_answer(line):
    """A line of a search as an answer in steps: 55-36=19+19=38 is 55-36=19, then 19+19=38."""
    steps = []
    for chain in line.split(","):
        for left, right in itertools.pairwise(chain.split("=")):
            result = re.match("[0-9]*", right)[0]
            steps.append(f"{left}={result}")
    return "<answer>" + "\n".join(steps) + "</answer>"


def practice(config, problems, n):
    """Asked without the prompt, as in the practice texts: is the line with the first yes right?"""
    sampler, task = runs.load(config)
    yes = task.tokenizer.encode(" yes")[-1]
    task.has_ended = lambda ids: ids[-1] in (yes, *task.stop_ids)
    prompts = [task.tokenizer.encode(f"\n{p['nums']} {p['target']}\n") for p in problems]
    seeds = [nano_r1.seed_of("practice", place) for place in range(len(problems))]
    completions = sampler.generate(prompts, n, config.temperature, seeds)
    in_steps = countdown.Prompt("", opening="", thinking="", steps=True)
    correct = []
    for (ids, _), problem in zip(completions, problems):
        line, _, word = task.text_of(ids).rpartition("\n")[2].rpartition(" ")
        verdict = countdown.reward(as_answer(line), problem, in_steps)
        correct.append(verdict.answer * (word == "yes"))
    return correct


def judged(folder, function, config, models, problems, more):
    """The results of a function for each model; each is kept in a file of its own."""
    results = []
    for model in models:
        asked = dataclasses.replace(config, model=model)
        what = [function.__name__, more, dataclasses.asdict(asked), runs.version(model)]
        key = f"{what} {runs.checksum(json.dumps(problems))}"
        file = f"{folder}/{runs.checksum(key)}.json"
        if not os.path.exists(file):
            found = function(asked, problems, more)
            nano_r1.write_rows(file, [{"key": key, "result": found}])
        (kept,) = nano_r1.read_rows(file)
        results.append(kept["result"])
    return results


def control_table(correct):
    """`correct`: {name: {temperature: for each problem the mean over the seeds}}."""
    best = {name: max(of.values(), key=statistics.mean) for name, of in correct.items()}
    names = [f"T {temperature:g}" for temperature in correct["base"]]
    lines = [["pass@1", *names, "at its best", "the reward's best minus this"]]
    for name, of in correct.items():
        cells = [f"{statistics.mean(shares):.3f}" for shares in of.values()]
        mean, low, high = runs.mean_interval(best[name])
        compared = runs.signed(*runs.difference(best["reward"], best[name]))
        lines.append([name, *cells, f"{mean:.3f} [{low:.3f}, {high:.3f}]", compared])
    return runs.table(lines)


def place(name, flags, args, seed):
    """The directory of a run of `train`."""
    more = f" {args.sft_flags}" if name == "rft" else ""
    return runs.place(args.out, f"{name} {flags}{more}", seed)


def train(name, flags, args, seed):
    """The run of a control or, with the name "reward", of the command itself; its directory."""
    path = place(name, flags, args, seed)
    config = runs.parse("nano_r1", f"{flags} --seed {seed}")
    if name == "reward":
        runs.train("nano_r1", f"{flags} --seed {seed}", path)
    elif name == "rft":
        file = f"{path}.jsonl"
        if not os.path.exists(file):
            like = runs.metrics(place("reward", flags, args, seed))
            lengths = [row.get("completions/mean_length", 0) for row in like]
            tokens = sum(lengths) * config.prompts_per_step * config.group_size
            nano_r1.write_rows(file, right_samples(config, tokens))
        same = ("task", "model", "prompt", "max_tokens", "seed")
        words = [f"--{name} {getattr(config, name)}" for name in same]
        runs.train("nano_sft", f"{' '.join(words)} --data {file} {args.sft_flags}", path)
    else:
        config.kl_coef = 1.0 if name == "none" else config.kl_coef  # it needs a reference
        config.eval_every = config.record_tokens_every = 0  # the models are judged below
        config.eval_problems = 16
        runs.complete(nano_r1.main, config, path, **CONTROLS[name])
    return path


def compare(flags, args):
    """Train and judge everything for one number of steps; print its tables."""
    config = runs.parse("nano_r1", flags)
    models = {"base": [config.model]}
    paths = {}
    for name in ("reward", *args.only):
        paths[name] = [train(name, flags, args, seed) for seed in args.seeds]
        models[name] = [f"{path}/model" for path in paths[name]]
    module = nano_r1.import_task(config.task)
    problems = module.load_problems("all" if args.data else "test", args.data, 0)[: args.problems]
    asked = [(name, answers, of_name, 1) for name, of_name in models.items()]
    if config.task == "countdown":
        asked.append(("base, majority of 8", voted, models["base"], 8))
        asked.append(("base, asked as in practice", practice, models["base"], 1))
        asked += [(f"base, {rule}", constrained, models["base"], rule) for rule in RULES]
    folder = f"{args.out}/results"
    correct = {}
    for name, function, of_name, more in asked:
        correct[name] = {}
        for temperature in args.temperatures:
            config.temperature = temperature
            columns = judged(folder, function, config, of_name, problems, more)
            # The mean over the seeds for each problem.
            correct[name][temperature] = list(map(statistics.mean, zip(*columns)))
    print(f"\n{flags}, seeds {args.seeds}; commit {runs.commit()}; {len(problems)} problems")
    print(f"\n{control_table(correct)}\n")
    if config.task == "countdown":
        print(f"{checks.tables(paths['reward'])}\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--flags", default="--task countdown", help="flags of the command, in one text")
    add("--steps", type=int, nargs="+", default=[20, 60], help="numbers of steps to compare at")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--only", nargs="*", choices=CONTROLS, default=list(CONTROLS), help="these controls")
    add("--data", metavar="FILE", help="problems to judge on; left out: held-out generated ones")
    add("--problems", type=int, default=512, help="at most")
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.3, 0.6, 1.0])
    add("--sft_flags", default="--steps 300 --learning_rate 3e-4", help="flags of rft")
    add("--out", default="out/controls", help="where runs and results are kept")
    args = parser.parse_args()
    for steps in args.steps:
        compare(f"{args.flags} --steps {steps}", args)
    for name, rule in RULES.items():
        print(f"{name}: {rule}")


if __name__ == "__main__":
    main()
