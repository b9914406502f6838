"""Every advantage and loss against its formula, written again in float64, and against TRL."""

import collections
import itertools
import statistics
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import nano_r1
import variants

EXACT = {"rtol": 1e-9, "atol": 1e-12}
LOSSES = ["reinforce", "grpo_no_clip", "grpo_clip", "gspo", "cispo"]
MODES = {"seq-mean-token-mean": "grpo", "token-mean": "dapo", "seq-mean-token-sum-norm": "dr_grpo"}
OPTIONS = [
    {"kl_coef": 0.0},
    {"kl_coef": 0.1, "kl_estimator": "k1"},
    {"kl_coef": 0.1, "kl_estimator": "k2"},
    {"kl_coef": 0.1, "kl_estimator": "k3"},
    {"kl_coef": 0.0, "cliprange": 0.1, "cliprange_high": 0.28},
    {"kl_coef": 0.1, "tis_cap": 1.1},  # of the policy's loss, not of the penalty
]


# ---- The formulas once more, completion by completion


def formula(config, completions, count):
    """The loss of a step of `count` completions, of which these are not masked.

    Each has `advantage` (a number, or one for each token) and, of its tokens, the log-probs
    `policy`, `old`, `ref`, `sampler`.
    """
    tokens = sum(len(o.policy) for o in completions)
    low = 1 - config.cliprange
    high = 1 + (config.cliprange_high or config.cliprange)
    total = 0.0
    for o in completions:
        n = len(o.policy)
        log_ratio = o.policy - o.old
        if config.loss_type == "gspo":
            log_ratio = log_ratio.mean().expand(n)
        ratio = log_ratio.exp()
        a = torch.as_tensor(o.advantage).expand(n)
        # Beyond the bound that lies in the advantage's direction the loss is constant.
        bound = low + (high - low) * (a > 0).double()
        frozen = (ratio - bound) * a > 0
        loss = {
            "reinforce": -a * o.policy,
            "grpo_no_clip": -a * ratio,
            "cispo": -a * ratio.detach().clip(low, high) * o.policy,
        }.get(config.loss_type, -a * torch.where(frozen, bound, ratio))
        if config.tis_cap:
            weight = o.old.exp() / o.sampler.exp()
            loss = loss * torch.where(weight > config.tis_cap, config.tis_cap, weight)
        ref_ratio = o.ref.exp() / o.policy.exp()
        kl = {"k1": -ref_ratio.log(), "k2": ref_ratio.log() ** 2 / 2}
        loss = loss + config.kl_coef * kl.get(config.kl_estimator, ref_ratio - 1 - ref_ratio.log())
        divisors = {"seq-mean-token-mean": n * count, "token-mean": tokens}
        divisor = divisors.get(config.loss_agg_mode, count * config.max_tokens)
        total = total + loss.sum() / divisor
    return total


def random_batch(seed, rows=6, width=9):
    """Tensors (B, T) in float64; the policy's log-probs are a leaf. Seed 0: its ratio is 1."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(6, rows, width, generator=g, dtype=torch.float64)
    policy = -noise[0].abs() - 0.1
    return {
        "policy": policy.clone().requires_grad_(),
        "old_log_probs": policy + (0.3 if seed else 0.0) * noise[1],
        "ref_log_probs": policy + 0.5 * noise[2],
        "sampler_log_probs": policy + 0.2 * noise[3],
        "response_mask": torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g),
        "advantages": noise[4][:, :1],
    }


def settings(loss_type, mode, options):
    return variants.Config(loss_type=loss_type, loss_agg_mode=mode, max_tokens=20, **options)


def ours(b, config, loss=variants.loss, parts=None):
    """(loss, its gradient with respect to the log-probs), added up over the micro-batches."""
    rows = len(b["policy"])
    total = 0.0
    for part in parts or [list(range(rows))]:
        batch = {name: values[part] for name, values in b.items()}
        batch |= {"completions": rows, "tokens": b["response_mask"].sum()}
        total = total + loss(batch["policy"], batch, config).sum()
    return total.detach(), torch.autograd.grad(total, b["policy"])[0]


def by_formula(b, config):
    completions = []
    for i, mask in enumerate(b["response_mask"]):
        row = {name.removesuffix("_log_probs"): b[name][i][mask] for name in b if "log" in name}
        policy = b["policy"][i][mask]
        completions.append(SimpleNamespace(**row, policy=policy, advantage=b["advantages"][i]))
    total = formula(config, completions, len(completions))
    return total.detach(), torch.autograd.grad(total, b["policy"])[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_value_and_gradient_are_those_of_the_formula(loss_type, mode, options, seed):
    b = random_batch(seed)
    config = settings(loss_type, mode, options)
    assert_close(ours(b, config), by_formula(b, config), **EXACT)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]], ids=str)
def test_grpo_loss_is_the_default_of_variants(options):
    b = random_batch(seed=1)
    config = settings("grpo_clip", "seq-mean-token-mean", options)
    assert_close(ours(b, config, loss=nano_r1.grpo_loss), by_formula(b, config), **EXACT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_padding_and_micro_batches_change_nothing(loss_type, mode):
    b = random_batch(seed=2)
    config = settings(loss_type, mode, OPTIONS[3])
    value, gradient = ours(b, config)
    pad = torch.nn.functional.pad
    padded = {name: pad(b[name].detach(), (0, 3), value=0) for name in b}
    padded["advantages"] = b["advantages"]
    padded["policy"].requires_grad_()
    found = ours(padded, config, parts=[[4, 0, 5], [1], [3, 2]])
    assert_close(found, (value, pad(gradient, (0, 3))), **EXACT)


# ---- TRL


def trl(b, config):
    """TRL's own `_compute_loss`, of our log-probs."""
    from trl import GRPOTrainer

    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (b["policy"], b["policy"] * 0, None),
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
        loss_type="cispo" if config.loss_type == "cispo" else MODES[config.loss_agg_mode],
        importance_sampling_level="sequence" if config.loss_type == "gspo" else "token",
        epsilon_low=config.cliprange,
        epsilon_high=config.cliprange_high or config.cliprange,
        beta=config.kl_coef,
        _entropy_bonus_enabled=False,
        use_vllm=config.tis_cap > 0,
        vllm_importance_sampling_correction=True,
    )
    if config.loss_type == "cispo":  # there it is the bound itself, not its distance from 1
        trainer.epsilon_high += 1
    ids = torch.zeros(b["policy"].shape, dtype=torch.long)
    weights = (b["old_log_probs"] - b["sampler_log_probs"]).exp()
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": b["response_mask"].long(),
        "advantages": b["advantages"][:, 0],
        "old_per_token_logps": None if config.loss_type == "reinforce" else b["old_log_probs"],
        "ref_per_token_logps": b["ref_log_probs"],
        "importance_sampling_ratio": weights.clamp(max=config.tis_cap),
        "num_items_in_batch": b["response_mask"].sum(),
    }
    value = GRPOTrainer._compute_loss(trainer, None, inputs)
    return value.detach(), torch.autograd.grad(value, b["policy"])[0]


OF_TRL = list(itertools.product(["reinforce", "grpo_clip", "gspo"], MODES, OPTIONS[3:]))
OF_TRL += [("grpo_clip", mode, OPTIONS[0]) for mode in MODES]
OF_TRL += [("cispo", "token-mean", {"cliprange": 1.0, "cliprange_high": 0.28})]  # no lower bound


@pytest.mark.parametrize("loss_type, mode, options", OF_TRL, ids=str)
def test_value_and_gradient_are_those_of_trl(loss_type, mode, options):
    config = settings(loss_type, mode, options)
    skip = loss_type == "reinforce"  # TRL's value of it has the ratio, 1, in the log-prob's place
    for b in map(random_batch, range(3)):
        assert_close(ours(b, config)[skip:], trl(b, config)[skip:], rtol=1e-6, atol=1e-12)


# ---- Advantages


def advantage(rewards, i, j, config):
    """Of completion j of group i; `rewards` is a list of lists."""
    group = rewards[i]
    baseline = {
        "group_mean": statistics.fmean(group),
        "leave_one_out": statistics.fmean(group[:j] + group[j + 1 :]),
        "none": 0.0,
    }
    scale = {
        "group": statistics.stdev(group),
        "group_biased": statistics.pstdev(group),
        "batch": statistics.stdev(sum(rewards, [])),
        "mean": statistics.fmean(group),
    }
    divisor = 1.0
    if config.scale_rewards != "none":
        divisor = scale[config.scale_rewards] + config.advantage_eps
    return (group[j] - baseline[config.baseline]) / divisor


@pytest.mark.parametrize("scale", ["group", "group_biased", "batch", "none", "mean"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "none"])
def test_advantages_are_those_of_the_formula(baseline, scale):
    config = variants.Config(baseline=baseline, scale_rewards=scale, advantage_eps=0.01)
    rewards = [[0.0, 0.5, 2.0], [1.0, 1.0, 1.0], [0.0, 0.0, 1.5], [0.0, 0.0, 0.0]]
    found = variants.advantages(torch.tensor(rewards, dtype=torch.float64), config)
    for i, j in itertools.product(range(4), range(3)):
        near = 1e-6 if scale == "batch" else 1e-9  # the batch's is gathered, in float32
        expected = advantage(rewards, i, j, config)
        assert found[i, j].item() == pytest.approx(expected, rel=near, abs=1e-12)
    if (baseline, scale) == ("group_mean", "group"):
        assert torch.equal(found, nano_r1.group_advantages(torch.tensor(rewards).double(), config))
