"""Checkpoints: the policy in Hugging Face format beside AdamW's float32 weights and moments.

All in safetensors: loading one runs no code. Each is written under a hidden name, flushed and
renamed, so it is complete or absent. No random state is stored: every random choice derives from
seed and step, so a resumed run is the same run.
"""

import dataclasses
import functools
import glob
import json
import os
import zlib

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from plumbing.files import atomic_write, numbered, read_json, remove, write_text, writing
from plumbing.models import gathered, merged_weights
from plumbing.processes import broadcast
from plumbing.settings import RESUMABLE, UserError
from plumbing.torch_engine import engine_kind
from plumbing.waiting import tell


def save_policy(model, tokenizer, path, merge=False):
    """Save model and tokenizer in Hugging Face format. Called on all processes; the first writes.

    With LoRA only the adapters are saved, unless `merge`.
    """
    with gathered(model):
        if dist.get_rank() == 0:
            with atomic_write(path, flush=True) as hidden:
                if merge and hasattr(model, "peft_config"):
                    weights = dict(merged_weights(model))
                    model.get_base_model().save_pretrained(hidden, state_dict=weights)
                else:
                    model.save_pretrained(hidden)
                tokenizer.save_pretrained(hidden)
    dist.barrier()


def master_params(engine):
    """The float32 tensors that AdamW updates: ZeRO's flat partitions, or the weights themselves."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):  # 1, 2; 3
        if hasattr(engine.optimizer, name):
            return getattr(engine.optimizer, name)
    return [p for group in engine.optimizer.param_groups for p in group["params"]]


def own_cpu_tensor(tensor):
    """The tensor on the CPU, with memory of its own: safetensors refuses to share."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def save_checkpoint(engine, tokenizer, directory, step, config):
    """Write `directory`/step_000050/, keep the newest `config.keep_checkpoints`.

    Called on all processes: the first makes the hidden directory and renames it at the end, the
    others only write into it.
    """
    first = dist.get_rank() == 0
    path = os.path.join(directory, f"step_{step:06d}")
    with atomic_write(path, flush=True) if first else writing(path) as hidden:
        (hidden,) = broadcast(hidden)
        os.makedirs(hidden, exist_ok=True)
        save_policy(engine.module, tokenizer, os.path.join(hidden, "policy"))
        tensors = {}
        for i, weight in enumerate(master_params(engine)):
            state = {"weight": weight, **engine.basic_optimizer.state[weight]}
            tensors |= {f"{i}.{key}": own_cpu_tensor(t.detach()) for key, t in state.items()}
        name = os.path.join(hidden, f"optimizer_{dist.get_rank():03d}.safetensors")
        save_file(tensors, name, metadata={"engine": engine_kind(config)})
        dist.barrier()
        if first:
            settings = json.dumps(dataclasses.asdict(config))
            write_text(os.path.join(hidden, "config.json"), settings)
            record = checksums(os.path.dirname(os.path.abspath(directory)), RECORD)
            write_text(os.path.join(hidden, "record.json"), json.dumps(record))
            write_text(os.path.join(hidden, "checksums.json"), json.dumps(checksums(hidden)))
    until_now = [old for at, old in numbered(directory).items() if at <= step]
    for old in until_now[: -config.keep_checkpoints] if first else ():
        half = os.path.join(directory, f".{os.path.basename(old)}.tmp")
        os.rename(old, half)  # hidden first: one that is half deleted must not be used
        remove(half)
    dist.barrier()


RECORD = ("metrics.jsonl", "episodes/*", "held_out/*", "tokens/*")  # written before a checkpoint


def checksums(directory, patterns=("**",)):
    """{file: CRC-32} of the files below the directory, but for the list of them."""
    found = {}
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, root_dir=directory, recursive=True)):
            path = os.path.join(directory, name)
            if os.path.isfile(path) and name != "checksums.json":
                stat = os.stat(path)
                found[name] = crc_of_version(path, stat.st_mtime_ns, stat.st_size)
    return found


@functools.lru_cache(maxsize=100_000)  # only metrics.jsonl is written more than once
def crc_of_version(path, *_):
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(2**24):
            crc = zlib.crc32(block, crc)
    return crc


def changed_files(directory, listing, patterns=("**",)):
    """The files that are not what they were when the list was written; it, if it is damaged."""
    written = read_json(listing)
    if not isinstance(written, dict):
        return [os.path.basename(listing)]
    found = checksums(directory, patterns)
    return [name for name, crc in written.items() if found.get(name) != crc]


def check_settings_of(run, checkpoint):
    """Say how a run's config.json differs from its checkpoint's; UserError if results do, too."""
    with open(os.path.join(checkpoint, "config.json")) as file:
        before = json.load(file)
    with open(os.path.join(run, "config.json")) as file:
        now = json.load(file)
    for name, value in before.items():
        if now.get(name, value) != value and name not in ("resume", "out", "name"):
            said = f"{run}/config.json says {name} {now[name]}, the checkpoint {value}"
            if name not in RESUMABLE:
                raise UserError(f"{said}: put it right.")
            tell(f"NOTE: {said}.")


def newest_checkpoint(directory):
    """(path, step) of the newest whole checkpoint, or (None, 0); the same on every process."""
    found = (None, 0)
    changed = []
    checkpoints = numbered(directory) if dist.get_rank() == 0 else {}
    for step, path in reversed(checkpoints.items()):
        changed = changed_files(path, os.path.join(path, "checksums.json"))
        if not changed:
            found = (path, step)
            break
        fault = f"{changed[0]} is missing, cut short or changed"
        tell(f"WARNING: {path} is skipped: {fault}.")
    found, changed = broadcast(found, changed)
    if changed:  # there are checkpoints, and none is whole
        raise UserError(f"No checkpoint in {directory} is whole; delete it to start at step 0.")
    return found


def resume_point(config):
    """(checkpoint, step) from which --resume goes on; (None, 0) without it, or without any."""
    if not config.resume:
        return None, 0
    path, step = newest_checkpoint(os.path.join(config.resume, "checkpoints"))
    if path is None:
        return None, 0
    check_settings_of(config.resume, path)
    if step > config.steps:
        raise UserError(f"--steps {config.steps}: {config.resume} has done {step} already.")
    with safe_open(os.path.join(path, "optimizer_000.safetensors"), "pt") as file:
        written = file.metadata()["engine"]
    if written != engine_kind(config):  # the other engine's tensors are cut in another way
        raise UserError(f"{path} was written by --engine {written}: resume with that.")
    return path, step


def restore_optimizer(engine, path):
    """Load AdamW's float32 weights and moments from a checkpoint, if there is one."""
    if path is None:
        return
    name = os.path.join(path, f"optimizer_{dist.get_rank():03d}.safetensors")
    saved = load_file(name) if os.path.exists(name) else {}
    weights = master_params(engine)
    shapes = {f"{i}.weight": w.shape for i, w in enumerate(weights)}
    if shapes != {key: t.shape for key, t in saved.items() if key.endswith(".weight")}:
        raise UserError(f"{path} is of another number of processes than {dist.get_world_size()}.")
    state = engine.basic_optimizer.state
    on_cpu = not engine.basic_optimizer.defaults["fused"]  # where AdamW keeps its step
    for key, tensor in saved.items():
        number, name = key.split(".")
        weight = weights[int(number)]
        if name == "weight":
            weight.data.copy_(tensor)
        else:
            state[weight][name] = tensor if name == "step" and on_cpu else tensor.to(weight.device)
