"""Whole runs of `main`: what they print, what they leave behind, and that a resumed run is the same run."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import (
    SMALL,
    TORCHRUN,
    flags,
    free_port,
    main,
    records,
    resume,
    rows_of,
    run,
    start,
    train,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nano_r1 import Config
from plumbing.health import health_warnings
from plumbing.settings import UserError
from plumbing.token_record import load_tokens


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four steps as a user starts it, with everything on; (finished process, its directory)."""
    out = tmp_path_factory.mktemp("out")
    settings = {**SMALL, "steps": 4, "eval_every": 2, "kl_coef": 0.01, "wandb": "offline"}
    done = run(*flags(out=out, name="a", **settings))
    assert done.returncode == 0, done.stderr
    return done, out / "a"


def test_the_end_says_from_what_to_what_and_where_everything_is(whole):
    done, path = whole
    ending = done.stdout[done.stdout.rindex("pass@1 on 16 held-out problems") :]
    assert "before" in ending and "after 4 steps" in ending
    for name in ("model", "curves.png", "report.html", "episodes", "metrics.jsonl"):
        assert f"{path}/{name}" in ending and (path / name).exists()


def test_the_libraries_print_nothing(whole):
    done, _ = whole
    assert done.stderr == ""
    shown = (
        "models/nano-base:",
        "countdown:",
        "4 steps of",
        "memory, about:",
        "record:",
        "a completion ends at:",
        "the first prompt",
        "step ",
    )
    shown += (
        "evaluation after step",
        "  ",
        "pass@1",
        "0.",
        "model  ",
        "curves  ",
        "report  ",
        "episodes  ",
        "metrics  ",
    )
    assert [line for line in done.stdout.splitlines() if line and not line.startswith(shown)] == []


def test_prompt_and_stop_tokens_are_shown_once_before_training(whole):
    done, _ = whole
    before = done.stdout[: done.stdout.index("evaluation after step 0")]
    assert "  | assistant: <think>" in before and "'<|endoftext|>' (0)" in before


def test_samples_are_shown_at_each_evaluation(whole):
    done, _ = whole
    assert done.stdout.count("evaluation after step") == 3
    assert done.stdout.count("  --- {'nums'") >= 3


def test_every_step_has_every_metric(whole):
    names = """step reward reward_std reward/format reward/answer frac_reward_zero_std completions/mean_length
    completions/clipped_ratio entropy kl loss grad_norm lr sampling/logp_difference_mean sampling/logp_difference_max
    tokens/rollout tokens/update""".split()
    rows = records(whole[1])
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows[1:]:
        assert set(names) <= set(row)
    for row in (rows[0], rows[2], rows[4]):
        assert {
            "eval/pass@1",
            "eval/pass@1_low",
            "eval/pass@1_high",
            "eval/format",
            "eval/mean_length",
        } <= set(row)
        assert "eval/3_numbers/pass@1" in row and "eval/needs_muldiv/pass@1" in row
    times = rows_of(whole[1] / "metrics.jsonl")[1:]
    for part in ("rollout", "reward", "update", "sync", "step"):
        assert all(f"time/{part}" in row for row in times)


def test_sampler_and_trainer_agree(whole):
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in records(whole[1])[1:])


def test_episodes_hold_every_completion_with_its_reward_and_advantage(whole):
    files = sorted(os.listdir(whole[1] / "episodes"))
    assert files == [f"step_{s:06d}.jsonl" for s in (1, 2, 3, 4)]
    rows = rows_of(whole[1] / "episodes" / files[0])
    assert len(rows) == 16
    for row in rows:
        assert row["reward"] == row["format_reward"] + row["answer_reward"]
        assert row["length"] <= 60 and {
            "problem",
            "completion",
            "advantage",
            "why",
            "finish_reason",
        } <= set(row)
    for group in (rows[i : i + 4] for i in range(0, 16, 4)):
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)


def test_the_saved_model_loads_and_is_not_the_base(whole):
    model = AutoModelForCausalLM.from_pretrained(whole[1] / "model")
    base = AutoModelForCausalLM.from_pretrained("models/nano-base")
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), base.parameters()))
    assert AutoTokenizer.from_pretrained(whole[1] / "model").chat_template


def test_the_last_update_is_in_the_saved_model(whole):
    """The trap: the final step's weights are dropped. Checkpoint 4 was written after the last update."""
    model = AutoModelForCausalLM.from_pretrained(whole[1] / "model")
    saved = AutoModelForCausalLM.from_pretrained(
        whole[1] / "checkpoints" / "step_000004" / "policy"
    )
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), saved.parameters()))


def test_wandb_offline_wrote_its_files_in_the_run_s_directory(whole):
    assert any(name.startswith("offline-run") for name in os.listdir(whole[1] / "wandb"))


def unfinished(path, to):
    """A copy of a finished run as if it had been killed after step 3, while writing a checkpoint."""
    shutil.copytree(path, to)
    shutil.rmtree(to / "checkpoints" / "step_000004")
    shutil.rmtree(to / "model")
    (to / "checkpoints" / ".step_000004.tmp").mkdir()
    return to


def test_a_resumed_run_is_the_same_run(whole, tmp_path):
    """The same metrics, episodes and weights as never killed, bit for bit."""
    _, path = whole
    again, printed = resume(unfinished(path, tmp_path / "b"), wandb="off")
    assert "Resuming after step 2" in printed
    assert records(again) == records(path)
    for folder, count in (("episodes", 4), ("tokens", 4), ("held_out", 3)):
        assert len(os.listdir(path / folder)) == count
        assert snapshot(again / folder, again) == snapshot(path / folder, path)
    first, second = (load_file(p / "model" / "model.safetensors") for p in (path, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert set(os.listdir(again / "checkpoints")) == set(os.listdir(path / "checkpoints"))


def test_a_run_that_is_finished_goes_on_from_its_last_step_when_it_gets_more(whole, tmp_path):
    """Nothing is done twice: the checkpoint of the last step is there."""
    shutil.copytree(whole[1], tmp_path / "b")
    again, printed = resume(tmp_path / "b", steps=5, wandb="off")
    assert "Resuming after step 4" in printed
    assert records(again)[:5] == records(whole[1])
    assert [row["step"] for row in records(again)] == [0, 1, 2, 3, 4, 5]
    assert json.loads((again / "config.json").read_text())["steps"] == 5
    assert "step_000005" in os.listdir(again / "checkpoints")


def snapshot(path, below=""):
    return {
        str(file).removeprefix(str(below)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("changes", [{"learning_rate": 1e-5}, {"group_size": 2, "seed": 1}])
def test_in_a_notebook_resume_with_other_settings_is_refused_and_the_record_stays(whole, changes):
    before = snapshot(whole[1])
    settings = {**SMALL, "steps": 6, "eval_every": 2, "kl_coef": 0.01, **changes}
    with pytest.raises(UserError, match=f"drop --{' --'.join(sorted(changes))}"):
        main(**settings, resume=str(whole[1]))
    assert snapshot(whole[1]) == before


def test_a_run_is_never_overwritten(whole):
    before = snapshot(whole[1])
    with pytest.raises(UserError, match="exists: --resume"):
        train(whole[1].parent, "a")
    assert snapshot(whole[1]) == before


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same run with one process and on two nodes: (directory of the one, directory of the other).

    The nodes are two launchers that meet at an address, as on two machines that share the run's directory. Dynamic
    sampling goes on until four groups have a signal; with one evaluation problem the second process has none; with
    ZeRO 3 the weights are in pieces.
    """
    out = tmp_path_factory.mktemp("out")
    settings = {
        **SMALL,
        "group_size": 2,
        "max_num_gen_batches": 3,
        "zero_stage": 3,
        "eval_problems": 1,
        "steps": 2,
    }
    alone, _ = train(out, "one", **settings)
    meet = [
        "--nnodes",
        "2",
        "--nproc_per_node",
        "1",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        free_port(),
    ]
    two = flags(out=out / "two", **settings)  # its name is the clock's
    nodes = [
        start(*two, launcher=[*TORCHRUN, *meet, "--node_rank", str(rank)]) for rank in range(2)
    ]
    printed = [node.communicate(timeout=600) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed
    assert "evaluation after step 2" in printed[0][0] and printed[1][0] == ""
    (name,) = os.listdir(out / "two")
    return alone, out / "two" / name


def test_dynamic_sampling_trains_on_the_same_groups_with_one_process_or_two_nodes(pair):
    one, two = records(pair[0]), records(pair[1])
    for a, b in zip(one[1:], two[1:], strict=True):
        assert 1 <= a["sampling/rounds"] <= 3
        for key in ("sampling/rounds", "reward", "tokens/rollout", "frac_reward_zero_std"):
            assert a[key] == pytest.approx(b[key], rel=1e-6), key
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3, abs=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
    assert max(row["sampling/rounds"] for row in one[1:]) > 1


def test_every_completion_that_was_sampled_is_recorded(pair):
    for path in pair:
        rounds = records(path)[1]["sampling/rounds"]
        assert len(rows_of(path / "episodes" / "step_000001.jsonl")) == 8 * rounds


def test_of_two_processes_only_the_first_one_writes(pair):
    path = pair[1]
    assert [row["step"] for row in records(path)] == [0, 1, 2] and records(path)[0][
        "eval/problems"
    ] == 1
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in records(path)[1:])
    assert os.listdir(path / "checkpoints") == ["step_000002"]
    problems = [
        json.dumps(row["problem"]) for row in rows_of(path / "episodes" / "step_000001.jsonl")
    ]
    assert len(problems) == 2 * len(set(problems))  # no group was sampled by both


def test_grpo_raises_the_reward(tmp_path):
    """Ten steps on word problems, whose completions are short: far beyond the noise of 128 episodes."""
    sizes = {
        "steps": 10,
        "prompts_per_step": 16,
        "group_size": 8,
        "max_tokens": 48,
        "eval_problems": 256,
    }
    path, _ = train(
        tmp_path, "c", task="gsm8k", **sizes, warmup_steps=3, eval_every=0, save_every=0
    )
    rows = records(path)
    reward = [row["reward"] for row in rows[1:]]
    assert sum(reward[-4:]) / 4 > sum(reward[:2]) / 2 + 0.2
    assert rows[-1]["eval/pass@1_low"] > rows[0]["eval/pass@1_high"]
    assert rows[-1]["eval/format"] > rows[0]["eval/format"] + 0.1


def test_the_tokens_record_is_the_same_with_one_process_or_two(pair):
    """ZeRO 3 and dynamic sampling: the second process measured copies of what the first one had sampled."""
    found = []
    for path in pair:
        arrays = load_tokens(path / "tokens" / "step_000002.npz")
        cuts = np.cumsum(arrays["lengths"])[:-1]
        ids, change = (np.split(arrays[name], cuts) for name in ("token_ids", "change"))
        found.append(
            sorted(zip(map(bytes, ids), map(np.ndarray.tolist, change), arrays["trained"].tolist()))
        )
    for (ids, change, trained), (same_ids, same_change, same_trained) in zip(*found, strict=True):
        assert ids == same_ids and trained == same_trained
        assert change == pytest.approx(same_change, rel=0.01, abs=1e-3, nan_ok=True)
    assert sum(trained for _, _, trained in found[0]) == 8


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """A run with adapters and a KL penalty; its directory."""
    settings = {
        "steps": 4,
        "lora_rank": 4,
        "kl_coef": 0.1,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
    }
    path, printed = train(tmp_path_factory.mktemp("lora"), "l", **settings)
    assert "of them are trained" in printed
    return path


def test_with_adapters_the_policy_is_sampled_and_the_reference_is_the_base(lora):
    rows = records(lora)[1:]
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-9) and rows[-1]["kl"] > 1e-6


def test_checkpoints_and_the_final_model_hold_the_adapter_alone(lora):
    for path in (lora / "model", lora / "checkpoints" / "step_000004" / "policy"):
        assert (path / "adapter_model.safetensors").exists() and not (
            path / "model.safetensors"
        ).exists()
    base = AutoModelForCausalLM.from_pretrained("models/nano-base")
    adapted = AutoModelForCausalLM.from_pretrained(lora / "model")  # finds the base model by itself
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert not torch.allclose(base(ids).logits, adapted(ids).logits, atol=1e-4)


def test_a_run_with_adapters_resumes_to_the_same_weights_and_can_merge_them(lora, tmp_path):
    again, _ = resume(unfinished(lora, tmp_path / "l"), lora_merge=True)
    assert records(again) == records(lora)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(again / "model")(ids).logits
        apart = AutoModelForCausalLM.from_pretrained(lora / "model")(ids).logits
    assert torch.allclose(merged, apart, atol=1e-4)
    assert (again / "model" / "model.safetensors").exists()


def test_an_unreachable_hub_gets_one_sentence(tmp_path):
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }  # read when the libraries are imported
    done = run("--out", tmp_path / "out", "--data", "hub", env=offline)
    assert (
        done.returncode == 2 and "Jiayi-Pan/Countdown-Tasks-3to4 could not be read" in done.stderr
    )
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_wandb_is_not_imported_unless_asked_for():
    code = "import sys, nano_r1; assert not {'wandb', 'vllm', 'datasets', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ["change", "says"],
    [
        ({"completions/clipped_ratio": 1.0}, "no completion ended within"),
        ({"completions/clipped_ratio": 0.6}, "more than half"),
        ({"frac_reward_zero_std": 1.0}, "no signal"),
        ({"sampling/logp_difference_mean": 0.5}, "sampler and trainer disagree"),
        ({"bad_updates": 1.0}, "not finite"),
    ],
)
def test_silent_failures_are_announced(change, says):
    healthy = {"completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.2, "bad_updates": 0}
    healthy["sampling/logp_difference_mean"] = 1e-6
    assert list(health_warnings(healthy, Config())) == []
    (sentence,) = health_warnings({**healthy, **change}, Config())
    assert says in sentence
