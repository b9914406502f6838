"""The sampling loop of plumbing/sampler.py: against others, on a busy host, against itself.

    python benchmarks/rollout.py                 # against transformers' `generate`, 32 x 8
    python benchmarks/rollout.py --against DIR   # another checkout: git worktree add DIR COMMIT
    python benchmarks/rollout.py --busy          # alone, and beside a program on one core

Two loops run in turn, A B B A, and the ratio is taken pair by pair: a shared machine's speed
drifts. `generate` draws other completions, so their lengths differ a little; tokens a second says
what each did with its time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ENVIRONMENT = dict(os.environ)  # as it was before plumbing/__init__.py added to it

import runs  # before nano_r1, which it makes importable
from nano_r1 import Config  # before torch, whose threads read what plumbing/__init__.py sets

# isort: split
import torch

from plumbing.processes import derive_seed


class Rollout:
    """The work: completions of the same prompts, round by round from other seeds."""

    def __init__(self, args):
        self.args = args
        self.sampler, self.model, task = runs.load_sampler(
            Config(model=args.model, rollout="transformers")
        )
        self.prompts = [
            task.prompt_ids(p) for p in task.load_problems("test", None, 0)[: args.prompts]
        ]

    def ours(self, round_):
        """(seconds, tokens, all token ids) of one round."""
        seeds = [derive_seed("benchmark", round_, place) for place in range(len(self.prompts))]
        limits = [self.args.max_tokens] * len(self.prompts)
        start = time.perf_counter()
        groups = self.sampler.generate(self.prompts, self.args.group_size, 1.0, limits, seeds)
        seconds = time.perf_counter() - start
        ids = [c.token_ids for group in groups for c in group]
        return seconds, sum(map(len, ids)), ids

    def generate(self, round_):
        """As many samples by `generate`; the tokens are those before each row's end."""
        width = max(map(len, self.prompts))
        stop_ids = self.sampler.stop_ids
        ids = torch.tensor([[self.sampler.pad_id] * (width - len(p)) + p for p in self.prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in self.prompts])
        torch.manual_seed(round_)
        start = time.perf_counter()
        with torch.no_grad():
            rows = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=self.args.group_size,
                max_new_tokens=self.args.max_tokens,
                eos_token_id=stop_ids,
                pad_token_id=self.sampler.pad_id,
            )
        seconds = time.perf_counter() - start
        tokens = 0
        for row in rows[:, width:].tolist():
            tokens += next((i + 1 for i, token in enumerate(row) if token in stop_ids), len(row))
        return seconds, tokens, None


def serve(args):
    """Another checkout's side: a round for each line of the input, its result as a line of JSON."""
    rollout = Rollout(args)
    for line in sys.stdin:
        print(json.dumps(rollout.ours(int(line))), flush=True)


def of_checkout(path, args):
    """A function of the round: `Rollout.ours` in its own process, with the code of `path`."""
    sizes = [
        f"--{name}={getattr(args, name)}"
        for name in ("model", "prompts", "group_size", "max_tokens")
    ]
    command = [
        sys.executable,
        "-P",
        os.path.abspath(__file__),
        "--serve",
        *sizes,
    ]  # -P: not the modules beside it
    path = os.path.abspath(path)
    env = {**ENVIRONMENT, "PYTHONPATH": os.path.join(path, "benchmarks")}
    process = subprocess.Popen(
        command, cwd=path, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def one_round(round_):
        process.stdin.write(f"{round_}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return one_round


def beside_a_busy_program(loop):
    """The same function of the round, while another process keeps one core busy."""

    def one_round(round_):
        with runs.busy_program():
            return loop(round_)

    return one_round


def compare(loops, rounds):
    """Run two loops in turn; print their tokens a second, and the second's share of the first's."""
    names = list(loops)
    ratios = []
    same = []
    print(f"{'round':>5} {names[0]:>22} {names[1]:>22}  ratio")
    for round_ in range(rounds + 1):
        order = names if round_ % 2 else names[::-1]
        found = {name: loops[name](round_) for name in order}
        if round_ == 0:
            continue  # warm-up
        speeds = [found[name][1] / found[name][0] for name in names]
        ratios.append(speeds[1] / speeds[0])
        same += [a == b for a, b in zip(*(found[name][2] or [] for name in names))]
        cells = [
            f"{found[name][0]:7.2f} s {speed:7.0f} tok/s" for name, speed in zip(names, speeds)
        ]
        print(f"{round_:>5} {cells[0]:>22} {cells[1]:>22} {ratios[-1]:6.2f}", flush=True)
    print(
        f"ratio of tokens a second: median {statistics.median(ratios):.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )
    if same:
        print(f"the same completion, token by token, in {sum(same)} of {len(same)} pairs")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="models/nano-base")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", metavar="DIR", help="another checkout")
    parser.add_argument("--busy", action="store_true", help="alone against beside a busy program")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    print(
        f"{args.prompts} prompts x {args.group_size} completions, at most {args.max_tokens} "
        f"tokens, {args.model}, "
        f"{torch.get_num_threads()} threads"
    )
    if args.against:
        here = of_checkout(args.against, args), of_checkout(runs.ROOT, args)
        loops = dict(zip((os.path.basename(os.path.abspath(args.against)), "here"), here))
    else:
        rollout = Rollout(args)
        loops = {"generate": rollout.generate, "nano_r1": rollout.ours}
        if args.busy:
            loops = {"alone": rollout.ours, "beside it": beside_a_busy_program(rollout.ours)}
    if args.against and args.busy:
        loops = {name: beside_a_busy_program(loop) for name, loop in loops.items()}
    compare(loops, args.rounds)


if __name__ == "__main__":
    main()
