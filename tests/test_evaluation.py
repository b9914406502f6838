"""nano_eval.py: its statistics by hand, and the table and the files of whole evaluations."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import countdown_rewards
import gsm8k_rewards
import nano_eval
import nano_r1
from benchmarks import runs
from tasks import coins_rewards


def task_of(**functions):
    return SimpleNamespace(module=SimpleNamespace(**functions), prompt=None)


def completion(answer=1.0, form=1.0, text=None):
    return nano_r1.Episode(
        problem={}, token_ids=[1], completion=text, answer_reward=answer, format_reward=form
    )


@pytest.mark.parametrize("correct, of_two", [(0, 0), (1, 3 / 6), (3, 1)])
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_with_a_correct_one(correct, of_two):
    group = [completion(float(i < correct)) for i in range(4)]
    values = nano_eval.measure_group(group, task_of())
    assert (values["pass@1"], values["pass@2"]) == pytest.approx((correct / 4, of_two))


@pytest.mark.parametrize(
    "votes, correct, value",
    [
        ("7 7 8", "8", 0.0),  # against a correct minority
        ("7 8 8", "8", 1.0),
        ("7 7.0 8", "7 7.0", 1.0),  # one answer in two spellings
        ("7 7.0 8", "7.0", 0.5),  # of which one is refused, as with a wrong unit
        ("7 8 ?", "8", 0.5),  # a tie counts in proportion; ? is no answer
        ("? ?", "8", 0.0),
    ],
)
def test_the_majority_decides(votes, correct, value):
    task = task_of(
        final_answer=lambda text, problem, prompt: None if text == "?" else text,
        same_answer=lambda vote, other, problem: float(vote) == float(other),
    )
    group = [completion(float(vote in correct.split()), text=vote) for vote in votes.split()]
    assert nano_eval.majority(group, task) == value


def test_the_categories_are_shares_that_add_up_to_one():
    rewards = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.5), (0.0, 0.0)]
    values = nano_eval.measure_group([completion(*pair) for pair in rewards], task_of())
    assert [values[name] for name in nano_eval.CATEGORIES] == [0.2, 0.2, 0.2, 0.4]


@pytest.mark.parametrize(
    "values, low, high",
    [
        ([0, 1] * 10, 0.2993, 0.7007),  # Wilson's
        ([0] * 10, 0.0, 0.2775),
        ([0.5] * 9 + [0.0, 1.0], 0.3778, 0.6222),  # of little variance: as 60 samples
    ],
)
def test_the_interval_is_wilson_s_for_as_many_samples_as_have_the_variance(values, low, high):
    assert nano_eval.interval(values) == pytest.approx((low, high), abs=1e-4)


def results(path):
    return json.loads((path / "evaluation.json").read_text())["results"]


def test_the_numbers_are_those_of_the_completions_in_the_files(tmp_path):
    config = nano_eval.Config(name=f"{tmp_path}/run", eval_problems=12, max_tokens=80, samples=2)
    path = Path(nano_eval.main(config))
    assert len(nano_r1.read_rows(path / "temperature_0.jsonl")) == 12
    sampled = nano_r1.read_rows(path / "temperature_1.jsonl")
    assert len(sampled) == 24
    metrics = results(path)["temperature 1"]
    assert metrics["pass@1"][0] == pytest.approx(nano_r1.mean(sampled, "answer_reward")) != 0
    assert metrics["tokens"][0] == pytest.approx(nano_r1.mean(sampled, "length"))
    assert {"3_numbers: pass@1", "needs_muldiv: pass@1"} < set(metrics)
    assert {row["category"] for row in sampled} <= set(nano_eval.CATEGORIES)


def test_all_problems_of_a_file_are_evaluated_by_another_task(tmp_path):
    row = {"question": "What is 1 plus 1?", "answer": "2"}
    nano_r1.write_rows(f"{tmp_path}/rows.jsonl", [row] * 5)
    config = nano_eval.Config(
        task="gsm8k",
        eval_data=f"{tmp_path}/rows.jsonl",
        samples=2,
        max_tokens=40,
        name=f"{tmp_path}/run",
    )
    before = asdict(config), dict(os.environ)
    greedy, sampled = results(Path(nano_eval.main(config))).values()
    assert (asdict(config), os.environ) == before
    assert greedy["problems"] == sampled["problems"] == [5] and "maj@2" in sampled


# ---- --ask


COUNTDOWN = SimpleNamespace(module=countdown_rewards, prompt=countdown_rewards.PROMPTS["chat"])
COINS = SimpleNamespace(module=coins_rewards, prompt=coins_rewards.PROMPTS["short"])
GSM8K = SimpleNamespace(module=gsm8k_rewards, prompt=gsm8k_rewards.PROMPTS["chat"])
WORDS = "Ava has 12 apples and eats 5. How many are left?"


def type_in(monkeypatch, *texts):
    """The texts are what the user types, line after line."""
    monkeypatch.setattr("builtins.input", mock.Mock(side_effect=texts))


@pytest.mark.parametrize("temperature", [(), (1.0, -1.0), (float("nan"),)])
def test_a_temperature_that_cannot_be_is_a_sentence(temperature):
    with pytest.raises(SystemExit, match="--temperature must be 0, which is greedy, or more"):
        nano_eval.main(nano_eval.Config(temperature=temperature))


def test_numbers_are_typed_with_spaces_or_commas():
    assert nano_eval.read_problem("3, 8 5 =24", COUNTDOWN) == {"nums": [3, 8, 5], "target": 24}


def test_an_answer_is_typed_after_its_question(monkeypatch):
    type_in(monkeypatch, " 7 ")
    assert nano_eval.read_problem(WORDS, GSM8K) == {"question": WORDS, "answer": "7"}
    type_in(monkeypatch, "x = 7")
    with pytest.raises(ValueError, match="needs question, a text, and answer, a number"):
        nano_eval.read_problem(WORDS, GSM8K)


MISTAKES = ["3.5 2 = 4", "-3 4 = 1", "100000 1 = 2", "1 2 3 4 5 6 7 8 9 = 1"]


@pytest.mark.parametrize(
    "text, task",
    [*((text, COUNTDOWN) for text in MISTAKES), ("hello there", GSM8K), (WORDS, COINS)],
)
def test_anything_else_is_one_sentence(text, task):
    with pytest.raises(ValueError, match=r"\AType [^\n]+\Z"):
        nano_eval.read_problem(text, task)


def test_without_a_known_answer_the_models_own_answer_is_shown():
    text = "12-5=7\n</think>\n<answer>7</answer>"
    assert nano_eval.judge(text, {"question": WORDS, "answer": ""}, GSM8K, []) == "answers 7"


def test_two_models_answer(monkeypatch, capsys):
    type_in(monkeypatch, "1 2", "1+2=3", "19 36 55 7 = 65", "", "q")
    nano_eval.main(nano_eval.Config(ask=2, beside="models/nano-base", max_tokens=40))
    out = capsys.readouterr().out
    assert out.count("Type two to eight") == 2
    attempts = re.split("^── .*, completion [12]$", out, flags=re.MULTILINE)[1:]
    assert len(attempts) == len(re.findall("\n[✓✗] ", out)) == 8
    assert attempts[0] == attempts[2]  # the same model with the same seed
    readings = re.findall(r"P\(yes\) +(\S+%) +(\S+%)", out)
    assert readings and all(first == second for first, second in readings)


def test_a_typed_line_is_read_as_the_first_of_a_completion(monkeypatch, capsys):
    type_in(monkeypatch, "19 36 55 7 = 65", "19 + 36=55,58+7=65 no", "q")
    config = nano_eval.Config(ask=1, max_tokens=1)
    nano_eval.main(config)
    sampler, task = runs.load(config)
    prompt = task.prompt_text(nano_eval.read_problem("19 36 55 7 = 65", task))
    ids = task.tokenizer.encode(f"{prompt}\n19+36=55,58+7=65 yes")
    share = sampler.model(torch.tensor([ids])).logits[0, -2].softmax(0)[ids[-1]]
    assert f"P(yes) {share:4.0%}  19+36=55,58+7=65\n" in capsys.readouterr().out
