"""How well does a model go on with a search that has begun? What RL can make of it at best.

    python benchmarks/search.py                                # models/nano-base at temperature 1
    python benchmarks/search.py models/nano-base out/A out/B   # and how much more A and B find

Behind the prompt of a Countdown problem stand the first two lines of a systematic author
(make_base.py of models/nano-base), both failures; the model goes on. The problems are the built-in
test ones, less those that such an author solves in two lines. Printed: how many are found, beside
that author's own share, and how the attempts go wrong as the search gets longer.
"""

import argparse
import collections
import os
import random
import sys

from arithmetic import attempts_of
from elicitation import mean_interval

import runs
from plumbing.arithmetic import written_sums

BAND = 3  # attempts that are counted together


def judge(attempt, nums):
    """(value, whether the arithmetic is right, whether it uses each number once) of an attempt."""
    sums = list(written_sums(attempt))
    if not sums:
        return None, False, False
    operands = collections.Counter(number for s in sums for number in (s.left, s.right))
    operands.subtract(s.result for s in sums[:-1])  # what was computed on the way
    complete = +operands == collections.Counter(nums) and min(operands.values()) >= 0
    return sums[-1].result, all(s.correct for s in sums), complete


def begin(problems):
    """[(problem, two failed lines of a systematic author, whether that author solves it)]."""
    sys.path.insert(0, os.path.join(runs.ROOT, "models", "nano-base"))
    from make_base import MAX_ATTEMPTS, systematic_attempts

    begun = []
    rng = random.Random(0)
    for problem in problems:
        order = rng.sample(problem["nums"], len(problem["nums"]))
        attempts = systematic_attempts(order, problem["target"])
        attempts = [(line, value == problem["target"]) for line, value, _ in attempts]
        if not any(solved for _, solved in attempts[:2]):
            lines = "".join(f"\n{line} no" for line, _ in attempts[:2])
            begun.append(
                (problem, f"{lines}\n", any(solved for _, solved in attempts[:MAX_ATTEMPTS]))
            )
    return begun


def go_on(model, temperature):
    """Print how a model goes on with the searches; returns for each whether it found a solution."""
    import nano_r1 as r1
    from countdown_rewards import subgroups

    config = r1.Config(model=runs.model_of(model), rollout="transformers")
    sampler, _, task = runs.load_sampler(config)
    encode = task.tokenizer.encode
    begun = begin(task.load_problems("test", None, 0))
    prompts = [task.prompt_ids(problem) + encode(lines) for problem, lines, _ in begun]
    limits = [config.max_tokens - len(encode(lines)) for _, lines, _ in begun]
    sampled = sampler.generate(prompts, 1, temperature, limits, list(range(len(begun))))

    groups = collections.defaultdict(collections.Counter)
    bands = collections.defaultdict(collections.Counter)
    found_by_problem = []
    for (problem, lines, author), [completion] in zip(begun, sampled):
        text = lines + task.text(completion.token_ids)
        found = count_attempts(attempts_of(text), problem, bands)
        found_by_problem.append(found)
        facts = {
            "problems": 1,
            "author": author,
            "found": found,
            "solved": task.reward(text, problem).answer == 1,
        }
        facts["cut off"] = completion.finish_reason == "length"
        for group in ("all", *subgroups(problem)):
            groups[group].update(facts)
    print(f"\n{model}\n\n{table_of_groups(groups)}\n")
    print(table_of_bands(bands))
    return found_by_problem


def count_attempts(attempts, problem, bands):
    """Count what each attempt is, by where it stands; returns whether one is a solution."""
    seen = set()
    found = False
    for number, attempt in enumerate(attempts):
        value, right, complete = judge(attempt, problem["nums"])
        found |= right and complete and value == problem["target"]
        line = attempt.split()[0]
        facts = {
            "attempts": 1,
            "repeats": line in seen,
            "wrong": not right,
            "other numbers": not complete,
        }
        bands[number // BAND].update(facts)
        seen.add(line)
    return found


def share(counts, name, whole):
    return f"{counts[name] / counts[whole]:.3f}"


def table_of_groups(groups):
    columns = ("author", "found", "solved", "cut off")
    lines = [
        ["problems", "", "the author finds", "the model finds", "and answers rightly", "cut off"]
    ]
    lines += [
        [g, c["problems"], *(share(c, name, "problems") for name in columns)]
        for g, c in sorted(groups.items())
    ]
    return runs.table(lines)


def table_of_bands(bands):
    columns = ("repeats", "wrong", "other numbers")
    lines = [
        [
            "attempts",
            "",
            "stood there before",
            "wrong arithmetic",
            "other numbers than the problem's",
        ]
    ]
    for band, counts in sorted(bands.items()):
        label = f"{band * BAND + 1} to {band * BAND + BAND}"
        lines.append(
            [label, counts["attempts"], *(share(counts, name, "attempts") for name in columns)]
        )
    return runs.table(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="runs' or models' directories")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="0: greedy (default: %(default)s)"
    )
    args = parser.parse_args()

    for model in args.models:
        if not os.path.isdir(model):
            parser.error(f"no such directory: {model}")
    found = [go_on(model, args.temperature) for model in args.models or ["models/nano-base"]]
    if len(found) > 1:
        import numpy as np

        first, *others = np.array(found, dtype=float)  # (problems,) each
        mean, low, high = mean_interval(np.mean(others, axis=0) - first)
        by_others = runs.spread([other.mean() for other in others])
        print(
            f"\nFound by the first {first.mean():.3f}, by the others {by_others}; the difference "
            f"{mean:+.3f} "
            f"[{low:+.3f}, {high:+.3f}], 95% over problems."
        )


if __name__ == "__main__":
    runs.as_program(main)
