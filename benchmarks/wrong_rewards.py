"""Six rewards for one base and one task, five of them wrong, and a repair: chapter 6's record.

    OMP_NUM_THREADS=1 python benchmarks/wrong_rewards.py --seeds 0 1   # 2 to 5 minutes a run
    python benchmarks/wrong_rewards.py --seeds 0 1 --complete          # the record alone

20 steps of GRPO on Countdown (the flags are FLAGS below) for each reward and seed, in
out/wrong_rewards/. A run that is complete is skipped, one that was stopped goes on. Then the
record is written to notebooks/chapters/records/six/: curves.jsonl, one object a step, and
completions.jsonl, two groups of the last step with seed 0. The chapter asks which run had which
reward, so the record has letters instead of names: they are in LETTERS. Rows of runs that are not
in out/ stay as they are in the record.
"""

import argparse
import collections
import json
import os
import random
import sys

import runs

RECORDS = os.path.join(runs.ROOT, "notebooks", "chapters", "records")
sys.path += [os.path.join(runs.ROOT, "labs"), RECORDS]

import lines_rewards
from coins import pay_form
from lab import COUNTDOWN, Run
from random_rewards import flip_coins

import nano_r1
from plumbing.files import read_rows, write_text
from plumbing.processes import derive_seed

FLAGS = f"{COUNTDOWN} --eval_every 5 --eval_problems 192"
OUT = os.path.join(runs.OUT, "wrong_rewards")
RECORD = os.path.join(RECORDS, "six")
KEPT = {  # of metrics.jsonl, under the names of the record
    "reward": "paid",
    "reward/answer": "right",
    "reward/format": "format",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut off",
    "frac_reward_zero_std": "no signal",
    "entropy": "entropy",
    "eval/pass@1": "pass@1",
    "eval/format": "eval format",
}
FLIPPED = 0.2  # share of verdicts that the noisy verifier turns round


# ---- The rewards, each as a rollout. `e.reward.answer` stays the true verdict, for the record.


def pay_lines(sampler, problems, task, config, step):
    """`nano_r1.rollout`, with a bonus of 1 for each line that holds a sum (`lines_rewards.py`)."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for e in episodes:
        e.reward = lines_rewards.reward(e.text, e.problem)
    return episodes


def pay_lines_of_right(sampler, problems, task, config, step):
    """`pay_lines` repaired: the bonus for a right answer alone."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for e in episodes:
        if e.reward.answer == 1:
            e.reward = lines_rewards.reward(e.text, e.problem)
    return episodes


def flip_verdicts(sampler, problems, task, config, step):
    """`nano_r1.rollout`, where each verdict is turned round with a chance of FLIPPED."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    rng = random.Random(derive_seed(config.seed, step, "flips"))
    for e in episodes:
        flipped = rng.random() < FLIPPED
        verdict = 1 - e.reward.answer if flipped else e.reward.answer
        e.reward = e.reward._replace(total=e.reward.format + verdict)
    return episodes


def pay_majority(sampler, problems, task, config, step):
    """`nano_r1.rollout`, where the answer that most of a group give is taken for right.

    TTRL, arXiv:2504.16084. In Countdown a completion votes for the value of its expression, if
    that is legal; the target is not looked at. Of equally many votes those that came first win.
    """
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for start in range(0, len(episodes), config.group_size):
        group = episodes[start : start + config.group_size]
        votes = task.votes([e.text for e in group], group[0].problem)
        counts = collections.Counter(vote for vote in votes if vote is not None)
        winner = counts.most_common(1)[0][0] if counts else None
        for e, vote in zip(group, votes):
            agrees = float(vote is not None and vote == winner)
            e.reward = e.reward._replace(total=e.reward.format + agrees)
    return episodes


REWARDS = {
    "right": nano_r1.rollout,
    "form only": pay_form,
    "lines": pay_lines,
    "noisy verifier": flip_verdicts,
    "coin": flip_coins,
    "majority": pay_majority,
}
REPAIRED = {"lines of right ones": pay_lines_of_right}
LETTERS = {
    "A": "noisy verifier",
    "B": "lines",
    "C": "majority",
    "D": "coin",
    "E": "right",
    "F": "form only",
    "G": "lines of right ones",  # shown after the six
}


# ---- Runs and record


def path_of(name, seed, out):
    return os.path.join(out, f"{name.replace(' ', '_')}-seed{seed}")


def is_complete(path):
    return os.path.isdir(os.path.join(path, "model"))


def curves(letter, seed, path):
    """The rows of curves.jsonl that one run makes."""
    rows = []
    for record in runs.records(path):
        row = {"run": letter, "seed": seed, "step": record["step"]}
        row |= {new: round(record[name], 4) for name, new in KEPT.items() if name in record}
        rows.append(row)
    return rows


def completions(letter, path, groups):
    """The rows of completions.jsonl: the first groups of the last step."""
    config = runs.config_in(path)
    episodes = runs.episodes(path)[config["steps"]]
    kept = ("problem", "completion", "reward", "format_reward", "answer_reward", "why", "length")
    kept += ("finish_reason",)
    chosen = episodes[: groups * config["group_size"]]
    return [{"run": letter, **{name: e[name] for name in kept}} for e in chosen]


def recorded(file):
    """The rows of a file of the record, by (letter, seed)."""
    rows = collections.defaultdict(list)
    for row in read_rows(file):
        rows[row["run"], row.get("seed", 0)].append(row)
    return rows


def write_record(seeds, out, directory):
    """The two files, with the runs in `out` that are complete."""
    steps = os.path.join(directory, "curves.jsonl")
    groups = os.path.join(directory, "completions.jsonl")
    of_steps = recorded(steps)
    of_groups = recorded(groups)
    for letter, name in LETTERS.items():
        for seed in seeds:
            path = path_of(name, seed, out)
            if is_complete(path):
                of_steps[letter, seed] = curves(letter, seed, path)
                if seed == 0:
                    of_groups[letter, seed] = completions(letter, path, groups=2)
    for file, rows in ((steps, of_steps), (groups, of_groups)):
        lines = [json.dumps(row, ensure_ascii=False) for key in sorted(rows) for row in rows[key]]
        write_text(file, "".join(f"{line}\n" for line in lines))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--letters", default="".join(LETTERS), help="the runs to complete, e.g. BC")
    add("--out", default=OUT, help="where the runs are kept")
    add("--record", default=RECORD, help="where the record is written")
    add("--more", default="", metavar="FLAGS", help="for every run, e.g. '--steps 2': a try")
    add("--complete", action="store_true", help="start no run; write the record of complete ones")
    args = parser.parse_args()
    if args.more and RECORD == args.record:
        parser.error("--more is a try: it needs a --record and an --out of its own")
    for seed in args.seeds:
        for letter in "" if args.complete else args.letters:
            name = LETTERS[letter]
            run = Run(f"{FLAGS} {args.more}", rollout=(REWARDS | REPAIRED)[name])
            run.train(path_of(name, seed, args.out), seed)
    write_record(args.seeds, args.out, args.record)


if __name__ == "__main__":
    main()
