"""Half an hour on a card as one command, in pieces: what no GPU has shown yet.

    python benchmarks/gpu_day.py         # 8 minutes; the same command goes on where it stopped
    python benchmarks/gpu_day.py --list  # the rows, in the order of their worth, and their limits
    python benchmarks/gpu_day.py --tiny  # all of them with tiny shapes, a try without a GPU

Each row runs in a process of its own and within its seconds; one that fails is written down, and
the next one begins. It needs torch, transformers and the notebooks' other packages, no network and
no command line's tyro; vLLM and DeepSpeed are measured where they import, and rows of what is not
there are left out. Results, failures too: results.json in --dir, and the table of docs/gpu.md with
the card's name and the commit (--write another folder with a gpu.md in it). A row is run again for
another card, another commit, or with --again NAME.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
import zlib
from pathlib import Path

import gpu

import runs

SMALL = {"prompts_per_step": 2, "group_size": 4, "max_tokens": 12, "eval_problems": 2}
SMALL |= {"micro_batch_tokens": 400}
FEW = {"steps": 4, "save_every": 2, "eval_every": 0, "eval_problems": 16, "warmup_steps": 1}
LOOP = {"rollout": "transformers"}
SHAPE = {"gradient_checkpointing": False, "micro_batch_tokens": 8192, "kl_coef": 0.0}
ENOUGH = 60  # seconds that must be left to begin a row
SMOL = "models/smollm2-135m"
MODULES = ("nano_r1", "matplotlib.figure", "matplotlib.backends.backend_agg")
MODULES += ("deepspeed.runtime.zero.muon.muon_optimizer",)


@dataclasses.dataclass
class Row:
    """One line of the table."""

    name: str
    what: object  # a function of the row and the arguments; what it returns is written down
    seconds: int  # that it may take
    settings: dict = dataclasses.field(default_factory=dict)
    expected: str = ""
    needs: str = ""  # a package or a file without which it is left out


# ---- What a row does, in its own process


def config_of(row, args, **changes):
    """The `Config` of a row: its settings, tiny with --tiny; float32 where there is no GPU."""
    import torch

    import nano_r1 as r1

    settings = {**row.settings, "report": False, "out": os.path.join(args.dir, "runs"), **changes}
    if args.tiny:  # rewards are a coin's
        sys.modules["coin_rewards"] = gpu.coin_task(8)
        settings |= {**SMALL, "task": "coin", "steps": 2, "save_every": 1}
    if not torch.cuda.is_available():
        settings["dtype"] = "float32"
    return r1.Config(**{"name": row.name, **settings})


def machine(row, args):
    """The card, the versions, the compiler that vLLM needs; how fast the card multiplies."""
    import torch

    names = ("torch", "transformers", "peft", "deepspeed", "vllm")
    found = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    result = {"python": sys.version.split()[0], **{name: found.get(name, "-") for name in names}}
    result |= {"gcc": shutil.which("gcc") or "-", **gpu.describe_machine()}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 8192 if device == "cuda" else 256
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for repeat in range(13):
        if repeat == 3:  # warmed up
            wait()
            start = time.perf_counter()
        a @ a
    wait()
    result["bfloat16 TFLOP/s"] = 20 * size**3 / (time.perf_counter() - start) / 1e12
    return result


def wait():
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def whole_run(row, args):
    """A run of `main`, or what is left of it: seconds a step, and what it learned."""
    import nano_r1 as r1

    path = os.path.join(args.dir, "runs", row.name)
    begun = os.path.exists(os.path.join(path, "config.json"))
    rows = runs.records(r1.main(config_of(row, args, resume=path if begun else None)))
    return summary(rows)


def summary(rows):
    """Of a run's metrics."""
    steps = rows[1:]
    middle = lambda key: round(statistics.median(r[key] for r in steps if key in r), 6)
    evaluated = [r["eval/pass@1"] for r in rows if "eval/pass@1" in r]
    return {
        "steps": len(steps),
        "reward": f"{steps[0]['reward']:.2f} to {steps[-1]['reward']:.2f}",
        "pass@1": " to ".join(f"{share:.3f}" for share in (evaluated[0], evaluated[-1])),
        "seconds a step": middle("time/step"),
        "difference from the sampler": middle("sampling/logp_difference_mean"),
        "largest": max(r.get("sampling/logp_difference_max", 0.0) for r in steps),
        "bad updates": sum(r["bad_updates"] for r in steps),
    }


def steps_and_resume(row, args):
    """Some steps; then from the last checkpoint but one the rest again, and how that differs."""
    import nano_r1 as r1

    folder = os.path.join(args.dir, "runs", row.name)
    again = f"{folder}-again"
    for path in (folder, again):
        shutil.rmtree(path, ignore_errors=True)
    config = config_of(row, args)
    whole = runs.records(r1.main(config))
    shutil.copytree(folder, again)
    shutil.rmtree(os.path.join(again, "checkpoints", f"step_{config.steps:06d}"))
    rest = runs.records(r1.main(dataclasses.replace(config, name=None, resume=again)))
    differences = {}
    for key in ("reward", "loss", "grad_norm"):
        pairs = [(a[key], b[key]) for a, b in zip(whole, rest) if key in a]
        differences[key] = max(abs(a - b) for a, b in pairs)
    same = "bit for bit" if not any(differences.values()) else differences
    for path in (folder, again):
        shutil.rmtree(os.path.join(path, "checkpoints"))
    norms = [float(f"{r['grad_norm']:.4g}") for r in whole[1:3]]
    return {**summary(whole), "first gradients": norms, "resumed": same}


def twice(row, args):
    """Two runs in one process, as in a notebook: the second needs what the first one had."""
    import nano_r1 as r1

    rows = [runs.records(r1.main(config_of(row, args, name=f"{row.name}-{i}"))) for i in (1, 2)]
    return {"first": summary(rows[0]), "second": summary(rows[1])}


def shape(row, args):
    """Speed and memory of a shape of Qwen2.5; benchmarks/gpu.py says how they are measured."""
    flags = ["--models", "tiny" if args.tiny else row.settings["shape"], "--rounds", "2"]
    settings = {
        **row.settings,
        **(SMALL if args.tiny else {}),
        "dir": os.path.join(args.dir, "models"),
    }
    for name in sorted(set(settings) & set(vars(gpu.parse_args([])))):
        value = settings[name]
        flags += (
            [f"--{name}"] if value is True else [] if value is False else [f"--{name}", str(value)]
        )
    options = gpu.parse_args(flags)
    figures = gpu.measure(options.models[0], options)
    if "failed" in figures:
        raise RuntimeError(figures["failed"])
    peak = gpu.peak_tflops(gpu.describe_machine()["card"])
    table = gpu.rows(options.models[0], figures, peak)
    header = ("seconds", "tokens a second", "MFU", "memory", "by whom, or difference")
    result = {line[1]: dict(zip(header, line[2:])) for line in table}
    result["planned"] = f"{figures['planned'] / 2**30:.1f} GiB"
    return result


def small_base(row, args):
    """Make a base of 15 million parameters; what an earlier piece began goes on."""
    place = os.path.join(runs.ROOT, "models", "nano-base", "make_base.py")
    spec = importlib.util.spec_from_file_location("make_base", place)
    sys.modules["make_base"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    changes = {"hidden_size": 384, "layers": 8}
    if args.tiny:
        counts = [
            f.name for f in dataclasses.fields(module.BaseConfig) if f.name.endswith("_steps")
        ]
        changes = dict.fromkeys(counts, 1) | {"problems": 60, "hidden_size": 32, "layers": 1}
    out = os.path.join(args.dir, "base-15m")
    if not os.path.isdir(out):
        module.make_base(module.BaseConfig(out=out, **changes))
    return {"made": out}


def on_small_base(row, args):
    row.settings["model"] = os.path.join(args.dir, "base-15m")
    return whole_run(row, args)


# ---- The rows


def engines():
    """Every engine, dtype, offload and adapters; in float32 their first gradients agree."""
    half = {"dtype": "bfloat16"}
    choices = {"": {}, "bf16": half, "bf16-offload": {**half, "offload": True}}
    choices |= {"lora": {"lora_rank": 4}, "bf16-lora": {**half, "lora_rank": 4}}
    choices["checkpointing"] = {"gradient_checkpointing": True}
    found = [("torch", name, changes) for name, changes in choices.items()]
    stages = {f"zero{stage}": {"zero_stage": stage} for stage in (0, 1, 3)}
    choices |= stages | {"bf16-zero3": {**half, "zero_stage": 3}, "offload": {"offload": True}}
    found += [("deepspeed", name, changes) for name, changes in choices.items()]
    for engine, name, changes in found:
        settings = {**FEW, **LOOP, "engine": engine, **changes}
        needs = "deepspeed" if engine == "deepspeed" else ""
        full = f"{engine}-{name}".rstrip("-")
        yield Row(full, steps_and_resume, 120, settings, "resumed within rounding", needs)


def proofs():
    """--check_sync, in float32 and bfloat16; without vLLM of the copy that ZeRO 3 samples with."""
    few = {**FEW, "check_sync": True, "steps": 3, "save_every": 0}
    vllm = {**few, "rollout": "vllm"}
    yield Row("proof-vllm", whole_run, 240, vllm, "differs by less than 1e-3", "vllm")
    half = {**vllm, "dtype": "bfloat16"}
    yield Row("proof-vllm-bf16", whole_run, 240, half, "about 0.02", "vllm")
    lora = {**half, "lora_rank": 4}
    yield Row("proof-vllm-bf16-lora", whole_run, 240, lora, "about 0.02", "vllm")
    short = {**vllm, "steps": 1, "check_sync": False}
    yield Row("vllm-twice", twice, 300, short, "both end", "vllm")
    copied = {**few, **LOOP, "zero_stage": 3}
    yield Row("proof-loop", whole_run, 120, copied, "differs by less than 1e-3")


def shapes():
    """Qwen2.5's, by our loop and by vLLM; 16 x 8 completions would take our loop minutes."""
    few = {"prompts_per_step": 4, "group_size": 8, "max_tokens": 512, **LOOP, **SHAPE}
    many = {"prompts_per_step": 8, "group_size": 8, "max_tokens": 1024, "rollout": "vllm", **SHAPE}
    memory = {"gradient_checkpointing": True, "micro_batch_tokens": 4096}
    for size, changes in (("1.5B", {}), ("0.5B", {}), ("3B", memory)):
        expected = "MFU of the update 0.45; memory no more than planned"
        yield Row(f"{size}-loop", shape, 300, {**few, "shape": size, **changes}, expected)
        settings = {**many, "shape": size, **changes}
        yield Row(f"{size}-vllm", shape, 400, settings, expected, "vllm")
    lora = {**few, **memory, "shape": "3B", "lora_rank": 16}
    yield Row("3B-loop-lora", shape, 300, lora, "memory no more than planned")
    offload = {**few, "shape": "1.5B", "offload": True}
    yield Row("1.5B-loop-offload", shape, 400, offload, "memory no more than planned")


def all_rows():
    yield Row("machine", machine, 90)
    learn = {"save_every": 10, "eval_every": 20}
    says = "pass@1 0.11, then 0.68 to 0.70 (README, 3 seeds)"
    yield Row("default", whole_run, 400, {**learn, **LOOP}, says)
    yield Row("default-vllm", whole_run, 400, {**learn, "rollout": "vllm"}, says, "vllm")
    several = list(engines())
    yield from several[:2]
    some = list(shapes())
    yield from some[:2]
    yield from several[2:]
    yield from proofs()
    yield from some[2:]
    smol = {**FEW, "model": SMOL, "task": "gsm8k", "prompt": "chat", "max_tokens": 256}
    smol |= {"learning_rate": 1e-6, "dtype": "bfloat16"}
    yield Row("smollm2-135m", steps_and_resume, 300, smol, "resumed within rounding", SMOL)
    yield Row("base-15m", small_base, 2000, {}, "as its loss at 1M parameters or lower")
    yield Row("base-15m-default", on_small_base, 600, {**learn, **LOOP}, "above that of 1M")


# ---- One after the other


def in_its_process(row, args, log):
    """A row's process: what it prints goes to `log`, its result beside that, as JSON."""
    os.setsid()  # a group of its own: vLLM's processes end with it
    output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number in (1, 2):
        os.dup2(output, number)
    try:
        result = {"state": "done", "result": row.what(row, args)}
    except BaseException as error:  # UserError, CUDA's, what libraries raise
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())
        result = {"state": "failed", "result": said[:400]}
    Path(f"{log}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever still runs in it


def missing(row, card):
    """What a row needs and what is not there; None if it can run."""
    if row.settings.get("dtype") == "bfloat16" and card.startswith("CPU"):
        return "a GPU"
    there = os.path.exists if "/" in row.needs else importlib.util.find_spec
    return None if not row.needs or there(row.needs) else row.needs


def run_row(row, args, seconds):
    """{"state", "result", "seconds"} of a row: done, failed, or out of time."""
    log = os.path.join(args.dir, f"{row.name}.log")
    Path(f"{log}.json").unlink(missing_ok=True)
    # A fresh interpreter; with --tiny a copy of this one, quick, which CUDA would not allow.
    context = multiprocessing.get_context("fork" if args.tiny else "spawn")
    process = context.Process(target=in_its_process, args=(row, args, log))
    start = time.monotonic()
    process.start()
    try:
        process.join(seconds)
    finally:  # Ctrl-C, too
        late = process.is_alive()
        if late:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
    if late:
        outcome = {"state": "out of time", "result": f"took longer than {seconds:.0f} s"}
    elif os.path.exists(f"{log}.json"):
        outcome = json.loads(Path(f"{log}.json").read_text())
    else:
        outcome = {"state": "failed", "result": f"ended with {process.exitcode}: see {log}"}
    return {**outcome, "seconds": round(time.monotonic() - start, 1)}


def commit():
    """The commit; without git, as in a copied tree, a checksum of the programs."""
    git = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True)
    described = git("describe", "--always")
    if described.returncode == 0:  # what is written here does not make it another one
        return (
            described.stdout.strip() + "-dirty" * git("diff", "--quiet", "HEAD", "*.py").returncode
        )
    files = sorted([*Path(runs.ROOT).glob("*.py"), *Path(runs.ROOT, "plumbing").rglob("*.py")])
    return f"files {zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def as_text(value):
    """A result as words for a cell of the table."""
    if isinstance(value, dict):
        parts = [f"{key} {as_text(part)}" for key, part in value.items() if part != ""]
        return "; ".join(parts)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(results, args):
    """results.json, and the table between two marks of gpu.md."""
    os.makedirs(args.dir, exist_ok=True)
    Path(args.dir, "results.json").write_text(json.dumps(results, indent=2))
    lines = [("row", "state", "result", "expected", "seconds", "card, commit")]
    for name, r in results.items():
        text = as_text(r["result"]).replace("|", "/")
        where = f"{r['card']}, {r['commit']}, {r['date']}"
        lines.append((name, r["state"], text, r["expected"], r["seconds"], where))
    page = os.path.join(args.write, "gpu.md")
    runs.write_section(page, "benchmarks/gpu_day.py", f"\n{runs.table(lines)}\n\n")


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="no longer than that")
    parser.add_argument("--dir", default=os.path.join(runs.OUT, "gpu_day"))
    parser.add_argument("--write", default=os.path.join(runs.ROOT, "docs"))
    parser.add_argument("--rows", help="only those whose name has this regular expression in it")
    parser.add_argument("--again", nargs="*", default=[], help="rows to run once more")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args(argv)


def begin(row, results, here, args):
    """Seconds that were spent on a row in earlier pieces; None if there is nothing left to do."""
    known = results.get(row.name, {})
    same = all(known.get(key) == value for key, value in here.items())
    left_out = known.get("state") == "left out"  # for a package that may be there by now
    if same and row.name not in args.again and not left_out:
        return known["spent"] if known["state"] == "stopped" else None
    for ending in ("", "-again", "-1", "-2"):
        shutil.rmtree(os.path.join(args.dir, "runs", row.name + ending), ignore_errors=True)
    return 0.0


def go_through(rows, results, here, args):
    """Run the rows that are left. Returns whether all are done."""
    end = time.monotonic() + 60 * args.minutes
    for row in rows:
        spent = begin(row, results, here, args)
        if spent is None:
            continue
        left = end - time.monotonic()
        if left < min(row.seconds, ENOUGH):
            return False
        record = {**here, "date": time.strftime("%Y-%m-%d"), "expected": row.expected}
        limit = min(left, row.seconds)
        # As if it had taken all of that: a row that ends the whole machine is not begun for ever.
        stopped = {"state": "stopped", "result": "", "seconds": limit, "spent": spent + limit}
        lacking = missing(row, here["card"])
        if lacking:
            outcome = {"state": "left out", "result": f"needs {lacking}", "seconds": 0.0}
        elif spent >= 2 * row.seconds:
            outcome = {"state": "failed", "result": "was begun and did not end", "seconds": spent}
        else:
            write({**results, row.name: {**record, **stopped}}, args)
            outcome = run_row(row, args, limit)
        if outcome["state"] == "out of time" and limit < row.seconds:
            outcome |= {"state": "stopped", "spent": spent + outcome["seconds"]}
        results[row.name] = {**record, **outcome}
        write(results, args)
        print(f"{row.name}: {outcome['state']}, {as_text(outcome['result'])}", flush=True)
    return True


def main(argv=None):
    args = parse_args(argv)
    os.chdir(runs.ROOT)
    rows = [row for row in all_rows() if re.search(args.rows or "", row.name)]
    if args.list:
        return print("\n".join(f"{row.name}: {row.seconds} s" for row in rows))
    os.makedirs(args.dir, exist_ok=True)
    file = Path(args.dir, "results.json")
    results = json.loads(file.read_text()) if file.exists() else {}
    here = {"card": gpu.in_own_process("card", [])["card"], "commit": commit()}
    if args.tiny:  # imported and made once, for the copies of this process
        from plumbing.processes import prepare_libraries

        prepare_libraries(None, on_gpu=False)
        for module in MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        for row in rows:
            row.seconds *= 20  # on a busy machine
    if go_through(rows, results, here, args):
        return print(f"All rows are in {file}.")
    print(f"{args.minutes:g} minutes are over: the same command goes on.")


if __name__ == "__main__":
    main()
