# %% [markdown]
# # GRPO's relatives
#
# Each relative differs from `nano_r1.py` in one place. `nano_r1.main` takes functions in the place
# of its own (`parts_of_main`). This file has such functions, each with its equation and its paper.
# Flags choose among them.
#
#     python variants.py --task countdown                # the same as nano_r1.py
#     python variants.py --loss_type gspo --cliprange 3e-4 --cliprange_high 4e-4 --minibatches 4
#     python variants.py --help                          # every setting
#
# | function | steps | what can differ |
# | --- | --- | --- |
# | `rollout` | 1 to 3 | binary rewards, a penalty on length, dynamic sampling, VinePPO |
# | `advantages` | 4 | RLOO, REINFORCE, Dr. GRPO, other standard deviations, MaxRL |
# | `loss` | 6 | REINFORCE, clip-higher, GSPO, CISPO, DPPO, IPO, other samplers, KL, aggregation |
# | `update` | 5 to 7 | several optimizer steps per batch |
# | `measure` | 9 | the share of clipped tokens |
# | `load_problems` | | validation on a file |
# | `load_model`, `make_reference` | | LoRA, a teacher (on-policy distillation) |
#
# docs/algorithms.md has the command of each algorithm.

# %%
import copy
import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from transformers import AutoTokenizer

import nano_r1
from nano_r1 import RANK, WORLD, Scorer, batched, gather, seed_of

# %% [markdown]
# ## 1. Settings


# %%
@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """GRPO's relatives: another rollout, advantage, loss, update or model.

    The options of nano_r1.py come first.
    """

    # Steps 1 to 3.

    binary_reward: bool = False  # step 3: train on the correctness reward only, 0 or 1
    # step 3: lower the reward by up to 1 over the last N tokens before max_tokens (DAPO); 0: off
    overlong_buffer: int = 0
    # steps 1 to 3: draw up to this many batches, until m groups have correct and wrong answers
    # (DAPO) [3]
    max_num_gen_batches: int = 1
    # step 4: completion: one advantage for all tokens of a completion; vineppo: one for each
    # segment
    credit: Literal["completion", "vineppo"] = "completion"
    vine_segments: int = 4  # step 4: segments per completion
    # step 4: K, the continuations sampled from the end of each segment [9]
    vine_samples: int = 4

    # Step 4.

    # step 4: subtract this from a reward; leave_one_out: the mean of the group's other rewards
    # (RLOO)
    baseline: Literal["group_mean", "leave_one_out", "none"] = "group_mean"
    # step 4: the divisor of the advantages. group: the group's standard deviation, computed with
    # n - 1; group_biased: the same, computed with n; batch: the batch's standard deviation; none:
    # no division (Dr. GRPO); mean: the group's mean reward (MaxRL)
    scale_rewards: Literal["group", "group_biased", "batch", "none", "mean"] = "group"

    # Step 6.

    # step 6: reinforce: no ratio; grpo_no_clip: the ratio without a clip; gspo: one ratio per
    # completion; cispo: the clipped ratio as a weight; dppo: the ratio to the sampler, without the
    # tokens whose probability has moved by more than cliprange in the advantage's direction; ipo:
    # the same in any direction
    loss_type: Literal["reinforce", "grpo_no_clip", "grpo_clip", "gspo", "cispo", "dppo", "ipo"] = (
        "grpo_clip"
    )
    # step 6: the mean of each completion's mean (GRPO), the mean of all tokens (DAPO), or the sum
    # of all tokens divided by completions x max_tokens (Dr. GRPO)
    loss_agg_mode: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"] = (
        "seq-mean-token-mean"
    )
    # step 6: the upper eps of the clip; None: cliprange [DAPO: 0.28]
    cliprange_high: float | None = None
    # step 6: the KL penalty; rho_k3: k3 times the ratio, whose gradient is unbiased; sampler_k2: k2
    # of the KL to the sampler instead of the reference
    kl_estimator: Literal["k1", "k2", "k3", "rho_k3", "sampler_k2"] = "k3"
    # step 6: for a sampler that computes in another precision: weigh each token, or each completion
    # (sequence), by w = pi_old / pi_sampler. truncate: at most sampler_ratio_max; mask: 0 if w is
    # outside of sampler_ratio_min and sampler_ratio_max
    sampler_correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = "none"
    sampler_ratio_max: float = 3.0  # step 6: the largest w [truncate 2; mask 3 to 8]
    sampler_ratio_min: float = 0.0  # step 6: the smallest w [0; token_mask 0.125 to 0.5]

    # Step 7.

    epochs: int = 1  # step 7: passes over each batch of completions
    # step 7: optimizer steps per pass, each on an equal share of the completions
    minibatches: int = 1

    # Step 9.

    # step 9: evaluate the problems of this file, or hub; None: the held-out problems of data
    eval_data: str | None = None
    eval_problems: int | None = None  # step 9: evaluate at most so many problems; None: all

    # The model.

    # the model: learn the probabilities of this trained one, which has the same tokens, instead of
    # the reward. It sets kl_coef and kl_estimator
    teacher: str | None = None
    # the model: train LoRA adapters of this rank, on all linear layers, instead of the weights; 0:
    # off [16]
    lora_rank: int = 0

    ABOVE_0 = [
        *nano_r1.Config.ABOVE_0,
        *"max_num_gen_batches epochs minibatches vine_segments vine_samples".split(),
    ]


# %% [markdown]
# ## 2. The rollout: steps 1 to 3


# %%
def rollout(sampler, problems, task, config, step):
    """Steps 1 to 3, like `nano_r1.rollout`: returns this process's share of the m groups."""
    m = config.prompts_per_step
    groups = []  # of all processes
    for draw in range(config.max_num_gen_batches):
        episodes = nano_r1.rollout(
            sampler, problems, task, config, f"{step}, {draw}" if draw else step
        )
        for e in episodes:
            e.reward = shaped(e.reward, e.answer_reward, len(e.token_ids), config)
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
    return episodes


def has_signal(group):
    """Whether some answers of a group are correct and others are not.

    Length and format do not count: a group of wrong answers would teach only these.
    """
    return len({e.answer_reward for e in group}) > 1


def shaped(total, answer, length, config):
    """The reward of a completion of `length` tokens that is used for training."""
    if config.binary_reward:
        total = answer
    if config.overlong_buffer:
        # r - min(1, max(0, (|o| - (max - buffer)) / buffer))         DAPO, arXiv:2503.14476, eq. 13
        late = length - (config.max_tokens - config.overlong_buffer)
        total -= min(1.0, max(0.0, late / config.overlong_buffer))
    return total


def add_vine_advantages(sampler, episodes, task, config, step):
    """VinePPO, arXiv:2410.01679: sets `e.extra["advantages"]`, one advantage for each token.

    A completion is cut into segments of equal length (the paper cuts at reasoning steps). The value
    V of a cut is the mean reward of K continuations from that cut. V at the beginning is the mean
    reward of the group's other completions, and V at the end is the completion's reward.
    """
    starts = []
    for e in episodes:
        numbers = range(config.vine_segments + 1)
        ends = sorted({len(e.token_ids) * i // config.vine_segments for i in numbers})  # 0 to |o|
        starts += [e.prompt_ids + e.token_ids[:cut] for cut in ends[1:-1]]
        e.extra["ends"] = ends
    seeds = [seed_of(config.seed, step, "vine", start) for start in starts]
    sampled = []
    if starts:
        sampled = sampler.generate(starts, config.vine_samples, config.temperature, seeds)
    tails = iter(batched(sampled, config.vine_samples))
    for group in batched(episodes, config.group_size):
        total = sum(e.reward for e in group)
        for e in group:
            beginning = (total - e.reward) / max(1, len(group) - 1)
            ends = e.extra["ends"]
            cuts = [value_of_cut(e, cut, next(tails), task, config) for cut in ends[1:-1]]
            values = torch.tensor([beginning, *cuts, e.reward])
            # A_t = V(end of the segment of t) - V(its beginning)
            advantages = values.diff().repeat_interleave(torch.tensor(ends).diff())
            e.extra["advantages"] = advantages[torch.tensor(e.mask)].tolist()


def value_of_cut(e, cut, tails, task, config):
    """V(cut): the mean reward of completions that begin with the episode's first `cut` tokens."""
    rewards = []
    for token_ids, _ in tails:
        whole = (e.token_ids[:cut] + token_ids)[: config.max_tokens]
        text = task.text_of(whole)
        total, _, answer, _ = task.reward(text, e.problem, whole)
        rewards.append(shaped(total, answer, len(whole), config))
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
            # log(pass@1). REINFORCE has the gradient of the first term only.
            scale = mean + config.advantage_eps
    # A = (r - baseline) / scale
    return (rewards - baseline) / scale


# %% [markdown]
# ## 4. The loss: step 6
#
# The loss of each token, (B, T), comes first, then the KL penalty is added, and then the loss is
# summed over a completion's tokens.


# %%
def reinforce_loss(log_probs, batch, config):
    """REINFORCE. The gradient is biased on samples of an older policy."""
    # L = -A log pi
    return -batch["advantages"] * log_probs


def no_clip_loss(log_probs, batch, config):
    """The ratio without a clip. Its variance is large after pi has moved.

    The ratio corrects only the probability of its token. To correct that of the tokens before it,
    too, the loss would need the product of all their ratios.
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
    lengths = mask.sum(dim=1).clamp(min=1)  # |o_i|, (B,)
    log_ratio = ((log_probs - batch["old_log_probs"]) * mask).sum(dim=1) / lengths
    return clipped_loss(torch.exp(log_ratio)[:, None], batch, config)


def cispo_loss(log_probs, batch, config):
    """CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4): every token keeps a gradient."""
    # L = -sg(clip(rho, 1 - eps, 1 + eps_high)) A log pi
    weight = clip(torch.exp(log_probs - batch["old_log_probs"]), config).detach()  # (B, T)
    return -weight * batch["advantages"] * log_probs


def dppo_loss(log_probs, batch, config):
    """DPPO with the total variation (arXiv:2602.04879), and IPO, prime-rl's default.

    A clip of the ratio stops unlikely tokens early and likely ones late. DPPO looks at the
    probability itself, and masks tokens that have already moved far in the advantage's direction.
    IPO (docs.primeintellect.ai/prime-rl/ipo) masks all tokens that have moved far, because the
    trainer and an asynchronous sampler also disagree in the other direction.
    """
    sampler = batch["sampler_log_probs"]
    # L = -rho A if pi - pi_sampler <= eps_high for A > 0, or >= -eps for A < 0; otherwise 0
    moved = torch.exp(log_probs) - torch.exp(sampler)  # (B, T)
    too_high = moved > upper_eps(config)
    too_low = moved < -config.cliprange
    if config.loss_type == "ipo":
        masked = too_high | too_low
    else:
        masked = torch.where(batch["advantages"] > 0, too_high, too_low)
    loss = -torch.exp(log_probs - sampler) * batch["advantages"]
    return loss.masked_fill(masked, 0.0)


def clipped_loss(ratio, batch, config):
    """PPO, arXiv:1707.06347, eq. 7. The ratios are (B, T) or (B, 1)."""
    # L = -min(rho A, clip(rho, 1 - eps, 1 + eps_high) A)
    free = ratio * batch["advantages"]
    clipped = clip(ratio, config) * batch["advantages"]
    batch["clipped"] = clipped < free  # for `measure`: these have no gradient
    return -torch.minimum(free, clipped)


def clip(ratio, config):
    """clip(rho, 1 - eps, 1 + eps_high)."""
    return ratio.clamp(1 - config.cliprange, 1 + upper_eps(config))


def upper_eps(config):
    """eps_high."""
    return config.cliprange if config.cliprange_high is None else config.cliprange_high


TOKEN_LOSSES = {
    "reinforce": reinforce_loss,
    "grpo_no_clip": no_clip_loss,
    "grpo_clip": clip_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
    "dppo": dppo_loss,
    "ipo": dppo_loss,
}


def estimate_kl(log_probs, batch, estimator):
    """An estimate of KL(pi || pi_ref) at each token, (B, T): Schulman's k1, k2, k3, or rho k3.

    As values, k1 and k3 are unbiased on samples of pi. k1 is often negative, and k3 never is.
    As losses, for the next token after a fixed text, with fresh samples and equal weight for each
    token, they have other gradients: k1 has the gradient 0 on average and restrains nothing, k2
    has that of KL(pi || pi_ref), and k3 has that of KL(pi_ref || pi). If a completion's tokens
    weigh 1/|o_i| each (seq-mean-token-mean), k1 has the gradient of E[1/|o|], which rewards
    length. See joschu.net/blog/kl-approx.html.

    rho k3 (DeepSeek-V3.2, arXiv:2512.02556; TRL's default) has the gradient of KL(pi || pi_ref),
    also if an older policy has drawn the token. At rho = 1 it is k2's: grad(rho k3) is
    -d grad log pi.
    """
    if estimator == "sampler_k2":
        # 1/2 (log pi - log pi_sampler)^2; prime-rl's kl_tau is half of its weight
        return (log_probs - batch["sampler_log_probs"]) ** 2 / 2
    d = batch["ref_log_probs"] - log_probs  # log(pi_ref / pi)
    k3 = nano_r1.k3(batch["ref_log_probs"], log_probs)
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d * d / 2
        case "k3":
            return k3
        case "rho_k3":
            return torch.exp(log_probs - batch["old_log_probs"]) * k3


def sampler_weight(batch, config):
    """How much a token counts, (B, T) or (B, 1), if the sampler is not quite the old policy."""
    # w = pi_old / pi_sampler, of a token, or of a completion: the product of its tokens' w
    log_weight = batch["old_log_probs"] - batch["sampler_log_probs"]
    level, kind = config.sampler_correction.split("_")
    if level == "sequence":
        log_weight = (log_weight * batch["response_mask"]).sum(dim=1, keepdim=True)
    weight = torch.exp(log_weight)
    held = weight.clamp(config.sampler_ratio_min, config.sampler_ratio_max)
    if kind == "truncate":  # TIS, fengyao.notion.site/off-policy-rl
        return held
    # IcePop (arXiv:2510.18855) masks tokens; TRL's default masks completions, above 3.
    return weight.masked_fill(weight != held, 0.0)


def loss(log_probs, batch, config):
    """Step 6, like `nano_r1.grpo_loss`: (B, T) -> (B,). `update` adds `tokens` to the batch."""
    token_loss = TOKEN_LOSSES[config.loss_type](log_probs, batch, config)  # (B, T)
    if config.sampler_correction != "none":
        token_loss = token_loss * sampler_weight(batch, config)
    if config.kl_coef:
        kl = estimate_kl(log_probs, batch, config.kl_estimator)
        token_loss = token_loss + config.kl_coef * kl
    mask = batch["response_mask"]
    match config.loss_agg_mode:
        case "seq-mean-token-mean":
            # GRPO: 1/N sum_i 1/|o_i| sum_t L_it. Every completion has the same weight.
            divisor = batch["completions"] * mask.sum(dim=1).clamp(min=1)  # (B,)
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
    check_extra(episodes)
    parts = batched(episodes, math.ceil(len(episodes) / config.minibatches))
    if config.epochs * config.minibatches > 1:
        for part in parts:
            add_old_log_probs(engine, part, config)
    for _ in range(config.epochs):
        batches = []
        for part in parts:
            # DeepSpeed averages gradients over the processes, so the divisor is the tokens of all
            # processes, divided by WORLD.
            lengths = gather([sum(e.mask) for e in part])
            prepared = functools.partial(prepared_loss, loss_function, max(1, sum(lengths)) / WORLD)
            batches += nano_r1.update(engine, reference, part, config, prepared)
    for batch in batches:
        batch["loss"] = batch["loss"] / len(parts)  # so their sum is the mean over the steps
    return batches


@torch.no_grad()
def add_old_log_probs(engine, episodes, config):
    """Compute log pi_old of each token, before the first optimizer step moves the policy.

    The micro-batches are those of the update: in others, the last bits differ. In bfloat16 these
    bits moved a ratio by up to 0.07 before any step, far outside GSPO's clip.
    """
    for rows in nano_r1.micro_batches(episodes, config):
        batch = nano_r1.collate(rows, engine.device)
        for e, row, mask in zip(rows, engine(batch), batch["response_mask"]):
            e.extra["old_log_probs"] = row[mask].tolist()


PER_TOKEN = ("old_log_probs", "advantages")  # what an episode's `extra` may have


def check_extra(episodes):
    """Values per token must be there for all completions of a step, or for none."""
    for name in PER_TOKEN:
        given = [len(e.extra[name]) for e in episodes if name in e.extra]
        if given and given != [sum(e.mask) for e in episodes]:
            raise ValueError(f"extra[{name!r}] needs a number for each token that the model wrote")


def prepared_loss(loss_function, tokens, log_probs, batch, config):
    """Add `tokens` and the episodes' values per token to the batch; then call `loss_function`.

    An episode's `extra` may have `old_log_probs` and `advantages`: lists, one value for each token
    that the model wrote.
    """
    batch["tokens"] = tokens
    for name in PER_TOKEN:
        values = []
        for e in batch["episodes"]:
            values += e.extra.get(name, [])
        if values:
            values = torch.tensor(values, device=log_probs.device)
            batch[name] = torch.zeros_like(log_probs).masked_scatter(batch["response_mask"], values)
    return loss_function(log_probs, batch, config)


# %% [markdown]
# ## 6. What is measured: step 9


# %%
def measure(rows, batches, engine, step, config):
    """Like `nano_r1.measure_step`; with several steps per batch, also the share of clipped tokens.

    At these tokens the clip has set the gradient to 0, in the last epoch.
    """
    metrics = nano_r1.measure_step(rows, batches, engine, step, config)
    if config.epochs * config.minibatches > 1 and "clipped" in batches[0]:
        count = 0
        for batch in batches:
            count += (batch["clipped"] & batch["response_mask"]).sum().item()
        written = max(1, sum(row["written"] for row in rows))  # of all processes
        metrics["clip_ratio/region_mean"] = sum(gather([count])) / written
    return metrics


def load_problems(module, split, config):
    """Like `nano_r1.load_problems`; --eval_data is the test split."""
    if split == "test" and config.eval_data:
        return module.load_problems("all", config.eval_data, config.seed)
    return nano_r1.load_problems(module, split, config)


# %% [markdown]
# ## 7. LoRA, and a teacher


# %%
def load_model(config):
    """(policy, tokenizer), like `nano_r1.load_model`; with --lora_rank only adapters are trained.

    LoRA, arXiv:2106.09685: y = W x + alpha / r B A x, with alpha = 32. Training changes only A and
    B, of rank r.
    """
    policy, tokenizer = nano_r1.load_model(config)
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

        def save_pretrained(self, path, state_dict):
            base = without_adapters(self)
            base.generation_config = self.generation_config
            weights = {}  # none of the adapters
            for name, weight in base.state_dict().items():
                weights[name] = state_dict.get(name, weight)
            base.save_pretrained(path, state_dict=weights)

    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=32,
        target_modules="all-linear",
    )
    for weight in policy.parameters():  # these are frozen; peft makes its adapters in float32
        weight.data = weight.data.to(getattr(torch, config.dtype))
    torch.manual_seed(seed_of(config.seed, "lora"))
    return WithAdapters(policy, lora).eval(), tokenizer


def without_adapters(policy):
    """The base of a policy with adapters. It shares the weights; no copy is made."""
    shared = {id(weight): weight for weight in policy.base_model.parameters()}
    return copy.deepcopy(policy.base_model, shared).unload()


def make_reference(policy, config):
    """Like `nano_r1.make_reference`; the teacher, or the base without adapters."""
    if config.teacher:
        teacher, tokenizer = nano_r1.load_model(replace(config, model=config.teacher))
        if tokenizer.get_vocab() != AutoTokenizer.from_pretrained(config.model).get_vocab():
            raise SystemExit("--teacher needs a model with the same tokens as --model")
        return Scorer(teacher, config)
    if config.kl_estimator == "sampler_k2":  # the KL to the sampler
        return None
    if config.lora_rank and config.kl_coef:
        return Scorer(without_adapters(policy), config)
    return nano_r1.make_reference(policy, config)


# %% [markdown]
# ## 8. The run


# %%
def main(config, **replaced):
    """Call `nano_r1.main` with functions that the settings choose, or those of the caller."""
    nano_r1.check_numbers(config)
    if config.group_size < 2 and config.baseline != "none":
        raise SystemExit(
            "--group_size 1 has no group to compare with: use --baseline none, or 2 or more"
        )
    completions = config.prompts_per_step * config.group_size // WORLD
    if completions % config.minibatches:
        raise SystemExit(f"--minibatches must divide the {completions} completions of a process")
    if config.baseline == "none" and config.scale_rewards not in ("none", "mean"):
        # Equal rewards have a deviation of 0, so only advantage_eps would be the divisor.
        raise SystemExit("--baseline none needs --scale_rewards none or mean")
    if config.lora_rank and (config.zero_stage == 3 or config.offload):
        # The reference shares the policy's weights, so they must stay whole and in place.
        raise SystemExit("--lora_rank needs --zero_stage 1 or 2, without --offload")
    if config.sampler_ratio_min > config.sampler_ratio_max:
        raise SystemExit("--sampler_ratio_min must be at most --sampler_ratio_max")
    if config.overlong_buffer and config.scale_rewards == "mean":
        # Below 0, the mean would change the sign of the advantages.
        raise SystemExit("--scale_rewards mean is for rewards of 0 or more: --overlong_buffer 0")
    if config.teacher:
        if config.credit != "completion":
            raise SystemExit("--teacher gives each token its advantage: leave out --credit")
        if config.lora_rank:
            raise SystemExit("--lora_rank has the base as its reference: leave out --teacher")
        # On-policy distillation (GKD, arXiv:2306.13649, with the reverse KL): each token of the
        # student's completion has the advantage A_t = log pi_teacher(o_t) - log pi(o_t). With the
        # teacher as the reference, the gradient of k2 is -A_t grad log pi(o_t).
        config = replace(config, kl_estimator="k2", kl_coef=1.0)
    functions = {
        "load_problems": load_problems,
        "load_model": load_model,
        "make_reference": make_reference,
        "rollout": rollout,
        "advantages": advantages,
        "loss": loss,
        "update": update,
        "measure": measure,
    }
    with torch.random.fork_rng(devices=[]):  # load_model seeds torch for adapters
        return nano_r1.main(config, **(functions | replaced))


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    nano_r1.run_command(main, Config)
