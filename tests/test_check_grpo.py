"""check_grpo.py: what agrees, which mistakes it names, and what it says of others' losses."""

import collections
import itertools
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_course import p as primitives
from torch.testing import assert_close

import check_grpo
import nano_r1
import variants
from check_grpo import ADVANTAGE_MISTAKES, BATCHES, LOSS_MISTAKES, REWARDS, Advantages, Loss

COMPLETIONS = "mean of the completions' means"
TOKENS = "mean over all tokens"
CONSTANT = "sum over tokens / (completions x constant)"
NUMBERS = {"low": 0.2, "high": 0.28, "constant": 20.0, "kl_weight": 0.04, "entropy": 0.01}
LOSSES = {
    "GRPO": Loss("ratio of each token", COMPLETIONS, "k3", "loss", **NUMBERS),
    "DAPO": Loss("ratio of each token", TOKENS, "k1", "reward", **NUMBERS),
    "Dr. GRPO": Loss("ratio of each token", CONSTANT, "k2", "loss", **NUMBERS),
    "GSPO": Loss("ratio of each completion", COMPLETIONS, "k3", "reward", **NUMBERS),
    "CISPO": Loss("ratio as a weight", TOKENS, "k3", "loss", **NUMBERS),
    "RLOO": Loss("no ratio", CONSTANT, "k1", "loss", **NUMBERS),
}
ADVANTAGES = {
    "GRPO": Advantages("group mean", "deviation with n - 1", 1e-4),
    "Dr. GRPO": Advantages("group mean", "no deviation", 1e-4),
    "MaxRL": Advantages("group mean", "mean instead of the deviation", 1e-6),
    "RLOO": Advantages("mean of the others", "no deviation", 1e-4),
}


def mistaken(formula, slip):
    if slip == "no eps":
        formula = replace(formula, eps=0.0)
    return replace(formula, slip=slip)


def judged(formula):
    if isinstance(formula, Advantages):
        return check_grpo.judge_advantages(formula)
    return check_grpo.judge_loss(lambda *inputs, step: formula(*inputs, step))


def said(loss):
    return check_grpo.judge_loss(loss)[2]


@pytest.mark.parametrize("name, right", [*LOSSES.items(), *ADVANTAGES.items()])
def test_each_mistake_is_named_under_each_algorithm(name, right):
    assert judged(right)[:2] == (True, [name])
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
        found = [check_grpo.expected(first, place, True) for place in range(len(frozen))]
        gaps = check_grpo.gaps(mistaken(formula, other), found, True)
        return all(gap < 1e-9 for gap in gaps)

    for pair in itertools.combinations(["", *mistakes], 2):
        assert not all(alike(formula, *pair) for formula in algorithms.values()), pair


# ---- Losses of this repository and of TRL

RATIOS = {
    "reinforce": "no ratio",
    "grpo_no_clip": "ratio of each token",
    "grpo_clip": "ratio of each token",
    "gspo": "ratio of each completion",
    "cispo": "ratio as a weight",
}
MEANS = {
    "seq-mean-token-mean": COMPLETIONS,
    "token-mean": TOKENS,
    "seq-mean-token-sum-norm": CONSTANT,
}
OF_TRL = dict(zip(MEANS, ["grpo", "dapo", "dr_grpo"]))


def settings(loss_type, mode, kl_coef=0.0, **options):
    options |= {"loss_type": loss_type, "loss_agg_mode": mode, "kl_coef": kl_coef}
    return variants.Config(max_tokens=20, **options)


def in_words(config):
    """What the verdict on a loss with these settings says."""
    formula = Loss(
        RATIOS[config.loss_type],
        MEANS[config.loss_agg_mode],
        config.kl_estimator,
        "loss",
        constant=config.max_tokens,
        kl_weight=config.kl_coef,
        entropy=0.0,
    )
    if config.loss_type not in ("reinforce", "grpo_no_clip"):
        high = config.cliprange_high or config.cliprange
        formula = replace(formula, low=config.cliprange, high=high)
    return f"loss: agrees with {formula}."


def adapter(function, config):
    """A loss of this repository as check_grpo.py calls it. Without `step`, the batch is a step."""

    def loss(log_probs, old, ref, advantages, mask, step=None):
        batch = {
            "old_log_probs": old,
            "ref_log_probs": ref,
            "sampler_log_probs": old - ref / 9,
            "advantages": advantages[:, None],
            "response_mask": mask,
            "completions": len(mask),
            "tokens": mask.sum(),
        }
        if step:
            batch |= vars(step)
        return function(log_probs, batch, config).sum()

    return loss


def trl(log_probs, batch, config):
    """TRL's own loss of one micro-batch, of our log-probs."""
    from trl import GRPOTrainer

    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, log_probs * 0, None),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        max_completion_length=config.max_tokens,
        loss_type=OF_TRL[config.loss_agg_mode],
        importance_sampling_level="sequence" if config.loss_type == "gspo" else "token",
        epsilon_low=config.cliprange,
        epsilon_high=config.cliprange_high or 0.2,
        beta=config.kl_coef,
        _entropy_bonus_enabled=False,
        use_vllm=config.tis_cap > 0,
        vllm_importance_sampling_correction=True,
    )
    if config.loss_type == "cispo":
        trainer.loss_type = "cispo"
        trainer.epsilon_high += 1  # the bound itself, not its distance from 1
    mask = batch["response_mask"].long()
    old = batch["old_log_probs"]
    weights = (old - batch["sampler_log_probs"]).exp()
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": torch.ones_like(mask[:, :1]),
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch["advantages"][:, 0],
        "old_per_token_logps": old,
        "ref_per_token_logps": batch["ref_log_probs"],
        "importance_sampling_ratio": weights.clamp(max=config.tis_cap),
        "num_items_in_batch": batch["tokens"],
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.parametrize("kl, weight", [("k1", 0.04), ("k2", 0.04), ("k3", 0.04), ("k3", 0.0)])
@pytest.mark.parametrize("mode", MEANS)
@pytest.mark.parametrize("loss_type", RATIOS)
def test_losses_of_variants_are_what_their_settings_say(loss_type, mode, kl, weight):
    config = settings(loss_type, mode, cliprange_high=0.28, kl_estimator=kl, kl_coef=weight)
    assert in_words(config) in said(adapter(variants.loss, config))


@pytest.mark.parametrize(
    "loss_type, mode, options",
    [
        *itertools.product(["grpo_clip"], MEANS, [{"kl_coef": 0.04}, {}]),
        ("gspo", "seq-mean-token-mean", {"cliprange_high": 4e-4}),
        ("cispo", "token-mean", {"cliprange": 1.0, "cliprange_high": 4.0}),
    ],
)
def test_losses_of_trl_are_what_their_settings_say(loss_type, mode, options):
    config = settings(loss_type, mode, **options)
    loss = adapter(trl, config)
    assert in_words(config) in said(lambda *inputs: loss(*inputs))  # without `step`


@pytest.mark.parametrize("mode", MEANS)
@pytest.mark.parametrize("loss_type", ["grpo_clip", "gspo"])
def test_importance_correction_is_that_of_trl(loss_type, mode):
    config = settings(loss_type, mode, kl_coef=0.1, tis_cap=1.1)
    for place in range(len(BATCHES)):
        found, expected = (
            check_grpo.value_and_gradient(adapter(loss, config), place, whole=False)
            for loss in (variants.loss, trl)
        )
        assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_nano_r1_is_grpo():
    config = settings("grpo_clip", "seq-mean-token-mean", kl_coef=0.04)
    assert in_words(config) in said(adapter(nano_r1.grpo_loss, config))
    found = check_grpo.judge_advantages(lambda rewards: nano_r1.group_advantages(rewards, config))
    assert found[:2] == (True, ["GRPO"])


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


@pytest.mark.parametrize("name", ["no_baseline", "reinforce_with_baseline", "grpo_clip"])
def test_the_course_s_step_adds_up_over_micro_batches(name):
    def loss(log_probs, old, ref, advantages, mask, step):
        leaf = log_probs.detach().requires_grad_()
        a = advantages[:, None]
        value, _ = primitives.grpo_microbatch_train_step(
            leaf, mask, step.micro_batches, name, a, a, old_log_probs=old, cliprange=0.2
        )
        return value + ((log_probs - log_probs.detach()) * leaf.grad).sum()

    loss_type = "grpo_clip" if name == "grpo_clip" else "reinforce"
    config = settings(loss_type, "seq-mean-token-mean")
    assert in_words(config) in said(loss)


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


def dr_grpo(log_probs, old, ref, advantages, mask):
    """arXiv:2503.20783: the sum over a completion's tokens, generate_max_length 3000, beta 0."""
    return (clipped(log_probs, old, advantages) * mask).sum(dim=1).mean() / 3000


def openrlhf(log_probs, old, ref, advantages, mask):
    """Its GRPO example: --actor.eps_clip_low_high 0.2 0.27, --algo.kl.estimator k3, 1e-3."""
    loss = clipped(log_probs, old, advantages, 0.2, 0.27) + 1e-3 * k3(log_probs, ref)
    return (loss * mask).sum() / mask.sum()


def prime_rl(log_probs, old, ref, advantages, mask, step):
    """docs/algorithms.md: ppo_clip_loss, a sum, over the tokens of all rollouts."""
    return clipped(log_probs, old, advantages)[mask].sum() / step.tokens


def rlhf_book(log_probs, old, ref, advantages, mask):
    """Chapter 6, strategy 1, with the k3 of code/policy_gradients/loss.py at beta 0.1."""
    loss = clipped(log_probs, old, advantages) + 0.1 * k3(ref, log_probs)
    return ((loss * mask).sum(dim=1) / mask.sum(dim=1)).mean()


FIELD = {
    verl: "agrees with DAPO: ratio of each token, clip 0.2 below and 0.2 above, dual clip 3, mean "
    "over all tokens, k3 in the loss with weight 0.001.",
    dr_grpo: "agrees with Dr. GRPO: ratio of each token, clip 0.2 below and 0.2 above, sum over "
    "tokens / (completions x constant) 3000.",
    openrlhf: "agrees with DAPO: ratio of each token, clip 0.2 below and 0.27 above, mean over all "
    "tokens, k3 in the loss with weight 0.001.",
    prime_rl: "agrees with DAPO: ratio of each token, clip 0.2 below and 0.2 above, mean over all "
    "tokens.",
    rlhf_book: "k3 with d turned. ",
}


@pytest.mark.parametrize("loss, text", FIELD.items())
def test_the_conventions_of_the_field(loss, text):
    assert f"loss: {text}" in said(loss)


# ---- Bad adapters


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda loss, mask: loss[None], "shape (1,) instead of ()"),
        (lambda loss, mask: loss.float(), "torch.float32 instead of torch.float64"),
        (lambda loss, mask: loss.item(), "float instead of a tensor"),
        (lambda loss, mask: loss.detach(), "no gradient"),
        (lambda loss, mask: loss * float("nan"), "NaN or infinite everywhere"),
        (lambda loss, mask: loss * mask.zero_().sum(), "changes mask in place"),
        (lambda loss, mask: loss + [], "loss raises TypeError: "),
    ],
)
def test_a_bad_adapter_gets_a_sentence(change, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        check_grpo.judge_loss(lambda *x: change(LOSSES["GRPO"](*x, None), x[4]))


def test_a_difference_in_small_numbers_gets_a_sentence():
    small = replace(LOSSES["Dr. GRPO"], constant=1e6, kl_weight=0.0, entropy=0.0)
    text = said(lambda *inputs: small(*inputs, None) + 1e-13 * inputs[0].sum().tanh())
    assert "neither an algorithm" in text and "\nNo entry differs" in text


RIGHT = "def advantages(rewards):\n    return rewards - rewards.mean(dim=1, keepdim=True)\n"


@pytest.mark.parametrize(
    "text, code, said",
    [
        (RIGHT, 0, "advantages: agrees with Dr. GRPO"),
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
    assert said in capsys.readouterr().out + str(end.value.code)
    assert code is None or end.value.code == code
