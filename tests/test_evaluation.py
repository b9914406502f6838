"""`--eval_only`, and what may be wrong with the data or the model that one brings along."""

import json
import shutil
from types import SimpleNamespace

import pytest
from forks import run_several
from helpers import flags, main, rows_of

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
from plumbing.models import load_tokenizer
from plumbing.problems import Data, overlap
from plumbing.settings import UserError

SMALL = {"eval_problems": 24, "eval_samples": 4, "max_tokens": 80}
ONE_STEP = {"steps": 1, "prompts_per_step": 2, "group_size": 2, "max_tokens": 40, "save_every": 0}


def evaluate(out, name, **settings):
    """--eval_only in this process: (the directory, what it printed)."""
    return main(eval_only=True, out=str(out), name=name, **SMALL, **settings)


def results(path):
    return json.loads((path / "evaluation.json").read_text())


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """(the directory, what was printed): the base model, evaluated by one process."""
    return evaluate(tmp_path_factory.mktemp("out"), "one")


def test_the_table_has_greedy_and_sampled_side_by_side(evaluated):
    lines = {line[:28].strip(): line[28:].split() for line in evaluated[1].splitlines()}
    assert {"strict: right, well-formed", "well-formed", "maj@4", "cut off"} <= set(lines)
    assert {"3_numbers: pass@1", "needs_muldiv: pass@1"} <= set(lines)
    assert len(lines["pass@1"]) == 6 and len(lines["pass@4"]) == 3  # a value, an interval's ends


def test_every_completion_is_written_with_its_verdict_and_the_numbers_are_of_those(evaluated):
    path = evaluated[0]
    rows = rows_of(path / "episodes" / "sampled.jsonl")
    assert len(rows) == 4 * 24 and len(rows_of(path / "episodes" / "greedy.jsonl")) == 24
    for row in rows:
        again = countdown.reward(row["completion"], row["problem"])
        assert [row["reward"], row["answer_reward"], row["why"]] == [again[0], again[2], again[3]]
    metrics = results(path)["sampled"]
    right = [row["answer_reward"] for row in rows]
    solved = [max(right[i : i + 4]) for i in range(0, 96, 4)]
    in_form = [row["answer_reward"] * (row["format_reward"] == 1) for row in rows]
    assert metrics["eval/pass@1"] == pytest.approx(sum(right) / 96)
    assert metrics["eval/pass@4"] == pytest.approx(sum(solved) / 24)
    assert metrics["eval/strict"] == pytest.approx(sum(in_form) / 96)
    assert metrics["eval/mean_length"] == pytest.approx(sum(row["length"] for row in rows) / 96)
    for metrics in results(path).values():
        assert metrics["eval/strict"] <= metrics["eval/pass@1"] <= metrics["eval/lenient"]


def test_two_processes_evaluate_to_the_same_numbers(evaluated):
    out = evaluated[0].parent
    done = run_several(*flags(eval_only=True, out=out, name="two", **SMALL))
    assert [code for code, _, _ in done] == [0, 0], done
    for name, metrics in results(out / "two").items():
        assert metrics == pytest.approx(results(out / "one")[name])


def test_problems_of_a_file_alone_are_evaluated_by_level_with_the_three_categories(tmp_path):
    rows = [
        {"problem": f"What is {n} plus {n}?", "answer": str(2 * n), "level": n % 2 + 1}
        for n in range(20)
    ]
    data = write_rows(tmp_path / "math.jsonl", rows)
    path, _ = evaluate(tmp_path, "m", task="math", eval_data=data)  # math has no problems built in
    metrics = results(path)["sampled"]
    assert metrics["eval/level_1/problems"] == metrics["eval/level_2/problems"] == 10
    shares = [metrics[f"eval/{name}"] for name in ("strict", "format_only", "neither")]
    assert sum(shares) == pytest.approx(1) and metrics["eval/pass@1"] == metrics["eval/strict"]
    assert not (path / "metrics.jsonl").exists()


def test_a_model_without_chat_template_and_pad_token_trains_and_is_evaluated(tmp_path):
    model = tmp_path / "bare"
    shutil.copytree("models/nano-base", model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(str(model)).chat_template is None
    _, printed = main(model=str(model), out=str(tmp_path), name="a", **ONE_STEP, eval_problems=4)
    assert "  | Assistant: <think>" in printed and "after 1 steps" in printed


# Data


def test_prompts_that_do_not_fit_are_left_out_counted_and_reported(tmp_path):
    long = {"question": "How many coins are there? " * 2000, "answer": "1+1=<<1+1=2>>2\n#### 2"}
    data = write_rows(tmp_path / "d.jsonl", [*gsm8k.generate_problems("train", 40, 0), long, long])
    settings = {"task": "gsm8k", "data": data, "out": str(tmp_path), "eval_problems": 24}
    assert "2 left out" in main(**settings, **ONE_STEP)[1]


def test_a_bad_row_is_named_and_nothing_is_written(tmp_path):
    data = write_rows(tmp_path / "d.jsonl", [{"question": "x" * 10_000_000, "answer": "#### 2"}])
    with pytest.raises(UserError, match=f"{data}, row 1: .*100,000"):
        main(task="gsm8k", data=data, out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_evaluation_problems_that_are_trained_on_are_counted():
    rows = gsm8k.generate_problems("train", 8, 0)
    task = SimpleNamespace(module=gsm8k)
    again = {**rows[0], "question": rows[0]["question"].upper()}
    data = Data(train=rows[:5], eval=[again, rows[1], rows[6]], left_out=0, max_length=0)
    assert "2 of 3 evaluation problems are training problems, too" in overlap(task, data)
    assert overlap(task, data._replace(eval=rows[5:])) == ""
