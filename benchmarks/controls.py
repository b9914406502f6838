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
import dataclasses
import json
import os
import random
import sys

import runs
from plumbing.settings import UserError

CONTROLS = ["random", "form", "length", "k1", "rft"]
TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
PAY = {  # the reward instead of the verdict
    "random": lambda e, rng, config: float(rng.randint(0, 1)),
    "form": lambda e, rng, config: e.reward.format,
    "length": lambda e, rng, config: e.length / config.max_tokens,
}


def paid_for(what):
    """`nano_r1.rollout`, but what is paid is not the answer."""
    import nano_r1
    from plumbing.processes import derive_seed

    def rollout(sampler, problems, task, config, step, draw=0):
        episodes = nano_r1.rollout(sampler, problems, task, config, step, draw)
        rng = random.Random(derive_seed(config.seed, step, what))
        for e in episodes:
            e.reward = e.reward._replace(total=PAY[what](e, rng, config))
        return episodes

    return rollout


def train_control(name, seed, out, flags):
    """The directory of this control's run, complete; one that was interrupted goes on."""
    import nano_r1
    import variants
    from plumbing.settings import read_config

    path = os.path.join(out, f"{name}-seed{seed}")
    if os.path.isdir(os.path.join(path, "model")):
        return path
    lesson = variants if name == "k1" else nano_r1
    if os.path.isdir(os.path.join(path, "checkpoints")):
        config = read_config(path, lesson.Config)
    else:
        more = {"kl_estimator": "k1", "kl_coef": 1.0} if name == "k1" else {}
        where = {"seed": seed, "out": out, "name": os.path.basename(path)}
        config = dataclasses.replace(runs.config_of(flags), **where)
        config = lesson.Config(**{**dataclasses.asdict(config), **more})
    if name == "k1":
        nothing = lambda rewards, config: rewards * 0
        return nano_r1.main(config, variants.rollout, nothing, variants.loss, variants.update)
    return nano_r1.main(config, rollout=paid_for(name))


def sampled_tokens(path):
    """How many tokens a run has sampled in training."""
    return sum(r["tokens/rollout"] for r in runs.records(path) if r["step"])


def right_completions(path, seed, tokens, flags):
    """Write the base's right completions among so many tokens to `path`, as rows of nano_sft.py."""
    import nano_r1
    from plumbing.files import write_text
    from plumbing.problems import load_data

    config = dataclasses.replace(runs.config_of(flags), seed=seed)
    sampler, _, task = runs.load_sampler(config)
    data = load_data(task, config)
    rows = []
    step = 0
    while tokens > 0:
        step += 1
        for e in nano_r1.rollout(sampler, data.train, task, config, step):
            tokens -= e.length
            if e.reward.answer == 1 and e.reward.format == 1:
                rows.append({"prompt": task.prompt_text(e.problem), "response": e.text})
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def train_rft(seed, out, like, flags, tuning):
    import nano_sft

    path = os.path.join(out, f"rft-seed{seed}")
    if os.path.isdir(os.path.join(path, "model")):
        return path
    file = os.path.join(out, f"rft-seed{seed}.jsonl")
    if not os.path.exists(file):
        right_completions(file, seed, sampled_tokens(like), flags)
    config = runs.config_of(flags)
    same = {name: getattr(config, name) for name in ("model", "task", "prompt", "max_tokens")}
    where = {"seed": seed, "out": out, "name": os.path.basename(path)}
    return nano_sft.main(nano_sft.Config(data=file, **same, **where, **tuning))


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
    tuning = {"steps": args.sft_steps, "learning_rate": args.sft_learning_rate}
    by_name = {"base": [config.model], "default": trained}
    for name in args.only:
        by_name[name] = [
            train_rft(s, args.out, like, args.flags, tuning)
            if name == "rft"
            else train_control(name, s, args.out, args.flags)
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
    try:
        main()
    except UserError as error:
        sys.exit(f"controls.py: {error}")
    from plumbing.processes import shutdown

    shutdown()
