"""Every loss, aggregation and KL: against the equations in float64, and against TRL's GRPO loss."""

import collections
from types import SimpleNamespace

import pytest
import torch
from helpers import formula
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import nano_r1 as r1
import variants

# `lesson` is grpo_loss of nano_r1.py, the others are those of variants.py.
LOSSES = ["no_baseline", "reinforce_with_baseline", "grpo_no_clip", "grpo_clip", "gspo"]
MODES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}
PAIRS = [("lesson", "seq-mean-token-mean")] + [(loss, mode) for loss in LOSSES for mode in MODES]
MAX_TOKENS = 20
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def random_batch(seed=0, rows=6, width=9):
    """Tensors (B, T) of a micro-batch, in float64; the policy's log-probs are a leaf.

    With seed 0 the policy is the one that sampled, as in the lesson: the ratio is 1.
    """
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    policy = -draw(rows, width).abs() - 0.1
    moved = 0.3 if seed else 0.0
    lengths = torch.randint(1, width + 1, (rows, 1), generator=g)
    return {
        "policy": policy.clone().requires_grad_(),
        "old_log_probs": policy + moved * draw(rows, width),
        "ref_log_probs": policy + 0.5 * draw(rows, width),
        "sampler_log_probs": policy + 0.2 * draw(rows, width),
        "entropy": draw(rows, width).abs(),
        "response_mask": torch.arange(width) < lengths,
        "advantages": draw(rows, 1).expand(rows, width),
    }


def settings_of(loss, mode, **options):
    loss_type = "grpo_clip" if loss == "lesson" else loss
    options = {"kl_coef": 0.0, "max_tokens": MAX_TOKENS, **options}
    return variants.Config(loss_type=loss_type, loss_agg_mode=mode, **options)


def ours(b, loss, mode, parts=None, **options):
    """(loss, gradient with respect to the log-probs), in micro-batches of the rows of `parts`."""
    c = settings_of(loss, mode, **options)
    b["policy"].grad = None
    total = 0.0
    rows = len(b["policy"])
    tokens = b["response_mask"].sum()
    for part in parts or [list(range(rows))]:
        batch = {name: values[part] for name, values in b.items()}
        if loss == "lesson":
            losses, _ = r1.grpo_loss(batch["policy"], batch, rows, c)
        else:
            losses, _ = variants.loss(batch["policy"], batch, rows, c, tokens)
        losses.sum().backward()
        total = total + losses.sum().detach()
    return total, b["policy"].grad.clone()


def expected(b, loss, mode, **options):
    b["policy"].grad = None
    completions = []
    for i, mask in enumerate(b["response_mask"]):
        row = {name.removesuffix("_log_probs"): values[i][mask] for name, values in b.items()}
        completions.append(SimpleNamespace(**row, advantage=row["advantages"][0]))
    value = formula(settings_of(loss, mode, **options), completions, len(completions))
    value.backward()
    return value.detach(), b["policy"].grad.clone()


OPTIONS = [
    {},
    {"kl_coef": 0.1},
    {"cliprange": 0.1, "cliprange_high": 0.28},
    {"kl_coef": 0.1, "tis_cap": 1.1},  # of the policy's loss, not of the penalty
    {"kl_coef": 0.1, "kl_estimator": "k2"},
    {"kl_coef": 0.1, "kl_estimator": "k1"},
    {"entropy_coef": 0.01},
]


def cases(losses, options):
    """(loss, mode, options) that there are: the lesson has two of them, three losses no clip."""
    known = {"lesson": options[:2], "grpo_clip": options, "gspo": options}
    unclipped = [o for o in options if "cliprange" not in o]
    return [
        (*pair, o) for pair in PAIRS if pair[0] in losses for o in known.get(pair[0], unclipped)
    ]


@pytest.mark.parametrize("loss, mode, options", cases(["lesson", *LOSSES], OPTIONS), ids=str)
def test_value_and_gradient_are_those_of_the_equations_in_float64(loss, mode, options):
    for b in map(random_batch, range(3)):
        assert_close(ours(b, loss, mode, **options), expected(b, loss, mode, **options), **EXACT)


def test_the_lesson_and_variants_measure_the_same():
    """Which tokens the clip froze is in test_course.py, the mean of k3 in test_update.py."""
    b = random_batch(seed=1)
    c = settings_of("lesson", "seq-mean-token-mean", kl_coef=0.1)
    theirs = variants.loss(b["policy"], b, 6, c, tokens=None)
    assert_close(r1.grpo_loss(b["policy"], b, 6, c), theirs, rtol=0, atol=0)


# TRL


def fake_trainer(b, c):
    """What TRL's `_compute_loss` asks of its trainer; the log-probs are ours, the rest is TRL's."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (b["policy"], b["entropy"], None),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_TOKENS,
        loss_type=MODES[c.loss_agg_mode],
        importance_sampling_level="sequence" if c.loss_type == "gspo" else "token",
        epsilon_low=c.cliprange,
        epsilon_high=c.cliprange_high or c.cliprange,
        beta=c.kl_coef,
        entropy_coef=c.entropy_coef,
        _entropy_bonus_enabled=c.entropy_coef > 0,
        use_vllm=c.tis_cap > 0,
        vllm_importance_sampling_correction=True,
    )


def trl(b, loss, mode, **options):
    from trl import GRPOTrainer

    c = settings_of(loss, mode, **options)
    b["policy"].grad = None
    ids = torch.zeros(b["policy"].shape, dtype=torch.long)
    weights = (b["old_log_probs"] - b["sampler_log_probs"]).exp()
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": b["response_mask"].long(),
        "advantages": b["advantages"][:, 0],
        "old_per_token_logps": None if loss == "reinforce_with_baseline" else b["old_log_probs"],
        "ref_per_token_logps": b["ref_log_probs"],
        "importance_sampling_ratio": weights.clamp(max=c.tis_cap) if c.tis_cap else None,
        "num_items_in_batch": b["response_mask"].sum(),
    }
    value = GRPOTrainer._compute_loss(fake_trainer(b, c), None, inputs)
    value.backward()
    return value.detach(), b["policy"].grad.clone()


OF_TRL = ["lesson", "reinforce_with_baseline", "grpo_clip", "gspo"]


BONUS = [(loss, "token-mean", {"entropy_coef": 0.05}) for loss in ("grpo_clip", "gspo")]


@pytest.mark.parametrize("loss, mode, options", cases(OF_TRL, OPTIONS[:4]) + BONUS, ids=str)
def test_value_and_gradient_are_those_of_trl(loss, mode, options):
    for b in map(random_batch, range(3)):
        found = ours(b, loss, mode, **options)
        theirs = trl(b, loss, mode, **options)
        # TRL's value of REINFORCE has the ratio 1 in the place of the log-prob.
        skip = 1 if loss == "reinforce_with_baseline" else 0
        assert_close(found[skip:], theirs[skip:], rtol=1e-6, atol=1e-12)


# Properties


@settings(max_examples=60)
@given(
    st.sampled_from(PAIRS), st.integers(0, 99), st.permutations(range(6)), st.integers(1, 5),
    st.integers(0, 5),
)  # fmt: skip
def test_padding_order_and_micro_batches_change_nothing(pair, seed, order, cut, columns):
    b = random_batch(seed)
    padded = {}
    whole, gradient = ours(b, *pair, kl_coef=0.1)
    for name, values in b.items():
        # The policy's log-probs are 0 outside the mask; a masked copy's other numbers are its own.
        value = {"policy": 0.0, "response_mask": False}.get(name, -7.0)
        padded[name] = torch.nn.functional.pad(values.detach(), (0, columns), value=value)
    padded["policy"].requires_grad_()
    total, found = ours(padded, *pair, parts=[order[:cut], order[cut:]], kl_coef=0.1)
    assert_close(total, whole, **EXACT)
    assert_close(found, torch.nn.functional.pad(gradient, (0, columns)), **EXACT)
