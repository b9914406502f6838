"""Is your GRPO correct? Judge the advantages and the loss of any code base.

    python check_grpo.py my_adapter.py

my_adapter.py calls your code. Write one or both of these functions:

    import my_trainer

    def advantages(rewards):
        return my_trainer.normalize(rewards)

    def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask):
        return my_trainer.policy_loss(log_probs, old_log_probs, ref_log_probs, advantages, mask)

rewards         (m, n): m prompts with n completions each; the result has the same shape
log_probs       (B, T): log-prob of each token under the policy, with gradient
old_log_probs   (B, T): the same under the policy that sampled the tokens
ref_log_probs   (B, T): the same under the reference model
advantages      (B,): one number per completion
mask            (B, T), bool: True at the tokens that the policy wrote, its end token included

`log_probs[:, t]`, `mask[:, t]` and the other columns t belong to the same token. `loss` returns a
scalar to minimize. All numbers are float64. Copy inputs before you change them in place.

If your loss adds up over micro-batches, let it take a sixth argument, `step`. The numbers
`step.completions`, `step.tokens` and `step.micro_batches` count the whole optimizer step.

The program compares value and gradient with formulas on frozen micro-batches. It prints the name
and the numbers of your algorithm, or the name of a known mistake. It measures the clip range, the
KL weight and the constants, so you need not give them. If nothing agrees, it prints the nearest
algorithm and the first entry that differs. The exit code is 0 if an algorithm agrees, else 1. The
program needs only torch.
"""

import argparse
import functools
import inspect
import itertools
import math
import os
import runpy
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F

# mistake: its consequence
ADVANTAGE_MISTAKES = {
    "batch instead of the group": (
        "An easy prompt's completions all go up and a hard prompt's all go down."
    ),
    "groups along the wrong dimension": (
        "Completions of different prompts are compared with each other."
    ),
    "rewards grouped in another order": (
        "The groups mix prompts, because completions are not stored prompt by prompt."
    ),
    "mean not subtracted": (
        "Each completion with a reward above 0 goes up, even the worst of its group."
    ),
    "own reward counted among the others": (
        "The sum of the others is divided by n, so the baseline is too small."
    ),
    "variance instead of the deviation": (
        "If all rewards are half as large, the advantages are twice as large."
    ),
    "brackets forgotten": "r - mean / std is not centred: the group's advantages do not sum to 0.",
    "eps added after the division": (
        "Each advantage is shifted by eps, and a group of equal rewards gives NaN."
    ),
    "no eps": "A group of equal rewards gives 0 / 0, and NaN reaches every weight.",
    "normalized twice": (
        "The second normalization, over the batch, undoes the comparison within the group."
    ),
    "sign of the advantage turned": "The policy learns to avoid reward.",
}
LOSS_MISTAKES = {
    "mask one token late": (
        "Each completion's first token is left out, and one token after its end is trained on."
    ),
    "mask one token early": "The prompt's last token is trained on, and the end token is left out.",
    "end token left out": "The policy gets no signal about when to stop.",
    "prompt counted": "The policy is trained on tokens that it did not write.",
    "padding counted": (
        "Tokens after the end are trained on, so short completions count like long ones."
    ),
    "tokens of a tool counted": "The policy learns to write the tool's answers itself.",
    "mask not used": "Prompt and padding are trained on, and count as tokens.",
    "mask only in the denominator": "Prompt and padding are trained on.",
    "padding in the denominator": (
        "The longest completion of a micro-batch decides how large the step is."
    ),
    "mean over rows, then over tokens": (
        "A token counts more at a position that few completions reach."
    ),
    "micro-batches averaged": "A token counts more if its micro-batch has few tokens.",
    "micro-batches added up": "The gradient grows with the number of micro-batches.",
    "divided by the micro-batches twice": "The gradient shrinks with the number of micro-batches.",
    "ratio of the policy to itself": (
        "The ratio is always 1: nothing is clipped. Correct for one optimizer step per batch."
    ),
    "both terms of the ratio have a gradient": (
        "Their gradients cancel, so the reward never reaches the weights."
    ),
    "ratio without gradient": "The reward never reaches the weights.",
    "ratio upside down": "The ratio is old / new, so the policy learns to avoid reward.",
    "ratio to the reference": "The clip holds the policy near the reference and freezes it there.",
    "old and reference swapped": (
        "The clip is around the reference, and the KL penalty pulls to the last policy."
    ),
    "minimum taken before the advantage": (
        "For a negative advantage the clip acts at the wrong end of the range."
    ),
    "clip without the minimum": (
        "A token outside of the range has no gradient, so a wrong step cannot be undone."
    ),
    "maximum instead of the minimum": (
        "The clip stops steps that undo a mistake, but no step that goes too far."
    ),
    "sign of the policy term turned": "The policy learns to avoid reward.",
    "ratio of the completion not length-normalized": (
        "The product of the tokens' ratios leaves the clip range in any long completion."
    ),
    "arithmetic mean of the ratios": (
        "One token with a large ratio decides the ratio of the completion."
    ),
    "weight with gradient": (
        "The clipped ratio should be a constant, but its gradient is added to log pi's."
    ),
    "probability instead of its logarithm": "Unlikely tokens have almost no gradient.",
    "sign of the KL penalty turned": (
        "The policy is rewarded for leaving the reference, and collapses."
    ),
    "k3 with d turned": (
        "On samples of the policy its mean is not the KL, and its gradient grows like pi / pi_ref."
    ),
    "KL without gradient": "The penalty is in the logged loss, but restrains nothing.",
    "KL of prompt and padding": "The penalty counts tokens that the policy did not write.",
    "sign of the entropy bonus turned": "Entropy is minimized, and the policy stops exploring.",
}
# mistake: where it was seen. The others are common slips.
SEEN = {
    "batch instead of the group": "XU-YIJIE/grpo-flat #2, fla-org/flash-linear-attention #1073",
    "rewards grouped in another order": "StarsfieldAI/R1-V #67",
    "normalized twice": "axon-rl/gem PR #113",
    "mask one token late": "Goekdeniz-Guelmez/mlx-lm-lora #80",
    "end token left out": "mll-lab-nu/RAGEN #59, rasbt/reasoning-from-scratch PR #185",
    "prompt counted": "TIGER-AI-Lab/verl-tool #116",
    "padding counted": "bingreeky/MemGen PR #33",
    "mask not used": "Tencent-Hunyuan/UniRL PR #409",
    "mask only in the denominator": "huggingface/trl PR #6654",
    "padding in the denominator": "NovaSky-AI/SkyRL PR #462, McGill-NLP/nano-aha-moment",
    "micro-batches averaged": "allenai/open-instruct PR #1161, verl-project/verl PR #906",
    "micro-batches added up": "huggingface/trl PR #3716",
    "divided by the micro-batches twice": "modelscope/ms-swift #10117",
    "ratio of the policy to itself": "meta-pytorch/torchforge PR #571, xiaomi-research/time-r1 #20",
    "both terms of the ratio have a gradient": "Goekdeniz-Guelmez/mlx-lm-lora #55",
    "ratio to the reference": "huggingface/trl PR #2837",
    "minimum taken before the advantage": "rasbt/reasoning-from-scratch",
    "sign of the policy term turned": "fla-org/flash-linear-attention #1073",
    "ratio of the completion not length-normalized": "walkinglabs/hands-on-modern-rl #75",
    "sign of the KL penalty turned": "qiancheng0/ToolRL #52, mll-lab-nu/RAGEN #58",
    "k3 with d turned": "ml-explore/mlx-examples PR #1233, natolambert/rlhf-book (approx_kl3)",
    "KL without gradient": "allenai/open-instruct #530",
    "KL of prompt and padding": "allenai/open-instruct PR #535",
    "sign of the entropy bonus turned": "PKU-Alignment/omnisafe PR #133",
}
# {baseline: {scale: name}} of advantages, and {ratio: {mean: name}} of losses
ALGORITHMS = {
    "group mean": {
        "deviation with n - 1": "GRPO",
        "deviation with n": "GRPO",
        "no deviation": "Dr. GRPO",
        "mean instead of the deviation": "MaxRL",
        "deviation of the batch": "GRPO",
        "deviation of the batch after the baseline": "REINFORCE++ with a baseline",
    },
    "mean of the others": {
        "no deviation": "RLOO",
    },
    "no baseline": {
        "no deviation": "REINFORCE",
    },
    "ratio of each token": {
        "mean of the completions' means": "GRPO",
        "mean over all tokens": "DAPO",
        "sum over tokens / (completions x constant)": "Dr. GRPO",
    },
    "ratio of each completion": {
        "mean of the completions' means": "GSPO",
    },
    "ratio as a weight": {
        "mean over all tokens": "CISPO",
    },
    "no ratio": {
        "mean of the completions' means": "REINFORCE",
        "mean over all tokens": "REINFORCE",
        "sum over tokens / (completions x constant)": "RLOO",
        "sum over tokens / constant": "REINFORCE",
    },
}
NOTES = {
    "no deviation": "If you meant GRPO, the deviation has no effect, as in Open-Reasoner-Zero #75.",
    "k1 in the loss": "k1's gradient does not depend on the reference, so it restrains nothing.",
}
SCALES = [
    "deviation with n - 1",
    "deviation with n",
    "no deviation",
    "mean instead of the deviation",
    "deviation of the batch",
    "deviation of the batch after the baseline",
]
EPSILONS = [0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
RATIOS = ["ratio of each token", "ratio of each completion", "ratio as a weight", "no ratio"]
MEANS = [
    "mean of the completions' means",
    "mean over all tokens",
    "sum over tokens / (completions x constant)",
    "sum over tokens / constant",
]


# ---- The formulas. Each part has named choices. A slip, named like its mistake, replaces a choice.


@dataclass(frozen=True)
class Advantages:
    """A = (r - baseline) / (deviation + eps)."""

    baseline: str
    scale: str
    eps: float
    root: str = "outside of the root"  # the place of eps
    slip: str = ""

    def __call__(self, rewards):
        """(m, n) -> (m, n)."""
        m, n = rewards.shape
        match self.slip:
            case "batch instead of the group":
                return self.normalize(rewards.reshape(1, -1)).reshape(m, n)
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
        quotient = centred / deviation
        # Equal rewards give 0 / 0, which counts as 0. There are ways to get 0 even without eps.
        result = torch.where(quotient.isnan(), 0.0, quotient)
        match self.slip:
            case "brackets forgotten":
                return r - baseline / deviation
            case "eps added after the division":
                # An eps too small to be seen counts as no eps: NaN agrees with nothing.
                shift = self.eps if self.eps > 5e-9 else math.nan
                return centred / variance.sqrt() + shift
            case "no eps":
                return quotient
            case "sign of the advantage turned":
                return -result
            case "normalized twice":
                return (result - result.mean()) / (result.std() + self.eps)
            case _:
                return result

    def baseline_of(self, r):
        """The baseline of each reward, (m, n), or of each group, (m, 1)."""
        others = r.sum(dim=1, keepdim=True) - r
        n = r.shape[1]
        match self.slip, self.baseline:
            case "own reward counted among the others", _:
                return others / n
            case ("mean not subtracted", _) | (_, "no baseline"):
                return torch.zeros_like(r)
            case _, "mean of the others":
                return others / (n - 1)
            case _:
                return r.mean(dim=1, keepdim=True)

    def variance_of(self, r, centred):
        """The square of what the advantages are divided by, (m, 1) or a scalar."""
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
                return torch.ones_like(r)

    def __str__(self):
        name = ALGORITHMS[self.baseline].get(self.scale, "a relative of GRPO")
        text = f"{name}: {self.baseline}, {self.scale}"
        if self.scale != "no deviation":
            text += f", eps {self.eps:g} {self.root}"
        return text


@dataclass(frozen=True)
class Loss:
    """The mean of L = -min(rho A, clip(rho, 1 - low, 1 + high) A) + kl_weight KL - entropy H."""

    ratio: str
    mean: str
    kl: str
    place: str  # of the KL: "loss", or "reward", which subtracts it from each token's advantage
    slip: str = ""
    low: float = 1.0
    high: float = math.inf
    dual: float = math.inf  # PPO's dual clip: the largest ratio for A < 0
    constant: float = 1.0  # the divisor of the two means that have one
    kl_weight: float = 1.0
    entropy: float = 1.0  # the weight of H = -log pi of the sampled tokens

    def __call__(self, log_probs, old, ref, advantages, mask, step):
        """(B, T) and (B,) -> a scalar, this micro-batch's part of the loss of its step."""
        mask = self.trained_on(mask)
        match self.slip:
            case "ratio of the policy to itself":
                old = log_probs.detach()
            case "both terms of the ratio have a gradient":
                old = log_probs
            case "ratio to the reference":
                old = ref
            case "old and reference swapped":
                old, ref = ref, old
        lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        ratio = self.ratio_of(log_probs - old, mask, lengths)
        kl = self.penalty(ref - log_probs)
        a = advantages[:, None].expand_as(kl)  # (B, T)
        if self.place == "reward":
            a = a - kl.detach()
            kl = 0 * kl
        gain = self.gain(ratio, a, log_probs)
        bonus = -self.entropy * log_probs
        match self.slip:
            case "sign of the policy term turned":
                gain = -gain
            case "sign of the KL penalty turned":
                kl = -kl
            case "KL without gradient":
                kl = kl.detach()
            case "sign of the entropy bonus turned":
                bonus = -bonus
        loss = kl - gain - bonus  # (B, T)
        if self.slip == "KL of prompt and padding":
            loss = torch.where(mask, loss, kl)
        elif self.slip != "mask only in the denominator":
            loss = loss * mask
        return (loss / self.divisor(mask, lengths, step)).sum()

    def trained_on(self, mask):
        """The tokens that are trained on, (B, T)."""
        seen = mask.cumsum(dim=1)  # tokens up to here
        left = mask.flip(1).cumsum(dim=1).flip(1)  # tokens from here on
        match self.slip:
            case "mask one token late":
                return F.pad(mask, (1, 0))[:, :-1]
            case "mask one token early":
                return F.pad(mask, (0, 1))[:, 1:]
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
        ratio = log_ratio.exp()
        if self.ratio == "ratio of each completion":
            total = (log_ratio * mask).sum(dim=1, keepdim=True)
            match self.slip:
                case "ratio of the completion not length-normalized":
                    ratio = total.exp()
                case "arithmetic mean of the ratios":
                    ratio = (ratio * mask).sum(dim=1, keepdim=True) / lengths
                case _:
                    ratio = (total / lengths).exp()
        match self.slip:
            case "ratio without gradient":
                return ratio.detach()
            case "ratio upside down":
                return 1 / ratio
            case _:
                return ratio

    def penalty(self, d):
        """The weighted KL, from d = log(pi_ref / pi). Both are (B, T).

        k1 = -d, k2 = d^2 / 2, k3 = e^d - 1 - d (http://joschu.net/blog/kl-approx.html).
        """
        if self.slip == "k3 with d turned":
            d = -d
        match self.kl:
            case "k1":
                kl = -d
            case "k2":
                kl = d**2 / 2
            case _:
                kl = d.exp() - 1 - d
        return self.kl_weight * kl

    def gain(self, ratio, a, log_probs):
        """The policy term, which is maximized, (B, T)."""
        # PPO (arXiv:1707.06347, eq. 7): min(rho A, clip(rho) A). CISPO (arXiv:2506.13585, eq. 4):
        # clip(rho) A log pi. Dual clip (arXiv:1912.09729): max(..., dual A) if A < 0.
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        free = ratio * a
        held = clipped * a
        match self.ratio, self.slip:
            case "ratio as a weight", "weight with gradient":
                return held * log_probs
            case "ratio as a weight", _:
                return held.detach() * log_probs
            case "no ratio", "probability instead of its logarithm":
                return a * log_probs.exp()
            case "no ratio", _:
                return a * log_probs
            case _, "clip without the minimum":
                gain = held
            case _, "minimum taken before the advantage":
                gain = torch.minimum(ratio, clipped) * a
            case _, "maximum instead of the minimum":
                gain = torch.maximum(free, held)
            case _:
                gain = torch.minimum(free, held)
        return torch.where(a < 0, torch.maximum(gain, self.dual * a), gain)

    def divisor(self, mask, lengths, step):
        """The number that each token's loss is divided by. It counts the whole step."""
        part = SimpleNamespace(completions=len(mask), tokens=mask.sum(), micro_batches=1)
        if step is None:
            step = part
        counts = step
        times = 1
        match self.slip:
            case "micro-batches averaged":
                counts = part
                times = step.micro_batches
            case "micro-batches added up":
                counts = part
            case "divided by the micro-batches twice":
                times = step.micro_batches
            case "padding in the denominator":
                return step.completions * mask.shape[1]
            case "mean over rows, then over tokens":
                reached = mask.sum(dim=0)  # completions that reach a position, (T,)
                return step.micro_batches * reached.clamp(min=1) * (reached > 0).sum()
        completions = counts.completions * times
        match self.mean:
            case "mean of the completions' means":
                return completions * lengths
            case "mean over all tokens":
                return counts.tokens * times
            case "sum over tokens / (completions x constant)":
                return completions * self.constant
            case _:
                return self.constant

    def __str__(self):
        name = ALGORITHMS[self.ratio].get(self.mean, "a relative of GRPO")
        text = f"{name}: {self.ratio}"
        if self.low < 1 or self.high < math.inf:
            text += f", clip {self.low:g} below and {self.high:g} above"
        if self.dual < math.inf:
            text += f", dual clip {self.dual:g}"
        text += f", {self.mean}"
        if "constant" in self.mean:
            text += f" {self.constant:g}"
        if self.kl_weight:
            text += f", {self.kl} in the {self.place} with weight {self.kl_weight:g}"
        if self.entropy:
            text += f", entropy bonus {self.entropy:g}"
        return text


# ---- The frozen numbers

REWARDS = [
    torch.tensor(rows, dtype=torch.float64)
    for rows in (
        [[0.0, 1.0, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0], [0.25, 0.25, 1.5, 0.0]],
        [[0.0, 0.0, 0.0], [0.5, 0.501, 0.502]],
        [[3.0, 0.5], [2.0, 0.75], [0.125, 0.25]],
    )
]
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
INPUTS = {
    "advantages": ["rewards"],
    "loss": ["log_probs", "old_log_probs", "ref_log_probs", "advantages", "mask"],
}


def frozen_batches():
    """[(log_probs, old, ref, advantages, mask, step)]. Each call gives the same numbers."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for moved, *parts in STEPS:
        step = SimpleNamespace(completions=0, tokens=0, micro_batches=len(parts))
        for rows in parts:
            letters = torch.tensor([list(row.encode()) for row in rows])
            mask = letters == ord("o")  # (B, T)
            noise = torch.randn(4, *mask.shape, generator=generator, dtype=torch.float64)
            log_probs = -0.1 - noise[0].abs()
            old = log_probs - moved * noise[1]
            ref = log_probs + 0.5 * noise[2]
            advantages = noise[3, :, 0]
            batches.append((log_probs, old, ref, advantages, mask, step))
            step.completions += len(rows)
            step.tokens += mask.sum().item()
    return batches


BATCHES = frozen_batches()


# ---- The results of the adapter


def require(condition, sentence):
    """Raises SystemExit with the sentence if the condition does not hold."""
    if not condition:
        raise SystemExit(sentence)


def attempt(name, function, *arguments):
    """The result of a call of the user's code. Raises SystemExit with one sentence."""
    try:
        return function(*arguments)
    except Exception as error:
        raise SystemExit(f"{name} raises {type(error).__name__}: {error}") from error


def call(name, function, tensors, shape):
    """The result of an adapter's function, if it is a float64 tensor of that shape."""
    given = [x.clone() for x in tensors]
    result = attempt(name, function, *given)
    for label, before, after in zip(INPUTS[name], tensors, given):
        require(torch.equal(before, after), f"{name} changes {label} in place. Clone it first.")
    kind = type(result).__name__
    require(isinstance(result, torch.Tensor), f"{name} returns {kind} instead of a tensor.")
    require(
        result.shape == shape,
        f"{name} returns shape {tuple(result.shape)} instead of {tuple(shape)}.",
    )
    require(
        result.dtype == torch.float64,
        f"{name} returns {result.dtype} instead of torch.float64, the dtype of its inputs. "
        "Look for .float() and for tensors of its own.",
    )
    return result


def value_and_gradient(loss, place, whole):
    """A frozen micro-batch's loss, and the gradient with respect to its log_probs, (B, T).

    If not `whole`, the micro-batch is its own step.
    """
    log_probs, *others, step = BATCHES[place]
    log_probs = log_probs.clone().requires_grad_()

    def of_step(*tensors):
        return loss(*tensors, step if whole else None)

    value = call("loss", of_step, (log_probs, *others), ())
    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, log_probs, allow_unused=True)
    require(
        gradient is not None,
        "loss has no gradient for log_probs. Look for detach(), item() or no_grad().",
    )
    return value.detach(), gradient


@functools.cache
def expected(formula, place, whole):
    """A formula's tensors for one frozen input: (advantages,) or (value, gradient)."""
    if isinstance(formula, Advantages):
        return (formula(REWARDS[place]),)
    return value_and_gradient(formula, place, whole)


# ---- The numbers of a loss are measured on one completion whose four tokens are alike


@functools.cache
def probe(loss, log_ratio, d, advantage):
    """The loss if each token has this log(pi / pi_old) and this log(pi_ref / pi)."""
    ones = torch.ones(1, 4).double()
    log_probs = (-ones).requires_grad_()
    old = -ones - log_ratio
    ref = d - ones
    step = SimpleNamespace(completions=1, tokens=4, micro_batches=1)
    return loss(log_probs, old, ref, advantage * ones[:, 0], ones.bool(), step).item()


def terms(loss, d=1.0):
    """(the loss with entropy alone, what an advantage of 1 adds, what a KL adds).

    The old policy also takes the reference's place, because a loss may confuse the two.
    """
    rest = probe(loss, 0.0, 0.0, 0.0)
    push = probe(loss, 0.0, 0.0, 1.0) - rest
    kl = probe(loss, 0.0, d, 0.0) + probe(loss, -d, 0.0, 0.0) - 2 * rest
    return rest, push, kl


def clip_range(loss):
    """{low, high, dual}: the clip, from the loss at ratios far from 1, e^3 and e^-3."""
    _, unit, _ = terms(loss)
    if not unit:
        unit = 1.0
    largest = round(math.exp(3), 10)
    smallest = round(math.exp(-3), 10)
    above = []
    below = []
    for x, advantage in itertools.product((3.0, -3.0), (1e3, -1e3)):
        for log_ratio, d in ((x, 0.0), (0.0, x)):
            # The advantages are so large that a KL in the reward does not change their sign.
            twice = probe(loss, log_ratio, d, 2 * advantage)
            gain = twice - probe(loss, log_ratio, d, advantage)
            ratio = round(gain / unit / advantage, 10)
            if 1 < ratio < largest:
                above.append(ratio)
            elif smallest < ratio < 1:
                below.append(ratio)
    high = min(above, default=math.inf)
    dual = max(above, default=high)
    return {
        "low": round(1 - max(below, default=0.0), 12),
        "high": round(high - 1, 12),
        "dual": dual if dual > high else math.inf,
    }


def with_numbers(loss, clip, *shape):
    """The formula with the clip range, the weights and the constant of a loss."""
    formula = Loss(*shape, **clip)
    rest, push, kl = terms(loss)
    rest_of_1, push_of_1, kl_of_1 = terms(formula)
    scale = push / push_of_1
    if not scale:
        scale = 1.0
    kl_unit = kl_of_1 * scale
    if not kl_unit:
        kl_unit = 1.0
    kl_weight = max(0.0, round(kl / kl_unit, 12))
    entropy = max(0.0, round(rest / rest_of_1 / scale, 12))
    constant = 1.0
    if "constant" in formula.mean:
        constant = round(1 / abs(scale), 12)
    if not kl_weight:
        formula = replace(formula, kl="k3", place="loss")
    return replace(formula, kl_weight=kl_weight, entropy=entropy, constant=constant)


def estimators(loss):
    """The names of the KL's estimators that a loss may have."""
    kl = round(terms(loss)[2], 12)
    if not kl:
        return ["k3"]  # Without a KL, any of them will do.
    growth = terms(loss, d=2.0)[2] / kl
    match round(growth, 1):
        case 2.0:
            return ["k1"]
        case 4.0:
            return ["k2"]
        case 6.1 | 0.0:  # k3 grows by (e^2 - 3) / (e - 2). No growth is no KL.
            return ["k3"]
        case _:
            return ["k3", "k2", "k1"]


# ---- The verdict


def judge_loss(loss):
    """(right, names, text) for a function like `loss` in this file's docstring."""
    whole = "step" in inspect.signature(loss).parameters

    def with_step(*inputs):
        *tensors, step = inputs
        if whole:
            return loss(*tensors, step=step)
        return loss(*tensors)

    found = [value_and_gradient(with_step, place, whole) for place in range(len(BATCHES))]
    make = functools.partial(with_numbers, with_step, clip_range(with_step))
    shapes = itertools.product(RATIOS, MEANS, estimators(with_step), ("loss", "reward"))
    return verdict("loss", found, make, list(shapes), LOSS_MISTAKES, whole)


def judge_advantages(advantages):
    """(right, names, text) for a function like `advantages` in this file's docstring."""
    found = [(call("advantages", advantages, (rows,), rows.shape),) for rows in REWARDS]
    parts = [
        *itertools.product(("group mean", "mean of the others"), SCALES),
        ("no baseline", "no deviation"),
        ("no baseline", "mean instead of the deviation"),
    ]
    shapes = []
    for baseline, scale in parts:
        for eps in EPSILONS:
            for root in ("outside of the root", "inside of the root"):
                shapes.append((baseline, scale, eps, root))
    return verdict("advantages", found, Advantages, shapes, ADVANTAGE_MISTAKES, whole=True)


def pairs(formula, found, whole):
    """(label, the formula's tensor, yours) for all frozen inputs."""
    for place, yours in enumerate(found):
        for what, mine, your in zip(("value", "gradient"), expected(formula, place, whole), yours):
            yield f"batch {place}, {what}", mine, your


def gaps(formula, found, whole):
    """How far finite entries are apart, relative to the largest, for each frozen tensor."""
    for _, mine, your in pairs(formula, found, whole):
        apart = torch.where(your.isfinite(), (mine - your).abs(), 0.0)
        largest = mine.nan_to_num().abs().max()
        yield (apart.max() / largest.clamp(min=1e-6)).item()


def verdict(name, found, make, shapes, mistakes, whole):
    """Compare the results with each formula: (right, names, text)."""

    def agreeing(slip):
        """The first formula with this slip that agrees, or None."""
        for shape in shapes:
            formula = make(*shape, slip)
            if all(gap < 1e-9 for gap in gaps(formula, found, whole)):
                return formula

    finite = torch.cat([x.isfinite().flatten() for x in itertools.chain(*found)])
    require(finite.any(), f"{name} is NaN or infinite everywhere.")
    right = agreeing("") if finite.all() else None
    if right:
        algorithm = str(right).partition(":")[0]
        return True, [algorithm], agreement(name, right, found, whole)
    texts = {}
    for slip, consequence in mistakes.items():
        wrong = agreeing(slip)
        if wrong:
            seen = SEEN.get(slip, "a common slip")
            texts[slip] = f"{name}: {slip}. {consequence} Seen: {seen}. Otherwise it is {wrong}."
    if texts:
        return False, list(texts), "\nor ".join(texts.values())
    plain = [make(*shape, "") for shape in shapes]
    nearest = min(plain, key=lambda formula: sum(gaps(formula, found, whole)))
    text = f"{name}: neither an algorithm nor a known mistake. The nearest is {nearest}."
    return False, [], f"{text}\n{first_difference(nearest, found, whole)}"


def agreement(name, formula, found, whole):
    """The text on results that agree with a formula."""
    largest = max(gaps(formula, found, whole))
    lines = [f"{name}: agrees with {formula}.", f"The largest difference is {largest:.0e}."]
    for words, note in NOTES.items():
        if words in str(formula):
            lines.append(note)
    if not whole:
        lines.append("Each micro-batch was its own step, because loss takes no step.")
    return "\n".join(lines)


def first_difference(formula, found, whole):
    """The first entry in which a formula differs from the results, as a sentence."""
    for label, mine, your in pairs(formula, found, whole):
        apart = ~torch.isclose(your, mine, rtol=1e-9, atol=1e-12)
        if apart.any():
            entry = tuple(apart.nonzero()[0].tolist())  # () in a value
            if entry:
                label += str(list(entry))
            return (
                f"The first difference is in {label}: "
                f"yours {your[entry].item():.6g}, the formula's {mine[entry].item():.6g}."
            )
    return "No entry differs by more than 1e-12 plus 1e-9 of its size."


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapter", help="a Python file with advantages, loss, or both")
    path = parser.parse_args().adapter
    sys.path[:0] = [os.path.dirname(os.path.abspath(path)), os.getcwd()]
    adapter = attempt(path, runpy.run_path, path)
    verdicts = []
    for name, judge in (("advantages", judge_advantages), ("loss", judge_loss)):
        if name in adapter:
            verdicts.append(judge(adapter[name]))
    require(verdicts, f"{path} has neither a function advantages nor a function loss.")
    rights, _, texts = zip(*verdicts)
    print("\n\n".join(texts))
    sys.exit(not all(rights))


if __name__ == "__main__":
    main()
