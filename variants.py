# %% [markdown]
# # GRPO's relatives, for a second evening
#
# Each differs from `nano_r1.py` in one place: `main` there takes four functions, and here are
# others for them, each with its equation and its paper.
#
#     python variants.py --task countdown                # the same as nano_r1.py
#     python variants.py --loss_type gspo --cliprange 3e-4 --cliprange_high 4e-4 --minibatches 4
#     python variants.py --help                          # its settings and those of nano_r1.py
#
# | `main(config, ...)` | what it does | what differs here |
# | --- | --- | --- |
# | `rollout` | steps 1 to 3 | rewards of 0 and 1, a penalty on length, dynamic sampling, VinePPO |
# | `advantages` | step 4 | RLOO, REINFORCE, Dr. GRPO, other standard deviations, MaxRL |
# | `loss` | step 6 | REINFORCE, clip-higher, GSPO, importance sampling, k1, k2, aggregation |
# | `update` | steps 6 and 7 | several optimizer steps a batch, masks, an entropy bonus |
#
# docs/algorithms.md lists the algorithms with their flags, docs/ablations.md what they changed.

# %%
from dataclasses import dataclass
from typing import Literal

import nano_r1
from plumbing.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from plumbing.settings import UserError, check_settings
from plumbing.start import parse_or_exit

# %% [markdown]
# ## 1. Settings


# %%
@dataclass(kw_only=True)
class RolloutVariants:
    """variants of the rollout, steps 1 to 3"""

    binary_reward: bool = False  # the reward is the verdict on the answer, 0 or 1, without form
    # over the last N of max_tokens the reward falls by up to 1 (DAPO)
    overlong_buffer: NonNegativeInt = 0
    # sample up to this many batches until m groups have rewards that differ (DAPO) [usual: 3]
    max_num_gen_batches: PositiveInt = 1
    # completion: all its tokens share one advantage; vineppo: that of a segment is the change of
    # expected reward over it, found by sampling on from each cut (several times the rollout)
    credit: Literal["completion", "vineppo"] = "completion"
    vine_segments: PositiveInt = 4  # segments of a completion with vineppo
    vine_samples: PositiveInt = 4  # K, continuations from each cut [VinePPO's paper: 9]


@dataclass(kw_only=True)
class AdvantageVariants:
    """variants of the advantages, step 4"""

    # what a reward is compared with; leave_one_out: the mean of the group's others (RLOO)
    baseline: Literal["group_mean", "leave_one_out", "none"] = "group_mean"
    # what advantages are divided by: a standard deviation, of the group (with n - 1), the same
    # biased (with n), of the whole batch; nothing (Dr. GRPO); the group's mean (MaxRL)
    scale_rewards: Literal["group", "group_biased", "batch", "none", "mean"] = "group"


@dataclass(kw_only=True)
class LossVariants:
    """variants of the loss, step 6"""

    # no_baseline: raw rewards, no ratio; reinforce_with_baseline: advantages, no ratio;
    # grpo_no_clip: the ratio without the clip; gspo: one ratio for the whole completion
    loss_type: Literal[
        "no_baseline", "reinforce_with_baseline", "grpo_no_clip", "grpo_clip", "gspo"
    ] = "grpo_clip"
    # of the tokens' losses: the mean of each completion's mean (GRPO), the mean over all tokens
    # (DAPO), or their sum divided by completions x max_tokens (Dr. GRPO)
    loss_agg_mode: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = (
        "seq-mean-token-mean"
    )
    # the clip's upper end, where it differs from the lower one [DAPO's clip-higher: 0.28]
    cliprange_high: PositiveFloat | None = None
    kl_estimator: Literal["k3", "k2", "k1"] = "k3"  # which estimate of the KL is the penalty
    # above 0: weigh tokens by pi_old / pi_sampler, at most this [usual: 2]
    tis_cap: NonNegativeFloat = 0.0
    entropy_coef: NonNegativeFloat = 0.0  # weight of an entropy bonus, against collapse


@dataclass(kw_only=True)
class UpdateVariants:
    """variants of the update, step 7"""

    epochs: PositiveInt = 1  # passes over each batch of completions
    minibatches: PositiveInt = 1  # optimizer steps per pass
    # no gradient from completions that were cut off (DAPO)
    mask_truncated_completions: bool = False


@dataclass(kw_only=True)
class Config(nano_r1.Config, RolloutVariants, AdvantageVariants, LossVariants, UpdateVariants):
    """Everything a run depends on; saved as `config.json` in its directory. Raises UserError."""

    def __post_init__(self):
        check_settings(self)
        refuse_senseless_pairs(self)


def refuse_senseless_pairs(config):
    """Raise UserError for settings that contradict each other."""
    compares = config.loss_type != "no_baseline" and config.baseline != "none"
    if compares and config.group_size < 2:
        raise UserError(
            "--group_size 1 leaves nothing to compare with: take 2, or --baseline none."
        )
    default = config.baseline == "group_mean" and config.scale_rewards == "group"
    if config.loss_type == "no_baseline" and not default:
        raise UserError("--loss_type no_baseline has no use for --baseline and --scale_rewards.")
    if config.credit == "vineppo" and not default:
        raise UserError("--credit vineppo has no use for --baseline and --scale_rewards.")
    if config.baseline == "none" and config.scale_rewards not in ("none", "mean"):
        # Equal rewards have a deviation of 0: they would be divided by --advantage_eps alone.
        raise UserError("--baseline none wants --scale_rewards none or mean.")
    if config.loss_type == "no_baseline" and config.credit == "vineppo":
        raise UserError("--loss_type no_baseline ignores advantages: not with --credit vineppo.")
    if not compares and config.max_num_gen_batches > 1:
        raise UserError("--max_num_gen_batches wants rewards that differ: not without a baseline.")
    if config.scale_rewards == "mean" and (not config.binary_reward or config.overlong_buffer):
        hint = "--binary_reward, and no --overlong_buffer"
        raise UserError(
            f"--scale_rewards mean divides by the mean, for rewards of 0 and 1: {hint}."
        )
    if config.cliprange_high and config.loss_type not in ("grpo_clip", "gspo"):
        raise UserError(f"--cliprange_high: --loss_type {config.loss_type} has no clip.")
    if config.kl_estimator != "k3" and not config.kl_coef:
        raise UserError("--kl_estimator needs a penalty: --kl_coef above 0.")
    if config.overlong_buffer > config.max_tokens:
        raise UserError("--overlong_buffer must not exceed --max_tokens.")


DESCRIPTION = "GRPO's relatives: the lesson with another rollout, advantage, loss or update."
IS_SCRIPT = __name__ == "__main__" and "__file__" in globals()
if IS_SCRIPT:
    CONFIG = parse_or_exit(Config, "variants.py", DESCRIPTION)

# %%
import collections
import functools
import itertools

import torch
import torch.distributed as dist

from plumbing.processes import all_gather_object, all_reduce, derive_seed
from plumbing.start import run_script
from plumbing.timing import timed

# %% [markdown]
# ## 2. The rollout: steps 1 to 3


# %%
def rollout(sampler, problems, task, config, step):
    """Rewarded episodes; those to train on come first, others are masked."""
    groups = []
    for draw in range(config.max_num_gen_batches):
        episodes = nano_r1.rollout(sampler, problems, task, config, step, draw)
        if config.binary_reward:
            take_verdicts(episodes)
        if config.overlong_buffer:
            penalize_overlong(episodes, config)
        groups += batched(episodes, config.group_size)
        # DAPO's dynamic sampling, arXiv:2503.14476, section 3.2: draw again until m groups teach.
        if all_reduce(sum(map(has_signal, groups))) >= config.prompts_per_step:
            break
    groups = deal_out(groups, config)
    episodes = list(itertools.chain(*groups))
    if config.credit == "vineppo":
        with timed("vine"):  # `update` puts them in the place of main's advantages
            add_vine_advantages(sampler, episodes[: share(config)], task, config, step)
    return episodes


def batched(items, size):
    """Lists of `size` items each. (itertools has it from Python 3.12 on.)"""
    return [items[i : i + size] for i in range(0, len(items), size)]


def share(config):
    """How many episodes each process trains on."""
    return config.prompts_per_step * config.group_size // dist.get_world_size()


def take_verdicts(episodes):
    """r = 1 if the answer is right, else 0: for MaxRL, and without a baseline for RFT.

    There -r log pi learns from right completions alone, like fine-tuning on them.
    """
    for e in episodes:
        e.reward = e.reward._replace(total=e.reward.answer)


def penalize_overlong(episodes, config):
    """DAPO, arXiv:2503.14476, eq. 13: over the last tokens the reward falls by up to 1."""
    for e in episodes:
        # r = r - min(1, max(0, (|o| - (max - buffer)) / buffer))
        late = (e.length - (config.max_tokens - config.overlong_buffer)) / config.overlong_buffer
        e.reward = e.reward._replace(total=e.reward.total - min(1.0, max(0.0, late)))


def has_signal(group):
    """Whether rewards differ; else every advantage is 0."""
    return len({e.reward.total for e in group}) > 1


def deal_out(groups, config):
    """m of all processes' groups, those with a signal first, shared equally; then the others."""
    if len(groups) * dist.get_world_size() == config.prompts_per_step:
        return groups  # as many as are needed
    # In the order in which one process would have sampled them, so that their number plays no part.
    in_order = []
    for same_place in zip(*all_gather_object(groups)):
        in_order += same_place
    in_order.sort(key=has_signal, reverse=True)  # otherwise the order stays
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    left = in_order[config.prompts_per_step :][mine]
    for e in itertools.chain(*left):
        e.masked = True
    return in_order[: config.prompts_per_step][mine] + left


def add_vine_advantages(sampler, episodes, task, config, step):
    """VinePPO (arXiv:2410.01679): an advantage for each segment of a completion.

    A completion is cut into segments of equal length (the paper: reasoning steps). The value of a
    cut is the mean reward of K continuations of the very tokens before it; that of the beginning
    the mean reward of the group's other completions; that of the end its own reward.
    """
    cuts = [cuts_of(e, config) for e in episodes]
    starts = []
    limits = []
    seeds = []
    for place, e in enumerate(episodes):
        group, member = divmod(place, config.group_size)
        prompt = dist.get_rank() + group * dist.get_world_size()  # in any number of processes
        for cut in cuts[place]:
            starts.append(e.prompt_ids + e.completion.token_ids[:cut])
            limits.append(config.max_tokens - cut)  # what is left of the completion's limit
            seeds.append(derive_seed(config.seed, step, "vine", prompt, member, cut))
    samples = sampler.generate(starts, config.vine_samples, config.temperature, limits, seeds)
    continuations = iter(samples)
    for place, e in enumerate(episodes):
        first = place - place % config.group_size
        others = [o.reward.total for o in episodes[first : first + config.group_size] if o is not e]
        values = [sum(others) / max(1, len(others))]  # V(beginning)
        for cut in cuts[place]:
            values.append(value_of_cut(e, cut, next(continuations), task, config))  # V(cut)
        values.append(e.reward.total)  # V(end)
        ends = [0, *cuts[place], e.length]
        e.per_token["vine_advantages"] = []
        for i in range(len(ends) - 1):
            # A_t = V(end of the segment of t) - V(its beginning)
            e.per_token["vine_advantages"] += [values[i + 1] - values[i]] * (ends[i + 1] - ends[i])


def cuts_of(episode, config):
    """Where a completion is cut: token counts, without its beginning and its end."""
    parts = config.vine_segments
    return sorted({episode.length * s // parts for s in range(1, parts)} - {0})


def value_of_cut(e, cut, continuations, task, config):
    """V(cut): the mean reward of completions that share the first `cut` tokens."""
    tails = []
    for c in continuations:
        ids = e.completion.token_ids[:cut] + c.token_ids
        whole = nano_r1.Completion(ids, [], c.finish_reason)
        tails.append(nano_r1.Episode(e.problem, e.prompt_ids, whole, task.text(ids)))
    rewards = task.rewards([t.text for t in tails], [t.problem for t in tails])
    for tail, reward in zip(tails, rewards):
        tail.reward = reward
    if config.binary_reward:
        take_verdicts(tails)
    if config.overlong_buffer:
        penalize_overlong(tails, config)
    sampled = sum(len(c.token_ids) for c in continuations)
    e.measured["vine_tokens"] = e.measured.get("vine_tokens", 0) + sampled
    return sum(tail.reward.total for tail in tails) / len(tails)


# %% [markdown]
# ## 3. The advantages: step 4
#
# A = (r - baseline) / (scale + eps), each from the rewards of a step, (m, n).


# %%
def group_mean(rewards):
    """GRPO."""
    return rewards.mean(dim=1, keepdim=True)  # (m, 1)


def leave_one_out(rewards):
    """RLOO, arXiv:2402.14740: the mean of the n - 1 others, without the reward itself."""
    n = rewards.shape[1]
    return (rewards.sum(dim=1, keepdim=True) - rewards) / (n - 1)  # (m, n)


def zero_baseline(rewards):
    """REINFORCE (Williams 1992)."""
    return torch.zeros_like(rewards)


BASELINES = {"group_mean": group_mean, "leave_one_out": leave_one_out, "none": zero_baseline}


def group_std(rewards):
    """GRPO: with n - 1."""
    return rewards.std(dim=1, keepdim=True)  # (m, 1)


def biased_group_std(rewards):
    """nano-aha-moment: with n."""
    return rewards.std(dim=1, keepdim=True, correction=0)  # (m, 1)


def batch_std(rewards):
    """Of all rewards of the step, over all processes (arXiv:2508.08221)."""
    everywhere = all_gather_object(rewards.flatten().tolist())
    return torch.tensor(list(itertools.chain(*everywhere))).std()


def mean_reward(rewards):
    """MaxRL, arXiv:2602.02710, for rewards of 0 and 1.

    Where every completion's tokens are summed, the gradient is that of sum_{k<n} pass@k / k, the
    first n - 1 terms of log(pass@1); REINFORCE's is the first alone.
    """
    return rewards.mean(dim=1, keepdim=True)  # (m, 1)


SCALES = {"group": group_std, "group_biased": biased_group_std, "batch": batch_std}
SCALES["mean"] = mean_reward


def advantages(rewards, config):
    """Step 4: (m, n) -> (m, n)."""
    if config.loss_type == "no_baseline":  # the course's name for REINFORCE without a baseline
        return rewards
    values = rewards - BASELINES[config.baseline](rewards)
    if config.scale_rewards != "none":  # none: Dr. GRPO, arXiv:2503.20783
        values = values / (SCALES[config.scale_rewards](rewards) + config.advantage_eps)
    if config.baseline == "none":
        return values
    # Exactly 0 for equal rewards, whatever the rounding, and for a group of one.
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return values.masked_fill(equal, 0.0)


# %% [markdown]
# ## 4. The loss: step 6
#
# First the loss of a token, then what is added to it, then how tokens are put together.


# %%
def reinforce_loss(log_probs, batch, config):
    """REINFORCE: no ratio. On samples of an older policy its gradient is biased."""
    # L = -A log pi
    return -batch["advantages"] * log_probs, {}


def no_clip_loss(log_probs, batch, config):
    """The ratio without a clip: of large variance once pi has moved.

    It corrects the probability of each token, not that of the tokens before it, which would need
    the product of their ratios.
    """
    # L = -rho A
    return -torch.exp(log_probs - batch["old_log_probs"]) * batch["advantages"], {}


def clip_loss(log_probs, batch, config):
    """PPO's clip, with an upper end of its own: clip-higher (DAPO, arXiv:2503.14476, sec. 3.1)."""
    return clipped(torch.exp(log_probs - batch["old_log_probs"]), batch["advantages"], config)


def gspo_loss(log_probs, batch, config):
    """GSPO, arXiv:2507.18071: one ratio a completion, the geometric mean of its tokens' ratios."""
    mask = batch["response_mask"]
    # s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|)
    log_ratio = (log_probs - batch["old_log_probs"]) * mask  # (B, T)
    log_ratio = log_ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return clipped(torch.exp(log_ratio).expand_as(log_probs), batch["advantages"], config)


def clipped(ratio, advantages, config):
    """L = -min(rho A, clip(rho, 1 - eps, 1 + eps_high) A), and which tokens the clip froze."""
    low = 1 - config.cliprange
    high = 1 + (config.cliprange_high or config.cliprange)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)  # (B, T)
    stats = {"clip_ratio/low": (ratio < low) & (advantages < 0)}
    stats["clip_ratio/high"] = (ratio > high) & (advantages > 0)
    return loss, stats


TOKEN_LOSSES = {
    "no_baseline": reinforce_loss,
    "reinforce_with_baseline": reinforce_loss,
    "grpo_no_clip": no_clip_loss,
    "grpo_clip": clip_loss,
    "gspo": gspo_loss,
}


def estimate_kl(log_probs, ref_log_probs):
    """Schulman's estimates of KL(pi || pi_ref) at each token, (B, T) by name.

    As a value k1 and k3 are unbiased on samples of pi; k1 is often negative, k3 never. As a loss,
    on fresh samples and with equal weight for each token: k1's gradient is 0 on average and
    restrains nothing, k2's is that of KL(pi || pi_ref), k3's that of KL(pi_ref || pi). Where each
    completion's tokens weigh 1/|o_i| (seq-mean-token-mean), k1's is the gradient of E[1/|o|],
    which rewards length. See joschu.net/blog/kl-approx.html.
    """
    d = ref_log_probs - log_probs  # log(pi_ref / pi)
    # k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d
    return {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d}


def truncated_weights(batch, config):
    """Truncated importance sampling: min(pi_old / pi_sampler, cap), (B, T).

    For samplers that compute in another precision (fengyao.notion.site/off-policy-rl).
    """
    return torch.exp(batch["old_log_probs"] - batch["sampler_log_probs"]).clamp(max=config.tis_cap)


def mean_of_means(loss, mask, completions, tokens, config):
    """GRPO: 1/N sum_i 1/|o_i| sum_t L_it. Every completion weighs the same."""
    return (loss * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1) / completions  # (B,)


def mean_of_tokens(loss, mask, completions, tokens, config):
    """DAPO: the sum over the number of all tokens of the step. Every token weighs the same."""
    return (loss * mask).sum(dim=1) / tokens  # (B,)


def constant_norm(loss, mask, completions, tokens, config):
    """Dr. GRPO: the sum over a constant, completions x max_tokens."""
    return (loss * mask).sum(dim=1) / (completions * config.max_tokens)  # (B,)


AGGREGATES = {
    "seq-mean-token-mean": mean_of_means,
    "token-mean": mean_of_tokens,
    "seq-mean-token-sum-norm": constant_norm,
}


def loss(log_probs, batch, completions, config, tokens):
    """Step 6, as `nano_r1.grpo_loss`. `tokens`: those of the step that count, a process's share."""
    token_loss, stats = TOKEN_LOSSES[config.loss_type](log_probs, batch, config)  # (B, T)
    if config.tis_cap:
        token_loss = token_loss * truncated_weights(batch, config)
    if config.kl_coef:
        estimates = estimate_kl(log_probs, batch["ref_log_probs"])
        token_loss = token_loss + config.kl_coef * estimates[config.kl_estimator]
        stats["kl"] = estimates["k3"]
        if config.kl_estimator != "k3":
            stats[f"kl/{config.kl_estimator}"] = estimates[config.kl_estimator]
    if config.entropy_coef:
        token_loss = token_loss - config.entropy_coef * batch["entropy"]
    aggregate = AGGREGATES[config.loss_agg_mode]
    return aggregate(token_loss, batch["response_mask"], completions, tokens, config), stats


# %% [markdown]
# ## 5. The update: steps 6 and 7


# %%
def score_with_entropy_gradient(logits, labels, temperature):
    """`nano_r1.score_tokens`, where the entropy has a gradient too: it needs more memory."""
    log_probs, _ = nano_r1.score_tokens(logits, labels, temperature)
    logits = logits.float() / temperature
    # H = log Z - sum_v p_v logit_v, which needs no log of a probability that underflows to 0
    log_z = torch.logsumexp(logits, dim=-1)
    return log_probs, log_z - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


def minibatches(episodes, config):
    """The episodes of each optimizer step: equal parts, in the same order in each epoch."""
    parts = batched(episodes, len(episodes) // config.minibatches)
    return parts * config.epochs


def update(engine, episodes, config, lr, loss_function=loss):
    """Steps 6 and 7, as `nano_r1.update`: --epochs x --minibatches AdamW steps on one batch."""
    measured = collections.defaultdict(list)
    episodes = episodes[: share(config)]  # dynamic sampling may have sampled more
    for e in episodes:
        if config.credit == "vineppo":
            e.per_token["advantages"] = e.per_token.pop("vine_advantages")
        if config.mask_truncated_completions and e.completion.finish_reason == "length":
            e.masked = True  # DAPO's overlong filtering: it says nothing about its answer
    if config.credit == "vineppo":
        sampled = [e.measured.get("vine_tokens", 0) for e in episodes]
        measured["tokens/vine"].append(torch.tensor(sampled))
    if config.epochs * config.minibatches > 1:
        # pi_old, before the first step moves the policy
        nano_r1.add_log_probs(engine, episodes, "old_log_probs", config)
    score = score_with_entropy_gradient if config.entropy_coef else nano_r1.score_tokens
    for part in minibatches(episodes, config):
        if loss_function is loss:  # one of your own has the lesson's arguments
            # DeepSpeed averages over the processes: a process's share of the tokens of all.
            tokens = all_reduce(sum(e.length for e in part if not e.masked))
            share_of_tokens = max(1.0, tokens / dist.get_world_size())
            bound = functools.partial(loss, tokens=share_of_tokens)
        else:
            bound = loss_function
        for name, tensors in nano_r1.update(engine, part, config, lr, bound, score).items():
            measured[name] += tensors
    return measured


# %% [markdown]
# ## 6. The run


# %%
def main(config):
    """`nano_r1.main` with the relatives that the settings name. Returns the run's directory."""
    return nano_r1.main(config, rollout, advantages, loss, update)


if IS_SCRIPT:
    run_script(main, CONFIG)
