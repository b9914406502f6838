"""The labs: each predicts before it runs, has a section of the page, and its code works."""

import importlib
import os
import sys
from pathlib import Path

import pytest

import countdown_rewards
from benchmarks import controls, runs
from benchmarks.labs import lab
from tasks import coins_rewards

NAMES = sorted(
    file.stem
    for file in Path(lab.__file__).parent.glob("*.py")
    if file.stem != "lab" and not file.stem.endswith("_rewards")
)
TINY = "--steps 1 --prompts_per_step 2 --eval_problems 4 --max_tokens 16 --warmup_steps 1"


PROBLEMS = countdown_rewards.load_problems("test")[:64]


@pytest.fixture
def few_problems(monkeypatch):
    monkeypatch.setattr(countdown_rewards, "load_problems", lambda *_: list(PROBLEMS))


@pytest.mark.parametrize("name", NAMES)
def test_the_flags_and_runs_that_a_lab_names_exist(name):
    declared = importlib.import_module(f"benchmarks.labs.{name}").LAB
    for run in declared.runs.values():
        script = "nano_sft" if run.rows else "variants"
        runs.parse(script, run.flags + " --data x" * bool(run.rows))
    for p in declared.predictions:
        assert {p.high, p.low} <= {*declared.runs, "before"} or isinstance(p.low, float)


def test_the_page_is_what_the_recorded_results_make_of_it(tmp_path):
    page = (lab.ROOT / "docs/labs.md").read_text()
    (tmp_path / "labs.md").write_text(page)
    (tmp_path / "labs").mkdir()
    lab.write_page(tmp_path)
    assert (tmp_path / "labs.md").read_text() == page
    assert set(os.listdir(tmp_path / "labs")) == set(os.listdir(lab.ROOT / "docs/labs"))


@pytest.mark.parametrize(
    ("prediction", "word"),
    [
        (lab.Prediction("a", "b"), "held"),
        (lab.Prediction("b", "a"), "failed"),
        (lab.Prediction("a", "b", within=0.05), "failed"),
        (lab.Prediction("a", "b", within=0.2), "held"),
        (lab.Prediction("a", above=0.44), "inconclusive"),
        (lab.Prediction("a", 0.9), "failed"),
        (lab.Prediction("one seed"), "inconclusive"),
    ],
)
def test_a_prediction_holds_fails_or_is_inconclusive(prediction, word):
    values = {
        "a": {"pass@1": [0.5, 0.6, 0.55], "before": [0.1] * 3},
        "b": {"pass@1": [0.4, 0.5, 0.45]},
        "one seed": {"pass@1": [0.9], "before": [0.1]},
    }
    assert prediction.word(prediction.difference(values)) == word


def test_the_lab_to_copy_runs_and_is_not_repeated(tmp_path, monkeypatch, capsys, few_problems):
    monkeypatch.setattr(
        sys, "argv", ["template.py", "--seeds", "0", "--out", str(tmp_path), "--more", TINY]
    )
    importlib.import_module("benchmarks.labs.template").LAB.main()
    written = [(file, file.stat().st_mtime) for file in tmp_path.rglob("metrics.jsonl")]
    importlib.import_module("benchmarks.labs.template").LAB.main()
    assert len(written) == 3 and all(file.stat().st_mtime == time for file, time in written)
    assert "Pass@1: GRPO exceeds own code by more than 5 points" in capsys.readouterr().out


def test_a_run_begins_with_the_model_of_another_that_imitated_rows(
    tmp_path, monkeypatch, few_problems
):
    sizes = f"{TINY} --max_tokens 64 --prompts_per_step 8 --batch_size 1"
    functions = {"rollout": controls.random_reward}
    both = {
        "tuned": lab.Run(sizes, rows=lambda config: controls.right_samples(config, 1)),
        "started": lab.Run(f"{TINY} --steps 3", functions, start="tuned"),
    }
    monkeypatch.setattr(sys, "argv", ["x", "--seeds", "0", "--out", str(tmp_path), "--more= "])
    lab.Lab("", "", "", both, [lab.Prediction("started")], "", "").main()
    (path,) = tmp_path.glob("x_started*/")
    assert f'"model": "{tmp_path}' in (path / "config.json").read_text()
    assert len(runs.metrics(path)) == 4


@pytest.mark.parametrize(
    ("completion", "form", "answer"),
    [
        ("\n58-29=29\n</think>\n<answer>29</answer>", 1.0, 1.0),
        ("\n29-58=29</think> <answer> 29 </answer>\n", 1.0, 1.0),
        ("</think><answer>28</answer>", 1.0, 0.0),
        ("</think><answer>29 coins</answer>", 0.5, 0.0),
        ("</think>29", 0.0, 0.0),
        ("<answer>29</answer>", 0.0, 1.0),
        ("</think><answer>3</answer><answer>29</answer>", 0.0, 1.0),
        ("</think><answer>" * 100_000, 0.0, 0.0),
    ],
)
def test_the_reward_of_the_coins(completion, form, answer):
    assert coins_rewards.reward(completion, {"ava": 29, "ben": 58})[1:3] == (form, answer)


def test_a_kind_of_coin_questions_is_held_out():
    test = coins_rewards.load_problems("test")
    for problem in coins_rewards.load_problems("train"):
        assert coins_rewards.subgroups(problem) != ["held_out"] and problem not in test


def test_a_share_and_its_interval_are_drawn_as_shares_and_rows_are_grouped_by_verdict():
    predictions = [lab.Prediction("a", 0.8), lab.Prediction("a", "b", 0.05)]
    rows = lab.Lab("", "", "", {}, predictions, "", "").rows([(-0.3, -0.4, -0.2), (0.2, 0.1, 0.3)])
    assert [row[-1] for row in rows] == ["held", "failed"]
    assert rows[0][1] == [0.2, 0.1, 0.3] and rows[1][1] == pytest.approx([0.5, 0.4, 0.6])
