"""The coins: their reward and their held-out questions."""

import pytest

from tasks import coins_rewards


@pytest.mark.parametrize(
    ("completion", "form", "answer"),
    [
        ("\n29-58=29</think> <answer> 29 </answer>\n", 1.0, 1.0),
        ("</think><answer>28</answer>", 1.0, 0.0),
        ("</think><answer>29 coins</answer>", 0.5, 0.0),
        ("<answer>29</answer>", 0.0, 1.0),
    ],
)
def test_the_reward_of_the_coins(completion, form, answer):
    assert coins_rewards.reward(completion, {"ava": 29, "ben": 58})[1:3] == (form, answer)


def test_no_coin_question_is_in_both_splits():
    test = {problem["question"] for problem in coins_rewards.load_problems("test")}
    train = {problem["question"] for problem in coins_rewards.load_problems("train")}
    assert len(test) == 128 and len(train) > 3000 and not test & train
