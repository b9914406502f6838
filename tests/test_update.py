"""The DeepSpeed update: the gradient is that of the formula, however the work is cut up."""

import copy
import json
import subprocess
import sys

import pytest
import torch

import countdown_rewards as task
import nano_r1 as r1

RANK, WORLD, DEVICE = 0, 1, torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def processes():
    r1.start_processes()


def tiny_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=32, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def make_episodes(count=12, seed=0):
    """Episodes of a random policy, some of them with advantage 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(1, 50, (n,), generator=g).tolist()
    episodes = []
    for i in range(count):
        length = 1 + int(torch.randint(3, 20, (1,), generator=g))
        completion = r1.Completion(draw(length), [-3.9] * length, "stop")
        reward = {"reward": float(i % 3), "format_reward": 0.0, "answer_reward": 0.0, "why": ""}
        advantage = 0.0 if i % 4 == 0 else float(torch.randn(1, generator=g))
        episodes.append(r1.Episode({}, draw(3 + i % 3), completion, "", reward, advantage))
    return episodes


def config(**changes):
    return r1.Config(**{"learning_rate": 1e-2, "zero_stage": 2, "micro_batch_tokens": 60, **changes})


def updated(c, episodes, model=None):
    """Weights after one `update_policy`, and what it measured."""
    model = model or tiny_model()
    engine = r1.make_engine(model, c)
    measured = r1.update_policy(engine, episodes, c, DEVICE, WORLD)
    return {name: p.detach().float().clone() for name, p in engine.module.named_parameters()}, measured


def formula_loss(model, episodes, c, ref=None):
    """The loss written down again, episode by episode, without padding, masks or micro-batches."""
    total = 0.0
    for e in episodes:
        ids = torch.tensor([e.prompt_ids + e.completion.token_ids])
        log_probs = (model(ids).logits[0, :-1] / c.temperature).log_softmax(-1)
        chosen = log_probs[torch.arange(len(log_probs)), ids[0, 1:]][len(e.prompt_ids) - 1 :]
        if c.mask_truncated and e.completion.finish_reason == "length":
            continue
        weight = 1 / e.length if c.aggregate == "sequence_mean" else 1.0
        total = total - weight * (e.advantage * chosen).sum()
        entropy = -(log_probs.exp() * log_probs).sum(-1)[len(e.prompt_ids) - 1 :]
        total = total - weight * c.entropy_coef * entropy.sum()
        if ref is not None:
            with torch.no_grad():
                d = (ref(ids).logits[0, :-1] / c.temperature).log_softmax(-1)
            d = d[torch.arange(len(d)), ids[0, 1:]][len(e.prompt_ids) - 1 :] - chosen
            total = total + c.kl_coef * (d.exp() - 1 - d).sum()
    counted = [e for e in episodes if not (c.mask_truncated and e.completion.finish_reason == "length")]
    tokens, rows = sum(e.length for e in counted), len(episodes)
    return total / {"token_mean": tokens, "sequence_mean": rows, "constant": rows * c.max_tokens}[c.aggregate]


def formula_step(c, episodes, ref=None):
    """One step of torch's own AdamW on `formula_loss`; returns weights, loss, gradient norm."""
    model = tiny_model()
    loss = formula_loss(model, episodes, c, ref)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c.max_grad_norm)
    torch.optim.AdamW(model.parameters(), lr=c.learning_rate, betas=(0.9, 0.95), weight_decay=0.0).step()
    return {name: p.detach() for name, p in model.named_parameters()}, loss.item(), norm.item()


def assert_same(weights, others, tolerance=2e-5):
    for name, value in weights.items():
        assert torch.allclose(value, others[name], atol=tolerance), name


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_update_is_one_step_of_torch_adamw_on_the_formula(stage):
    c, episodes = config(zero_stage=stage), make_episodes()
    expected, loss, norm = formula_step(c, episodes)
    engine = r1.make_engine(tiny_model(), c)
    measured = r1.update_policy(engine, episodes, c, DEVICE, WORLD)
    with r1.gathered(engine.module):
        weights = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    assert_same(weights, expected)
    assert measured["loss"] == pytest.approx(loss, rel=1e-4)
    assert measured["grad_norm"] == pytest.approx(norm, rel=1e-3)


ALGORITHMS = [
    {"aggregate": "sequence_mean"},
    {"aggregate": "constant", "max_tokens": 50},
    {"entropy_coef": 0.05},
    {"mask_truncated": True},
    {"mask_truncated": True, "aggregate": "sequence_mean", "entropy_coef": 0.05},
]


@pytest.mark.parametrize("changes", ALGORITHMS, ids=str)
@pytest.mark.parametrize("budget", [30, 10_000])
def test_one_update_of_every_aggregation_is_one_step_on_its_formula(changes, budget):
    c, episodes = config(micro_batch_tokens=budget, **changes), make_episodes()
    for e in episodes[::3]:
        e.completion.finish_reason = "length"
    expected, loss, norm = formula_step(c, episodes)
    weights, measured = updated(c, episodes)
    assert_same(weights, expected, tolerance=5e-5)
    assert measured["loss"] == pytest.approx(loss, rel=1e-4)
    assert measured["grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_each_minibatch_is_a_step_of_its_own_on_its_own_groups():
    episodes = [e for e in make_episodes(8) if e.advantage]
    c = config(loss="grpo_clip", minibatches=3, completions=2, cliprange=10.0)
    both, _ = updated(c, episodes)
    model, old = tiny_model(), tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=c.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for part in (episodes[0:2], episodes[2:4], episodes[4:6]):
        total = 0.0
        for e in part:
            ids = torch.tensor([e.prompt_ids + e.completion.token_ids])
            chosen = lambda m: m(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(e.prompt_ids) - 1 :]
            total = total - e.advantage * (chosen(model) - chosen(old).detach()).exp().sum()
        optimizer.zero_grad()
        (total / sum(e.length for e in part)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), c.max_grad_norm)
        optimizer.step()
    assert_same(both, dict(model.named_parameters()), tolerance=5e-5)


def test_the_sampler_s_mismatch_is_logged_as_difference_ratio_and_effective_sample_size():
    episodes = [e for e in make_episodes() if e.advantage]
    _, measured = updated(config(), episodes)
    ratios = []
    for e in episodes:
        ids = torch.tensor([e.prompt_ids + e.completion.token_ids])
        log_probs = tiny_model()(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        ratios += (log_probs[len(e.prompt_ids) - 1 :] - torch.tensor(e.completion.logprobs)).exp().tolist()
    assert measured["sampling/ratio_mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert measured["sampling/ratio_max"] == pytest.approx(max(ratios), rel=1e-4)
    ess = sum(ratios) ** 2 / sum(r * r for r in ratios) / len(ratios)
    assert measured["sampling/ess"] == pytest.approx(ess, rel=1e-4)


def test_the_gradient_norm_is_that_of_this_step():
    c, episodes = config(max_grad_norm=0.01), make_episodes()
    engine = r1.make_engine(tiny_model(), c)
    first = r1.update_policy(engine, episodes, c, DEVICE, WORLD)["grad_norm"]
    other = [copy.copy(e) for e in episodes]
    for e in other:
        e.advantage *= 10
    second = r1.update_policy(engine, other, c, DEVICE, WORLD)["grad_norm"]
    assert second > 5 * first  # ten times the advantages, nearly the same weights


@pytest.mark.parametrize("budget", [30, 100, 10_000])
def test_any_micro_batch_size_gives_the_same_weights(budget):
    episodes = make_episodes()
    reference, _ = updated(config(micro_batch_tokens=60), episodes)
    weights, _ = updated(config(micro_batch_tokens=budget), episodes)
    assert_same(weights, reference)


def test_the_order_of_episodes_does_not_matter():
    episodes = make_episodes()
    assert_same(updated(config(), episodes)[0], updated(config(), episodes[::-1])[0])


def test_the_denominator_counts_the_tokens_of_completions_without_advantage():
    episodes = make_episodes()
    with_them = updated(config(), episodes)[1]["loss"]
    without = updated(config(), [e for e in episodes if e.advantage])[1]["loss"]
    tokens, useful = sum(e.length for e in episodes), sum(e.length for e in episodes if e.advantage)
    assert with_them * tokens == pytest.approx(without * useful, rel=1e-4)


def test_a_step_without_signal_changes_nothing_from_a_fresh_optimizer():
    episodes = make_episodes()
    for e in episodes:
        e.advantage = 0.0
    weights, measured = updated(config(), episodes)
    assert_same(weights, dict(tiny_model().named_parameters()), tolerance=0)
    assert measured["loss"] == 0 and measured["grad_norm"] == 0
    assert not {"entropy", "sampling/ess", "sampling/logp_difference_max"} & set(measured)  # of no token


def test_the_stop_token_gets_gradient():
    episode = make_episodes(2)[1]
    episode.advantage = 1.0
    stop = r1.Completion([5, 6, 0], [-3.9] * 3, "stop")
    episode.completion = stop
    before = tiny_model()
    weights, _ = updated(config(), [episode])
    after = tiny_model()
    after.load_state_dict({**after.state_dict(), **weights})
    ids = torch.tensor([episode.prompt_ids + [5, 6]])
    with torch.no_grad():
        assert after(ids).logits[0, -1].softmax(-1)[0] > before(ids).logits[0, -1].softmax(-1)[0]


def test_the_kl_penalty_pulls_towards_the_reference_with_the_formula_s_gradient():
    c, episodes = config(kl_coef=0.5), make_episodes()
    torch.manual_seed(1)
    ref = tiny_model()
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(0.05 * torch.randn_like(p))
    r1.add_log_probs(ref, episodes, "ref_log_probs", c, DEVICE)
    weights, measured = updated(c, episodes)
    expected, loss, _ = formula_step(c, episodes, ref)
    assert_same(weights, expected, tolerance=5e-5)
    assert measured["loss"] == pytest.approx(loss, rel=1e-4) and measured["kl"] > 0


def test_the_first_epoch_of_grpo_clip_is_the_plain_policy_gradient():
    episodes = make_episodes()
    clipped, measured = updated(config(loss="grpo_clip"), episodes)
    assert_same(clipped, updated(config(), episodes)[0])
    assert measured["clip_ratio/low"] == measured["clip_ratio/high"] == 0


def test_later_epochs_of_grpo_clip_clip():
    _, measured = updated(config(loss="grpo_clip", epochs=4, cliprange=0.01), make_episodes())
    assert measured["clip_ratio/low"] > 0 and measured["clip_ratio/high"] > 0


def test_entropy_is_the_true_entropy_of_the_policy():
    episodes = [e for e in make_episodes() if e.advantage]
    _, measured = updated(config(), episodes)
    model, total = tiny_model(), 0.0
    for e in episodes:
        logits = model(torch.tensor([e.prompt_ids + e.completion.token_ids])).logits[0, len(e.prompt_ids) - 1 : -1]
        total += torch.distributions.Categorical(logits=logits).entropy().sum().item()
    assert measured["entropy"] == pytest.approx(total / sum(e.length for e in episodes), rel=1e-4)


def test_bfloat16_weights_with_float32_master_weights_train():
    c, episodes = config(dtype="bfloat16"), make_episodes()
    weights, measured = updated(c, episodes, tiny_model().bfloat16())
    assert measured["grad_norm"] > 0
    assert any(not torch.equal(weights[n], p.bfloat16().float()) for n, p in tiny_model().named_parameters())


SEVERAL_STEPS = {"aggregate": "sequence_mean", "entropy_coef": 0.02, "minibatches": 3, "completions": 2, "epochs": 2}
CASES = {  # ZeRO stage, every other episode without signal, other settings
    "plain": (2, False, {}),
    "silent": (2, True, {}),
    "sharded": (3, False, {}),
    "sharded, in chunks": (3, False, {}),
    "gspo": (2, False, {"loss": "gspo", **SEVERAL_STEPS}),
    "constant": (2, False, {"aggregate": "constant"}),
}


def test_two_processes_give_the_weights_of_one(tmp_path):
    """Uneven shares too: one process's completions are twice as many micro-batches, or all without signal."""
    script = tmp_path / "two.py"
    script.write_text(
        "import sys, json, torch, torch.distributed as dist\n"
        "sys.path[:0] = ['.', 'tests']\n"
        "import nano_r1 as r1, test_update as t\n"
        "rank, world, device = r1.start_processes()\n"
        "result = {}\n"
        "for case, (stage, silent, changes) in t.CASES.items():\n"
        "    episodes = t.make_episodes()\n"
        "    for e in episodes[1::2]:\n"
        "        e.advantage = 0.0 if silent else e.advantage\n"
        "    r1.LOGITS_AT_ONCE = 50 * 7 if 'chunks' in case else 10**9\n"
        "    c = t.config(zero_stage=stage, **changes)\n"
        "    groups = [episodes[start : start + 2] for start in range(0, 12, 2)][rank::world]\n"
        "    mine = [e for group in groups for e in group]\n"
        "    engine = r1.make_engine(t.tiny_model(), c)\n"
        "    m = r1.update_policy(engine, mine, c, device, world)\n"
        "    with r1.gathered(engine.module):\n"
        "        w = {n: p.detach().flatten().tolist() for n, p in engine.module.named_parameters()}\n"
        "    result[case] = (w, m['loss'], m['grad_norm'], m['entropy'])\n"
        "if rank == 0:\n"
        "    json.dump(result, open(sys.argv[1], 'w'))\n"
        "r1.stop_processes()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*torchrun, script, tmp_path / "w.json"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-6000:]
    for case, (weights, loss, norm, entropy) in json.load(open(tmp_path / "w.json")).items():
        _, silent, changes = CASES[case]
        episodes = make_episodes()
        for e in episodes[1::2]:
            e.advantage = 0.0 if silent else e.advantage
        expected, measured = updated(config(**changes), episodes)
        assert_same({n: torch.tensor(v).view_as(expected[n]) for n, v in weights.items()}, expected, tolerance=3e-5)
        assert loss == pytest.approx(measured["loss"], rel=1e-4), case
        assert norm == pytest.approx(measured["grad_norm"], rel=1e-3), case


def rewarded(rewards):
    verdict = lambda r: {"reward": r, "format_reward": 0.0, "answer_reward": 0.0, "why": ""}
    return [r1.Episode({"place": i}, [1], r1.Completion([1], [0.0], "stop"), "", verdict(r)) for i, r in enumerate(rewards)]


def test_a_batch_is_filled_with_the_groups_that_have_a_signal_first():
    c = config(questions=2, completions=2, sampling_rounds=3)
    episodes = rewarded([1, 1, 0, 2, 0, 0, 1, 0])  # groups without, with, without, with a signal
    assert r1.count_signals(episodes, c) == 2
    assert [e.problem["place"] for e in r1.fill_batch(episodes, c, 0, 1)] == [2, 3, 6, 7]
    c = config(questions=3, completions=2, sampling_rounds=3)
    assert [e.problem["place"] for e in r1.fill_batch(episodes, c, 0, 1)] == [2, 3, 6, 7, 0, 1]


def test_without_dynamic_sampling_the_batch_is_what_was_sampled():
    episodes = rewarded([1, 1, 0, 2])
    assert r1.fill_batch(episodes, config(questions=2, completions=2), 0, 1) is episodes


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}], ids=["all weights", "lora"])
def test_gradient_checkpointing_recomputes_and_changes_nothing(changes, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    results, passes = [], []
    for recompute in (False, True):
        c = config(model=str(tmp_path), gradient_checkpointing=recompute, micro_batch_tokens=10_000, **changes)
        model, count = r1.load_policy(c), []
        next(m for m in model.modules() if type(m).__name__ == "Qwen2DecoderLayer").mlp.register_forward_pre_hook(
            lambda *_: count.append(1)
        )
        results.append(updated(c, make_episodes(), model)[0])
        passes.append(len(count))
    assert passes == [1, 2]  # once more in the backward pass
    assert_same(*results, tolerance=1e-6)


def test_rewards_of_a_step_become_advantages_of_its_episodes():
    problem = {"nums": [1, 2, 4], "target": 7}
    texts = ["\n</think>\n<answer>1+2+4</answer>", "\n</think>\n<answer>1*2*4</answer>", "?", "?"]
    episodes = [r1.Episode(problem, [1], r1.Completion([1], [0.0], "stop"), text) for text in texts]
    r1.score(episodes, task, config(completions=4))
    r1.add_advantages(episodes, config(completions=4))
    rewards = torch.tensor([2.0, 1.0, 0.0, 0.0])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert [e.advantage for e in episodes] == pytest.approx(expected.tolist(), rel=1e-5)
    assert [e.reward["why"] for e in episodes][:2] == ["correct", "equals 8, not 7"]
