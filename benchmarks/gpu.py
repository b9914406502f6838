"""How fast rollout and update of nano_r1.py are on the GPU at hand, and whether they agree.

    python benchmarks/gpu.py                    # shapes of Qwen2.5-0.5B, 1.5B and 3B; no network
    python benchmarks/gpu.py --models 3B --gradient_checkpointing --micro_batch_tokens 16384
    python benchmarks/gpu.py --models tiny      # a try without a GPU, a minute on 2 cores

The models have the real ones' shapes and random weights, made once below --dir. Each runs `main` of
nano_r1.py in a process of its own, on one GPU; the first step warms up. Random weights hardly ever
stop, so a step is 64 completions of 1,024 tokens, and they solve nothing: the reward is a coin
toss. Figures are medians (smallest to largest).

- tokens a second: of rollout and step those sampled, of the update those through the model, prompts
  included.
- MFU, model FLOPs utilisation: 2 N floating-point operations a sampled token, 6 N a trained one (4
  N with adapters), 2 N more with a KL penalty (the reference), over the card's dense bfloat16 peak.
  N: the layers' matrices and the output layer, not the embedding. Left out: attention's products
  (3-5% more), the rollout's pass over prompts, by convention what --gradient_checkpointing computes
  again (2 N more). Of the update some 2% too high: a group's prompt is computed once.
- sync: all of a step but rollout and update: the sampler's sleeping and waking, the weights' way to
  it.
- peak memory: of the whole card, other programs included; of the update what PyTorch had reserved,
  in parentheses how much of it tensors filled. Without a GPU: of the process, since it began.
- trainer against sampler: difference of a token's two log-probabilities, and the effective sample
  size, 1 where there is none. Random weights hardly prefer any token: a large difference means that
  something is wrong, a small one is not yet what a trained model would show. (0.0018 of it: the
  sampler passes over the vocabulary's padding.)
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import io
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import types
import zlib

import runs

SIZES = "hidden_size intermediate_size num_hidden_layers num_attention_heads".split()
SIZES += "num_key_value_heads vocab_size".split()
SHAPES = {  # of Qwen2.5; in all of these the output layer is the input embedding (tied)
    "0.5B": (896, 4864, 24, 14, 2, 151_936),
    "1.5B": (1536, 8960, 28, 12, 2, 151_936),
    "3B": (2048, 11008, 36, 16, 2, 151_936),
    "tiny": (64, 128, 2, 2, 1, 1640),
}
TOKENS = 151_665  # that Qwen2.5's tokenizer knows; the other 271 of its vocabulary are padding
# Dense bfloat16 by a card's whole name: a slice of a card (MIG) or a slower variant has none.
PEAK_TFLOPS = {
    "B200": 2250,
    r"H200|H100.*HBM3|GH200 \d+GB": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    r"A100[\w -]*": 312,
    "L40S": 362,
    "GeForce RTX 4090": 165,
    "RTX A6000": 155,
    "L4": 121,
    "GeForce RTX 3090": 71,
    "A10G": 70,
    "T4": 65,  # in float16: it has no bfloat16 units
}


def peak_tflops(card):
    """TFLOP/s by the name that torch gives the card; None if the table does not have it."""
    name = re.sub("^(NVIDIA|Tesla) ", "", card)
    return next(
        (peak for pattern, peak in PEAK_TFLOPS.items() if re.fullmatch(pattern, name)), None
    )


def flops_per_token(name, reference=False, lora=False):
    """2 N forward, a multiplication and an addition for each weight; 4 N backward; 2 N reference.

    With adapters 2 N backward: the weights themselves get no gradient. Biases, norms and adapters
    are left out.
    """
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[name]
    attention = 2 * hidden * hidden + 2 * hidden * (
        hidden // heads * kv_heads
    )  # query and output, key and value
    mlp = 3 * hidden * intermediate  # gate, up, down
    n = layers * (attention + mlp) + hidden * vocabulary
    return {"rollout": 2 * n, "update": (4 if lora else 6) * n + (2 * n if reference else 0)}


def describe_machine():
    """For the first line, in its own process: one that has looked at a GPU holds some memory."""
    import torch

    if torch.cuda.is_available():
        return {
            "card": torch.cuda.get_device_name(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
        }
    return {
        "card": f"CPU, {os.cpu_count()} cores",
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def random_model(name, directory, device):
    """The path of a model of that shape with random weights, made at the first call."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from plumbing.files import atomic_write
    from plumbing.models import load_tokenizer

    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, name)
    if os.path.isdir(path):
        return path
    tokenizer = load_tokenizer("models/nano-base")
    config = Qwen2Config(
        **dict(zip(SIZES, SHAPES[name])),
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with atomic_write(path) as hidden:
        model.save_pretrained(hidden)
        tokenizer.save_pretrained(hidden)
        if config.vocab_size > TOKENS:
            # As large as the real one's, by a last token far from the others.
            file = pathlib.Path(hidden, "tokenizer.json")
            content = json.loads(file.read_text())
            added = {token["content"]: token["id"] for token in content["added_tokens"]}
            content["model"]["vocab"] |= {**added, "<last>": TOKENS - 1}
            file.write_text(json.dumps(content))
    del model
    torch.cuda.empty_cache()
    return path


def coin_task(problems):
    """The task `coin`: Countdown's problems and prompts, a toss as reward, the same for a text."""
    import countdown_rewards as countdown
    from plumbing.tasks import Reward

    def load_problems(split, source, seed):
        return countdown.generate_problems(split, problems, seed)

    def reward(text, problem, prompt):
        return Reward(float(zlib.crc32(text.encode()) % 2), 0.0, 0.0, "a coin toss")

    task = types.ModuleType("coin_rewards")
    task.PROMPTS = countdown.PROMPTS
    task.format_prompt = countdown.format_prompt
    task.load_problems = load_problems
    task.reward = reward
    return task


def in_use(cuda):
    """Bytes in use on the whole card; without one, most that this process has had so far."""
    import torch

    if not cuda:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    free, total = torch.cuda.mem_get_info()
    return total - free


def measuring_timed(name, cuda, now, steps):
    """nano_r1's `timed` that also waits for the GPU and sees what memory each part needs.

    `now["part"]` says where the step is; after its last part, the sync, `now` is added to `steps`.
    """
    import torch

    from plumbing import timing

    @contextlib.contextmanager
    def timed(part):
        now["part"] = part
        # PyTorch counts vLLM's memory as reserved even while vLLM sleeps and the card has it back.
        # So take what the card says now, and add what PyTorch reserves from here on.
        before = in_use(cuda) - (torch.cuda.memory_reserved() if cuda else 0)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        with timing.timed(part):
            yield
            if cuda:
                torch.cuda.synchronize()
        now[f"{part}_memory"] = now[f"{part}_filled"] = in_use(cuda)
        if cuda and part == "update":
            now["update_memory"] = before + torch.cuda.max_memory_reserved()
            now["update_filled"] = before + torch.cuda.max_memory_allocated()
        if part == "sync":
            shown = [f"{p} {timing.seconds[p]:.2f} s" for p in ("rollout", "update", "sync")]
            round_ = f"round {len(steps)}" if steps else "warm-up"
            print(f"{name}, {round_}: {', '.join(shown)}", file=sys.stderr)
            steps.append(dict(now))

    return timed


# What every measured run has.
MEASURED = {
    "task": "coin",
    "prompt": "chat",
    "learning_rate": 1e-6,
    "eval_problems": 1,
    "eval_every": 0,
    "save_every": 0,
}


def measure(name, args):
    """One model in this process: {"sampler": ..., "rounds": [{what was measured: number}]}."""
    import nano_r1 as r1
    from plumbing import processes
    from plumbing.memory import PROMPT, memory_plan
    from plumbing.models import empty_model
    from plumbing.sampler import sampler_kind
    from plumbing.settings import UserError

    device = r1.init_distributed()
    if device.type == "cpu":
        args.dtype = "float32"
    now = {"part": "set-up"}
    steps = []
    sys.modules["coin_rewards"] = coin_task(max(64, args.prompts_per_step))
    r1.timed = measuring_timed(name, device.type == "cuda", now, steps)
    r1.save_policy = lambda *args, **options: None  # gigabytes that nobody wants
    try:
        path = random_model(name, args.dir, device)
        same = {key: value for key, value in vars(args).items() if hasattr(r1.Config, key)}
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            where = {"model": path, "out": out, "name": name}
            config = r1.Config(steps=args.rounds + 1, **where, **MEASURED, **same)
            records = runs.records(r1.main(config))[1:]
    except (RuntimeError, ValueError, UserError) as error:  # as torch, CUDA and vLLM say it
        said = str(error).lower()
        if not re.search("(out of|free|available|cache|allocate) memory", said):
            raise
        print(f"{name}: {error}", file=sys.stderr)
        return {"failed": f"does not fit: out of memory in the {now['part']}"}
    processes.shutdown()
    rounds = [round_of(record, step) for record, step in zip(records, steps)]
    card = describe_machine()["memory"] if device.type == "cuda" else None
    plan = memory_plan(empty_model(config), config, PROMPT + config.max_tokens, card)
    planned = sum(plan["always"].values()) + sum(plan["update"].values())
    trained = {"lora": config.lora_rank > 0, "reference": config.kl_coef > 0}
    figures = {"sampler": sampler_kind(config), **trained, "planned": planned}
    return {**figures, "rounds": rounds[1:]}


def round_of(record, step):
    """A step's record and what was measured beside it; the seconds of its parts by short names."""
    m = {**record, **step}
    m |= {part: record[f"time/{part}"] for part in ("rollout", "update", "step")}
    return {**m, "sync": m["step"] - m["rollout"] - m["update"]}


def in_own_process(what, flags):
    """`measure` or `describe_machine` there: its last line is JSON. Its stderr is passed on."""
    command = [sys.executable, os.path.abspath(__file__), *flags, "--measure", what]
    done = subprocess.run(command, cwd=runs.ROOT, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    return (
        json.loads(lines[-1])
        if lines
        else {"failed": f"failed (exit code {done.returncode}): see above"}
    )


def rows(name, figures, peak):
    """A model's four rows of the table; one if there is nothing to report but why."""
    if "failed" in figures:
        return [[name, figures["failed"], *[""] * 5]]
    column = lambda key: [m[key] for m in figures["rounds"]]
    gib = lambda key: f"{max(column(key)) / 2**30:.1f}"
    spread = lambda v, form: f"{statistics.median(v):{form}} ({min(v):{form}} to {max(v):{form}})"
    mean, largest = (column(f"sampling/logp_difference_{which}") for which in ("mean", "max"))
    agreement = f"mean {statistics.median(mean):.1e}, max {max(largest):.1e}"
    agreement += f", sample size {min(column('sampling/ess')):.4f}"
    last_two = {"rollout": [f"{gib('rollout_memory')} GiB", f"by {figures['sampler']}"]}
    last_two["update"] = [f"{gib('update_memory')} GiB ({gib('update_filled')})", agreement]
    table = []
    counted = {
        "rollout": "tokens/rollout",
        "update": "tokens/update",
        "sync": None,
        "step": "tokens/rollout",
    }
    for part, tokens in counted.items():
        speeds = (
            [count / seconds for count, seconds in zip(column(tokens), column(part))]
            if tokens
            else []
        )
        flops = flops_per_token(name, figures.get("reference"), figures.get("lora")).get(part)
        mfu = f"{statistics.median(speeds) * flops / (peak * 1e12):.1%}" if peak and flops else ""
        speed = spread(speeds, ",.0f") if speeds else ""
        table.append(
            [name, part, spread(column(part), ".2f"), speed, mfu, *last_two.get(part, ["", ""])]
        )
    return table


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = lambda name, help, **options: parser.add_argument(
        name, help=f"{help} (default: %(default)s)", **options
    )
    add(
        "--models",
        "shapes; tiny needs no GPU",
        nargs="+",
        choices=SHAPES,
        default=["0.5B", "1.5B", "3B"],
    )
    add("--prompts_per_step", "as in nano_r1.py", type=int, default=8)
    add("--group_size", "completions of each prompt", type=int, default=8)
    add("--max_tokens", "of each completion; nearly all reach it", type=int, default=1024)
    add("--rounds", "after the warm-up", type=int, default=3)
    add("--rollout", "as in nano_r1.py", choices=["auto", "transformers", "vllm"], default="auto")
    add("--vllm_gpu_memory_utilization", "share of the card for vLLM", type=float, default=0.3)
    add(
        "--dtype",
        "of the policy's weights; float32 without a GPU",
        choices=["bfloat16", "float32"],
        default="bfloat16",
    )
    add("--engine", "as in nano_r1.py", choices=["auto", "deepspeed", "torch"], default="auto")
    add("--zero_stage", "of DeepSpeed", type=int, choices=[0, 1, 2, 3], default=2)
    add("--kl_coef", "of the penalty; 0: no reference model", type=float, default=0.001)
    add("--micro_batch_tokens", "tokens per forward pass, padding included", type=int, default=8192)
    add("--lora_rank", "of adapters; 0: all weights are trained", type=int, default=0)
    add("--offload", "AdamW in main memory", action="store_true")
    add("--gradient_checkpointing", "less memory for a third more computation", action="store_true")
    add("--peak_tflops", "of the card; left out: from a table of well-known ones", type=float)
    add("--dir", "where the random models are kept (10 GB)", default=os.path.join(runs.OUT, "gpu"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main():
    args = parse_args()
    if args.measure:
        return print(
            json.dumps(
                describe_machine() if args.measure == "card" else measure(args.measure, args)
            )
        )

    sys.stdout.reconfigure(line_buffering=True)  # rows are seen as they come, into a file too
    machine = in_own_process("card", sys.argv[1:])
    if machine["card"].startswith("CPU"):
        args.dtype = "float32"
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    versions = ", ".join(
        f"{name} {installed.get(name, '-')}" for name in ("torch", "vllm", "deepspeed")
    )
    print(
        f"{machine['card']}, {machine['memory'] / 2**30:.1f} GiB; {versions}; "
        f"{datetime.date.today()}"
    )
    print(
        ", ".join(
            f"{k} {v}" for k, v in vars(args).items() if k not in ("models", "dir", "measure")
        )
        + "\n"
    )
    print(
        "| model | part | seconds | tokens a second | MFU | peak memory | trainer against sampler |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in args.models:
        for cells in rows(
            name,
            in_own_process(name, sys.argv[1:]),
            args.peak_tflops or peak_tflops(machine["card"]),
        ):
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
