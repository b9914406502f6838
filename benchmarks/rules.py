"""What does a decoding rule that knows nothing of the target bring out of a Countdown model?

    python benchmarks/rules.py models/nano-base --data FILE
    python benchmarks/rules.py out/NAME out/OTHER --data FILE     # trained models, the same way

A rule forbids or forces tokens; it is told the numbers, never the target. A sceptic's question:
what the reward is said to have taught may be something that the base did already, had one only
asked it in the right way. The rules, each with all of the one before it (from `form` on, of form):

    as it is   no rule
    patience   no end of the thinking before a `yes` of its own, or the limit; each line is checked
    form       the answer's form is forced
    + - * /    the first operation of each line is forced, four rules
    first      each line begins with the number that stands first in the problem's list of numbers
               after the ones that earlier lines began with: every number has its turn
    largest    each line begins with the largest number
    minus      the first line is written for the model up to its last operation: the numbers in
               random order, subtracted one from the other. So the systematic authors begin, from
               whom models/nano-base has learned: the rule that knows most of the base

pass@1 of every rule at every temperature; one sample a problem. Minutes with the embedded model.
"""

import argparse
import functools
import json
import os
import random
import time
import zlib

from tqdm import tqdm

import runs

TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
RULES = ["as it is", "patience", "form", "+", "-", "*", "/", "first", "largest", "minus"]
ANSWER_TOKENS = 28  # left at the limit for `</think>`, an answer with 5 numbers, and the end


def subtracted(nums):
    """The numbers in random order, the larger less the smaller, without the last operation."""
    order = random.Random(str(nums)).sample(nums, len(nums))
    value = order[0]
    line = str(value)
    for place, n in enumerate(order[1:-1]):
        if value > n:
            line += f"-{n}={value - n}"
        else:
            line = f"{line},{n}-{value}={n - value}" if place else f"{n}-{value}={n - value}"
        value = abs(value - n)
    return line


class Rule:
    """transformers' LogitsProcessor protocol: which tokens each row may take next."""

    def __init__(self, name, tokenizer, problems, prompt_length, max_tokens):
        self.name = name
        self.tokenizer = tokenizer
        self.problems = problems
        self.prompt_length = prompt_length
        self.max_tokens = max_tokens
        self.end = tokenizer.eos_token_id
        self.id = functools.cache(self.only_token)  # asked for at every row and token

    def only_token(self, text):
        (token,) = self.tokenizer.encode(text)
        return token

    def __call__(self, input_ids, scores):
        import torch

        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            allowed, banned = self.of_row(ids, self.problems[row])
            if allowed is not None:
                mask = torch.ones_like(scores[row], dtype=torch.bool)
                mask[allowed] = False
                scores[row] = scores[row].masked_fill(mask, float("-inf"))
            if banned:
                scores[row, banned] = float("-inf")
        return scores

    def of_row(self, ids, problem):
        """(the tokens that are allowed or None for all, those that are banned) after `ids`."""
        if self.end in ids or self.name == "as it is":
            return None, []
        if self.id("</think>") in ids:
            return self.of_answer(ids)
        return self.of_thinking(ids, problem)

    def of_answer(self, ids):
        if self.name == "patience":
            return None, []
        after = ids[ids.index(self.id("</think>")) + 1 :]
        if len(after) < 2:
            return [self.id(("\n", "<answer>")[len(after)])], []
        if self.id("</answer>") in after:
            return [self.end], []
        return None, [self.id("="), self.id("\n"), self.end, self.id("</think>")]

    def of_thinking(self, ids, problem):
        """A line: a number, operations, and ` yes` or ` no` once all numbers are used."""
        newline = self.id("\n")
        close = self.id("</think>")
        yes = self.id(" yes")
        no = self.id(" no")
        if not ids:
            return [newline], []
        if ids[-1] in (yes, no):
            return [newline], []
        if ids[-1] == newline:
            spent = self.max_tokens - len(ids) < ANSWER_TOKENS + 6 * len(problem["nums"])
            if yes in ids or spent:
                return [close], []
            return self.starts(ids, problem), [close, self.end]
        line = ids[len(ids) - ids[::-1].index(newline) :]
        equals = line.count(self.id("="))
        finished = equals == len(problem["nums"]) - 1 and line[-1] != self.id("=")
        if finished:  # the last result stands there
            return [yes, no], []
        banned = [newline, close, self.end, yes, no]
        if self.name == "minus" and len(line) == len(ids) - 1:  # the first
            begun = self.tokenizer.encode(subtracted(problem["nums"]))
            if len(line) < len(begun):
                return [begun[len(line)]], []
        if len(line) == 1 and self.name in ("+", "-", "*", "/"):
            return [self.id(self.name)], []
        return None, banned

    def starts(self, ids, problem):
        """The number that a line begins with, where the rule says so."""
        if self.name == "first":
            lines = ids.count(self.id("\n")) - 1
            return [self.id(str(problem["nums"][lines % len(problem["nums"])]))]
        if self.name == "largest":
            return [self.id(str(max(problem["nums"])))]
        if self.name == "minus" and len(ids) == 1:
            return [self.tokenizer.encode(subtracted(problem["nums"]))[0]]
        return None


def sample(model, tokenizer, task, problems, rule, temperature, max_tokens, seed=0, batch=128):
    """One completion of each problem under the rule, as text."""
    import torch
    from transformers import LogitsProcessorList

    torch.manual_seed(seed)
    texts = {}
    # prompts of one length together: no padding, so that nothing but the rule differs
    prompts = [task.prompt_ids(problem) for problem in problems]
    by_length = {}
    for place, ids in enumerate(prompts):
        by_length.setdefault(len(ids), []).append(place)
    chunks = [
        places[i : i + batch] for places in by_length.values() for i in range(0, len(places), batch)
    ]
    for places in chunks:
        ids = torch.tensor([prompts[place] for place in places])
        processor = Rule(rule, tokenizer, [problems[p] for p in places], ids.shape[1], max_tokens)
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            logits_processor=LogitsProcessorList([processor]),
            pad_token_id=tokenizer.eos_token_id,
            **(how if temperature else {"do_sample": False}),
        )
        for place, row in zip(places, out[:, ids.shape[1] :].tolist()):
            end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
            texts[place] = tokenizer.decode(row[:end])
    return [texts[place] for place in range(len(problems))]


def results_of(path, args, task, problems, cache):
    """{(rule, temperature): right or not, by problem}."""
    from transformers import AutoModelForCausalLM

    import nano_r1 as r1

    path = runs.model_of(path)
    tokenizer = r1.load_tokenizer(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    stamp = os.path.getmtime(os.path.join(path, "model.safetensors"))
    results = {}
    pairs = [(rule, t) for rule in args.rules for t in args.temperatures]
    crc = zlib.crc32(json.dumps(problems).encode())
    for rule, t in tqdm(pairs, desc=path):

        def compute(rule=rule, t=t):
            texts = sample(model, tokenizer, task, problems, rule, t, args.max_tokens)
            return [task.reward(text, p).answer for text, p in zip(texts, problems)]

        results[rule, t] = cache.get([path, stamp, rule, t, args.max_tokens, crc], compute)
    return results


def table_of(results, args):
    mean = lambda rule, t: f"{sum(results[rule, t]) / len(results[rule, t]):.3f}"
    name = lambda t: f"T {t:g}" if t else "greedy"
    lines = [["pass@1", *map(name, args.temperatures)]]
    lines += [[rule, *(mean(rule, t) for t in args.temperatures)] for rule in args.rules]
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="model or run directories")
    add("--data", metavar="FILE", help="Countdown problems; left out: the built-in test problems")
    add("--problems", type=int, default=512, help="at most (default: %(default)s)")
    add("--numbers", type=int, help="256 problems with so many, made here; e.g. 5")
    add("--max_tokens", type=int, default=320, help="of a completion (default: %(default)s)")
    add("--rules", nargs="+", default=RULES, choices=RULES, help="left out: all of them")
    add("--temperatures", type=float, nargs="+", default=TEMPERATURES, help="0 is greedy")
    add("--out", default=os.path.join(runs.OUT, "rules.json"), help="where results are kept")
    args = parser.parse_args()

    from elicitation import Cache

    import nano_r1 as r1
    from plumbing.tasks import load_task

    tokenizer = r1.load_tokenizer(runs.model_of(args.models[0]))
    task = load_task("countdown", "short", tokenizer)
    if args.numbers:
        problems = runs.with_numbers(args.numbers)
    else:
        problems = task.load_problems("all" if args.data else "test", args.data, 0)
    problems = problems[: args.problems]
    cache = Cache(args.out)
    started = time.time()
    for path in args.models:
        results = results_of(path, args, task, problems, cache)
        best = max(results, key=lambda pair: sum(results[pair]))
        value = sum(results[best]) / len(problems)
        print(f"\n{path}: {len(problems)} problems, {args.max_tokens} tokens\n")
        print(table_of(results, args))
        print(f"\nThe best: {value:.3f}, {best[0]} at T {best[1]:g}.")
    print(f"\n{(time.time() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    runs.as_program(main)
