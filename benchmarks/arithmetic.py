"""How honest is the thinking? The share of a run's written-out steps whose arithmetic is right, and of its `yes`.

    python benchmarks/arithmetic.py out/NAME            # for every tenth step of a run, from its episodes

RL can unlearn what it does not reward directly: with too high a learning rate this is what breaks first.
"""

import argparse
import collections
import json
import os
import re

STEP = re.compile(r"(?<!\d)(?=(\d+)([-+*/])(\d+)=(\d+))")  # overlapping: in 1+2=3*4=12 the 3 belongs to two steps
EXACT = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: b and a / b}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's directory")
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    print("| step | + | - | * | / | attempts | `yes` that is right |\n| --- | --- | --- | --- | --- | --- | --- |")
    names = sorted(os.listdir(os.path.join(args.run, "episodes")))
    for name in names[:1] + names[args.every - 1 :: args.every]:
        right, total, attempts, claims, true_claims = collections.Counter(), collections.Counter(), 0, 0, 0
        with open(os.path.join(args.run, "episodes", name)) as file:
            rows = [json.loads(line) for line in file]
        for row in rows:
            lines = [line for line in row["completion"].splitlines() if "=" in line and "<" not in line]
            attempts += len(lines)
            for a, operator, b, result in STEP.findall("\n".join(lines)):
                total[operator] += 1
                right[operator] += EXACT[operator](int(a), int(b)) == int(result)
            if lines and lines[-1].endswith("yes"):
                claims += 1
                true_claims += row["answer_reward"] == 1
        shares = " | ".join(f"{right[o] / total[o]:.3f}" if total[o] else "" for o in "+-*/")
        step = int(name.removeprefix("step_").removesuffix(".jsonl"))
        print(f"| {step} | {shares} | {attempts / len(rows):.1f} | {true_claims / max(1, claims):.2f} |")


if __name__ == "__main__":
    main()
