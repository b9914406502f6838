"""Is your GRPO correct? Judge the advantages and the loss of any code base.

    python check/check_grpo.py my_adapter.py

my_adapter.py calls your code. Write one or both of these functions:

    import my_trainer

    def advantages(rewards):
        return my_trainer.normalize(rewards)

    def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask):
        return my_trainer.policy_loss(
            log_probs, old_log_probs, ref_log_probs, advantages, mask
        )

rewards         (m, n): m prompts with n completions each; so is the result
log_probs       (B, T): log-prob of each token under the policy, with gradient
old_log_probs   (B, T): the same under the policy that sampled the tokens
ref_log_probs   (B, T): the same under the reference model
advantages      (B,): one number per completion
mask            (B, T), bool: True at the tokens that the policy wrote, its end
                token included

`log_probs[:, t]`, `mask[:, t]` and the other columns t belong to the same
token. `loss` returns a scalar to minimize. All numbers are float64.

Two more arguments are passed by name if your function has them:

sampler_log_probs   (B, T): the log-probs that the sampler reported, if your
                    loss corrects for another precision of the sampler
step                if your loss adds up over micro-batches: step.completions,
                    step.tokens and step.micro_batches count the whole step

The program compares value and gradient with formulas on frozen micro-batches.
It prints the name and the numbers of your algorithm, or the name of a known
mistake. It measures the clip range, the KL weight, eps and the constants, so
you need not give them. If nothing agrees, it prints the nearest algorithm, the
entry that differs most, and the properties that your function has.

The exit code is 0 if an algorithm agrees, else 1. With --new it is also 0 if
neither an algorithm nor a known mistake agrees, and your function has what
every one needs (signs, mask, order). What your code prints goes to stderr. The
program needs only torch.
check_step.py looks at the optimizer step around the loss.
"""

import argparse
import contextlib
import functools
import inspect
import itertools
import math
import os
import runpy
import sys
import textwrap
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F

# mistake: why the gradient is wrong. A choice that a published method makes is no mistake, nor is
# a constant factor: see BASELINES, RATIOS and NOTES. Those that name no project are common slips.
ADVANTAGE_MISTAKES = {
    "groups along the wrong dimension": (
        "Completions of different prompts are compared with each other."
    ),
    "rewards grouped in another order": (
        "The groups mix prompts, because completions are not stored prompt by prompt. Seen: "
        "StarsfieldAI/R1-V #67."
    ),
    "mean not subtracted": (
        "A group of equal rewards gets r / eps: thousands, where there is nothing to learn."
    ),
    "variance instead of the deviation": (
        "If all rewards are half as large, the advantages are twice as large."
    ),
    "brackets forgotten": (
        "It is r - mean / std, so a group of equal rewards gets -mean / eps: thousands below 0."
    ),
    "no eps": "A group of equal rewards gives 0 / 0, and NaN reaches every weight.",
    # after "no eps", from which it differs only if its eps can be seen
    "eps added after the division": (
        "Each advantage is shifted by eps, and a group of equal rewards gives NaN."
    ),
    "sign of the advantage turned": "The policy learns to avoid reward.",
}
LOSS_MISTAKES = {
    "mask one token late": (
        "Each completion's first token is left out, and one token after its end is trained on. "
        "Seen: Goekdeniz-Guelmez/mlx-lm-lora #80."
    ),
    "mask one token early": "The prompt's last token is trained on, and the end token is left out.",
    "end token left out": (
        "The policy gets no signal about when to stop. Seen: mll-lab-nu/RAGEN #59, "
        "rasbt/reasoning-from-scratch PR #185."
    ),
    "prompt counted": (
        "The policy is trained on tokens that it did not write. Seen: TIGER-AI-Lab/verl-tool #116."
    ),
    "padding counted": (
        "Tokens after the end are trained on, so short completions count like long ones. Seen: "
        "bingreeky/MemGen PR #33."
    ),
    "tokens of a tool counted": "The policy learns to write the tool's answers itself.",
    "mask not used": (
        "Prompt and padding are trained on, and count as tokens. Seen: Tencent-Hunyuan/UniRL PR "
        "#409."
    ),
    "mask only in the denominator": (
        "Prompt and padding are trained on. Seen: huggingface/trl PR #6654."
    ),
    "padding in the denominator": (
        "The longest completion of a micro-batch decides how large the step is. If all are padded "
        "to one length, that is Dr. GRPO's constant (verl's seq-mean-token-sum-norm). Seen: "
        "NovaSky-AI/SkyRL PR #462, McGill-NLP/nano-aha-moment."
    ),
    "micro-batches averaged": "A completion counts more if its micro-batch has few completions.",
    "micro-batches added up": (
        "The gradient grows with the number of micro-batches. Seen: huggingface/trl PR #3716."
    ),
    "divided by the micro-batches twice": (
        "The gradient shrinks with the number of micro-batches. Seen: modelscope/ms-swift #10117."
    ),
    "ratio without gradient": (
        "It is detached, or the gradients of its two terms cancel: the reward never reaches the "
        "weights. Seen: Goekdeniz-Guelmez/mlx-lm-lora #55."
    ),
    "ratio upside down": "The ratio is old / new, so the policy learns to avoid reward.",
    "ratio to the reference": (
        "The reference did not write the samples, and the clip freezes the policy near it. Seen: "
        "huggingface/trl PR #2837."
    ),
    "old and reference swapped": (
        "The clip is around the reference, and the KL penalty pulls to the last policy."
    ),
    "maximum instead of the minimum": (
        "The clip stops steps that undo a mistake, but no step that goes too far."
    ),
    "sign of the policy term turned": (
        "The policy learns to avoid reward. Seen: fla-org/flash-linear-attention #1073."
    ),
    "weight with gradient": (
        "The weight should be a constant, but its gradient is added to log pi's."
    ),
    "probability instead of its logarithm": (
        "The samples are already as frequent as pi says. Unlikely tokens have almost no gradient."
    ),
    "sign of the KL penalty turned": (
        "The policy is rewarded for leaving the reference, and collapses. Seen: qiancheng0/ToolRL "
        "#52, mll-lab-nu/RAGEN #58."
    ),
    "k3 with d turned": (
        "On samples of the policy its mean is not the KL, and its gradient grows like pi / "
        "pi_ref. Seen: ml-explore/mlx-examples PR #1233, natolambert/rlhf-book (approx_kl3)."
    ),
    "KL without gradient": (
        "The penalty is in the logged loss, but restrains nothing. Seen: allenai/open-instruct "
        "#530."
    ),
    "KL of prompt and padding": (
        "The penalty counts tokens that the policy did not write. Seen: allenai/open-instruct PR "
        "#535."
    ),
}
TOKEN = "ratio of each token"
COMPLETION = "ratio of each completion"
PRODUCT = "product of the completion's ratios"
GEOMETRIC = "geometric mean of the clipped ratios"
WEIGHT = "ratio as a weight"
EITHER_SIGN = "ratio clipped whatever the advantage's sign"
GATE = "soft gate of the ratio"
GAMMA = "gamma weight of the completion"
ITSELF = "ratio of the policy to itself"
NO_RATIO = "no ratio"
COMPLETIONS = "mean of the completions' means"
TOKENS = "mean over all tokens"
CONSTANT = "sum over tokens / (completions x constant)"
EACH = "mean over each micro-batch's tokens"
MEANS = [COMPLETIONS, TOKENS, CONSTANT, "sum over tokens / constant", EACH]
# names of advantages: {baseline: {scale: name}}
BASELINES = {
    "group mean": {
        "deviation with n - 1": "GRPO",
        "deviation with n": "GRPO",
        "no deviation": "Dr. GRPO",
        "mean instead of the deviation": "MaxRL",
        "deviation of the batch": "GRPO",
        "deviation of the batch after the baseline": "REINFORCE++ with a baseline",
    },
    "batch mean": {
        "deviation with n - 1": "REINFORCE++",
        "deviation with n": "REINFORCE++",
        "no deviation": "REINFORCE with the batch mean",
    },
    "mean of the others": {"no deviation": "RLOO"},
    "no baseline": {"no deviation": "REINFORCE"},
}
# names of losses: {ratio: {mean: name}}
REINFORCE = dict.fromkeys(MEANS, "REINFORCE") | {CONSTANT: "RLOO"}
RATIOS = {
    TOKEN: {COMPLETIONS: "GRPO", TOKENS: "DAPO", CONSTANT: "Dr. GRPO", EACH: "BNPO"},
    COMPLETION: {COMPLETIONS: "GSPO", CONSTANT: "LUSPO"},
    WEIGHT: {TOKENS: "CISPO"},
    NO_RATIO: REINFORCE,
    ITSELF: REINFORCE,
    PRODUCT: {COMPLETIONS: "RLOO with a clip"},
    GEOMETRIC: {COMPLETIONS: "GMPO"},
    EITHER_SIGN: {TOKENS: "Kimi K2.5"},
    GATE: {COMPLETIONS: "SAPO"},
    GAMMA: {TOKENS: "VESPO"},
}
# What a loss drops, by the edges at which the policy term becomes 0: of a rise and of a fall of the
# policy, each with a positive and with a negative advantage
DPPO = "DPPO's mask"
DPPO_KL = "DPPO's mask by KL"
IPO = "IPO's mask"
SEQUENCES = "off-policy sequence mask"
DROPS = {
    (True, False, False, True): [DPPO, DPPO_KL],
    (True, True, True, True): [IPO],
    (False, False, False, True): [SEQUENCES],
}
NOTES = {
    "no deviation": "If you meant GRPO, the deviation has no effect, as in Open-Reasoner-Zero #75.",
    "batch mean": (
        "If you meant GRPO, this is a mistake: mean and deviation are those of the batch instead "
        "of the group. An easy prompt's completions all go up and a hard prompt's all go down. "
        "Seen: XU-YIJIE/grpo-flat #2, fla-org/flash-linear-attention #1073."
    ),
    NO_RATIO: "That is correct for one optimizer step per batch.",
    ITSELF: (
        "It is always 1, so nothing is clipped. That is correct for one optimizer step per batch. "
        "For more, the old log-probs have no effect. Seen: meta-pytorch/torchforge PR #571, "
        "xiaomi-research/time-r1 #20."
    ),
    PRODUCT: (
        "As in TRL's RLOOTrainer. If you meant GSPO, the length is missing: the product leaves the "
        "clip range in any long completion. Seen: walkinglabs/hands-on-modern-rl #75."
    ),
    EITHER_SIGN: (
        "If you meant PPO's clip, the minimum is missing or taken before the advantage: a token "
        "outside of the range has no gradient, so a wrong step cannot be undone. Seen: "
        "rasbt/reasoning-from-scratch."
    ),
    EACH: (
        "As in TRL's bnpo. If you meant DAPO, a token counts more if its micro-batch has few. "
        "Seen: allenai/open-instruct PR #1161, verl-project/verl PR #906."
    ),
    "k1 in the loss": "k1's gradient does not depend on the reference, so it restrains nothing.",
    "k3 in the loss": (
        "k3's gradient is that of KL(pi_ref, pi). Times the ratio it is that of KL(pi, pi_ref), "
        "as in TRL 1.16."
    ),
    "in the reward": "Not looked at: a KL without gradient. In the reward it has none.",
}
KINDS = [  # of advantages: (baseline, scale)
    *itertools.product(("group mean", "mean of the others", "batch mean"), BASELINES["group mean"]),
    ("no baseline", "no deviation"),
    ("no baseline", "mean instead of the deviation"),
]
# the numbers of SAPO and VESPO in their papers
PAPERS = {
    GATE: {"positive": (1.0,), "negative": (1.05,)},
    GAMMA: {"positive": (2.0, 3.0), "negative": (3.0, 2.0)},
}
EPSILONS = [0.0, 1e-8, 1e-6, 1e-5, 1e-4]  # besides the measured one
ROOTS = ["outside of the root", "inside of the root"]


# ---- The formulas. Each part has named choices. A slip, named like its mistake, replaces a choice.


@dataclass(frozen=True)
class Advantages:
    """A = (r - baseline) / (deviation + eps)."""

    baseline: str
    scale: str
    eps: float = 1e-4
    root: str = "outside of the root"  # the place of eps
    slip: str = ""

    def __call__(self, rewards):
        """(m, n) -> (m, n)."""
        m, n = rewards.shape
        match self.slip:
            case "groups along the wrong dimension":
                return self.normalize(rewards.T).T
            case "rewards grouped in another order":
                return self.normalize(rewards.T.reshape(m, n)).reshape(n, m).T
            case _:
                return self.normalize(rewards)

    def normalize(self, r):
        """Advantages in the shape of r. Each row of r is a group."""
        baseline = self.baseline_of(r)
        centred = r - baseline
        variance = self.variance_of(r, centred)
        eps = 0.0 if self.scale == "no deviation" else self.eps
        if self.slip == "variance instead of the deviation":
            deviation = variance + eps
        elif self.root == "inside of the root":
            deviation = (variance + eps).sqrt()
        else:
            deviation = variance.sqrt() + eps
        # Equal rewards give 0 / 0, which counts as 0. There are ways to get 0 even without eps.
        result = (centred / deviation).nan_to_num(0.0)
        match self.slip:
            case "brackets forgotten":
                return r - baseline / deviation
            case "eps added after the division":
                # An eps too small to be seen counts as no eps: NaN agrees with nothing.
                shift = self.eps if self.eps > 5e-9 else math.nan
                return centred / variance.sqrt() + shift
            case "no eps":
                return centred / variance.sqrt()
            case "sign of the advantage turned":
                return -result
            case _:
                return result

    def baseline_of(self, r):
        """The baseline of each reward, (m, n), or of each group, (m, 1)."""
        match self.slip, self.baseline:
            case ("mean not subtracted", _) | (_, "no baseline"):
                return torch.zeros_like(r)
            case _, "mean of the others":
                return (r.sum(dim=1, keepdim=True) - r) / (r.shape[1] - 1)
            case _, "batch mean":
                return r.mean()
            case _:
                return r.mean(dim=1, keepdim=True)

    def variance_of(self, r, centred):
        """The square of what the advantages are divided by, (m, 1) or a scalar."""
        if self.baseline == "batch mean":
            r = r.reshape(1, -1)
        match self.scale:
            case "deviation with n - 1":
                return r.var(dim=1, keepdim=True)
            case "deviation with n":
                return r.var(dim=1, keepdim=True, correction=0)
            case "mean instead of the deviation":
                return r.mean(dim=1, keepdim=True) ** 2
            case "deviation of the batch":
                return r.var()
            case "deviation of the batch after the baseline":
                return centred.var()
            case _:
                return torch.ones(1)

    @property
    def name(self):
        return name_of(BASELINES[self.baseline], self.scale)

    def __str__(self):
        text = f"{self.name}: {self.baseline}, {self.scale}"
        if self.scale != "no deviation":
            text += f", eps {self.eps:g} {self.root}"
        return text


@dataclass(frozen=True)
class Loss:
    """The mean of L = -w min(rho A, clip(rho, 1 - low, 1 + high) A) + kl_weight KL."""

    ratio: str
    mean: str
    kl: str = "k3"
    place: str = "loss"  # or "reward": the KL is subtracted from each token's advantage
    drop: str = ""  # what has no policy gradient, see DROPS; "" is nothing
    slip: str = ""
    low: float = 1.0
    high: float = math.inf
    dual: float = math.inf  # PPO's dual clip: the largest ratio for A < 0
    fall: float = math.inf  # how far the policy may fall and rise before it is dropped
    rise: float = math.inf
    positive: tuple = (1.0, 1.0)  # the numbers of GATE (tau) and GAMMA (k, lambda) for A > 0
    negative: tuple = (1.0, 1.0)  # and for the others
    constant: float = 1.0  # a divisor
    kl_weight: float = 1.0
    level: str = ""  # of w = pi_old / pi_sampler: "token" or "completion"; "" is no w
    outside: str = "truncated"  # or "masked", outside of
    least: float = 0.0
    most: float = math.inf

    def __call__(self, log_probs, old, ref, advantages, mask, sampler_log_probs=None, step=None):
        """(B, T) and (B,) -> a scalar, this micro-batch's part of the loss of its step."""
        mask = self.trained_on(mask)
        sampler = old if sampler_log_probs is None else sampler_log_probs
        correction = old - sampler  # log w
        match self.slip:
            case "ratio to the reference":
                old = ref
            case "old and reference swapped":
                old, ref = ref, old
        if self.ratio == ITSELF:
            old = log_probs.detach()
        if self.drop not in ("", SEQUENCES):
            old = sampler
        lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        a = advantages[:, None]  # (B, 1)
        ratio = self.ratio_of(log_probs - old, mask, lengths)
        kl = self.penalty(log_probs, old, ref, sampler)
        if self.place == "reward":
            a = a - kl.detach()
            kl = 0 * kl
        gain = self.gain(ratio, a, log_probs)
        if self.ratio == GEOMETRIC:
            # GMPO (arXiv:2507.20673): the clip comes first, then the mean, then the advantage.
            held = torch.where(a == 0, 1.0, gain / a)
            gain = a * (total(held.log(), mask) / lengths).exp()
        kept = self.kept(log_probs.detach(), sampler, a, mask, lengths)
        gain = torch.where(kept, gain, 0.0) * self.weight(correction, mask)
        if self.slip == "sign of the policy term turned":
            gain = -gain
        loss = kl - gain  # (B, T)
        if self.slip == "KL of prompt and padding":
            loss = torch.where(mask, loss, kl)
        elif self.slip != "mask only in the denominator":
            loss = loss * mask
        divisor = self.divisor(mask, lengths, step)
        if self.slip == "divided by the micro-batches twice" and step:
            divisor = divisor * step.micro_batches
        return (loss / divisor).sum() / self.constant

    def trained_on(self, mask):
        """The tokens that are trained on, (B, T)."""
        seen = mask.cumsum(dim=1)  # tokens up to here
        left = mask.flip(1).cumsum(dim=1).flip(1)  # tokens from here on
        match self.slip:
            case "mask one token late":
                return F.pad(mask, (1, -1))
            case "mask one token early":
                return F.pad(mask, (-1, 1))
            case "end token left out":
                return mask & (left > 1)
            case "prompt counted":
                return mask | (seen == 0)
            case "padding counted":
                return mask | (left == 0)
            case "tokens of a tool counted":
                return (seen > 0) & (left > 0)
            case "mask not used":
                return torch.ones_like(mask)
            case _:
                return mask

    def ratio_of(self, log_ratio, mask, lengths):
        """rho = pi / pi_old of each token, (B, T), or of each completion, (B, 1)."""
        if self.ratio in (COMPLETION, PRODUCT, GAMMA):
            log_ratio = total(log_ratio, mask)
        if self.ratio == COMPLETION:
            log_ratio = log_ratio / lengths
        match self.slip:
            case "ratio without gradient":
                log_ratio = log_ratio.detach()
            case "ratio upside down":
                log_ratio = -log_ratio
        return log_ratio.exp()

    def weight(self, correction, mask):
        """w = pi_old / pi_sampler of each token, (B, T), or the product of a completion's, (B, 1).

        Truncated: fengyao.notion.site/off-policy-rl. Masked: IcePop (arXiv:2510.18855).
        """
        if not self.level:
            return 1.0
        if self.level == "completion":
            correction = total(correction, mask)
        weight = correction.exp()
        held = weight.clamp(self.least, self.most)
        if self.outside == "truncated":
            return held
        return torch.where(weight == held, weight, 0.0)

    def penalty(self, log_probs, old, ref, sampler):
        """The weighted KL, (B, T). With d = log(pi_ref / pi),

        k1 = -d, k2 = d^2 / 2, k3 = e^d - 1 - d (http://joschu.net/blog/kl-approx.html).
        """
        d = ref - log_probs
        if self.slip == "k3 with d turned":
            d = -d
        k2 = d**2 / 2
        k3 = d.exp() - 1 - d
        match self.kl:
            case "k1":
                kl = -d
            case "k2":
                kl = k2
            case "k3":
                kl = k3
            case "k3 with the gradient of k2":  # verl's k3+
                kl = k3.detach() + k2 - k2.detach()
            case "k3 times the ratio":  # DeepSeek-V3.2, arXiv:2512.02556
                kl = (log_probs - old).exp() * k3
            case "k2 to the sampler":  # prime-rl
                kl = (log_probs - sampler) ** 2 / 2
        match self.slip:
            case "sign of the KL penalty turned":
                kl = -kl
            case "KL without gradient":
                kl = kl.detach()
        return self.kl_weight * kl

    def gain(self, ratio, a, log_probs):
        """The policy term, which is maximized, (B, T)."""
        # PPO (arXiv:1707.06347, eq. 7): min(rho A, clip(rho) A). CISPO (arXiv:2506.13585, eq. 4):
        # clip(rho) A log pi. Dual clip (arXiv:1912.09729): max(..., dual A) if A < 0.
        free = ratio * a
        held = ratio.clamp(1 - self.low, 1 + self.high) * a
        first = torch.where(a > 0, self.positive[0], self.negative[0])  # tau or k
        match self.ratio:
            case "no ratio":
                if self.slip == "probability instead of its logarithm":
                    return a * log_probs.exp()
                return a * log_probs
            case "ratio clipped whatever the advantage's sign":  # arXiv:2602.02276, eq. 1
                return held
            case "soft gate of the ratio":  # SAPO, arXiv:2511.20347: 4 / tau sigmoid(tau (rho - 1))
                return torch.sigmoid(first * (ratio - 1)) * 4 / first * a
            case "gamma weight of the completion":
                # VESPO, arXiv:2602.10693: w^k e^(lambda (1 - w))
                decay = torch.where(a > 0, self.positive[1], self.negative[1])
                held = (decay * (1 - ratio)).exp() * ratio**first * a
        if self.ratio in (WEIGHT, GAMMA):
            if self.slip != "weight with gradient":
                held = held.detach()
            return held * log_probs
        gain = torch.minimum(free, held)
        if self.slip == "maximum instead of the minimum":
            gain = torch.maximum(free, held)
        return torch.where(a < 0, torch.maximum(gain, self.dual * a), gain)

    def kept(self, log_probs, start, a, mask, lengths):
        """Where the policy term counts, (B, T) or (B, 1)."""
        moved = movement(self.drop, log_probs, start)
        if self.drop == SEQUENCES:
            moved = total(moved, mask) / lengths
        not_up = moved <= self.rise
        not_down = moved >= -self.fall
        if self.drop == IPO:
            return not_up & not_down
        return torch.where(a > 0, not_up, not_down)

    def divisor(self, mask, lengths, step):
        """The number that each token's loss is divided by. It counts the whole step."""
        part = counts_of(mask)
        step = step or part
        match self.slip:
            case "micro-batches averaged":  # as if all were like this one
                step = counts_of(*[mask] * step.micro_batches)
            case "micro-batches added up":
                step = part
            case "padding in the denominator":
                return step.completions * mask.shape[1]
        match self.mean:
            case "mean of the completions' means":
                return step.completions * lengths
            case "mean over all tokens":
                return step.tokens
            case "sum over tokens / (completions x constant)":
                return step.completions
            case "mean over each micro-batch's tokens":
                return part.tokens * step.micro_batches
            case _:
                return 1

    @property
    def name(self):
        if self.drop not in ("", SEQUENCES):
            return self.drop.partition("'")[0]
        return name_of(RATIOS[self.ratio], self.mean)

    def __str__(self):
        text = f"{self.name}: {self.ratio}"
        if self.ratio in (GATE, GAMMA):
            numbers = [", ".join(f"{x:g}" for x in part) for part in (self.positive, self.negative)]
            text += f" ({numbers[0]} for A > 0, {numbers[1]} for A < 0)"
        if self.low < 1 or self.high < math.inf:
            text += f", clip {self.low:g} below and {self.high:g} above"
        if self.dual < math.inf:
            text += f", dual clip {self.dual:g}"
        if self.drop:
            text += f", {self.drop} {self.fall:g} below and {self.rise:g} above"
        if self.level:
            text += f", weight old / sampler of each {self.level}"
            text += f", {self.outside} outside of {self.least:g} to {self.most:g}"
        text += f", {self.mean}"
        if "constant" in self.mean:
            text += f" {self.constant:g}"
        elif self.constant != 1:
            text += f", times {1 / self.constant:g}"
        if self.kl_weight:
            text += f", {self.kl} in the {self.place} with weight {self.kl_weight:g}"
        return text


def name_of(names, part):
    """The name of an algorithm among those that share its other part."""
    return names.get(part, f"a relative of {next(iter(names.values()))}")


def total(x, mask):
    """The sum over the trained tokens of each completion, (B, 1)."""
    return (x * mask).sum(dim=1, keepdim=True)


def counts_of(*masks):
    """What a step counts whose micro-batches have these masks."""
    return SimpleNamespace(
        completions=sum(map(len, masks)),
        tokens=sum(mask.sum().item() for mask in masks),
        micro_batches=len(masks),
    )


def movement(drop, log_probs, start):
    """How far the policy has moved from the sampler, in the unit of a mask, (B, T)."""
    p = log_probs.exp()
    q = start.exp()
    match drop:
        case "DPPO's mask by KL":  # arXiv:2602.04879, the KL of two outcomes: this token, or not
            kl = q * (start - log_probs) + (1 - q) * ((1 - q) / (1 - p)).log()
            return (kl * (p - q).sign()).nan_to_num(nan=-math.inf)  # a q above 1 is far away
        case "off-policy sequence mask":  # DeepSeek-V3.2, arXiv:2512.02556, eq. 9
            return log_probs - start
        case _:  # DPPO by total variation; IPO (prime-rl): both signs of A
            return p - q


# ---- The frozen numbers

REWARDS = [
    torch.tensor(rows, dtype=torch.float64)
    for rows in (
        [[0.0, 1.0, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0], [0.25, 0.25, 1.5, 0.0]],
        [[0.0, 0.0, 0.0], [0.5, 0.501, 0.502]],
        [[3.0, 0.5], [2.0, 0.75], [0.125, 0.25]],
    )
]
SMALL_GROUP = 1e-3 * REWARDS[0][:1]  # (1, n): its deviation is small, so eps matters
# Two optimizer steps, each with how far the policy has moved, and its micro-batches. In a row, p is
# a token of the prompt, o a token of the completion, and t a token that a tool wrote into the
# completion. The rest is padding.
STEPS = [
    (
        0.3,
        ["pootoo...", "pppoo....", "ppotoooo.", "poo......"],
        ["ppoo.", "pooo.", "ppoo.", "poto."],
    ),
    (
        1.5,
        ["pooooooto.", "ppooo.....", "poo......."],
        ["ppppoo.", "poo....", "ppoooo."],
        ["po..", "poo.", "poo."],
    ),
]


@functools.cache
def frozen_batches():
    """[(log_probs, old, ref, advantages, mask, sampler, step)]"""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for moved, *parts in STEPS:
        masks = [torch.tensor([[x == "o" for x in row] for row in rows]) for rows in parts]
        for mask in masks:  # (B, T)
            noise = torch.randn(5, *mask.shape, generator=generator, dtype=torch.float64)
            log_probs = -0.1 - noise[0].abs()
            old = -(log_probs - moved * noise[1]).abs()
            ref = -(log_probs + 0.5 * noise[2]).abs()
            sampler = -(old + noise[4]).abs()
            a = noise[3, :, 0]
            batches.append((log_probs, old, ref, a, mask, sampler, counts_of(*masks)))
    return batches


# ---- The results of the adapter


def require(condition, sentence):
    """Raises SystemExit with the sentence if the condition does not hold."""
    if not condition:
        raise SystemExit(sentence)


def call(name, function, tensors, shape):
    """The result of an adapter's function in float64, if it is a tensor of that shape."""
    result = function(*[x.clone() for x in tensors])  # it may change them in place
    is_tensor = isinstance(result, torch.Tensor) and result.is_floating_point()
    require(
        is_tensor and result.shape == shape,
        f"{name} has to return a float64 tensor of shape {tuple(shape)}.",
    )
    return result.double()


def with_options(loss, options):
    """A function of a frozen batch: the loss, with these of the two named arguments.

    A formula without a step takes a micro-batch for one, and without a sampler the old policy.
    """

    def subject(log_probs, old, ref, advantages, mask, sampler, step):
        named = {"sampler_log_probs": sampler, "step": step}
        passed = {name: named[name] for name in options}
        return loss(log_probs, old, ref, advantages, mask, **passed)

    return subject


def value_and_gradient(loss, batch):
    """A micro-batch's loss, and the gradient with respect to its log_probs, (B, T)."""
    log_probs, *others, step = batch
    log_probs = log_probs.clone().requires_grad_()
    value = call("loss", lambda *tensors: loss(*tensors, step), (log_probs, *others), ())
    if value.requires_grad:
        value.backward()
    require(
        log_probs.grad is not None,
        "loss has no gradient for log_probs. Look for detach(), item() or no_grad().",
    )
    return value.detach(), log_probs.grad


@functools.cache
def expected(formula, place, options):
    """A formula's tensors for one frozen input: (advantages,) or (value, gradient)."""
    if isinstance(formula, Advantages):
        return (formula(REWARDS[place]),)
    return value_and_gradient(with_options(formula, options), frozen_batches()[place])


# The largest gap between equal results, in float32 or float64, relative to the largest entry
LARGEST_GAP = 1e-5


def tidy(number):
    """A measured number without the noise of float32."""
    return float(f"{number:.6g}")


# ---- The numbers of a loss are measured on one completion whose four tokens are alike

PROBED = -0.5


@functools.cache
def probe(loss, log_ratio=0.0, d=0.0, advantage=0.0, log_weight=0.0):
    """The loss if each token has these log(pi / pi_old), log(pi_ref / pi), log(pi_old / sampler).

    The log-prob of each token is PROBED.
    """
    ones = torch.ones(1, 4).double()
    log_probs = PROBED * ones
    old = log_probs - log_ratio
    a = advantage * ones[:, 0]
    mask = ones.bool()
    return loss(log_probs, old, log_probs + d, a, mask, old - log_weight, counts_of(mask)).item()


def push(loss, log_ratio, advantage, log_weight=0.0):
    """What the advantage adds to the loss if it is twice as large."""
    # The reference moves along with the old policy, for a loss that takes one for the other.
    once = probe(loss, log_ratio, -log_ratio, advantage, log_weight)
    return probe(loss, log_ratio, -log_ratio, 2 * advantage, log_weight) - once


def terms(loss, d=1.0):
    """(what an advantage of 1 adds to the loss, what a KL adds).

    The old policy also takes the reference's place, because a loss may confuse the two.
    """
    rest = probe(loss)
    kl = probe(loss, d=d) + probe(loss, -d) - 2 * rest
    return probe(loss, advantage=1.0) - rest, kl


# Advantages are so large that a KL in the reward does not change their sign.
LARGE = 1e3


def share(loss, log_ratio, advantage, log_weight=0.0):
    """The policy term at this ratio, relative to that of the ratio 1."""
    at_1 = push(loss, 0.0, advantage) or 1.0
    return push(loss, log_ratio, advantage, log_weight) / at_1


def edge(holds, end):
    """The number between 0 and `end` at which `holds` turns false, by bisection, or infinity."""
    if holds(end):
        return math.inf * end
    inside = 0.0
    for _ in range(60):
        middle = (inside + end) / 2
        if holds(middle):
            inside = middle
        else:
            end = middle
    return inside


# Up and down from the old policy, each with a positive and with a negative advantage
DIRECTIONS = list(itertools.product((3.0, -3.0), (LARGE, -LARGE)))


def limit(term, far, power=1):
    """(end, held) of a term that follows e^(power x) from 0 towards `far`.

    end: the x at which it becomes 0, or infinity. held: the value at which it stays before that. If
    it does not stay, held is that of e^(power x) at infinity.
    """
    end = edge(lambda x: term(x) > 0, far)
    last = far if math.isinf(end) else 0.999 * end
    held = term(last)
    if held > 0 and abs(math.log(held)) < abs(power * last) - 1e-5:
        return end, held
    return end, math.exp(math.inf * far)


def clip_range(held):
    """{low, high, dual}: the clip, from the ratio at which the policy term stays."""
    above = [ratio for ratio in held if ratio > 1.00001]
    below = [ratio for ratio in held if ratio < 0.99999]
    high = min(above, default=math.inf)
    dual = max(above, default=math.inf)
    return {
        "low": tidy(1 - max(below, default=0.0)),
        "high": tidy(high - 1),
        "dual": tidy(dual) if dual > 1.00001 * high else math.inf,
    }


def masks(ends):
    """[{drop, fall, rise}]: what a loss with these edges may drop, and from where."""
    start = torch.tensor(PROBED).double()
    found = []
    for drop in DROPS.get(tuple(map(math.isfinite, ends)), []):
        rise, _, _, fall = movement(drop, start, start - torch.tensor(ends).double()).tolist()
        found.append({"drop": drop, "fall": tidy(-fall), "rise": tidy(rise)})
    return found


def soft_weights(loss):
    """{ratio: {positive, negative}}: the numbers of SAPO and VESPO, NaN if the loss is neither."""
    found = {GATE: {}, GAMMA: {}}
    for name, advantage in (("positive", LARGE), ("negative", -LARGE)):
        # The probed completion has four tokens, so VESPO's w is e, then 1 / e.
        points = [share(loss, x, advantage) for x in (0.25, -0.25)]
        up, down = torch.tensor(points, dtype=torch.float64).log()
        tau = (up.exp() / 2).logit() / math.expm1(0.25)
        decay = (up + down) / (2 - 2 * math.cosh(1))
        k = (up - down) / 2 + decay * math.sinh(1)
        found[GATE][name] = (tidy(tau),)
        found[GAMMA][name] = (tidy(k), tidy(decay))
    return found


def sampler_weight(loss):
    """{level, outside, least, most}: how pi_old / pi_sampler weighs the policy term."""

    def weight(x):
        """w if log(pi_old / pi_sampler) of each token is x."""
        return share(loss, 0.0, 1.0, x)

    # 1 for each token, 4 for a completion of 4 tokens
    power = round((weight(1e-3) - 1) / 1e-3, 1)
    if power not in (1, 4):
        return {}
    lower, least = limit(weight, -3.0, power)
    upper, most = limit(weight, 3.0, power)
    masked = math.isfinite(lower) or math.isfinite(upper)
    if masked:
        least = math.exp(power * lower)
        most = math.exp(power * upper)
    return {
        "level": "token" if power == 1 else "completion",
        "outside": "masked" if masked else "truncated",
        "least": tidy(least),
        "most": tidy(most),
    }


def with_scale(loss, formula):
    """The formula with the constant and the KL weight of a loss."""
    gain, kl = terms(loss)
    gain_of_1, kl_of_1 = terms(formula)
    scale = gain / gain_of_1 or 1.0
    kl_weight = tidy(kl / (kl_of_1 * scale or 1.0))
    if kl_weight < 1e-6:
        kl_weight = 0.0
    return replace(formula, kl_weight=kl_weight, constant=tidy(1 / abs(scale)))


# how a KL grows if log(pi_ref / pi) doubles: its estimators, and their places
PENALTIES = {
    2.0: [("k1", "loss"), ("k1", "reward")],
    4.0: [("k2", "loss"), ("k2", "reward"), ("k2 to the sampler", "loss")],
    6.1: [  # (e^2 - 3) / (e - 2)
        ("k3", "loss"),
        ("k3", "reward"),
        ("k3 times the ratio", "loss"),
        ("k3 with the gradient of k2", "loss"),
    ],
}


def penalties(loss):
    """[(the KL's estimator, its place)]: those that a loss may have."""
    kl = terms(loss)[1]
    if abs(kl) < 1e-6:
        return [("k3", "loss")]  # Without a KL, any of them will do.
    growth = round(terms(loss, d=2.0)[1] / kl, 1)
    return PENALTIES.get(growth, list(itertools.chain(*PENALTIES.values())))


def loss_formulas(loss):
    """Formulas with the numbers of a loss: those with its policy term; if there are none, all."""
    limits = [limit(lambda x, a=a: share(loss, x, a), far) for far, a in DIRECTIONS]
    ends, held = zip(*limits)
    clip = clip_range(held)
    soft = soft_weights(loss)
    weight = sampler_weight(loss)
    profile = policy_profile(loss)
    likely = []
    others = []
    for ratio, dropped in itertools.product(RATIOS, [{}, *masks(ends)]):
        numbers = soft.get(ratio, clip) | dropped
        if dropped.get("drop", SEQUENCES) == SEQUENCES:
            numbers |= weight
        plain = policy_profile(Loss(ratio, COMPLETIONS, kl_weight=0.0, **numbers))
        alike = torch.allclose(plain, profile, rtol=1e-4)
        for mean, penalty in itertools.product(MEANS, penalties(loss)):
            formula = Loss(ratio, mean, *penalty, **numbers)
            (likely if alike else others).append(formula)
    return likely or others


def policy_profile(loss):
    """The policy term at ratios near to 1 and far from it, for both signs of the advantage."""
    points = itertools.product((-3.0, -0.1, 0.1, 3.0), (LARGE, -LARGE))
    return torch.tensor([share(loss, *point) for point in points])


def measured_eps(formula, yours):
    """{root: the eps with which a formula without one gives the first advantage of yours}."""
    centred = SMALL_GROUP - formula.baseline_of(SMALL_GROUP)
    variance = formula.variance_of(SMALL_GROUP, centred).item()
    quotient = (centred / yours)[0, 0].item()
    found = zip(ROOTS, (quotient - variance**0.5, quotient**2 - variance))
    return {root: tidy(eps) if 1e-13 < eps < 1 else 0.0 for root, eps in found}


# ---- The properties of advantages and losses that agree with nothing

# A new function may lack these.
OPTIONAL = ("no group depends on another", "each group's mean is 0")


def properties(of):
    """{property: whether these advantages have it}"""
    rewards = REWARDS[0]
    found = of(rewards)
    flipped = of(rewards.flip(1))
    another = rewards.clone()
    another[0] = 7 - 10 * rewards[0]  # larger and smaller than all others
    by_reward = found.gather(1, rewards.argsort(dim=1))
    return {
        "some advantage is not 0": found.abs().max() > 0,
        "no group depends on another": torch.equal(of(another)[1:], found[1:]),
        "each group's mean is 0": found.mean(dim=1).abs().max() < LARGEST_GAP,
        "a larger reward has no smaller advantage": (by_reward.diff(dim=1) >= 0).all(),
        "the completions may change places": torch.allclose(flipped.flip(1), found),
    }


def properties_of_loss(loss, batch):
    """{property: whether the loss has it}"""
    *tensors, step = batch
    advantages, mask = tensors[3:5]

    def gradient(*tensors):
        return value_and_gradient(loss, (*tensors, step))[1]

    found = gradient(*tensors)
    opposite = gradient(*tensors[:3], -advantages, *tensors[4:])
    pull = (found - opposite) * advantages[:, None]  # (B, T): negative if descent follows it
    flipped = gradient(*[tensor.flip(0) for tensor in tensors])
    return {
        "only the model's tokens have a gradient": (found[mask == 0] == 0).all(),
        "a larger advantage makes no token less likely": (pull <= 1e-9).all(),
        "the completions may change places": torch.allclose(flipped.flip(0), found),
    }


def unchanged(loss, answer, change):
    """Whether changed advantages give the same loss and gradient."""

    def of_others(log_probs, old, ref, advantages, mask, **named):
        return loss(log_probs, old, ref, change(advantages), mask, **named)

    return all(gap < 1e-4 for gap in answer.gaps(of_others))


def leaks(loss, batch):
    """Whether -inf or NaN outside of the mask reaches the loss or its gradient."""
    *tensors, step = batch
    mask = tensors[4]
    for hidden in (-math.inf, math.nan):
        for place in (0, 1, 2, 5):  # the log-probs
            tensors[place] = tensors[place].masked_fill(~mask, hidden)
        try:
            found = value_and_gradient(loss, (*tensors, step))
        except (AssertionError, RuntimeError, ValueError):  # the loss itself refuses it
            continue
        if not all(x.isfinite().all() for x in found):
            return True
    return False


# ---- The verdict


def judge_loss(loss, new=False):
    """(right, names, text) for a function like `loss` in this file's docstring."""
    options = frozenset(inspect.signature(loss).parameters) & {"step", "sampler_log_probs"}
    batches = frozen_batches()
    subject = with_options(loss, options)
    answer = Answer("loss", [value_and_gradient(subject, batch) for batch in batches], options)
    if not answer.finite:
        name = "NaN in the value"
        for batch, (_, gradient) in zip(batches, answer.found):
            mask = batch[4]
            if not gradient[mask].isfinite().all():
                name = "NaN at tokens of completions"
                break
            if not gradient.isfinite().all():
                name = "NaN under the mask"
        why = (
            "The loss or its gradient is not finite, though all inputs are. Look for log, exp and "
            "divisors. Before them, use torch.where with the mask: 0 x NaN is NaN."
        )
        return False, [name], f"✗ loss: {name}\n{why}"
    for name, change, sentence in (
        (
            "does not depend on the advantages",
            torch.neg,
            "Look at the mask, and at what is passed on.",
        ),
        (
            "advantages normalized again over the micro-batch",
            lambda advantages: 2 * advantages + 3,
            "A completion counts more or less with the others of its micro-batch. Over the whole "
            "step it is a constant factor: normalize before the loss. Seen: axon-rl/gem PR #113.",
        ),
    ):
        if unchanged(loss, answer, change):
            return False, [name], f"✗ loss: {name}\n{sentence}"

    remarks = []
    if leaks(subject, batches[0]):
        remarks.append(
            "-inf or NaN outside of the mask reaches the gradient, because 0 x NaN is NaN. If your "
            "padding is not finite, use torch.where before exp. Seen: OpenRLHF PR #1240."
        )
    if "step" not in options:
        remarks.append(
            "Not looked at: micro-batches that are averaged or added up, because loss has no "
            "argument step. Each micro-batch was its own step."
        )
    return verdict(
        answer,
        loss_formulas(subject),
        lambda formula: with_scale(subject, formula),
        LOSS_MISTAKES,
        lambda: properties_of_loss(subject, batches[0]),
        remarks,
        new,
    )


def judge_advantages(advantages, new=False):
    """(right, names, text) for a function like `advantages` in this file's docstring."""

    def of(rewards):
        return call("advantages", advantages, (rewards,), rewards.shape)

    answer = Answer("advantages", [(of(rewards),) for rewards in REWARDS])
    small = of(SMALL_GROUP)
    formulas = []
    for kind in KINDS:
        for root, measured in measured_eps(Advantages(*kind), small).items():
            formulas += [Advantages(*kind, eps, root) for eps in [measured, *EPSILONS]]
    look = lambda: properties(of)
    return verdict(answer, formulas, lambda x: x, ADVANTAGE_MISTAKES, look, [], new)


@dataclass
class Answer:
    """What a function of the adapter returned, and how far formulas are from it."""

    name: str
    found: list  # for each frozen input, a tuple of tensors
    options: frozenset = frozenset()  # the named arguments that the function has

    def __post_init__(self):
        finite = torch.cat([x.isfinite().flatten() for x in itertools.chain(*self.found)])
        require(finite.any(), f"{self.name} is NaN or infinite everywhere.")
        self.finite = finite.all()

    def pairs(self, formula):
        """(label, the formula's tensor, yours) for all frozen inputs."""
        for place, yours in enumerate(self.found):
            mine = expected(formula, place, self.options)
            for what, *pair in zip(("value", "gradient"), mine, yours):
                yield f"batch {place}, {what}", *pair

    def gaps(self, formula, scaled=False):
        """How far finite entries are apart, relative to the largest, for each frozen tensor.

        If `scaled`, the formula's tensor is multiplied by a number of its own.
        """
        for _, mine, your in self.pairs(formula):
            if scaled:
                mine = mine * multiple(mine, your)
            apart = torch.where(your.isfinite(), (mine - your).abs(), 0.0)
            largest = mine.nan_to_num().abs().max()
            yield (apart.max() / largest.clamp(min=1e-6)).item()

    def agrees(self, formula, scaled=False):
        """Whether a formula gives the same."""
        return all(gap < LARGEST_GAP for gap in self.gaps(formula, scaled))


def multiple(mine, your):
    """The positive number that makes mine as large as yours, or NaN."""
    times = ((mine * your).sum() / (mine * mine).sum()).item()
    return times if times > 0 else math.nan


def verdict(answer, formulas, finish, mistakes, look, remarks, new):
    """Compare the answer with each formula: (right, names, text)."""
    name = answer.name

    def distance(formula):
        return max(answer.gaps(formula))

    def agreeing(slip="", scaled=False):
        """The first formula with this slip that agrees, or None."""
        for formula in formulas:
            formula = finish(replace(formula, slip=slip))
            if answer.agrees(formula, scaled):
                return formula

    if answer.finite:
        right = agreeing()
        if name == "advantages":
            right = right or agreeing(scaled=True)
        if right:
            return True, [right.name], "\n".join([agreement(answer, right), *remarks])
    texts = {}
    for slip, consequence in mistakes.items():
        wrong = agreeing(slip)
        if wrong:
            texts[slip] = f"✗ {name}: {slip}\n{consequence} Otherwise it is {wrong}."
    if texts:
        return False, list(texts), "\nor ".join(texts.values())
    nearest = min(map(finish, formulas), key=distance)
    near = distance(nearest) < 0.03
    lines = []
    if near or not new:
        lines += [f"The nearest is {nearest}.", largest_difference(answer, nearest)]
    if near:
        lines.append("Look for bfloat16 (a ratio of 1.003 becomes 1), and for eps in divisors.")
    if not new:
        lines.append("If it is new on purpose: --new.")
    title = f"✓ {name}: new" if new else f"✗ {name}: neither an algorithm nor a known mistake"
    for words, holds in look().items():
        lines.append(f"{'yes' if holds else 'no'}: {words}")
        if new and not holds and words not in OPTIONAL:
            new = False
            title = f"✗ {name}: this is not so: {words}"
    return new, [], "\n".join([title, *lines])


def agreement(answer, formula):
    """The text on results that agree with a formula."""
    _, _, parts = str(formula).partition(": ")
    lines = [f"✓ {answer.name}: agrees with {formula.name}", f"{parts}."]
    scaled = not answer.agrees(formula)
    if scaled:
        times = [f"{multiple(*pair):.4g}" for _, *pair in answer.pairs(formula)]
        lines.append(
            f"Times {', '.join(times)} in the test's batches. A constant factor only scales the "
            "step, as in GDPO (arXiv:2601.05242)."
        )
    lines.append(f"The largest difference is {max(answer.gaps(formula, scaled)):.0e}.")
    return "\n".join(lines + notes(parts))


def notes(parts):
    """What is said of an algorithm with these parts."""
    return [note for words, note in NOTES.items() if words in parts]


def largest_difference(answer, formula):
    """The entry in which a formula differs most from the results, as a sentence."""
    label, mine, your = max(answer.pairs(formula), key=lambda pair: (pair[1] - pair[2]).abs().max())
    where = (mine - your).abs().argmax()
    place = [x.item() for x in torch.unravel_index(where, mine.shape)] or ""
    return (
        f"The largest difference is in {label}{place}: yours {your.take(where):.12g}, the "
        f"formula's {mine.take(where):.12g}."
    )


def show(text):
    """Print a text: its first line, then the details, indented, in 80 columns."""
    if hasattr(sys.stdout, "reconfigure"):  # not in a notebook
        sys.stdout.reconfigure(errors="replace")  # a console without the character ✓
    for line in text.splitlines():
        indent = "" if line[:1] in "✓✗–" else "  "
        print(textwrap.fill(line, 80, initial_indent=indent, subsequent_indent="  "))


def load(path):
    """The names that an adapter defines. It can import what lies beside it."""
    require(os.path.exists(path), f"There is no file {path}.")
    sys.path[:0] = [os.path.dirname(os.path.abspath(path)), os.getcwd()]
    return runpy.run_path(path)


def judge_functions(adapter, new):
    """The verdicts on what an adapter defines."""
    judges = {"advantages": judge_advantages, "loss": judge_loss}
    names = [name for name in judges if name in adapter]
    require(names, "The adapter has neither a function advantages nor a function loss.")
    return [judges[name](adapter[name], new) for name in names]


def main(description=__doc__, judge=judge_functions, has_new=True, prints=True):
    """The command: judge(what the adapter defines, its flags) -> [(right, names, text)]."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapter", help="a Python file that calls your code")
    if has_new:
        text = "exit with 0 for a new algorithm, too"
        parser.add_argument("--new", action="store_true", help=text)
    arguments = vars(parser.parse_args())
    with contextlib.redirect_stdout(sys.stderr):  # what the adapter prints
        try:
            adapter = load(arguments.pop("adapter"))
            rights, _, texts = zip(*judge(adapter, **arguments))
        except SystemExit as stop:
            if isinstance(stop.code, str):  # a sentence
                raise
            raise SystemExit("The adapter calls exit.") from None  # its code would be ours
    if prints:
        show("\n\n".join(texts))
    sys.exit(not all(rights))


if __name__ == "__main__":
    main()
