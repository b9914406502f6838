"""Something to beat: how many tokens does a program sample until it solves 60% of the problems?

    python -m benchmarks.race nano_r1.py
    python -m benchmarks.race variants.py --loss_type gspo --cliprange 3e-4 --cliprange_high 4e-4
    python -m benchmarks.race my_variant.py --steps 100

A program is a file beside nano_r1.py with a `Config` and a `main`, as in docs/own_loss.md. It runs
with the seeds 0, 1 and 2, and the last line is a row for a pull request. If the command is stopped,
the same command continues it.

The rules:
 1. Fixed are the base, the task, its verifier, its problems, its prompt and the temperature 1 (the
    flags of FIXED). The rest is free: rollout, advantage, loss, optimizer, sizes, number of steps.
 2. There is no other data and no other model, not even a trained copy of the base.
 3. All completions that are sampled for training count, also those that are not trained on.
 4. The training accuracy is their share with a correct answer: the mean over the last 8 steps.
 5. After each step with a training accuracy of 60% or more, and after the last step, one completion
    of each of the 512 held-out problems is sampled. They do not count, and decide only the end.
 6. The end is the first step after which 60% of these are correct. A seed without an end has
    infinitely many tokens.
 7. The result is the median of the three seeds. All seeds have the same settings.
 8. `nano_r1.sample_and_reward` counts completions. A program that calls the sampler itself, as
    VinePPO does, adds those tokens to its row.
 9. Choose your settings with other seeds than these.
10. A pull request has the program and the row, and the command makes the row again at its commit.
"""

import importlib
import math
import shlex
import sys
from statistics import mean, median

import nano_r1
from benchmarks import runs

REACH = 0.6  # the share of correct answers at the end
SMOOTHED = 8  # steps
FIXED = (
    "--task countdown --model models/nano-base --data None --prompt short --temperature 1 "
    "--eval_problems 512 --eval_every 1 --record_tokens_every 0"
)


def take_part():
    """Count what is sampled, evaluate only where the end may be, and end the run there."""
    sample = nano_r1.sample_and_reward
    evaluate = nano_r1.evaluate
    sampled = []  # the episodes of this step

    def counting(sampler, problems, task, config, label, n):
        episodes = sample(sampler, problems, task, config, label, n)
        if label != "evaluation":
            sampled.extend(episodes)
        return episodes

    def evaluate_if_due(sampler, problems, task, config, path, step):
        metrics = {}
        due = step in (0, config.steps)
        if step:
            metrics["race/tokens"] = sum(len(e.token_ids) for e in sampled)
            metrics["race/answer"] = mean(e.answer_reward for e in sampled)
            sampled.clear()
            if tokens_of(path) < math.inf:  # the step before was the end
                raise KeyboardInterrupt  # as Ctrl-C: `main` stops
            recent = [*runs.metrics(path)[1:step], metrics][-SMOOTHED:]
            due |= mean(row["race/answer"] for row in recent) >= REACH
        if due:
            metrics |= evaluate(sampler, problems, task, config, path, step)
        return metrics

    nano_r1.sample_and_reward = counting
    nano_r1.evaluate = evaluate_if_due


def tokens_of(path):
    """How many tokens a run sampled until its end; infinite without an end."""
    tokens = 0
    for row in runs.metrics(path)[1:]:
        tokens += row["race/tokens"]
        if row.get("eval/pass@1", 0) >= REACH:
            return tokens
    return math.inf


def main():
    command = shlex.join(sys.argv[1:])
    script, ending, flags = command.partition(".py")
    if not ending:
        raise SystemExit(__doc__)
    take_part()
    tokens = []
    for seed in range(3):
        path = runs.place("out/race", command, seed)
        config = runs.parse(script, f"{flags} {FIXED} --seed {seed}")
        try:
            runs.complete(importlib.import_module(script).main, config, path)
        except KeyboardInterrupt:  # at the end of the race, or by Ctrl-C
            if tokens_of(path) == math.inf:
                runs.stop_unless_complete(path)
        tokens.append(tokens_of(path))
    print(
        "| program | tokens: median (smallest to largest) | commit |\n| --- | --- | --- |\n"
        f"| `{command}` | {runs.spread(tokens, 0, median)} | {runs.commit()} |"
    )


if __name__ == "__main__":
    main()
