"""Supervised fine-tuning: the update by hand, the rows, and whole runs of `nano_sft.py`."""

import json
import os
import shutil

import pytest
import torch
from forks import run_several
from helpers import flags, main, records, resume, run, score
from transformers import AutoModelForCausalLM

import countdown_rewards as countdown
import nano_sft
from nano_r1 import make_engine
from plumbing import console
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.settings import UserError
from plumbing.tasks import load_task

MODEL = "models/nano-base"


@pytest.fixture(scope="module")
def tokenizer():
    init_distributed()
    return load_tokenizer(MODEL)


def difference(model, other):
    """Of two models' weights, on average; one weight's step may differ where its gradient is 0."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((p - q).abs().mean().item() for p, q in pairs)


@pytest.mark.parametrize("budget", [30, 10_000])
def test_a_step_is_adamw_on_the_cross_entropy_of_all_response_tokens(budget, tokenizer):
    """Whatever the micro-batches; rows of 2 to 18 tokens."""
    c = nano_sft.Config(data="rows.jsonl", micro_batch_tokens=budget, weight_decay=0.1)
    rows = [nano_sft.make_example("1+2=", "3 " * n, tokenizer) for n in (1, 3, 9, 14, 2, 7)]
    ids = [*tokenizer.encode("1+2="), *tokenizer.encode("3 "), tokenizer.eos_token_id]
    assert rows[0].prompt_ids + rows[0].completion.token_ids == ids
    engine = make_engine(load_model(MODEL, "float32"), c)
    measured = nano_sft.train_step(engine, rows, c, 1e-3)

    model = load_model(MODEL, "float32")
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    loss = -torch.cat([score(model, e, c)[0] for e in rows]).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c.max_grad_norm)
    adamw.step()
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert measured["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert difference(engine.module, model) < 1e-6


# Whole runs


@pytest.fixture(scope="module")
def rows(tmp_path_factory, tokenizer):
    """Responses that begin in a way the base never does, as a file."""
    lines = []
    for problem in countdown.generate_problems("train", 200, 7):
        response = f" Let me see.\n</think>\n<answer>{problem['target']}</answer>"
        prompt = countdown.format_prompt(problem, tokenizer)
        lines.append(json.dumps({"prompt": prompt, "response": response}) + "\n")
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(lines))
    return path


SIZES = {"steps": 12, "batch_size": 16, "eval_problems": 16, "max_tokens": 60, "warmup_steps": 2}
SIZES |= {"eval_every": 6, "save_every": 6}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, rows):
    """The directory of a run of 12 steps."""
    return main(nano_sft, data=str(rows), out=str(tmp_path_factory.mktemp("out")), **SIZES)[0]


def test_fine_tuning_lowers_the_loss_and_leaves_what_an_rl_run_leaves(tuned):
    names = {"config.json", "metrics.jsonl", "curves.png", "episodes", "checkpoints", "model"}
    assert names <= set(os.listdir(tuned))
    losses = [row["loss"] for row in records(tuned) if "loss" in row]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert [row["step"] for row in records(tuned) if "eval/pass@1" in row] == [0, 6, 12]
    assert sorted(os.listdir(tuned / "episodes")) == [f"step_{s:06d}.jsonl" for s in (0, 6, 12)]


def test_fine_tuning_resumes_to_the_same_weights(tuned, tmp_path):
    again = tmp_path / "a"
    shutil.copytree(tuned, again)
    shutil.rmtree(again / "checkpoints" / "step_000012")
    shutil.rmtree(again / "model")
    resume(again, lesson=nano_sft)
    assert records(again) == records(tuned)
    first, second = ((p / "model" / "model.safetensors").read_bytes() for p in (tuned, again))
    assert first == second


def test_two_processes_take_the_same_step_as_one(rows, tuned, tmp_path):
    sizes = {**SIZES, "steps": 1, "lr_scheduler_type": "constant"}
    args = flags(data=rows, out=tmp_path, **sizes)
    done = run_several(*args, "--name", "two", script="nano_sft.py")
    assert [code for code, _, _ in done] == [0, 0], done
    one, _ = main(nano_sft, data=str(rows), out=str(tmp_path), name="one", **sizes)
    assert records(one)[1]["loss"] == pytest.approx(records(tmp_path / "two")[1]["loss"], rel=1e-5)
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / p / "model") for p in ("one", "two")]
    assert difference(*models) < 1e-6


# Rows


def test_each_pass_over_the_rows_meets_every_row_once():
    config = nano_sft.Config(data="rows.jsonl", batch_size=4)
    for passes in ((1, 2), (3, 4)):
        drawn = [nano_sft.draw_batch(range(8), step, config) for step in passes]
        assert sorted(sum(drawn, [])) == [*range(8)]


@pytest.fixture
def load(tmp_path, monkeypatch, tokenizer):
    """Rows -> what is learned from them by a model that holds 50 tokens."""
    monkeypatch.setattr(nano_sft, "context_length", lambda path: 50)

    def load_rows(rows, **settings):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return nano_sft.load_examples(nano_sft.Config(data=str(path), **settings), tokenizer)

    return load_rows


def row(prompt, response):
    return {"prompt": prompt, "response": response}


SAME = [row("1+1=", "2")] * 5


def test_a_number_of_examples_counts_different_rows_that_fit(load):
    rows = SAME + [row(f"{i}+1=", f"{i + 1}") for i in range(2, 20)]
    kept, left_out = load([*rows, row("1+" * 100, "2")])
    assert len({e.problem["prompt"] for e in kept}) == len(kept) == 19 and left_out == 1
    assert len(load(rows, examples=7)[0]) == 7


@pytest.mark.parametrize(
    "rows, settings, named",
    [
        ([row("a", "b"), row("a", "")], {}, "row 2.*response"),
        ([row(None, "b"), row("a", "b")], {}, "row 1.*prompt"),
        ([row("a " * 100, "b")], {}, "50 tokens"),
        ([{"prompt": "a", "answer": "b"}], {}, "response"),
        (SAME, {"examples": 2}, "--examples 2"),
    ],
)
def test_bad_rows_are_named(load, rows, settings, named):
    with pytest.raises(UserError, match=named):
        load(rows, **settings)


def test_prompts_that_end_otherwise_than_the_validation_s_are_counted(tokenizer):
    """A line break more looks the same on the console: the ends are shown with escapes."""
    task = load_task("countdown", "short", tokenizer)
    problems = countdown.generate_problems("test", 4, 0)
    prompts = [task.prompt_text(problem) for problem in problems]

    prompts[3] += "\n"
    examples = [nano_sft.make_example(prompt, "1", tokenizer) for prompt in prompts]
    config = nano_sft.Config(data="rows.jsonl")
    warning = console.tuning_header(config, examples, 0, task, problems).splitlines()[-1]
    assert warning.startswith("WARNING: 1 ") and "<think>\\n'" in warning
    assert "WARNING" not in console.tuning_header(config, examples[:3], 0, task, problems)


def test_on_the_command_line_missing_rows_are_one_line_and_exit_code_2():
    done = run(script="nano_sft.py")
    assert done.returncode == 2 and done.stdout == ""
    assert "--data" in done.stderr and done.stderr.count("\n") == 1
