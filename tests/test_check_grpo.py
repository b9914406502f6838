"""check_grpo.py: what agrees, which mistakes it names, and what it says of others' losses."""

import itertools
import re
import sys
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from adapters import ours
from torch.testing import assert_close

import check_grpo
import variants
from check_grpo import (
    ADVANTAGE_MISTAKES,
    COMPLETION,
    COMPLETIONS,
    CONSTANT,
    DPPO,
    DPPO_KL,
    EACH,
    EITHER_SIGN,
    GAMMA,
    GEOMETRIC,
    IPO,
    ITSELF,
    LOSS_MISTAKES,
    NO_RATIO,
    PAPERS,
    PRODUCT,
    REWARDS,
    TOKEN,
    TOKENS,
    WEIGHT,
    Advantages,
    Answer,
    Loss,
    expected,
    frozen_batches,
    judge_advantages,
    judge_loss,
    leaks,
)

ALL = frozenset({"step", "sampler_log_probs"})
CLIP = {"low": 0.2, "high": 0.28, "kl_weight": 0.04}
MOVED = {"low": 1.0, "fall": 0.15, "rise": 0.2, "kl_weight": 0.002}
LOSSES = {
    "GRPO": Loss(TOKEN, COMPLETIONS, **CLIP),
    "DAPO": Loss(TOKEN, TOKENS, "k1", "reward", **CLIP),
    "BNPO": Loss(TOKEN, EACH, **CLIP),
    "Dr. GRPO": Loss(TOKEN, CONSTANT, "k2", constant=20.0, **CLIP),
    "GSPO": Loss(COMPLETION, COMPLETIONS, "k3", "reward", **CLIP),
    "REINFORCE": Loss(NO_RATIO, TOKENS, "k3 with the gradient of k2", kl_weight=0.04),
    "REINFORCE, itself": Loss(ITSELF, COMPLETIONS, kl_weight=0.04),
    "GMPO": Loss(GEOMETRIC, COMPLETIONS, **CLIP),
    "CISPO": Loss(WEIGHT, TOKENS, **CLIP),
    "RLOO": Loss(NO_RATIO, CONSTANT, "k1", constant=20.0, kl_weight=0.04),
    "RLOO with a clip": Loss(PRODUCT, COMPLETIONS, "k2", "reward", **CLIP),
    "Kimi K2.5": Loss(EITHER_SIGN, TOKENS, "k2 to the sampler", **CLIP),
    "VESPO": Loss(GAMMA, TOKENS, **PAPERS[GAMMA]),
    "DPPO, verl": Loss(WEIGHT, TOKENS, drop=DPPO, high=19.0, **MOVED),
    "DPPO, KL": Loss(WEIGHT, TOKENS, drop=DPPO_KL, high=19.0, **MOVED),
    "IPO": Loss(TOKEN, TOKENS, drop=IPO, **MOVED),
    "GRPO, doubled": Loss(TOKEN, COMPLETIONS, constant=0.5, **CLIP),
}
ADVANTAGES = {
    "GRPO": Advantages("group mean", "deviation with n - 1"),
    "GRPO, root": Advantages("group mean", "deviation with n", 1e-5, "inside of the root"),
    "REINFORCE++": Advantages("batch mean", "deviation with n - 1"),
    "Dr. GRPO": Advantages("group mean", "no deviation"),
    "MaxRL": Advantages("group mean", "mean instead of the deviation", 1e-6),
    "RLOO": Advantages("mean of the others", "no deviation"),
    "REINFORCE": Advantages("no baseline", "no deviation"),
}


@cache
def judged(formula):
    if isinstance(formula, Advantages):
        return judge_advantages(formula)
    return judge_loss(formula)


def said(loss):
    return judge_loss(loss)[2]


def alike(one, other):
    frozen = frozen_batches() if isinstance(one, Loss) else REWARDS
    answer = Answer("", [expected(one, place, ALL) for place in range(len(frozen))], ALL)
    return all(gap < 1e-9 for gap in answer.gaps(other))


@pytest.mark.parametrize("name, right", [*LOSSES.items(), *ADVANTAGES.items()])
def test_each_algorithm_is_named_with_its_numbers(name, right):
    agrees, names, text = judged(right)
    assert agrees and names == [name.partition(", ")[0]]
    assert str(right).partition(": ")[2] in text or right.ratio == ITSELF


# The mistakes of the KL are planted in GRPO.
OFTEN = {name: replace(LOSSES[name], kl_weight=0.0) for name in ("GSPO", "CISPO", "RLOO")}
# In these algorithms, this is no mistake, but another algorithm or part of this one.
HARMLESS = [
    ("CISPO", "micro-batches averaged"),
    ("RLOO", "mean not subtracted"),
    ("Dr. GRPO", "mean not subtracted"),
    ("MaxRL", "mean not subtracted"),
    ("REINFORCE++", "mean not subtracted"),
    ("REINFORCE++", "variance instead of the deviation"),
    ("REINFORCE++", "no eps"),
]


@pytest.mark.parametrize(
    "name, right", [*ADVANTAGES.items(), ("GRPO", LOSSES["GRPO"]), *OFTEN.items()]
)
def test_each_mistake_is_named(name, right):
    for slip in LOSS_MISTAKES if isinstance(right, Loss) else ADVANTAGE_MISTAKES:
        wrong = replace(right, slip=slip)
        agrees, names, _ = judged(wrong)
        harmless = (name, slip) in HARMLESS or alike(wrong, right)
        assert agrees if harmless else slip in names, slip
        if slip == "no eps":  # its shift is too small to be seen
            assert "eps added after the division" not in names[:1]


@pytest.mark.parametrize(
    "mistakes, algorithms", [(LOSS_MISTAKES, LOSSES), (ADVANTAGE_MISTAKES, ADVANTAGES)]
)
def test_frozen_tensors_separate_each_pair_of_mistakes(mistakes, algorithms):
    for one, other in itertools.combinations(["", *mistakes], 2):
        assert not all(
            alike(replace(formula, slip=one), replace(formula, slip=other))
            for formula in algorithms.values()
        ), (one, other)


def gdpo(rewards):
    """TRL 1.16, normalize_then_sum, with one reward function (arXiv:2601.05242)."""
    once = ADVANTAGES["GRPO"](rewards)
    return (once - once.mean()) / (once.std() + 1e-4)


def test_a_constant_factor_of_advantages_is_a_remark():
    right, names, text = judge_advantages(gdpo)
    assert right and names == ["GRPO"]
    assert "\nTimes 1.354, 1.739, 1.291 in the test's batches." in text


# ---- The losses of TRL, with its own code

TRL = [
    ("grpo", {}, "GRPO", "ratio of each token, clip 0.2 below and 0.28 above, mean of the"),
    ("dapo", {}, "DAPO", "ratio of each token, clip 0.2 below and 0.28 above, mean over all"),
    ("dr_grpo", {}, "Dr. GRPO", "above, sum over tokens / (completions x constant) 20, "),
    # what the papers recommend, where TRL's defaults are GRPO's
    ("cispo", {"epsilon_high": 5.0}, "CISPO", "ratio as a weight, clip 1 below and 4 above, mean"),
    (
        "luspo",
        {"importance_sampling_level": "sequence"},
        "LUSPO",
        "ratio of each completion, clip 0.2 below and 0.28 above, sum over",
    ),
    ("sapo", {}, "SAPO", "soft gate of the ratio (1 for A > 0, 1.05 for A < 0), mean of the"),
    ("vespo", {}, "VESPO", "gamma weight of the completion (2, 3 for A > 0, 3, 2 for A < 0), "),
    ("bnpo", {}, "BNPO", "As in TRL's bnpo. If you meant DAPO, a token counts more"),
    ("grpo", {"off_policy_mask_threshold": 0.5}, "GRPO", "sequence mask 0.5 below and inf above"),
    ("grpo", {"delta": 4.0}, "GRPO", "dual clip 4, "),
    ("dapo", {"use_bias_correction_kl": True}, "DAPO", "k3 times the ratio in the loss"),
]


@pytest.mark.parametrize("loss_type, options, name, parts", TRL)
def test_losses_of_trl_have_their_names(loss_type, options, name, parts):
    from adapters import trl_loss

    loss = partial(trl_loss.loss, loss_type=loss_type, **options)
    right, names, text = judge_loss(loss)
    assert right and names == [name] and parts in text
    assert "in the loss with weight 0.04." in text


@pytest.mark.parametrize(
    "of, leaking",
    [
        (lambda log_probs, mask: log_probs.exp() * mask, True),  # -inf gives 0, NaN does not
        # These refuse NaN. The first leaks -inf.
        (lambda log_probs, mask: assert_close(log_probs, log_probs) or log_probs * mask, True),
        (
            lambda log_probs, mask: assert_close(log_probs, log_probs) or log_probs[mask],
            False,
        ),
    ],
)
def test_infinity_or_nan_under_the_mask_is_found_if_it_reaches_the_gradient(of, leaking):
    loss = lambda log_probs, old, ref, advantages, mask, *rest: of(log_probs, mask).sum()
    assert leaks(loss, frozen_batches()[0]) == leaking


@pytest.mark.parametrize(
    "spoil, name",
    [
        (lambda log_probs, mask: log_probs + 0 * mask.log(), "NaN under the mask"),
        (lambda log_probs, mask: log_probs / (len(mask) != 3), "NaN at tokens of completions"),
    ],
)
def test_a_loss_that_is_nan_in_part_is_told_where_and_nothing_else(spoil, name):
    def loss(log_probs, old, ref, advantages, mask, step):
        spoilt = spoil(log_probs, mask)
        return LOSSES["BNPO"](spoilt, old, ref, advantages, mask, step=step)

    assert judge_loss(loss)[1] == [name]


# ---- Losses of this repository: settings, and what the verdict says of them

RATIOS = {
    "reinforce": "no ratio",
    "grpo_no_clip": "ratio of each token",
    "grpo_clip": "ratio of each token, clip 0.2 below and 0.28 above",
    "gspo": "ratio of each completion, clip 0.2 below and 0.28 above",
    "cispo": "ratio as a weight, clip 0.2 below and 0.28 above",
    "dppo": "ratio of each token, DPPO's mask 0.2 below and 0.28 above",
    "ipo": "ratio of each token, IPO's mask 0.2 below and 0.28 above",
}
WEIGHTS = {
    "none": "",
    "token_truncate": ", weight old / sampler of each token, truncated outside of 0.5 to 2.5",
    "token_mask": ", weight old / sampler of each token, masked outside of 0.5 to 2.5",
    "sequence_truncate": (
        ", weight old / sampler of each completion, truncated outside of 0.5 to 2.5"
    ),
    "sequence_mask": ", weight old / sampler of each completion, masked outside of 0.5 to 2.5",
}
MEANS = {
    "seq-mean-token-mean": COMPLETIONS,
    "token-mean": TOKENS,
    "seq-mean-token-sum-norm": CONSTANT + " 20",
}
KLS = {"rho_k3": "k3 times the ratio", "sampler_k2": "k2 to the sampler"}


# In variants.loss ratio, weight, KL and mean never look at one another.
@pytest.mark.parametrize(
    "loss_type, mode, kl, sampler",
    [
        *[(x, *y, "none") for x in RATIOS for y in zip(MEANS, ["k1", "k2", "k3"])],
        *[("grpo_clip", "token-mean", "rho_k3", x) for x in WEIGHTS],
        ("gspo", "seq-mean-token-mean", "sampler_k2", "none"),
    ],
)
def test_losses_of_variants_are_what_their_settings_say(loss_type, mode, kl, sampler):
    config = variants.Config(
        loss_type=loss_type,
        loss_agg_mode=mode,
        kl_estimator=kl,
        sampler_correction=sampler,
        cliprange_high=0.28,
        sampler_ratio_min=0.5,
        sampler_ratio_max=2.5,
        max_tokens=20,
        kl_coef=0.04,
    )
    words = (
        f"\n{RATIOS[loss_type]}{WEIGHTS[sampler]}, {MEANS[mode]}, {KLS.get(kl, kl)} in the loss "
        "with weight 0.04.\n"
    )
    text = said(partial(ours.loss, formula=variants.loss, config=config))
    assert words in text and float(re.search(r"difference is (\S+)\.\n", text)[1]) < 1e-9


# Nor do baseline and scale in variants.advantages.
@pytest.mark.parametrize(
    "baseline, scale, words",
    [
        ("group_mean", "group", "group mean, deviation with n - 1, eps 0.0001 outside of the"),
        ("group_mean", "group_biased", "group mean, deviation with n, eps 0.0001 outside of the"),
        ("group_mean", "batch", "group mean, deviation of the batch, eps 0.0001 outside of the"),
        ("leave_one_out", "none", "mean of the others, no deviation."),
        ("none", "mean", "no baseline, mean instead of the deviation, eps 0.0001 outside of the"),
    ],
)
def test_advantages_of_variants_are_what_their_settings_say(baseline, scale, words):
    config = variants.Config(baseline=baseline, scale_rewards=scale)
    assert words in judge_advantages(lambda rewards: variants.advantages(rewards, config))[2]


@pytest.mark.parametrize("eps", [5e-4, 0.05, 3e-7])
def test_any_eps_is_measured(eps):
    text = judged(replace(ADVANTAGES["REINFORCE++"], eps=eps))[2]
    assert f"eps {eps:g} outside of the root" in text and "If you meant GRPO" in text


# ---- What its sentences say


def in_dtype(dtype, *inputs):
    """GRPO's loss, computed in this precision. It clears the mask that it got."""
    loss = LOSSES["GRPO"](*[x.to(dtype) for x in inputs])
    inputs[4].zero_()
    return loss


def test_a_loss_in_single_precision_that_changes_an_input_agrees():
    right, names, text = judge_loss(partial(in_dtype, torch.float32))
    assert right and names == ["GRPO"] and "clip 0.2 below and 0.28 above" in text


def test_bfloat16_is_suspected_of_a_small_difference():
    right, names, text = judge_loss(partial(in_dtype, torch.bfloat16))
    yours, formula = re.search(r"yours (\S+), the formula's (\S+)\.", text).groups()
    assert not right and not names and yours != formula and "Look for bfloat16" in text


def test_advantages_normalized_again_have_a_name():
    def loss(log_probs, old, ref, advantages, mask):
        a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return LOSSES["GRPO"](log_probs, old, ref, a, mask)

    assert judge_loss(loss)[1] == ["advantages normalized again over the micro-batch"]


def without_mask(log_probs, old, ref, advantages, own):
    return -((log_probs - old).tanh() * advantages[:, None]).sum()


@pytest.mark.parametrize(
    "judge, new, needed",
    [
        (judge_advantages, lambda r: r.median() - r, "a larger reward has no smaller"),
        (judge_advantages, lambda r: r * 0, "some advantage is not 0"),
        (judge_advantages, lambda r: r * torch.arange(r.shape[1]), "the completions may change"),
        (judge_loss, without_mask, "only the model's tokens have a gradient"),
        (judge_loss, lambda *x: -without_mask(*x), "a larger advantage makes no token"),
    ],
)
def test_something_new_without_what_everything_needs_is_wrong(judge, new, needed):
    right, _, text = judge(new, new=True)
    assert not right and text.startswith("✗") and f"no: {needed}" in text


@pytest.mark.parametrize("mask", [0.0, 1.0])
def test_a_loss_without_the_advantages_is_not_called_normalized_again(mask):
    def loss(log_probs, old, ref, advantages, own):
        return (mask * own * (log_probs - ref) ** 2).sum()

    assert judge_loss(loss)[1] == ["does not depend on the advantages"]


def test_blind_spots_are_said():
    assert "Not looked at: micro-batches" in said(lambda *inputs: LOSSES["GRPO"](*inputs))
    assert "Not looked at: a KL without gradient" in said(LOSSES["DAPO"])
    assert "Not looked at" not in said(LOSSES["GRPO"])


def test_an_estimator_may_round_as_float32_does():
    def new(rewards):
        centered = rewards - rewards.mean(1, True)
        return (centered / (centered.abs().mean(1, True) + 1e-4)).float()

    assert "\nyes: each group's mean is 0" in judge_advantages(new)[2]


def above_median(rewards):
    return rewards - rewards.median(dim=1, keepdim=True).values


@pytest.mark.parametrize(
    "new, lacks",
    [
        (above_median, "each group's mean is 0"),
        (lambda r: r - r.max(), "no group depends on another"),
    ],
)
def test_a_new_estimator_is_told_what_it_lacks(new, lacks):
    assert "on purpose: --new" in judge_advantages(new)[2]
    right, _, text = judge_advantages(new, new=True)
    assert right and text.startswith("✓ advantages: new\n") and f"\nno: {lacks}" in text


# ---- Bad adapters


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda loss: loss[None], "return a float64 tensor of shape ()."),
        (lambda loss: loss.long(), "return a float64 tensor of shape ()."),
        (lambda loss: loss.item(), "return a float64 tensor of shape ()."),
        (lambda loss: loss.detach(), "no gradient"),
        (lambda loss: loss * torch.nan, "NaN or infinite everywhere"),
    ],
)
def test_a_bad_adapter_gets_a_sentence(change, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        judge_loss(lambda *inputs: change(LOSSES["GRPO"](*inputs)))


RIGHT = "def advantages(rewards):\n    return rewards - rewards.mean(dim=1, keepdim=True)\n"


@pytest.mark.parametrize(
    "text, said",
    [
        (RIGHT, "✓ advantages: agrees with Dr. GRPO"),
        (RIGHT.replace("- r", "+ r"), "neither an algorithm nor a known mistake"),
        ("x = 1", "neither a function"),
        ("exit(1)", "The adapter calls exit."),
        ("def advantages(rewards):\n    exit()", "The adapter calls exit."),
        (None, "There is no file"),
    ],
)
def test_the_command_exits_with_0_only_if_all_is_right(text, said, tmp_path, monkeypatch, capsys):
    file = tmp_path / "my_adapter.py"
    if text:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["check_grpo.py", str(file)])
    with pytest.raises(SystemExit) as end:
        check_grpo.main()
    out = capsys.readouterr().out
    assert said in out + str(end.value.code)
    assert max(map(len, out.splitlines()), default=0) <= 80
    assert (end.value.code == 0) == ("✓" in out)
