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

# name: (its consequence, where it was seen)
ADVANTAGE_MISTAKES = {
    "batch instead of the group": (
        "An easy prompt's completions all go up and a hard prompt's all go down.",
        "XU-YIJIE/grpo-flat #2, fla-org/flash-linear-attention #1073",
    ),
    "groups along the wrong dimension": (
        "Completions of different prompts are compared with each other.",
        "a common slip",
    ),
    "rewards grouped in another order": (
        "The groups mix prompts, because completions are not stored prompt by prompt.",
        "StarsfieldAI/R1-V #67",
    ),
    "mean not subtracted": (
        "Each completion with a reward above 0 goes up, even the worst of its group.",
        "a common slip",
    ),
    "own reward counted among the others": (
        "The sum of the others is divided by n, so the baseline is too small.",
        "a common slip",
    ),
    "variance instead of the deviation": (
        "If all rewards are half as large, the advantages are twice as large.",
        "a common slip",
    ),
    "brackets forgotten": (
        "r - mean / std is not centred: the group's advantages do not sum to 0.",
        "a common slip",
    ),
    "eps added after the division": (
        "Each advantage is shifted by eps, and a group of equal rewards gives NaN.",
        "a common slip",
    ),
    "no eps": (
        "A group of equal rewards gives 0 / 0, and NaN reaches every weight.",
        "a common slip",
    ),
    "normalized twice": (
        "The second normalization, over the batch, undoes the comparison within the group.",
        "axon-rl/gem PR #113",
    ),
    "sign of the advantage turned": (
        "The policy learns to avoid reward.",
        "a common slip",
    ),
}
LOSS_MISTAKES = {
    "mask one token late": (
        "Each completion's first token is left out, and one token after its end is trained on.",
        "Goekdeniz-Guelmez/mlx-lm-lora #80",
    ),
    "mask one token early": (
        "The prompt's last token is trained on, and the end token is left out.",
        "a common slip",
    ),
    "end token left out": (
        "The policy gets no signal about when to stop.",
        "mll-lab-nu/RAGEN #59, rasbt/reasoning-from-scratch PR #185",
    ),
    "prompt counted": (
        "The policy is trained on tokens that it did not write.",
        "TIGER-AI-Lab/verl-tool #116",
    ),
    "padding counted": (
        "Tokens after the end are trained on, so short completions count like long ones.",
        "bingreeky/MemGen PR #33",
    ),
    "tokens of a tool counted": (
        "The policy learns to write the tool's answers itself.",
        "a common slip",
    ),
    "mask not used": (
        "Prompt and padding are trained on, and count as tokens.",
        "Tencent-Hunyuan/UniRL PR #409",
    ),
    "mask only in the denominator": (
        "Prompt and padding are trained on.",
        "huggingface/trl PR #6654",
    ),
    "padding in the denominator": (
        "The longest completion of a micro-batch decides how large the step is.",
        "NovaSky-AI/SkyRL PR #462, McGill-NLP/nano-aha-moment",
    ),
    "mean over rows, then over tokens": (
        "A token counts more at a position that few completions reach.",
        "a common slip",
    ),
    "micro-batches averaged": (
        "A token counts more if its micro-batch has few tokens.",
        "allenai/open-instruct PR #1161, verl-project/verl PR #906",
    ),
    "micro-batches added up": (
        "The gradient grows with the number of micro-batches.",
        "huggingface/trl PR #3716",
    ),
    "divided by the micro-batches twice": (
        "The gradient shrinks with the number of micro-batches.",
        "modelscope/ms-swift #10117",
    ),
    "ratio of the policy to itself": (
        "The ratio is always 1: nothing is clipped. Correct for one optimizer step per batch.",
        "meta-pytorch/torchforge PR #571, xiaomi-research/time-r1 #20",
    ),
    "both terms of the ratio have a gradient": (
        "Their gradients cancel, so the reward never reaches the weights.",
        "Goekdeniz-Guelmez/mlx-lm-lora #55",
    ),
    "ratio without gradient": (
        "The reward never reaches the weights.",
        "a common slip",
    ),
    "ratio upside down": (
        "The ratio is old / new, so the policy learns to avoid reward.",
        "a common slip",
    ),
    "ratio to the reference": (
        "The clip holds the policy near the reference and freezes it there.",
        "huggingface/trl PR #2837",
    ),
    "old and reference swapped": (
        "The clip is around the reference, and the KL penalty pulls to the last policy.",
        "a common slip",
    ),
    "minimum taken before the advantage": (
        "For a negative advantage the clip acts at the wrong end of the range.",
        "rasbt/reasoning-from-scratch",
    ),
    "clip without the minimum": (
        "A token outside of the range has no gradient, so a wrong step cannot be undone.",
        "a common slip",
    ),
    "maximum instead of the minimum": (
        "The clip stops steps that undo a mistake, but no step that goes too far.",
        "a common slip",
    ),
    "sign of the policy term turned": (
        "The policy learns to avoid reward.",
        "fla-org/flash-linear-attention #1073",
    ),
    "ratio of the completion not length-normalized": (
        "The product of the tokens' ratios leaves the clip range in any long completion.",
        "walkinglabs/hands-on-modern-rl #75",
    ),
    "arithmetic mean of the ratios": (
        "One token with a large ratio decides the ratio of the completion.",
        "a common slip",
    ),
    "weight with gradient": (
        "The clipped ratio should be a constant, but its gradient is added to log pi's.",
        "a common slip",
    ),
    "probability instead of its logarithm": (
        "Unlikely tokens have almost no gradient.",
        "a common slip",
    ),
    "sign of the KL penalty turned": (
        "The policy is rewarded for leaving the reference, and collapses.",
        "qiancheng0/ToolRL #52, mll-lab-nu/RAGEN #58",
    ),
    "k3 with d turned": (
        "On samples of the policy its mean is not the KL, and its gradient grows like pi / pi_ref.",
        "ml-explore/mlx-examples PR #1233, natolambert/rlhf-book (approx_kl3)",
    ),
    "KL without gradient": (
        "The penalty is in the logged loss, but restrains nothing.",
        "allenai/open-instruct #530",
    ),
    "KL of prompt and padding": (
        "The penalty counts tokens that the policy did not write.",
        "allenai/open-instruct PR #535",
    ),
    "sign of the entropy bonus turned": (
        "Entropy is minimized, and the policy stops exploring.",
        "PKU-Alignment/omnisafe PR #133",
    ),
}
ALGORITHMS = {
    ("group mean", "deviation with n - 1"): "GRPO",
    ("group mean", "deviation with n"): "GRPO",
    ("group mean", "no deviation"): "Dr. GRPO",
    ("group mean", "mean instead of the deviation"): "MaxRL",
    ("group mean", "deviation of the batch"): "GRPO",
    ("group mean", "deviation of the batch after the baseline"): "REINFORCE++ with a baseline",
    ("mean of the others", "no deviation"): "RLOO",
    ("no baseline", "no deviation"): "REINFORCE",
    ("ratio of each token", "mean of the completions' means"): "GRPO",
    ("ratio of each token", "mean over all tokens"): "DAPO",
    ("ratio of each token", "sum over tokens / (completions x constant)"): "Dr. GRPO",
    ("ratio of each completion", "mean of the completions' means"): "GSPO",
    ("ratio as a weight", "mean over all tokens"): "CISPO",
    ("no ratio", "mean of the completions' means"): "REINFORCE",
    ("no ratio", "mean over all tokens"): "REINFORCE",
    ("no ratio", "sum over tokens / (completions x constant)"): "RLOO",
    ("no ratio", "sum over tokens / constant"): "REINFORCE",
}
NOTES = {
    "no deviation": "If you meant GRPO, the deviation has no effect, as in Open-Reasoner-Zero #75.",
    "k1 in the loss": "k1's gradient does not depend on the reference, so it restrains nothing.",
}


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
        r = {
            "batch instead of the group": rewards.reshape(1, -1),
            "groups along the wrong dimension": rewards.T,
            "rewards grouped in another order": rewards.T.reshape(m, n),
        }.get(self.slip, rewards)
        mean = r.mean(dim=1, keepdim=True)
        others = r.sum(dim=1, keepdim=True) - r
        baselines = {
            "group mean": mean,
            "mean of the others": others / (r.shape[1] - 1),
            "no baseline": torch.zeros_like(mean),
            "mean not subtracted": torch.zeros_like(mean),
            "own reward counted among the others": others / r.shape[1],
        }
        baseline = baselines.get(self.slip, baselines[self.baseline])
        variance = {
            "deviation with n - 1": r.var(dim=1, keepdim=True),
            "deviation with n": r.var(dim=1, keepdim=True, correction=0),
            "deviation of the batch": rewards.var(),
            "deviation of the batch after the baseline": (r - baseline).var(),
            "no deviation": torch.ones_like(mean),
            "mean instead of the deviation": mean**2,
        }[self.scale]
        eps = self.eps * (self.scale != "no deviation")
        deviations = {
            "outside of the root": variance.sqrt() + eps,
            "inside of the root": (variance + eps).sqrt(),
            "variance instead of the deviation": variance + eps,
        }
        deviation = deviations.get(self.slip, deviations[self.root])
        quotient = (r - baseline) / deviation
        # Equal rewards give 0 / 0, which counts as 0. There are ways to get 0 even without eps.
        result = torch.where(quotient.isnan(), 0.0, quotient)
        return {
            "brackets forgotten": r - baseline / deviation,
            # An eps too small to be seen counts as no eps: NaN agrees with nothing.
            "eps added after the division": (r - baseline) / variance.sqrt()
            + (self.eps if self.eps > 5e-9 else math.nan),
            "no eps": quotient,
            "sign of the advantage turned": -result,
            "normalized twice": (result - result.mean()) / (result.std() + self.eps),
            "batch instead of the group": result.reshape(m, n),
            "groups along the wrong dimension": result.T,
            "rewards grouped in another order": result.reshape(n, m).T,
        }.get(self.slip, result)

    def __str__(self):
        name = ALGORITHMS.get((self.baseline, self.scale), "a relative of GRPO")
        text = f"{name}: {self.baseline}, {self.scale}"
        return text if self.scale == "no deviation" else f"{text}, eps {self.eps:g} {self.root}"


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
        seen = mask.cumsum(dim=1)  # tokens up to here, (B, T)
        left = mask.flip(1).cumsum(dim=1).flip(1)  # tokens from here on
        mask = {
            "mask one token late": F.pad(mask, (1, 0))[:, :-1],
            "mask one token early": F.pad(mask, (0, 1))[:, 1:],
            "end token left out": mask & (left > 1),
            "prompt counted": mask | (seen == 0),
            "padding counted": mask | (left == 0),
            "tokens of a tool counted": (seen > 0) & (left > 0),
            "mask not used": torch.ones_like(mask),
        }.get(self.slip, mask)
        lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        # rho = pi / pi_old, for each token or for the completion
        log_ratio = log_probs - {
            "ratio of the policy to itself": log_probs.detach(),
            "both terms of the ratio have a gradient": log_probs,
            "ratio to the reference": ref,
            "old and reference swapped": ref,
        }.get(self.slip, old)
        ratio = log_ratio.exp()
        if self.ratio == "ratio of each completion":
            total = (log_ratio * mask).sum(dim=1, keepdim=True)
            ratios = {
                "ratio of the completion not length-normalized": total.exp(),
                "arithmetic mean of the ratios": (ratio * mask).sum(1, keepdim=True) / lengths,
            }
            ratio = ratios.get(self.slip, (total / lengths).exp())
        ratio = {
            "ratio without gradient": ratio.detach(),
            "ratio upside down": 1 / ratio,
        }.get(self.slip, ratio)
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        # d = log pi_ref - log pi
        d = {
            "old and reference swapped": old - log_probs,
            "k3 with d turned": log_probs - ref,
        }.get(self.slip, ref - log_probs)
        kl = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d}[self.kl] * self.kl_weight
        a = advantages[:, None] - kl.detach() * (self.place == "reward")  # (B, T)
        surrogate = {
            "clip without the minimum": clipped * a,
            "minimum taken before the advantage": torch.minimum(ratio, clipped) * a,
            "maximum instead of the minimum": torch.maximum(ratio * a, clipped * a),
        }.get(self.slip, torch.minimum(ratio * a, clipped * a))
        surrogate = torch.where(a < 0, torch.maximum(surrogate, self.dual * a), surrogate)
        gains = {
            "ratio as a weight": clipped.detach() * a * log_probs,
            "no ratio": a * log_probs,
            ("ratio as a weight", "weight with gradient"): clipped * a * log_probs,
            ("no ratio", "probability instead of its logarithm"): a * log_probs.exp(),
        }
        gain = gains.get((self.ratio, self.slip), gains.get(self.ratio, surrogate))
        kl = {
            "sign of the KL penalty turned": -kl,
            "KL without gradient": kl.detach(),
        }.get(self.slip, kl) * (self.place == "loss")
        bonus = -self.entropy * log_probs
        loss = {
            "sign of the policy term turned": gain + kl - bonus,
            "sign of the entropy bonus turned": -gain + kl + bonus,
        }.get(self.slip, -gain + kl - bonus)  # (B, T)
        loss = {
            "KL of prompt and padding": loss * mask + kl * ~mask,
            "mask only in the denominator": loss,
        }.get(self.slip, loss * mask)
        # The denominators count the whole step.
        step = step or SimpleNamespace(completions=len(mask), tokens=mask.sum(), micro_batches=1)
        completions, tokens = {
            "micro-batches averaged": (
                len(mask) * step.micro_batches,
                mask.sum() * step.micro_batches,
            ),
            "micro-batches added up": (len(mask), mask.sum()),
            "divided by the micro-batches twice": (
                step.completions * step.micro_batches,
                step.tokens * step.micro_batches,
            ),
        }.get(self.slip, (step.completions, step.tokens))
        reached = mask.sum(dim=0)  # completions that reach a position, (T,)
        divisors = {
            "mean of the completions' means": completions * lengths,
            "mean over all tokens": tokens,
            "sum over tokens / (completions x constant)": completions * self.constant,
            "sum over tokens / constant": self.constant,
            "padding in the denominator": completions * mask.shape[1],
            "mean over rows, then over tokens": step.micro_batches
            * reached.clamp(min=1)
            * (reached > 0).sum(),
        }
        return (loss / divisors.get(self.slip, divisors[self.mean])).sum()

    def __str__(self):
        numbers = {
            f", clip {self.low:g} below and {self.high:g} above": self.low < 1
            or self.high < math.inf,
            f", dual clip {self.dual:g}": self.dual < math.inf,
            f", {self.mean}": True,
            f" {self.constant:g}": "constant" in self.mean,
            f", {self.kl} in the {self.place} with weight {self.kl_weight:g}": self.kl_weight,
            f", entropy bonus {self.entropy:g}": self.entropy,
        }
        name = ALGORITHMS.get((self.ratio, self.mean), "a relative of GRPO")
        return f"{name}: {self.ratio}" + "".join(x for x, present in numbers.items() if present)


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
        rows = sum(parts, [])
        step = SimpleNamespace(
            completions=len(rows), tokens="".join(rows).count("o"), micro_batches=len(parts)
        )
        for rows in parts:
            mask = torch.tensor([list(row.encode()) for row in rows]) == ord("o")
            noise = torch.randn(4, *mask.shape, generator=generator, dtype=torch.float64)
            log_probs = -0.1 - noise[0].abs()
            policies = [log_probs, log_probs - moved * noise[1], log_probs + 0.5 * noise[2]]
            batches.append((*policies, noise[3, :, 0], mask, step))
    return batches


BATCHES = frozen_batches()


# ---- The results of the adapter


def require(condition, sentence):
    if not condition:
        raise SystemExit(sentence)


def attempt(name, function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        raise SystemExit(f"{name} raises {type(error).__name__}: {error}") from error


def call(name, function, arguments, shape):
    """The result of an adapter's function, if it is a float64 tensor of that shape."""
    given = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    result = attempt(name, function, *given)
    for label, before, after in zip(INPUTS[name], arguments, given):
        require(torch.equal(before, after), f"{name} changes {label} in place. Clone it first.")
    require(
        isinstance(result, torch.Tensor),
        f"{name} returns {type(result).__name__} instead of a tensor.",
    )
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


def value_and_gradient(loss, batch):
    """A micro-batch's loss, and the gradient with respect to its log_probs, (B, T)."""
    log_probs = batch[0].clone().requires_grad_()
    value = call("loss", loss, (log_probs, *batch[1:]), ())
    (gradient,) = (
        torch.autograd.grad(value, log_probs, allow_unused=True) if value.requires_grad else [None]
    )
    require(
        gradient is not None,
        "loss has no gradient for log_probs. Look for detach(), item() or no_grad().",
    )
    return value.detach(), gradient


@functools.cache
def expected(formula, place, whole):
    """A formula's numbers on frozen inputs. If not `whole`, each micro-batch is its own step."""
    if isinstance(formula, Advantages):
        return (formula(REWARDS[place]),)
    return value_and_gradient(formula, (*BATCHES[place][:5], BATCHES[place][5] if whole else None))


# ---- The numbers of a loss are measured on one completion whose four tokens are alike


@functools.cache
def probe(loss, log_ratio, d, advantage):
    """The loss if each token has this log(pi / pi_old) and this log(pi_ref / pi)."""
    ones = torch.ones(1, 4, dtype=torch.float64)
    log_probs = (-ones).requires_grad_()
    step = SimpleNamespace(completions=1, tokens=4, micro_batches=1)
    others = (-ones - log_ratio, -ones + d)
    return loss(log_probs, *others, advantage * ones[:, 0], ones.bool(), step).item()


def terms(loss, d=1.0):
    """(the loss with entropy alone, what an advantage of 1 adds, what a KL adds).

    The old policy also takes the reference's place, because a loss may confuse the two.
    """
    rest = probe(loss, 0.0, 0.0, 0.0)
    kl = probe(loss, 0.0, d, 0.0) + probe(loss, -d, 0.0, 0.0) - 2 * rest
    return rest, probe(loss, 0.0, 0.0, 1.0) - rest, kl


def clip_range(loss):
    """{low, high, dual}: the clip, from the loss at ratios far from 1, e^3 and e^-3."""
    unit = terms(loss)[1] or 1.0
    ratios = []
    for sign, x in itertools.product((-1.0, 1.0), (3.0, -3.0)):
        for log_ratio, d in ((x, 0.0), (0.0, x)):
            # The advantages are so large that a KL in the reward does not change their sign.
            gain = probe(loss, log_ratio, d, 2e3 * sign) - probe(loss, log_ratio, d, 1e3 * sign)
            ratios.append(round(gain / unit / sign / 1e3, 10))
    above = [ratio for ratio in ratios if 1 < ratio < round(math.exp(3), 10)]
    below = [ratio for ratio in ratios if round(math.exp(-3), 10) < ratio < 1]
    high = min(above, default=math.inf)
    return {
        "low": round(1 - max(below, default=0.0), 12),
        "high": round(high - 1, 12),
        "dual": max(above) if len(set(above)) > 1 else math.inf,
    }


def with_numbers(loss, clip, *shape):
    """The formula with the clip range, the weights and the constant of a loss."""
    formula = Loss(*shape, **clip)
    rest, push, kl = terms(loss)
    rest_of_1, push_of_1, kl_of_1 = terms(formula)
    scale = push / push_of_1 or 1.0
    kl_weight = max(0.0, round(kl / (kl_of_1 * scale or 1.0), 12))
    return replace(
        formula,
        kl=formula.kl if kl_weight else "k3",
        place=formula.place if kl_weight else "loss",
        kl_weight=kl_weight,
        entropy=max(0.0, round(rest / rest_of_1 / scale, 12)),
        constant=round(1 / abs(scale), 12) if "constant" in formula.mean else 1.0,
    )


# ---- The verdict


def judge_loss(loss):
    """(right, names, text) for a function like `loss` in this file's docstring."""
    whole = "step" in inspect.signature(loss).parameters

    def with_step(*inputs):
        return loss(*inputs[:5], **({"step": inputs[5]} if whole else {}))

    found = [value_and_gradient(with_step, batch) for batch in BATCHES]
    make = functools.partial(with_numbers, with_step, clip_range(with_step))
    # The growth of a KL with d tells k1 from k2 and k3. Without a KL, any of them will do.
    growth = terms(with_step, 2.0)[2] / (round(terms(with_step)[2], 12) or math.inf)
    # 6.1 is (e^2 - 3) / (e - 2).
    kls = {2.0: ["k1"], 4.0: ["k2"], 6.1: ["k3"], 0.0: ["k3"]}.get(
        round(growth, 1), ["k3", "k2", "k1"]
    )
    ratios = ("ratio of each token", "ratio of each completion", "ratio as a weight", "no ratio")
    means = {mean: None for ratio, mean in ALGORITHMS if "ratio" in ratio}
    shapes = list(itertools.product(ratios, means, kls, ("loss", "reward")))
    return verdict("loss", found, make, shapes, LOSS_MISTAKES, whole)


def judge_advantages(advantages):
    """(right, names, text) for a function like `advantages` in this file's docstring."""
    found = [(call("advantages", advantages, (rows,), rows.shape),) for rows in REWARDS]
    scales = [scale for baseline, scale in ALGORITHMS if baseline == "group mean"]
    epsilons = [0.0, *(10.0**-i for i in range(10, 0, -1))]
    roots = ("outside of the root", "inside of the root")
    shapes = [
        *itertools.product(("group mean", "mean of the others"), scales, epsilons, roots),
        *itertools.product(["no baseline"], scales[2:4], epsilons, roots),
    ]
    return verdict("advantages", found, Advantages, shapes, ADVANTAGE_MISTAKES, whole=True)


def verdict(name, found, make, shapes, mistakes, whole):
    """Compare the results with each formula: (right, names, text)."""

    def gaps(formula):
        """How far finite entries are apart, relative to the largest, for each frozen tensor."""
        for place, yours in enumerate(found):
            for mine, your in zip(expected(formula, place, whole), yours):
                apart = torch.where(your.isfinite(), (mine - your).abs(), 0.0)
                yield (apart.max() / mine.nan_to_num().abs().max().clamp(min=1e-6)).item()

    def agrees(formula):
        return all(gap < 1e-9 for gap in gaps(formula))

    finite = torch.cat([your.isfinite().flatten() for yours in found for your in yours])
    require(finite.any(), f"{name} is NaN or infinite everywhere.")
    plain = [make(*shape, "") for shape in shapes]
    right = [formula for formula in plain if finite.all() and agrees(formula)]
    if right:
        lines = [
            f"{name}: agrees with {right[0]}.",
            f"The largest difference is {max(gaps(right[0])):.0e}.",
            *(note for words, note in NOTES.items() if words in str(right[0])),
            *([] if whole else ["Each micro-batch was its own step, because loss takes no step."]),
        ]
        return True, [str(right[0]).partition(":")[0]], "\n".join(lines)
    texts = {}
    for slip, (consequence, seen) in mistakes.items():
        wrong = next(filter(agrees, (make(*shape, slip) for shape in shapes)), None)
        if wrong:
            texts[slip] = f"{name}: {slip}. {consequence} Seen: {seen}. Otherwise it is {wrong}."
    if texts:
        return False, list(texts), "\nor ".join(texts.values())
    nearest = min(plain, key=lambda formula: sum(gaps(formula)))
    lines = [
        f"{name}: neither an algorithm nor a known mistake. The nearest is {nearest}.",
        first_difference(nearest, found, whole),
    ]
    return False, [], "\n".join(lines)


def first_difference(formula, found, whole):
    """The first entry in which a formula differs from the results, as a sentence."""
    for place, yours in enumerate(found):
        for what, mine, your in zip(("value", "gradient"), expected(formula, place, whole), yours):
            apart = ~torch.isclose(your, mine, rtol=1e-9, atol=1e-12)
            if apart.any():
                spot = tuple(apart.nonzero()[0].tolist())
                return (
                    f"The first difference is in batch {place}, {what}{list(spot) or ''}: "
                    f"yours {your[spot].item():.6g}, the formula's {mine[spot].item():.6g}."
                )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapter", help="a Python file with advantages, loss, or both")
    path = parser.parse_args().adapter
    sys.path[:0] = [os.path.dirname(os.path.abspath(path)), os.getcwd()]
    adapter = attempt(path, runpy.run_path, path)
    judges = {"advantages": judge_advantages, "loss": judge_loss}
    verdicts = [judge(adapter[name]) for name, judge in judges.items() if name in adapter]
    require(verdicts, f"{path} has neither a function advantages nor a function loss.")
    print("\n\n".join(text for right, names, text in verdicts))
    sys.exit(not all(right for right, names, text in verdicts))


if __name__ == "__main__":
    main()
