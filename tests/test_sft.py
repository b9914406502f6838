"""nano_sft.py: the loss against the formula, the rows, whole runs, also stopped ones."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from test_nano_r1 import plain_log_probs
from test_run import metrics, weights
from two_processes import make_episodes, settings, tiny_model, updated

import nano_eval
import nano_r1
import nano_sft
from benchmarks import runs

PROMPT = (
    "user: Using the numbers [{0}, 2, 3], create an equation that equals 7.\nassistant: <think>"
)


def row(prompt, completion, name="completion"):
    return {"prompt": prompt, name: completion}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A run of 4 steps with greedy validation, on the older name of a column: its settings."""
    out = tmp_path_factory.mktemp("out")
    rows = [row(PROMPT.format(i), "Let me see. " * (1 + i % 3), "response") for i in range(20)]
    data = str(out / "rows.jsonl")
    nano_r1.write_rows(data, rows)
    config = nano_sft.Config(
        data=data,
        name=str(out / "run"),
        batch_size=8,
        steps=4,
        warmup_steps=2,
        eval_every=2,
        eval_problems=8,
        max_tokens=40,
        temperature=0.0,
        save_every=2,
    )
    nano_sft.main(config)
    return config


def test_the_loss_that_is_logged_is_the_mean_over_all_completion_tokens_of_the_step():
    """test_check_step.py looks at the gradient, test_golden.py at two processes."""
    _, measured = updated(settings(), make_episodes(), nano_sft.train_step)
    scores = [plain_log_probs(tiny_model(), e.prompt_ids, e.token_ids) for e in make_episodes()]
    assert measured["loss"] == pytest.approx(-torch.cat(scores).mean().item(), rel=1e-5)


def test_a_run_validates_the_model_that_it_saves(tuned):
    rows = metrics(tuned.name)
    assert len(rows) == 5 and rows[4]["loss"] < 0.8 * rows[1]["loss"]
    config = nano_eval.Config(
        model=f"{tuned.name}/model",
        temperature=(0.0,),
        eval_problems=8,
        max_tokens=40,
        name=f"{tuned.name}/greedy",
    )
    again = nano_r1.read_rows(f"{nano_eval.main(config)}/temperature_0.jsonl")
    rows = nano_r1.read_rows(f"{tuned.name}/evaluations/step_000004.jsonl")
    assert [row["completion"] for row in rows] == [row["completion"] for row in again]


def test_ctrl_c_saves_a_run_that_then_continues_to_the_same_weights(tuned, tmp_path, monkeypatch):
    draw = nano_sft.draw_rows

    def interrupted(examples, step, config):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(examples, step, config)

    path = f"{tmp_path}/run"
    with pytest.raises(SystemExit):  # what is refused leaves the name free
        nano_sft.main(replace(tuned, name=path, zero_stage=3))
    monkeypatch.setattr(nano_sft, "draw_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nano_sft.main(replace(tuned, name=path))
    monkeypatch.undo()
    nano_sft.main(replace(tuned, resume=path))
    assert metrics(path) == metrics(tuned.name)
    assert weights(path) == weights(tuned.name)


def test_each_pass_over_the_rows_meets_every_row_once_in_another_order():
    config = nano_sft.Config(data="", batch_size=3)
    drawn = sum((nano_sft.draw_rows(range(8), step, config) for step in range(1, 9)), [])
    assert sorted(drawn[:8]) == sorted(drawn[8:16]) == sorted(drawn[16:]) == [*range(8)]
    assert drawn[:8] != drawn[8:16]


def test_a_row_counts_once(tmp_path):
    rows = [
        row("1+1=", "2"),
        row("1+1=", "2"),
        row("1+2=", "3<|endoftext|>"),
        row("1+" * 999, "9"),
    ]
    config = nano_sft.Config(data=f"{tmp_path}/r.jsonl")
    nano_r1.write_rows(config.data, rows)
    _, task = runs.load(config)
    texts = nano_sft.read_texts(config)
    examples = nano_sft.make_examples(texts, task, config)
    learned = sorted(task.tokenizer.decode(e.token_ids) for e in examples)
    assert learned == ["2<|endoftext|>", "3<|endoftext|>"]
    assert len(nano_sft.make_examples(texts, task, replace(config, examples=1))) == 1


@pytest.mark.parametrize(
    "rows, fault",
    [
        ([row("a", "b", "answer")], ", row 1: needs texts in the columns prompt and completion"),
        ([row("a", "b"), row("a", "")], ", row 2: needs texts"),
        ([row(None, "b")], ", row 1: needs texts"),
        ([], ": "),
    ],
)
def test_bad_rows_are_said_before_the_model_is_loaded(rows, fault, tmp_path):
    path = f"{tmp_path}/r.jsonl"
    nano_r1.write_rows(path, rows)
    with pytest.raises(SystemExit, match=f"--data {path}{fault}"):
        nano_sft.main(nano_sft.Config(data=path, model="none"))
