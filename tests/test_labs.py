"""The coins, and the runs with another reward or another mask."""

import pytest

import nano_r1
import variants
from benchmarks import controls, labs, runs
from tasks import coins_rewards, tool_use


def functions_of(flags, monkeypatch):
    monkeypatch.setattr(variants, "main", lambda config, **functions: functions)
    return labs.main(runs.parse("benchmarks.labs", flags))


def test_without_a_flag_a_lab_is_the_run_of_its_task(monkeypatch):
    assert functions_of("--task coins", monkeypatch) == {}
    assert functions_of("--task checker", monkeypatch) == tool_use.FUNCTIONS


def test_a_flag_of_a_lab_replaces_one_function(monkeypatch):
    assert functions_of("--task checker --mask none", monkeypatch)["rollout"] is labs.unmasked
    chosen = {"advantages": controls.no_reward}
    assert functions_of("--task coins --reward none", monkeypatch) == chosen


def test_a_tool_writes_in_a_run_with_a_random_reward(tmp_path):
    flags = "--task checker --reward random --mask length --steps 1 --prompts_per_step 2"
    flags += f" --max_tokens 60 --eval_problems 2 --name {tmp_path}/run"
    path = labs.main(runs.parse("benchmarks.labs", flags))
    rows = nano_r1.read_rows(f"{path}/episodes/step_000001.jsonl")
    assert {row["reward"] for row in rows} == {0.0, 1.0}
    (metrics,) = runs.metrics(path)[1:]
    assert metrics["tool/model_tokens"] < 1


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
