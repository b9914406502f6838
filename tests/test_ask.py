"""ask.py: what may be typed, and what is shown of a model's attempts."""

import json
import os
import shutil

import pytest
from helpers import ROOT

import ask
import countdown_rewards
from plumbing.notebook import Attempt, attempts_table
from plumbing.settings import UserError

BASE = os.path.join(ROOT, "models", "nano-base")
WORDS = "Ava has 12 apples and eats 5. How many are left?"
PUZZLE = {"nums": [19, 36, 55, 7], "target": 65}
TYPED = {
    ("19 36 55 7 = 65", ""): PUZZLE,
    ("[19, 36, 55, 7] -> 65", ""): PUZZLE,
    (WORDS, ""): {"question": WORDS},
    (WORDS, " 7 "): {"question": WORDS, "answer": "7"},
}
REFUSED = ["", "1 2", "1 + 2 = 3", "3.5 2 = 4", "-3 4 = 1", "1 2 3 4 5 6 7 8 9 10", "100000 1 = 2"]
REFUSED += ["hello there"]


@pytest.mark.parametrize("typed", TYPED)
def test_numbers_and_a_target_or_a_word_problem_may_be_typed(typed):
    assert ask.read_question(*typed).problem == TYPED[typed]


@pytest.mark.parametrize(("typed", "answer"), [*((text, "") for text in REFUSED), (WORDS, "a lot")])
def test_anything_else_is_one_sentence(typed, answer):
    with pytest.raises(UserError, match=r"\A[A-Z][^\n]+\.\Z|e\.g\. 19 36 55 7 = 65\.\Z"):
        ask.read_question(typed, answer)


def test_each_attempt_is_streamed_and_has_the_verifier_s_sentence_and_unknown_answers_none(
    monkeypatch,
):
    monkeypatch.setattr(ask, "PACE", 0.0)
    speakers = ask.make_speakers([BASE], {"max_tokens": 60})
    heard = []
    changed = lambda attempts: heard.append(attempts[BASE][-1].text)
    group = ask.take_attempts(speakers, ask.Question("countdown", PUZZLE), 3, 0, changed)[BASE]
    rewards = [countdown_rewards.reward(attempt.text, PUZZLE) for attempt in group]
    assert group == [Attempt(a.text, r.answer == 1, r.why) for a, r in zip(group, rewards)]
    assert len(set(group)) == 3 and 10 < heard.index(group[0].text) < len(heard) / 2
    assert ask.shares({"m": group}).startswith(f"m: {sum(a.right for a in group)} of 3 right")
    (unknown,) = ask.take_attempts(speakers, ask.read_question(WORDS), 1, 0, changed)[BASE]
    assert unknown.right is None and unknown.why.startswith(("answers ", "no answer"))


def test_a_run_s_base_and_model_answer_side_by_side_and_a_mistake_asks_again(
    tmp_path, monkeypatch, capsys
):
    settings = {"task": "countdown", "model": BASE, "prompt": "short", "max_tokens": 30}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    shutil.copytree(BASE, tmp_path / "model")
    typed = iter(["1 2", "19 36 55 7 = 65", "", "q"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    assert ask.main([str(tmp_path), "--attempts", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert list(typed) == [] and sum(line.startswith("Type two to") for line in lines) == 1
    both = [line.split(" │ ") for line in lines if " │ " in line]
    texts = [(left.strip(), right.strip()) for left, right in both if "──" not in left]
    assert texts and all(left == right for left, right in texts)  # the same weights, the same seed
    assert sum("right (" in line for line in lines) == 2 and "Make " in "".join(lines)


@pytest.mark.parametrize(
    "argv", [[], ["./none"], ["a", "b", "c"], [BASE, "--temperature", "0"], [BASE, "--attempts=0"]]
)
def test_what_cannot_be_asked_is_one_line_and_exit_code_2(argv, capsys):
    assert ask.main(argv) == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_what_a_model_wrote_is_text_on_a_terminal_and_in_a_notebook():
    harm = Attempt("a\x1b[2J\n<script>b</script>", False, "<i>no</i>")
    assert "\x1b" not in "".join(ask.side_by_side([ask.cell("m", 0, harm)] * 2, 80))
    shown = attempts_table({"m": [harm]}, "<b>")._repr_html_()
    assert "&lt;script&gt;b" in shown and "<i>" not in shown and "&lt;b&gt;" in shown


@pytest.mark.parametrize("text", ["", "1", "null", "[1, [2]]", '{"task": "countdown"}'])
def test_a_config_of_something_else_is_not_that_of_a_run(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert ask.read_settings(tmp_path) is None
