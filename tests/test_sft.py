"""Supervised fine-tuning: the update by hand, the rows, and whole runs of `nano_sft.py`."""

import json
import os
import shutil

import pytest
import torch
from forks import run_several
from helpers import flags, main, records, run
from safetensors.torch import load_file
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
    texts = [("1+2=", "3 " * n) for n in (1, 3, 9, 14, 2, 7)]
    rows = [nano_sft.make_example(*text, tokenizer) for text in texts]
    engine = make_engine(load_model(MODEL, "float32"), c)
    measured = nano_sft.train_step(engine, rows, c, 1e-3)

    model = load_model(MODEL, "float32")
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    total = count = 0
    for prompt, response in texts:
        ids = tokenizer.encode(prompt) + tokenizer.encode(response) + [tokenizer.eos_token_id]
        n = len(tokenizer.encode(response)) + 1
        logits = model(torch.tensor([ids])).logits[0, -n - 1 : -1]
        targets = torch.tensor(ids[-n:])
        total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        count += n
    (total / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c.max_grad_norm)
    adamw.step()
    assert measured["loss"] == pytest.approx((total / count).item(), rel=1e-5)
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


def test_fine_tuning_lowers_the_loss(tuned):
    losses = [row["loss"] for row in records(tuned) if "loss" in row]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_a_fine_tuning_run_leaves_what_an_rl_run_leaves(tuned):
    names = {"config.json", "metrics.jsonl", "curves.png", "episodes", "checkpoints", "model"}
    assert names <= set(os.listdir(tuned))
    assert [row["step"] for row in records(tuned) if "eval/pass@1" in row] == [0, 6, 12]
    assert sorted(os.listdir(tuned / "episodes")) == [f"step_{s:06d}.jsonl" for s in (0, 6, 12)]


def test_grpo_starts_from_a_fine_tuned_model(tuned, tmp_path):
    sizes = {"prompts_per_step": 2, "group_size": 2, "max_tokens": 40, "eval_problems": 4}
    path, _ = main(model=str(tuned / "model"), out=str(tmp_path), steps=1, save_every=0, **sizes)
    assert len(records(path)) == 2


def test_fine_tuning_resumes_to_the_same_weights(tuned, tmp_path):
    again = tmp_path / "a"
    shutil.copytree(tuned, again)
    shutil.rmtree(again / "checkpoints" / "step_000012")
    shutil.rmtree(again / "model")
    settings = json.loads((again / "config.json").read_text())
    main(nano_sft, **{**settings, "resume": str(again)})
    assert records(again) == records(tuned)
    first, second = (load_file(p / "model" / "model.safetensors") for p in (tuned, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


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

    def load(*rows, **settings):
        path = tmp_path / "rows.jsonl"
        lines = [json.dumps({"prompt": prompt, "response": answer}) for prompt, answer in rows]
        path.write_text("\n".join(lines))
        return nano_sft.load_examples(nano_sft.Config(data=str(path), **settings), tokenizer)

    return load


def test_a_number_of_examples_counts_different_rows_that_fit(load):
    rows = [("1+1=", "2")] * 5 + [(f"{i}+1=", f"{i + 1}") for i in range(2, 20)]
    kept, left_out = load(*rows, ("1+" * 100, "2"))
    assert len({e.problem["prompt"] for e in kept}) == len(kept) == 19 and left_out == 1
    assert len(load(*rows, examples=7)[0]) == 7


FAULTS = [
    ([("a", "b"), ("a", "")], {}, "row 2.*response"),
    ([(None, "b"), ("a", "b")], {}, "row 1.*prompt"),
    ([("a " * 100, "b")], {}, "50 tokens"),
    ([("1+1=", "2")] * 5, {"examples": 2}, "--examples 2"),
]


@pytest.mark.parametrize("rows, settings, named", FAULTS)
def test_bad_rows_are_named(load, rows, settings, named):
    with pytest.raises(UserError, match=named):
        load(*rows, **settings)


def test_a_column_or_a_file_that_is_not_there_is_named(tokenizer, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    for path, named in ((tmp_path / "rows.jsonl", "response"), ("none.jsonl", "none.jsonl")):
        with pytest.raises(UserError, match=named):
            nano_sft.load_examples(nano_sft.Config(data=str(path)), tokenizer)


def test_prompts_that_end_otherwise_than_the_validation_s_are_counted(tokenizer):
    """A line break more looks the same on the console: the ends are shown with escapes."""
    task = load_task("countdown", "short", tokenizer)
    problems = countdown.generate_problems("test", 4, 0)
    prompts = [task.prompt_text(problem) for problem in problems]

    def header(prompts):
        examples = [nano_sft.make_example(prompt, "1", tokenizer) for prompt in prompts]
        config = nano_sft.Config(data="rows.jsonl")
        return console.tuning_header(config, examples, 0, task, problems)

    assert "WARNING" not in header(prompts)
    warning = header([*prompts[:3], prompts[3] + "\n"]).splitlines()[-1]
    assert warning.startswith("WARNING: 1 ") and "<think>\\n'" in warning


def test_on_the_command_line_missing_rows_are_one_line_and_exit_code_2():
    done = run(script="nano_sft.py")
    assert done.returncode == 2 and done.stdout == ""
    assert "--data" in done.stderr and done.stderr.count("\n") == 1
