# %% [markdown]
# # nano_r1: teach a base language model to reason, in one file
#
# Reinforcement learning from verifiable rewards (RLVR), the recipe of DeepSeek-R1-Zero: ask the model a question whose
# answer a small program can check, let it try several times, and make the tries that did better than average more
# likely. Nobody shows it how to reason. Everything between `python nano_r1.py` and the trained model is on this page;
# only the task (prompt, problems, reward) lives in a file of its own, `countdown_rewards.py`.
#
#     python nano_r1.py --task countdown                     # 2 CPU cores, ten minutes, no account, no download
#     python nano_r1.py --task countdown --resume out/NAME   # go on after an interruption
#     python nano_r1.py --eval_only --model out/NAME/model   # pass@k, maj@k, strict and lenient, by subgroup
#     python nano_r1.py --help                               # every setting, and what a 0.5B-3B model wants instead
#     bash runs/countdown_qwen2.5_1.5b.sh                    # the same loop, Qwen2.5-1.5B, one GPU
#     torchrun --nproc_per_node 8 nano_r1.py ...             # the same loop, eight GPUs
#
# One step of GRPO (Shao et al. 2024, arXiv:2402.03300; DeepSeek-AI 2025, arXiv:2501.12948), numbered as in `main`:
#
#  1. sample m questions
#  2. sample n completions of each from the current policy (vLLM, or the loop of section 4)
#  3. reward each completion with the task's verifier
#  4. advantage = (reward - mean of its group) / standard deviation of its group: the group replaces PPO's critic
#  5. log-probabilities under the frozen reference model (only when the KL penalty is on)
#  6. loss: -advantage * log-probability, per token
#  7. one optimizer step (DeepSpeed), and the new weights go to the sampler
#  8. log, and every so often evaluate and save a checkpoint
#
# Said aloud, what is simpler here than in the paper: one optimizer step per batch, so the importance ratio is 1 and the
# clip never acts (`--loss grpo_clip --epochs 2` brings both back); the loss is averaged over all tokens of the step
# (DAPO, arXiv:2503.14476), not over each completion first; the KL penalty is off by default (`--kl_coef 0.001` is the
# setting of the original nano-aha-moment); no value network, no reward model, no process supervision.

# %%
import argparse
import collections
import contextlib
import copy
import ctypes
import dataclasses
import functools
import importlib.util
import json
import logging
import math
import os
import random
import shutil
import signal
import sys
import time
import warnings
import zlib
from dataclasses import dataclass, field

# %% [markdown]
# ## 1. Settings
#
# Each setting stands beside its default, which is right for the embedded 1M-parameter model on two cores, and its help,
# which says what a 0.5B-3B model wants instead. `Config(steps=20)` in a notebook is `--steps 20` on the command line.


# %%
def setting(default, help, choices=None):
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass
class Config:
    """Everything a run depends on; saved as `config.json` in the run's directory."""

    # What may differ when a run is resumed: how long, where, and what does not touch its numbers but for rounding.
    MAY_CHANGE = (
        "steps resume wandb out name micro_batch_tokens vllm_memory gradient_checkpointing check_sync lora_merge "
        "save_every keep_checkpoints eval_every max_bad_steps"
    ).split()

    # what to learn, and from what
    task: str = setting("countdown", "the task: the module TASK_rewards.py beside this file")
    model: str = setting("models/nano-base", "a local directory or a hub id [0.5B-3B: Qwen/Qwen2.5-1.5B]")
    data: str = setting(None, "problems: a jsonl/json/csv/parquet file, or `hub`; left out: the built-in generator")
    eval_data: str = setting(None, "evaluate on every row of this file instead of the held-out problems")
    prompt: str = setting(
        "short", "which of the task's prompts: short, chat, plain; countdown also reasoning, steps [0.5B-3B: chat]"
    )
    # the rollout
    questions: int = setting(32, "m, questions per step [0.5B-3B: 16 in nano-aha-moment, 128 if you can]")
    completions: int = setting(8, "n, completions per question, the group [0.5B-3B: 4 in nano-aha-moment, 8 is better]")
    sampling_rounds: int = setting(
        1, "sample further questions, at most so many times, until m groups have a signal (DAPO's dynamic sampling) [3]"
    )
    max_tokens: int = setting(320, "completions longer than this are cut off [0.5B-3B: 1024]")
    temperature: float = setting(1.0, "of sampling; the loss scores the same distribution, so no top-p, no top-k")
    rollout: str = setting(
        "auto", "who samples; auto: vllm on a GPU where it is installed", ["auto", "transformers", "vllm"]
    )
    vllm_memory: float = setting(0.3, "share of the GPU for vLLM; raise it if rollouts wait for room in the KV cache")
    # the objective
    loss: str = setting(
        "reinforce_with_baseline",
        "no_baseline: raw rewards; reinforce_with_baseline: advantages; grpo_clip: advantages and PPO's clip on each "
        "token's ratio; gspo: the same with one ratio for the whole completion",
        ["no_baseline", "reinforce_with_baseline", "grpo_clip", "gspo"],
    )
    baseline: str = setting(
        "group_mean",
        "what a reward is compared with; leave_one_out: the mean of the others (RLOO)",
        ["group_mean", "leave_one_out"],
    )
    normalize_by_std: bool = setting(True, "divide advantages by a standard deviation (no: Dr. GRPO, RLOO)")
    std_of: str = setting(
        "group", "which: of the group, unbiased or biased, or of the whole batch", ["group", "group_biased", "batch"]
    )
    advantage_eps: float = setting(1e-4, "added to that standard deviation")
    credit: str = setting(
        "completion",
        "completion: all tokens of a completion share its advantage; vineppo: each segment gets the change of value "
        "that it brought, estimated by sampling on from its two ends (costs several times the rollout)",
        ["completion", "vineppo"],
    )
    vine_segments: int = setting(4, "segments of a completion with vineppo")
    vine_samples: int = setting(4, "K, continuations sampled from the end of each segment [VinePPO: 9]")
    aggregate: str = setting(
        "token_mean",
        "of the per-token losses: token_mean over the step (DAPO), sequence_mean of each completion's mean (GRPO), "
        "constant: their sum over completions x max_tokens (Dr. GRPO)",
        ["token_mean", "sequence_mean", "constant"],
    )
    cliprange: float = setting(0.2, "epsilon of the clip [gspo: 3e-4]")
    cliprange_high: float = setting(None, "its upper end, where it differs [DAPO's clip-higher: 0.28]")
    epochs: int = setting(1, "passes over each rollout batch; above 1 use grpo_clip or gspo")
    minibatches: int = setting(1, "optimizer steps per pass; above 1 use grpo_clip or gspo")
    kl_coef: float = setting(0.0, "weight of the KL penalty; above 0 a frozen reference is loaded [nano-aha: 0.001]")
    kl_estimator: str = setting("k3", "which estimate the penalty uses; k1 is a poor loss: try it", ["k3", "k2", "k1"])
    entropy_coef: float = setting(0.0, "weight of an entropy bonus, against collapse")
    mask_truncated: bool = setting(False, "no gradient from completions that were cut off (DAPO's overlong filtering)")
    overlong_buffer: int = setting(0, "over the last so many of max_tokens the reward falls by up to 1 (DAPO)")
    importance_cap: float = setting(
        0.0, "above 0: weight tokens by trainer / sampler probability, at most this (truncated importance sampling) [2]"
    )
    # the update
    steps: int = setting(60, "GRPO steps [0.5B-3B: 200-1000]")
    learning_rate: float = setting(1.5e-4, "peak [0.5B: 5e-6, 1.5B: 2e-6, 3B: 1e-6]")
    warmup_steps: int = setting(10, "linear warm-up; Adam's first steps are its least certain ones")
    schedule: str = setting(
        "linear", "after the warm-up: linear decay, to 0 after the last step, or constant", ["linear", "constant"]
    )
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this norm")
    weight_decay: float = setting(0.0, "AdamW's")
    micro_batch_tokens: int = setting(8192, "tokens, padding included, per forward pass: lower it first on a full GPU")
    zero_stage: int = setting(
        2, "DeepSpeed ZeRO: 2 shards optimizer and gradients over the processes, 3 the weights too", [0, 1, 2, 3]
    )
    check_sync: bool = setting(
        False,
        "prove that the sampler gets all weights: compare its log-probabilities with the trainer's, at the start with "
        "weights moved visibly, then after each step; stop where they differ",
    )
    dtype: str = setting(
        "float32", "of the policy's weights [GPU: bfloat16, with float32 master weights]", ["float32", "bfloat16"]
    )
    offload: bool = setting(False, "keep AdamW's states in main memory, and step there: slower, 12 bytes a weight less")
    max_bad_steps: int = setting(3, "stop after so many updates in a row whose loss or gradient was not finite")
    lora_rank: int = setting(0, "above 0: train low-rank adapters of this rank instead of all weights (peft) [16]")
    lora_alpha: int = setting(32, "scale of the adapters: alpha / rank")
    lora_targets: str = setting("all-linear", "layers that get adapters: all-linear, or names, e.g. q_proj,v_proj")
    lora_merge: bool = setting(False, "save the final model with the adapters added to its weights, not apart")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass [3B on 80 GB: yes]")
    # evaluation, records, checkpoints
    eval_every: int = setting(20, "evaluate, draw curves, show samples every so many steps (0: first and last only)")
    eval_problems: int = setting(512, "at most so many evaluation problems; 512 give an interval of about +-0.04")
    eval_only: bool = setting(False, "no training: evaluate --model, greedy and sampled, and write what it answered")
    eval_samples: int = setting(8, "completions of each problem with --eval_only, at --temperature: pass@k, maj@k")
    save_every: int = setting(50, "checkpoint every so many steps (0: never); the final model is always saved")
    keep_checkpoints: int = setting(2, "older checkpoints are deleted")
    name: str = setting(None, "name of the run's directory; left out: task, date and time")
    out: str = setting("out", "where run directories go")
    resume: str = setting(None, "a run's directory: go on from its last checkpoint, with its settings")
    seed: int = setting(0, "every random choice derives from it")
    wandb: str = setting("off", "also log to Weights & Biases; offline needs no account", ["off", "online", "offline"])


class UserError(Exception):
    """Something the user can mend; the message is one sentence that says what to do. Ends the program with code 2."""


GROUPS = {  # the headings of --help, each above its first setting
    "task": "what to learn, and from what",
    "questions": "the rollout",
    "loss": "the objective",
    "steps": "the update",
    "eval_every": "evaluation, records, checkpoints",
}
DESCRIPTION = "Teach a base language model to reason with reinforcement learning from verifiable rewards (GRPO)."


def parse_args(argv=None, config_class=Config, prog="nano_r1.py", description=DESCRIPTION, hidden=()):
    """Command line -> Config. With --resume it is the run's own, in which little may be changed."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [--setting value ...]",
        description=description,
        epilog="Settings in [brackets] are what a 0.5B-3B model or a GPU wants instead of the default; see runs/.",
        argument_default=argparse.SUPPRESS,  # so that we know which flags were given
    )
    group = parser
    for f in dataclasses.fields(config_class):
        group = parser.add_argument_group(GROUPS[f.name]) if f.name in GROUPS else group
        if f.name in hidden:
            continue
        options = {"help": f"{f.metadata['help']} (default: {f.default})".replace("%", "%%")}
        if f.type is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": f.type, "choices": f.metadata["choices"]}
            options["metavar"] = None if f.metadata["choices"] else f.name.upper()
        group.add_argument(f"--{f.name}", **options)
    parser.add_argument("--local_rank", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # of the deepspeed launcher
    given = vars(parser.parse_args(argv))
    given.pop("local_rank", None)
    if "resume" not in given:
        return check_config(config_class(**given), parser.error)
    try:
        with open(os.path.join(given["resume"], "config.json")) as file:
            saved = json.load(file)
        config = config_class(**saved)
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"--resume {given['resume']}: no readable config.json there ({error})")
    free = set(config.MAY_CHANGE) - {"out", "name"}
    changed = [k for k, v in given.items() if k not in free and v != getattr(config, k)]
    if changed:
        parser.error(f"--resume goes on with the settings of {given['resume']}; drop --{' --'.join(changed)}")
    return check_config(dataclasses.replace(config, **given), parser.error)


def check_config(config, error):
    at_least_one = (
        "questions completions sampling_rounds max_tokens epochs minibatches steps micro_batch_tokens max_bad_steps "
        "vine_segments vine_samples eval_problems eval_samples keep_checkpoints"
    )
    for name in at_least_one.split():
        if getattr(config, name) < 1:
            error(f"--{name} must be at least 1")
    not_negative = "kl_coef entropy_coef overlong_buffer importance_cap weight_decay lora_rank eval_every save_every"
    for name in (*not_negative.split(), "warmup_steps"):
        if getattr(config, name) < 0:
            error(f"--{name} must not be negative")
    for name in ("temperature", "learning_rate", "max_grad_norm", "cliprange", "advantage_eps"):
        if not getattr(config, name) > 0:
            error(f"--{name} must be above 0")
    if config.loss != "no_baseline" and config.completions < 2:
        error("--completions 1 leaves nothing to compare with: use at least 2, or --loss no_baseline")
    if config.epochs * config.minibatches > 1 and config.loss not in ("grpo_clip", "gspo"):
        error("--epochs and --minibatches above 1 train on an older policy's samples: take --loss grpo_clip or gspo")
    if config.sampling_rounds > 1 and config.loss == "no_baseline":
        error("--sampling_rounds looks for groups whose rewards differ, which --loss no_baseline does not need")
    if config.credit == "vineppo" and config.loss == "no_baseline":
        error("--credit vineppo is a baseline: it needs another --loss than no_baseline")
    if config.cliprange_high is not None and not config.cliprange_high > 0:
        error("--cliprange_high must be above 0")
    if config.offload and config.zero_stage == 0:
        error("--offload needs --zero_stage 1, 2 or 3")
    if config.overlong_buffer > config.max_tokens:
        error("--overlong_buffer must not exceed --max_tokens")
    return config


AS_SCRIPT = __name__ == "__main__" and "__file__" in globals()  # false in a notebook cell, and when imported
CONFIG = parse_args() if AS_SCRIPT else None  # before the slow imports: --help and wrong flags answer at once

# %%
# The libraries greet at length; what matters to a reader of this file is said by this file.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in this process, so that weights can be handed over
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint as recomputed
from tqdm import tqdm
from transformers.cache_utils import DynamicCache, DynamicLayer

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

# %% [markdown]
# ## 2. The primitives
#
# Log-probabilities, masks, advantages, losses: the dozen small functions every policy-gradient trainer for language
# models consists of, under their usual names. Shapes: B completions, T positions, V vocabulary entries. `labels[b, t]`
# is the token that should follow `input_ids[b, t]`; `response_mask` is 1 where that token was written by the model, its
# end-of-sequence token included (a model that gets no gradient there never learns to stop).


# %%
def pad_prompts_and_outputs(prompt_ids, output_ids, pad_id):
    """Token lists -> the tensors of `tokenize_prompt_and_output`, padded on the right."""
    rows = [p + o for p, o in zip(prompt_ids, output_ids)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])  # (B, T+1)
    position = torch.arange(1, width)  # of each label in its row
    starts = torch.tensor([len(p) for p in prompt_ids])[:, None]
    ends = torch.tensor([len(row) for row in rows])[:, None]
    response_mask = (starts <= position) & (position < ends)  # (B, T)
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "response_mask": response_mask}


def encode_prompt(text, tokenizer):
    """Token ids; a chat template has written the beginning-of-sequence token already, a plain prompt has not."""
    bos = getattr(tokenizer, "bos_token", None)
    return tokenizer.encode(text, add_special_tokens=bool(bos) and not text.startswith(bos))


def tokenize_prompt_and_output(prompt_strs, output_strs, tokenizer):
    """Tokenize prompts and outputs separately, join them, and mark the response.

    For text (supervised fine-tuning). The RL loop has token ids already and calls `pad_prompts_and_outputs` itself:
    decoding and tokenizing again may split the text differently from how the model wrote it.

    Returns:
        dict of `input_ids`, `labels` (B, T), int64, and `response_mask` (B, T), bool; T = longest row - 1.
    """
    prompts = [encode_prompt(s, tokenizer) for s in prompt_strs]
    outputs = [tokenizer.encode(s, add_special_tokens=False) for s in output_strs]
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return pad_prompts_and_outputs(prompts, outputs, pad_id)


def compute_entropy(logits):
    """Entropy in nats of each next-token distribution: (B, T, V) -> (B, T).

    H = log Z - sum_v p_v logit_v, with log Z the logsumexp of the logits: no overflow, no log of zero.
    """
    logits = logits.float()
    log_z = torch.logsumexp(logits, dim=-1)
    return log_z - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


# float32 numbers: 0.5 GiB or 128 MiB, 883 or 220 tokens of Qwen's vocabulary of 151,936
LOGITS_AT_ONCE = 2**27 if torch.cuda.is_available() else 2**25


@contextlib.contextmanager
def output_layer_doing(model, function):
    """Inside, the model's output layer returns function(its own forward, hidden states) in place of logits."""
    layer = model.get_output_embeddings()
    forward = layer.forward
    layer.forward = functools.partial(function, forward)
    try:
        yield layer.out_features
    finally:
        layer.forward = forward


def get_response_log_probs(
    model, input_ids, labels, return_token_entropy=False, temperature=1.0, entropy_gradient=False, response_mask=None
):
    """log pi(label | everything before it) for each position, in float32 whatever the model's dtype.

    The logits of a batch, tokens x vocabulary, would be its largest tensor by far. So the model's output layer answers
    with two numbers for each token instead, and makes the logits of a chunk of tokens at a time, only where
    `response_mask` (B, T; left out: everywhere) is 1. With several chunks the backward pass makes their logits again.

    Returns:
        dict of `log_probs` (B, T) and, if asked for, `token_entropy` (B, T), without gradient unless asked for; both 0
        where the mask is.
    """
    mask = torch.ones_like(labels, dtype=torch.bool) if response_mask is None else response_mask.bool()
    scored = []

    def score_chunk(to_logits, hidden, label):  # (C, H), (C,) -> log-probability and entropy (C, 2)
        logits = to_logits(hidden).float() / temperature  # (C, V)
        # log softmax(x)[label] = x[label] - logsumexp(x), without a second tensor of size V per token
        log_probs = logits.gather(-1, label[:, None]).squeeze(-1) - torch.logsumexp(logits, dim=-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = compute_entropy(logits) if return_token_entropy else torch.zeros_like(log_probs)
        return torch.stack([log_probs, entropy], dim=-1)

    def score_all(to_logits, hidden):  # (B, T, H) -> (B, T, 2)
        size = max(1, LOGITS_AT_ONCE // vocabulary)
        chunks = [(to_logits, *c) for c in zip(hidden[mask].split(size), labels[mask].split(size))]
        if len(chunks) == 1:
            rows = score_chunk(*chunks[0])
        else:
            rows = torch.cat([recomputed(score_chunk, *chunk, use_reentrant=False) for chunk in chunks])
        # masked_scatter puts the rows, one after the other, where the mask is 1.
        scored.append(rows.new_zeros(*mask.shape, 2).masked_scatter(mask[..., None], rows))
        return scored[-1]

    # Within the model's own forward pass, so that ZeRO 3, which gathers weights layer by layer, sees nothing unusual.
    with output_layer_doing(model, score_all) as vocabulary:
        # Padding is on the right and attention is causal: no response token ever sees a padding token.
        out = model(input_ids=input_ids, use_cache=False).logits
    if not torch.allclose(out, scored[-1], rtol=0, atol=0, equal_nan=True):
        raise UserError(
            "This model scales or caps its logits after the output layer (Gemma 2?): it cannot be trained here."
        )
    log_probs, entropy = out.unbind(-1)
    if not return_token_entropy:
        return {"log_probs": log_probs}
    return {"log_probs": log_probs, "token_entropy": entropy if entropy_gradient else entropy.detach()}


def masked_mean(tensor, mask, dim=None):
    """Mean of the entries where mask is 1, along `dim` or over all; NaN where there is none."""
    mask = mask.to(tensor.dtype)
    if dim is None:
        return (tensor * mask).sum() / mask.sum()
    return (tensor * mask).sum(dim) / mask.sum(dim)


def masked_normalize(tensor, mask, normalize_constant, dim=None):
    """Sum of the entries where mask is 1, along `dim` or over all, divided by a constant (Dr. GRPO, token means)."""
    masked = tensor * mask.to(tensor.dtype)
    return (masked.sum() if dim is None else masked.sum(dim)) / normalize_constant


def compute_group_normalized_rewards(
    reward_fn,
    rollout_responses,
    repeated_ground_truths,
    group_size,
    advantage_eps,
    normalize_by_std,
    baseline="group_mean",
    std_of="group",
):
    """Reward every response and compare it with its group (GRPO, arXiv:2402.03300, section 4.1.2).

        A_i = (r_i - mean(r_1..r_n)) / (std(r_1..r_n) + eps)      std unbiased, eps outside

    A group whose rewards are all equal gets A = 0: nothing to learn from it.

    Args:
        reward_fn: (response, ground truth) -> dict with "reward", "format_reward", "answer_reward".
        rollout_responses, repeated_ground_truths: lists of the same length, groups one after the other.
        baseline: "group_mean", or "leave_one_out": the mean of the n-1 others (RLOO, arXiv:2402.14740).
        std_of: "group"; "group_biased", which divides by n as nano-aha-moment does; or "batch", of all rewards.
    Returns:
        advantages (N,), raw rewards (N,), and a dict: mean and std of the rewards, the share of groups with no signal,
        and under "results" what reward_fn said of each response.
    """
    results = [reward_fn(r, truth) for r, truth in zip(rollout_responses, repeated_ground_truths)]
    raw_rewards = torch.tensor([float(result["reward"]) for result in results])
    groups = raw_rewards.view(-1, group_size)  # (questions, n)
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    advantages = (groups - groups.mean(dim=1, keepdim=True)).masked_fill(equal, 0.0)  # exactly, whatever the rounding
    if baseline == "leave_one_out":  # r_i - mean of the others = n / (n-1) (r_i - mean of all)
        advantages = advantages * group_size / (group_size - 1)
    std = torch.zeros_like(groups[:, :1])
    if group_size > 1:
        correction = 0 if std_of == "group_biased" else 1
        std = raw_rewards.std() if std_of == "batch" else groups.std(dim=1, keepdim=True, correction=correction)
    if normalize_by_std:
        advantages = advantages / (std + advantage_eps)
    metadata = {
        "reward_mean": raw_rewards.mean().item(),
        "reward_std": std.mean().item(),
        "frac_reward_zero_std": equal.float().mean().item(),
        "results": results,
    }
    return advantages.flatten(), raw_rewards, metadata


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages, policy_log_probs):
    """REINFORCE, per token: -A log pi. (B, 1) and (B, T) -> (B, T).

    Minimizing it raises the probability of every token of a completion with A > 0 and lowers it where A < 0.
    """
    return -raw_rewards_or_advantages * policy_log_probs


def compute_grpo_clip_loss(
    advantages, policy_log_probs, old_log_probs, cliprange, cliprange_high=None, response_mask=None
):
    """PPO's clipped objective (arXiv:1707.06347, eq. 7), per token: -min(ratio A, clip(ratio, 1-eps, 1+eps) A).

    With `cliprange_high` the upper end is 1 + cliprange_high (DAPO, arXiv:2503.14476, section 3.1). With
    `response_mask` every token of a completion gets the same ratio, the geometric mean of its tokens' (GSPO,
    arXiv:2507.18071).

    Returns:
        loss (B, T), and the masks of the tokens that the clip froze: `clip_low` (A < 0, ratio below 1-eps) and
        `clip_high` (A > 0, ratio above 1+eps). A frozen token has gradient 0.
    """
    log_ratio = policy_log_probs - old_log_probs
    if response_mask is not None:
        length = response_mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = ((log_ratio * response_mask).sum(dim=1, keepdim=True) / length).expand_as(log_ratio)
    ratio = torch.exp(log_ratio)
    low, high = 1 - cliprange, 1 + (cliprange if cliprange_high is None else cliprange_high)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return loss, {"clip_low": (ratio < low) & (advantages < 0), "clip_high": (ratio > high) & (advantages > 0)}


def compute_policy_gradient_loss(
    policy_log_probs,
    loss_type,
    raw_rewards=None,
    advantages=None,
    old_log_probs=None,
    cliprange=None,
    cliprange_high=None,
    response_mask=None,
):
    """The per-token loss (B, T) that `loss_type` names, and what is worth logging about it."""
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "no_baseline needs raw_rewards"
        return compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    assert advantages is not None, f"{loss_type} needs advantages"
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    assert loss_type in ("grpo_clip", "gspo"), f"unknown loss_type {loss_type}"
    assert old_log_probs is not None and cliprange is not None, f"{loss_type} needs old_log_probs and cliprange"
    assert loss_type == "grpo_clip" or response_mask is not None, "gspo needs response_mask"
    whole_completion = response_mask if loss_type == "gspo" else None
    return compute_grpo_clip_loss(
        advantages, policy_log_probs, old_log_probs, cliprange, cliprange_high, whole_completion
    )


def compute_kl(policy_log_probs, ref_log_probs):
    """Schulman's three estimates of KL(policy || reference) per sampled token (joschu.net/blog/kl-approx.html).

    With d = ref - policy: k1 = -d, unbiased, often negative; k2 = d^2 / 2, biased, its gradient is that of the KL;
    k3 = exp(d) - 1 - d, unbiased and never negative, the penalty of GRPO's eq. 4.
    """
    d = ref_log_probs - policy_log_probs
    return {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d}


def grpo_microbatch_train_step(
    policy_log_probs,
    response_mask,
    gradient_accumulation_steps,
    loss_type,
    raw_rewards=None,
    advantages=None,
    old_log_probs=None,
    cliprange=None,
    ref_log_probs=None,
    kl_coef=0.0,
    normalize_constant=None,
    sequence_mean=False,
    cliprange_high=None,
    importance_weights=None,
    kl_estimator="k3",
    token_entropy=None,
    entropy_coef=0.0,
    backward=torch.Tensor.backward,
):
    """Loss of one micro-batch and its backward pass; gradients add up until the optimizer steps.

    Without `normalize_constant` the loss is the GRPO paper's: mean over each response, then over the batch. With it,
    the sum over response tokens (`sequence_mean`: over the responses' means) divided by it: give the count of tokens
    (of responses) of the whole step, and any split into micro-batches has the same gradient. Either is divided by
    `gradient_accumulation_steps`.

    Returns:
        the scaled scalar loss, and a dict of per-token tensors (`k1`, `k2`, `k3`, `clip_low`, `clip_high`) where they
        exist.
    """
    per_token_loss, metadata = compute_policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange, cliprange_high, response_mask
    )  # (B, T)
    if importance_weights is not None:  # (B, T), of what was sampled from a slightly different policy
        per_token_loss = per_token_loss * importance_weights
    if ref_log_probs is not None:
        estimates = compute_kl(policy_log_probs, ref_log_probs)
        per_token_loss = per_token_loss + kl_coef * estimates[kl_estimator]
        metadata |= estimates
    if entropy_coef:
        per_token_loss = per_token_loss - entropy_coef * token_entropy
    if normalize_constant is None:
        loss = masked_mean(per_token_loss, response_mask, dim=1).mean()
    elif sequence_mean:
        lengths = response_mask.sum(dim=1).clamp(min=1)  # a filler has none
        loss = (masked_normalize(per_token_loss, response_mask, 1.0, dim=1) / lengths).sum() / normalize_constant
    else:
        loss = masked_normalize(per_token_loss, response_mask, normalize_constant)
    loss = loss / gradient_accumulation_steps
    backward(loss)
    return loss.detach(), {name: value.detach() for name, value in metadata.items()}


# %% [markdown]
# ## 3. Processes, model, optimizer
#
# One process per GPU; `torchrun` starts them. Each samples its own share of the questions and trains on its own
# completions; the gradients meet in DeepSpeed. Besides that, processes exchange a few sums.


# %%
def derive_seed(*parts):
    """A 31-bit seed from (seed, step, rank, what-for): no random choice depends on how far a run had got before."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def start_processes():
    """Join the processes that torchrun started, or be the only one. Returns (rank, number of processes, device)."""
    if sys.platform == "linux":
        # Keep freed memory instead of returning it to the kernel after each tensor: page faults slow a CPU step.
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-4, 0)  # M_MMAP_MAX
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    import deepspeed
    import transformers

    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        # DeepSpeed would compile a shared-memory all-reduce at the first start: a minute, and gloo does it too.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), "nccl"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if world == 1:  # no port, no rendezvous
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            if sys.platform == "linux":  # gloo listens even so: then on the loopback interface alone
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed(backend, verbose=False)
    return rank, world, device


BEFORE_PARTING = []  # functions; vLLM wants to shut down while the processes are still joined


def stop_processes():
    """Leave together: a process that ends while another still talks to it may abort."""
    dist.barrier()
    for function in BEFORE_PARTING:
        function()
    if dist.is_initialized():  # vLLM's shutdown may have seen to it
        dist.destroy_process_group()


def all_reduce(value, op=dist.ReduceOp.SUM):
    """Sum (or maximum) of a number over all processes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = torch.tensor(float(value), dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op)
    return tensor.item()


SIGNALS = []  # received so far: (number, time)


def catch_signals():
    """From now on Ctrl-C and SIGTERM (a job scheduler's) let the step end and the checkpoint be written."""

    def on_signal(number, _):
        # torchrun passes on what the terminal has sent to everybody: a repetition within a second is no impatience.
        if SIGNALS and number == signal.SIGINT and time.monotonic() - SIGNALS[0][1] > 1:
            raise KeyboardInterrupt
        if not SIGNALS and dist.get_rank() == 0:
            print("\nEnding with this step, then saving; Ctrl-C again leaves at once.", flush=True)
        SIGNALS.append((number, time.monotonic()))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def asked_to_leave():
    """Whether any process has been asked to end."""
    return all_reduce(len(SIGNALS)) > 0


def broadcast(*values):
    """The first process's values, on all of them."""
    values = list(values)
    dist.broadcast_object_list(values)
    return values


@contextlib.contextmanager
def loading(path):
    """Turns what goes wrong while reading a model into one sentence."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"The model {path} could not be read from a local directory or the hub: {reason}") from None


def load_model(path, dtype):
    """A causal language model from a local directory or the hub, its weights in safetensors, no remote code."""
    import transformers

    with loading(path):
        dtype = getattr(torch, dtype)
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True)


def load_policy(config, checkpoint=None):
    """The model to train: --model, with adapters if asked for, or all that as a checkpoint has it."""
    saved = checkpoint and os.path.join(checkpoint, "policy")
    if not config.lora_rank:
        return load_model(saved or config.model, config.dtype)
    import peft

    model = load_model(config.model, config.dtype)
    if saved:
        with loading(saved):
            return peft.PeftModel.from_pretrained(model, saved, is_trainable=True)
    return add_lora(model, config)


def add_lora(model, config):
    """The model with trainable low-rank adapters; its own weights stay as they are (LoRA, arXiv:2106.09685)."""
    import peft

    targets = config.lora_targets if config.lora_targets == "all-linear" else config.lora_targets.split(",")
    torch.manual_seed(derive_seed(config.seed, "lora"))
    lora = peft.LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    try:
        return peft.get_peft_model(model, lora)
    except ValueError as error:
        raise UserError(f"--lora_targets {config.lora_targets}: {str(error).splitlines()[0]}") from None


def merged_weights(model):
    """name -> weight, adapters added in: W + alpha / rank * B A. Without adapters the plain state dict.

    state_dict and not named_parameters: it lists a tied output embedding too, of which vLLM may hold a copy.
    """
    if not hasattr(model, "peft_config"):
        return model.state_dict()
    base = model.get_base_model()
    layers, weights = dict(base.named_modules()), {}
    for name, weight in base.state_dict().items():
        if name.endswith(".base_layer.weight"):
            delta = layers[name.removesuffix(".base_layer.weight")].get_delta_weight("default")
            weight = (weight.float() + delta.float()).to(weight.dtype)
        if ".lora_" not in name:
            weights[name.replace(".base_layer.", ".")] = weight
    return weights


def load_tokenizer(path):
    from transformers import AutoTokenizer

    with loading(path):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if tokenizer.eos_token_id is None:
        raise UserError(f"The tokenizer of {path} has no end-of-sequence token, so no completion could ever end.")
    return tokenizer


def vocabulary_size(tokenizer):
    return max(tokenizer.get_vocab().values()) + 1


def stop_token_ids(model, tokenizer):
    """Every token that ends a completion: the tokenizer's and all that the model's generation config lists."""
    listed = model.generation_config.eos_token_id
    listed = listed if isinstance(listed, list) else [listed]
    return sorted({tokenizer.eos_token_id, *(i for i in listed if i is not None)})


def make_engine(model, config):
    """The DeepSpeed engine that owns the weights, their gradients and AdamW's state, at the chosen ZeRO stage."""
    import deepspeed

    if config.gradient_checkpointing:
        model.train()  # from_pretrained returns a model in evaluation mode, in which its layers would not recompute
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    # Plain float32 without ZeRO is the one form in which DeepSpeed clips the gradient but tells nobody its norm.
    clip_here = config.zero_stage == 0 and config.dtype == "float32"
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": 1,  # DeepSpeed wants a number; our micro-batches vary in size
            "managed_gradient_accumulation": False,  # any number of backward passes, then one step
            "gradient_clipping": 0.0 if clip_here else config.max_grad_norm,
            "bf16": {"enabled": config.dtype == "bfloat16"},  # keeps float32 master weights
            "zero_optimization": {
                "stage": config.zero_stage,
                **({"offload_optimizer": {"device": "cpu"}} if config.offload else {}),
            },
            "zero_force_ds_cpu_optimizer": False,  # which would have to be compiled
            "optimizer": {
                "type": "AdamW",
                "params": {
                    "lr": config.learning_rate,
                    "betas": [0.9, 0.95],
                    "weight_decay": config.weight_decay,
                    "torch_adam": True,  # torch's AdamW: nothing to compile
                    "fused": torch.cuda.is_available() and not config.offload,
                },
            },
        },
    )
    if clip_here:

        def clip(*_):
            norm = torch.nn.utils.clip_grad_norm_(engine.module.parameters(), config.max_grad_norm)
            engine._global_grad_norm = norm
            if not norm.isfinite():
                engine.module.zero_grad()  # a weight without gradient is not updated

        engine.optimizer.register_step_pre_hook(clip)
    return engine


def gathered(model, modify=False):
    """Whole weights inside this context (ZeRO 3 keeps shards; otherwise there is nothing to do)."""
    sharded = [p for p in model.parameters() if hasattr(p, "ds_id")]
    if not sharded:
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(sharded, modifier_rank=0 if modify else None)


def set_learning_rate(engine, config, step):
    """Linear warm-up, then constant or decaying: the last steps' noise stays in the final model, so make them small."""
    lr = config.learning_rate * min(1.0, step / max(1, config.warmup_steps))
    if config.schedule == "linear":
        lr *= 1 - (step - 1) / config.steps
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    return lr


# %% [markdown]
# ## 4. The rollout
#
# Sampling is most of an RL step. Two engines with the same three methods (`generate`, `sync_weights`, `sleep`/`wake`):
#
# - `TransformersRollout`, a sampling loop over the Hugging Face model in a page of code. It shares three ideas with
#   real inference engines: the prompt is computed once per group, not once per completion; a completion that has ended
#   leaves the batch, so that the long ones do not pay for the short ones; keys and values have room to grow in place.
# - `VLLMRollout`, vLLM in the same process, for models worth a GPU.


# %%
@dataclass
class Completion:
    token_ids: list  # the end-of-sequence token included, when the model produced it
    logprobs: list  # log-probability of each token under the distribution it was sampled from
    finish_reason: str  # "stop": the model ended it; "length": cut off at max_tokens


class RoomyLayer(DynamicLayer):
    """One layer's keys and values, with room for more tokens; transformers' own layer copies all at each token."""

    ROOM = 64  # tokens
    space = None  # [keys, values], (R, heads, tokens + room, head size); `keys` and `values` are views of its used part

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self.space is None or self.space[0].shape[-2] < end:
            grown = [s.new_empty(*s.shape[:2], end + self.ROOM, s.shape[-1]) for s in (key_states, value_states)]
            if start:
                grown[0][:, :, :start], grown[1][:, :, :start] = self.keys, self.values
            self.space = grown
        self.space[0][:, :, start:end], self.space[1][:, :, start:end] = key_states, value_states
        self.keys, self.values = (s[:, :, :end] for s in self.space)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        super().batch_select_indices(indices)
        self.space = None  # they are copies now, without room

    def batch_repeat_interleave(self, repeats):
        super().batch_repeat_interleave(repeats)
        self.space = None


class TransformersRollout:
    """Samples from the very weights that are trained: nothing to synchronize, nothing to put to sleep.

    (With ZeRO 3 from a copy: there every forward pass of the trained model is a meeting of all processes, and they do
    not need equally many.)
    """

    MAX_ROWS = 512  # completions decoded at once

    def __init__(self, model, stop_ids, pad_id, tokenizer=None, stop_texts=()):
        self.model, self.stop_ids, self.pad_id = model, stop_ids, pad_id
        self.tokenizer, self.stop_texts = tokenizer, stop_texts
        self.vocabulary = tokenizer and vocabulary_size(tokenizer)

    def sync_weights(self, policy):
        if self.model is not policy:
            with gathered(policy):
                self.model.load_state_dict(policy.state_dict())

    def sleep(self):
        pass

    def wake(self):
        pass

    @torch.no_grad()
    def generate(self, prompt_token_ids, n, temperature, max_tokens, seeds):
        """n completions of each prompt, as lists of `Completion`. Temperature 0 is greedy.

        `max_tokens` is a number, or a list with one for each prompt. Each prompt has its own seed: what is sampled for
        it does not depend on its neighbours, nor on which of several processes it falls to (up to the rounding of the
        logits, which decides where two tokens are all but tied).
        """
        was_training = self.model.training
        self.model.eval()
        per_batch = max(1, self.MAX_ROWS // n)
        limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompt_token_ids)
        starts = range(0, len(prompt_token_ids), per_batch)
        results = []
        for start in tqdm(starts, desc="sampling", leave=False, disable=None if len(starts) > 1 else True):
            batch = slice(start, start + per_batch)
            results += self._generate_batch(prompt_token_ids[batch], n, temperature, limits[batch], seeds[batch])
        self.model.train(was_training)
        return results

    def _generate_batch(self, prompts, n, temperature, limits, seeds):
        device, max_tokens = self.model.device, max(limits)
        # Prefill: one forward pass over each prompt, padded on the left so that all end in the same column.
        width = max(map(len, prompts))
        input_ids = torch.tensor([[self.pad_id] * (width - len(p)) + p for p in prompts], device=device)  # (P, W)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)  # (P, W)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        out = self.model(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        # From here on a row is a completion: n rows share the keys and values of one prompt.
        cache.batch_repeat_interleave(n)
        logits = out.logits[:, -1].repeat_interleave(n, dim=0)  # (R, V), R = P * n
        mask = mask.repeat_interleave(n, dim=0)
        position = positions[:, -1:].repeat_interleave(n, dim=0)
        rows = torch.arange(len(logits), device=device)  # which completion each row of the batch belongs to
        live = torch.ones(len(rows), dtype=torch.bool, device=device)
        tokens = torch.full((len(rows), max_tokens), -1, device=device)
        logprobs = torch.zeros((len(rows), max_tokens), device=device)
        ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        limits = torch.tensor(limits, device=device).repeat_interleave(n)
        stop_ids = torch.tensor(self.stop_ids, device=device)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        # (R, max_tokens); drawn token by token, so that a completion does not depend on the limit either.
        dice = torch.cat([torch.rand(max_tokens, n, dtype=torch.float64, generator=g).T for g in generators]).to(device)

        for t in range(max_tokens):
            # Sample from softmax(logits / T), in float32, and remember how likely the choice was.
            logits = logits[:, : self.vocabulary]  # without the entries that only pad the embedding to a round size
            distribution = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)  # (R, V)
            if temperature:
                # Where a uniform number falls among the cumulated probabilities: torch.multinomial, but faster on CPU.
                cumulated = distribution.double().exp().cumsum(dim=-1)
                token = torch.searchsorted(cumulated, dice[rows, t, None] * cumulated[:, -1:], right=True)  # (R, 1)
                token = token.clamp(max=distribution.shape[-1] - 1)  # where rounding left the dice at the very end
            else:
                token = distribution.argmax(dim=-1, keepdim=True)
            tokens[rows[live], t] = token[live, 0]
            logprobs[rows[live], t] = distribution.gather(-1, token)[live, 0]
            ended[rows[live]] = torch.isin(token[live, 0], stop_ids)
            if self.stop_texts:
                for row, last in zip(rows[live].tolist(), token[live, 0].tolist()):
                    ended[row] |= self._may_end_stop_text(last) and self._ends_with_stop_text(tokens[row, : t + 1])
            live &= ~ended[rows] & (t + 1 < limits[rows])
            alive = int(live.sum())
            if alive == 0 or t + 1 == max_tokens:
                break
            # Finished rows are dropped from the cache, an eighth at a time, since each dropping copies the cache.
            if alive <= 0.875 * len(rows):
                keep = live.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, live, mask, position, token = rows[keep], live[keep], mask[keep], position[keep], token[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            position = position + 1
            logits = self.model(
                input_ids=token, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True
            ).logits[:, -1]

        completions = []
        for ids, scores, stopped in zip(tokens.tolist(), logprobs.tolist(), ended.tolist()):
            length = ids.index(-1) if -1 in ids else max_tokens
            completions.append(Completion(ids[:length], scores[:length], "stop" if stopped else "length"))
        return [completions[i : i + n] for i in range(0, len(completions), n)]

    @functools.cache
    def _may_end_stop_text(self, token_id):
        return any(stop[-1] in self.tokenizer.decode([token_id]) for stop in self.stop_texts)

    def _ends_with_stop_text(self, ids):
        """Stop texts are tags: each of their characters takes at most one token."""
        end = self.tokenizer.decode(ids[-max(map(len, self.stop_texts)) :])
        return any(stop in end for stop in self.stop_texts)


class VLLMRollout:
    """vLLM in this process: paged KV cache, continuous batching, prefix caching; on a GPU it sleeps while we train."""

    def __init__(self, model_path, stop_ids, stop_texts, max_length, config, rank, world, padding_ids=()):
        cuda = torch.cuda.is_available()
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; without it vLLM takes a share of all memory
        from vllm import LLM

        self.stop_ids, self.stop_texts, self.can_sleep = stop_ids, list(stop_texts), cuda
        few = len(padding_ids) <= 1024  # vLLM's limit; Qwen2.5 has 271
        self.bias = {i: -100.0 for i in padding_ids} if few else None  # no token: never sampled
        options = {"enforce_eager": True}
        if cuda:
            options = {"gpu_memory_utilization": config.vllm_memory, "enable_sleep_mode": True}
        if world > 1:
            options["distributed_executor_backend"] = "external_launcher"  # one engine in each of torchrun's processes
        self.llm = LLM(
            model=model_path,
            dtype=config.dtype,
            max_model_len=max_length,
            logprobs_mode="processed_logprobs",  # of the distribution sampled from: temperature included
            seed=derive_seed(config.seed, rank, "vllm"),
            disable_log_stats=True,
            **options,
        )
        BEFORE_PARTING.append(self.llm.llm_engine.engine_core.shutdown)

    def generate(self, prompt_token_ids, n, temperature, max_tokens, seeds):
        if not prompt_token_ids:  # this process has no share of a small evaluation
            return []
        from vllm import SamplingParams

        limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompt_token_ids)
        params = [
            SamplingParams(
                n=n, temperature=temperature, max_tokens=limit, seed=seed, logprobs=0,
                stop_token_ids=self.stop_ids, stop=self.stop_texts, include_stop_str_in_output=True,
                detokenize=bool(self.stop_texts), logit_bias=self.bias,
            )
            for seed, limit in zip(seeds, limits)
        ]  # fmt: skip
        prompts = [{"prompt_token_ids": ids} for ids in prompt_token_ids]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        completion = lambda o: Completion(
            list(o.token_ids), [entry[i].logprob for i, entry in zip(o.token_ids, o.logprobs)], o.finish_reason
        )
        return [[completion(o) for o in output.outputs] for output in outputs]

    def sync_weights(self, policy):
        """Hand the trained weights to vLLM, and drop every cached prefix computed with the old ones."""
        with gathered(policy):
            weights = iter(merged_weights(policy).items())
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache: the next rollout would mix old and new weights")

    def sleep(self):
        if self.can_sleep:
            self.llm.sleep(level=1)

    def wake(self):
        if self.can_sleep:
            self.llm.wake_up()


def rollout_kind(config):
    """The engine that `--rollout` names; `auto` takes vLLM on a GPU where it is installed."""
    if config.rollout != "auto":
        return config.rollout
    return "vllm" if torch.cuda.is_available() and importlib.util.find_spec("vllm") else "transformers"


def make_rollout(config, model, tokenizer, stop_ids, stop_texts, max_length, rank, world):
    if rollout_kind(config) == "vllm":
        # The embedding may have more rows than there are tokens, to pad it to a round size.
        padding_ids = range(vocabulary_size(tokenizer), model.get_input_embeddings().num_embeddings)
        try:
            return VLLMRollout(config.model, stop_ids, stop_texts, max_length, config, rank, world, padding_ids)
        except ImportError as error:
            raise UserError(f"vLLM could not be imported ({error}): see requirements-gpu.txt.") from None
        except ValueError as error:  # as a rule about memory
            raise UserError(f"vLLM could not start with --vllm_memory {config.vllm_memory}: {error}") from None
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stop_ids[0]
    if config.zero_stage == 3 and not config.eval_only:
        model = copy.deepcopy(model)
    return TransformersRollout(model, stop_ids, pad_id, tokenizer, stop_texts)


# %% [markdown]
# ## 5. Saving
#
# A checkpoint, `step_000050/`, is the model in Hugging Face format (`policy/`, loads anywhere) beside AdamW's float32
# weights and moments, all in safetensors: reading one runs no code, as unpickling would. It is written under a hidden
# name, flushed to the disk and renamed: it exists whole or not at all. No random state is stored, since every random
# choice derives from the seed and the step: a resumed run is the same run.


# %%
@contextlib.contextmanager
def writing(path):
    """Turns what goes wrong while writing into one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} could not be written: {getattr(error, 'strerror', None) or error}.") from None


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


@contextlib.contextmanager
def written_whole(path, flush=False):
    """A hidden path for a file or a directory that becomes `path` once it is complete; on the disk too with `flush`."""
    path = os.path.normpath(path)
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.tmp")
    with writing(path):
        remove(hidden)
        try:
            yield hidden
            if flush:
                os.sync()
            if os.path.isdir(path):  # a directory cannot be replaced in one go
                remove(path)
            os.replace(hidden, path)
        finally:
            remove(hidden)


def save_policy(model, tokenizer, path, merge=False):
    """Write model and tokenizer in Hugging Face format. All processes call, the first writes.

    Of a model with adapters only these are written, unless they are merged.
    """
    with gathered(model):
        if dist.get_rank() == 0:
            with written_whole(path, flush=True) as hidden:
                if merge and hasattr(model, "peft_config"):
                    model.get_base_model().save_pretrained(hidden, state_dict=merged_weights(model))
                else:
                    model.save_pretrained(hidden)
                tokenizer.save_pretrained(hidden)
    dist.barrier()


def optimized(engine):
    """The float32 tensors that AdamW steps: ZeRO's flat shares of them, or the weights themselves."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):  # ZeRO 1 and 2, ZeRO 3
        if hasattr(engine.optimizer, name):
            return getattr(engine.optimizer, name)
    return [p for group in engine.optimizer.param_groups for p in group["params"]]


def alone_in_main_memory(tensor):
    """The tensor itself where that is so, otherwise a copy: safetensors wants no two tensors in the same memory."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def save_checkpoint(engine, tokenizer, directory, step, config):
    """`directory`/step_000050/; deletes all but the newest `config.keep_checkpoints`. All processes call."""
    first = dist.get_rank() == 0
    path = os.path.join(directory, f"step_{step:06d}")
    # The first process makes the hidden directory and renames it at the end, the others only write into it.
    with written_whole(path, flush=True) if first else writing(path) as hidden:
        (hidden,) = broadcast(hidden)
        os.makedirs(hidden, exist_ok=True)
        save_policy(engine.module, tokenizer, os.path.join(hidden, "policy"))
        tensors = {}
        for i, weight in enumerate(optimized(engine)):
            state = {"weight": weight, **engine.basic_optimizer.state[weight]}
            tensors |= {f"{i}.{key}": alone_in_main_memory(t.detach()) for key, t in state.items()}
        save_file(tensors, os.path.join(hidden, f"optimizer_{dist.get_rank():03d}.safetensors"))
        dist.barrier()
        if first:
            with open(os.path.join(hidden, "settings.json"), "w") as file:
                json.dump(settings_of(config), file, indent=2)
            sums = checksums(hidden)
            with open(os.path.join(hidden, "checksums.json"), "w") as file:
                json.dump(sums, file, indent=2)
    if first:
        until_now = [name for name in list_checkpoints(directory) if name <= os.path.basename(path)]
        for old in until_now[: -config.keep_checkpoints]:
            half = os.path.join(directory, f".{old}.tmp")  # hidden first, so that none is ever seen half deleted
            remove(half)
            os.rename(os.path.join(directory, old), half)
            remove(half)
    dist.barrier()


def settings_of(config):
    """What must not change between a run and its resumption."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in config.MAY_CHANGE}


def checksums(directory):
    """{file: [bytes, CRC-32]} for every file below the directory."""
    result = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path, crc = os.path.join(folder, name), 0
            with open(path, "rb") as file:
                while block := file.read(2**24):
                    crc = zlib.crc32(block, crc)
            result[os.path.relpath(path, directory)] = [os.path.getsize(path), crc]
    return result


def list_checkpoints(directory):
    """Names of the checkpoints, oldest first."""
    return sorted(n for n in os.listdir(directory) if n.startswith("step_")) if os.path.isdir(directory) else []


def damage(path):
    """What is wrong with a checkpoint, in words; None if it is whole."""
    try:
        with open(os.path.join(path, "checksums.json")) as file:
            wanted = dict(json.load(file))
        found = checksums(path)
    except (OSError, ValueError, TypeError) as error:
        return f"its checksums.json cannot be read ({type(error).__name__})"
    changed = [name for name, sums in {"settings.json": None, **wanted}.items() if found.get(name) != sums]
    return f"{changed[0]} is missing, cut short or changed" if changed else None


def newest_checkpoint(directory, config):
    """(path, step) of the newest checkpoint that is whole; (None, 0) where there is none yet. The same everywhere."""
    found, problem = (None, 0), None
    for name in reversed(list_checkpoints(directory) if dist.get_rank() == 0 else []):
        path = os.path.join(directory, name)
        problem = damage(path)
        if problem is None:
            found = (path, int(name.removeprefix("step_")))
            break
        print(f"WARNING: {path} is passed over: {problem}.", flush=True)
    (path, step), problem = broadcast(found, problem)
    if problem:  # there are checkpoints, and none is whole
        raise UserError(f"No checkpoint in {directory} is whole; delete that directory to begin again at step 0.")
    if path:
        with open(os.path.join(path, "settings.json")) as file:
            saved = json.load(file)
        for name, mine in settings_of(config).items():
            if mine != saved.get(name):
                raise UserError(f"{path} is of a run with another --{name}: {saved.get(name)} instead of {mine}.")
    return path, step


def restore_optimizer(engine, path):
    """AdamW's weights and moments from a checkpoint; the policy's weights are those of its `policy/` already."""
    name = os.path.join(path, f"optimizer_{dist.get_rank():03d}.safetensors")
    saved = load_file(name) if os.path.exists(name) else {}
    weights = optimized(engine)
    shapes = {f"{i}.weight": w.shape for i, w in enumerate(weights)}
    if shapes != {key: t.shape for key, t in saved.items() if key.endswith(".weight")}:
        raise UserError(f"{path} was written by another number of processes than {dist.get_world_size()}.")
    for i, weight in enumerate(weights):
        weight.data.copy_(saved.pop(f"{i}.weight"))
        state = {key.split(".")[1]: t for key, t in saved.items() if key.startswith(f"{i}.")}
        on = lambda key: "cpu" if key == "step" and not engine.basic_optimizer.defaults["fused"] else weight.device
        engine.basic_optimizer.state[weight] = {key: t.to(on(key)) for key, t in state.items()}


# %% [markdown]
# ## 6. The steps of the algorithm
#
# `main` calls these in order. An episode is one completion with everything the step learns about it.


# %%
@dataclass
class Episode:
    problem: dict
    prompt_ids: list
    completion: Completion
    text: str
    reward: dict = None  # "reward", "format_reward", "answer_reward", "why"
    advantage: float = 0.0  # None: a filler, of which no token counts
    token_advantages: list = None  # with vineppo one for each token, instead of `advantage` for all
    ref_log_probs: torch.Tensor = None  # (len(completion),), under the reference model
    old_log_probs: torch.Tensor = None  # (len(completion),), under the policy before this step's updates

    @property
    def length(self):
        return len(self.completion.token_ids)


def load_task(name):
    """The module `NAME_rewards`: its prompt, problems and reward."""
    try:
        return importlib.import_module(f"{name}_rewards")
    except ModuleNotFoundError as error:
        if error.name != f"{name}_rewards":  # the task is there, something that it imports is not
            raise UserError(f"{name}_rewards.py needs the package {error.name}: see requirements.txt.") from None
        here = os.path.dirname(os.path.abspath(globals().get("__file__", "nano_r1.py")))
        tasks = sorted(f.removesuffix("_rewards.py") for f in os.listdir(here) if f.endswith("_rewards.py"))
        raise UserError(f"No task {name!r}: there is no {name}_rewards.py. Tasks here: {', '.join(tasks)}.") from None


def load_all_problems(task, config):
    """(training problems, evaluation problems), or a UserError that says what is wrong with the file."""
    if config.prompt not in task.PROMPTS:
        raise UserError(f"--prompt {config.prompt} is not one of the task's prompts: {', '.join(task.PROMPTS)}.")
    try:
        train = [] if config.eval_only else task.load_problems("train", config.data, config.seed)
        if config.eval_data:
            test = task.load_problems("all", config.eval_data, config.seed)
        else:
            test = task.load_problems("test", config.data, config.seed)
    except ValueError as error:
        raise UserError(str(error)) from None
    return train, test[: config.eval_problems]


MAX_PROMPT = 2048  # tokens; it bounds what vLLM has to have room for


def fit_into_context(problems, task, tokenizer, policy, config):
    """(the problems whose prompt leaves room for --max_tokens, tokens of the longest sequence that can occur)."""
    context = getattr(policy.config.get_text_config(), "max_position_embeddings", MAX_PROMPT + config.max_tokens)
    room = min(context - config.max_tokens, MAX_PROMPT)

    def fits(problem):
        prompt = task.format_prompt(problem, tokenizer, config.prompt)
        # A token is at least a byte: most prompts need no tokenizing.
        return len(prompt.encode()) < room or len(encode_prompt(prompt, tokenizer)) <= room

    fitting = [p for p in problems if fits(p)]
    if problems and not fitting:
        need = f"No prompt leaves room for --max_tokens {config.max_tokens}"
        raise UserError(f"{need} in the model's context of {context} tokens.")
    return fitting, room + config.max_tokens


def sample_questions(problems, label, config):
    """m different questions."""
    return random.Random(derive_seed(config.seed, label, "questions")).sample(problems, config.questions)


def sample_completions(rollout, questions, task, tokenizer, config, seed_label, rank=0, world=1):
    """n completions of each question, as episodes; a group's episodes stand one after the other.

    Each process samples its own share of the questions. A question's seed derives from its place in the list and from
    `seed_label`, so that the completions are the same for any number of processes.
    """
    seeds = [derive_seed(config.seed, seed_label, place) for place in range(len(questions))][rank::world]
    questions = questions[rank::world]
    stop_texts = task.PROMPTS[config.prompt].stop
    prompts = [encode_prompt(task.format_prompt(q, tokenizer, config.prompt), tokenizer) for q in questions]
    groups = rollout.generate(prompts, config.completions, config.temperature, config.max_tokens, seeds)
    return [
        Episode(question, prompt, c, decode(c.token_ids, tokenizer, stop_texts))
        for question, prompt, group in zip(questions, prompts, groups)
        for c in group
    ]


def decode(token_ids, tokenizer, stop_texts):
    """The text up to the end of its first stop text: the last token may hold a character or two more."""
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    ends = [text.find(stop) + len(stop) for stop in stop_texts if stop in text]
    return text[: min(ends)] if ends else text


def verdict(episode, task, config):
    """The task's verdict as a dict: "reward", "format_reward", "answer_reward", "why"."""
    result = task.reward(episode.text, episode.problem, config.prompt)
    late = episode.length - (config.max_tokens - config.overlong_buffer)  # DAPO, arXiv:2503.14476, section 3.4
    penalty = min(1.0, max(0.0, late / config.overlong_buffer)) if config.overlong_buffer else 0.0
    rewards = {"reward": result.total - penalty, "format_reward": result.format, "answer_reward": result.answer}
    return {**rewards, "why": result.why}


def score(episodes, task, config):
    """The task's verdict on each episode."""
    for episode in episodes:
        episode.reward = verdict(episode, task, config)


def groups_of(episodes, n):
    return [episodes[start : start + n] for start in range(0, len(episodes), n)]


def on_all_processes(values):
    """Every process's `values`, as a list of lists."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, values)
    return everyone


def has_signal(group):
    """Whether its rewards differ: only then is there something to learn from it."""
    return len({e.reward["reward"] for e in group}) > 1


def count_signals(episodes, config):
    """How many groups have a signal, over all processes."""
    return all_reduce(sum(map(has_signal, groups_of(episodes, config.completions))))


def add_advantages(episodes, config):
    """Each episode's advantage, within its group; returns what is worth logging about the rewards."""
    verdicts = [e.reward for e in episodes]
    everyone = on_all_processes(verdicts)  # the standard deviation of a batch is that of all processes
    everything = [result for part in everyone for result in part]
    advantages, _, metadata = compute_group_normalized_rewards(
        lambda result, _: result,
        everything,
        everything,
        config.completions,
        config.advantage_eps,
        config.normalize_by_std,
        config.baseline,
        config.std_of,
    )
    first = sum(map(len, everyone[: dist.get_rank()]))
    for episode, advantage in zip(episodes, advantages[first:].tolist()):
        episode.advantage = advantage
    return metadata


def fill_batch(episodes, config, rank, world):
    """This process's share of m groups: those with a signal first, others where there are too few (dynamic sampling).

    Whichever process sampled a group, the same groups are trained on: the processes exchange all and share anew.
    """
    if len(episodes) * world == config.questions * config.completions:
        return episodes
    parts = [groups_of(part, config.completions) for part in on_all_processes(episodes)]
    in_order = [group for same_place in zip(*parts) for group in same_place]  # as one process would have sampled them
    chosen = sorted(in_order, key=has_signal, reverse=True)[: config.questions]  # otherwise the order stays
    return [e for group in chosen[rank::world] for e in group]


def vine_advantages(rollout, episodes, task, tokenizer, config, step, rank, world):
    """VinePPO (arXiv:2410.01679): credit for each segment of a completion, in `token_advantages`.

    A completion is cut into segments of equal length. The value of a cut is the mean reward of K continuations of the
    very tokens before it, each within what is left of --max_tokens; the value of the beginning is the mean reward of
    the group's other completions, that of the end the completion's own reward. A segment's advantage is the value at
    its end minus that at its beginning, so that a completion's segments sum to its reward minus the first value.

    Returns:
        metrics: the tokens that the continuations cost.
    """
    n, k = config.completions, config.vine_samples
    cuts = [
        sorted({e.length * s // config.vine_segments for s in range(1, config.vine_segments)} - {0}) for e in episodes
    ]
    starts, budgets, seeds = [], [], []
    for place, (e, positions) in enumerate(zip(episodes, cuts)):
        question = rank + place // n * world  # the same number however many processes share the step
        for cut in positions:
            starts.append(e.prompt_ids + e.completion.token_ids[:cut])
            budgets.append(config.max_tokens - cut)
            seeds.append(derive_seed(config.seed, step, "vine", question, place % n, cut))
    groups = rollout.generate(starts, k, config.temperature, budgets, seeds)
    stop_texts, tokens, group = task.PROMPTS[config.prompt].stop, 0, iter(groups)
    for place, (e, positions) in enumerate(zip(episodes, cuts)):
        others = [o.reward["reward"] for o in episodes[place // n * n : place // n * n + n] if o is not e]
        values = [sum(others) / max(1, len(others))]
        for cut in positions:
            continuations = next(group)
            tokens += sum(len(c.token_ids) for c in continuations)
            ids = [e.completion.token_ids[:cut] + c.token_ids for c in continuations]
            tails = [
                Episode(e.problem, e.prompt_ids, dataclasses.replace(c, token_ids=i), decode(i, tokenizer, stop_texts))
                for c, i in zip(continuations, ids)
            ]
            values.append(sum(verdict(tail, task, config)["reward"] for tail in tails) / k)
        values.append(e.reward["reward"])
        ends = [0, *positions, e.length]
        e.token_advantages = [
            after - before
            for before, after, start, end in zip(values, values[1:], ends, ends[1:])
            for _ in range(end - start)
        ]
    return {"tokens/vine": all_reduce(tokens)}


def split_by_tokens(items, length, budget):
    """Items of similar length together, at most `budget` tokens (padding included) in each list."""
    batches, batch = [], []
    for item in sorted(items, key=length):
        if batch and length(item) * (len(batch) + 1) > budget:
            batches.append(batch)
            batch = []
        batch.append(item)
    return [*batches, batch]


def micro_batches(episodes, budget):
    """The step's micro-batches: as many on every process, since in ZeRO 2 and 3 they meet in each backward pass."""
    batches = split_by_tokens(episodes, lambda e: len(e.prompt_ids) + e.length, budget)
    return as_many_everywhere(batches, filler=lambda episode: dataclasses.replace(episode, advantage=None))


def as_many_everywhere(batches, filler):
    """Split until every process has as many; where nothing is left to split, add fillers, of which no token counts."""
    at_least = int(all_reduce(len(batches), dist.ReduceOp.MAX))
    while len(batches) < at_least:
        largest = max(batches, key=len)
        if len(largest) == 1:
            batches.append([filler(largest[0])])
        else:
            batches.remove(largest)
            batches += [largest[::2], largest[1::2]]
    return batches


def collate(batch, device, pad_id=0):
    """Episodes -> padded tensors: (B, T) each, `raw_rewards` and (but for vineppo) `advantages` (B, 1)."""
    tensors = pad_prompts_and_outputs([e.prompt_ids for e in batch], [e.completion.token_ids for e in batch], pad_id)
    mask = tensors["response_mask"]

    def per_token(values):  # one list per episode -> (B, T), at the places of the response
        result = torch.zeros(mask.shape)
        result[mask] = torch.cat([torch.as_tensor(v, dtype=torch.float32) for v in values])
        return result

    tensors["sampler_log_probs"] = per_token([e.completion.logprobs for e in batch])
    for name in ("ref_log_probs", "old_log_probs"):
        values = [getattr(e, name) for e in batch]
        tensors[name] = None if values[0] is None else per_token(values)
    tensors["advantages"] = torch.tensor([[e.advantage or 0.0] for e in batch])
    if batch[0].token_advantages is not None:
        tensors["advantages"] = per_token([e.token_advantages for e in batch])
    tensors["raw_rewards"] = torch.tensor([[e.reward["reward"]] for e in batch])
    if batch[0].advantage is None:  # a filler: no token of it counts
        tensors["response_mask"] = torch.zeros_like(mask)
    return {name: None if t is None else t.to(device) for name, t in tensors.items()}


@torch.no_grad()
def add_log_probs(model, episodes, name, config, device):
    """Store the per-token log-probabilities under `model` in each episode's attribute `name`."""
    for batch in micro_batches(episodes, config.micro_batch_tokens):
        t = collate(batch, device)
        mask = t["response_mask"]
        out = get_response_log_probs(
            model, t["input_ids"], t["labels"], temperature=config.temperature, response_mask=mask
        )
        for episode, row, tokens in zip(batch, out["log_probs"], mask):
            setattr(episode, name, row[tokens].cpu())


def prove_sync(rollout, policy, check):
    """Once, before training: move every weight visibly, hand over, check; and back. Later syncs go the same way."""
    generator = torch.Generator().manual_seed(0)

    def move(p):
        noise = torch.randn(p.shape, generator=generator).to(p)
        return p + (0.1 * p.abs().mean() + 0.02) * noise

    trained = [p for p in policy.parameters() if p.requires_grad]
    with torch.no_grad():
        with gathered(policy, modify=True):
            before = [p.detach().to("cpu", copy=True) for p in trained]
            for p in trained:
                p.copy_(move(p))
        rollout.sync_weights(policy)
        check()
        with gathered(policy, modify=True):
            for p, old in zip(trained, before):
                p.copy_(old)
    rollout.sync_weights(policy)
    check()


def is_trained_on(episode, config):
    return not (config.mask_truncated and episode.completion.finish_reason == "length")


def with_gradient(episodes, config):
    """Those with a gradient: a completion with advantage 0 has none (KL penalty and entropy aside), so the model need
    not be run over it. At least one, if need be a filler: the processes meet in each backward pass."""
    kept = [e for e in episodes if is_trained_on(e, config)]
    if config.kl_coef == 0 and config.entropy_coef == 0 and config.loss != "no_baseline":
        kept = [e for e in kept if any(e.token_advantages or [e.advantage])]
    return kept or [dataclasses.replace(episodes[0], advantage=None)]


SYNC_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # nats a token, on average; bfloat16 alone makes some 0.02


def check_sync(rollout, engine, problems, task, tokenizer, config, device, rank, world):
    """Sample a little from what was just handed over, and compare: are these the trainer's weights, all of them?

    Always the same prompts: a prefix cached with older weights would show. Weights that are only a few small updates
    old differ by less than rounding; hence `prove_sync`.
    """
    short = dataclasses.replace(config, completions=2, max_tokens=min(64, config.max_tokens))
    few = [problems[i % len(problems)] for i in range(8 * world)]
    probe = sample_completions(rollout, few, task, tokenizer, short, "sync", rank, world)
    score(probe, task, config)  # which `collate` asks for
    add_log_probs(engine, probe, "old_log_probs", config, device)
    difference = Measurements()
    for e in probe:
        difference.mean("mean", (e.old_log_probs - torch.tensor(e.completion.logprobs)).abs())
    mean, tolerance = difference.reduce()["mean"], SYNC_TOLERANCE[config.dtype]
    if not mean <= tolerance:
        raise UserError(
            f"The sampler does not have the trainer's weights: their log-probabilities of the same tokens differ by "
            f"{mean:.3g} nats on average, more than {tolerance} (--check_sync)."
        )


def update_policy(engine, episodes, config, device, world):
    """`config.epochs` x `config.minibatches` optimizer steps on the episodes; returns what was measured on the way.

    The denominator of the loss counts the whole minibatch, over every micro-batch and every process: k micro-batches
    or N processes give the gradient of one.
    """
    measured, tokens = Measurements(), 0
    optimizer_steps = config.epochs * config.minibatches
    if optimizer_steps > 1:  # with a single one the old policy is the policy
        add_log_probs(engine, with_gradient(episodes, config), "old_log_probs", config, device)
    groups = groups_of(episodes, config.completions)
    size = len(groups) // config.minibatches
    for step in range(optimizer_steps):
        first = step % config.minibatches * size
        part = [e for group in groups[first : first + size] for e in group]
        counted = [e for e in part if is_trained_on(e, config)]
        share = {
            "token_mean": sum(e.length for e in counted),
            "sequence_mean": len(part),
            "constant": len(part) * config.max_tokens,
        }[config.aggregate]
        denominator = max(1.0, all_reduce(share)) / world  # DeepSpeed averages gradients over the processes
        tokens += optimizer_step(
            engine, with_gradient(part, config), denominator, config, device, measured, fresh=step == 0
        )
    result = measured.reduce()
    if "sampling/ratio_mean" in result:
        result["sampling/ess"] = result["sampling/ratio_mean"] ** 2 / result.pop("sampling/ratio_mean_square")
    return {**result, "tokens/update": all_reduce(tokens)}


def optimizer_step(engine, episodes, denominator, config, device, measured, fresh):
    """Loss and gradient of each micro-batch, then one step of AdamW; what there is to measure goes into `measured`.

    `fresh`: the trainer still has the weights that the sampler had. Returns this process's tokens, padding included.
    """
    loss_sum, tokens = 0.0, 0
    for batch in micro_batches(episodes, config.micro_batch_tokens):
        t = collate(batch, device)
        mask = t["response_mask"]
        out = get_response_log_probs(
            engine,
            t["input_ids"],
            t["labels"],
            return_token_entropy=True,
            temperature=config.temperature,
            entropy_gradient=config.entropy_coef > 0,
            response_mask=mask,
        )
        trainer = out["log_probs"].detach() if t["old_log_probs"] is None else t["old_log_probs"]
        ratio = torch.exp(trainer - t["sampler_log_probs"])  # 1 but for precision, if the sampler has our weights
        loss, per_token = grpo_microbatch_train_step(
            out["log_probs"],
            mask,
            gradient_accumulation_steps=1,
            loss_type=config.loss,
            raw_rewards=t["raw_rewards"],
            advantages=t["advantages"],
            old_log_probs=trainer,
            cliprange=config.cliprange,
            cliprange_high=config.cliprange_high,
            importance_weights=ratio.clamp(max=config.importance_cap) if config.importance_cap else None,
            ref_log_probs=t["ref_log_probs"],
            kl_coef=config.kl_coef,
            kl_estimator=config.kl_estimator,
            token_entropy=out["token_entropy"],
            entropy_coef=config.entropy_coef,
            sequence_mean=config.aggregate == "sequence_mean",
            normalize_constant=denominator,
            # An infinite loss may still have a finite gradient: make that NaN, and DeepSpeed will not apply the step.
            backward=lambda loss: engine.backward(loss if loss.isfinite() else loss * torch.nan),
        )
        loss_sum += loss.item()
        tokens += t["input_ids"].numel()
        measured.mean("entropy", out["token_entropy"][mask])
        names = {"kl": "k3", "kl/k1": "k1", "kl/k2": "k2", "clip_ratio/low": "clip_low", "clip_ratio/high": "clip_high"}
        for name, key in names.items():
            if key in per_token:
                measured.mean(name, per_token[key][mask])
        if fresh:
            difference = (trainer - t["sampler_log_probs"])[mask].abs()
            measured.mean("sampling/logp_difference_mean", difference)
            measured.max("sampling/logp_difference_max", difference)
            measured.mean("sampling/ratio_mean", ratio[mask])
            measured.max("sampling/ratio_max", ratio[mask])
            measured.mean("sampling/ratio_mean_square", ratio[mask].double() ** 2)
    engine.step()
    norm = float(engine.get_global_grad_norm())  # of this step, before clipping
    finite = math.isfinite(norm)  # otherwise the step was not applied
    measured.mean("bad_updates", [not finite])
    measured.mean("loss", [loss_sum] if finite else [])  # DeepSpeed averages over the processes, and so does this
    measured.mean("grad_norm", [norm] if finite else [])
    return tokens


# %% [markdown]
# ## 7. Measuring
#
# What each number means, and why a loss of 0 is normal, is in the README's table of metrics.


# %%
class Measurements:
    """Means and maxima over tokens or episodes, gathered bit by bit, then over all processes."""

    def __init__(self):
        self.sums, self.maxima = {}, {}

    def mean(self, name, values):
        values = torch.as_tensor(values, dtype=torch.float64)
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + values.sum().item(), count + values.numel())

    def max(self, name, values):
        largest = torch.as_tensor(values, dtype=torch.float64).amax().item() if len(values) else -math.inf
        self.maxima[name] = max(self.maxima.get(name, -math.inf), largest)

    def reduce(self):
        """{name: value} over all processes; every process must have measured the same names in the same order."""
        result = {}
        for name, (total, count) in self.sums.items():
            total, count = all_reduce(total), all_reduce(count)
            if count:  # where no token was trained on there is no entropy, rather than one of 0
                result[name] = total / count
        maxima = {name: all_reduce(value, dist.ReduceOp.MAX) for name, value in self.maxima.items()}
        return result | {name: value for name, value in maxima.items() if value > -math.inf}


def measure_episodes(episodes, metadata):
    """The metrics of one step's completions and rewards."""
    m = Measurements()
    m.mean("reward", [e.reward["reward"] for e in episodes])
    m.mean("reward_std", [metadata["reward_std"]])
    m.mean("reward/format", [e.reward["format_reward"] for e in episodes])
    m.mean("reward/answer", [e.reward["answer_reward"] for e in episodes])
    m.mean("frac_reward_zero_std", [metadata["frac_reward_zero_std"]])
    m.mean("completions/mean_length", [e.length for e in episodes])
    m.mean("completions/clipped_ratio", [e.completion.finish_reason == "length" for e in episodes])
    return m.reduce() | {"tokens/rollout": all_reduce(sum(e.length for e in episodes))}


def complaints(metrics, config):
    """The silent failures of RL runs, in words."""
    if metrics["completions/clipped_ratio"] == 1:
        yield (
            f"no completion ended by itself within --max_tokens {config.max_tokens}: does this prompt make the model "
            "stop at one of the stop tokens shown at the start?"
        )
    elif metrics["completions/clipped_ratio"] > 0.5:
        yield "more than half of the completions were cut off and could not answer: raise --max_tokens"
    if metrics["frac_reward_zero_std"] == 1:
        yield (
            "no signal: within each group all completions got the same reward, so every advantage is 0. If this goes "
            "on, the task is too hard or too easy for the model, or the prompt does not fit it; try more --completions"
        )
    if metrics["bad_updates"]:
        yield "loss or gradient not finite: the weights stay as they were; bad_step_*.jsonl has the batch"
    if metrics.get("sampling/logp_difference_mean", 0) > 0.1:
        yield (
            f"sampler and trainer disagree by {metrics['sampling/logp_difference_mean']:.2f} nats a token: "
            "the sampler has other weights, or computes in another precision"
        )


def confidence_interval(values):
    """95% interval of the mean of values from 0 to 1, one for each problem.

    For right or wrong it is Wilson's (1927), which unlike mean +- 2 sigma stays within [0, 1] and has a width at 0 of
    n; for shares of several samples the normal approximation over problems.
    """
    n, z = len(values), 1.96
    mean = math.fsum(values) / n
    if not set(values) <= {0, 1}:
        half = z * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 1.0
        return max(0.0, mean - half), min(1.0, mean + half)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n, correct, k):
    """Chance that one of k samples is right, estimated without bias from n >= k samples (arXiv:2107.03374, eq. 1)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority_vote(votes, answers):
    """maj@n: 1.0 if the most frequent vote is right (arXiv:2203.11171); a tie counts in proportion; None abstains."""
    counts = collections.Counter(vote for vote in votes if vote is not None)
    winners = [vote for vote, count in counts.items() if count == max(counts.values())]
    right = {vote for vote, answer in zip(votes, answers) if answer == 1}
    return sum(vote in right for vote in winners) / max(1, len(winners))


def evaluate(rollout, problems, task, tokenizer, config, rank, world):
    """`config.completions` completions of each problem at `config.temperature`, every process on its share.

    Returns the metrics, overall and by the task's subgroups, and this process's episodes. The seeds are the same at
    every evaluation: what differs between two of them is the model, not the dice.
    """
    from plumbing import tasks

    n = config.completions
    bound = tasks.Task(task.__name__.removesuffix('_rewards'), task, config.prompt, tokenizer)
    episodes = sample_completions(rollout, problems, task, tokenizer, config, "evaluation", rank, world)
    score(episodes, task, config)
    powers_of_two = [2**i for i in range(n.bit_length())]
    mine = []
    for group in groups_of(episodes, n):
        answers = [e.reward["answer_reward"] for e in group]
        formats = [float(e.reward["format_reward"] == 1) for e in group]
        votes = bound.votes([e.text for e in group], group[0].problem) if n > 1 else []
        values = {
            "pass@1": np.mean(answers).item(),
            **{f"pass@{k}": pass_at_k(n, int(sum(answers)), k) for k in sorted({*powers_of_two, n}) if k > 1},
            **({f"maj@{n}": majority_vote(votes, answers)} if n > 1 else {}),
            # Half of a headline gain can be format alone: right and in form, right wherever it stands.
            "strict": np.mean([a * f for a, f in zip(answers, formats)]).item(),
            "lenient": np.mean([max(a, bound.lenient(e.text, e.problem)) for a, e in zip(answers, group)]).item(),
            "format": np.mean(formats).item(),
            "format_only": np.mean([(1 - a) * f for a, f in zip(answers, formats)]).item(),
            "neither": np.mean([(1 - a) * (1 - f) for a, f in zip(answers, formats)]).item(),
            "mean_length": np.mean([e.length for e in group]).item(),
            "clipped_ratio": np.mean([e.completion.finish_reason == "length" for e in group]).item(),
        }
        mine.append((values, bound.subgroups(group[0].problem)))
    groups = collections.defaultdict(list)
    for values, subgroups in (row for rows in on_all_processes(mine) for row in rows):
        for name in ("", *(f"{s}/" for s in subgroups)):
            groups[name].append(values)
    metrics = {}
    for name, rows in sorted(groups.items()):
        for key in rows[0]:
            metrics[f"eval/{name}{key}"] = math.fsum(row[key] for row in rows) / len(rows)  # in any order
            if "@" in key or key in ("strict", "lenient"):
                low_high = confidence_interval([row[key] for row in rows])
                metrics[f"eval/{name}{key}_low"], metrics[f"eval/{name}{key}_high"] = low_high
        metrics[f"eval/{name}problems"] = len(rows)
    return metrics, episodes


# %% [markdown]
# ## 8. The record of a run
#
# `out/NAME/`: `config.json`, `metrics.jsonl` (one object a step), `episodes/` (every completion with its reward),
# `curves.png`, `checkpoints/`, and at the end `model/`; of `--eval_only`, `evaluation.json` and `episodes/`.


# %%
PANELS = [  # of curves.png: title, and (metric, label) of each curve
    ("accuracy", [("reward/answer", "training batch")]),
    ("reward", [("reward", "total"), ("reward/format", "format")]),
    ("completion length (tokens)", [("completions/mean_length", "mean")]),
    ("entropy (nats a token)", [("entropy", None)]),
    ("gradient norm", [("grad_norm", None)]),
    ("shares", [("frac_reward_zero_std", "groups without signal"), ("completions/clipped_ratio", "cut off")]),
]


def quoted(text):
    """Prompts and completions on the console: a bar before each line tells them from what the program says."""
    return "\n".join(f"  | {line}" for line in text.splitlines())


class Run:
    """The run's directory and the console. Only the first process writes."""

    def __init__(self, config, first):
        now = time.strftime("%Y%m%d-%H%M%S")  # the clocks of two processes may differ by a second
        (name,) = broadcast(config.name or f"{'eval-' * config.eval_only}{config.task}-{now}")
        self.path = config.resume or os.path.join(config.out, name)
        self.first, self.config, self.wandb = first, config, None
        self.metrics_file = os.path.join(self.path, "metrics.jsonl")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        if not first:
            return
        if os.path.exists(os.path.join(self.path, "config.json")) and not config.resume:
            raise UserError(f"{self.path} exists: --resume {self.path} goes on with it, another --name starts afresh.")
        if config.wandb != "off":
            self.start_wandb(name)
        with writing(self.path):
            os.makedirs(os.path.join(self.path, "episodes"), exist_ok=True)
        self.write("config.json", json.dumps(dataclasses.asdict(dataclasses.replace(config, resume=None)), indent=2))

    def start_wandb(self, name):
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        if self.config.wandb == "online" and not wandb.login(prompt=False):
            raise UserError("--wandb online needs an account: run `wandb login` first, or take --wandb offline.")
        os.makedirs(self.path, exist_ok=True)
        settings = {"mode": self.config.wandb, "dir": self.path, "config": dataclasses.asdict(self.config)}
        self.wandb = wandb.init(project="nano_r1", name=name, **settings)

    def write(self, name, text):
        """A file of the run's directory, whole or not at all."""
        with (
            written_whole(os.path.join(self.path, name), flush=name == "config.json") as hidden,
            open(hidden, "w") as file,
        ):
            file.write(text)

    def records(self):
        if not os.path.exists(self.metrics_file):
            return []
        with open(self.metrics_file) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]  # the last may have been cut short

    def rewind(self, step):
        """Forget what was recorded after `step`: those steps will be done again. At 0 the first evaluation as well."""
        if not self.first:
            return
        kept = [record for record in self.records() if step and record["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))
        done = {f"step_{s:06d}" for s in range(0 if step else 1, step + 1)}
        later = [
            n for n in list_checkpoints(self.checkpoints) if n not in done
        ]  # damaged, or they would have been used
        for path in [os.path.join(self.checkpoints, name) for name in later]:
            remove(path)
        for name in os.listdir(os.path.join(self.path, "episodes")):
            if name.removesuffix(".jsonl") not in done:
                os.remove(os.path.join(self.path, "episodes", name))
        for name in os.listdir(self.path):
            if name.startswith("bad_step_") and name.removeprefix("bad_").removesuffix(".jsonl") not in done:
                os.remove(os.path.join(self.path, name))
        for directory in (self.path, self.checkpoints):  # what was being written when the run was cut off
            for name in os.listdir(directory) if os.path.isdir(directory) else ():
                if name.startswith(".") and name.endswith(".tmp"):
                    remove(os.path.join(directory, name))

    def say(self, text=""):
        if self.first:
            print(text, flush=True)

    def log(self, metrics):
        if self.first:
            with writing(self.metrics_file), open(self.metrics_file, "a") as file:
                file.write(json.dumps(metrics) + "\n")
            if self.wandb:
                self.wandb.log(metrics, step=metrics["step"])

    def save_episodes(self, name, episodes, token_ids=False):
        """Every process's episodes, in one file of the run's directory."""
        rows = [
            {
                "problem": e.problem,
                "completion": e.text,
                **e.reward,
                "advantage": e.advantage,
                "length": e.length,
                "prompt_length": len(e.prompt_ids),
                "finish_reason": e.completion.finish_reason,
                **({"prompt_ids": e.prompt_ids, **dataclasses.asdict(e.completion)} if token_ids else {}),
            }
            for e in episodes
        ]
        everyone = [None] * dist.get_world_size() if self.first else None
        dist.gather_object(rows, everyone)
        if self.first:
            self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for rows in everyone for row in rows))

    def show_step(self, m, seconds_left):
        self.say(
            f"step {m['step']:>4}/{self.config.steps}  reward {m['reward']:.2f}  correct {m['reward/answer']:.2f}  "
            f"format {m['reward/format']:.2f}  length {m['completions/mean_length']:.0f}  "
            f"cut off {m['completions/clipped_ratio']:.0%}  no signal {m['frac_reward_zero_std']:.0%}  "
            f"entropy {m.get('entropy', math.nan):.2f}  grad {m.get('grad_norm', math.nan):.2f}  "
            f"{m['time/step']:.1f} s  {seconds_left / 60:.0f} min left"
        )
        for sentence in complaints(m, self.config):
            self.say(f"  WARNING: {sentence}")

    def show_evaluation(self, step, m, episodes):
        self.say(
            f"\nevaluation after step {step}: pass@1 {m['eval/pass@1']:.3f} "
            f"[{m['eval/pass@1_low']:.3f}, {m['eval/pass@1_high']:.3f}] on {m['eval/problems']} problems\n"
            f"  right and in form {m['eval/strict']:.3f}  right wherever it stands {m['eval/lenient']:.3f}  "
            f"in form {m['eval/format']:.2f}  length {m['eval/mean_length']:.0f}"
        )
        subgroups = sorted(name.split("/")[1] for name in m if name.count("/") == 2 and name.endswith("/problems"))
        self.say("  " + "  ".join(f"{s} {m[f'eval/{s}/pass@1']:.3f}" for s in subgroups))
        right = [e for e in episodes if e.reward["answer_reward"] == 1]
        wrong = [e for e in episodes if e.reward["answer_reward"] != 1]
        for e in right[:1] + wrong[:1]:
            self.say(f"  --- {e.problem}: {e.reward['why']}")
            text = e.text if len(e.text) <= 800 else f"{e.text[:400]} [...] {e.text[-400:]}"
            self.say(quoted(text.strip()))
        self.say()

    def show_table(self, results):
        """Evaluations side by side, {name: metrics}, on the console and in evaluation.json."""
        if not self.first:
            return
        self.write("evaluation.json", json.dumps(results, indent=2))
        labels = {
            "strict": "right and in form",
            "lenient": "right wherever it stands",
            "format_only": "in form, not right",
            "neither": "neither right nor in form",
            "format": "in form",
            "mean_length": "mean length (tokens)",
            "clipped_ratio": "cut off",
        }
        keys = [k.removeprefix("eval/") for m in results.values() for k in m if not k.endswith(("_low", "_high"))]
        overall = [k for k in dict.fromkeys(keys) if "/" not in k and k != "problems"]
        subgroups = [k for k in dict.fromkeys(keys) if k.endswith("/pass@1")]
        overall.sort(key=lambda k: [*labels].index(k) if k in labels else -1)  # the accuracies first
        self.say(f"\n{'':28}" + "".join(f"{name:24}" for name in results))
        for key in [*overall, *subgroups]:
            line = f"{labels.get(key, key.replace('/pass@1', ': pass@1')):28}"
            for m in results.values():
                value = f"{m[f'eval/{key}']:.3f}" if f"eval/{key}" in m else ""
                if f"eval/{key}_low" in m:
                    value += f" [{m[f'eval/{key}_low']:.3f}, {m[f'eval/{key}_high']:.3f}]"
                line += f"{value:24}"
            self.say(line)
        problems = next(iter(results.values()))["eval/problems"]
        self.say(f"{problems} problems; 95% intervals; completions with verdicts: {self.path}/episodes")

    def plot(self, panels=PANELS):
        """curves.png: what one looks at to see whether a run learns; the evaluations go into the first panel."""
        if not self.first:
            return
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        records = self.records()
        evals = [r for r in records if "eval/pass@1" in r]
        figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
        for axis, (title, series) in zip(axes.flat, panels):
            for name, label in series:
                points = [(r["step"], r[name]) for r in records if name in r]
                if points:
                    axis.plot(*zip(*points), label=label, alpha=0.7, linewidth=1)
            axis.set(title=title, xlabel="step")
        x = [r["step"] for r in evals]
        axes[0, 0].plot(x, [r["eval/pass@1"] for r in evals], "o-", label="evaluation, pass@1")
        low, high = ([r[f"eval/pass@1_{end}"] for r in evals] for end in ("low", "high"))
        axes[0, 0].fill_between(x, low, high, alpha=0.2, color="C1", label="95% interval")
        for axis in axes.flat:
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=8)
        figure.suptitle(f"{os.path.basename(self.path)}: {self.config.model} on {self.config.task}")
        with written_whole(os.path.join(self.path, "curves.png")) as hidden:
            figure.savefig(hidden, dpi=110, format="png")
        plt.close(figure)


LOWER_FIRST = {  # when memory runs out in a part of the run
    "start": [],
    "evaluation": ["eval_problems", "vllm_memory", "max_tokens"],
    "rollout": ["vllm_memory", "max_tokens", "questions"],
    "vine": ["vine_samples", "vine_segments"],
    "update": ["micro_batch_tokens", "vllm_memory"],
    "sync": ["vllm_memory"],
}
INSTEAD = {
    "start": "take --lora_rank 16 or --offload, or --zero_stage 3 on more GPUs",
    "update": "take --gradient_checkpointing, --offload, or --zero_stage 3 on several GPUs",
}


@contextlib.contextmanager
def enough_memory(part, config):
    """Turns memory that runs out into one sentence: which setting to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch has an error of its own for CUDA only
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "allocate memory" not in str(error):
            raise
        raise UserError(f"Out of memory in the {part}: {advice(part, config)}.") from None


def advice(part, config):
    names = LOWER_FIRST.get(part, ["questions"])
    lower = " or ".join(f"--{name} (now {getattr(config, name)})" for name in names)
    return ", or ".join(([f"lower {lower}"] if names else []) + ([INSTEAD[part]] if part in INSTEAD else []))


class Clock:
    """Seconds spent in each part of a step: `with clock("rollout"): ...` -> seconds["time/rollout"]."""

    def __init__(self, config):
        self.start, self.parts, self.config = time.perf_counter(), {}, config

    @contextlib.contextmanager
    def __call__(self, name):
        start = time.perf_counter()
        with enough_memory(name, self.config):
            yield
        self.parts[f"time/{name}"] = self.parts.get(f"time/{name}", 0.0) + time.perf_counter() - start

    @property
    def seconds(self):
        return {**self.parts, "time/step": time.perf_counter() - self.start}


def memory_plan(policy, config, world, max_length, device):
    """What one process needs, about, in bytes: {part: bytes} always there, {part: bytes} in turn; and what there is."""
    shape, tokens = policy.config.get_text_config(), config.micro_batch_tokens
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    everything = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    size, stage = {"float32": 4, "bfloat16": 2}[config.dtype], config.zero_stage
    master = 0 if config.dtype == "float32" and stage == 0 else 4
    if device.type == "cuda":
        available = torch.cuda.get_device_properties(device).total_memory
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world
    kind = rollout_kind(config)
    always = {
        "weights": everything * size // (world if stage == 3 else 1),
        "reference": everything * size if config.kl_coef > 0 and not config.lora_rank else 0,
        "sampler's copy": everything * size if stage == 3 and kind == "transformers" else 0,
        "gradients": trained * size // (world if stage >= 2 else 1),
        "AdamW": 0 if config.offload else trained * (master + 8) // (world if stage else 1),
    }
    rows = max(config.questions // world * config.completions, config.eval_problems // world)
    rows = min(TransformersRollout.MAX_ROWS, rows)
    cache = rows * max_length * layers * 2 * heads * head_size * size
    in_turn = {
        "KV cache": int(config.vllm_memory * available) if kind == "vllm" and device.type == "cuda" else cache,
        # Korthikanti et al. 2022 (arXiv:2205.05198), table 2: 34 bytes a layer and number in 16 bits, 2 if recomputed;
        # and four tensors of the size of a chunk of logits
        "activations and logits": tokens * layers * hidden * (2 if config.gradient_checkpointing else 34) * size // 2
        + 4 * 4 * min(LOGITS_AT_ONCE, tokens * shape.vocab_size),
    }
    return {name: value for name, value in always.items() if value}, in_turn, available


def introduce(run, policy, prompt, stops, trained_on, evaluated_on, given, max_length, world, device):
    """Say once what is about to happen, down to the rendered prompt: most failed runs fail here."""
    config = run.config
    size = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    left_out = given - trained_on - evaluated_on
    steps = f"{config.steps} steps of {config.questions} questions x {config.completions} completions\n"
    always, in_turn, available = memory_plan(policy, config, world, max_length, device)
    needed = sum(always.values()) + max(in_turn.values())
    listed = lambda parts: ", ".join(f"{name} {value / 2**20:,.0f}" for name, value in parts.items())
    memory = f"{needed / 2**20:,.0f} of {available / 2**20:,.0f} MiB a process ({listed(always)}; {listed(in_turn)})"
    largest = "rollout" if max(in_turn, key=in_turn.get) == "KV cache" else "update"
    part = "start" if sum(always.values()) > available else largest
    too_much = f"WARNING: that is more than there is: {advice(part, config)}\n" if needed > available else ""
    run.say(
        f"{config.model}: {size / 1e6:.1f}M parameters in {config.dtype}, {world} process(es) on {device.type}\n"
        + (f"LoRA: {trained / 1e6:.3f}M of them are trained\n" if trained < size else "")
        + f"{config.task}: {trained_on} problems to train on, {evaluated_on} to evaluate on"
        + (f"; {left_out} left out, their prompts are too long" if left_out else "")
        + f"\n{'' if config.eval_only else steps}"
        + ("" if config.eval_only else f"memory, about: {memory}\n{too_much}")
        + f"record: {run.path}\n"
        f"a completion ends at: {', '.join(stops)}\n"
        f"the first prompt, as the model sees it:"
    )
    run.say(quoted(prompt))


def conclude(run):
    """The result in a line, and where everything is."""
    if not run.first:
        return
    records = run.records()
    evals = [r for r in records if "eval/pass@1" in r]
    a, b = evals[0], evals[-1]
    interval = lambda r: f"{r['eval/pass@1']:.3f} [{r['eval/pass@1_low']:.3f}, {r['eval/pass@1_high']:.3f}]"
    trained = sum(r.get("time/step", 0.0) for r in records) / 60
    share = lambda part: sum(r.get(f"time/{part}", 0.0) for r in records) / 60 / trained
    parts = [f"{part} {share(part):.1%}" for part in ("rollout", "reward", "vine", "update", "sync") if share(part)]
    run.say(
        f"pass@1 on {b['eval/problems']} held-out problems: "
        f"{interval(a)} before, {interval(b)} after {b['step']} steps\n"
        f"{trained:.1f} minutes of training{': ' * bool(parts)}{', '.join(parts)}\n"
        f"model     {run.path}/model        AutoModelForCausalLM.from_pretrained loads it\n"
        f"curves    {run.path}/curves.png\n"
        f"episodes  {run.path}/episodes     completions with their rewards and advantages\n"
        f"metrics   {run.path}/metrics.jsonl"
    )


def evaluate_only(run, rollout, problems, task, tokenizer, rank, world):
    """Greedy and sampled evaluation: a table on the console; evaluation.json and episodes/ in the run's directory."""
    config = run.config
    columns = {
        "greedy": dataclasses.replace(config, temperature=0.0, completions=1),
        "sampled": dataclasses.replace(config, completions=config.eval_samples),
    }
    results = {}
    for name, settings in columns.items():
        with enough_memory("evaluation", config):
            results[name], episodes = evaluate(rollout, problems, task, tokenizer, settings, rank, world)
        run.save_episodes(f"episodes/{name}", episodes)
    run.show_table(results)
    return run.path


# %% [markdown]
# ## 9. The loop


# %%
def main(config):
    """Evaluate, train, evaluate again, save. Returns the run's directory."""
    rank, world, device = start_processes()
    if config.questions % (world * config.minibatches) and not config.eval_only:
        parts = f"{world} process(es) and {config.minibatches} minibatch(es)"
        raise UserError(f"--questions {config.questions} cannot be shared equally by {parts}.")
    task = load_task(config.task)
    train_problems, test_problems = load_all_problems(task, config)
    tokenizer = load_tokenizer(config.model)
    checkpoint, done = None, 0
    if config.resume:
        checkpoint, done = newest_checkpoint(os.path.join(config.resume, "checkpoints"), config)
    with enough_memory("start", config):
        policy = load_policy(config, checkpoint).to(device)
    stop_ids = stop_token_ids(policy, tokenizer)
    stop_texts = task.PROMPTS[config.prompt].stop
    given = len(train_problems) + len(test_problems)
    train_problems, _ = fit_into_context(train_problems, task, tokenizer, policy, config)
    test_problems, max_length = fit_into_context(test_problems, task, tokenizer, policy, config)
    if len(train_problems) < config.questions and not config.eval_only:
        few = f"{len(train_problems)} training problems are fewer than --questions {config.questions}"
        raise UserError(f"{few}: lower that.")

    run = Run(config, first=rank == 0)
    stops = [*(f"{tokenizer.decode([i])!r} ({i})" for i in stop_ids), *map(repr, stop_texts)]
    prompt = task.format_prompt(test_problems[0], tokenizer, config.prompt)
    introduce(run, policy, prompt, stops, len(train_problems), len(test_problems), given, max_length, world, device)
    rollout = make_rollout(config, policy, tokenizer, stop_ids, stop_texts, max_length, rank, world)
    if config.eval_only:
        return evaluate_only(run, rollout, test_problems, task, tokenizer, rank, world)
    reference = None
    if config.kl_coef > 0:  # with adapters the reference costs no memory: it is the policy with the adapters off
        reference = policy if config.lora_rank else load_model(config.model, config.dtype).to(device).eval()
    with enough_memory("start", config):
        engine = make_engine(policy, config)
    if checkpoint:
        restore_optimizer(engine, checkpoint)
    if config.resume:
        run.rewind(done)
        run.say(f"Going on after step {done}.\n")
        rollout.sync_weights(policy)

    def evaluation(step):
        once = dataclasses.replace(config, completions=1)
        with enough_memory("evaluation", config):
            metrics, episodes = evaluate(rollout, test_problems, task, tokenizer, once, rank, world)
        run.show_evaluation(step, metrics, episodes)
        return metrics

    check = functools.partial(check_sync, rollout, engine, test_problems, task, tokenizer, config, device, rank, world)
    if config.check_sync:
        prove_sync(rollout, policy, check)
    if done == 0:
        run.log({"step": 0, **evaluation(0)})
    pace, bad_steps = [], 0  # seconds of recent steps; steps in a row that could not be applied
    if AS_SCRIPT:  # in a notebook interrupting a cell interrupts it
        catch_signals()
    for step in range(done + 1, config.steps + 1):
        clock = Clock(config)
        sampled = []
        for attempt in range(config.sampling_rounds):  # one, but for dynamic sampling
            # 1. Sample m questions.
            label = f"step {step}, {attempt}"
            questions = sample_questions(train_problems, label, config)

            # 2. Sample n completions of each from the current policy.
            with clock("rollout"):
                new = sample_completions(rollout, questions, task, tokenizer, config, label, rank, world)

            # 3. Reward each completion.
            with clock("reward"):
                score(new, task, config)
            sampled += new
            if count_signals(sampled, config) >= config.questions:
                break

        # 4. Advantages: better or worse than the rest of its group?
        metadata = add_advantages(sampled, config)
        episodes = fill_batch(sampled, config, rank, world)
        vine = {}
        if config.credit == "vineppo":
            with clock("vine"):
                vine = vine_advantages(rollout, episodes, task, tokenizer, config, step, rank, world)
        rollout.sleep()

        # 5. Log-probabilities under the frozen reference, for the KL penalty.
        with clock("update"):
            if reference is not None:
                with policy.disable_adapter() if config.lora_rank else contextlib.nullcontext():
                    add_log_probs(reference, episodes, "ref_log_probs", config, device)

            # 6. The loss, and 7. the optimizer's step.
            lr = set_learning_rate(engine, config, step)
            measured = update_policy(engine, episodes, config, device, world)
        with clock("sync"):
            rollout.wake()
            rollout.sync_weights(policy)
            if config.check_sync:
                check()

        # 8. Log, evaluate, save.
        metrics = {"step": step, **measure_episodes(sampled, metadata), "sampling/rounds": attempt + 1}
        metrics |= {**vine, **measured, "lr": lr, **clock.seconds}
        run.save_episodes(f"episodes/step_{step:06d}", sampled)
        pace = [*pace[-9:], metrics["time/step"]]
        run.show_step(metrics, (config.steps - step) * sum(pace) / len(pace))
        bad_steps = bad_steps + 1 if metrics["bad_updates"] else 0
        if bad_steps:
            run.save_episodes(f"bad_step_{step:06d}", episodes, token_ids=True)
        if bad_steps == config.max_bad_steps:
            raise UserError(f"{bad_steps} steps in a row were not finite: see {run.path}/bad_step_{step:06d}.jsonl.")
        evaluate_now = step == config.steps or (config.eval_every and step % config.eval_every == 0)
        if evaluate_now:
            metrics |= evaluation(step)
        run.log(metrics)
        if evaluate_now:
            run.plot()
        leaving = asked_to_leave()
        if leaving or (config.save_every and step % config.save_every == 0):
            save_checkpoint(engine, tokenizer, run.checkpoints, step, config)
        if leaving:
            run.say(f"Saved after step {step}: --resume {run.path} goes on.")
            return run.path

    save_policy(policy, tokenizer, os.path.join(run.path, "model"), merge=config.lora_merge)
    conclude(run)
    return run.path


if AS_SCRIPT:
    try:
        main(CONFIG)
        stop_processes()
        sys.exit(128 + SIGNALS[0][0] if SIGNALS else 0)
    except UserError as error:
        print(f"nano_r1.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nInterrupted. --resume RUN_DIRECTORY goes on from the last checkpoint.", file=sys.stderr)
        sys.exit(130)
