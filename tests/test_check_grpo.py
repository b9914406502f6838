"""check_grpo.py: what agrees, which mistakes it names, and what it says of others' losses."""

import itertools
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import check_grpo
import variants
from check_grpo import (
    ADVANTAGE_MISTAKES,
    BATCHES,
    COMPLETION,
    COMPLETIONS,
    CONSTANT,
    DPPO,
    DPPO_KL,
    EITHER_SIGN,
    GAMMA,
    GATE,
    GEOMETRIC,
    IPO,
    ITSELF,
    LOSS_MISTAKES,
    NO_RATIO,
    PRODUCT,
    REWARDS,
    SEQUENCES,
    TOKEN,
    TOKENS,
    WEIGHT,
    Advantages,
    Loss,
)

ROOT = Path(__file__).parents[1]
CLIP = {"low": 0.2, "high": 0.28, "kl_weight": 0.04}
MOVED = {"low": 1.0, "fall": 0.15, "rise": 0.2, "kl_weight": 0.002}
LOSSES = {
    "GRPO": Loss(TOKEN, COMPLETIONS, "k3", "loss", **CLIP),
    "DAPO": Loss(TOKEN, TOKENS, "k1", "reward", **CLIP),
    "Dr. GRPO": Loss(TOKEN, CONSTANT, "k2", "loss", constant=20.0, **CLIP),
    "GSPO": Loss(COMPLETION, COMPLETIONS, "k3", "reward", **CLIP),
    "LUSPO": Loss(COMPLETION, CONSTANT, "k3 times the ratio", "loss", **CLIP),
    "REINFORCE": Loss(NO_RATIO, TOKENS, "k3 with the gradient of k2", "loss", kl_weight=0.04),
    "REINFORCE, itself": Loss(ITSELF, COMPLETIONS, "k3", "loss", kl_weight=0.04),
    "GMPO": Loss(GEOMETRIC, COMPLETIONS, "k3", "loss", **CLIP),
    "CISPO": Loss(WEIGHT, TOKENS, "k3", "loss", **CLIP),
    "RLOO": Loss(NO_RATIO, CONSTANT, "k1", "loss", constant=20.0, kl_weight=0.04),
    "RLOO with a clip": Loss(PRODUCT, COMPLETIONS, "k2", "reward", **CLIP),
    "Kimi K2.5": Loss(EITHER_SIGN, TOKENS, "k2 to the sampler", "loss", **CLIP),
    "SAPO": Loss(GATE, COMPLETIONS, "k3", "loss", positive=(1.0,), negative=(1.05,)),
    "VESPO": Loss(GAMMA, TOKENS, "k3", "loss", positive=(2.0, 3.0), negative=(3.0, 2.0)),
    "DPPO": Loss(TOKEN, TOKENS, "k2 to the sampler", "loss", DPPO, **MOVED),
    "DPPO, verl": Loss(WEIGHT, TOKENS, "k3", "loss", DPPO, high=19.0, **MOVED),
    "DPPO, KL": Loss(WEIGHT, TOKENS, "k3", "loss", DPPO_KL, high=19.0, **MOVED),
    "IPO": Loss(TOKEN, TOKENS, "k3", "loss", IPO, **MOVED),
    "GRPO, masked": Loss(TOKEN, COMPLETIONS, "k3", "loss", SEQUENCES, fall=0.5, **CLIP),
    "GRPO, doubled": Loss(TOKEN, COMPLETIONS, "k3", "loss", constant=0.5, **CLIP),
}
ALL = frozenset({"sampler_log_probs", "step"})
ADVANTAGES = {
    "GRPO": Advantages("group mean", "deviation with n - 1", 1e-4),
    "GRPO, root": Advantages("group mean", "deviation with n", 1e-5, "inside of the root"),
    "REINFORCE++": Advantages("batch mean", "deviation with n - 1", 1e-4),
    "Dr. GRPO": Advantages("group mean", "no deviation", 1e-4),
    "MaxRL": Advantages("group mean", "mean instead of the deviation", 1e-6),
    "RLOO": Advantages("mean of the others", "no deviation", 1e-4),
    "REINFORCE": Advantages("no baseline", "no deviation", 1e-4),
}
# mistakes: the published methods nearest to them, which are right
NEAREST = [
    (
        ADVANTAGES,
        {
            "REINFORCE++": ["groups along the wrong dimension", "rewards grouped in another order"],
            "REINFORCE": ["mean not subtracted"],
            "MaxRL": ["variance instead of the deviation"],
            "RLOO": ["brackets forgotten", "sign of the advantage turned"],
            "GRPO, root": ["eps added after the division"],
            "Dr. GRPO": ["no eps"],
        },
    ),
    (
        LOSSES,
        {
            "GRPO": [
                "mask one token late",
                "mask one token early",
                "end token left out",
                "prompt counted",
                "padding counted",
                "tokens of a tool counted",
                "mask not used",
                "mask only in the denominator",
                "sign of the policy term turned",
                "length divided twice",
            ],
            "GRPO, doubled": [
                "micro-batches averaged",
                "micro-batches added up",
                "divided by the micro-batches twice",
            ],
            "Dr. GRPO": ["padding in the denominator", "KL without gradient"],
            "DAPO": ["mean over rows, then over tokens", "sign of the KL penalty turned"],
            "REINFORCE, itself": [
                "ratio without gradient",
            ],
            "RLOO with a clip": ["ratio upside down"],
            "IPO": ["ratio to the reference", "KL of prompt and padding"],
            "Kimi K2.5": ["old and reference swapped", "maximum instead of the minimum"],
            "VESPO": ["weight with gradient"],
            "REINFORCE": ["probability instead of its logarithm", "k3 with d turned"],
        },
    ),
]


def mistaken(formula, slip):
    if slip == "no eps":
        formula = replace(formula, eps=0.0)
    return replace(formula, slip=slip)


def judged(formula):
    if isinstance(formula, Advantages):
        return check_grpo.judge_advantages(formula)
    return check_grpo.judge_loss(formula)


def said(loss):
    return check_grpo.judge_loss(loss)[2]


def exactly(text):
    """The text, if it says that a result in float64 is the formula's to 1e-9."""
    return text if float(re.search(r"difference is (\S+)\.\n", text)[1]) < 1e-9 else ""


def alike(one, other):
    frozen = BATCHES if isinstance(one, Loss) else REWARDS
    found = [check_grpo.expected(one, place, ALL) for place in range(len(frozen))]
    return all(gap < 1e-9 for gap in check_grpo.gaps(other, found, ALL))


@pytest.mark.parametrize("name, right", [*LOSSES.items(), *ADVANTAGES.items()])
def test_each_algorithm_is_named_with_its_numbers(name, right):
    agrees_, names, text = judged(right)
    assert agrees_ and names == [name.partition(", ")[0]]
    assert agrees(right) in text or right.ratio == ITSELF


@pytest.mark.parametrize("methods, nearest", NEAREST)
def test_each_mistake_has_a_published_method_nearest_to_it_that_is_right(methods, nearest):
    mistakes = LOSS_MISTAKES if methods is LOSSES else ADVANTAGE_MISTAKES
    assert sorted(itertools.chain(*nearest.values())) == sorted(mistakes)
    for name, slips in nearest.items():
        for slip in slips:
            assert not alike(mistaken(methods["GRPO"], slip), methods[name])


OFTEN = ["GRPO", "DAPO", "GSPO", "CISPO", "RLOO"]
# In these algorithms, this is no mistake, but another algorithm or part of this one.
HARMLESS = [
    ("RLOO", "length divided twice"),
    ("RLOO", "mean not subtracted"),
    ("Dr. GRPO", "mean not subtracted"),
    ("MaxRL", "mean not subtracted"),
    ("REINFORCE++", "mean not subtracted"),
    ("REINFORCE++", "variance instead of the deviation"),
    ("REINFORCE++", "no eps"),
]


@pytest.mark.parametrize("name", OFTEN)
def test_each_mistake_in_a_loss_is_named(name):
    named_where_it_is_one(name, LOSSES[name], LOSS_MISTAKES)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_each_mistake_in_advantages_is_named(name):
    named_where_it_is_one(name, ADVANTAGES[name], ADVANTAGE_MISTAKES)


def named_where_it_is_one(name, right, mistakes):
    for slip in mistakes:
        wrong = mistaken(right, slip)
        agrees_, names, _ = judged(wrong)
        harmless = (name, slip) in HARMLESS or alike(wrong, right)
        assert agrees_ if harmless else slip in names, slip


@pytest.mark.parametrize(
    "mistakes, algorithms", [(LOSS_MISTAKES, LOSSES), (ADVANTAGE_MISTAKES, ADVANTAGES)]
)
def test_frozen_tensors_separate_each_pair_of_mistakes(mistakes, algorithms):
    for one, other in itertools.combinations(["", *mistakes], 2):
        assert not all(
            alike(mistaken(formula, one), mistaken(formula, other))
            for formula in algorithms.values()
        ), (one, other)


def gdpo(rewards, eps=1e-4):
    """TRL 1.16, normalize_then_sum, with one reward function (arXiv:2601.05242)."""
    once = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(1, keepdim=True) + eps)
    return (once - once.mean()) / (once.std() + eps)


@pytest.mark.parametrize(
    "advantages, name, times",
    [
        (gdpo, "GRPO", "1.354, 1.739, 1.291"),
        (lambda rewards: 3 * ADVANTAGES["MaxRL"](rewards), "MaxRL", "3, 3, 3"),
    ],
)
def test_a_constant_factor_of_advantages_is_a_remark(advantages, name, times):
    right, names, text = check_grpo.judge_advantages(advantages)
    assert right and names == [name] and f"\nTimes {times} in the test's batches." in text


# ---- The losses of TRL, with its own code

TRL = [
    ("grpo", {}, "GRPO", "ratio of each token, clip 0.2 below and 0.28 above, mean of the"),
    ("dapo", {}, "DAPO", "ratio of each token, clip 0.2 below and 0.28 above, mean over all"),
    ("dr_grpo", {}, "Dr. GRPO", "above, sum over tokens / (completions x constant) 20, "),
    ("cispo", {}, "CISPO", "ratio as a weight, clip 1 below and 4 above, mean over all tokens, "),
    ("sapo", {}, "SAPO", "soft gate of the ratio (1 for A > 0, 1.05 for A < 0), mean of the"),
    ("luspo", {}, "LUSPO", "ratio of each completion, clip 0.2 below and 0.28 above, sum over"),
    ("vespo", {}, "VESPO", "gamma weight of the completion (2, 3 for A > 0, 3, 2 for A < 0), "),
    ("bnpo", {}, "micro-batches averaged", "TRL's bnpo does so on purpose"),
    ("grpo", {"off_policy_mask_threshold": 0.5}, "GRPO", "sequence mask 0.5 below and inf above"),
    ("grpo", {"delta": 4.0}, "GRPO", "dual clip 4, "),
    ("dapo", {"use_bias_correction_kl": True}, "DAPO", "k3 times the ratio in the loss"),
]


@pytest.mark.parametrize("loss_type, options, name, parts", TRL)
def test_losses_of_trl_have_their_names_and_numbers(loss_type, options, name, parts):
    trl = check_grpo.load(f"{ROOT}/tests/adapters/trl_loss.py")
    loss = partial(trl["loss"], loss_type=loss_type, **options)
    right, names, text = check_grpo.judge_loss(loss)
    assert right == (loss_type != "bnpo") and names == [name] and parts in text
    assert "in the loss with weight 0.04." in text


# ---- Losses of this repository

RATIOS = {
    "reinforce": NO_RATIO,
    "grpo_no_clip": TOKEN,
    "grpo_clip": TOKEN,
    "gspo": COMPLETION,
    "cispo": WEIGHT,
    "dppo": TOKEN,
    "ipo": TOKEN,
}
KLS = {"rho_k3": "k3 times the ratio", "sampler_k2": "k2 to the sampler"}
MEANS = {
    "seq-mean-token-mean": COMPLETIONS,
    "token-mean": TOKENS,
    "seq-mean-token-sum-norm": CONSTANT,
}


def settings(loss_type, mode, **options):
    options |= {"loss_type": loss_type, "loss_agg_mode": mode}
    return variants.Config(max_tokens=20, kl_coef=0.04, **options)


def in_words(config, correction=None):
    """What the verdict on a loss with these settings says."""
    formula = Loss(
        RATIOS[config.loss_type],
        MEANS[config.loss_agg_mode],
        KLS.get(config.kl_estimator, config.kl_estimator),
        "loss",
        kl_weight=config.kl_coef,
        **correction or {},
    )
    if formula.mean == CONSTANT:
        formula = replace(formula, constant=config.max_tokens)
    high = config.cliprange_high or config.cliprange
    if config.loss_type in ("dppo", "ipo"):
        drop = {"dppo": DPPO, "ipo": IPO}[config.loss_type]
        formula = replace(formula, drop=drop, fall=config.cliprange, rise=high)
    elif config.loss_type not in ("reinforce", "grpo_no_clip"):
        formula = replace(formula, low=config.cliprange, high=high)
    return agrees(formula)


def agrees(formula):
    return f"agrees with {formula.name}\n{str(formula).partition(': ')[2]}."


def adapter(function, config):
    """A loss of this repository as check_grpo.py calls it. Without `step`, the batch is a step."""

    def loss(log_probs, old, ref, advantages, mask, sampler_log_probs=None, step=None):
        batch = {
            "old_log_probs": old,
            "ref_log_probs": ref,
            "sampler_log_probs": sampler_log_probs,
            "advantages": advantages[:, None],
            "response_mask": mask,
            "completions": len(mask),
            "tokens": mask.sum(),
        }
        if step:
            batch |= vars(step)
        return function(log_probs, batch, config).sum()

    return loss


# In variants.loss ratio, weight, KL and mean never look at one another.
@pytest.mark.parametrize("kl, mode", zip(["k1", "k2", "k3"], MEANS))
@pytest.mark.parametrize("loss_type", RATIOS)
def test_losses_of_variants_are_what_their_settings_say(loss_type, kl, mode):
    config = settings(loss_type, mode, cliprange_high=0.28, kl_estimator=kl)
    assert in_words(config) in exactly(said(adapter(variants.loss, config)))


SAMPLERS = {
    "token_truncate": {"level": "token"},
    "token_mask": {"level": "token", "outside": "masked"},
    "sequence_truncate": {"level": "completion"},
    "sequence_mask": {"level": "completion", "outside": "masked"},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "loss_type, mode, kl",
    [("grpo_clip", "token-mean", "rho_k3"), ("gspo", "seq-mean-token-mean", "sampler_k2")],
)
def test_corrections_of_variants_are_what_their_settings_say(loss_type, mode, kl, sampler):
    bounds = {"sampler_ratio_min": 0.5, "sampler_ratio_max": 2.5}
    config = settings(loss_type, mode, kl_estimator=kl, sampler_correction=sampler, **bounds)
    correction = SAMPLERS[sampler] | {"least": 0.5, "most": 2.5}
    assert in_words(config, correction) in exactly(said(adapter(variants.loss, config)))


BASELINES = {
    "group_mean": "group mean",
    "leave_one_out": "mean of the others",
    "none": "no baseline",
}
SCALES = {
    "group": "deviation with n - 1, eps 0.0001 outside of the root.",
    "group_biased": "deviation with n, eps 0.0001 outside of the root.",
    "batch": "deviation of the batch, eps 0.0001 outside of the root.",
    "none": "no deviation.",
    "mean": "mean instead of the deviation, eps 0.0001 outside of the root.",
}


@pytest.mark.parametrize(
    "baseline, scale",
    [
        *itertools.product(["group_mean", "leave_one_out"], SCALES),
        *itertools.product(["none"], ["none", "mean"]),
    ],
)
def test_advantages_of_variants_are_what_their_settings_say(baseline, scale, monkeypatch):
    monkeypatch.setattr(variants, "gather", lambda rewards: torch.tensor(rewards).double())
    config = variants.Config(baseline=baseline, scale_rewards=scale)
    text = check_grpo.judge_advantages(lambda rewards: variants.advantages(rewards, config))[2]
    assert f"{BASELINES[baseline]}, {SCALES[scale]}" in text


# ---- The conventions of other projects, written from their documents


def prime_rl(log_probs, old, ref, advantages, mask, sampler_log_probs, step, both_signs=True):
    """ipo_loss_fn (PR #2798) with eps 0.2 and kl_tau 1e-3 (log rho)^2; default_loss_fn before."""
    a = advantages[:, None]
    log_ratio = log_probs - sampler_log_probs
    moved = log_probs.exp() - sampler_log_probs.exp()
    kept = torch.where(a > 0, moved <= 0.2, moved >= -0.2)
    if both_signs:
        kept = moved.abs() <= 0.2
    loss = 1e-3 * log_ratio**2 - kept * log_ratio.exp() * a
    return loss[mask].sum() / step.tokens


@pytest.mark.parametrize("name, both_signs", [("IPO", True), ("DPPO", False)])
def test_losses_of_prime_rl_have_their_names_and_numbers(name, both_signs):
    formula = replace(LOSSES[name], kl="k2 to the sampler", fall=0.2)
    assert agrees(formula) in exactly(said(partial(prime_rl, both_signs=both_signs)))


@pytest.mark.parametrize("eps", [5e-4, 0.05, 3e-7])
@pytest.mark.parametrize("name", ["GRPO", "REINFORCE++"])
def test_any_eps_is_measured(name, eps):
    right, names, text = judged(replace(ADVANTAGES[name], eps=eps))
    assert right and names == [name] and f"eps {eps:g} outside of the root" in text
    assert ("If you meant GRPO" in text) == (name == "REINFORCE++")


# ---- What its sentences say


def with_grpo(change):
    """GRPO's loss, with its result or its inputs changed."""
    return lambda *inputs: change(LOSSES["GRPO"], *inputs)


def in_dtype(dtype):
    return with_grpo(lambda f, *x: f(*(t.to(dtype) if t.is_floating_point() else t for t in x)))


def test_a_loss_in_single_precision_agrees():
    right, names, text = check_grpo.judge_loss(lambda *x: in_dtype(torch.float32)(*x).double())
    assert right and names == ["GRPO"] and "clip 0.2 below and 0.28 above" in text


def test_a_small_difference_is_printed_and_bfloat16_is_suspected():
    right, names, text = check_grpo.judge_loss(in_dtype(torch.bfloat16))
    yours, formula = re.search(r"yours (\S+), the formula's (\S+)\.", text).groups()
    assert not right and not names and yours != formula and "Look for bfloat16" in text


def test_advantages_normalized_again_have_a_name():
    def loss(log_probs, old, ref, advantages, mask):
        a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return LOSSES["GRPO"](log_probs, old, ref, a, mask)

    assert check_grpo.judge_loss(loss)[1] == [check_grpo.RENORMALIZED]


def of_position(rewards):
    return (rewards - rewards.mean(dim=1, keepdim=True)) * torch.arange(rewards.shape[1])


def without_mask(log_probs, old, ref, advantages, own):
    return -((log_probs - old).tanh() * advantages[:, None]).sum()


@pytest.mark.parametrize(
    "judge, new, needed",
    [
        (check_grpo.judge_advantages, lambda r: r.median() - r, "a larger reward has no smaller"),
        (check_grpo.judge_advantages, lambda r: r * 0, "some advantage is not 0"),
        (check_grpo.judge_advantages, of_position, "the completions may change places"),
        (check_grpo.judge_loss, without_mask, "only the model's tokens have a gradient"),
        (check_grpo.judge_loss, lambda *x: -without_mask(*x), "a larger advantage makes no token"),
    ],
)
def test_something_new_without_what_everything_needs_is_wrong(judge, new, needed):
    right, _, text = judge(new, new=True)
    assert not right and text.startswith("✗") and f"no: {needed}" in text


def test_a_group_that_depends_on_another_one_s_largest_reward_is_found():
    text = check_grpo.judge_advantages(lambda rewards: rewards - rewards.max(), new=True)[2]
    assert "no: no group depends on another" in text


@pytest.mark.parametrize("mask", [0.0, 1.0])
def test_a_loss_without_the_advantages_is_not_called_normalized_again(mask):
    def loss(log_probs, old, ref, advantages, own):
        return (mask * own * (log_probs - ref) ** 2).sum()

    assert check_grpo.judge_loss(loss)[1] == [check_grpo.INDEPENDENT]


def test_blind_spots_are_said():
    assert "Not looked at: micro-batches" in said(with_grpo(lambda f, *x: f(*x)))
    assert "Not looked at: a KL without gradient" in said(LOSSES["DAPO"])
    assert "Not looked at" not in said(LOSSES["GRPO"])


@pytest.mark.parametrize("new", [True, False])
def test_a_new_estimator_passes_with_new_and_its_properties_are_judged(new):
    def median(rewards):
        return rewards - rewards.median(dim=1, keepdim=True).values

    right, names, text = check_grpo.judge_advantages(median, new)
    assert right == new and names == [] and ("--new exits with 0" in text) != new
    assert text.startswith("✓ advantages: new") == new
    assert "\nyes: a larger reward has no smaller advantage" in text
    assert "\nno: each group's mean is 0" in text


# ---- Bad adapters


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda loss, mask: loss[None], "return a float64 tensor of shape ()."),
        (lambda loss, mask: loss.long(), "return a float64 tensor of shape ()."),
        (lambda loss, mask: loss.item(), "return a float64 tensor of shape ()."),
        (lambda loss, mask: loss.detach(), "no gradient"),
        (lambda loss, mask: loss * float("nan"), "NaN or infinite everywhere"),
        (lambda loss, mask: loss * mask.zero_().sum(), "changes an input in place"),
    ],
)
def test_a_bad_adapter_gets_a_sentence(change, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        check_grpo.judge_loss(lambda *x: change(LOSSES["GRPO"](*x), x[4]))


RIGHT = "def advantages(rewards):\n    return rewards - rewards.mean(dim=1, keepdim=True)\n"


@pytest.mark.parametrize(
    "text, code, said",
    [
        (RIGHT, 0, "✓ advantages: agrees with Dr. GRPO"),
        (RIGHT.replace("- r", "+ r"), 1, "neither an algorithm nor a known mistake"),
        ("x = 1", None, "neither a function"),
        ("exit()", None, "my_adapter.py calls exit."),
        (None, None, "There is no file"),
    ],
)
def test_the_command_says_it_and_exits_with_0_or_1(text, code, said, tmp_path, monkeypatch, capsys):
    file = tmp_path / "my_adapter.py"
    if text:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["check_grpo.py", str(file)])
    with pytest.raises(SystemExit) as end:
        check_grpo.main()
    out = capsys.readouterr().out
    assert said in out + str(end.value.code)
    assert max(map(len, out.splitlines()), default=0) <= 80
    assert code is None or end.value.code == code
