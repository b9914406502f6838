"""evaluate.py: its statistics by hand, and the table and the files of whole evaluations."""

import itertools
import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

import countdown_rewards
import evaluate
import nano_r1

SMALL = {"eval_problems": 12, "max_tokens": 80, "samples": 4}


def task_of(**functions):
    module = SimpleNamespace(subgroups=lambda problem: ["all"], **functions)
    return SimpleNamespace(module=module, prompt=None)


def group_of(answers, votes=(), formats=()):
    """Completions of one problem."""
    rows = itertools.zip_longest(answers, votes, formats, fillvalue=1.0)
    rewards = [(SimpleNamespace(answer=answer, format=form), vote) for answer, vote, form in rows]
    return [
        SimpleNamespace(reward=r, text=vote, problem={}, ended=True, token_ids=[1])
        for r, vote in rewards
    ]


@pytest.mark.parametrize("correct", range(5))
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_with_a_correct_one(correct):
    answers = [float(i < correct) for i in range(4)]
    values = evaluate.measure_group(group_of(answers), task_of())
    for k in (1, 2, 4):
        subsets = [max(subset) for subset in itertools.combinations(answers, k)]
        assert values[f"pass@{k}"] == pytest.approx(statistics.fmean(subsets))


@pytest.mark.parametrize(
    "votes, answers, value",
    [
        (["7", "7", "8"], [0.0, 0.0, 1.0], 0.0),  # against a correct minority
        (["7", "8", "8"], [0.0, 1.0, 1.0], 1.0),
        (["7", "7.0", "8"], [1.0, 1.0, 0.0], 1.0),  # one answer in two spellings
        (["7", "8", None], [0.0, 1.0, 0.0], 0.5),  # a tie counts in proportion
        ([None, None], [0.0, 0.0], 0.0),
    ],
)
def test_the_majority_decides(votes, answers, value):
    task = task_of(
        final_answer=lambda text, problem, prompt: text,
        same_answer=lambda vote, other, problem: float(vote) == float(other),
    )
    assert evaluate.majority(group_of(answers, votes), task) == value


def test_the_categories_are_shares_that_add_up_to_one():
    group = group_of([1.0, 1.0, 0.0, 0.0, 0.0], formats=[1.0, 0.0, 1.0, 0.5, 0.0])
    values = evaluate.measure_group(group, task_of())
    assert [values[name] for name in evaluate.CATEGORIES] == [0.2, 0.2, 0.2, 0.4]


@pytest.mark.parametrize(
    "values, low, high",
    [
        ([0, 1] * 10, 0.2993, 0.7007),  # Wilson's
        ([0] * 10, 0.0, 0.2775),
        ([0.5] * 9 + [0.0, 1.0], 0.3778, 0.6222),  # of little variance: as 60 samples
    ],
)
def test_the_interval_is_wilson_s_for_as_many_samples_as_have_the_variance(values, low, high):
    assert evaluate.interval(values) == pytest.approx((low, high), abs=1e-4)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    name = str(tmp_path_factory.mktemp("out") / "one")
    return Path(evaluate.main(evaluate.Config(name=name, **SMALL)))


def results(path):
    return json.loads((path / "evaluation.json").read_text())["results"]


def test_the_numbers_are_those_of_the_completions_in_the_files(evaluated):
    greedy, sampled = (nano_r1.read(evaluated / f"temperature_{t}.jsonl") for t in (0, 1))
    assert len(greedy) == 12 and len(sampled) == 48
    for row in greedy + sampled:
        again = countdown_rewards.reward(row["completion"], row["problem"])
        assert (row["answer_reward"], row["why"]) == (again.answer, again.why)
    metrics = results(evaluated)["temperature 1"]
    solved = [max(row["answer_reward"] for row in sampled[i : i + 4]) for i in range(0, 48, 4)]
    assert metrics["pass@4"][0] == pytest.approx(statistics.fmean(solved))
    assert metrics["tokens"][0] == pytest.approx(statistics.fmean(row["length"] for row in sampled))
    assert math.fsum(metrics[name][0] for name in evaluate.CATEGORIES) == pytest.approx(1)
    assert {"3_numbers: pass@1", "needs_muldiv: pass@1"} < set(metrics)
    text = (evaluated / "temperature_1.txt").read_text()
    assert text.count("\n=> ") == 12 and sampled[0]["completion"] in text


def test_all_problems_of_a_file_are_evaluated_by_another_task(tmp_path, capsys):
    rows = [{"question": f"What is {n} plus {n}?", "answer": f"#### {2 * n}"} for n in range(5)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = evaluate.Config(
        task="gsm8k",
        eval_data=str(data),
        samples=2,
        max_tokens=40,
        name=str(tmp_path / "run"),
    )
    greedy, sampled = results(Path(evaluate.main(config))).values()
    assert greedy["problems"] == sampled["problems"] == [5] and "maj@2" in sampled
    assert f"temperature 0{'':11}temperature 1" in capsys.readouterr().out
