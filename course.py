"""The loop's functions under the names and in the form of the course's assignment (CS336, 5).

Its tests call these through `tests/adapters.py`; docs/course.md says how. They are made of the
functions of `nano_r1.py` and `variants.py`. Shapes: B completions, T positions, V vocabulary
entries; `labels[b, t]` follows `input_ids[b, t]`, `response_mask` is 1 where the model wrote it.
"""

from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence

from plumbing.tasks import encode_prompt
from variants import advantages as normalized_advantages
from variants import clip_loss, mean_of_means, reinforce_loss, score_with_entropy_gradient


def tokenize_prompt_and_output(prompt_strs, output_strs, tokenizer):
    """Tokenize prompts and outputs separately, join them, and mark the response.

    For pairs of texts. `nano_r1.py` keeps the sampled ids: a text may be split differently.

    Returns:
        dict of `input_ids`, `labels` (B, T), int64, and `response_mask` (B, T), bool;
        T = longest row - 1.
    """
    assert len(prompt_strs) == len(output_strs), "there must be an output for each prompt"
    prompts = [encode_prompt(text, tokenizer) for text in prompt_strs]
    outputs = [tokenizer.encode(text, add_special_tokens=False) for text in output_strs]
    rows = [torch.tensor(p + o, dtype=torch.long) for p, o in zip(prompts, outputs)]
    pad_id = tokenizer.pad_token_id
    pad_id = tokenizer.eos_token_id if pad_id is None else pad_id
    tokens = pad_sequence(rows, batch_first=True, padding_value=pad_id)  # (B, T+1)
    position = torch.arange(1, tokens.shape[1])  # (T,), of each label in its row
    starts = torch.tensor([len(p) for p in prompts])[:, None]  # (B, 1)
    ends = torch.tensor([len(row) for row in rows])[:, None]  # (B, 1)
    response_mask = (starts <= position) & (position < ends)  # (B, T)
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "response_mask": response_mask}


def compute_entropy(logits):
    """Entropy in nats of each next-token distribution: (..., V) -> (...)."""
    labels = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
    return score_with_entropy_gradient(logits, labels, temperature=1.0)[1]


def get_response_log_probs(model, input_ids, labels, return_token_entropy=False):
    """dict of `log_probs` (B, T) and, if asked for, `token_entropy` (B, T), at every position."""
    logits = model(input_ids).logits
    log_probs, entropy = score_with_entropy_gradient(logits, labels, temperature=1.0)
    if not return_token_entropy:
        return {"log_probs": log_probs}
    return {"log_probs": log_probs, "token_entropy": entropy}


def masked_mean(tensor, mask, dim=None):
    """Mean of the entries where mask is 1, along `dim` or over all; NaN where there is none."""
    return masked_normalize(tensor, mask, 1.0, dim) / mask.sum(dim)


def masked_normalize(tensor, mask, normalize_constant, dim=None):
    """Sum of the entries where mask is 1, along `dim` or over all, divided by a constant."""
    return (tensor * mask).sum(dim) / normalize_constant


def compute_group_normalized_rewards(
    reward_fn,
    rollout_responses,
    repeated_ground_truths,
    group_size,
    advantage_eps,
    normalize_by_std,
):
    """Reward every response and normalize within its group.

    `reward_fn`: (response, ground truth) -> dict with "reward". The two lists of length N hold one
    group after the other. Returns advantages (N,), raw rewards (N,), a dict of statistics.
    """
    count = len(rollout_responses)
    assert count == len(repeated_ground_truths), "there must be a ground truth for each response"
    assert count % group_size == 0, f"{count} responses are no groups of {group_size}"
    pairs = zip(rollout_responses, repeated_ground_truths)
    rewards = [float(reward_fn(response, truth)["reward"]) for response, truth in pairs]
    raw_rewards = torch.tensor(rewards)  # (N,)
    config = SimpleNamespace(
        loss_type="grpo_clip",
        baseline="group_mean",
        scale_rewards="group" if normalize_by_std else "none",
        advantage_eps=advantage_eps,
    )
    groups = raw_rewards.view(-1, group_size)  # (m, n)
    advantages = normalized_advantages(groups, config).flatten()  # (N,)
    stats = {"reward_mean": raw_rewards.mean().item(), "reward_std": raw_rewards.std().item()}
    return advantages, raw_rewards, stats


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages, policy_log_probs):
    """REINFORCE, per token: (B, 1) or (B, T), and (B, T) -> (B, T)."""
    check_per_completion_or_token(raw_rewards_or_advantages, policy_log_probs)
    return reinforce_loss(policy_log_probs, {"advantages": raw_rewards_or_advantages}, None)[0]


def compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange):
    """PPO's clip, per token: (B, 1) or (B, T), and (B, T) twice -> (B, T), and a dict (B, T)."""
    check_per_completion_or_token(advantages, policy_log_probs)
    batch = {"advantages": advantages, "old_log_probs": old_log_probs}
    config = SimpleNamespace(cliprange=cliprange, cliprange_high=None)
    return clip_loss(policy_log_probs, batch, config)


def compute_policy_gradient_loss(
    policy_log_probs,
    loss_type,
    raw_rewards=None,
    advantages=None,
    old_log_probs=None,
    cliprange=None,
):
    """The per-token loss (B, T) that `loss_type` names, and what is worth logging about it."""
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "no_baseline needs raw_rewards"
        return compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    assert advantages is not None, f"{loss_type} needs advantages"
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    assert loss_type == "grpo_clip", f"unknown loss_type {loss_type}"
    assert old_log_probs is not None and cliprange is not None, "it needs old_log_probs, cliprange"
    return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange)


def grpo_microbatch_train_step(
    policy_log_probs,
    response_mask,
    gradient_accumulation_steps,
    loss_type,
    raw_rewards=None,
    advantages=None,
    old_log_probs=None,
    cliprange=None,
):
    """Loss and backward pass of one micro-batch; gradients add up until the optimizer steps.

    The mean of the rows' means, divided by `gradient_accumulation_steps`. Returns the scaled loss
    and the dict of `compute_policy_gradient_loss`.
    """
    token_loss, stats = compute_policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange
    )
    rows = len(policy_log_probs)
    loss = mean_of_means(token_loss, response_mask, rows, None, None).sum()
    loss = loss / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), stats


def sft_microbatch_train_step(
    policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant=1.0
):
    """Minus the mean over rows of their summed log-probs / normalize_constant, and backward."""
    per_row = masked_normalize(policy_log_probs, response_mask, normalize_constant, dim=1)  # (B,)
    loss = -per_row.mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {"tokens": response_mask.sum()}


def check_per_completion_or_token(values, log_probs):
    expected = ((len(log_probs), 1), tuple(log_probs.shape))
    assert tuple(values.shape) in expected, f"shape {tuple(values.shape)} instead of {expected}"
