"""GRPO's relatives: rollouts, updates, LoRA, commands. test_check_grpo.py has the formulas."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from two_processes import CASES, make_episodes, settings, tiny_model, updated, weights_of

import nano_eval
import nano_r1
import nano_sft
import variants
from benchmarks import runs

ROOT = Path(__file__).parent.parent
DOCS = (ROOT / "docs/algorithms.md").read_text()


def group_of(*answers):
    """Completions with these correctness rewards, whose totals all differ."""
    episodes = []
    for i, answer in enumerate(answers):
        e = nano_r1.Episode(token_ids=[1], reward=answer + i / 8, answer_reward=answer)
        episodes.append(e)
    return episodes


# ---- The rollout


@pytest.mark.parametrize(
    "length, binary, total",
    [(6, False, 1.5), (7, False, 1.25), (20, False, 0.5), (6, True, 1.0)],
)
def test_a_reward_falls_by_up_to_1_over_the_last_tokens(length, binary, total):
    config = variants.Config(max_tokens=10, overlong_buffer=4, binary_reward=binary)
    assert variants.shaped(1.5, 1.0, length, config) == total


@pytest.mark.parametrize("most, draws", [(1, [1]), (3, [1, "1, 1"])])
def test_dynamic_sampling_draws_until_m_groups_have_a_signal(most, draws, monkeypatch):
    drawn = [[1, 1, 0, 2, 0, 0], [0, 0, 3, 1, 2, 1]]
    asked = []

    def draw_groups(sampler, problems, task, config, step):
        asked.append(step)
        return group_of(*drawn[len(asked) - 1])

    monkeypatch.setattr(nano_r1, "rollout", draw_groups)
    config = variants.Config(prompts_per_step=3, group_size=2, max_num_gen_batches=most)
    episodes = variants.rollout(None, None, None, config, step=1)
    assert asked == draws
    chosen = [1, 1, 0, 2, 0, 0] if most == 1 else [0, 2, 3, 1, 2, 1]
    assert [e.answer_reward for e in episodes] == chosen


def test_the_groups_that_were_chosen_are_shared_over_the_processes(monkeypatch):
    everywhere = [group_of(1, 1), group_of(0, 2), group_of(3, 1), group_of(1, 1)]
    monkeypatch.setattr(variants, "RANK", 1)
    monkeypatch.setattr(variants, "WORLD", 2)
    monkeypatch.setattr(variants, "gather", lambda groups: everywhere)
    monkeypatch.setattr(nano_r1, "rollout", lambda *args: [])
    config = variants.Config(prompts_per_step=2, group_size=2, max_num_gen_batches=2)
    episodes = variants.rollout(None, None, None, config, step=1)
    assert [e.answer_reward for e in episodes] == [3, 1]


def test_vineppo_s_advantages_are_the_differences_of_values():
    """The continuation of n tokens is n, then zeros, and a completion's reward is its sum."""
    asked = []

    def generate(starts, n, temperature, seeds):
        asked.extend(starts)
        # They do not depend on the number of processes.
        assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]
        return [([len(ids) - 1, 0, 0, 0, 0, 9], []) for ids in starts for _ in range(n)]

    task = SimpleNamespace(
        text_of=sum,
        reward=lambda text, *_: (float(text), 0.0, 0.0, ""),
    )
    episodes = [
        nano_r1.Episode(prompt_ids=[7], token_ids=[0] * 6, reward=5.0),
        nano_r1.Episode(prompt_ids=[7], token_ids=[0] * 7, reward=1.0),
    ]
    config = variants.Config(
        group_size=2,
        vine_segments=3,
        vine_samples=2,
        max_tokens=7,  # continuations are cut off there
    )
    sampler = SimpleNamespace(generate=generate)
    variants.add_vine_advantages(sampler, episodes, task, config, step=1)
    assert asked == [[7, 0, 0], [7, 0, 0, 0, 0]] * 2
    # V(beginning) is the other's reward; V(cut) 2, then 4; V(end) its own reward.
    assert episodes[0].extra["advantages"] == [1, 1, 2, 2, 1, 1]
    assert episodes[1].extra["advantages"] == [-3, -3, 2, 2, -3, -3, -3]


@pytest.mark.parametrize(
    "extras",
    [[{"advantages": [1.0]}, {"advantages": []}], [{}, {"advantages": [1.0, 2.0]}]],
)
def test_advantages_per_token_are_refused_unless_each_trained_token_has_one(extras):
    episodes = [nano_r1.Episode(token_ids=[5], extra=extra) for extra in extras]
    with pytest.raises(ValueError, match="advantages"):
        variants.update(None, None, episodes, variants.Config(), None)


# ---- The update


def plain_update(config, episodes):
    """(the weights after torch's AdamW on the loss of all completions at once, its last mean)."""
    model = tiny_model()
    policy = nano_r1.Scorer(model, config)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, (0.9, 0.95), weight_decay=0.0)
    size = len(episodes) // config.minibatches
    for _ in range(config.epochs):
        losses = []
        for part in variants.batched(episodes, size):
            batch = nano_r1.collate(part, "cpu")
            batch["old_log_probs"] = nano_r1.Scorer(tiny_model(), config)(batch).detach()
            if config.credit == "vineppo":
                batch["advantages"] = batch["advantages"] + batch["response_mask"].cumsum(1) - 1
            batch |= {"completions": size, "tokens": batch["response_mask"].sum()}
            optimizer.zero_grad()
            losses.append(variants.loss(policy(batch), batch, config).sum())
            losses[-1].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
    return weights_of(model), sum(losses).item() / len(losses)


def assert_same(weights, others):
    for name, weight in others.items():
        assert_close(torch.tensor(weights[name]), torch.tensor(weight), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",  # test_check_grpo.py has the losses
    [
        {"minibatches": 2, "loss_agg_mode": "token-mean"},
        {"minibatches": 3, "epochs": 2, "cliprange": 0.02, "temperature": 0.7},
        {"minibatches": 4, "loss_type": "reinforce", "credit": "vineppo"},
        CASES["gspo"],
    ],
)
def test_an_update_is_adamw_on_the_loss_of_all_completions_at_once(changes):
    config = settings(**changes)
    episodes = make_episodes()
    if config.credit == "vineppo":
        for e in episodes:
            e.extra["advantages"] = [e.advantage + i for i in range(len(e.token_ids))]
    expected, loss = plain_update(config, episodes)
    weights, batches = updated(config, episodes)
    assert_same(weights, expected)
    assert sum(batch["loss"].sum().item() for batch in batches) == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("count, sizes", [(5, [3, 2]), (1, [1])])
def test_an_update_has_at_most_as_many_steps_as_minibatches(count, sizes):
    _, batches = updated(settings(minibatches=2), make_episodes()[:count])
    assert [len(batch["episodes"]) for batch in batches] == sizes


def test_before_a_step_the_old_policy_is_the_policy_to_the_last_bit():
    """In other micro-batches it would differ: in bfloat16, by more than GSPO's clip."""
    differences = []

    def loss(log_probs, batch, config):
        differences.append((log_probs - batch["old_log_probs"]).abs().max())
        return log_probs.sum(dim=1)

    config = settings(dtype="bfloat16", minibatches=2, micro_batch_size=3)
    policy, _ = nano_r1.load_model(config)
    engine = nano_r1.make_engine(nano_r1.Scorer(policy, config), torch.device("cpu"), config)
    engine.optimizer.param_groups[0]["lr"] = 0.0
    variants.update(engine, None, make_episodes(), config, loss)
    assert len(differences) == 4 and max(differences) == 0


def test_tokens_whose_gradient_the_clip_sets_to_0_are_counted_with_several_steps(monkeypatch):
    ratios = torch.tensor([[1.3, 0.7, 1.1, 9.0], [1.3, 0.7, 0.5, 0.1]])
    batch = {
        "old_log_probs": torch.zeros(2, 4),
        "advantages": torch.tensor([[2.0], [-2.0]]),
        "response_mask": torch.tensor([[True, True, True, False]] * 2),
        "completions": 2,
    }
    variants.loss(ratios.log(), batch, variants.Config(kl_coef=0.0))
    monkeypatch.setattr(nano_r1, "measure_step", lambda *args: {})
    for epochs, measured in (2, {"clip_ratio/region_mean": 3 / 6}), (1, {}):
        config = variants.Config(epochs=epochs)
        assert variants.measure([{"written": 3}] * 4, [batch] * 2, None, 1, config) == measured


def test_an_upper_eps_of_0_is_0():
    config = variants.Config(cliprange_high=0.0)
    assert variants.clip(torch.tensor([0.7, 1.1]), config).tolist() == pytest.approx([0.8, 1.0])


@pytest.mark.parametrize("loss_type", variants.TOKEN_LOSSES)
def test_the_loss_of_a_completion_without_a_token_of_the_model_is_0(loss_type):
    names = ("old_log_probs", "sampler_log_probs", "response_mask", "advantages")
    batch = dict.fromkeys(names, torch.zeros(1, 3)) | {"completions": 1}
    assert variants.loss(torch.zeros(1, 3), batch, settings(loss_type=loss_type)) == 0


# ---- LoRA


def with_adapters(**changes):
    """(policy, tokenizer), with adapters as after training: B is not 0."""
    config = variants.Config(lora_rank=4, **changes)
    policy, tokenizer = variants.load_model(config)
    for name, weight in policy.get_base_model().named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    return policy, tokenizer


@torch.no_grad()
def logits_of(model):
    return model(torch.arange(5, 60)[None]).logits


def test_the_merged_weights_are_the_adapters_forward_pass(tmp_path):
    policy, tokenizer = with_adapters()
    nano_r1.save_model(policy, tokenizer, tmp_path)
    saved, _ = nano_r1.load_model(variants.Config(model=str(tmp_path)))
    assert_close(logits_of(saved), logits_of(policy), atol=1e-3, rtol=1e-4)
    to_vllm = dict(nano_r1.full_weights(policy))
    assert_close(to_vllm, dict(nano_r1.full_weights(saved)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_is_the_base_on_the_policy_s_own_frozen_weights(dtype):
    policy, _ = with_adapters(dtype=dtype)
    nano_r1.check_scorer(policy, nano_r1.Config())
    reference = variants.make_reference(policy, variants.Config(lora_rank=4)).model
    base, _ = nano_r1.load_model(nano_r1.Config())
    assert (logits_of(policy) - logits_of(base)).abs().max() > 1
    if dtype == "float32":
        assert torch.equal(logits_of(reference), logits_of(base))
    frozen = set(reference.parameters())
    assert {weight.dtype for weight in frozen} == {getattr(torch, dtype)}
    for weight in policy.get_base_model().parameters():
        assert weight.requires_grad == (weight not in frozen)
        assert weight in frozen or weight.dtype == torch.float32


def test_a_run_with_much_switched_on_leaves_torchs_random_state(tmp_path):
    before = torch.get_rng_state()
    config = variants.Config(
        prompts_per_step=2,
        group_size=4,
        max_tokens=30,
        eval_problems=4,
        max_num_gen_batches=2,
        minibatches=2,
        credit="vineppo",
        overlong_buffer=20,
        lora_rank=4,
        steps=1,
        name=f"{tmp_path}/run",
    )
    path = variants.main(config)
    assert torch.equal(torch.get_rng_state(), before)
    assert os.path.exists(f"{path}/model/model.safetensors")


# ---- Settings


@pytest.mark.parametrize("command", re.findall(r"\| `(--.+?)` \|", DOCS))
def test_each_command_of_the_page_runs(command, monkeypatch):
    monkeypatch.setattr(nano_r1, "main", lambda config, **functions: sorted(functions))
    config = runs.parse("variants", command)
    names = "advantages load_model load_problems loss make_reference measure rollout update"
    assert variants.main(config) == names.split()


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_size": 1},
        {"baseline": "none", "scale_rewards": "batch"},
        {"scale_rewards": "mean", "overlong_buffer": 9},
        {"lora_rank": 8, "zero_stage": 3},
        {"lora_rank": 8, "teacher": "out/x"},
        {"sampler_ratio_min": 5.0},
        {"teacher": "out/x", "credit": "vineppo"},
        {"minibatches": 5},
        {"max_num_gen_batches": 0},
    ],
)
def test_settings_that_contradict_each_other_are_one_sentence(wrong):
    with pytest.raises(SystemExit, match=f"--{list(wrong)[0]} "):
        variants.main(variants.Config(**wrong))


@pytest.mark.parametrize("program", [variants, nano_eval, nano_sft])
def test_a_wrong_file_is_said_before_the_model_is_loaded(program):
    with pytest.raises(SystemExit, match="nothing.jsonl: No such file"):
        program.main(program.Config(data=None, eval_data="nothing.jsonl", model="none"))


def test_with_a_teacher_the_loss_is_k2_to_it(monkeypatch):
    _, tokenizer = nano_r1.load_model(nano_r1.Config())
    monkeypatch.setattr(nano_r1, "load_model", lambda config: (config.model, tokenizer))
    monkeypatch.setattr(nano_r1, "main", lambda config, **parts: config)
    monkeypatch.setattr(variants, "Scorer", lambda model, config: model)
    config = variants.main(settings(teacher="seven"))
    assert variants.make_reference(None, config) == "seven"
    assert (config.kl_estimator, config.kl_coef) == ("k2", 1.0)
    assert not variants.advantages(torch.rand(1, 2), config).any()
