"""What the benchmarks share: runs, started, gone on with or found complete; models to sample from.

No benchmark by itself.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
from plumbing.files import numbered, read_rows, write_text
from plumbing.settings import UserError

OUT = os.path.join(ROOT, "out")
# tyro keeps state between the calls of one parse; ablations.py parses in several threads
PARSING = threading.Lock()


def script_of(flags):
    """The script that knows all of these flags (one text): variants.py for those of a relative."""
    from nano_r1 import Config

    known = {field.name for field in dataclasses.fields(Config)}
    words = [word for word in shlex.split(flags) if word.startswith("--")]
    names = {word.removeprefix("--").removeprefix("no-").partition("=")[0] for word in words}
    return "nano_r1.py" if names <= known else "variants.py"


def config_of(flags):
    """The `Config` of these flags. Raises UserError, or SystemExit for one that does not exist."""
    from plumbing.settings import parse_args

    script = script_of(flags)
    lesson = importlib.import_module(script.removesuffix(".py"))
    with PARSING:
        return parse_args(lesson.Config, script, "", shlex.split(flags))


def train(path, flags, seed, quiet=False):
    """Make sure that the run in directory `path` is complete; returns `path`.

    A run that was interrupted goes on; one that is there with other settings ends the program with
    a sentence. With `quiet` the run's output is shown only if it fails. cost.json, written last,
    has seconds, date and commit.
    """
    where = ["--seed", str(seed), "--out", os.path.dirname(path), "--name", os.path.basename(path)]
    started = os.path.exists(os.path.join(path, "config.json"))
    if started:
        check_settings(path, config_of(shlex.join([*shlex.split(flags), *where])))
    if os.path.exists(os.path.join(path, "cost.json")):
        return path
    command = [sys.executable, script_of(flags)]
    command += ["--resume", path] if started else [*shlex.split(flags), *where]
    if not quiet:
        print("$", shlex.join(command), flush=True)
    at = commit()
    start = time.time()
    call(command, quiet)
    write_cost(path, start, at)
    return path


def call(command, quiet=True, **options):
    """What a program prints; if it fails, the end of what it said ends this one, too."""
    done = subprocess.run(command, cwd=ROOT, capture_output=quiet, text=True, **options)
    if done.returncode:
        said = f"{(done.stdout or '')[-2000:]}\n{(done.stderr or '')[-4000:]}"
        sys.exit(f"$ {shlex.join(command)}\n{said}".strip())
    return done.stdout


def side_by_side(function, calls, jobs, title):
    """Call a function with each of the arguments, so many at a time; what one raises ends all."""
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(function, *arguments) for arguments in calls]
        try:
            for one in tqdm(
                as_completed(started), total=len(started), desc=title, disable=not started
            ):
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after those that have begun


def as_program(main):
    """Run `main`; what the user has to change ends the program with a sentence."""
    try:
        main()
    except UserError as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")
    from plumbing.processes import shutdown  # torch is slow to import: not before --help

    shutdown()


def complete(path, main, config):
    """The same in this process, for a `main` with functions of its own, and without cost.json.

    Where the run is stopped the program ends with exit code 130; called again, it goes on.
    """
    from plumbing.settings import read_config

    where = {"out": os.path.dirname(path), "name": os.path.basename(path)}
    config = dataclasses.replace(config, **where)
    if os.path.exists(os.path.join(path, "config.json")):
        check_settings(path, config)
        config = read_config(path, type(config))
    model = os.path.join(path, "model")
    if not os.path.isdir(model):
        main(config)
    return path if os.path.isdir(model) else sys.exit(130)


def commit():
    """The commit of the code that runs, with `-dirty` if files differ from it."""
    git = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def check_settings(path, config):
    """End the program if the run in `path` has another config: it would be taken for this one."""
    from plumbing.settings import RESUMABLE

    saved = config_in(path)
    wanted = dataclasses.asdict(config)
    free = set(RESUMABLE) - {"steps"} | {"functions"}  # main compares its functions itself
    different = [n for n in {**wanted, **saved} if wanted.get(n) != saved.get(n)]
    names = [n for n in different if n not in free]
    if names:
        other = f"{path} is a run with other settings ({', '.join(names)})"
        sys.exit(f"{other}: delete it, or take another --out.")


def read_json(path, name):
    """What a file of a directory holds."""
    with open(os.path.join(path, name)) as file:
        return json.load(file)


def config_in(path):
    """The settings of the run in a directory, as a dict."""
    return read_json(path, "config.json")


def write_cost(path, start, commit):
    """cost.json: what a run that began at `start` took."""
    facts = {"seconds": time.time() - start, "date": time.strftime("%Y-%m-%d"), "commit": commit}
    write_text(os.path.join(path, "cost.json"), json.dumps(facts))


def cost(path):
    return read_json(path, "cost.json")


def episodes(path):
    """{step: the rows of its completions} of a run; none where it kept none."""
    files = numbered(os.path.join(path, "episodes"))
    return {step: read_rows(file) for step, file in files.items()}


def records(path):
    """The objects of a run's metrics.jsonl; the first is the evaluation before training."""
    with open(os.path.join(path, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def model_of(path):
    """The directory of a run's trained model; a model's directory is its own."""
    inside = os.path.join(path, "model")
    return inside if os.path.isdir(inside) else path


def with_numbers(count, problems=256):
    """Countdown problems with so many numbers that + and - solve, the same at each call."""
    from countdown_rewards import reachable

    rng = random.Random(0)
    found = []
    while len(found) < problems:
        nums = [rng.randint(1, 99) for _ in range(count)]
        targets = sorted(value for value in reachable(nums, "+-") if 10 <= value <= 100)
        found += [{"nums": nums, "target": rng.choice(targets)}] if targets else []
    return found


def problem_key(task_name):
    """A function of a problem: what makes two problems of that task the same."""
    from plumbing.tasks import import_task

    as_text = functools.partial(json.dumps, sort_keys=True)
    return getattr(import_task(task_name), "problem_key", as_text)


def problems_trained_on(path, key):
    """The keys of the problems of every episode of a run; none where there are no episodes."""
    return {key(row["problem"]) for rows in episodes(path).values() for row in rows}


def load_sampler(config):
    """(sampler, policy, task) of `config.model`; `sampler.sync_weights(other)` changes it."""
    import nano_r1 as r1
    from plumbing.tasks import MAX_PROMPT

    device = r1.init_distributed(config)
    task = r1.load_task(config.task, config.prompt, r1.load_tokenizer(config.model))
    policy = r1.load_policy(config, None, device).eval()
    return r1.make_sampler(config, policy, task, MAX_PROMPT + config.max_tokens), policy, task


@contextlib.contextmanager
def busy_program():
    """A context beside which another process keeps one core busy."""
    until_we_end = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    process = subprocess.Popen([sys.executable, "-c", until_we_end])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def spread(values, digits=3):
    """`mean (smallest to largest)`; of one value alone itself, of none nothing."""
    if len(set(values)) < 2:
        return f"{values[0]:.{digits}f}" if values else ""
    numbers = (statistics.mean(values), min(values), max(values))
    mean, low, high = (f"{number:.{digits}f}" for number in numbers)
    return f"{mean} ({low} to {high})"


# The 0.975 quantile of Student's t, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def paired_difference(values, others):
    """(mean, low, high) of values - others, pair by pair: a 95% interval by Student's t.

    A pair is two runs of one seed. Two pairs or more.
    """
    differences = [a - b for a, b in zip(values, others, strict=True)]
    mean = statistics.mean(differences)
    degrees = len(differences) - 1
    # Above 9: Cornish and Fisher's expansion, right to 0.003.
    t = T975.get(degrees, 1.96 + 2.372 / degrees + 2.823 / degrees**2)
    half = t * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


def page_of(path):
    """The text of a page; none where there is no file."""
    return Path(path).read_text("utf-8") if os.path.exists(path) else ""


def write_section(path, name, text):
    """Write `text` between the page's two marks of this name; new marks are added at its end."""
    begin = f"<!-- {name} -->\n"
    page = page_of(path)
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}".lstrip()
    before, _, rest = page.partition(begin)
    end = f"<!-- end of {name} -->\n"
    write_text(path, f"{before}{begin}{text}{end}{rest.partition(end)[2]}")


def interval(mean, low, high):
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def draw_training(path, title, curves):
    """Lines: right in training, a moving mean of five steps; dots: held out. Ranges over seeds.

    `curves`: label -> ([share of each step], [(step, pass@1)]), both a list for each seed.
    """
    import numpy as np
    from matplotlib.figure import Figure

    plot = Figure(figsize=(7.5, 4), layout="constrained")
    axis = plot.subplots()
    for number, (label, (training, evaluations)) in enumerate(curves.items()):
        color = f"C{number}"
        steps, shares = np.array(evaluations).mean(axis=0).T
        axis.plot(steps, shares, "o", color=color, label=label)
        if len(training[0]) < 5:  # fine-tuning samples nothing
            continue
        smooth = np.array([np.convolve(seed, np.ones(5) / 5, mode="valid") for seed in training])
        steps = np.arange(3, 3 + smooth.shape[1])
        axis.plot(steps, smooth.mean(axis=0), color=color)
        axis.fill_between(steps, smooth.min(axis=0), smooth.max(axis=0), alpha=0.15, color=color)
    axis.set(xlabel="step", ylabel="right", title=title, ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    plot.savefig(path, dpi=100)


def table(lines):
    """A Markdown table from rows of cells, the first the header."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
