"""How honest is the thinking? The share of a run's written sums that are right, and of its `yes`.

    python benchmarks/arithmetic.py out/NAME     # for every tenth step of a run, from its episodes

RL can unlearn what it does not reward directly: with too high a learning rate this is what breaks
first. An attempt is a line of the thinking with an `=`; benchmarks/elicitation.py counts the same.
"""

import argparse
import collections

import runs
from plumbing.arithmetic import written_sums


def attempts_of(completion):
    """The lines with an `=` of a completion's thinking (of all of it where no tag ends that)."""
    thinking = completion.partition("</think>")[0].partition("<answer>")[0]
    return [line.strip() for line in thinking.splitlines() if "=" in line]


def count_steps(attempts, right, total):
    """Add the steps `a + b = c` of the attempts to two Counters by operation: right, and all."""
    for s in written_sums("\n".join(attempts)):
        total[s.symbol] += 1
        right[s.symbol] += s.correct


def says_yes(attempt):
    """Whether the attempt ends with the verdict that it is a solution."""
    return attempt.endswith("yes")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run's directory")
    parser.add_argument("--every", type=int, default=10, help="steps from one row to the next")
    args = parser.parse_args()
    lines = [["step", *"+-*/", "attempts", "`yes` that is right"]]
    episodes = runs.episodes(args.run)
    steps = list(episodes)
    for step in dict.fromkeys(steps[:1] + steps[args.every - 1 :: args.every]):
        right = collections.Counter()
        total = collections.Counter()
        count = 0
        claims = 0
        true_claims = 0
        for row in episodes[step]:
            attempts = attempts_of(row["completion"])
            count += len(attempts)
            count_steps(attempts, right, total)
            if attempts and says_yes(attempts[-1]):
                claims += 1
                true_claims += row["answer_reward"] == 1
        shares = [f"{right[o] / total[o]:.3f}" if total[o] else "" for o in "+-*/"]
        attempts = f"{count / len(episodes[step]):.1f}"
        lines.append([step, *shares, attempts, f"{true_claims / max(1, claims):.2f}"])
    print(runs.table(lines))


if __name__ == "__main__":
    main()
