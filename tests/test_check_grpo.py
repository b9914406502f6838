"""check_grpo.py: what agrees, which mistakes it names, and what it says of others' losses."""

import itertools
import re
import sys
from dataclasses import replace

import pytest
import torch

import check_grpo
import variants
from check_grpo import ADVANTAGE_MISTAKES, BATCHES, LOSS_MISTAKES, REWARDS, Advantages, Loss

COMPLETIONS = "mean of the completions' means"
TOKENS = "mean over all tokens"
CONSTANT = "sum over tokens / (completions x constant)"
NUMBERS = {"low": 0.2, "high": 0.28, "constant": 20.0, "kl_weight": 0.04}
LOSSES = {
    "GRPO": Loss("ratio of each token", COMPLETIONS, "k3", "loss", **NUMBERS),
    "DAPO": Loss("ratio of each token", TOKENS, "k1", "reward", **NUMBERS),
    "Dr. GRPO": Loss("ratio of each token", CONSTANT, "k2", "loss", **NUMBERS),
    "GSPO": Loss("ratio of each completion", COMPLETIONS, "k3", "reward", **NUMBERS),
    "REINFORCE": Loss("no ratio", TOKENS, "k3 with the gradient of k2", "loss", **NUMBERS),
    "GMPO": Loss("geometric mean of the clipped ratios", COMPLETIONS, "k3", "loss", **NUMBERS),
    "CISPO": Loss("ratio as a weight", TOKENS, "k3", "loss", **NUMBERS),
    "RLOO": Loss("no ratio", CONSTANT, "k1", "loss", **NUMBERS),
    "DPPO": Loss(
        "ratio to the sampler, far tokens masked", TOKENS, "k2 to the sampler", "loss", **NUMBERS
    ),
}
ALL = frozenset({"sampler_log_probs", "step"})
ADVANTAGES = {
    "GRPO": Advantages("group mean", "deviation with n - 1", 1e-4),
    "REINFORCE++": Advantages("batch mean", "deviation with n - 1", 1e-4),
    "Dr. GRPO": Advantages("group mean", "no deviation", 1e-4),
    "MaxRL": Advantages("group mean", "mean instead of the deviation", 1e-6),
    "RLOO": Advantages("mean of the others", "no deviation", 1e-4),
}


def mistaken(formula, slip):
    if slip == "no eps":
        formula = replace(formula, eps=0.0)
    if slip == "entropy of the sampled tokens alone":
        formula = replace(formula, entropy=0.01)
    return replace(formula, slip=slip)


def judged(formula):
    if isinstance(formula, Advantages):
        return check_grpo.judge_advantages(formula)
    return check_grpo.judge_loss(formula)


def said(loss):
    return check_grpo.judge_loss(loss)[2]


@pytest.mark.parametrize("name, right", [*LOSSES.items(), *ADVANTAGES.items()])
def test_each_algorithm_is_named(name, right):
    assert judged(right)[:2] == (True, [name])


OFTEN = ["GRPO", "DAPO", "GSPO", "CISPO", "RLOO"]


@pytest.mark.parametrize("right", [*(LOSSES[name] for name in OFTEN), *ADVANTAGES.values()])
def test_each_mistake_is_named_under_each_algorithm(right):
    for slip in ADVANTAGE_MISTAKES if isinstance(right, Advantages) else LOSS_MISTAKES:
        agrees, names, _ = judged(mistaken(right, slip))
        # Some are no mistake: there is no ratio, or CISPO with a ratio of 1 is REINFORCE.
        assert agrees or slip in names


@pytest.mark.parametrize(
    "mistakes, algorithms, frozen",
    [(LOSS_MISTAKES, LOSSES, BATCHES), (ADVANTAGE_MISTAKES, ADVANTAGES, REWARDS)],
)
def test_frozen_tensors_separate_each_pair_of_mistakes(mistakes, algorithms, frozen):
    def alike(formula, one, other):
        first = mistaken(formula, one)
        found = [check_grpo.expected(first, place, ALL) for place in range(len(frozen))]
        gaps = check_grpo.gaps(mistaken(formula, other), found, ALL)
        return all(gap < 1e-9 for gap in gaps)

    for pair in itertools.combinations(["", *mistakes], 2):
        assert not all(alike(formula, *pair) for formula in algorithms.values()), pair


# ---- Losses of this repository

RATIOS = {
    "reinforce": "no ratio",
    "grpo_no_clip": "ratio of each token",
    "grpo_clip": "ratio of each token",
    "gspo": "ratio of each completion",
    "cispo": "ratio as a weight",
    "dppo": "ratio to the sampler, far tokens masked",
}
KLS = {"rho_k3": "k3 times the ratio", "sampler_k2": "k2 to the sampler"}
MEANS = {
    "seq-mean-token-mean": COMPLETIONS,
    "token-mean": TOKENS,
    "seq-mean-token-sum-norm": CONSTANT,
}


def settings(loss_type, mode, kl_coef=0.0, **options):
    options |= {"loss_type": loss_type, "loss_agg_mode": mode, "kl_coef": kl_coef}
    return variants.Config(max_tokens=20, **options)


def in_words(config):
    """What the verdict on a loss with these settings says."""
    formula = Loss(
        RATIOS[config.loss_type],
        MEANS[config.loss_agg_mode],
        KLS.get(config.kl_estimator, config.kl_estimator),
        "loss",
        constant=config.max_tokens,
        kl_weight=config.kl_coef,
    )
    if config.loss_type not in ("reinforce", "grpo_no_clip"):
        high = config.cliprange_high or config.cliprange
        formula = replace(formula, low=config.cliprange, high=high)
    if config.sampler_correction != "none":
        level, kind = config.sampler_correction.split("_")
        formula = replace(
            formula,
            level="completion" if level == "sequence" else level,
            outside={"truncate": "truncated", "mask": "masked"}[kind],
            least=config.sampler_ratio_min,
            most=config.sampler_ratio_max,
        )
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


@pytest.mark.parametrize("kl, weight", [("k1", 0.04), ("k2", 0.04), ("k3", 0.04), ("k3", 0.0)])
@pytest.mark.parametrize("mode", MEANS)
@pytest.mark.parametrize("loss_type", RATIOS)
def test_losses_of_variants_are_what_their_settings_say(loss_type, mode, kl, weight):
    config = settings(loss_type, mode, cliprange_high=0.28, kl_estimator=kl, kl_coef=weight)
    assert in_words(config) in said(adapter(variants.loss, config))


SAMPLERS = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kl", ["rho_k3", "sampler_k2", "k3"])
@pytest.mark.parametrize("loss_type, mode", [("grpo_clip", "token-mean"), ("gspo", list(MEANS)[0])])
def test_corrections_of_variants_are_what_their_settings_say(loss_type, mode, kl, sampler):
    bounds = {"sampler_ratio_min": 0.5, "sampler_ratio_max": 2.5}
    config = settings(loss_type, mode, 0.04, kl_estimator=kl, sampler_correction=sampler, **bounds)
    assert in_words(config) in said(adapter(variants.loss, config))


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


def clipped(log_probs, old, advantages, low=0.2, high=0.2):
    ratio = (log_probs - old).exp()
    a = advantages[:, None]
    return torch.maximum(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))


def k3(log_probs, ref):
    return (ref - log_probs).exp() - (ref - log_probs) - 1


def verl(log_probs, old, ref, advantages, mask):
    """docs/algo/grpo.md, ppo.md: token-mean, clip_ratio 0.2, clip_ratio_c 3, low_var_kl 0.001."""
    loss = clipped(log_probs, old, advantages)
    a = advantages[:, None]
    loss = torch.where(a < 0, torch.minimum(loss, -3 * a), loss) + 0.001 * k3(log_probs, ref)
    return (loss * mask).sum() / mask.sum()


def prime_rl_default(log_probs, old, ref, advantages, mask, sampler_log_probs, step):
    """default_loss_fn: DPPO with masks 0.2 and 0.2, and kl_tau 1e-3 (log rho)^2."""
    a = advantages[:, None]
    log_ratio = log_probs - sampler_log_probs
    moved = log_probs.exp() - sampler_log_probs.exp()
    kept = torch.where(a > 0, moved <= 0.2, moved >= -0.2)
    loss = 1e-3 * log_ratio**2 - kept * log_ratio.exp() * a
    return loss[mask].sum() / step.tokens


NUMBERS_OF_VERL = {"low": 0.2, "high": 0.2, "dual": 3, "kl_weight": 0.001}
FIELD = {
    verl: Loss("ratio of each token", TOKENS, "k3", "loss", **NUMBERS_OF_VERL),
    prime_rl_default: replace(LOSSES["DPPO"], low=0.2, high=0.2, kl_weight=0.002),
}


@pytest.mark.parametrize("loss, formula", FIELD.items())
def test_the_conventions_of_the_field(loss, formula):
    assert agrees(formula) in said(loss)


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


def test_a_loss_in_single_precision_agrees_and_the_text_says_so():
    right, names, text = check_grpo.judge_loss(lambda *x: in_dtype(torch.float32)(*x).double())
    assert right and names == ["GRPO"] and "single precision. That is the only" in text
    assert "weight 0.04" in text and "clip 0.2 below and 0.28 above" in text


def test_a_loss_in_bfloat16_is_a_mistake_with_a_name():
    assert check_grpo.judge_loss(in_dtype(torch.bfloat16))[:2] == (False, ["bfloat16"])


def test_a_small_difference_is_printed_with_its_digits():
    text = said(with_grpo(lambda f, *x: f(*x) * (1 + 1e-7)))
    yours, formula = re.search(r"yours (\S+), the formula's (\S+)\.", text).groups()
    assert yours != formula and "Look for .float()" in text


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
    assert text.startswith("✓ advantages: new\nyes: the same") == new and ".float()" not in text
    for line in (
        "yes: the same rewards give the same again",
        "yes: equal rewards give 0",
        "yes: no group depends on another",
        "yes: a larger reward has no smaller advantage",
        "no: each group's mean is 0",
        "yes: rewards + 1 give the same",
        "no: 2 x rewards give the same",
    ):
        assert line in text.splitlines()


# ---- Bad adapters


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda loss, mask: loss[None], "shape (1,) instead of ()"),
        (lambda loss, mask: loss.long(), "torch.int64 instead of torch.float64"),
        (lambda loss, mask: [][mask.shape[1]], "The first input had the shape (4, 9)"),
        (lambda loss, mask: loss.item(), "float instead of a tensor"),
        (lambda loss, mask: loss.detach(), "no gradient"),
        (lambda loss, mask: loss * float("nan"), "NaN or infinite everywhere"),
        (lambda loss, mask: loss * mask.zero_().sum(), "changes mask in place"),
        (lambda loss, mask: loss + [], "loss raises TypeError: "),
    ],
)
def test_a_bad_adapter_gets_a_sentence(change, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        check_grpo.judge_loss(lambda *x: change(LOSSES["GRPO"](*x), x[4]))


def test_an_unknown_argument_gets_a_sentence():
    with pytest.raises(SystemExit, match="missing a required argument: 'lengths'"):
        check_grpo.judge_loss(lambda a, b, c, d, e, lengths: None)


RIGHT = "def advantages(rewards):\n    return rewards - rewards.mean(dim=1, keepdim=True)\n"


@pytest.mark.parametrize(
    "text, code, said",
    [
        (RIGHT, 0, "✓ advantages: agrees with Dr. GRPO"),
        (RIGHT.replace("- r", "+ r"), 1, "neither an algorithm nor a known mistake"),
        ("x = 1", None, "neither a function"),
        ("import nothing_of_that_name", None, "ModuleNotFoundError"),
        (None, None, "FileNotFoundError"),
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
