"""Every loss, aggregation, KL and baseline: against float64 formulas, and against TRL's own GRPO loss."""

import collections
import itertools
import math
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import nano_r1 as r1

LOSSES = ["reinforce_with_baseline", "grpo_clip", "gspo"]
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MAX_TOKENS = 20
TIS_CAP = 2.0
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def batch(seed=0, rows=6, width=9):
    """Random per-token quantities of a micro-batch in float64, its mask, and a column of advantages."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    policy = -draw(rows, width).abs() - 0.1
    lengths = torch.randint(1, width + 1, (rows, 1), generator=g)
    return types.SimpleNamespace(
        policy=policy.requires_grad_(),
        old=policy.detach() + 0.3 * draw(rows, width),
        ref=policy.detach() + 0.5 * draw(rows, width),
        sampler=policy.detach() + 0.2 * draw(rows, width),
        entropy=draw(rows, width).abs(),
        mask=torch.arange(width) < lengths,
        advantages=draw(rows, 1),
    )


def denominator(b, mode):
    rows = len(b.mask)
    return {MODES[0]: b.mask.sum().item(), MODES[1]: rows, MODES[2]: rows * MAX_TOKENS}[mode]


def ours(b, loss, mode, rows=None, **settings):
    """(loss, gradient with respect to the log-probs) of nano_r1's `grpo_loss`, on some of the rows."""
    b.policy.grad = None
    pick = slice(None) if rows is None else rows
    config = r1.Config(loss_type=loss, loss_agg_mode=mode, **{"kl_coef": 0.0, **settings})
    parts = {"response_mask": b.mask, "raw_rewards": b.advantages, "advantages": b.advantages}
    parts |= {"old_log_probs": b.old, "sampler_log_probs": b.sampler}
    parts |= {"ref_log_probs": b.ref} if config.kl_coef else {}
    picked = {name: tensor[pick] for name, tensor in parts.items()}
    value, _ = r1.grpo_loss(b.policy[pick], b.entropy[pick], picked, denominator(b, mode), config)
    value.backward()
    return value.detach(), b.policy.grad.clone()


def formula(b, loss, mode, kl_coef=0.0, kl_estimator="k3", cliprange_high=None, entropy_coef=0.0, tis_cap=0.0):
    """The same from the papers' equations, completion by completion, token by token."""
    b.policy.grad = None
    high = 0.2 if cliprange_high is None else cliprange_high
    total, counted = 0.0, 0
    for i in range(len(b.mask)):
        n, a = int(b.mask[i].sum()), b.advantages[i, 0]
        terms = []
        for t in range(n):
            p = b.policy[i, t]
            if loss in ("no_baseline", "reinforce_with_baseline"):
                term = -a * p
            else:
                ratio = torch.exp(p - b.old[i, t])
                if loss == "gspo":
                    ratio = torch.exp((b.policy[i, :n] - b.old[i, :n]).sum() / n)
                clipped = min(max(ratio.item(), 0.8), 1 + high)
                frozen = (ratio.item() > 1 + high and a > 0) or (ratio.item() < 0.8 and a < 0)
                term = -(clipped * a if frozen else ratio * a)
            if tis_cap:
                term = term * min(torch.exp(b.old[i, t] - b.sampler[i, t]), torch.tensor(tis_cap))
            d = b.ref[i, t] - p
            kl = {"k1": -d, "k2": d**2 / 2, "k3": torch.exp(d) - 1 - d}[kl_estimator]
            terms.append(term + kl_coef * kl - entropy_coef * b.entropy[i, t])
        counted += n
        total = total + (sum(terms) / n if mode == "seq-mean-token-mean" else sum(terms))
    rows = len(b.mask)
    value = total / {MODES[0]: counted, MODES[1]: rows, MODES[2]: rows * MAX_TOKENS}[mode]
    if value.requires_grad:
        value.backward()
    grad = torch.zeros_like(b.policy) if b.policy.grad is None else b.policy.grad.clone()
    return value.detach(), grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", ["no_baseline", *LOSSES])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cliprange_high": 0.28},
        {"kl_coef": 0.1},
        {"kl_coef": 0.1, "kl_estimator": "k2"},
        {"kl_coef": 0.1, "kl_estimator": "k1"},
        {"entropy_coef": 0.01},
    ],
    ids=str,
)
def test_value_and_gradient_are_those_of_the_equations_in_float64(loss, mode, options):
    for seed in range(3):
        b = batch(seed)
        value, grad = ours(b, loss, mode, **options)
        expected, expected_grad = formula(b, loss, mode, **options)
        assert_close(value, expected, **EXACT)
        assert_close(grad, expected_grad, **EXACT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_importance_weights_multiply_the_policy_loss_and_not_the_penalty(loss, mode):
    b = batch()
    value, grad = ours(b, loss, mode, kl_coef=0.1, tis_cap=TIS_CAP)
    expected, expected_grad = formula(b, loss, mode, kl_coef=0.1, tis_cap=TIS_CAP)
    assert_close(value, expected, **EXACT)
    assert_close(grad, expected_grad, **EXACT)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("loss", ["no_baseline", *LOSSES])
def test_the_course_s_micro_batch_step_is_the_equations_mean_over_the_rows_and_steps(loss, accumulation):
    b = batch()
    value, stats = r1.grpo_microbatch_train_step(
        b.policy, b.mask, accumulation, loss, b.advantages, b.advantages, b.old, 0.2, b.ref, b.entropy, kl_coef=0.1
    )
    grad = b.policy.grad.clone()
    expected, expected_grad = formula(b, loss, "seq-mean-token-mean", kl_coef=0.1)
    assert_close(value * accumulation, expected, **EXACT)
    assert_close(grad * accumulation, expected_grad, **EXACT)
    assert_close(stats["kl"], ((b.ref - b.policy).exp() - 1 - (b.ref - b.policy)) * b.mask)


# TRL


class FakeTrainer:
    """What TRL's `_compute_loss` asks of its trainer; the log-probabilities are ours, all arithmetic is TRL's."""

    aux_loss_enabled = use_adaptive_entropy = False
    top_entropy_quantile, off_policy_mask_threshold = 1.0, None
    current_gradient_accumulation_steps, max_completion_length = 1, MAX_TOKENS
    epsilon_low, vllm_importance_sampling_correction = 0.2, True
    model = types.SimpleNamespace(training=True)
    args = types.SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
    accelerator = types.SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
    )

    def __init__(self, b, loss_type, level, beta, high, entropy_coef, weights):
        self.b, self.loss_type, self.importance_sampling_level, self.beta = b, loss_type, level, beta
        self.epsilon_high, self.entropy_coef, self._entropy_bonus_enabled = high, entropy_coef, entropy_coef > 0
        self.use_vllm = weights is not None
        self._metrics = collections.defaultdict(lambda: collections.defaultdict(list))

    def _get_per_token_logps_and_entropies(self, *_, **__):
        return self.b.policy, self.b.entropy, None


def trl(b, loss, mode, kl_coef=0.0, cliprange_high=None, entropy_coef=0.0, tis_cap=0.0):
    from trl import GRPOTrainer

    b.policy.grad = None
    loss_type = {MODES[0]: "dapo", MODES[1]: "grpo", MODES[2]: "dr_grpo"}[mode]
    high = 0.2 if cliprange_high is None else cliprange_high
    weights = torch.exp(b.old - b.sampler).clamp(max=tis_cap) if tis_cap else None
    level = "sequence" if loss == "gspo" else "token"
    trainer = FakeTrainer(b, loss_type, level, kl_coef, high, entropy_coef, weights)
    inputs = {
        "prompt_ids": torch.zeros(len(b.mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(b.mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros(b.mask.shape, dtype=torch.long),
        "completion_mask": b.mask.long(),
        "advantages": b.advantages[:, 0],
        "old_per_token_logps": None if loss == "reinforce_with_baseline" else b.old,
        "ref_per_token_logps": b.ref,
        "importance_sampling_ratio": weights,
        "num_items_in_batch": b.mask.sum(),
    }
    value = GRPOTrainer._compute_loss(trainer, None, inputs)
    value.backward()
    return value.detach(), b.policy.grad.clone()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "options",
    [{}, {"cliprange_high": 0.28}, {"kl_coef": 0.1}, {"tis_cap": TIS_CAP}, {"kl_coef": 0.1, "tis_cap": TIS_CAP}],
    ids=str,
)
def test_value_and_gradient_are_those_of_trl(loss, mode, options):
    for seed in range(3):
        b = batch(seed)
        value, grad = ours(b, loss, mode, **options)
        expected, expected_grad = trl(b, loss, mode, **options)
        assert_close(grad, expected_grad, rtol=1e-6, atol=1e-12)
        if loss != "reinforce_with_baseline":  # there TRL's value has ratio 1 in the place of the log-probability
            assert_close(value, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("loss", ["grpo_clip", "gspo"])
def test_the_entropy_bonus_is_trl_s(loss):
    b = batch()
    value, grad = ours(b, loss, "token-mean", entropy_coef=0.05)
    expected, expected_grad = trl(b, loss, "token-mean", entropy_coef=0.05)
    assert_close(value, expected, rtol=1e-6, atol=1e-12)
    assert_close(grad, expected_grad, rtol=1e-6, atol=1e-12)


# Properties

combinations = st.tuples(st.sampled_from(["no_baseline", *LOSSES]), st.sampled_from(MODES), st.integers(0, 1000))


@settings(max_examples=40)
@given(combinations, st.integers(1, 5))
def test_padding_changes_nothing(combination, columns):
    loss, mode, seed = combination
    b, padded = batch(seed), batch(seed)
    value, grad = ours(b, loss, mode, kl_coef=0.1)
    for name in ("old", "ref", "sampler", "entropy"):
        setattr(padded, name, torch.nn.functional.pad(getattr(b, name), (0, columns), value=7.0))
    padded.policy = torch.nn.functional.pad(b.policy.detach(), (0, columns), value=-800.0).requires_grad_()
    padded.mask = torch.nn.functional.pad(b.mask, (0, columns))
    value_padded, grad_padded = ours(padded, loss, mode, kl_coef=0.1)
    assert_close(value_padded, value, **EXACT)
    assert_close(grad_padded[:, : b.mask.shape[1]], grad, **EXACT)
    assert (grad_padded[:, b.mask.shape[1] :] == 0).all()


@settings(max_examples=40)
@given(combinations, st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_any_split_into_micro_batches_adds_up_to_the_whole(combination, assignment):
    loss, mode, seed = combination
    b = batch(seed)
    value, grad = ours(b, loss, mode, kl_coef=0.1)
    parts = [[i for i, k in enumerate(assignment) if k == part] for part in range(3)]
    results = [ours(b, loss, mode, kl_coef=0.1, rows=rows) for rows in parts if rows]
    assert_close(sum(v for v, _ in results), value, **EXACT)
    assert_close(sum(g for _, g in results), grad, **EXACT)


@settings(max_examples=40)
@given(combinations, st.permutations(range(6)))
def test_the_order_of_completions_changes_nothing(combination, order):
    loss, mode, seed = combination
    b = batch(seed)
    value, grad = ours(b, loss, mode, kl_coef=0.1)
    value_again, grad_again = ours(b, loss, mode, kl_coef=0.1, rows=list(order))
    assert_close(value_again, value, **EXACT)
    assert_close(grad_again, grad, **EXACT)


@pytest.mark.parametrize("loss", ["grpo_clip", "gspo"])
def test_on_fresh_samples_the_loss_is_minus_the_advantage_and_the_gradient_the_plain_policy_gradient(loss):
    b = batch()
    b.old = b.policy.detach().clone()
    value, grad = ours(b, loss, "seq-mean-token-mean")
    assert_close(value, -b.advantages.mean(), **EXACT)
    _, plain = ours(b, "reinforce_with_baseline", "seq-mean-token-mean")
    assert_close(grad, plain, **EXACT)


@pytest.mark.parametrize(
    "advantage, log_ratio, moves",
    [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True), (-1, -0.5, False), (1, 0.1, True), (-1, -0.1, True)],
)
@pytest.mark.parametrize("loss", ["grpo_clip", "gspo"])
def test_the_clip_freezes_only_what_has_already_moved_in_the_advantage_s_direction(loss, advantage, log_ratio, moves):
    b = batch()
    b.advantages = torch.full_like(b.advantages, advantage)
    b.old = b.policy.detach() - log_ratio
    _, grad = ours(b, loss, "token-mean")
    assert (grad[b.mask] != 0).all() if moves else (grad == 0).all()


def test_a_higher_upper_end_frees_rising_tokens_alone():
    b = batch()
    b.advantages = torch.ones_like(b.advantages)
    b.old = b.policy.detach() - math.log(1.25)
    assert (ours(b, "grpo_clip", "token-mean")[1] == 0).all()
    assert (ours(b, "grpo_clip", "token-mean", cliprange_high=0.28)[1][b.mask] != 0).all()


def test_the_ratio_of_gspo_is_the_geometric_mean_of_the_tokens_ratios():
    b = batch()
    loss, _ = r1.compute_grpo_clip_loss(torch.ones(6, 1), b.policy, b.old, 10.0, response_mask=b.mask)
    for i in range(6):
        ratios = torch.exp(b.policy[i] - b.old[i])[b.mask[i]]
        assert_close(-loss[i, 0], ratios.prod() ** (1 / len(ratios)), **EXACT)


# Baselines


def advantages(rewards, group_size, eps=0.0, **options):
    results = [{"reward": r} for r in rewards]
    normalize = options.pop("normalize_by_std", True)
    result, _, _ = r1.compute_group_normalized_rewards(
        lambda r, _: r, results, results, group_size, eps, normalize, **options
    )
    return result.tolist()


# Two prompts, four answers each: one answer in two groups of four is right, or half of them.
WORKED_EXAMPLE = [0.0, 2.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0]


def test_the_worked_example_has_the_biased_deviation():
    found = advantages(WORKED_EXAMPLE, 4, scale_rewards="group_biased")
    assert found == pytest.approx([-1.414, 1.414, 0, 0, 0.577, 0.577, 0.577, -1.732], abs=1e-3)


def test_the_unbiased_deviation_is_the_default():
    assert advantages([0.0, 2.0], 2) == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=4, max_size=4))
def test_leave_one_out_compares_with_the_mean_of_the_others(rewards):
    expected = [r - (sum(rewards) - r) / 3 for r in rewards]
    found = advantages(rewards, 4, baseline="leave_one_out", normalize_by_std=False)
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_batch_s_deviation_is_one_for_all_groups():
    found = advantages(WORKED_EXAMPLE, 4, scale_rewards="batch")
    std = torch.tensor(WORKED_EXAMPLE).std().item()
    assert found[:2] == pytest.approx([-1 / std, 1 / std]) and found[7] == pytest.approx(-1.5 / std)


@pytest.mark.parametrize("options", [dict(zip(("baseline", "scale_rewards"), pair)) for pair in itertools.product(
    ["group_mean", "leave_one_out"], ["group", "group_biased", "batch"])], ids=str)  # fmt: skip
def test_equal_rewards_give_no_advantage_whatever_the_baseline(options):
    assert advantages([0.3, 0.3, 0.3, 1.0, 2.0, 0.0], 3, 1e-4, **options)[:3] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_a_group_of_one_compares_with_nothing(baseline):
    assert advantages([0.3, 1.0], 1, 1e-4, baseline=baseline) == [0.0, 0.0]
