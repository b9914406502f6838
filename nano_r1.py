# %% [markdown]
# # nano_r1: teach a base language model to reason, in one file
#
# Reinforcement learning from verifiable rewards (RLVR), the recipe of DeepSeek-R1-Zero: ask the model a question whose
# answer a small program can check, sample several completions, and make those that did better than average more likely.
# RL shows it no example of reasoning. The whole algorithm is on this page. Not on it: the task (prompt, problems,
# reward) in `countdown_rewards.py`, and `plumbing/`: files, processes, the CPU's sampler, evaluation's statistics.
#
#     python nano_r1.py --task countdown                     # 2 CPU cores, 4 to 10 minutes, no account, no download
#     python nano_r1.py --task countdown --resume out/NAME   # go on after an interruption
#     python nano_r1.py --eval_only --model out/NAME/model   # pass@k, maj@k, strict and lenient, by subgroup
#     python -m plumbing.report out/NAME                     # look inside a run: out/NAME/report.html, for a browser
#     python nano_r1.py --help                               # every setting, and what a 0.5B-3B model wants instead
#     bash runs/countdown_qwen2.5_1.5b.sh                    # the same loop, Qwen2.5-1.5B, one GPU
#     torchrun --nproc_per_node 8 nano_r1.py ...             # the same loop, eight GPUs
#
# One step of GRPO (Shao et al. 2024, arXiv:2402.03300; DeepSeek-AI 2025, arXiv:2501.12948), numbered as in `main`:
#
#  1. Draw m prompts.
#  2. Sample a group of n completions o_1 .. o_n of each from the policy: the model in training, as it is now.
#  3. Reward each completion with the task's verifier: r_i.
#  4. Its advantage over its group (PPO trains a critic for that):  A_i = (r_i - mean(r)) / (std(r) + 1e-4)
#  5. Log-probs of the same tokens under the reference model, a frozen copy of the base.
#  6. The loss of each token t, with the ratio  rho = pi(o_it) / pi_old(o_it)  and  d = log pi_ref(o_it) - log pi(o_it):
#
#         L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)     PPO's clip, the k3 penalty
#
#     Its mean over each completion's tokens, then over all completions. pi: the policy now; pi_old: when it sampled.
#  7. One AdamW step (DeepSpeed).
#  8. The sampler gets the new weights.
#  9. Log; every N steps evaluate and save a checkpoint.
#
# One optimizer step for each batch by default, as in the first paper's runs (R1-Zero: 16), so that rho is 1 when its
# gradient is taken and the clip does not act (`--epochs 2 --minibatches 4` makes it act). Simpler here than in the
# papers: the reference stays the base model for the whole run; no learned reward model, no process supervision.

# %%
from dataclasses import dataclass
from typing import Literal

from plumbing.settings import Engine, Evaluation, EvaluationOnly, Record, UserError, check_run_settings, require
from plumbing.start import parse_or_exit

# %% [markdown]
# ## 1. Settings
#
# The defaults are right for the embedded 1M-parameter model on two cores; in [brackets] what a 0.5B-3B model wants, or
# the usual value of what is off. `Config(steps=20)` in a notebook is `--steps 20` on the command line. Settings of
# engine, evaluation and record are in `plumbing/settings.py`.


# %%
@dataclass
class Problems:
    """what to learn, and from what"""

    task: str = "countdown"  # the task: the module TASK_rewards.py beside this file
    model: str = "models/nano-base"  # a local directory or a hub id [Qwen/Qwen2.5-1.5B]
    data: str | None = None  # problems: a jsonl/json/csv/parquet file, or `hub`; left out: the built-in generator
    prompt: str = "short"  # one of the task's prompts: short, chat, plain; countdown also reasoning, steps [chat]


@dataclass
class Rollout:
    """the rollout, steps 1 to 3"""

    prompts_per_step: int = 16  # m [16 as in McGill-NLP/nano-aha-moment, 128 if you can]
    group_size: int = 8  # n, completions of each prompt [4 in nano-aha-moment, 8 is better]
    max_tokens: int = 320  # completions longer than this are cut off [1024]
    temperature: float = 1.0  # the loss scores the whole softmax at this temperature, so no top-p and no top-k
    max_num_gen_batches: int = 1  # sample up to this many batches until m groups have a nonzero std (DAPO) [usual: 3]
    overlong_buffer: int = 0  # over the last N of max_tokens the reward falls by up to 1 (DAPO)


@dataclass
class Objective:
    """the objective, steps 4 to 6"""

    # what a reward is compared with; leave_one_out: the mean of the group's other completions (RLOO)
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    # divide advantages by a standard deviation: the group's (n - 1), the same biased (n), the batch's, none (Dr. GRPO)
    scale_rewards: Literal["group", "group_biased", "batch", "none"] = "group"
    advantage_eps: float = 1e-4  # added to that standard deviation
    # completion: all its tokens share one advantage; vineppo: a segment's is the change of expected reward over it,
    # found by sampling on from each cut (several times the rollout; baseline and scale_rewards play no part)
    credit: Literal["completion", "vineppo"] = "completion"
    vine_segments: int = 4  # segments of a completion with vineppo
    vine_samples: int = 4  # K, continuations sampled from each cut [VinePPO's paper: 9]
    # no_baseline: raw rewards; reinforce_with_baseline: advantages, no ratio; grpo_clip: PPO's clip on each token's
    # ratio; gspo: the same with one ratio for the whole completion
    loss_type: Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "gspo"] = "grpo_clip"
    # of the per-token losses: the mean of each completion's mean (GRPO), the mean over all tokens (DAPO), or their sum
    # divided by completions x max_tokens (Dr. GRPO)
    loss_agg_mode: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = "seq-mean-token-mean"
    cliprange: float = 0.2  # eps of the clip [gspo: 3e-4]
    cliprange_high: float | None = None  # its upper end, where it differs [DAPO's clip-higher: 0.28]
    # beta, weight of the KL penalty, which holds the policy near the reference; 0 saves that model, its forward pass
    # and (without an entropy bonus) the update of completions whose advantage is 0: about a fifth of a step's time
    kl_coef: float = 0.001
    kl_estimator: Literal["k3", "k2", "k1"] = "k3"  # which estimate of the KL; k1 is a poor loss, its gradient is noise
    entropy_coef: float = 0.0  # weight of an entropy bonus, against collapse
    mask_truncated_completions: bool = False  # no gradient from completions that were cut off (DAPO)
    tis_cap: float = 0.0  # truncated importance sampling: weigh tokens by pi_old / pi_sampler, at most this [usual: 2]


@dataclass
class Update:
    """the update, step 7"""

    steps: int = 60  # GRPO steps [200-1000]
    epochs: int = 1  # passes over each batch of completions
    minibatches: int = 1  # optimizer steps per pass
    learning_rate: float = 1.5e-4  # AdamW's, times warm-up and decay [1e-6, adapters 1e-5: see runs/]
    warmup_steps: int = 10  # linear warm-up: Adam's first steps rest on few gradients
    lr_scheduler_type: Literal["linear", "constant"] = "linear"  # decay towards 0 from the first step on, or none
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm
    weight_decay: float = 0.0  # AdamW's


@dataclass
class Config(Record, EvaluationOnly, Evaluation, Engine, Update, Objective, Rollout, Problems):
    """Everything a run depends on; saved as `config.json` in the run's directory. Raises UserError."""

    def __post_init__(self):
        check_run_settings(self)
        require(self, "at least 1", "prompts_per_step group_size max_tokens max_num_gen_batches vine_segments")
        require(self, "at least 1", "vine_samples steps epochs minibatches eval_samples")
        require(self, "not negative", "kl_coef entropy_coef overlong_buffer tis_cap weight_decay warmup_steps")
        require(self, "above 0", "temperature learning_rate max_grad_norm cliprange cliprange_high advantage_eps")
        if self.group_size < 2 and self.loss_type != "no_baseline":
            raise UserError("--group_size 1 leaves nothing to compare with: take 2, or --loss_type no_baseline.")
        if self.epochs * self.minibatches > 1 and self.loss_type not in ("grpo_clip", "gspo"):
            raise UserError("--epochs and --minibatches above 1 train on older samples: take --loss_type grpo_clip.")
        if self.loss_type == "no_baseline" and (self.credit == "vineppo" or self.max_num_gen_batches > 1):
            raise UserError("--loss_type no_baseline ignores advantages: no vineppo, no --max_num_gen_batches with it.")
        if self.overlong_buffer > self.max_tokens:
            raise UserError("--overlong_buffer must not exceed --max_tokens.")

    @property
    def label(self):  # the name of the run's directory begins with it
        return f"eval-{self.task}" if self.eval_only else self.task


DESCRIPTION = "Teach a base language model to reason with reinforcement learning from verifiable rewards (GRPO)."
if __name__ == "__main__" and "__file__" in globals():  # as a script; not in a notebook, where __name__ is the same
    CONFIG = parse_or_exit(Config, "nano_r1.py", DESCRIPTION)  # before torch is imported: --help answers at once

# %%
import dataclasses
import functools
import os
import random

import torch
import torch.distributed as dist

from plumbing.batching import equalize_micro_batches, split_by_tokens
from plumbing.checkpoints import restore_optimizer, resume_point, save_checkpoint, save_policy
from plumbing.chunked_logits import can_chunk, score_in_chunks
from plumbing.evaluation import UpdateMeters, measure_episodes, measure_evaluation
from plumbing.models import find, gathered, initialize_deepspeed, load_policy, load_reference
from plumbing.models import load_tokenizer, merged_weights, stop_token_ids, vocabulary_size
from plumbing.oom import oom_advice, vllm_advice
from plumbing.problems import load_data
from plumbing.processes import all_gather_object, all_reduce, derive_seed, init_distributed, shutdown_hooks
from plumbing.processes import catch_signals, cleaned_up, stop_requested
from plumbing.record import RunLog, Timer
from plumbing.sampler import Completion, TransformersSampler, sampler_kind
from plumbing.script import run_script
from plumbing.sync_check import check_sync, prove_sync
from plumbing.tasks import Reward, encode_prompt, load_task

# %% [markdown]
# ## 2. The objective
#
# The small functions that every policy-gradient trainer for language models has, under their usual names.
# Shapes: B completions, T positions, V vocabulary entries. `labels[b, t]` is the token that follows `input_ids[b, t]`;
# `response_mask` is 1 where the model wrote that token, its end-of-sequence token included (a model that gets no
# gradient there never learns to stop). `main` uses most; the rest have the form of CS336's assignment.


# %%
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


def tokenize_prompt_and_output(prompt_strs, output_strs, tokenizer):
    """Tokenize prompts and outputs separately, join them, and mark the response.

    For pairs of texts (nano_sft.py). `main` keeps the sampled ids: a text tokenized again may be split differently.

    Returns:
        dict of `input_ids`, `labels` (B, T), int64, and `response_mask` (B, T), bool; T = longest row - 1.
    """
    assert len(prompt_strs) == len(output_strs), f"{len(prompt_strs)} prompts, but {len(output_strs)} outputs"
    prompts = [encode_prompt(s, tokenizer) for s in prompt_strs]
    outputs = [tokenizer.encode(s, add_special_tokens=False) for s in output_strs]
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return pad_prompts_and_outputs(prompts, outputs, pad_id)


def pad_prompts_and_outputs(prompt_ids, output_ids, pad_id):
    """Lists of token ids -> the tensors of `tokenize_prompt_and_output`, padded on the right."""
    rows = [prompt + output for prompt, output in zip(prompt_ids, output_ids)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])  # (B, T+1)
    position = torch.arange(1, width)  # (T,), of each label in its row
    starts = torch.tensor([len(prompt) for prompt in prompt_ids])[:, None]  # (B, 1)
    ends = torch.tensor([len(row) for row in rows])[:, None]  # (B, 1)
    response_mask = (starts <= position) & (position < ends)  # (B, T)
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "response_mask": response_mask}


def compute_entropy(logits):
    """Entropy in nats of each next-token distribution: (..., V) -> (...)."""
    logits = logits.float()
    # H = -sum_v p_v log p_v = log Z - sum_v p_v logit_v, which needs no log of a probability that has underflowed to 0
    log_z = torch.logsumexp(logits, dim=-1)
    return log_z - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


def score_tokens(logits, labels, temperature=1.0, with_entropy=False, entropy_gradient=False):
    """Log-prob of each label, and entropy of its distribution (0 if not asked for): (..., V), (...) -> (...), (...)."""
    logits = logits.float() / temperature  # the distribution that was sampled from
    # log pi(y) = log softmax(logits / temperature)_y
    log_probs = torch.log_softmax(logits, dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):  # a gradient costs memory
        entropy = compute_entropy(logits) if with_entropy else torch.zeros_like(log_probs)
    return log_probs, entropy


def get_response_log_probs(
    model, input_ids, labels, return_token_entropy=False, temperature=1.0, response_mask=None, entropy_gradient=False
):
    """log pi(label | everything before it) at each position, in float32 whatever the model's dtype.

    Args:
        model: any module whose output has `.logits` (B, T, V).
        input_ids, labels: (B, T). Padding is on the right and attention is causal: no response token sees padding.
        response_mask: (B, T). Where it is 0, log-prob and entropy may be left out, as 0: that saves time and memory.
    Returns:
        dict of `log_probs` (B, T) and, if asked for, `token_entropy` (B, T).
    """
    options = {"with_entropy": return_token_entropy, "entropy_gradient": entropy_gradient}
    score = functools.partial(score_tokens, temperature=temperature, **options)
    if response_mask is None or not can_chunk(model):
        log_probs, entropy = score(model(input_ids).logits, labels)  # (B, T) each
    else:  # the same numbers, without all logits in memory at once
        log_probs, entropy = score_in_chunks(model, input_ids, labels, response_mask, score)  # (B, T) each
    return {"log_probs": log_probs, "token_entropy": entropy} if return_token_entropy else {"log_probs": log_probs}


def normalize_group_rewards(raw_rewards, group_size, advantage_eps, baseline="group_mean", scale_rewards="group"):
    """Advantages within each group (GRPO, arXiv:2402.03300, section 4.1.2).

    Args:
        raw_rewards: (N,), groups one after the other.
        baseline: "group_mean", or "leave_one_out": the mean of the n-1 others (RLOO, arXiv:2402.14740).
        scale_rewards: the standard deviation to divide by: "group" (with n - 1), "group_biased" (with n, as in
            nano-aha-moment), "batch" (of all rewards), or "none" (Dr. GRPO, arXiv:2503.20783).
    Returns:
        advantages (N,), and a dict: mean and std of the rewards, the share of groups whose rewards are all equal.
    """
    assert baseline in ("group_mean", "leave_one_out"), f"unknown baseline {baseline}"
    assert scale_rewards in ("group", "group_biased", "batch", "none"), f"unknown scale_rewards {scale_rewards}"
    groups = raw_rewards.view(-1, group_size)  # (m, n)
    # A_i = (r_i - mean(r_1..r_n)) / (std(r_1..r_n) + advantage_eps)
    advantages = groups - groups.mean(dim=1, keepdim=True)
    # A group whose rewards are all equal gives no gradient: exactly 0, whatever the rounding of its mean.
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)  # (m, 1)
    advantages = advantages.masked_fill(equal, 0.0)
    if baseline == "leave_one_out":  # r_i - mean of the others = n / (n-1) (r_i - mean of all)
        advantages = advantages * group_size / max(1, group_size - 1)
    std = torch.zeros_like(groups[:, :1])  # (m, 1); a scalar for "batch"
    if scale_rewards == "batch":
        std = raw_rewards.std()
    elif group_size > 1:
        std = groups.std(dim=1, keepdim=True, correction=0 if scale_rewards == "group_biased" else 1)
    if scale_rewards != "none":
        advantages = advantages / (std + advantage_eps)
    stats = {"reward_mean": raw_rewards.mean().item(), "reward_std": std.mean().item()}
    return advantages.flatten(), {**stats, "frac_reward_zero_std": equal.float().mean().item()}


def compute_group_normalized_rewards(
    reward_fn, rollout_responses, repeated_ground_truths, group_size, advantage_eps, normalize_by_std, **options
):
    """Steps 3 and 4 in the form of the course's assignment: reward every response and normalize within its group.

    `reward_fn`: (response, ground truth) -> dict with "reward". The two lists of length N hold one group after the
    other. `options`: `baseline` and `scale_rewards`. Returns advantages (N,), raw rewards (N,), a dict of statistics.
    """
    count = len(rollout_responses)
    assert count == len(repeated_ground_truths), f"{count} responses, but {len(repeated_ground_truths)} ground truths"
    assert count % group_size == 0, f"{count} responses cannot be cut into groups of {group_size}"
    results = [reward_fn(response, truth) for response, truth in zip(rollout_responses, repeated_ground_truths)]
    raw_rewards = torch.tensor([float(result["reward"]) for result in results])  # (N,)
    if not normalize_by_std:
        options["scale_rewards"] = "none"
    advantages, stats = normalize_group_rewards(raw_rewards, group_size, advantage_eps, **options)
    return advantages, raw_rewards, stats


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages, policy_log_probs):
    """REINFORCE, per token: (B, 1) or (B, T), and (B, T) -> (B, T).

    With raw rewards its mean gradient is that of -(expected reward). A > 0 makes tokens likelier, A < 0 less likely.
    """
    assert_per_completion_or_token(raw_rewards_or_advantages, policy_log_probs)
    # L = -A log pi
    return -raw_rewards_or_advantages * policy_log_probs


def compute_grpo_clip_loss(
    advantages, policy_log_probs, old_log_probs, cliprange, cliprange_high=None, response_mask=None
):
    """PPO's clipped objective (arXiv:1707.06347, eq. 7), per token: (B, 1) or (B, T), and (B, T) twice -> (B, T).

    With `cliprange_high` the upper end is 1 + cliprange_high (DAPO, arXiv:2503.14476, section 3.1). With
    `response_mask` every token of a completion gets the same ratio, the geometric mean of its tokens' (GSPO,
    arXiv:2507.18071).

    Returns:
        loss (B, T), and the masks of the tokens that the clip froze: `clip_ratio/low` (A < 0, ratio below 1 - eps) and
        `clip_ratio/high` (A > 0, ratio above 1 + eps). They get no gradient: one batch moves the policy only so far.
    """
    assert_per_completion_or_token(advantages, policy_log_probs)
    log_ratio = policy_log_probs - old_log_probs  # (B, T)
    if response_mask is not None:
        length = response_mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        log_ratio = ((log_ratio * response_mask).sum(dim=1, keepdim=True) / length).expand_as(log_ratio)
    ratio = torch.exp(log_ratio)  # rho = pi / pi_old, (B, T)
    low, high = 1 - cliprange, 1 + (cliprange if cliprange_high is None else cliprange_high)
    # L = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)  # (B, T)
    stats = {"clip_ratio/low": (ratio < low) & (advantages < 0), "clip_ratio/high": (ratio > high) & (advantages > 0)}
    return loss, stats


def compute_policy_gradient_loss(
    policy_log_probs, loss_type, raw_rewards=None, advantages=None, old_log_probs=None, cliprange=None, **options
):
    """The per-token loss (B, T) that `loss_type` names, and what is worth logging about it.

    `options`: `cliprange_high` and `response_mask` (for gspo) of `compute_grpo_clip_loss`.
    """
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "no_baseline needs raw_rewards"
        return compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    assert advantages is not None, f"{loss_type} needs advantages"
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    assert loss_type in ("grpo_clip", "gspo"), f"unknown loss_type {loss_type}"
    assert old_log_probs is not None and cliprange is not None, f"{loss_type} needs old_log_probs and cliprange"
    if loss_type == "gspo":
        assert options.get("response_mask") is not None, "gspo needs response_mask"
    else:
        options.pop("response_mask", None)  # one ratio for each token
    return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange, **options)


def assert_per_completion_or_token(values, log_probs):
    expected = ((len(log_probs), 1), tuple(log_probs.shape))
    assert tuple(values.shape) in expected, f"advantages or rewards of shape {tuple(values.shape)}, not {expected}"


def compute_kl(policy_log_probs, ref_log_probs):
    """KL(policy || reference), how far training has moved it: Schulman's estimates for each token, (B, T), by name.

    k1 is unbiased and often negative; k2 is biased, its gradient is that of the KL; k3 is unbiased and never negative,
    the penalty of GRPO (eq. 4); its gradient is that of KL(reference || policy). See joschu.net/blog/kl-approx.html.
    """
    d = ref_log_probs - policy_log_probs  # log(pi_ref / pi), (B, T)
    # k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d
    return {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d}


def grpo_loss(policy_log_probs, token_entropy, batch, denominator, config):
    """Step 6: a micro-batch's part of the loss; parts add up over micro-batches, and are averaged over processes.

    Args:
        policy_log_probs, token_entropy: (B, T), of the policy that is trained.
        batch: tensors by name: `response_mask`, `old_log_probs`, `ref_log_probs` and `sampler_log_probs` (B, T),
            `raw_rewards` and `advantages` (B, 1), or `advantages` (B, T). What the config does not need may be missing.
        denominator: counted over the whole optimizer step; see `loss_denominator`.
    Returns:
        the loss, a scalar, and a dict of tensors (B, T) to log: `kl`, `kl/k1`, `kl/k2`, `clip_ratio/low` and `/high`.
    """
    mask, old_log_probs = batch["response_mask"], batch.get("old_log_probs")
    loss, stats = compute_policy_gradient_loss(
        policy_log_probs, config.loss_type, batch.get("raw_rewards"), batch.get("advantages"), old_log_probs,
        config.cliprange, cliprange_high=config.cliprange_high, response_mask=mask,
    )  # fmt: skip
    if config.tis_cap:  # L = min(pi_old / pi_sampler, cap) L: the sampler may compute in another precision
        loss = loss * torch.exp(old_log_probs - batch["sampler_log_probs"]).clamp(max=config.tis_cap)  # (B, T)
    if batch.get("ref_log_probs") is not None:  # L = L + beta k3, or another estimate
        kl = compute_kl(policy_log_probs * mask, batch["ref_log_probs"] * mask)  # inf x 0 elsewhere would be NaN
        loss = loss + config.kl_coef * kl[config.kl_estimator]  # (B, T)
        stats |= {"kl": kl["k3"], "kl/k1": kl["k1"], "kl/k2": kl["k2"]}
    if config.entropy_coef:  # L = L - coef H
        assert token_entropy is not None, "entropy_coef needs token_entropy"
        loss = loss - config.entropy_coef * token_entropy  # (B, T)
    stats = {name: values.detach() for name, values in stats.items()}
    if config.loss_agg_mode == "seq-mean-token-mean":  # sum_i 1/|o_i| sum_t L_it / denominator
        lengths = mask.sum(dim=1).clamp(min=1)  # (B,); the mask of a dummy episode is all 0
        return (masked_normalize(loss, mask, 1.0, dim=1) / lengths).sum() / denominator, stats
    # sum_i sum_t L_it / denominator: the denominator makes it the mean over all tokens, or Dr. GRPO's sum
    return masked_normalize(loss, mask, denominator), stats


def count_for_mean(tokens, rows, config):
    """What --loss_agg_mode divides by: response tokens, completions, or a constant for each completion."""
    counts = {"token-mean": tokens, "seq-mean-token-mean": rows, "seq-mean-token-sum-norm": rows * config.max_tokens}
    return counts[config.loss_agg_mode]


def grpo_microbatch_train_step(
    policy_log_probs, response_mask, gradient_accumulation_steps, loss_type, raw_rewards=None, advantages=None,
    old_log_probs=None, cliprange=0.2, ref_log_probs=None, token_entropy=None, **settings,
):  # fmt: skip
    """Loss and backward pass of one micro-batch in the course's form; gradients add up until the optimizer steps.

    The aggregate of these rows, divided by `gradient_accumulation_steps`; `main` has batches of any size and counts the
    whole step instead. `settings`: more of `Config`, not tis_cap. Returns the scaled loss, the dict of `grpo_loss`.
    """
    batch = {"response_mask": response_mask, "raw_rewards": raw_rewards, "advantages": advantages}
    batch |= {"old_log_probs": old_log_probs, "ref_log_probs": ref_log_probs}
    config = Config(loss_type=loss_type, cliprange=cliprange, **settings)
    counted = count_for_mean(response_mask.sum().clamp(min=1), len(policy_log_probs), config)
    loss, stats = grpo_loss(policy_log_probs, token_entropy, batch, gradient_accumulation_steps * counted, config)
    loss.backward()
    return loss.detach(), stats


# %% [markdown]
# ## 3. The optimizer
#
# DeepSpeed holds the weights, their gradients and AdamW's states, on one process or many; ZeRO shards them. Call
# `engine.backward(loss)` any number of times, then `engine.step()` once.


# %%
def make_engine(model, config):
    """The DeepSpeed engine around the policy: `engine(...)` is its forward pass."""
    if config.gradient_checkpointing:
        model.train()  # from_pretrained returns a model in eval mode, in which checkpointing is off
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adamw = {"lr": config.learning_rate, "betas": [0.9, 0.95], "weight_decay": config.weight_decay}
    settings = {
        "train_micro_batch_size_per_gpu": 1,  # DeepSpeed wants a number; our micro-batches vary in size
        "managed_gradient_accumulation": False,  # any number of backward passes, then one step
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": config.dtype == "bfloat16"},  # keeps float32 master weights
        "data_types": {"grad_accum_dtype": "fp32"},  # 64 micro-batches summed in bfloat16 would be wrong by 0.8%
        "zero_optimization": {"stage": config.zero_stage},
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's CPU Adam would have to be compiled; torch's not
        "optimizer": {"type": "AdamW", "params": {**adamw, "torch_adam": True}},
    }
    if config.offload:
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    settings["optimizer"]["params"]["fused"] = config.offload or torch.cuda.is_available()  # one pass over the weights
    return initialize_deepspeed(model, settings, config)


def set_learning_rate(engine, config, step):
    """Linear warm-up, times (1 - (step - 1) / steps) if "linear": small last steps leave less noise in the model."""
    lr = config.learning_rate * min(1.0, step / max(1, config.warmup_steps))
    if config.lr_scheduler_type == "linear":
        lr *= 1 - (step - 1) / config.steps
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    return lr


# %% [markdown]
# ## 4. The sampler
#
# Two samplers have the same methods: vLLM in this process, for models on a GPU, and a loop over the Hugging Face model
# for machines without vLLM (`plumbing/sampler.py`). Both return each token's log-prob under the distribution that it
# was sampled from: if the trainer's differ by more than rounding, weights, temperature or precision are not the same.


# %%
class VLLMSampler:
    """vLLM: paged KV cache, continuous batching, prefix caching; on a GPU it sleeps while we train."""

    def __init__(self, config, stop_ids, stop_texts, max_length, padding_ids=()):
        cuda = torch.cuda.is_available()
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; without it vLLM takes a share of all memory
        from vllm import LLM

        self.stop_ids, self.stop_texts, self.can_sleep = stop_ids, list(stop_texts), cuda
        few = len(padding_ids) <= 1024  # vLLM's limit; Qwen2.5 has 271
        self.bias = {i: -100.0 for i in padding_ids} if few else None  # embedding rows without a token: never sampled
        options = {"enforce_eager": True}
        if cuda:
            options = {"gpu_memory_utilization": config.vllm_gpu_memory_utilization, "enable_sleep_mode": True}
        if dist.get_world_size() > 1:
            options["distributed_executor_backend"] = "external_launcher"  # one vLLM in each of torchrun's processes
        self.llm = LLM(
            model=find(config.model),
            dtype=config.dtype,
            max_model_len=max_length,
            logprobs_mode="processed_logprobs",  # of the distribution sampled from: temperature included
            seed=derive_seed(config.seed, dist.get_rank(), "vllm"),
            disable_log_stats=True,
            **options,
        )
        shutdown_hooks.append(self.llm.llm_engine.engine_core.shutdown)

    def generate(self, prompt_token_ids, n, temperature, max_tokens, seeds):
        """n completions of each prompt, as lists of `Completion`; `max_tokens` and `seeds` have one for each prompt."""
        if not prompt_token_ids:  # this process has no share of a small evaluation
            return []
        from vllm import SamplingParams

        params = [
            SamplingParams(
                n=n, temperature=temperature, max_tokens=limit, seed=seed, logprobs=0,
                stop_token_ids=self.stop_ids, stop=self.stop_texts, include_stop_str_in_output=True,
                detokenize=bool(self.stop_texts), logit_bias=self.bias,
            )
            for seed, limit in zip(seeds, max_tokens)
        ]  # fmt: skip
        prompts = [{"prompt_token_ids": ids} for ids in prompt_token_ids]
        results = []
        for prompt in self.llm.generate(prompts, params, use_tqdm=False):
            results.append([])
            for out in prompt.outputs:
                logprobs = [entry[token].logprob for token, entry in zip(out.token_ids, out.logprobs)]
                results[-1].append(Completion(list(out.token_ids), logprobs, out.finish_reason))
        return results

    def sync_weights(self, policy):
        """Load the trained weights into vLLM, and drop every prefix cached with the old ones."""
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


def make_sampler(config, policy, task, max_length):
    """The sampler that `--rollout` names."""
    stop_ids = stop_token_ids(policy, task.tokenizer)
    if sampler_kind(config) == "transformers":
        return TransformersSampler(policy, task.tokenizer, stop_ids, task.stop_texts, own_copy=config.zero_stage == 3)
    padding_ids = range(vocabulary_size(task.tokenizer), policy.get_input_embeddings().num_embeddings)
    with vllm_advice(config):
        return VLLMSampler(config, stop_ids, task.stop_texts, max_length, padding_ids)


# %% [markdown]
# ## 5. The steps of the algorithm
#
# `main` calls these in order. An episode is one completion with its reward, advantage and log-probs.


# %%
@dataclass
class Episode:
    problem: dict  # a row of the data set
    prompt_ids: list  # token ids
    completion: Completion  # token ids, the sampler's log-prob of each, why it ended
    text: str  # of the completion, for the verifier
    reward: Reward = None  # step 3: total, format, answer, why
    advantage: float = 0.0  # step 4
    token_advantages: list = None  # with vineppo one for each token, instead of `advantage` for all
    ref_log_probs: torch.Tensor = None  # step 5: (length,), under the reference model
    old_log_probs: torch.Tensor = None  # step 5: (length,), under the policy before this step's updates
    scored: tuple = None  # step 6, for the record: log-probs and entropies, (length,) each, before its first update
    new_log_probs: torch.Tensor = None  # (length,), after this step's updates, for the record
    dummy: bool = False  # stands in on a process with too few micro-batches or no gradient; no token of it counts

    @property
    def length(self):
        return len(self.completion.token_ids)


def draw_prompts(problems, config, label):
    """Step 1: m different problems; `label` names the draw, and with the seed decides it."""
    return random.Random(derive_seed(config.seed, label, "questions")).sample(problems, config.prompts_per_step)


def sample_completions(sampler, problems, task, config, label, n, temperature):
    """Step 2: n completions of each problem of this process's share, as episodes; those of a group are adjacent."""
    # A problem's seed derives from `label` and its place in the list: the completions are the same for any number of
    # processes, each of which samples its share.
    rank, world_size = dist.get_rank(), dist.get_world_size()
    seeds = [derive_seed(config.seed, label, place) for place in range(len(problems))][rank::world_size]
    problems = problems[rank::world_size]
    prompts = [task.prompt_ids(problem) for problem in problems]
    groups = sampler.generate(prompts, n, temperature, [config.max_tokens] * len(prompts), seeds)
    return [
        Episode(problem, prompt, completion, task.text(completion.token_ids))
        for problem, prompt, group in zip(problems, prompts, groups)
        for completion in group
    ]


def compute_rewards(episodes, task, overlong_buffer=0, max_tokens=0):
    """Step 3: the verifier's `Reward` of each episode."""
    rewards = task.rewards([e.text for e in episodes], [e.problem for e in episodes])
    for e, reward in zip(episodes, rewards):
        if overlong_buffer:  # DAPO, arXiv:2503.14476, eq. 13: falls by 0 to 1 over the last tokens
            late = (e.length - (max_tokens - overlong_buffer)) / overlong_buffer
            reward = reward._replace(total=reward.total - min(1.0, max(0.0, late)))
        e.reward = reward


def compute_advantages(episodes, config):
    """Step 4: each episode's advantage within its group. Returns statistics of the rewards to log."""
    # Over all processes, for the standard deviation of a batch; each then keeps the advantages of its own episodes.
    rewards = all_gather_object([e.reward.total for e in episodes])
    advantages, stats = normalize_group_rewards(
        torch.tensor(sum(rewards, []), dtype=torch.float32),  # (N,), of all processes
        config.group_size, config.advantage_eps, config.baseline, config.scale_rewards,
    )  # fmt: skip
    first = sum(map(len, rewards[: dist.get_rank()]))
    for e, advantage in zip(episodes, advantages[first:].tolist()):
        e.advantage = advantage  # one number for all tokens of the completion
    return stats


def groups_of(episodes, config):
    return [episodes[i : i + config.group_size] for i in range(0, len(episodes), config.group_size)]


def has_signal(group):
    return len({e.reward.total for e in group}) > 1  # else each advantage is 0 (vineppo: a completion's sum)


def select_groups(episodes, config):
    """DAPO's dynamic sampling (arXiv:2503.14476, section 3.2, there by accuracy): m groups, of nonzero std first."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if len(episodes) * world_size == config.prompts_per_step * config.group_size:
        return episodes  # the default: as many were sampled as are trained on
    # All groups are gathered and dealt out again, so that the choice does not depend on the number of processes.
    parts = [groups_of(part, config) for part in all_gather_object(episodes)]
    in_order = [group for same_place in zip(*parts) for group in same_place]  # as one process would have sampled them
    chosen = sorted(in_order, key=has_signal, reverse=True)[: config.prompts_per_step]  # otherwise the order stays
    return [e for group in chosen[rank::world_size] for e in group]


def vine_advantages(sampler, episodes, task, config, step):
    """VinePPO (arXiv:2410.01679): credit for each segment of a completion, in `token_advantages`.

    A completion is cut into segments of equal length (the paper: reasoning steps). The value of a cut is the mean
    reward of K continuations of the very tokens before it; that of the beginning the mean reward of the group's other
    completions; that of the end its own reward. A segment's advantage is its end's value minus its beginning's.

    Returns:
        metrics: the tokens that the continuations cost.
    """
    n, k, tokens = config.group_size, config.vine_samples, 0
    cuts, starts, limits, seeds = [], [], [], []
    for place, e in enumerate(episodes):
        cuts.append(sorted({e.length * s // config.vine_segments for s in range(1, config.vine_segments)} - {0}))
        prompt = dist.get_rank() + place // n * dist.get_world_size()  # the same, however many processes there are
        for cut in cuts[-1]:
            starts.append(e.prompt_ids + e.completion.token_ids[:cut])
            limits.append(config.max_tokens - cut)  # what is left of the completion's limit
            seeds.append(derive_seed(config.seed, step, "vine", prompt, place % n, cut))
    continuations = iter(sampler.generate(starts, k, config.temperature, limits, seeds))
    for place, e in enumerate(episodes):
        others = [o.reward.total for o in episodes[place // n * n : place // n * n + n] if o is not e]
        values = [sum(others) / max(1, len(others))]  # V(beginning)
        for cut in cuts[place]:
            tails = []
            for c in next(continuations):
                tokens += len(c.token_ids)
                whole = dataclasses.replace(c, token_ids=e.completion.token_ids[:cut] + c.token_ids)
                tails.append(Episode(e.problem, e.prompt_ids, whole, task.text(whole.token_ids)))
            compute_rewards(tails, task, config.overlong_buffer, config.max_tokens)
            values.append(sum(tail.reward.total for tail in tails) / k)  # V(cut)
        values.append(e.reward.total)  # V(end)
        ends = [0, *cuts[place], e.length]
        # A_t = V(end of the segment of t) - V(its beginning): they sum to the reward minus V(beginning)
        segments = zip(values, values[1:], ends, ends[1:])
        e.token_advantages = [after - before for before, after, i, j in segments for _ in range(j - i)]
    return {"tokens/vine": all_reduce(tokens)}


def counts_in_loss(episode, config):
    # DAPO's overlong filtering: a completion that was cut off says nothing about its answer
    return not config.mask_truncated_completions or episode.completion.finish_reason != "length"


def loss_denominator(episodes, config):
    """What the loss is divided by, counted over all micro-batches and processes, whose number changes no gradient."""
    counted = count_for_mean(sum(e.length for e in episodes if counts_in_loss(e, config)), len(episodes), config)
    return max(1.0, all_reduce(counted)) / dist.get_world_size()  # DeepSpeed averages gradients over the processes


def drop_without_gradient(episodes, config):
    """Leave out masked episodes and, where neither KL penalty nor entropy bonus is on, those of advantage 0."""
    kept = [e for e in episodes if counts_in_loss(e, config)]
    if config.kl_coef == 0 and config.entropy_coef == 0 and config.loss_type != "no_baseline":
        kept = [e for e in kept if any(e.token_advantages or [e.advantage])]
    return kept or [dataclasses.replace(episodes[0], dummy=True)]  # each backward pass is a collective (ZeRO 2, 3)


def minibatches(episodes, config):
    """The episodes of each optimizer step: --minibatches equal parts of them, in the same order in each epoch."""
    groups = groups_of(episodes, config)
    size = len(groups) // config.minibatches
    for turn in range(config.epochs * config.minibatches):
        first = turn % config.minibatches * size
        yield [e for group in groups[first : first + size] for e in group]


def micro_batches(episodes, config):
    """Lists of episodes for one forward pass each: of similar length, --micro_batch_tokens at most with padding."""
    batches = split_by_tokens(episodes, lambda e: len(e.prompt_ids) + e.length, config.micro_batch_tokens)
    # The same number on every process: under ZeRO 2 and 3 each backward pass is a collective.
    return equalize_micro_batches(batches, lambda e: dataclasses.replace(e, dummy=True))


def collate(episodes, device, pad_id=0):
    """Episodes -> padded tensors, (B, T) each, `raw_rewards` and (but for vineppo) `advantages` (B, 1)."""
    completions = [e.completion for e in episodes]
    batch = pad_prompts_and_outputs([e.prompt_ids for e in episodes], [c.token_ids for c in completions], pad_id)
    mask = batch["response_mask"]  # (B, T)

    def per_token(values):  # one list per episode -> (B, T), at the response tokens
        result = torch.zeros(mask.shape)
        result[mask] = torch.cat([torch.as_tensor(v, dtype=torch.float32) for v in values])
        return result

    batch["sampler_log_probs"] = per_token([c.logprobs for c in completions])  # (B, T)
    batch["advantages"] = torch.tensor([[e.advantage] for e in episodes])  # (B, 1)
    if episodes[0].token_advantages is not None:
        batch["advantages"] = per_token([e.token_advantages for e in episodes])  # (B, T)
    for name in ("ref_log_probs", "old_log_probs"):
        if getattr(episodes[0], name) is not None:
            batch[name] = per_token([getattr(e, name) for e in episodes])  # (B, T)
    batch["raw_rewards"] = torch.tensor([[float(e.reward.total)] for e in episodes])  # (B, 1)
    batch["response_mask"] = mask & torch.tensor([[not e.dummy] for e in episodes])  # (B, T)
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def add_log_probs(model, episodes, name, config):
    """Step 5: the log-probs of each episode's tokens under `model`, stored in its attribute `name`."""
    for rows in micro_batches(episodes, config):
        batch = collate(rows, model.device)  # tensors (B, T)
        mask = batch["response_mask"]
        out = get_response_log_probs(model, batch["input_ids"], batch["labels"], False, config.temperature, mask)
        for e, row, tokens in zip(rows, out["log_probs"], mask):
            setattr(e, name, row[tokens].cpu())  # (length,)


def evaluate(sampler, problems, task, config, n, temperature):
    """Metrics of n completions of each problem, and this process's episodes; the same seeds at every evaluation."""
    with oom_advice("evaluation", config):
        episodes = sample_completions(sampler, problems, task, config, "evaluation", n, temperature)
    compute_rewards(episodes, task)  # without the length penalty
    return measure_evaluation(episodes, task, n), episodes


def evaluate_only(sampler, problems, task, config, log):
    """--eval_only: greedy and sampled, as a table on the console, in evaluation.json, and as episodes."""
    results = {}
    for name, n, temperature in (("greedy", 1, 0.0), ("sampled", config.eval_samples, config.temperature)):
        results[name], episodes = evaluate(sampler, problems, task, config, n, temperature)
        log.save_episodes(f"episodes/{name}", episodes)
    log.print_table(results)
    return log.path


# %% [markdown]
# ## 6. The loop


# %%
@cleaned_up()
def main(config):
    """Evaluate, train, evaluate again, save. Returns the run's directory. Raises UserError."""
    device = init_distributed(config)
    checkpoint, start = resume_point(config)  # (None, 0) without --resume
    tokenizer = load_tokenizer(config.model)
    task = load_task(config.task, config.prompt, tokenizer)  # prompts, problems, the verifier
    data = load_data(task, config)
    policy = load_policy(config, checkpoint, device)  # the model that is trained
    log = RunLog(config)  # the run's directory, the console, the curves
    log.print_header(policy, task, data)
    sampler = make_sampler(config, policy, task, data.max_length)
    if config.eval_only:
        return evaluate_only(sampler, data.eval, task, config, log)
    reference = load_reference(config, policy)  # a frozen copy of the base, for the KL penalty
    engine = make_engine(policy, config)  # the policy with its gradients and AdamW's states
    if config.resume:
        log.rewind(start)
        restore_optimizer(engine, checkpoint)
        sampler.sync_weights(policy)
    prove_sync(sampler, engine, task, data.eval, config)  # only with --check_sync
    if start == 0:
        metrics = log.save_evaluation(0, *evaluate(sampler, data.eval, task, config, 1, config.temperature))
        log.write_metrics({"step": 0} | metrics)

    catch_signals()  # from here on Ctrl-C finishes the step and saves a checkpoint
    n, temperature, stopping = config.group_size, config.temperature, False
    for step in range(start + 1, config.steps + 1):
        timer, sampled = Timer(config), []
        for attempt in range(config.max_num_gen_batches):  # once; more with dynamic sampling
            # 1. Draw m prompts.
            label = f"step {step}, {attempt}"
            problems = draw_prompts(data.train, config, label)
            # 2. Sample a group of n completions of each from the current policy.
            with timer("rollout"):
                episodes = sample_completions(sampler, problems, task, config, label, n, temperature)
            # 3. Reward each completion.
            with timer("reward"):
                compute_rewards(episodes, task, config.overlong_buffer, config.max_tokens)
            sampled += episodes
            if all_reduce(sum(map(has_signal, groups_of(sampled, config)))) >= config.prompts_per_step:
                break
        # 4. Advantages: how much better is each completion than its group?
        reward_stats = compute_advantages(sampled, config)
        episodes = select_groups(sampled, config)  # all of them without dynamic sampling
        if config.credit == "vineppo":
            with timer("vine"):
                reward_stats |= vine_advantages(sampler, episodes, task, config, step)
        sampler.sleep()  # vLLM frees its share of the GPU

        with timer("update"):
            # 5. Log-probs under the reference; under the old policy too, if several optimizer steps follow.
            if reference is not None:
                add_log_probs(reference, episodes, "ref_log_probs", config)
            if config.epochs * config.minibatches > 1:
                add_log_probs(engine, episodes, "old_log_probs", config)
            lr, meters = set_learning_rate(engine, config, step), UpdateMeters(log.keeps_tokens(step))
            for part in minibatches(episodes, config):  # one part with all episodes, by default
                # 6. The loss and its gradient, summed over micro-batches.
                denominator = loss_denominator(part, config)
                for rows in micro_batches(drop_without_gradient(part, config), config):
                    batch = collate(rows, engine.device)  # tensors (B, T)
                    out = get_response_log_probs(
                        engine, batch["input_ids"], batch["labels"], True, temperature, batch["response_mask"],
                        entropy_gradient=config.entropy_coef > 0,
                    )  # fmt: skip
                    # With one optimizer step pi_old = pi: the ratio is 1, but its gradient is not 0.
                    batch.setdefault("old_log_probs", out["log_probs"].detach())
                    loss, stats = grpo_loss(out["log_probs"], out["token_entropy"], batch, denominator, config)
                    # An infinite loss may have a finite gradient: make it NaN, so that DeepSpeed skips the step.
                    engine.backward(loss if loss.isfinite() else loss * torch.nan)
                    meters.add_micro_batch(loss, stats, rows, out, batch)
                # 7. One AdamW step.
                engine.step()
                meters.add_optimizer_step(float(engine.get_global_grad_norm()))
        if log.keeps_tokens(step):  # what the update did to each token: its log-prob after minus before
            with timer("record"):
                add_log_probs(engine, episodes, "new_log_probs", config)

        # 8. The sampler gets the new weights.
        with timer("sync"):
            sampler.wake()
            sampler.sync_weights(policy)
            check_sync(sampler, engine, task, data.eval, config)  # only with --check_sync

        # 9. Log, evaluate, save.
        metrics = {"step": step, "lr": lr, "sampling/rounds": attempt + 1, **measure_episodes(sampled, reward_stats)}
        metrics |= meters.reduce() | timer.seconds
        log.save_step(metrics, sampled, episodes)
        if log.is_due(step, config.eval_every):
            metrics |= log.save_evaluation(step, *evaluate(sampler, data.eval, task, config, 1, temperature))
        log.write_metrics(metrics)
        stopping = stop_requested()
        if stopping or config.save_every and log.is_due(step, config.save_every):
            save_checkpoint(engine, tokenizer, log.checkpoints, step, config)
        if stopping:
            break
    else:  # no break: all steps are done
        save_policy(policy, tokenizer, log.model, merge=config.lora_merge)
    log.print_summary(stopping)
    return log.path


if __name__ == "__main__" and "__file__" in globals():
    run_script(main, CONFIG)
