"""The functions of an assignment (Stanford CS336, 2025, the fifth) under its names, in plain torch.

    PYTHONPATH=docs/course python -c "import primitives; help(primitives.masked_mean)"

In the assignment's tests/adapters.py, with docs/course of this repository on Python's path, each
function is one line: `run_masked_mean = primitives.masked_mean`.

If you take that course, its honor code holds: write your own functions, and compare afterwards.

Shapes: B completions, T positions, V vocabulary entries. `labels[b, t]` is the token that follows
`input_ids[b, t]`; `response_mask` is 1 where that label belongs to the completion. The conventions
are the assignment's: `std` divides by n - 1, a mean over an empty mask is NaN, entropies are in
nats, gradients add up over micro-batches. A wrong argument is an AssertionError.
"""

import torch
from torch.nn.utils.rnn import pad_sequence


def tokenize_prompt_and_output(prompt_strs, output_strs, tokenizer):
    """Tokenize prompts and outputs, each as it is; join them; mark the output's tokens.

    Two lists of N texts -> a dict of `input_ids`, `labels` (N, T), int64, and `response_mask`
    (N, T), bool, where T is the longest row minus 1. `nano_r1.py` trains on the sampled token ids
    instead: a text may be split into other tokens than those that were sampled.
    """
    assert len(prompt_strs) == len(output_strs), "there must be an output for each prompt"
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in prompt_strs]
    outputs = [tokenizer.encode(text, add_special_tokens=False) for text in output_strs]
    rows = [torch.tensor(p + o, dtype=torch.long) for p, o in zip(prompts, outputs)]
    masks = [torch.tensor([False] * len(p) + [True] * len(o)) for p, o in zip(prompts, outputs)]
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    tokens = pad_sequence(rows, batch_first=True, padding_value=padding)  # (N, T + 1)
    mask = pad_sequence(masks, batch_first=True)  # (N, T + 1), False at the padding
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "response_mask": mask[:, 1:]}


def compute_entropy(logits):
    """Entropy in nats of each next-token distribution, computed in float32: (..., V) -> (...)."""
    log_probs = logits.float().log_softmax(dim=-1)  # finite where the probability underflows to 0
    # H = -sum_v p_v log p_v
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def get_response_log_probs(model, input_ids, labels, return_token_entropy=False):
    """log pi(label) at every position: a dict of `log_probs` (B, T).

    With `return_token_entropy` also `token_entropy` (B, T). No mask is applied.
    """
    logits = model(input_ids).logits.float()  # (B, T, V)
    log_probs = logits.log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    if not return_token_entropy:
        return {"log_probs": log_probs}
    return {"log_probs": log_probs, "token_entropy": compute_entropy(logits)}


def masked_normalize(tensor, mask, normalize_constant, dim=None):
    """Sum of the entries where mask is 1, along `dim` or over all, divided by a constant."""
    return (tensor * mask).sum(dim) / normalize_constant


def masked_mean(tensor, mask, dim=None):
    """Mean of the entries where mask is 1, along `dim` or over all; NaN where there is none."""
    return (tensor * mask).sum(dim) / mask.sum(dim)


def compute_group_normalized_rewards(
    reward_fn,
    rollout_responses,
    repeated_ground_truths,
    group_size,
    advantage_eps,
    normalize_by_std,
):
    """Reward every response and compare it with its group (GRPO, arXiv:2402.03300, section 4.1.2).

    `reward_fn`: (response, ground truth) -> a dict with "reward". The two lists of N hold one
    group after the other. Returns the advantages (N,), the raw rewards (N,) and a dict of
    statistics.
    """
    n = len(rollout_responses)
    assert n == len(repeated_ground_truths), "there must be a ground truth for each response"
    assert n % group_size == 0, f"{n} responses are no groups of {group_size}"
    pairs = zip(rollout_responses, repeated_ground_truths)
    rewards = torch.tensor([float(reward_fn(text, truth)["reward"]) for text, truth in pairs])
    groups = rewards.double().view(-1, group_size)  # float64: equal rewards give 0, not rounding
    # A_i = r_i - mean(r); Dr. GRPO (arXiv:2503.20783) stops here
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if normalize_by_std and group_size > 1:  # a group of one has no std; its advantage is 0
        # A_i = A_i / (std(r) + eps)
        advantages = advantages / (groups.std(dim=1, keepdim=True) + advantage_eps)
    statistics = {"reward_mean": rewards.mean().item(), "reward_std": rewards.std().item()}
    return advantages.flatten().float(), rewards, statistics


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages, policy_log_probs):
    """REINFORCE (Williams 1992), per token: (B, 1) or (B, T), and (B, T) -> (B, T)."""
    check_shape(raw_rewards_or_advantages, policy_log_probs)
    # L_it = -A_i log pi(o_it)
    return -raw_rewards_or_advantages * policy_log_probs


def compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange):
    """PPO's clip (arXiv:1707.06347, eq. 7), per token.

    (B, 1) or (B, T), and (B, T) twice -> the loss (B, T), and a dict with `clipped` (B, T), which
    is True where the clip makes the gradient 0.
    """
    check_shape(advantages, policy_log_probs)
    ratio = torch.exp(policy_log_probs - old_log_probs)
    # L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - cliprange, 1 + cliprange) * advantages
    return -torch.minimum(plain, clipped), {"clipped": clipped < plain}


def compute_policy_gradient_loss(
    policy_log_probs,
    loss_type,
    raw_rewards=None,
    advantages=None,
    old_log_probs=None,
    cliprange=None,
):
    """The loss per token (B, T) that `loss_type` names, and a dict of what is worth logging."""
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "no_baseline needs raw_rewards"
        return compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    assert advantages is not None, f"{loss_type} needs advantages"
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    assert loss_type == "grpo_clip", f"unknown loss_type {loss_type}"
    assert old_log_probs is not None and cliprange is not None, "needs old_log_probs, cliprange"
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
    """The loss of one micro-batch and its backward pass; gradients add up until the optimizer step.

    The loss is the mean over completions of each completion's mean over its tokens, divided by
    `gradient_accumulation_steps`. Returns it, and the dict of `compute_policy_gradient_loss`.
    """
    token_loss, statistics = compute_policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange
    )
    loss = masked_mean(token_loss, response_mask, dim=1).mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), statistics


def sft_microbatch_train_step(
    policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant=1.0
):
    """Negative log-likelihood of one micro-batch, and its backward pass.

    The loss is the mean over rows of each row's sum / `normalize_constant`, divided by
    `gradient_accumulation_steps`. Returns it, and a dict with the number of tokens.
    """
    per_row = masked_normalize(policy_log_probs, response_mask, normalize_constant, dim=1)  # (B,)
    loss = -per_row.mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {"tokens": response_mask.sum()}


def check_shape(values, log_probs):
    """One value for each completion, (B, 1), or for each token, (B, T)."""
    expected = ((len(log_probs), 1), tuple(log_probs.shape))
    assert tuple(values.shape) in expected, f"shape {tuple(values.shape)} instead of {expected}"
