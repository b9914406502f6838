"""ask.py: what may be typed, and what is printed of the attempts."""

import re
from types import SimpleNamespace

import pytest

import ask
import countdown_rewards
import gsm8k_rewards

COUNTDOWN = SimpleNamespace(module=countdown_rewards, prompt=countdown_rewards.PROMPTS["chat"])
GSM8K = SimpleNamespace(module=gsm8k_rewards, prompt=gsm8k_rewards.PROMPTS["chat"])
WORDS = "Ava has 12 apples and eats 5. How many are left?"


def type_in(monkeypatch, *texts):
    """The texts are what the user types, line after line."""
    lines = iter(texts)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))


def test_numbers_and_a_target_or_a_question_and_its_answer_may_be_typed(monkeypatch):
    typed = ask.read_problem("19, 36 55 7 = 65", COUNTDOWN)
    assert typed == {"nums": [19, 36, 55, 7], "target": 65}
    type_in(monkeypatch, " 7 ")
    assert ask.read_problem(WORDS, GSM8K) == {"question": WORDS, "answer": "7"}


MISTAKES = [
    "",
    "1 2",
    "1 + 2 = 3",
    "3.5 2 = 4",
    "-3 4 = 1",
    "100000 1 = 2",
    "1 2 3 4 5 6 7 8 9 = 1",
]


@pytest.mark.parametrize(
    "text, task", [*((text, COUNTDOWN) for text in MISTAKES), ("hello there", GSM8K)]
)
def test_anything_else_is_one_sentence(text, task):
    with pytest.raises(ValueError, match=r"\AType [^\n]+\Z"):
        ask.read_problem(text, task)


def test_without_a_known_answer_the_model_s_own_answer_is_shown():
    text = "12-5=7\n</think>\n<answer>7</answer>"
    assert ask.judge(text, {"question": WORDS, "answer": ""}, GSM8K) == "answers 7"
    assert ask.judge(text, {"question": WORDS, "answer": "7"}, GSM8K) == "correct"


def test_two_models_answer_and_a_mistake_asks_again(monkeypatch, capsys):
    type_in(monkeypatch, "1 2", "19 36 55 7 = 65", "", "q")
    ask.main(ask.Config(model=("models/nano-base",) * 2, attempts=2, max_tokens=40))
    out = capsys.readouterr().out
    assert out.count("\nType two to eight") + out.startswith("Type two to eight") == 1
    attempts = re.split("^── .*, attempt [12]$", out, flags=re.MULTILINE)[1:]
    assert len(attempts) == out.count("\n=> ") == 8
    assert attempts[0] == attempts[2]  # the same model with the same seed


def test_no_control_character_of_a_completion_reaches_the_terminal():
    assert ask.printable("a\x1b[2J\nb\r") == "a\ufffd[2J\nb"
