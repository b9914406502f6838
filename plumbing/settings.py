"""Settings without an equation: engine, evaluation, record; their check; the command line.

A lesson's config is a dataclass that inherits from groups of settings, its own and those below. The
comment beside a setting is its help. Nothing heavy is imported here, so that --help and wrong flags
answer at once.
"""

import dataclasses
import functools
import json
import math
import operator
import os
import re
import sys
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Literal

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the repository

# Types of settings: what the command line parses, and what a value must be.
PositiveInt = Annotated[int, "at least 1"]
NonNegativeInt = Annotated[int, "at least 0"]
PositiveFloat = Annotated[float, "above 0"]
NonNegativeFloat = Annotated[float, "at least 0"]


class UserError(Exception):
    """An error that the user can fix: one sentence that says what to do. Exit code 2."""


def find(path):
    """The path, or the repository's directory of that name where the working one has none."""
    inside = os.path.join(ROOT, path)
    return inside if os.path.isdir(inside) and not os.path.isdir(path) else path


@dataclass(kw_only=True)
class Engine:
    """processes, precision, memory"""

    # auto: a GPU, or the CPU where torch sees none; cuda: a GPU, or stop; cpu: bfloat16 there, too,
    # which is slow on most
    device: Literal["auto", "cuda", "cpu"] = "auto"
    # above 0: no run; print the memory that it would need on a GPU of this many GB; needs no GPU
    plan: NonNegativeFloat = 0.0
    # who samples: vLLM, or the loop of plumbing/sampler.py; auto: vLLM on a GPU where it imports
    rollout: Literal["auto", "transformers", "vllm"] = "auto"
    # who updates: DeepSpeed, or torch's AdamW, for one process; auto: DeepSpeed where it imports
    engine: Literal["auto", "deepspeed", "torch"] = "auto"
    # share of the GPU for vLLM; raise it if rollouts wait for KV cache
    vllm_gpu_memory_utilization: PositiveFloat = 0.3
    # prove that the sampler gets all weights: perturb them at the start, sync, and compare its
    # log-probs with the trainer's, then again after each step; stop where they differ
    check_sync: bool = False
    # tokens per forward pass, as many as its rows have with padding (models like Llama compute
    # fewer: none of it, and a group's prompt once); lower it first if memory runs out
    micro_batch_tokens: PositiveInt = 4096
    # DeepSpeed ZeRO: 1 shards AdamW's states over the processes, 2 also gradients, 3 also weights
    zero_stage: Literal[0, 1, 2, 3] = 2
    # of the policy's weights [on a GPU bfloat16; the master weights are float32]
    dtype: Literal["float32", "bfloat16"] = "float32"
    # AdamW's states and step in main memory: slower, 12 bytes a parameter less on the GPU
    offload: bool = False
    # recompute activations in the backward pass [3B on 80 GB: yes]
    gradient_checkpointing: bool = False
    # stop where the reward of one completion takes longer, in seconds (0: never stop); a task of
    # your own is called in a thread then
    reward_seconds: NonNegativeInt = 60
    # stop after this many steps in a row with a loss or gradient that is not finite
    max_bad_steps: PositiveInt = 3
    # above 0: train low-rank adapters of this rank instead of all weights (peft) [16]
    lora_rank: NonNegativeInt = 0
    lora_alpha: PositiveInt = 32  # scale of the adapters: alpha / rank
    # layers that get adapters: all-linear, or names, e.g. q_proj,v_proj
    lora_target_modules: str = "all-linear"
    lora_merge: bool = False  # save the final model with the adapters merged into its weights


@dataclass(kw_only=True)
class Evaluation:
    """evaluation"""

    # evaluate, draw curves, show samples every N steps (0: only before and after)
    eval_every: NonNegativeInt = 20
    # at most this many evaluation problems; 512 give an interval of about +-0.04
    eval_problems: PositiveInt = 512
    # evaluate on this file's first eval_problems rows, not on held-out problems
    eval_data: str | None = None


@dataclass(kw_only=True)
class EvaluationOnly:
    """evaluation of a model, without training"""

    # no training: evaluate --model, greedy and sampled, and save its completions
    eval_only: bool = False
    # completions of each problem with --eval_only, at --temperature: pass@k, maj@k
    eval_samples: PositiveInt = 8


@dataclass(kw_only=True)
class Record:
    """record, checkpoints"""

    # checkpoint every N steps (0: never); the final model is always saved
    save_every: NonNegativeInt = 50
    keep_checkpoints: PositiveInt = 2  # older checkpoints are deleted
    # every N steps nano_r1.py keeps each token's log-prob, its entropy, and what the update did
    # to it: one more forward pass and some 70 KB a step (0: never); left out: 4 for models of up
    # to 100M parameters, 0 for larger ones
    record_tokens_every: NonNegativeInt | None = None
    # at the end make report.html: every completion and every token, in one file for a browser
    report: bool = True
    name: str | None = None  # name of the run's directory; left out: task, date and time
    out: str = "out"  # where run directories go
    # a run's directory: go on from its last checkpoint, with its settings
    resume: str | None = None
    seed: int = 0  # every random choice derives from it
    # also log to Weights & Biases; offline needs no account
    wandb: Literal["off", "online", "offline"] = "off"


# What may change on resume: length, location, and what changes results by rounding at most.
RESUMABLE = (
    "steps resume wandb out name micro_batch_tokens vllm_gpu_memory_utilization "
    "gradient_checkpointing check_sync lora_merge save_every keep_checkpoints eval_every "
    "max_bad_steps reward_seconds record_tokens_every report device plan engine"
).split()


def check_settings(config):
    """Raise UserError, one sentence, for the first setting that is not what its type says."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
            setattr(config, field.name, value)
        fault = fault_of(value, field.type)
        if fault:
            raise UserError(f"--{field.name} {value}: it must be {fault}.")
    check_together(config)


def fault_of(value, kind):
    """What a value must be and is not, in words; None if it is of that type."""
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin is Literal:
        return None if value in args else f"one of {', '.join(map(str, args))}"
    if origin in (typing.Union, types.UnionType):  # NonNegativeInt | None
        return None if value is None else fault_of(value, args[0])
    if origin is Annotated:  # int, "at least 1"
        words, limit = args[1].rsplit(" ", 1)
        meets = operator.gt if words == "above" else operator.ge
        fault = fault_of(value, args[0])
        return fault or (None if meets(value, float(limit)) else args[1])
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or isinstance(value, bool) and kind is not bool:
        return {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}[
            kind
        ]
    return "finite" if kind is float and not math.isfinite(value) else None


def check_together(config):
    """Settings of this file that exclude each other."""
    if config.offload and config.zero_stage == 0:
        raise UserError("--offload needs --zero_stage 1, 2 or 3.")
    if config.dtype == "bfloat16" and config.zero_stage < 2:
        reason = "the others sum gradients in bfloat16"
        raise UserError(f"--dtype bfloat16 needs --zero_stage 2 or 3: {reason}.")
    if config.lora_target_modules != "all-linear" and not config.lora_rank:
        raise UserError("--lora_target_modules has no effect without --lora_rank, e.g. 16.")
    name = config.name
    if getattr(config, "learning_rate", 0) > 1000:  # AdamW computes it in float32
        raise UserError(f"--learning_rate {config.learning_rate}: it must be far below 1.")
    odd = name in ("", ".", "..") or not str(name).isprintable()  # a line break
    if name is not None and (odd or os.path.basename(name) != name):
        raise UserError(f"--name {name!r}: a name, not a path; --out says where runs go.")


def read_config(path, config_class):
    """The config of the run in directory `path`, with `resume` set to it.

    Its attribute `functions`, which is no setting, names the functions that `main` was given.
    """
    try:
        with open(os.path.join(path, "config.json")) as file:
            saved = {**json.load(file), "resume": path}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"--resume {path}: no readable config.json there ({error}).") from None
    functions = saved.pop("functions", "")
    known = {field.name for field in dataclasses.fields(config_class)}
    made = "its config.json was made by another script (variants.py, nano_sft.py) or version"
    for name in saved:
        if name not in known:
            raise UserError(f"--resume {path}: {made}: unknown setting {name!r}.")
    parent = config_class.__mro__[1]  # variants.py's Config extends nano_r1.py's
    added = known - {field.name for field in dataclasses.fields(parent)}
    if parent.__name__ == config_class.__name__ and added.isdisjoint(saved):
        raise UserError(f"--resume {path}: {made}: it has no setting {min(added)!r}.")
    try:
        config = config_class(**saved)
    except UserError as error:
        raise UserError(f"{path}/config.json: {error}") from None
    config.functions = functions
    return config


def check_resumable(config, functions=None):
    """With `resume`: raise UserError if the run was started with other settings or functions."""
    if not config.resume:
        return
    saved = read_config(config.resume, type(config))
    fixed = [f.name for f in dataclasses.fields(config) if f.name not in RESUMABLE]
    changed = [name for name in fixed if getattr(config, name) != getattr(saved, name)]
    if changed:
        raise UserError(
            f"--resume keeps the settings of {config.resume}: drop --{' --'.join(changed)}."
        )
    if functions not in (None, saved.functions):
        asked = f"was run by main with {saved.functions or 'the functions of its script'}"
        hint = "call main with the same (docs/own_loss.md)"
        raise UserError(f"{config.resume} {asked}, not {functions or 'with those'}: {hint}.")


NICKNAMES = {"lr": "learning_rate", "beta": "kl_coef", "batch_size": "prompts_per_step"}


def refuse_slips(argv, known, prog):
    """Raise UserError for a flag of variants.py, another name of one, a switch with a value."""
    of_variants = set()
    if prog == "nano_r1.py":
        with open(os.path.join(ROOT, "variants.py"), encoding="utf-8") as file:
            of_variants = set(re.findall(r"^    (\w+): ", file.read(), re.MULTILINE)) - set(known)
    for arg, after in zip(argv, [*argv[1:], "-"]):
        name, equals, _ = arg.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not arg.startswith("--"):
            continue
        if name in of_variants:
            raise UserError(f"--{name} is a setting of variants.py.")
        if name not in known and NICKNAMES.get(name) in known:
            raise UserError(f"There is no --{name}; it is --{NICKNAMES[name]} here.")
        if isinstance(known.get(name), bool) and (equals or not after.startswith("-")):
            raise UserError(f"--{name} takes no value: it is --{name} or --no-{name}.")


def parse_args(config_class, prog, description, argv=None):
    """Command line -> config. With --resume the defaults are the settings of that run.

    `tyro` makes a flag of each field, its help of the comment; every group is a heading.
    """
    import tyro

    argv = sys.argv[1:] if argv is None else argv
    argv = [arg for arg in argv if not arg.startswith("--local_rank")]  # deepspeed's launcher's
    resume = [value for flag, value in zip(argv, argv[1:]) if flag == "--resume"]
    resume += [arg.removeprefix("--resume=") for arg in argv if arg.startswith("--resume=")]
    saved = dataclasses.asdict(read_config(resume[-1], config_class)) if resume else {}
    defaults = {f.name: f.default for f in dataclasses.fields(config_class)} | saved
    refuse_slips(argv, defaults, prog)
    groups = []
    for group in config_class.__mro__:
        if dataclasses.is_dataclass(group) and group.__bases__ == (object,):
            values = {f.name: defaults[f.name] for f in dataclasses.fields(group)}
            made = dataclasses.field(default_factory=functools.partial(group, **values))
            groups.append((group.__name__.lower(), group, made))
    command_line = dataclasses.make_dataclass("CommandLine", groups)
    parsed = tyro.cli(
        command_line,
        prog=prog,
        description=f"{description} In [brackets]: what a 0.5B-3B model wants; see runs/.",
        args=argv,
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    values = {}
    for group in vars(parsed).values():
        values |= vars(group)
    return config_class(**values)
