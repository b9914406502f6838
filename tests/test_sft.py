"""Supervised training: the loss by hand, and whole runs."""

import json
import os
import random
import re
import subprocess
import sys

import pytest
import torch

import countdown_rewards as countdown
import nano_r1 as r1
import nano_sft


def nano_sft_run(*args):
    return subprocess.run([sys.executable, "nano_sft.py", *map(str, args)], capture_output=True, text=True, timeout=300)


# The loss


def test_the_loss_is_the_rows_mean_of_the_negative_sums_scaled():
    log_probs = torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, -32.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]])
    loss, metadata = nano_sft.sft_microbatch_train_step(log_probs, mask, 4, normalize_constant=2.0)
    assert loss.item() == pytest.approx((3 + 16) / 2 / 2 / 4)
    assert log_probs.grad.tolist() == [[-1 / 16, -1 / 16, 0], [0, -1 / 16, 0]]
    assert metadata["tokens"] == 3


def test_gradients_of_micro_batches_add_up():
    log_probs = torch.zeros(2, 3, requires_grad=True)
    for _ in range(2):
        nano_sft.sft_microbatch_train_step(log_probs, torch.ones(2, 3), 2)
    assert torch.allclose(log_probs.grad, torch.full((2, 3), -0.5))


@pytest.mark.parametrize("budget", [30, 60, 10_000])
def test_any_split_into_micro_batches_gives_the_token_mean_s_gradient(budget):
    r1.start_processes()
    rows = [([1, 2, 3], list(range(4, 5 + n))) for n in (1, 3, 9, 14, 2, 7)]
    model = r1.load_model("models/nano-base", "float32")
    batch = r1.pad_prompts_and_outputs(*zip(*rows), pad_id=0)
    out = r1.get_response_log_probs(model, batch["input_ids"], batch["labels"])
    (-out["log_probs"][batch["response_mask"]].mean()).backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()

    config = nano_sft.TuneConfig(zero_stage=0)
    engine = r1.make_engine(r1.load_model("models/nano-base", "float32"), config)
    parts = r1.split_by_tokens(rows, lambda row: len(row[0]) + len(row[1]), budget)
    tensors = [r1.pad_prompts_and_outputs(*zip(*part), pad_id=0) for part in parts]
    measured = nano_sft.train_step(engine, tensors, torch.device("cpu"), world=1)
    assert measured["grad_norm"] == pytest.approx(expected, rel=1e-4)
    assert measured["loss"] == pytest.approx(-out["log_probs"][batch["response_mask"]].mean().item(), rel=1e-5)


@pytest.fixture(scope="module")
def tokenizer():
    return r1.load_tokenizer("models/nano-base")


# Fine-tuning


@pytest.fixture(scope="module")
def rows(tmp_path_factory, tokenizer):
    """Solutions that begin in a way the base never does, as a file."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rng = random.Random(1)
    with open(path, "w") as file:
        for _ in range(300):
            a, b, c = (rng.randint(1, 99) for _ in range(3))
            problem = {"nums": [a, b, c], "target": a + b + c}
            thinking = f" Let me see.\n{a}+{b}={a + b}+{c}={a + b + c} yes\n</think>\n"
            row = {"prompt": countdown.format_prompt(problem, tokenizer)}
            file.write(json.dumps({**row, "response": f"{thinking}<answer>({a}+{b})+{c}</answer>"}) + "\n")
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, rows):
    """A run of 12 steps; (finished process, its directory)."""
    out = tmp_path_factory.mktemp("out")
    sizes = ["--steps", 12, "--batch_size", 16, "--eval_problems", 16, "--max_tokens", 60, "--eval_every", 6]
    options = ["--data", rows, "--out", out, "--name", "a", "--save_every", 6, "--warmup_steps", 2]
    done = nano_sft_run("tune", *sizes, *options)
    assert done.returncode == 0, done.stderr
    return done, out / "a"


def records(path):
    with open(path / "metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def test_fine_tuning_lowers_the_loss(tuned):
    losses = [row["loss"] for row in records(tuned[1]) if "loss" in row]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_validation_runs_before_during_and_after(tuned):
    assert [row["step"] for row in records(tuned[1]) if "eval/pass@1" in row] == [0, 6, 12]
    assert tuned[0].stdout.count("evaluation after step") == 3 and tuned[0].stderr == ""


def test_a_fine_tuning_run_leaves_what_an_rl_run_leaves(tuned):
    names = {"config.json", "metrics.jsonl", "curves.png", "episodes", "checkpoints", "model"}
    assert names <= set(os.listdir(tuned[1]))
    assert sorted(os.listdir(tuned[1] / "episodes")) == [f"step_{s:06d}.jsonl" for s in (0, 6, 12)]


def test_grpo_starts_from_a_fine_tuned_model(tuned, tmp_path):
    sizes = "--steps 1 --questions 2 --completions 2 --max_tokens 40 --eval_problems 4".split()
    command = [sys.executable, "nano_r1.py", "--model", str(tuned[1] / "model"), "--out", str(tmp_path), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "after 1 steps" in done.stdout


def test_fine_tuning_resumes_to_the_same_weights(tuned, tmp_path):
    from safetensors.torch import load_file

    again = tmp_path / "a"
    subprocess.run(["cp", "-r", tuned[1], again], check=True)
    subprocess.run(["rm", "-r", again / "checkpoints" / "step_000012", again / "model"], check=True)
    done = nano_sft_run("tune", "--resume", again)
    assert done.returncode == 0 and "Going on after step 6" in done.stdout
    first, second = (load_file(path / "model" / "model.safetensors") for path in (tuned[1], again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_each_pass_over_the_rows_meets_every_row_once(tokenizer):
    r1.start_processes()
    config = nano_sft.TuneConfig(batch_size=4)
    rows = [(f"{i}", f"{i + 100}") for i in range(8)]
    for passes in ((1, 2), (3, 4)):
        batches = [t for step in passes for t in nano_sft.tune_batches(rows, tokenizer, step, config, 0, 1)]
        prompts = [tokenizer.decode(row[:1]) for t in batches for row in t["input_ids"]]
        assert sorted(prompts) == [str(i) for i in range(8)]


def test_only_the_response_and_its_end_token_are_learned(tokenizer):
    r1.start_processes()
    (t,) = nano_sft.tune_batches([("1+2=", "3")], tokenizer, 1, nano_sft.TuneConfig(batch_size=1), 0, 1)
    assert tokenizer.decode(t["labels"][t["response_mask"]]) == "3" + tokenizer.eos_token


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return nano_sft.TuneConfig(data=str(path))


def test_a_number_of_examples_counts_unique_rows_that_fit(tmp_path, tokenizer):
    rows = [{"prompt": "1+1=", "response": "2"}] * 5
    rows += [{"prompt": f"{i}+1=", "response": f"{i + 1}"} for i in range(2, 20)]
    rows += [{"prompt": "1+" * 100, "response": "2"}]
    config = write_rows(tmp_path / "rows.jsonl", rows)
    kept, left_out = nano_sft.load_examples(config, tokenizer, context=50)
    assert len(kept) == len(set(kept)) == 19 and left_out == 1
    config.examples = 7
    assert len(nano_sft.load_examples(config, tokenizer, context=50)[0]) == 7


@pytest.mark.parametrize(
    "rows, message",
    [
        (
            [{"prompt": "a", "response": "b"}, {"prompt": "a", "response": ""}],
            "row 2: response must be a text, got ''.",
        ),
        ([{"prompt": None, "response": "b"}, {"prompt": "a", "response": "b"}], "row 1: prompt must be a text"),
        ([{"prompt": "a", "answer": "b"}], "has columns ['prompt', 'answer']; response missing."),
        ([{"prompt": "a " * 100, "response": "b"}], "fits into the model's context of 50 tokens."),
    ],
)
def test_a_bad_row_is_named_in_one_sentence(tmp_path, tokenizer, rows, message):
    with pytest.raises(r1.UserError, match=re.escape(message)):
        nano_sft.load_examples(write_rows(tmp_path / "rows.jsonl", rows), tokenizer, context=50)


@pytest.mark.parametrize(
    "args, message",
    [
        (["tune"], "nano_sft.py: tune needs --data FILE: rows with the columns prompt and response.\n"),
        (["tune", "--data", "none.jsonl"], "nano_sft.py: No such data file: none.jsonl.\n"),
    ],
)
def test_a_wrong_call_ends_with_one_sentence_and_code_2(args, message):
    done = nano_sft_run(*args)
    assert (done.returncode, done.stderr) == (2, message)
