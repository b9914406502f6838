"""The embedded base: what its authors write, its tokenizer, a tiny run of the script."""

import importlib.util
import json
import operator
import random
import re
import statistics
import sys
import time
from functools import partial

import pytest
from forks import Forked
from hypothesis import given
from hypothesis import strategies as st

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1
from plumbing.models import load_tokenizer
from plumbing.processes import derive_seed

SCRIPT = "models/nano-base/make_base.py"
spec = importlib.util.spec_from_file_location("make_base", SCRIPT)
base = sys.modules["make_base"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

EXACT = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
STEP = re.compile(r"(?<!\d)(?=(\d+)([-+*/])(\d+)=(\d+))")
PROBLEMS = countdown.generate_problems("train", 300, 0)
STORIES = gsm8k.generate_problems("train", 400, 0)


def answer(write, rng):
    """An attempt at a problem, below the problem."""
    problem = rng.choice(PROBLEMS)
    text = write(problem["nums"], problem["target"], rng)  # begins with a line break
    return f"{problem['nums']} {problem['target']}{text}"


WRITERS = {
    **{name: partial(answer, partial(base.write_as, base.AUTHORS[name])) for name in base.AUTHORS},
    "stage 2": partial(answer, base.write_response),
    "practice": lambda rng: base.write_practice(PROBLEMS, rng, 600, pairs=0.0, expressions=0.0),
    "practice in pairs": lambda rng: base.write_practice(
        PROBLEMS, rng, 600, pairs=0.5, expressions=0.0
    ),
    "scratch work": lambda rng: base.write_scratch_work(PROBLEMS, rng, 600),
    "expression": lambda rng: base.write_expression(PROBLEMS, rng),
    "story": lambda rng: base.write_solution(rng.choice(STORIES), rng),
    "story, often wrong": lambda rng: base.write_population_solution(rng.choice(STORIES), rng),
}


def attempts_of(text):
    """The lines of the thinking."""
    return re.split("</think>|<answer>", text)[0].strip().splitlines()


# Honest traces


@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 10_000))
def test_every_step_that_is_written_is_right_and_every_verdict_true(name, seed):
    """Also where the way is wrong: what is written is at least well calculated."""
    target = None
    for line in attempts_of(WRITERS[name](random.Random(seed))):
        if line.startswith("["):
            target = line.split()[-1]
        else:
            steps = STEP.findall(line)
            assert steps
            assert all(EXACT[o](int(a), int(b)) == int(result) for a, o, b, result in steps)
            if line.endswith((" yes", " no")):
                assert line.endswith(" yes") == (steps[-1][-1] == target)


@given(st.integers(0, 10_000))
def test_the_expressions_that_are_practised_have_the_value_of_their_line(seed):
    line, _, answer = base.write_expression(PROBLEMS, random.Random(seed)).strip().splitlines()
    expression = answer.removeprefix("<answer>").removesuffix("</answer>")
    numbers = [int(n) for n in re.findall(r"\d+", expression)]
    assert countdown.evaluate(expression, numbers) == int(line.split("=")[-1])


# The population


def completions(name, count=600):
    rng = random.Random(name)
    for problem in (PROBLEMS * 10)[:count]:
        yield problem, base.write_as(base.AUTHORS[name], problem["nums"], problem["target"], rng)


@pytest.mark.parametrize("name", base.AUTHORS)
def test_who_checks_writes_a_verdict_behind_each_attempt_and_stops_at_a_yes(name):
    for _, text in completions(name, 200):
        verdicts = [verdict for line in attempts_of(text) for verdict in line.split()[1:]]
        assert len(verdicts) == len(attempts_of(text)) * base.AUTHORS[name].checks
        assert "yes" not in verdicts[:-1] and len(verdicts) <= base.MAX_ATTEMPTS


@pytest.mark.parametrize("name", base.AUTHORS)
def test_an_author_s_answers_are_in_form_as_often_as_the_table_says(name):
    in_form = [countdown.reward(text, problem).format == 1 for problem, text in completions(name)]
    assert sum(in_form) / len(in_form) == pytest.approx(base.AUTHORS[name].forms[0], abs=0.06)


def test_the_systematic_solve_nearly_all_problems_with_3_numbers_and_most_with_4():
    solved = {3: [], 4: []}
    for problem, text in completions("systematic"):
        result = attempts_of(text)[-1].split()[0].split("=")[-1]
        solved[len(problem["nums"])].append(result == str(problem["target"]))
    assert statistics.mean(solved[3]) > 0.95 and 0.6 < statistics.mean(solved[4]) < 0.85


def test_authors_from_stage_3_on_ask_no_oracle(monkeypatch):
    monkeypatch.setattr(base, "within_reach", None)
    for name in base.AUTHORS:
        assert all(text for _, text in completions(name, 50))
    base.write_practice(PROBLEMS, random.Random(0), 500, pairs=0.3, expressions=0.3)


# Word problems


def test_every_story_is_recognised_and_its_right_way_is_its_worked_answer():
    for problem in STORIES:
        right, _ = base.ways_of(problem["question"])
        lines = [f"{a}{o}{b}=<<{a}{o}{b}={r}>>{r}" for a, o, b, r in right]
        assert lines == problem["answer"].splitlines()[:-1]


# The tokenizer and the model


@pytest.fixture(scope="module")
def tokenizer():
    """As transformers loads it: the class it picks has ideas of its own about numbers."""
    return load_tokenizer("models/nano-base")


def test_the_embedded_tokenizer_is_the_one_that_make_base_makes(tokenizer):
    made = base.make_tokenizer()
    rng = random.Random(0)
    texts = [base.write_population_response(p["nums"], p["target"], rng) for p in PROBLEMS[:20]]
    texts += [gsm8k.format_prompt(p, made) for p in STORIES[:50]]
    assert [made.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]


def test_a_systematic_search_fits_into_the_default_limit(tokenizer):
    lengths = [len(tokenizer.encode(text)) for _, text in completions("systematic", 300)]
    assert max(lengths) < r1.Config().max_tokens


# The script

TINY = (
    "--problems 500 --pretrain_steps 2 --attempt_steps 10 --practice_steps 4 --aim_steps 2 "
    "--final_steps 4 --hidden_size 64 --layers 1 --batch_size 4 --practice 2 --aim_batch_size 2 "
    "--aim_practice 2 --expression_steps 2 --expression_practice 2 --search_steps 2 "
    "--search_batch_size 2 --search_practice 2 --searches 2 --save_every 2"
)


def start(*args):
    return Forked(*TINY.split(), *args, script=SCRIPT)


def make_base(*args):
    """(exit code, output, errors) of a tiny run of the script."""
    process = start(*args)
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "base"
    code, _, error = make_base("--out", out)
    assert code == 0, error
    return out


def test_the_base_is_made_in_seven_stages_and_resumes_to_the_same_weights(tmp_path, made):
    out = tmp_path / "base"
    work = tmp_path / "base.work"
    killed = start("--out", out)
    while not list(work.glob("stages-1-and-2/step_*")):
        assert killed.returncode is None
        time.sleep(0.01)
    killed.kill()
    code, _, error = make_base("--out", out, "--seed", 1)
    assert code == 2 and "--seed" in error
    assert make_base("--out", out)[0] == 0 and not work.exists()
    first, second = ((path / "model.safetensors").read_bytes() for path in (made, out))
    assert first == second


def test_stage_3_can_start_from_a_model_and_excluded_problems_are_left_out(tmp_path, made):
    problem = countdown.generate_problems("train", 1, derive_seed(0, "sft problems"))[0]
    problem["nums"] = problem["nums"][::-1]
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(problem))
    code, out, _ = make_base("--start_from", made, "--exclude", file, "--out", tmp_path / "base")
    assert code == 0 and "1 of 500 problems" in out
    assert [f"stage {n}:" in out for n in (1, 3, 4, 5, 6, 7)] == [False, *[True] * 5]
    assert "stages 1 and 2" not in out
