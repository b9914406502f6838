"""Whole runs of `main`: what they leave behind, and that a resumed run is the same run."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from forks import run_several
from helpers import (
    SMALL,
    flags,
    main,
    records,
    resume,
    rows_of,
    run,
    train,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import variants
from plumbing.health import health_warnings
from plumbing.settings import UserError
from plumbing.start import check_model
from plumbing.token_record import load_tokens

FOUR_STEPS = {**SMALL, "steps": 4, "eval_every": 2, "kl_coef": 0.01}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four steps as a user starts it, with everything on; (process, its directory)."""
    out = tmp_path_factory.mktemp("out")
    done = run(*flags(out=out, name="a", wandb="offline", **FOUR_STEPS))
    assert done.returncode == 0, done.stderr
    return done, out / "a"


def test_the_console_says_the_prompt_each_step_and_where_everything_is(whole):
    done, path = whole
    before, *evaluations = done.stdout.split("evaluation after step")
    assert "rollout transformers, engine deepspeed" in " ".join(before.split())
    assert "  | assistant: <think>" in before and "'<|endoftext|>' (0)" in before
    assert re.search(r"step +4/4 .* 0 s$", evaluations[-2], re.MULTILINE)  # is left
    assert len(evaluations) == 3 and all("  --- Make " in text for text in evaluations)
    for name in ("model", "curves.png", "report.html", "episodes", "metrics.jsonl"):
        assert f"{path}/{name}" in evaluations[-1] and (path / name).exists()
    assert f"python ask.py {path}\n" in evaluations[-1]
    assert [x for x in done.stdout.splitlines() if len(x) > 80 and str(path) not in x] == []


def test_the_libraries_print_nothing(whole):
    done, _ = whole
    ours = "models/nano-base: countdown: 4 memory, record: a the step evaluation pass@1 0. ..."
    ours = (*f"{ours} try model curves report episodes metrics".split(), "  ")
    lines = filter(None, done.stdout.splitlines())
    assert done.stderr == "" and [line for line in lines if not line.startswith(ours)] == []


def test_every_step_has_every_metric(whole):
    names = """step reward reward_std reward/format reward/answer frac_reward_zero_std
    completions/mean_length completions/clipped_ratio entropy kl loss grad_norm lr tokens/rollout
    sampling/logp_difference_mean sampling/logp_difference_max tokens/update time/rollout
    time/reward time/update time/sync time/step"""
    of_evaluation = """eval/pass@1 eval/pass@1_low eval/pass@1_high eval/format eval/mean_length
    eval/3_numbers/pass@1 eval/needs_muldiv/pass@1"""
    rows = rows_of(whole[1] / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(set(names.split()) <= set(row) for row in rows[1:])
    assert all(set(of_evaluation.split()) <= set(row) for row in rows[::2])
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in rows[1:])


def test_episodes_hold_every_completion_with_its_reward_and_advantage(whole):
    assert os.listdir(whole[1] / "wandb")
    rows = rows_of(whole[1] / "episodes" / "step_000001.jsonl")
    for row in rows:
        assert row["reward"] == row["format_reward"] + row["answer_reward"]
        assert row["length"] <= 60 and {"problem", "completion", "why", "finish_reason"} <= set(row)
    advantages = np.array([row["advantage"] for row in rows]).reshape(4, 4)
    assert advantages.sum(axis=1) == pytest.approx(0, abs=1e-4)


def weights(path):
    return list(AutoModelForCausalLM.from_pretrained(path).parameters())


def test_the_saved_model_has_the_last_update(whole):
    """The trap: the final step's weights are dropped. Checkpoint 4 was written after it."""
    model = weights(whole[1] / "model")
    last = weights(whole[1] / "checkpoints" / "step_000004" / "policy")
    assert all(map(torch.equal, model, last))
    assert not any(map(torch.equal, model, weights("models/nano-base")))
    assert AutoTokenizer.from_pretrained(whole[1] / "model").chat_template


def unfinished(path, to):
    """A copy of a finished run as if it had been killed while writing its last checkpoint."""
    shutil.copytree(path, to)
    shutil.rmtree(to / "checkpoints" / "step_000004")
    shutil.rmtree(to / "model")
    (to / "checkpoints" / ".step_000004.tmp").mkdir()
    return to


def snapshot(path, below=""):
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file).removeprefix(str(below)): file.read_bytes() for file in files}


def test_a_resumed_run_is_the_same_run(whole, tmp_path):
    """The same metrics, episodes and weights as never killed, bit for bit."""
    _, path = whole
    again, _ = resume(unfinished(path, tmp_path / "b"), wandb="off")
    assert records(again) == records(path)
    for folder, count in (("episodes", 4), ("tokens", 4), ("held_out", 3)):
        assert len(os.listdir(path / folder)) == count
        assert snapshot(again / folder, again) == snapshot(path / folder, path)
    first, second = (load_file(p / "model" / "model.safetensors") for p in (path, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert set(os.listdir(again / "checkpoints")) == set(os.listdir(path / "checkpoints"))


OTHERS = [{"learning_rate": 1e-5}, {"group_size": 2, "seed": 1}, {"resume": None, "name": "a"}]


@pytest.mark.parametrize("changes", [*OTHERS, {"steps": 1}], ids=str)
def test_a_run_is_neither_overwritten_nor_resumed_with_other_settings_or_fewer_steps(
    whole, changes
):
    before = snapshot(whole[1])
    settings = {**FOUR_STEPS, "resume": str(whole[1]), "out": str(whole[1].parent), **changes}
    with pytest.raises(UserError, match=f"--{max(changes)}"):
        main(**settings)
    assert snapshot(whole[1]) == before


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same run with one process and on two nodes: (directory of the one, of the other).

    Each node has one process, as on two machines that share the run's directory. Dynamic sampling
    goes on until four groups have a signal; with one evaluation problem the second process has
    none; with ZeRO 3 the weights are in pieces.
    """
    out = tmp_path_factory.mktemp("out")
    settings = {**SMALL, "group_size": 2, "max_num_gen_batches": 3, "zero_stage": 3}
    settings |= {"eval_problems": 1, "steps": 2}
    alone, _ = train(out, "one", lesson=variants, **settings)
    args = flags(out=out / "two", **settings)  # its name is the clock's
    done = run_several(*args, script="variants.py", a_node=True)
    assert [code for code, _, _ in done] == [0, 0], done
    assert "evaluation after step 2" in done[0][1] and done[1][1] == ""
    (name,) = os.listdir(out / "two")
    return alone, out / "two" / name


def test_one_process_and_two_nodes_train_on_the_same_groups(pair):
    one = records(pair[0])
    two = records(pair[1])
    for a, b in zip(one[1:], two[1:], strict=True):
        for key in ("sampling/rounds", "reward", "tokens/rollout", "frac_reward_zero_std"):
            assert a[key] == pytest.approx(b[key], rel=1e-6), key
        for key in ("loss", "grad_norm"):
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-6), key
        assert b["sampling/logp_difference_max"] < 1e-3
    assert 1 < max(row["sampling/rounds"] for row in one[1:]) <= 3
    assert two[0]["eval/problems"] == 1 and os.listdir(pair[1] / "checkpoints") == ["step_000002"]


def test_every_completion_that_was_sampled_is_recorded_once(pair):
    for path in pair:
        rows = rows_of(path / "episodes" / "step_000001.jsonl")
        assert len(rows) == 8 * records(path)[1]["sampling/rounds"]
        assert len(rows) == 2 * len({json.dumps(row["problem"]) for row in rows})


def test_the_tokens_record_is_the_same_with_one_process_or_two(pair):
    """The second process measured copies of what the first one had sampled."""
    found = []
    for path in pair:
        arrays = load_tokens(path / "tokens" / "step_000002.npz")
        cuts = np.cumsum(arrays["lengths"])[:-1]
        ids = map(bytes, np.split(arrays["token_ids"], cuts))
        change = map(np.ndarray.tolist, np.split(arrays["change"], cuts))
        found.append(sorted(zip(ids, change, arrays["trained"].tolist())))
    for (ids, change, trained), other in zip(*found, strict=True):
        assert (ids, trained) == (other[0], other[2])
        assert change == pytest.approx(other[1], rel=0.01, abs=1e-3, nan_ok=True)
    assert sum(trained for *_, trained in found[0]) == 8


def test_grpo_raises_the_reward(tmp_path):
    """Ten steps on word problems, whose completions are short: far beyond the noise."""
    sizes = {"prompts_per_step": 16, "group_size": 8, "max_tokens": 48, "eval_problems": 256}
    settings = {**sizes, "steps": 10, "warmup_steps": 3, "eval_every": 0, "save_every": 0}
    path, _ = train(tmp_path, "c", task="gsm8k", **settings)
    rows = records(path)
    reward = [row["reward"] for row in rows[1:]]
    assert sum(reward[-4:]) / 4 > sum(reward[:2]) / 2 + 0.2
    assert rows[-1]["eval/pass@1_low"] > rows[0]["eval/pass@1_high"]
    assert rows[-1]["eval/format"] > rows[0]["eval/format"] + 0.1


# Adapters


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """The directory of a run with adapters and a KL penalty."""
    settings = {"steps": 4, "lora_rank": 4, "kl_coef": 0.1, "learning_rate": 1e-2}
    return train(tmp_path_factory.mktemp("lora"), "l", warmup_steps=0, **settings)[0]


def test_with_adapters_the_policy_is_sampled_and_the_reference_is_the_base(lora):
    rows = records(lora)[1:]
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-9) and rows[-1]["kl"] > 1e-6


@torch.no_grad()
def logits(path):
    return AutoModelForCausalLM.from_pretrained(path)(torch.tensor([[5, 6, 7]])).logits


def test_checkpoints_and_the_final_model_hold_the_adapter_alone(lora):
    for path in (lora / "model", lora / "checkpoints" / "step_000004" / "policy"):
        names = os.listdir(path)
        assert "adapter_model.safetensors" in names and "model.safetensors" not in names
    with pytest.raises(UserError, match="--lora_merge"):  # the lesson reads whole models
        check_model(str(lora / "model"))
    # transformers finds the base by itself.
    assert not torch.allclose(logits("models/nano-base"), logits(lora / "model"), atol=1e-4)


def test_a_run_with_adapters_resumes_to_the_same_weights_and_can_merge_them(lora, tmp_path):
    again, _ = resume(unfinished(lora, tmp_path / "l"), lora_merge=True)
    assert records(again) == records(lora)
    assert torch.allclose(logits(again / "model"), logits(lora / "model"), atol=1e-4)
    assert (again / "model" / "model.safetensors").exists()


# What can go wrong


def test_an_unreachable_hub_gets_one_sentence(tmp_path):
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # read at their import
    done = run("--out", tmp_path / "out", "--data", "hub", env=offline)
    assert done.returncode == 2 and "Jiayi-Pan/Countdown-Tasks-3to4" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_what_a_run_may_not_need_is_not_imported():
    code = "import sys, nano_r1; "
    code += "assert not {'wandb', 'vllm', 'datasets', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


HEALTHY = {"completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.2, "bad_updates": 0}
EQUAL = {"frac_reward_zero_std": 1.0}  # no signal, unless rewards are compared with nothing
SILENT_FAILURES = [
    ({}, {}, []),
    ({"completions/clipped_ratio": 1.0}, {}, ["--max_tokens"]),
    ({"completions/clipped_ratio": 0.6}, {}, ["--max_tokens"]),
    (EQUAL, {}, ["--group_size"]),
    (EQUAL, {"loss_type": "no_baseline"}, []),
    (EQUAL, {"baseline": "none", "scale_rewards": "none"}, []),
    ({"sampling/logp_difference_mean": 1e-6}, {}, []),
    ({"sampling/logp_difference_mean": 0.5}, {}, ["0.50 nats"]),
    ({"bad_updates": 1.0}, {}, ["not finite"]),
]


@pytest.mark.parametrize("change, settings, says", SILENT_FAILURES)
def test_silent_failures_are_announced(change, settings, says):
    said = list(health_warnings({**HEALTHY, **change}, variants.Config(**settings)))
    assert len(said) == len(says) and all(map(str.__contains__, said, says))
