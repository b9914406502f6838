"""Settings without an equation: engine, evaluation, record; their checks; the command line.

A lesson's config is a dataclass that inherits from groups of settings, its own and those below. The comment beside a
setting is its help. Nothing heavy is imported here, so that --help and wrong flags answer at once.
"""

import dataclasses
import json
import math
import os
import sys
import typing
from dataclasses import dataclass
from typing import Literal

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the repository


class UserError(Exception):
    """An error that the user can fix; the message is one sentence that says what to do. Exit code 2."""


def find(path):
    """The path itself, or the directory of that name in the repository where the working directory has none."""
    inside = os.path.join(ROOT, path)
    return inside if os.path.isdir(inside) and not os.path.isdir(path) else path


@dataclass
class Engine:
    """processes, precision, memory"""

    # auto: a GPU, or the CPU where torch sees none; cuda: a GPU, or stop. bfloat16 needs one in any case
    device: Literal["auto", "cuda"] = "auto"
    plan: float = 0.0  # above 0: no run; print the memory it would need on a GPU of this many GB; works without one
    # who samples: vLLM, or the loop of plumbing/sampler.py; auto takes vllm on a GPU where it is installed
    rollout: Literal["auto", "transformers", "vllm"] = "auto"
    vllm_gpu_memory_utilization: float = 0.3  # share of the GPU for vLLM; raise it if rollouts wait for KV cache
    # prove that the sampler gets all weights: perturb them at the start, sync, and compare its log-probs with the
    # trainer's, then again after each step; stop where they differ
    check_sync: bool = False
    micro_batch_tokens: int = 4096  # tokens per forward pass, padding included: lower it first if memory runs out
    # DeepSpeed ZeRO: 1 shards AdamW's states over the processes, 2 the gradients too, 3 the weights too
    zero_stage: Literal[0, 1, 2, 3] = 2
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the policy's weights [GPU: bfloat16; master weights float32]
    offload: bool = False  # AdamW's states and step in main memory: slower, 12 bytes a parameter less on the GPU
    gradient_checkpointing: bool = False  # recompute activations in the backward pass [3B on 80 GB: yes]
    max_bad_steps: int = 3  # stop after this many steps in a row with a loss or gradient that is not finite
    lora_rank: int = 0  # above 0: train low-rank adapters of this rank instead of all weights (peft) [16]
    lora_alpha: int = 32  # scale of the adapters: alpha / rank
    lora_target_modules: str = "all-linear"  # layers that get adapters: all-linear, or names, e.g. q_proj,v_proj
    lora_merge: bool = False  # save the final model with the adapters merged into its weights


@dataclass
class Evaluation:
    """evaluation"""

    eval_every: int = 20  # evaluate, draw curves, show samples every N steps (0: only before and after)
    eval_problems: int = 512  # at most this many evaluation problems; 512 give an interval of about +-0.04
    eval_data: str | None = None  # evaluate on this file's first eval_problems rows, not on held-out problems


@dataclass
class EvaluationOnly:
    """evaluation of a model, without training"""

    eval_only: bool = False  # no training: evaluate --model, greedy and sampled, and save its completions
    eval_samples: int = 8  # completions of each problem with --eval_only, at --temperature: pass@k, maj@k


@dataclass
class Record:
    """record, checkpoints"""

    save_every: int = 50  # checkpoint every N steps (0: never); the final model is always saved
    keep_checkpoints: int = 2  # older checkpoints are deleted
    # every N steps nano_r1.py keeps each token's log-prob, its entropy, and what the update did to it: one more forward
    # pass and some 70 KB a step (0: never); left out: 4 for models of up to 100M parameters, 0 for larger ones
    record_tokens_every: int | None = None
    report: bool = True  # at the end make report.html: every completion and every token, in one file for a browser
    name: str | None = None  # name of the run's directory; left out: task, date and time
    out: str = "out"  # where run directories go
    resume: str | None = None  # a run's directory: go on from its last checkpoint, with its settings
    seed: int = 0  # every random choice derives from it
    wandb: Literal["off", "online", "offline"] = "off"  # also log to Weights & Biases; offline needs no account


# Settings that may change on resume: length, location, and what changes results by rounding at most.
RESUMABLE = (
    "steps resume wandb out name micro_batch_tokens vllm_gpu_memory_utilization gradient_checkpointing check_sync "
    "lora_merge save_every keep_checkpoints eval_every max_bad_steps record_tokens_every report device plan"
).split()


def require(config, condition, names):
    """Raise UserError for the first of `names` (one text) that the config has and that breaks the condition."""
    test = {
        "at least 1": lambda value: value >= 1,
        "not negative": lambda value: value >= 0,
        "above 0": lambda value: value > 0,
    }[condition]
    for name in names.split():
        value = getattr(config, name, None)
        if value is not None and not (test(value) and math.isfinite(value)):
            raise UserError(f"--{name} {value}: it must be {condition}, and finite.")


def check_run_settings(config):
    """The checks of the settings above, and of every choice, for the configs that inherit from them."""
    for field in dataclasses.fields(config):
        choices, value = typing.get_args(field.type), getattr(config, field.name)
        if typing.get_origin(field.type) is Literal and value not in choices:
            raise UserError(f"--{field.name} {value}: it must be one of {', '.join(map(str, choices))}.")
    require(config, "at least 1", "micro_batch_tokens max_bad_steps lora_alpha eval_problems keep_checkpoints")
    require(config, "not negative", "lora_rank eval_every save_every record_tokens_every plan")
    require(config, "above 0", "vllm_gpu_memory_utilization")
    if config.offload and config.zero_stage == 0:
        raise UserError("--offload needs --zero_stage 1, 2 or 3.")
    if config.dtype == "bfloat16" and config.zero_stage < 2:
        raise UserError("--dtype bfloat16 needs --zero_stage 2 or 3: the others sum gradients in bfloat16.")
    if config.lora_target_modules != "all-linear" and not config.lora_rank:
        raise UserError("--lora_target_modules without --lora_rank has no effect: give a rank, e.g. --lora_rank 16.")
    if config.name and os.path.basename(config.name) != config.name or config.name in (".", ".."):
        raise UserError(f"--name {config.name}: a name, not a path; --out says where run directories go.")


def read_config(path, config_class):
    """The config of the run in directory `path`, with `resume` set to it."""
    try:
        with open(os.path.join(path, "config.json")) as file:
            return config_class(**{**json.load(file), "resume": path})
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"--resume {path}: no readable config.json there ({error}).") from None


def check_resumable(config):
    """With `resume`: raise UserError, before anything is written, if the run was started with other settings."""
    if config.resume:
        saved = read_config(config.resume, type(config))
        fixed = [f.name for f in dataclasses.fields(config) if f.name not in RESUMABLE]
        changed = [name for name in fixed if getattr(config, name) != getattr(saved, name)]
        if changed:
            raise UserError(f"--resume keeps the settings of {config.resume}: drop --{' --'.join(changed)}.")


def parse_args(config_class, prog, description, argv=None):
    """Command line -> config. With --resume the defaults are the settings of that run.

    `tyro` makes a flag of each field, with the comment beside it as its help; every group is a heading.
    """
    import tyro

    argv = [
        arg for arg in (sys.argv[1:] if argv is None else argv) if not arg.startswith("--local_rank")
    ]  # deepspeed's
    resume = [value for flag, value in zip(argv, argv[1:]) if flag == "--resume"]
    resume += [arg.removeprefix("--resume=") for arg in argv if arg.startswith("--resume=")]
    saved = dataclasses.asdict(read_config(resume[-1], config_class)) if resume else {}
    defaults = {f.name: f.default for f in dataclasses.fields(config_class)} | saved
    groups = []
    for group in reversed(config_class.__mro__[1:-1]):
        own = {f.name: defaults[f.name] for f in dataclasses.fields(group)}
        groups.append((group.__name__.lower(), group, dataclasses.field(default_factory=lambda g=group, o=own: g(**o))))
    command_line = dataclasses.make_dataclass("CommandLine", groups)
    parsed = tyro.cli(
        command_line,
        prog=prog,
        description=f"{description} In [brackets]: what a 0.5B-3B model or a GPU wants, or what is usual; see runs/.",
        args=argv,
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    values = {}
    for name, _, _ in groups:
        values |= dataclasses.asdict(getattr(parsed, name))
    config = config_class(**values)
    check_resumable(config)
    return config
