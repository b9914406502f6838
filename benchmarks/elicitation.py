"""What has training brought that a lower temperature or more tries would not bring out of the base?

    python benchmarks/elicitation.py --data FILE --write docs   # Countdown, FILE's, seeds 0 1 2
    python benchmarks/elicitation.py --task gsm8k --write docs  # the built-in word problems
    python benchmarks/elicitation.py out/A out/B --base Qwen/Qwen2.5-1.5B --prompt chat --data FILE

Three questions about a base model and the runs trained from it, one for each seed. Without RUNs
they are the default command's with --seeds, trained first where they are missing (as by
benchmarks/learning.py). LoRA runs must have been merged (--lora_merge).

1. pass@1 over temperatures, 0 being greedy: does a temperature give the base what training gave the
   policy?
2. pass@k, unbiased, for k = 1 to --samples (Yue et al. 2025, arXiv:2504.13837): from how many tries
   on does the base solve as many problems? And which problems does only one of the two solve in
   that many tries?
3. What has changed in the text, at temperature 1.

Interrupt it at will: what has been sampled is kept in --out, by model, temperature and problems,
and not sampled again. Some hours on 2 cores with the embedded model and three seeds; --samples 16
--problems 32 is a try of minutes. A problem that a run met in training is left out. --write
DIRECTORY: elicitation_TASK.md there, figures in elicitation/.
"""

import argparse
import collections
import functools
import json
import os
import shlex
import statistics
import time
import zlib

from arithmetic import attempts_of, count_steps, says_yes
from learning import train
from tqdm import tqdm

import runs
from plumbing.files import write_text
from runs import spread

COUNTS = 2  # of `behaviour`, part of the key of what was kept: raise it where the counts change
TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
CHUNK = 8  # problems whose samples are kept together: what an interruption loses at most


class Cache:
    """Results by key, in one json file that is always whole."""

    def __init__(self, path):
        self.path = path
        self.values = json.loads(runs.page_of(path) or "{}")

    def get(self, key, compute):
        key = json.dumps(key)
        if key not in self.values:
            self.values[key] = compute()
            write_text(self.path, json.dumps(self.values))
        return self.values[key]


class Model:
    """A model to sample from, after `sampler.sync_weights`, when a result is not there yet."""

    def __init__(self, path, config, sampler, task, cache):
        from plumbing.checkpoints import checksums
        from plumbing.models import find

        self.path = path
        self.config = config
        self.sampler = sampler
        self.task = task
        self.cache = cache
        local = find(path)
        weights = checksums(local) if os.path.isdir(local) else {}
        sums = [crc for name, crc in weights.items() if name.endswith(".safetensors")]
        self.key = [path, sorted(sums)]
        self.key += [config.task, config.prompt, config.max_tokens, config.dtype, config.seed]

    @property
    def ready(self):
        """The sampler with this model's weights, whichever model's it has now."""
        import nano_r1 as r1

        if getattr(self.sampler, "weights_of", None) != self.path:
            config = r1.Config(model=self.path, dtype=self.config.dtype)
            self.sampler.sync_weights(r1.load_policy(config, None, r1.init_distributed()))
            self.sampler.weights_of = self.path
        return self.sampler

    def cached(self, what, problems, compute):
        crc = zlib.crc32(json.dumps(problems).encode())
        return self.cache.get([*self.key, *what, crc], compute)

    def pass_at_1(self, problems, temperature):
        """`evaluate`'s metrics of one completion of each problem, and their `behaviour`."""
        from nano_r1 import evaluate

        def compute():
            metrics, episodes = evaluate(
                self.ready, problems, self.task, self.config, 1, temperature
            )
            return {**metrics, "behaviour": behaviour(episodes)}

        return self.cached(["pass@1", temperature, COUNTS], problems, compute)

    def right(self, problems, temperature):
        """1.0 or 0.0 for one completion of each problem."""
        from nano_r1 import sample_and_reward

        def compute():
            episodes = sample_and_reward(
                self.ready, problems, self.task, self.config, "right", 1, temperature
            )
            return [e.reward.answer for e in episodes]

        return self.cached(["right", temperature], problems, compute)

    def correct(self, problems, samples):
        """How many of so many completions are right at temperature 1, for each problem."""
        from nano_r1 import sample_and_reward

        def compute(first, part):
            episodes = sample_and_reward(
                self.ready, part, self.task, self.config, f"pass@k {first}", samples, 1.0
            )
            right = [e.reward.answer == 1 for e in episodes]
            return [sum(right[i : i + samples]) for i in range(0, len(right), samples)]

        counts = []
        starts = range(0, len(problems), CHUNK)
        for first in tqdm(starts, desc=f"{self.path}, {samples} tries of {CHUNK} problems"):
            part = problems[first : first + CHUNK]
            counts += self.cached(
                ["pass@k", samples, first], part, functools.partial(compute, first, part)
            )
        return counts


def behaviour(episodes):
    """What the completions do, counted in their text, named as in `BEHAVIOUR`; None: not there."""
    right = collections.Counter()
    total = collections.Counter()
    c = collections.Counter()
    with_target = (
        bool(episodes) and "target" in episodes[0].problem
    )  # Countdown: one sees if an attempt is right
    for e in episodes:
        lines = attempts_of(e.text)
        cut_off = e.completion.finish_reason == "length"
        repeats = [line in lines[:i] for i, line in enumerate(lines)]
        c.update(
            {
                "attempts": len(lines),
                "repeats": sum(repeats),
                "cut off": cut_off,
                "length": e.length,
            }
        )
        c.update({"4 to 6": len(lines[3:6]), "repeats 4 to 6": sum(repeats[3:6])})
        c["with * or /"] += sum("*" in line or "/" in line for line in lines)
        count_steps(lines, right, total)
        if (
            with_target
            and not cut_off
            and not any(is_solution(line, e.problem["target"]) for line in lines)
        ):
            c["gives up" if len(lines) <= 2 else "in vain"] += 1
    share = lambda part, whole: part / whole if whole else None
    return {
        "attempts": share(c["attempts"], len(episodes)),
        "gives up": share(c["gives up"], len(episodes)) if with_target else None,
        "in vain": share(c["in vain"], len(episodes)) if with_target else None,
        "cut off": share(c["cut off"], len(episodes)),
        "length": share(c["length"], len(episodes)),
        "repeats": share(c["repeats"], c["attempts"]),
        "repeats 4 to 6": share(c["repeats 4 to 6"], c["4 to 6"]),
        "with * or /": share(c["with * or /"], c["attempts"]),
        **{f"right {o}": share(right[o], total[o]) for o in "+-*/"},
    }


BEHAVIOUR = {
    "attempts": "attempts a completion (lines of the thinking with `=`)",
    "gives up": "gives up: ends after at most two attempts, "
    "of which none reaches the target or says yes",
    "in vain": "searches in vain: ends so after more than two",
    "cut off": "cut off at the limit",
    "length": "length, tokens",
    "repeats": "share of attempts that stood there before",
    "repeats 4 to 6": "the same, of the fourth to sixth of a completion",
    "with * or /": "share of attempts with `*` or `/`",
    **{f"right {o}": f"right arithmetic, `{o}`" for o in "+-*/"},
}


def is_solution(attempt, target):
    """Whether the attempt ends at the target, by its own arithmetic, or claims to."""
    result = attempt.rpartition("=")[2].split()
    return says_yes(attempt) or bool(result) and result[0].rstrip(".,") == str(target)


# ---- pass@k


def pass_curve(counts, samples):
    """pass@k of each problem for k = 1 to `samples`: an array (problems, samples)."""
    import numpy as np

    from plumbing.evaluation import pass_at_k

    row = functools.cache(
        lambda correct: [pass_at_k(samples, correct, k) for k in range(1, samples + 1)]
    )
    return np.array([row(correct) for correct in counts])


def mean_interval(values):
    """(mean, low, high): 95% by the percentile bootstrap over problems, the first dimension."""
    import numpy as np

    n = len(values)
    values = np.asarray(values, dtype=float)
    drawn = (
        np.random.default_rng(0).multinomial(n, [1 / n] * n, size=10_000) / n
    )  # how often each problem was drawn
    return values.mean(axis=0), *np.percentile(drawn @ values, [2.5, 97.5], axis=0)


def crossing(difference):
    """The smallest k = 1, 2, ... at which trained minus base is not above 0; None without one."""
    return next((k for k, d in enumerate(difference, start=1) if d <= 0), None)


def only_one_solves(base, trained):
    """(problems that only the trained model has solved, only the base), from counts of tries."""
    pairs = list(zip(base, trained))
    return sum(b == 0 < t for b, t in pairs), sum(t == 0 < b for b, t in pairs)


def ks_shown(samples):
    return sorted({2**i for i in range(samples.bit_length())} | {samples})


# ---- The report


def name_of(temperature):
    return f"T {temperature:g}" if temperature else "greedy"


def with_interval(mean, low, high):
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


OTHER_METRICS = {
    "eval/lenient": "right anywhere in the text",
    "eval/format": "in good form",
    "eval/clipped_ratio": "cut off",
    "eval/mean_length": "length, tokens",
}


def temperature_table(base, trained):
    """`base`: {temperature: metrics}; `trained`: a list of them, one for each seed."""
    lines = [["pass@1", "problems", *map(name_of, base)]]
    first = next(iter(base.values()))
    for name in sorted(
        (n for n in first if n.endswith("/pass@1")), key=lambda n: (n.count("/"), n)
    ):
        group = name.removeprefix("eval/").removesuffix("pass@1").strip("/") or "all"
        problems = first[f"{name.removesuffix('pass@1')}problems"]
        cells = [with_interval(m[name], m[f"{name}_low"], m[f"{name}_high"]) for m in base.values()]
        lines.append([f"base, {group}", problems, *cells])
        lines.append(
            [
                f"trained, {group}",
                problems,
                *(spread([run[t][name] for run in trained]) for t in base),
            ]
        )
    for name, label in OTHER_METRICS.items():
        digits = 0 if label == "length, tokens" else 3
        lines.append([f"base, {label}", "", *(spread([m[name]], digits) for m in base.values())])
        lines.append(
            [
                f"trained, {label}",
                "",
                *(spread([run[t][name] for run in trained], digits) for t in base),
            ]
        )
    best = lambda m: max((values["eval/pass@1"], t) for t, values in m.items())
    (base_best, base_at), trained_best = best(base), [best(run) for run in trained]
    at = ", ".join(sorted({name_of(t) for _, t in trained_best}))
    sentence = (
        f"Best temperature against best temperature: base {base_best:.3f} ({name_of(base_at)}), "
        "trained "
        f"{spread([value for value, _ in trained_best])} ({at})."
    )
    return f"{runs.table(lines)}\n\n{sentence}"


def pass_at_k_table(base_counts, trained_counts, samples):
    """The table, and sentences; counts of right tries of each problem, of the trained by seed."""
    import numpy as np

    from plumbing.evaluation import confidence_interval

    base = pass_curve(base_counts, samples)  # (problems, k)
    seeds = np.array(
        [pass_curve(counts, samples) for counts in trained_counts]
    )  # (seeds, problems, k)
    difference, low, high = mean_interval(seeds.mean(axis=0) - base)
    lines = [["k", "base", "trained", "seeds", "trained - base, paired"]]
    for k in ks_shown(samples):
        mine = base[:, k - 1].tolist()
        theirs = seeds.mean(axis=0)[:, k - 1].tolist()
        row = [with_interval(statistics.mean(v), *confidence_interval(v)) for v in (mine, theirs)]
        each = [f"{value:.3f}" for value in seeds.mean(axis=1)[:, k - 1]]
        gain = runs.interval(difference[k - 1], low[k - 1], high[k - 1])
        lines.append([k, *row, ", ".join(each), gain])
    k = crossing(difference)
    if k is None:
        text = [f"The curves do not cross up to k = {samples}."]
    else:
        text = [
            "The trained model is not ahead even at k = 1."
            if k == 1
            else f"The curves cross at k = {k}."
        ]
    pairs = [only_one_solves(base_counts, counts) for counts in trained_counts]
    gained, lost = ([pair[i] for pair in pairs] for i in (0, 1))
    solved = [sum(correct > 0 for correct in counts) for counts in (base_counts, *trained_counts)]
    text.append(
        f"Of {len(base_counts)} problems, solved at least once in {samples} tries: by the base "
        f"{solved[0]}, by the "
        f"trained model {spread(solved[1:], 0)}; only by the trained model {spread(gained, 0)}, "
        "only by the base "
        f"{spread(lost, 0)}."
    )
    return f"{runs.table(lines)}\n\n{' '.join(text)}"


def rarity_table(base_counts, trained_counts, samples):
    """What became of problems that the base solves never, seldom, often."""
    lines = [
        [
            "the base is right in",
            "problems",
            "trained: right in",
            "of them never solved by the trained",
        ]
    ]
    for low, high in zip((-1, 0, 0.01, 0.03, 0.1, 0.25), (0, 0.01, 0.03, 0.1, 0.25, 1)):
        places = [
            i for i, count in enumerate(base_counts) if low * samples < count <= high * samples
        ]
        if not places:
            continue
        share = [statistics.mean(counts[i] / samples for i in places) for counts in trained_counts]
        never = [sum(counts[i] == 0 for i in places) for counts in trained_counts]
        share_of_tries = f"up to {high:.0%}" if low == 0 else f"{low:.0%} to {high:.0%}"
        label = f"{share_of_tries} of its tries" if high else f"0 of {samples} tries"
        lines.append([label, len(places), spread(share), spread(never, 0)])
    return runs.table(lines)


def behaviour_table(base, trained):
    lines = [["at temperature 1", "base", "trained"]]
    for name, label in BEHAVIOUR.items():
        before, after = (
            [run[name] for run in part if run[name] is not None] for part in ([base], trained)
        )
        digits = {"attempts": 1, "length": 0}.get(name, 3)
        if before or after:
            lines.append([label, spread(before, digits), spread(after, digits)])
    return runs.table(lines)


def draw(directory, name, base, trained, base_counts, trained_counts, samples):
    """Two figures: pass@1 over temperatures, pass@k over k."""
    import numpy as np
    from matplotlib.figure import Figure

    os.makedirs(directory, exist_ok=True)
    plot = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = plot.subplots()
    x = list(base)
    key = "eval/pass@1"
    low, high = ([m[f"{key}_{end}"] for m in base.values()] for end in ("low", "high"))
    axis.plot(x, [m[key] for m in base.values()], "o-", label="base (band: 95% interval)")
    axis.fill_between(x, low, high, alpha=0.15)
    values = np.array([[run[t][key] for t in x] for run in trained])  # (seeds, temperatures)
    axis.plot(x, values.mean(axis=0), "o-", label="trained (band: worst to best seed)")
    axis.fill_between(x, values.min(axis=0), values.max(axis=0), alpha=0.15, color="C1")
    axis.set(
        xlabel="temperature (0: greedy)",
        ylabel="pass@1",
        title=f"{name}: pass@1 over temperatures",
        ylim=(0, 1),
    )
    save(plot, axis, os.path.join(directory, f"{name}_temperature.png"))

    plot = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = plot.subplots()
    k = np.arange(1, samples + 1)
    curves = {"base": pass_curve(base_counts, samples)}
    curves["trained"] = np.mean([pass_curve(counts, samples) for counts in trained_counts], axis=0)
    for label, values in curves.items():
        mean, low, high = mean_interval(values)
        (line,) = axis.plot(k, mean, label=f"{label} (band: 95% interval)")
        axis.fill_between(k, low, high, alpha=0.15, color=line.get_color())
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks_shown(samples), ks_shown(samples))
    axis.set(
        xlabel="k, tries at temperature 1",
        ylabel="pass@k",
        title=f"{name}: solved in k tries",
        ylim=(0, 1),
    )
    save(plot, axis, os.path.join(directory, f"{name}_pass_at_k.png"))


def save(plot, axis, path):
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center right")
    plot.savefig(path, dpi=100)


def load_problems(task, args, config, paths):
    """(the problems that fit and that no run met in training, how many were left out for that)."""
    from plumbing.models import context_length
    from plumbing.tasks import drop_long_prompts

    problems = task.load_problems("all" if args.data else "test", args.data, 0)
    key = runs.problem_key(args.task)
    seen = set().union(*(runs.problems_trained_on(path, key) for path in paths))
    unseen = [problem for problem in problems if key(problem) not in seen]
    fitting, _ = drop_long_prompts(unseen, task, config.max_tokens, context_length(args.base))
    return fitting, len(problems) - len(unseen)


def add_sizes(add):
    add("--pass1_problems", "at most, for pass@1 and the behaviour", type=int, default=1024)
    add("--problems", "at most, for pass@k", type=int, default=256)
    add("--samples", "tries of each problem for pass@k", type=int, default=256)
    add(
        "--pass_at_k_runs",
        "of the runs, how many are sampled for pass@k, which takes longest",
        type=int,
        default=3,
    )


def parsed():
    """(the parser, the arguments)"""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = lambda name, help, **options: parser.add_argument(
        name, help=f"{help} (default: %(default)s)", **options
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run or model directories, one for each seed"
    )
    add("--base", "the model that they were trained from", default="models/nano-base")
    add(
        "--seeds",
        "of the default command's runs, where no RUN is given",
        type=int,
        nargs="+",
        default=[0, 1, 2],
    )
    add("--task", "as in nano_r1.py", default="countdown")
    add("--prompt", "as in nano_r1.py", default="short")
    add("--max_tokens", "of a completion", type=int, default=320)
    parser.add_argument(
        "--data", metavar="FILE", help="problems; left out: the built-in test problems"
    )
    add(
        "--temperatures",
        "0 is greedy; 1 is always among them",
        type=float,
        nargs="+",
        default=TEMPERATURES,
    )
    add_sizes(add)
    add("--rollout", "as in nano_r1.py", choices=["auto", "transformers", "vllm"], default="auto")
    add("--dtype", "of the weights", choices=["float32", "bfloat16"], default="float32")
    add("--out", "where the results are kept", default=os.path.join(runs.OUT, "elicitation"))
    parser.add_argument(
        "--write", metavar="DIRECTORY", help="write elicitation_TASK.md and the figures there"
    )
    args = parser.parse_args()
    if args.pass_at_k_runs < 1:
        parser.error("--pass_at_k_runs: at least 1")
    return parser, args


def main():
    parser, args = parsed()

    import nano_r1 as r1

    paths = args.runs or [train(args.task, seed, runs.OUT) for seed in args.seeds]
    same = {
        name: getattr(args, name) for name in ("task", "prompt", "max_tokens", "rollout", "dtype")
    }
    config = r1.Config(model=args.base, **same)
    sampler, _, task = runs.load_sampler(config)
    problems, left_out = load_problems(task, args, config, paths)
    many = problems[: args.pass1_problems]
    few = problems[: args.problems]
    cache = Cache(os.path.join(args.out, f"{args.task}.json"))

    pass_at_1 = []
    counts = []
    start = time.time()  # of the base, then of each run
    for path in (args.base, *map(runs.model_of, paths)):
        model = Model(path, config, sampler, task, cache)
        temperatures = tqdm(
            sorted({*args.temperatures, 1.0}), desc=f"{path}, {len(many)} problems by temperature"
        )
        pass_at_1.append({t: model.pass_at_1(many, t) for t in temperatures})
        if len(counts) <= args.pass_at_k_runs:
            counts.append(model.correct(few, args.samples))
    text = report(parser, args, pass_at_1, counts, (paths, len(problems), left_out))
    if args.write:
        with open(os.path.join(args.write, f"elicitation_{args.task}.md"), "w") as file:
            file.write("\n\n".join(text) + "\n")
    print("\n" + "\n\n".join(text))
    print(f"\n{(time.time() - start) / 60:.1f} minutes; results in {cache.path}")


def report(parser, args, pass_at_1, counts, about):
    """The page's paragraphs, and its figures; `about`: the runs, problems and those left out."""
    paths, problems, left_out = about
    base, *trained = pass_at_1
    base_counts, *trained_counts = counts
    source = f"the {problems} built-in test problems"
    if args.data:
        source = f"{problems} problems of FILE, {left_out} more left out that a run met in training"
    one_of = (
        f", {len(trained_counts)} of {len(paths)} runs" if len(trained_counts) < len(paths) else ""
    )
    text = [
        f"# {args.task}: what training brought, and what the base could do already",
        f"```\n{command_line(parser, args)}\n```",
        f"{time.strftime('%Y-%m-%d')}; base {args.base}, {len(paths)} trained run(s)"
        f"{commits_of(paths)}; {source}. In "
        "[] 95% intervals over problems. Trained: mean over the runs (worst to best), all on the "
        "same problems with "
        "the same random numbers: what other problems would change is not in (). Right means right "
        "in the answer "
        "block, where nothing else is said.",
        "## pass@1 over temperatures",
        temperature_table(base, trained),
        f"## pass@k at temperature 1{one_of}",
        pass_at_k_table(base_counts, trained_counts, args.samples),
        f"The same problems, by how often the base solves them in its {args.samples} tries:",
        rarity_table(base_counts, trained_counts, args.samples),
        "## What changed in the text",
        behaviour_table(base[1.0]["behaviour"], [run[1.0]["behaviour"] for run in trained]),
    ]
    if args.write:
        figures = os.path.join(args.write, "elicitation")
        draw(figures, args.task, base, trained, base_counts, trained_counts, args.samples)
        for place, figure in ((5, "temperature"), (8, "pass_at_k")):
            text.insert(place, f"![{figure}](elicitation/{args.task}_{figure}.png)")
    return text


def commits_of(paths):
    """The commits that the runs were trained with, where `runs.train` wrote them down."""
    known = [path for path in paths if os.path.exists(os.path.join(path, "cost.json"))]
    commits = {runs.cost(path)["commit"] for path in known}
    return f" of {', '.join(sorted(commits))}" if commits else ""


def command_line(parser, args):
    """The command that makes the report anew."""
    words = ["python", "benchmarks/elicitation.py", *args.runs]
    for name, value in vars(args).items():
        if name not in ("runs", "out") and value != parser.get_default(name):
            values = value if isinstance(value, list) else ["FILE" if name == "data" else value]
            words += [f"--{name}", *map(str, values)]
    return shlex.join(words)


if __name__ == "__main__":
    runs.as_program(main)
