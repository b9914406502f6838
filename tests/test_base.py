"""The embedded base: what its authors write, and a tiny run of the script that makes it."""

import importlib.util
import operator
import re
import sys
from pathlib import Path

import pytest
import torch

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1

MODEL = Path(__file__).parents[1] / "models/nano-base"
spec = importlib.util.spec_from_file_location("make_base", MODEL / "make_base.py")
base = sys.modules["make_base"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

EXACT = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
STEP = re.compile(r"(?<!\d)(?=(\d+)([-+*/])(\d+)=(\d+))")
# The target and the lines of each search: of a prompt's completion, or of practice.
SEARCH = re.compile(r"(?:\] |equals )(\d+)\.?\n(?:assistant: <think>\n)?((?:.*\d(?: yes| no)\n)+)")
PROBLEMS = countdown.generate_problems("train", 300, 0)
STORIES = gsm8k.generate_problems("train", 400, 0)


@pytest.fixture(scope="module")
def tokenizer():
    return r1.load_model(r1.Config())[1]


def texts(stage, steps, tokenizer):
    for step in range(steps):
        for e in base.rows_of(stage, step, PROBLEMS, STORIES, tokenizer, seed=0):
            yield tokenizer.decode(e.prompt_ids + e.token_ids)


def checks_of(texts):
    """(is the result the target?, the word, does the search end there?) of each check."""
    for text in texts:
        for target, lines in SEARCH.findall(text):
            checks = re.findall(r"=(\d+) (yes|no)\n", lines)
            for place, (value, word) in enumerate(checks):
                yield value == target, word, place == len(checks) - 1


def shares(found, is_hit):
    """(how many checks, share of yes, share of ends) after results that are the target or not."""
    checks = [check for check in found if check[0] == is_hit]
    _, words, ends = zip(*checks)
    return len(checks), words.count("yes") / len(checks), ends.count(True) / len(checks)


@pytest.mark.parametrize("stage", base.STAGES, ids=lambda stage: stage.name)
def test_every_calculation_is_correct(stage, tokenizer):
    checked = 0
    for text in texts(stage, 2, tokenizer):
        for a, sign, b, result in STEP.findall(text.partition("<answer>")[0]):
            assert EXACT[sign](int(a), int(b)) == int(result), text
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("stage", base.STAGES[:3], ids=lambda stage: stage.name)
def test_a_check_of_the_first_three_stages_is_true(stage, tokenizer):
    found = checks_of(texts(stage, 4, tokenizer))
    assert {(hit, word) for hit, word, _ in found} == {(True, "yes"), (False, "no")}


KINDS = [  # of the last stage's texts with a problem and a target: changes of the stage
    {"completions": 60, "practice": 0},
    {"completions": 0, "practice": 60, "kinds": {base.write_search: 1}},
    {"completions": 0, "practice": 30, "kinds": {base.write_pair: 1}},
]


@pytest.mark.parametrize("kind", KINDS, ids=("completions", "searches", "pairs"))
def test_no_word_of_the_last_stage_depends_on_a_result(kind, tokenizer):
    stage = base.STAGES[-1]._replace(**kind)
    found = list(checks_of(texts(stage, 16, tokenizer)))
    hits, yes, ends = shares(found, True)
    others, yes_of_others, ends_of_others = shares(found, False)
    error = (0.25 * 0.75 * (1 / hits + 1 / others)) ** 0.5  # one standard error of a difference
    assert hits > 100 and error < 0.04
    assert abs(yes - yes_of_others) < 3 * error
    assert abs(ends - ends_of_others) < 3 * error
    assert abs(yes - base.YES) < 3 * error


def test_the_prompts_are_those_of_the_tasks(tokenizer):
    policy, _ = r1.load_model(r1.Config())
    rows = base.rows_of(base.STAGES[-1], 1, PROBLEMS, STORIES, tokenizer, seed=0)
    written = [tokenizer.decode(e.prompt_ids) for e in rows]
    numbers = re.compile(r"\d+")
    for name, problems in (("countdown", PROBLEMS), ("gsm8k", STORIES)):
        task = r1.Task(tokenizer, policy, r1.Config(task=name))
        prompts = {numbers.sub("N", task.prompt_text(problem)) for problem in problems}
        assert sum(numbers.sub("N", text) in prompts for text in written) > 3


def test_a_base_is_made(tmp_path, monkeypatch):
    few = {"steps": 1, "completions": 2, "practice": 2}
    monkeypatch.setattr(base, "STAGES", [stage._replace(**few) for stage in base.STAGES[1:]])
    with torch.compiler.set_stance("force_eager"):  # without half a minute of compilation
        base.make_base(f"{tmp_path}/base", problems=100)
    policy, _ = r1.load_model(r1.Config(model=f"{tmp_path}/base"))
    assert policy.num_parameters() == 1_195_648
