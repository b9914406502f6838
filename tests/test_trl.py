"""Reward functions made for TRL: TRL's own, plain and in messages, with weights, and a run."""

import re
from pathlib import Path

import pytest
from test_scripts import OWN_TASK, rows_of_a_step

import nano_r1
from tasks import trl_rewards

MINE = """
import re
from trl.rewards import think_format_reward  # TRL's, as it is

def correct(prompts, completions, ground_truth, **kwargs):
    answers = [re.sub(r"\\D", "", completion) for completion in completions]
    return [1.0 if a == truth else -1.0 for a, truth in zip(answers, ground_truth)]

def only_sums(prompts, completions, kind, **kwargs):
    assert kwargs["completion_ids"] == [[5, 7]] and kwargs["trainer_state"] is None
    kwargs["log_metric"]("length", 1.0)
    return [float(len(c)) if k == "sum" else None for c, k in zip(completions, kind)]

def of_messages(prompts, completions, **kwargs):
    return [float(c[0]["content"] == p[-1]["content"]) for c, p in zip(completions, prompts)]

calls = []
def counts(completions, points, **kwargs):
    calls.append(completions)
    return points

def how_often(completions, **kwargs):
    return [float(len(calls))]

def fails(completions, **kwargs):
    raise KeyError("mine")
"""
ROWS = [
    {"prompt": "0+1?", "ground_truth": "1", "kind": "other"},
    {"prompt": "1+1?", "ground_truth": "2", "kind": "sum", "completion_ids": 9},
]


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(completion, functions, rows) -> the reward of the problem of the rows' first prompt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "lacks.py").write_text("import nowhere")

    def ask(completion, functions, row, prompt=trl_rewards.PROMPTS["short"]):
        nano_r1.write_rows(f"{tmp_path}/rows.jsonl", [row])
        (problem,) = trl_rewards.load_problems("all", f"rows.jsonl?{functions}")
        return trl_rewards.reward(completion, problem | {"token_ids": [5, 7]}, prompt)

    return ask


def test_the_first_function_says_what_is_correct(ask):
    assert ask("It is 2.", "mine.py:correct", ROWS[1]) == (1.0, 0.0, 1.0, "correct")
    assert ask("It is 3.", "mine.py:correct", ROWS[1])[:3] == (-1.0, 0.0, 0.0)
    Path("mine.py").write_text(MINE.replace("-1.0", "-0.25"))  # in a notebook
    assert ask("It is 3.", "mine.py:correct", ROWS[1]).total == -0.25


@pytest.mark.parametrize("row, first, form", [(ROWS[0], 0.0, -2.0), (ROWS[1], 4.0, 2.0)])
def test_rewards_are_summed_as_in_trl_and_none_is_left_out(row, first, form, ask):
    found = ask("It is 2.", "mine.py:only_sums=0.5&mine.py:correct=2", row)
    assert found[:3] == (first + form, form, float(first > 0))


@pytest.mark.parametrize("text, total", [("<think>\n1\n</think>\n2", 1.0), ("<think>\n2", 0.0)])
def test_a_function_of_trl_runs_unchanged_on_messages(ask, text, total):
    row = {"prompt": [{"role": "user", "content": "1+1?"}]}
    assert ask(text, "mine.py:think_format_reward", row).total == total
    opened = trl_rewards.Prompt("{prompt}")  # <think> stands in the prompt
    functions = "mine.py:think_format_reward"
    assert ask(text.removeprefix("<think>"), functions, row, opened).total == total


def test_messages_are_asked_as_one_question(ask, tmp_path):
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say yes."}]
    assert ask("Say yes.", "mine.py:of_messages", {"prompt": turns}).answer == 1.0
    (problem,) = trl_rewards.load_problems("all", "rows.jsonl?mine.py:of_messages")
    assert problem["prompt"] == "Be short.\n\nSay yes."


def test_functions_of_one_file_share_its_state_and_get_numbers(ask):
    functions = "mine.py:counts&mine.py:how_often"
    assert ask("2", functions, ROWS[0] | {"points": 1.5})[:3] == (2.5, 1.0, 1.0)


def test_a_column_that_a_row_lacks_is_none(ask):
    ask("2", "mine.py:only_sums", ROWS[0])
    nano_r1.write_rows("./rows.jsonl", [*ROWS, {"prompt": "2+2?"}])
    *_, problem = trl_rewards.load_problems("all", "rows.jsonl?mine.py:only_sums")
    assert trl_rewards.reward("4", problem | {"token_ids": [5, 7]}).total == 0.0


def test_an_error_in_a_function_is_not_hidden(ask):
    with pytest.raises(KeyError, match="mine"):
        ask("2", "mine.py:fails", ROWS[0])


@pytest.mark.parametrize(
    "functions, sentence",
    [
        ("", "--task trl needs --data"),
        ("lacks.py:f", "no reward function 'lacks.py:f': No module named 'nowhere'; expected"),
        ("mine.py:incorrect", "no reward function 'mine.py:incorrect'"),
        ("mine.py:correct=much", "no reward function 'mine.py:correct=much'"),
    ],
)
def test_a_function_that_is_not_there_is_one_sentence(ask, functions, sentence):
    with pytest.raises(SystemExit, match=sentence):
        ask("2", functions, ROWS[0])


@pytest.mark.parametrize("prompt", [5, " ", []])
def test_a_row_without_a_prompt_is_one_sentence(ask, prompt):
    with pytest.raises(SystemExit, match="--data rows.jsonl, row 1: needs prompt, a text or "):
        ask("2", "mine.py:correct", {"prompt": prompt})


def test_the_functions_of_the_page_train_and_trl_s_counts_tokens(tmp_path, monkeypatch, capfd):
    (code,) = re.findall(r"```python\n(def correct.*?)```", OWN_TASK, re.S)
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(code)
    rows = [{"prompt": f"{i}+1?", "ground_truth": ""} for i in range(3)]
    nano_r1.write_rows(f"{tmp_path}/problems.jsonl", rows)
    for e in rows_of_a_step("trl"):
        assert (e["answer_reward"], e["format_reward"]) == (1.0, -0.01 * e["length"])
    assert "+1?" in capfd.readouterr().out


def test_two_rows_that_differ_only_in_a_column_are_one_sentence(ask, tmp_path):
    nano_r1.write_rows(f"{tmp_path}/rows.jsonl", [*ROWS, ROWS[0] | {"ground_truth": "7"}])
    with pytest.raises(
        SystemExit, match="row 3 asks what an earlier row asks, but differs: '0.1.'"
    ):
        trl_rewards.load_problems("train", "rows.jsonl?mine.py:correct")
