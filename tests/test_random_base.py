"""The base of random authors: nothing in it depends on the target but the verdict."""

import collections
import json
import os
import random
import re
import sys

import pytest
from forks import Forked
from helpers import ROOT

import countdown_rewards as countdown
from plumbing.models import load_tokenizer

sys.path.append(os.path.join(ROOT, "models", "random-base"))
import make_random_base as base


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("models/nano-base")


def test_every_legal_operator_is_drawn_alike_and_every_sum_is_right():
    rng = random.Random(0)
    drawn = collections.Counter()
    for _ in range(4000):
        text, value, expression = base.write_attempt([36, 19, 5], rng)
        assert countdown.evaluate(expression, [36, 19, 5]) == value
        first = text.split("=")[0]
        if "36" in first and "19" in first:
            drawn[first[2]] += 1
    assert set(drawn) == {"+", "-", "*"}  # 36 / 19 is not whole
    assert max(drawn.values()) - min(drawn.values()) < 0.15 * sum(drawn.values())


def test_the_target_decides_the_verdict_alone():
    """Two targets that no attempt reaches: the same attempts."""
    first, second = (base.write_response([36, 19, 5], t, random.Random(3)) for t in (997, 998))
    assert first.replace("997", "T") == second.replace("998", "T") and "yes" not in first


def test_practice_teaches_what_can_be_known(tokenizer):
    problems = countdown.generate_problems("train", 8, 0)
    ids, weights = base.write_practice(problems, random.Random(0), 400, tokenizer)
    assert len(ids) == len(weights) == 400 and set(weights) == {0.0, 1.0}
    first, *others = base.write_chain(random.Random(1))
    assert not first[1] and all(text.isdigit() == learned for text, learned in others)


def test_of_a_search_the_later_lines_alone_are_learned(tokenizer):
    """Not the first line, and at no place whether one goes on; every verdict is true."""
    endings = collections.Counter()
    for seed in range(200):
        prompt, ids, weights = base.write_search([36, 19, 5], 100, tokenizer, random.Random(seed))
        target = re.search(r"equals (\d+)", tokenizer.decode(prompt)).group(1)
        lines = tokenizer.decode(ids).split("\n")[1:]
        for line in lines:
            reached = re.search(r"=(\d+) (yes|no)$", line)
            assert (reached[1] == target) == (reached[2] == "yes")
        endings[lines[-1][-3:]] += 1
        learned = [i for i, w in zip(ids, weights, strict=True) if w]
        assert tokenizer.decode(learned) == "".join(lines[1:])
    assert min(endings["yes"], endings[" no"]) > 50


def test_it_is_made_in_three_stages(tmp_path):
    sizes = (
        "--practice_steps 2 --task_steps 2 --final_steps 2 --practice 2 --completions 4 "
        "--searches 2 --task_practice 2 --problems 50 --hidden_size 64 --layers 1"
    )
    problem = base.problems_of(base.RandomBaseConfig(problems=50))[0]
    (tmp_path / "p.jsonl").write_text(json.dumps(problem))
    where = ["--out", tmp_path / "base", "--exclude", tmp_path / "p.jsonl"]
    process = Forked(*sizes.split(), *where, script=base.__file__)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert "1 problems left out" in out and (tmp_path / "base/model.safetensors").exists()
