"""What do runs without the verdict bring? The default Countdown command beside its controls.

    python benchmarks/controls.py --data FILE                  # three seeds; resumable
    python benchmarks/controls.py --data FILE --only random form --seeds 0

A gain is learning only where these do not reach it, with the same model, problems and steps:

    random    a coin decides the reward of each completion
    form      the reward for form alone, right or wrong
    length    the reward is the length, in shares of the limit
    k1        all advantages are 0; the KL's estimate k1 is the only loss (docs/algorithms.md)
    rft       rejection sampling and supervised fine-tuning: the base samples as many tokens as the
              default run did, what is right and in good form is kept, nano_sft.py learns from it

Of each its pass@1 on FILE's problems at every temperature; intervals are bootstrapped over the
problems (mean over the seeds of each), the difference is paired by problem. What decoding rules
bring out of the base: benchmarks/rules.py.
"""

import argparse
import os
import sys

import runs

sys.path.append(os.path.join(runs.ROOT, "labs"))

from coins import pay_form
from lab import Run, Tuning
from length_alone import K1, no_reward, pay_length
from random_rewards import flip_coins
from select_or_reinforce import selected

CONTROLS = ["random", "form", "length", "k1", "rft"]
TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
PAYS = {"random": flip_coins, "form": pay_form, "length": pay_length}  # instead of the verdict


def control(name, flags, like, tuning):
    """The `Run` or `Tuning` of a control; `like` is the default's run, `tuning` flags of rft."""
    if name == "k1":
        return Run(f"{flags} {K1}", advantages=no_reward)
    if name != "rft":
        return Run(flags, rollout=PAYS[name])
    tokens = sum(r["tokens/rollout"] for r in runs.records(like) if r["step"])
    config = runs.config_of(flags)
    same = [f"--{n} {getattr(config, n)}" for n in ("model", "task", "prompt", "max_tokens")]
    return Tuning(f"{' '.join(same)} {tuning}", selected(flags, tokens))


def train(name, seed, out, *settings):
    """The directory of a control's complete run."""
    path = os.path.join(out, f"{name}-seed{seed}")
    control(name, *settings).train(path, seed)
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", metavar="FILE", help="Countdown problems; left out: the built-in test problems")
    add("--problems", type=int, default=1024, help="at most (default: %(default)s)")
    add("--only", nargs="+", choices=CONTROLS, default=CONTROLS, help="these controls")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--flags", default="--task countdown", help="of the command (default: %(default)s)")
    add("--sft_steps", type=int, default=300, help="of rft (default: %(default)s)")
    add("--sft_learning_rate", type=float, default=3e-4, help="of rft (default: %(default)s)")
    add("--temperatures", type=float, nargs="+", default=TEMPERATURES, help="0 is greedy")
    add("--out", default=os.path.join(runs.OUT, "controls"), help="where the runs are kept")
    args = parser.parse_args()

    from elicitation import Cache, Model, mean_interval, name_of, with_interval

    config = runs.config_of(args.flags)
    trained = [
        runs.train(os.path.join(args.out, f"default-seed{s}"), args.flags, s) for s in args.seeds
    ]
    tuning = f"--steps {args.sft_steps} --learning_rate {args.sft_learning_rate}"
    by_name = {"base": [config.model], "default": trained}
    for name in args.only:
        by_name[name] = [
            train(name, s, args.out, args.flags, like, tuning)
            for s, like in zip(args.seeds, trained)
        ]
    sampler, _, task = runs.load_sampler(config)
    problems = task.load_problems("all" if args.data else "test", args.data, 0)
    key = runs.problem_key("countdown")
    seen = set().union(*(runs.problems_trained_on(path, key) for path in trained))
    problems = [p for p in problems if not args.data or key(p) not in seen][: args.problems]
    cache = Cache(os.path.join(args.out, "results.json"))
    right = {}  # name -> temperature -> of each seed, of each problem: right or not
    for name, paths in by_name.items():
        models = [Model(runs.model_of(p), config, sampler, task, cache) for p in paths]
        right[name] = {t: [m.right(problems, t) for m in models] for t in args.temperatures}
    lines = [["pass@1", *map(name_of, args.temperatures), "best", "default's best less this"]]
    mean = lambda name, t: [sum(of) / len(of) for of in zip(*right[name][t])]  # by problem
    best_t = {n: max(args.temperatures, key=lambda t: sum(mean(n, t))) for n in right}
    for name in right:
        mine = mean(name, best_t[name])
        pairs = [a - b for a, b in zip(mean("default", best_t["default"]), mine)]
        cells = [f"{sum(mean(name, t)) / len(problems):.3f}" for t in args.temperatures]
        shown = [with_interval(*map(float, mean_interval(v))) for v in (mine, pairs)]
        lines.append([name, *cells, *shown])
    print(f"\n{len(problems)} problems, seeds {args.seeds}; [95% over problems]\n")
    print(runs.table(lines))


if __name__ == "__main__":
    runs.as_program(main)
