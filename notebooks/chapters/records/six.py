"""Chapter 6's record: six rewards for one base, five of them wrong, and a repair.

    python -m notebooks.chapters.records.six    # half an hour on two cores

A run that is complete is not repeated. The record has letters instead of the rewards' names; its
completions are two groups of the last step with seed 1.
"""

import collections
from pathlib import Path

import nano_r1
from benchmarks import runs
from benchmarks.controls import format_reward, random_reward, rewarded, value_of
from labs.lab import COUNTDOWN
from notebooks.chapters.records import lines_rewards

FLAGS = f"{COUNTDOWN} --eval_every 5 --eval_problems 192"
FLIPPED = 0.2  # the share of answers that the noisy verifier flips
KEPT = {  # of metrics.jsonl, by the names in the record
    "reward": "reward",
    "reward/answer": "correct",
    "reward/format": "format",
    "completions/mean_length": "length",
    "frac_reward_zero_std": "no signal",
    "entropy": "entropy",
    "eval/pass@1": "pass@1",
}


def lines(e, config, rng):
    return lines_rewards.reward(e.text, e.problem).total


def lines_if_correct(e, config, rng):
    return lines(e, config, rng) if e.reward.answer else e.reward.total


def noisy(e, config, rng):
    flipped = rng.random() < FLIPPED
    return e.reward.format + (1 - e.reward.answer if flipped else e.reward.answer)


def majority(sampler, problems, task, config, step):
    """`nano_r1.rollout`; the most frequent answer of a group counts as correct (the first, if
    equally many completions give another)."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for start in range(0, len(episodes), config.group_size):
        group = episodes[start : start + config.group_size]
        votes = [value_of(e.text, e.problem, task.prompt) for e in group]
        counts = collections.Counter(vote for vote in votes if vote is not None)
        winner = max(counts, key=counts.get, default="none")
        for e, vote in zip(group, votes):
            e.reward = e.reward._replace(total=e.reward.format + (vote == winner))
    return episodes


ROLLOUTS = {
    "A": rewarded(noisy),
    "B": rewarded(lines),
    "C": majority,
    "D": random_reward,
    "E": nano_r1.rollout,
    "F": format_reward,
    "G": rewarded(lines_if_correct),
}


def main():
    curves = []
    completions = []
    for letter, rollout in ROLLOUTS.items():
        for seed in (0, 1):
            path = f"out/six/{letter}-seed{seed}"
            config = runs.parse("nano_r1", f"{FLAGS} --seed {seed}")
            runs.complete(nano_r1.main, config, path, rollout=rollout)
            for metrics in runs.metrics(path):
                row = {"run": letter, "seed": seed, "step": metrics["step"]}
                for name, shown in KEPT.items():
                    if name in metrics:
                        row[shown] = round(metrics[name], 4)
                curves.append(row)
        last = nano_r1.read(f"out/six/{letter}-seed1/episodes/step_{config.steps:06d}.jsonl")
        for row in last[: 2 * config.group_size] if letter != "G" else []:
            names = "problem completion reward format_reward answer_reward why".split()
            completions.append({"run": letter} | {name: row[name] for name in names})
    folder = Path(__file__).parent / "six"
    nano_r1.write(f"{folder}/curves.jsonl", curves)
    nano_r1.write(f"{folder}/completions.jsonl", completions)


if __name__ == "__main__":
    main()
