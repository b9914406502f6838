"""Whole runs, as a user starts them: `python nano_r1.py ...` in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import nano_r1 as r1

SMALL = ["--questions", "4", "--completions", "4", "--max_tokens", "60", "--eval_problems", "16", "--save_every", "2"]


def nano_r1(*args, timeout=300, **env):
    command = [sys.executable, "nano_r1.py", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **env})


def records(path):
    """metrics.jsonl without what depends on the machine's speed."""
    with open(path / "metrics.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps with everything on; (finished process, its directory)."""
    out = tmp_path_factory.mktemp("out")
    options = ["--steps", 4, "--eval_every", 2, "--kl_coef", "0.01", "--wandb", "offline"]
    done = nano_r1("--out", out, "--name", "a", *options, *SMALL)
    assert done.returncode == 0, done.stderr
    return done, out / "a"


def test_the_end_says_from_what_to_what_and_where_everything_is(run):
    done, path = run
    ending = done.stdout[done.stdout.rindex("pass@1 on 16 held-out problems") :]
    assert "before" in ending and "after 4 steps" in ending
    for name in ("model", "curves.png", "episodes", "metrics.jsonl"):
        assert f"{path}/{name}" in ending and (path / name).exists()


def test_the_libraries_print_nothing(run):
    done, _ = run
    assert done.stderr == ""
    shown = ("models/nano-base:", "countdown:", "4 steps of", "memory, about:", "record:", "a completion ends at:", "the first prompt", "step ")
    shown += ("evaluation after step", "  ", "pass@1", "0.", "model  ", "curves  ", "episodes  ", "metrics  ")
    assert [line for line in done.stdout.splitlines() if line and not line.startswith(shown)] == []


def test_prompt_and_stop_tokens_are_shown_once_before_training(run):
    done, _ = run
    before = done.stdout[: done.stdout.index("evaluation after step 0")]
    assert "  | assistant: <think>" in before and "'<|endoftext|>' (0)" in before


def test_samples_are_shown_at_each_evaluation(run):
    done, _ = run
    assert done.stdout.count("evaluation after step") == 3
    assert done.stdout.count("  --- {'nums'") >= 3


def test_every_step_has_every_metric(run):
    names = """step reward reward_std reward/format reward/answer frac_reward_zero_std completions/mean_length
    completions/clipped_ratio entropy kl loss grad_norm lr sampling/logp_difference_mean sampling/logp_difference_max
    tokens/rollout tokens/update""".split()
    rows = records(run[1])
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows[1:]:
        assert set(names) <= set(row)
    for row in (rows[0], rows[2], rows[4]):
        assert {"eval/pass@1", "eval/pass@1_low", "eval/pass@1_high", "eval/format", "eval/mean_length"} <= set(row)
        assert "eval/3_numbers/pass@1" in row and "eval/needs_muldiv/pass@1" in row
    with open(run[1] / "metrics.jsonl") as file:
        times = [json.loads(line) for line in file][1:]
    for part in ("rollout", "reward", "update", "sync", "step"):
        assert all(f"time/{part}" in row for row in times)


def test_sampler_and_trainer_agree(run):
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in records(run[1])[1:])


def test_episodes_hold_every_completion_with_its_reward_and_advantage(run):
    files = sorted(os.listdir(run[1] / "episodes"))
    assert files == [f"step_{s:06d}.jsonl" for s in (1, 2, 3, 4)]
    with open(run[1] / "episodes" / files[0]) as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 16
    for row in rows:
        assert row["reward"] == row["format_reward"] + row["answer_reward"]
        assert row["length"] <= 60 and {"problem", "completion", "advantage", "why", "finish_reason"} <= set(row)
    for group in (rows[i : i + 4] for i in range(0, 16, 4)):
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)


def test_the_saved_model_loads_and_is_not_the_base(run):
    model = AutoModelForCausalLM.from_pretrained(run[1] / "model")
    base = AutoModelForCausalLM.from_pretrained("models/nano-base")
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), base.parameters()))
    assert AutoTokenizer.from_pretrained(run[1] / "model").chat_template


def test_the_last_update_is_in_the_saved_model(run):
    """The trap: the final step's weights are dropped. Checkpoint 4 was written after the last update."""
    model = AutoModelForCausalLM.from_pretrained(run[1] / "model")
    saved = AutoModelForCausalLM.from_pretrained(run[1] / "checkpoints" / "step_000004" / "policy")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), saved.parameters()))


def test_wandb_offline_wrote_its_files_in_the_run_s_directory(run):
    assert any(name.startswith("offline-run") for name in os.listdir(run[1] / "wandb"))


def test_a_resumed_run_is_the_same_run(run, tmp_path):
    """Killed after step 3, with a half-written checkpoint: the same metrics, episodes and weights as never killed."""
    _, path = run
    shutil.copytree(path, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "step_000004")
    shutil.rmtree(tmp_path / "b" / "model")
    (tmp_path / "b" / "checkpoints" / ".step_000004.tmp").mkdir()
    done = nano_r1("--resume", tmp_path / "b", "--wandb", "off")
    assert done.returncode == 0, done.stderr
    assert "Going on after step 2" in done.stdout
    assert records(tmp_path / "b") == records(path)
    for name in os.listdir(path / "episodes"):
        assert (tmp_path / "b" / "episodes" / name).read_text() == (path / "episodes" / name).read_text()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b" / "model")
    for p, q in zip(again.parameters(), AutoModelForCausalLM.from_pretrained(path / "model").parameters()):
        assert torch.equal(p, q)


def test_resume_refuses_other_settings(run):
    done = nano_r1("--resume", run[1], "--learning_rate", "1e-5")
    assert done.returncode == 2 and "drop --learning_rate" in done.stderr


def test_a_run_is_never_overwritten(run):
    done = nano_r1("--out", run[1].parent, "--name", "a", *SMALL)
    assert done.returncode == 2 and "exists" in done.stderr and "Traceback" not in done.stderr


def test_two_processes_train_and_only_the_first_one_writes(tmp_path):
    """With one evaluation problem the second process has none; with ZeRO 3 the weights are in pieces."""
    stage, evaluated = 3, 1
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = [*SMALL, "--zero_stage", str(stage), "--eval_problems", str(evaluated), "--steps", "2"]
    command = [*torchrun, "nano_r1.py", "--out", tmp_path, *options]  # the name of the run is the clock's
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (name,) = os.listdir(tmp_path)
    rows = records(tmp_path / name)
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[0]["eval/problems"] == evaluated
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in rows[1:])
    assert os.listdir(tmp_path / name / "checkpoints") == ["step_000002"]
    with open(tmp_path / name / "episodes" / "step_000001.jsonl") as file:
        problems = [json.dumps(json.loads(line)["problem"]) for line in file]
    assert len(problems) == 16 and len(set(problems)) == 4


def test_dynamic_sampling_trains_on_the_same_groups_with_one_process_or_two(tmp_path):
    """Rounds go on until four groups have a signal; then the losses are the same."""
    options = [*SMALL, "--sampling_rounds", "3", "--completions", "2", "--steps", "1", "--eval_problems", "1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for name, start in (("one", [sys.executable]), ("two", torchrun)):
        command = [*start, "nano_r1.py", "--out", tmp_path, "--name", name, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    for a, b in zip(one[1:], two[1:]):
        assert 1 <= a["sampling/rounds"] <= 3
        for key in ("sampling/rounds", "reward", "tokens/rollout", "frac_reward_zero_std"):
            assert a[key] == pytest.approx(b[key], rel=1e-6), key
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3, abs=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
    assert max(row["sampling/rounds"] for row in one[1:]) > 1
    with open(tmp_path / "one" / "episodes" / "step_000001.jsonl") as file:
        assert len(file.readlines()) == 8 * one[1]["sampling/rounds"]


def test_grpo_raises_the_reward(tmp_path):
    """Twelve steps on the embedded model: format and reward must rise well beyond the noise of 128 episodes."""
    options = ["--steps", 12, "--questions", 16, "--max_tokens", 200, "--warmup_steps", 3, "--eval_problems", 256]
    done = nano_r1("--out", tmp_path, "--name", "c", "--eval_every", 0, "--save_every", 0, *options)
    assert done.returncode == 0, done.stderr
    rows = records(tmp_path / "c")
    reward = [row["reward"] for row in rows[1:]]
    assert sum(reward[-4:]) / 4 > sum(reward[:2]) / 2 + 0.15
    assert rows[-1]["eval/format"] > rows[0]["eval/format"] + 0.1


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """A run with adapters and a KL penalty; its directory."""
    out = tmp_path_factory.mktemp("lora")
    options = ["--steps", 4, "--lora_rank", 4, "--kl_coef", "0.1", "--learning_rate", "1e-2", "--warmup_steps", 0]
    done = nano_r1("--out", out, "--name", "l", *options, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "of them are trained" in done.stdout
    return out / "l"


def test_with_adapters_the_policy_is_sampled_and_the_reference_is_the_base(lora):
    rows = records(lora)[1:]
    assert all(row["sampling/logp_difference_max"] < 1e-3 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-9) and rows[-1]["kl"] > 1e-6


def test_checkpoints_and_the_final_model_hold_the_adapter_alone(lora):
    for path in (lora / "model", lora / "checkpoints" / "step_000004" / "policy"):
        assert (path / "adapter_model.safetensors").exists() and not (path / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained("models/nano-base")
    adapted = AutoModelForCausalLM.from_pretrained(lora / "model")  # finds the base model by itself
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert not torch.allclose(base(ids).logits, adapted(ids).logits, atol=1e-4)


def test_a_run_with_adapters_resumes_to_the_same_weights_and_can_merge_them(lora, tmp_path):
    shutil.copytree(lora, tmp_path / "l")
    shutil.rmtree(tmp_path / "l" / "checkpoints" / "step_000004")
    shutil.rmtree(tmp_path / "l" / "model")
    done = nano_r1("--resume", tmp_path / "l", "--lora_merge")
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / "l") == records(lora)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "l" / "model")(ids).logits
        apart = AutoModelForCausalLM.from_pretrained(lora / "model")(ids).logits
    assert torch.allclose(merged, apart, atol=1e-4)
    assert (tmp_path / "l" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ["args", "says"],
    [
        (["--lora_rank", "4", "--lora_targets", "no_such_layer"], "--lora_targets no_such_layer"),
        (["--minibatches", "3", "--loss", "grpo_clip"], "cannot be shared equally by 1 process(es) and 3 minibatch(es)"),
        (["--data", "no_such_file.jsonl"], "No such data file: no_such_file.jsonl"),
        (["--task", "chess"], "there is no chess_rewards.py. Tasks here: countdown"),
        (["--model", "no/such-model"], "no/such-model"),
        (["--questions", "100000"], "fewer than --questions 100000"),
        (["--prompt", "haiku"], "--prompt haiku"),
    ],
)
def test_a_mistake_gets_one_sentence_and_writes_nothing(args, says, tmp_path):
    done = nano_r1("--out", tmp_path / "out", *args, HF_HUB_OFFLINE="1")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_unreachable_hub_gets_one_sentence(tmp_path):
    done = nano_r1("--out", tmp_path / "out", "--data", "hub", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    assert done.returncode == 2 and "Jiayi-Pan/Countdown-Tasks-3to4 could not be read" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_help_answers_at_once_and_advises_for_larger_models():
    start = time.perf_counter()
    done = nano_r1("--help")
    assert time.perf_counter() - start < 1.0
    assert done.returncode == 0 and "[0.5B: 5e-6, 1.5B: 2e-6, 3B: 1e-6]" in " ".join(done.stdout.split())


def test_wandb_is_not_imported_unless_asked_for():
    code = "import sys, nano_r1; assert not {'wandb', 'vllm', 'datasets', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_embedded_model_is_small_and_loads():
    files = [os.path.join("models/nano-base", name) for name in os.listdir("models/nano-base")]
    assert sum(map(os.path.getsize, files)) < 10e6
    assert any(name.endswith(".safetensors") for name in files)
    assert AutoModelForCausalLM.from_pretrained("models/nano-base").config.model_type == "qwen2"


@pytest.mark.parametrize(
    ["change", "says"],
    [
        ({"completions/clipped_ratio": 1.0}, "no completion ended by itself"),
        ({"completions/clipped_ratio": 0.6}, "more than half"),
        ({"frac_reward_zero_std": 1.0}, "no signal"),
        ({"sampling/logp_difference_mean": 0.5}, "sampler and trainer disagree"),
        ({"bad_updates": 1.0}, "not finite"),
    ],
)
def test_silent_failures_are_announced(change, says):
    healthy = {"completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.2, "bad_updates": 0}
    healthy["sampling/logp_difference_mean"] = 1e-6
    assert list(r1.complaints(healthy, r1.Config())) == []
    (sentence,) = r1.complaints({**healthy, **change}, r1.Config())
    assert says in sentence
