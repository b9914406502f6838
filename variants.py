# %% [markdown]
# # GRPO's relatives
#
# Each relative differs from `nano_r1.py` in one place. `nano_r1.main` takes functions in the place
# of its own (class Parts). This file has some with the same signatures, each with its equation and
# its paper. Flags choose among them.
#
#     python variants.py --task countdown                # the same as nano_r1.py
#     python variants.py --loss_type gspo --cliprange 3e-4 --cliprange_high 4e-4 --minibatches 4
#     python variants.py --help                          # every setting
#
# | function | steps | what can differ |
# | --- | --- | --- |
# | `rollout` | 1 to 3 | binary rewards, a penalty on length, dynamic sampling, VinePPO |
# | `advantages` | 4 | RLOO, REINFORCE, Dr. GRPO, other standard deviations, MaxRL |
# | `loss` | 6 | REINFORCE, clip-higher, GSPO, CISPO, importance sampling, k1, k2, aggregation |
# | `update` | 5 to 7 | several optimizer steps per batch, masks |
# | `load_model` | | LoRA, a teacher (on-policy distillation) |
#
# docs/algorithms.md has the command of each algorithm.

# %%
import copy
import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
import tyro

import nano_r1
from nano_r1 import RANK, WORLD, gather, seed_of

# %% [markdown]
# ## 1. Settings


# %%
@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """GRPO's relatives: nano_r1.py with another rollout, advantage, loss, update or model."""

    # Steps 1 to 3.

    binary_reward: bool = False  # train on the correctness reward alone, 0 or 1
    # lower the reward by up to 1 over the last N tokens before max_tokens (DAPO); 0: off
    overlong_buffer: int = 0
    # draw up to this many batches, until m groups have rewards that differ (DAPO) [3]
    max_num_gen_batches: int = 1
    # completion: one advantage for all tokens of a completion; vineppo: one for each segment
    credit: Literal["completion", "vineppo"] = "completion"
    vine_segments: int = 4  # segments per completion
    vine_samples: int = 4  # K, the continuations sampled from the end of each segment [9]

    # Step 4.

    # subtract this from a reward; leave_one_out: the mean of the group's other rewards (RLOO)
    baseline: Literal["group_mean", "leave_one_out", "none"] = "group_mean"
    # the divisor of the advantages. group: the group's standard deviation, computed with n - 1;
    # group_biased: the same, computed with n; batch: the batch's standard deviation; none: no
    # division (Dr. GRPO); mean: the group's mean reward (MaxRL)
    scale_rewards: Literal["group", "group_biased", "batch", "none", "mean"] = "group"

    # Step 6.

    # reinforce: no ratio; grpo_no_clip: the ratio without a clip; gspo: one ratio per completion;
    # cispo: the clipped ratio as a weight
    loss_type: Literal["reinforce", "grpo_no_clip", "grpo_clip", "gspo", "cispo"] = "grpo_clip"
    # the mean of each completion's mean (GRPO), the mean of all tokens (DAPO), or the sum of all
    # tokens divided by completions x max_tokens (Dr. GRPO)
    loss_agg_mode: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = (
        "seq-mean-token-mean"
    )
    cliprange_high: float | None = None  # upper eps of the clip; None: cliprange [DAPO: 0.28]
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"  # the estimate used as the KL penalty
    tis_cap: float = 0.0  # above 0: weigh tokens by pi_old / pi_sampler, up to this [2]

    # Step 7.

    epochs: int = 1  # passes over each batch of completions
    minibatches: int = 1  # optimizer steps per pass
    mask_truncated_completions: bool = False  # no gradient from completions that were cut off

    # The model.

    # a trained model with the same tokenizer: learn its probabilities instead of the reward
    teacher: str | None = None
    lora_rank: int = 0  # above 0: train adapters of this rank instead of the weights [16]
    lora_alpha: int = 32  # the adapters are scaled by alpha / rank
    lora_dropout: float = 0.0  # share of an adapter's inputs set to zero in an update
    lora_target_modules: str = "all-linear"  # layers with adapters, or names: q_proj,v_proj


# %% [markdown]
# ## 2. The rollout: steps 1 to 3


# %%
def rollout(sampler, problems, task, config, step):
    """Steps 1 to 3, like `nano_r1.rollout`: returns this process's share of the m groups."""
    m = config.prompts_per_step
    groups = []  # of all processes
    for draw in range(config.max_num_gen_batches):
        episodes = nano_r1.rollout(sampler, problems, task, config, step, draw)
        for e in episodes:
            e.reward = shaped(e.reward, len(e.token_ids), config)
        groups += gather(batched(episodes, config.group_size))
        # Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): draw until m groups have a
        # signal.
        if sum(map(has_signal, groups)) >= m:
            break
    if len(groups) > m:
        groups.sort(key=has_signal, reverse=True)  # otherwise the order is kept
    episodes = sum(batched(groups[:m], m // WORLD)[RANK], [])
    if config.credit == "vineppo":
        add_vine_advantages(sampler, episodes, task, config, step)
    # This seeds the update's dropout, so a resumed run draws the same numbers.
    torch.manual_seed(seed_of(config.seed, RANK, step, "dropout"))
    return episodes


def batched(items, size):
    """Lists of `size` items each; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def has_signal(group):
    """If all rewards of a group are equal, its advantages are 0."""
    return len({e.reward.total for e in group}) > 1


def shaped(reward, length, config):
    """The Reward of a completion of `length` tokens, with the total used for training."""
    total = reward.answer if config.binary_reward else reward.total
    if config.overlong_buffer:
        # r - min(1, max(0, (|o| - (max - buffer)) / buffer))         DAPO, arXiv:2503.14476, eq. 13
        late = length - (config.max_tokens - config.overlong_buffer)
        total -= min(1.0, max(0.0, late / config.overlong_buffer))
    return reward._replace(total=total)


def add_vine_advantages(sampler, episodes, task, config, step):
    """VinePPO, arXiv:2410.01679: sets `e.advantages`, one advantage for each token.

    A completion is cut into segments of equal length (the paper cuts at reasoning steps). The value
    V of a cut is the mean reward of K continuations from that cut. V at the beginning is the mean
    reward of the group's other completions. V at the end is the completion's own reward.
    """
    starts = []
    for e in episodes:
        parts = [len(e.token_ids) * i // config.vine_segments for i in range(config.vine_segments)]
        e.ends = sorted({*parts, len(e.token_ids)})  # 0, the cuts, |o|
        starts += [e.prompt_ids + e.token_ids[:cut] for cut in e.ends[1:-1]]
    seeds = [seed_of(config.seed, step, "vine", RANK, place) for place in range(len(starts))]
    sampled = []
    if starts:
        sampled = sampler.generate(starts, config.vine_samples, config.temperature, seeds)
    tails = iter(batched(sampled, config.vine_samples))
    for group in batched(episodes, config.group_size):
        total = sum(e.reward.total for e in group)
        for e in group:
            beginning = (total - e.reward.total) / max(1, len(group) - 1)
            cuts = [value_of_cut(e, cut, next(tails), task, config) for cut in e.ends[1:-1]]
            values = torch.tensor([beginning, *cuts, e.reward.total])
            # A_t = V(end of the segment of t) - V(its beginning)
            advantages = values.diff().repeat_interleave(torch.tensor(e.ends).diff())
            e.advantages = advantages[torch.tensor(e.mask)].tolist()


def value_of_cut(e, cut, tails, task, config):
    """V(cut): the mean reward of completions that begin with the episode's first `cut` tokens."""
    rewards = []
    for token_ids, _ in tails:
        whole = (e.token_ids[:cut] + token_ids)[: config.max_tokens]
        text = task.tokenizer.decode(whole, skip_special_tokens=True)
        reward = task.module.reward(text, e.problem, task.prompt)
        rewards.append(shaped(reward, len(whole), config).total)
    return sum(rewards) / len(rewards)


# %% [markdown]
# ## 3. The advantages: step 4


# %%
def advantages(rewards, config):
    """Step 4, like `nano_r1.group_advantages`: (m, n) -> (m, n)."""
    if config.teacher:  # its advantages are in the loss: see main
        return torch.zeros_like(rewards)
    mean = rewards.mean(dim=1, keepdim=True)  # (m, 1)
    match config.baseline:
        case "group_mean":  # GRPO
            baseline = mean
        case "leave_one_out":
            # RLOO, arXiv:2402.14740: the mean of the n - 1 other rewards, (m, n)
            baseline = (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
        case "none":  # REINFORCE (Williams 1992)
            baseline = 0.0
    match config.scale_rewards:
        case "group":
            # GRPO: the group's standard deviation, computed with n - 1, (m, 1)
            scale = rewards.std(dim=1, keepdim=True) + config.advantage_eps
        case "group_biased":
            # nano-aha-moment: the same, computed with n
            scale = rewards.std(dim=1, keepdim=True, correction=0) + config.advantage_eps
        case "batch":
            # arXiv:2508.08221: the standard deviation of the step's rewards, over all processes
            everywhere = torch.tensor(gather(rewards.flatten().tolist()))
            scale = everywhere.std() + config.advantage_eps
        case "none":  # Dr. GRPO, arXiv:2503.20783
            scale = 1.0
        case "mean":
            # MaxRL, arXiv:2602.02710, for rewards of 0 and 1. If the loss sums every completion's
            # tokens, its gradient is the gradient of sum_{k<n} pass@k / k, the first n - 1 terms of
            # log(pass@1). REINFORCE has the gradient of the first term alone.
            scale = mean + config.advantage_eps
    # A = (r - baseline) / scale
    return (rewards - baseline) / scale


# %% [markdown]
# ## 4. The loss: step 6
#
# The loss of each token, (B, T), comes first. Then the KL penalty is added. Then the loss is summed
# over a completion's tokens.


# %%
def reinforce_loss(log_probs, batch, config):
    """REINFORCE. The gradient is biased on samples of an older policy."""
    # L = -A log pi
    return -batch["advantages"] * log_probs


def no_clip_loss(log_probs, batch, config):
    """The ratio without a clip. Its variance is large after pi has moved.

    The ratio corrects the probability of its own token only. To correct the probability of the
    tokens before it, the loss would need the product of their ratios.
    """
    # L = -rho A
    return -torch.exp(log_probs - batch["old_log_probs"]) * batch["advantages"]


def clip_loss(log_probs, batch, config):
    """PPO's clip. With `cliprange_high` it is clip-higher (DAPO, arXiv:2503.14476, sec. 3.1)."""
    return clipped_loss(torch.exp(log_probs - batch["old_log_probs"]), batch, config)


def gspo_loss(log_probs, batch, config):
    """GSPO, arXiv:2507.18071: a completion's ratio is the geometric mean of its tokens' ratios."""
    mask = batch["response_mask"]
    # s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|)
    log_ratio = ((log_probs - batch["old_log_probs"]) * mask).sum(dim=1) / mask.sum(dim=1)  # (B,)
    return clipped_loss(torch.exp(log_ratio)[:, None], batch, config)


def cispo_loss(log_probs, batch, config):
    """CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4): every token keeps a gradient."""
    # L = -sg(clip(rho, 1 - eps, 1 + eps_high)) A log pi
    weight = clip(torch.exp(log_probs - batch["old_log_probs"]), config).detach()  # (B, T)
    return -weight * batch["advantages"] * log_probs


def clipped_loss(ratio, batch, config):
    """PPO, arXiv:1707.06347, eq. 7. The ratios are (B, T) or (B, 1)."""
    # L = -min(rho A, clip(rho, 1 - eps, 1 + eps_high) A)
    return -torch.minimum(ratio * batch["advantages"], clip(ratio, config) * batch["advantages"])


def clip(ratio, config):
    """clip(rho, 1 - eps, 1 + eps_high)."""
    return ratio.clamp(1 - config.cliprange, 1 + (config.cliprange_high or config.cliprange))


TOKEN_LOSSES = {
    "reinforce": reinforce_loss,
    "grpo_no_clip": no_clip_loss,
    "grpo_clip": clip_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
}


def estimate_kl(log_probs, ref_log_probs):
    """Schulman's estimates of KL(pi || pi_ref) at each token: {name: (B, T)}.

    As values, k1 and k3 are unbiased on samples of pi. k1 is often negative, and k3 never is.
    As losses they have other gradients, here for fresh samples and equal weight for each token:
    k1 has the gradient 0 on average and restrains nothing. k2 has the gradient of
    KL(pi || pi_ref), and k3 has the gradient of KL(pi_ref || pi). If a completion's tokens weigh
    1/|o_i| each (seq-mean-token-mean), k1 has the gradient of E[1/|o|], which rewards length. See
    joschu.net/blog/kl-approx.html.
    """
    d = ref_log_probs - log_probs  # log(pi_ref / pi)
    return {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - 1 - d}


def loss(log_probs, batch, config):
    """Step 6, like `nano_r1.grpo_loss`: (B, T) -> (B,). `update` adds `tokens` to the batch."""
    token_loss = TOKEN_LOSSES[config.loss_type](log_probs, batch, config)  # (B, T)
    if config.tis_cap:
        # Truncated importance sampling, for samplers that compute with another precision:
        # L min(pi_old / pi_sampler, cap)                    fengyao.notion.site/off-policy-rl
        log_weight = batch["old_log_probs"] - batch["sampler_log_probs"]
        token_loss = token_loss * torch.exp(log_weight).clamp(max=config.tis_cap)
    if config.kl_coef:
        estimates = estimate_kl(log_probs, batch["ref_log_probs"])
        token_loss = token_loss + config.kl_coef * estimates[config.kl_estimator]
    mask = batch["response_mask"]
    match config.loss_agg_mode:
        case "seq-mean-token-mean":
            # GRPO: 1/N sum_i 1/|o_i| sum_t L_it. Every completion has the same weight.
            divisor = batch["completions"] * mask.sum(dim=1)  # (B,)
        case "token-mean":
            # DAPO: the mean over all tokens of the step. Every token has the same weight.
            divisor = batch["tokens"]
        case "seq-mean-token-sum-norm":
            # Dr. GRPO: the sum divided by a constant.
            divisor = batch["completions"] * config.max_tokens
    return (token_loss * mask).sum(dim=1) / divisor


# %% [markdown]
# ## 5. The update: steps 5 to 7


# %%
def update(engine, reference, episodes, config, loss_function):
    """Steps 5 to 7, like `nano_r1.update`: epochs x minibatches AdamW steps on one batch.

    Returns the micro-batches of the last epoch.
    """
    if config.epochs * config.minibatches > 1:
        add_old_log_probs(engine, episodes, config)
    parts = batched(episodes, math.ceil(len(episodes) / config.minibatches))
    for _ in range(config.epochs):
        batches = []
        for part in parts:
            # DeepSpeed averages gradients over the processes. So the divisor is one process's share
            # of the tokens of all processes.
            lengths = gather([sum(e.mask) for e in part if counts(e, config)])
            prepared = functools.partial(prepared_loss, loss_function, max(1, sum(lengths)) / WORLD)
            batches += nano_r1.update(engine, reference, part, config, prepared)
    for batch in batches:
        batch["loss"] = batch["loss"] / len(parts)  # so their sum is the mean over the steps
    return batches


@torch.no_grad()
def add_old_log_probs(engine, episodes, config):
    """Compute log pi_old of each token, before the first optimizer step moves the policy."""
    for rows in batched(episodes, config.micro_batch_size):
        batch = nano_r1.collate(rows, engine.device)
        for e, row, mask in zip(rows, engine(batch), batch["response_mask"]):
            e.old_log_probs = row[mask].tolist()


def prepared_loss(loss_function, tokens, log_probs, batch, config):
    """Add `tokens` and the episodes' values per token to the batch; then call `loss_function`.

    An episode may have `old_log_probs` and `advantages`: lists, one value for each token that the
    model wrote.
    """
    batch["tokens"] = tokens
    for name in ("old_log_probs", "advantages"):
        values = []
        for e in batch["episodes"]:
            values += getattr(e, name, [])
        if values:
            values = torch.tensor(values, device=log_probs.device)
            batch[name] = torch.zeros_like(log_probs).masked_scatter(batch["response_mask"], values)
    keep = torch.tensor([counts(e, config) for e in batch["episodes"]], device=log_probs.device)
    return loss_function(log_probs, batch, config) * keep


def counts(e, config):
    """Whether a completion counts in the loss: DAPO's overlong filtering drops those cut off."""
    return e.ended or not config.mask_truncated_completions


# %% [markdown]
# ## 6. LoRA, and a teacher


# %%
def load_model(config):
    """(policy, tokenizer), like `nano_r1.load_model`; with --lora_rank only adapters are trained.

    LoRA, arXiv:2106.09685: y = W x + alpha / r B A x. Training changes only A and B, of rank r.
    """
    policy, tokenizer = nano_r1.load_model(config)
    if config.teacher:
        settings = dataclasses.replace(config, model=config.teacher)
        teacher, of_teacher = nano_r1.load_model(settings)
        if of_teacher.get_vocab() != tokenizer.get_vocab():
            raise SystemExit("--teacher needs a model with the same tokens as --model")
        policy.__deepcopy__ = lambda memo: teacher  # the reference is what a copy gives
    if not config.lora_rank:
        return policy, tokenizer
    import peft  # pip install peft

    class WithAdapters(peft.PeftModel):
        """The sampler and the saved files get the model with the adapters merged in."""

        def named_parameters(self, **options):
            """(name, weight) with the base's names, in float32; one matrix is merged at a time."""
            base = self.get_base_model()
            for name, weight in base.named_parameters(**options):
                weight = weight.float()
                if name.endswith(".base_layer.weight"):
                    layer = base.get_submodule(name.removesuffix(".base_layer.weight"))
                    # W + alpha / r B A
                    weight = weight + layer.get_delta_weight("default")
                if ".lora_" not in name:
                    yield name.replace(".base_layer.", "."), weight

        def __deepcopy__(self, memo):
            """The reference: the base without adapters. It shares the weights; no copy is made."""
            for weight in self.base_model.parameters():
                memo[id(weight)] = weight
            return copy.deepcopy(self.base_model, memo).unload()

        def save_pretrained(self, path, state_dict):
            copy.deepcopy(self).save_pretrained(path, state_dict=state_dict)

    names = config.lora_target_modules
    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=names if names == "all-linear" else names.split(","),
    )
    for weight in policy.parameters():  # these are frozen; peft makes its adapters in float32
        weight.data = weight.data.to(getattr(torch, config.dtype))
    torch.manual_seed(seed_of(config.seed, "lora"))
    try:
        return WithAdapters(policy, lora).eval(), tokenizer
    except ValueError as error:
        raise SystemExit(f"--lora_target_modules {names}: {error}") from None


# %% [markdown]
# ## 7. The run


# %%
def main(config, **own):
    """Call `nano_r1.main` with the functions that the settings choose; `own` replaces some."""
    if config.group_size < 2 and config.baseline != "none":
        raise SystemExit(
            "--group_size 1 has no group to compare with: use --baseline none, or 2 or more"
        )
    if config.baseline == "none" and config.scale_rewards not in ("none", "mean"):
        # Equal rewards have a deviation of 0, so advantage_eps alone would be the divisor.
        raise SystemExit("--baseline none needs --scale_rewards none or mean")
    if config.lora_rank and (config.zero_stage == 3 or config.offload):
        # The reference shares the policy's weights. So they must stay whole and in place.
        raise SystemExit("--lora_rank needs --zero_stage 1 or 2, without --offload")
    if config.lora_rank and config.teacher:
        raise SystemExit("--lora_rank has the base as its reference: leave out --teacher")
    if config.teacher:
        # On-policy distillation (GKD, arXiv:2306.13649, with the reverse KL): each token of the
        # student's completion has the advantage A_t = log pi_teacher(o_t) - log pi(o_t). With the
        # teacher as the reference, the gradient of k2 is -A_t grad log pi(o_t).
        config = dataclasses.replace(config, kl_estimator="k2", kl_coef=1.0)
    functions = {
        "load_model": load_model,
        "rollout": rollout,
        "advantages": advantages,
        "loss": loss,
        "update": update,
    }
    return nano_r1.main(config, **(functions | own))


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    try:
        main(tyro.cli(Config, use_underscores=True))
    except KeyboardInterrupt:  # the run is saved
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {error.name}") from None
