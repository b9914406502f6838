"""The update: a step of `main` is AdamW on the equations, however the work is cut up and shared."""

import itertools
import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import two_processes
from forks import run_several
from helpers import (
    SMALL,
    assert_same,
    config,
    episode,
    formula,
    main,
    make_episodes,
    records,
    score,
    tiny_model,
    updated,
)
from torch.testing import assert_close

import nano_r1 as r1
import variants
from plumbing.evaluation import measure_step
from plumbing.models import load_model, load_policy
from plumbing.processes import init_distributed
from plumbing.record import RunLog


@pytest.fixture(scope="module", autouse=True)
def processes():
    init_distributed()


def formula_step(c, model, optimizer, episodes, old, ref):
    """A step of torch's own AdamW on the equations: (loss, gradient norm).

    `old`, `ref`: each episode's log-probs under the policy that sampled and the reference.
    """
    completions = []
    for i, e in enumerate(episodes):
        if not (c.mask_truncated_completions and e.completion.finish_reason == "length"):
            policy, entropy = score(model, e, c)
            o = {"policy": policy, "entropy": entropy, "old": old[i], "ref": ref[i]}
            o |= {"sampler": torch.tensor(e.completion.logprobs), "advantage": e.advantage}
            completions.append(SimpleNamespace(**o))
    optimizer.zero_grad()
    loss = formula(c, completions, len(episodes))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c.max_grad_norm)
    optimizer.step()
    return torch.stack([loss.detach(), norm])


def formula_update(c, model, optimizer, episodes, reference):
    """The steps of an update: their mean loss and mean gradient norm."""
    old, ref = ([score(m, e, c)[0].detach() for e in episodes] for m in (model, reference))
    measured = []
    size = len(episodes) // c.minibatches
    for start in [*range(0, len(episodes), size)] * c.epochs:
        part = slice(start, start + size)
        step = formula_step(c, model, optimizer, episodes[part], old[part], ref[part])
        measured.append(step)
    return torch.stack(measured).mean(dim=0).tolist()


def adamw(model, c):
    return torch.optim.AdamW(model.parameters(), c.learning_rate, (0.9, 0.95), weight_decay=0.0)


LESSON = [
    {"zero_stage": 0},
    {"zero_stage": 1},
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"offload": True},
    {"engine": "torch"},
    {"temperature": 0.7},
    {"kl_coef": 0.5},
    {"max_grad_norm": 0.01},
]
RELATIVES = [
    {},
    {"loss_agg_mode": "token-mean", "loss_type": "no_baseline"},
    {"loss_agg_mode": "seq-mean-token-sum-norm", "max_tokens": 50, "kl_coef": 0.5},
    {"entropy_coef": 0.05, "temperature": 0.7},
    {"mask_truncated_completions": True, "entropy_coef": 0.05, "loss_agg_mode": "token-mean"},
    {"mask_truncated_completions": True},
    {"tis_cap": 1.1},
    {"minibatches": 3, "epochs": 2, "cliprange": 0.02},
    {"minibatches": 3, "loss_agg_mode": "token-mean", "loss_type": "gspo", "cliprange": 0.01},
    {"minibatches": 3, "loss_type": "reinforce_with_baseline"},  # stale, without correction
]
CASES = [*itertools.product(["lesson"], LESSON), *itertools.product(["variants"], RELATIVES)]


@pytest.mark.parametrize("order, budget", [(1, 30), (-1, 10_000)])
@pytest.mark.parametrize("lesson, changes", CASES, ids=str)
def test_an_update_is_torch_adamw_on_the_equations(lesson, changes, order, budget):
    """Whatever the order of the episodes, the micro-batches and ZeRO's stage.

    With several steps the gradient norm is the mean of theirs: of each, not of the one before.
    """
    c = config(**changes)
    episodes = make_episodes()[::order]
    reference = tiny_model()
    c.micro_batch_tokens = budget
    for p in reference.parameters():
        p.data += 0.05 * torch.randn_like(p)
    for e in episodes[::3]:
        e.completion.finish_reason = "length"
    model = tiny_model()
    means = formula_update(c, model, adamw(model, c), episodes, reference)
    if c.kl_coef:
        r1.add_log_probs(reference, episodes, "ref_log_probs", c)
    update = r1.update if lesson == "lesson" else variants.update
    weights, measured = updated(c, episodes, update=update)
    assert_same(weights, dict(model.named_parameters()), tolerance=5e-5)
    assert [measured["loss"], measured["grad_norm"]] == pytest.approx(means, rel=1e-3, abs=1e-7)


def test_what_is_measured_is_the_policy_s_entropy_and_its_mismatch_with_the_sampler():
    """And the penalty's mean, at every token; an episode keeps its own numbers."""
    c = config(kl_coef=0.1)
    episodes = make_episodes()
    for e in episodes:
        e.per_token["ref_log_probs"] = [-4.0] * e.length
    engine = r1.make_engine(tiny_model(), c)
    measured = measure_step(episodes, c, r1.update(engine, episodes, c, 1e-2))
    scores = [[values.detach() for values in score(tiny_model(), e, c)] for e in episodes]
    log_probs, entropy = map(torch.cat, zip(*scores))
    differences = log_probs + 3.9
    d = -4.0 - log_probs
    ratios = differences.exp()
    expected = {
        "entropy": entropy.mean(),
        "kl": (d.exp() - 1 - d).mean(),
        "sampling/logp_difference_mean": differences.abs().mean(),
        "sampling/logp_difference_max": differences.abs().max(),
        "sampling/ratio_mean": ratios.mean(),
        "sampling/ratio_max": ratios.max(),
        "sampling/ess": ratios.sum() ** 2 / (ratios**2).sum() / len(ratios),
        "loss": torch.tensor(sum(e.measured["loss"] for e in episodes)),
    }
    found = {name: torch.tensor(measured[name]) for name in expected}
    assert_same(found, expected, tolerance=1e-4)
    for e, kept in zip(episodes, scores):
        assert_close([e.measured["log_probs"], e.measured["entropy"]], kept)


def test_a_step_without_signal_changes_nothing_from_a_fresh_optimizer():
    episodes = [episode([1, 2], [3, 4, 0]) for _ in range(3)]
    weights, measured = updated(config(), episodes)
    assert_same(weights, dict(tiny_model().named_parameters()), tolerance=0)
    assert measured["loss"] == 0 and measured["grad_norm"] == 0
    # of no token
    assert not {"entropy", "sampling/ess", "sampling/logp_difference_max"} & set(measured)


SUMS = [{"zero_stage": 2}, {"zero_stage": 3}, {"offload": True}]
SUMS += [{"zero_stage": 3, "offload": True}, {"engine": "torch"}]


@pytest.mark.parametrize("changes", SUMS, ids=str)
def test_in_bfloat16_many_micro_batches_are_summed_in_float32(changes):
    """And with --offload AdamW is fused: the plain one takes nine times as long in one thread."""
    c = config(dtype="bfloat16", **changes)
    engine = r1.make_engine(tiny_model().bfloat16(), c)
    model = tiny_model().bfloat16()
    rounded = tiny_model().bfloat16()
    flat = lambda m: torch.cat([p.grad.float().flatten() for p in m.parameters()])
    total = 0.0
    for seed in range(32):
        ids = torch.randint(0, 50, (1, 6), generator=torch.Generator().manual_seed(seed))
        model.zero_grad()
        # One sums in float32, the other as autograd does, in the weights' dtype.
        for m in (model, rounded):
            m(ids, labels=ids).loss.backward()
        total = total + flat(model)
        engine.backward(engine(ids, labels=ids).loss)
    engine.step()
    assert float(engine.get_global_grad_norm()) == pytest.approx(total.norm().item(), rel=1e-5)
    assert (flat(rounded) - total).norm() > 3e-3 * total.norm()
    assert engine.basic_optimizer.defaults["fused"] is c.offload


def test_deepspeed_starts_when_every_process_has_its_sampler():
    """It has been seen to hang beside a process that was still making its vLLM."""
    begun = mock.Mock()
    begun.initialize.return_value = [mock.Mock()]
    barrier = mock.patch("torch.distributed.barrier", begun.barrier)
    with barrier, mock.patch("deepspeed.initialize", begun.initialize):
        r1.make_engine(tiny_model(), config())
    assert [call[0] for call in begun.method_calls[:2]] == ["barrier", "initialize"]


def test_two_processes_give_the_weights_of_one(tmp_path):
    """Uneven shares too: one has twice as many micro-batches, or no signal at all."""
    found = tmp_path / "found.json"
    done = run_several(found, script="tests/two_processes.py")
    assert [code for code, _, _ in done] == [0, 0], done
    for case, (weights, measured) in json.loads(found.read_text()).items():
        expected, alone = two_processes.updated_case(case)
        assert_same({n: torch.tensor(p) for n, p in weights.items()}, expected, tolerance=3e-5)
        for name in ("loss", "grad_norm"):
            assert measured[name] == pytest.approx(alone[name], rel=1e-3), (case, name)


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}], ids=["all weights", "lora"])
def test_gradient_checkpointing_recomputes_and_changes_nothing(changes, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    results = []
    hooks = []
    for recompute in (False, True):
        c = config(gradient_checkpointing=recompute, model=str(tmp_path), **changes)
        c.micro_batch_tokens = 10_000
        model = load_policy(c, None, torch.device("cpu"))
        hooks.append(mock.Mock(return_value=None))
        model.get_decoder().layers[0].mlp.register_forward_pre_hook(hooks[-1])
        results.append(updated(c, make_episodes(), model)[0])
    assert [hook.call_count for hook in hooks] == [1, 2]  # once more in the backward pass
    assert_same(*results, tolerance=1e-6)


# The whole loop

RUN = {
    **SMALL,
    "steps": 2,
    "eval_problems": 1,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "kl_coef": 0.5,
    "temperature": 0.9,
}


def train(out, lesson, **changes):
    """Two steps of `main`: (settings, the episodes of each, the run's directory)."""
    save_step = RunLog.save_step
    with mock.patch.object(RunLog, "save_step", autospec=True, side_effect=save_step) as saved:
        path, _ = main(lesson, **RUN, out=str(out), name=lesson.__name__, **changes)
    return variants.Config(**RUN, **changes), [call.args[3] for call in saved.mock_calls], path


SEVERAL = {"minibatches": 2, "epochs": 2, "cliprange": 0.01}


@pytest.mark.parametrize("lesson, changes", [(r1, {}), (variants, SEVERAL)], ids=["lesson", "2x2"])
def test_two_steps_of_main_are_torch_adamw_on_the_paper_s_equations(tmp_path, lesson, changes):
    """arXiv:2402.03300, eq. 3 and 4, in float64."""
    c, sampled, path = train(tmp_path, lesson, **changes)
    paths = (c.model, c.model, path / "model")
    start, model, final = (load_model(name, "float32").double() for name in paths)
    optimizer = adamw(model, c)
    # Warm-up to step 2, decay from step 1.
    for lr, episodes in zip((0.5e-3, 1e-3 * 0.5), sampled, strict=True):
        rewards = torch.tensor([e.reward.total for e in episodes], dtype=torch.float64).view(-1, 4)
        deviations = rewards - rewards.mean(dim=1, keepdim=True)
        advantages = deviations / (rewards.std(dim=1, keepdim=True) + c.advantage_eps)
        found = [e.advantage for e in episodes]
        assert found == pytest.approx(advantages.flatten().tolist(), rel=1e-4, abs=1e-6)
        optimizer.param_groups[0]["lr"] = lr
        formula_update(c, model, optimizer, episodes, start)
    weights = [m.parameters() for m in (start, model, final)]
    before, theirs, ours = map(torch.nn.utils.parameters_to_vector, weights)
    assert (theirs - before).norm() > 0.1
    assert (ours - theirs).norm() < 1e-3 * (theirs - before).norm()
    last = records(path)[-1]
    assert last["kl"] > 1e-4
    assert (last["clip_ratio/low"] + last["clip_ratio/high"] > 0) == bool(changes)


def test_variants_with_its_default_flags_is_the_lesson_bit_for_bit(tmp_path):
    (_, _, ours), (_, _, theirs) = (train(tmp_path, lesson) for lesson in (variants, r1))
    assert records(ours) == records(theirs)
    weights = [load_model(path / "model", "float32").parameters() for path in (ours, theirs)]
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))
