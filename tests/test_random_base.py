"""The base of random authors: nothing in it depends on the target but the verdict."""

import collections
import os
import random
import sys

import pytest
from forks import Forked
from helpers import ROOT

import countdown_rewards as countdown
from plumbing.models import load_tokenizer

FOLDER = os.path.join(ROOT, "models", "random-base")
sys.path.append(FOLDER)
import make_random_base as base


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("models/nano-base")


def test_every_legal_operator_is_drawn_alike_and_every_sum_is_right():
    rng = random.Random(0)
    drawn = collections.Counter()
    for _ in range(4000):
        text, value, expression = base.write_attempt([36, 19, 5], rng)
        answer = f"</think>\n<answer>{expression}</answer>"
        assert countdown.reward(answer, {"nums": [36, 19, 5], "target": value}).answer == 1
        first = text.split("=")[0]
        if "36" in first and "19" in first:
            drawn[next(c for c in first if c in "+-*/")] += 1
    assert set(drawn) == {"+", "-", "*"}  # 36 / 19 is not whole
    assert max(drawn.values()) - min(drawn.values()) < 0.15 * sum(drawn.values())


def test_the_target_decides_the_verdict_alone():
    """Two targets that no attempt reaches: the same attempts."""
    write = lambda target: base.write_response([36, 19, 5], target, random.Random(3))
    assert write(997).replace("997", "T") == write(998).replace("998", "T")
    response = write(997)
    assert "yes" not in response


def test_practice_teaches_what_can_be_known(tokenizer):
    problems = countdown.generate_problems("train", 8, 0)
    ids, weights = base.write_practice(problems, random.Random(0), 400, tokenizer)
    assert len(ids) == len(weights) == 400 and set(weights) == {0.0, 1.0}
    parts = base.write_chain(random.Random(1))
    assert all(text.isdigit() == learned for text, learned in parts[1:])
    assert not parts[0][1]


def test_it_is_made_in_two_stages(tmp_path):
    sizes = "--practice_steps 2 --task_steps 2 --practice 2 --completions 4 --task_practice 2"
    sizes += " --problems 50 --hidden_size 64 --layers 1"
    script = os.path.join(FOLDER, "make_random_base.py")
    problem = base.problems_of(base.RandomBaseConfig(problems=50))[0]
    (tmp_path / "p.jsonl").write_text(
        f'{{"nums": {problem["nums"]}, "target": {problem["target"]}}}'
    )
    where = ["--out", tmp_path / "base", "--exclude", tmp_path / "p.jsonl"]
    process = Forked(*sizes.split(), *where, script=script)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert "1 problems left out" in out and (tmp_path / "base/model.safetensors").exists()
