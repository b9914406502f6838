"""The embedded base model: what its authors write, its tokenizer, and a tiny run of the script that makes it."""

import functools
import importlib.util
import os
import random
import re
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import derive_seed

SCRIPT = "models/nano-base/make_base.py"
spec = importlib.util.spec_from_file_location("make_base", SCRIPT)
base = sys.modules["make_base"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

EXACT = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
STEP = re.compile(r"(?<!\d)(?=(\d+)([-+*/])(\d+)=(\d+))")
PROBLEMS = countdown.generate_problems("train", 300, 0)
STORIES = gsm8k.generate_problems("train", 400, 0)
WRITERS = {
    name: (lambda *args, author=base.AUTHORS[name]: base.write_as(author, *args))
    for name in base.AUTHORS
}
WRITERS["stage 2"] = base.write_response


def steps_are_right(text):
    steps = STEP.findall(text)
    return steps and all(EXACT[o](int(a), int(b)) == int(result) for a, o, b, result in steps)


def attempts_of(text):
    """The lines of the thinking, without their verdicts."""
    return [line.split()[0] for line in re.split("</think>|<answer>", text)[0].strip().splitlines()]


# Honest traces


@given(st.integers(0, 10_000))
def test_an_attempt_of_stages_1_and_2_is_right_and_its_expression_has_its_value(seed):
    rng = random.Random(seed)
    problem = rng.choice(PROBLEMS)
    text, value, expression = base.write_attempt(
        problem["nums"], rng.choice((None, problem["target"])), rng
    )
    assert steps_are_right(text) and len(STEP.findall(text)) == len(problem["nums"]) - 1
    assert countdown.evaluate(expression, problem["nums"]) == value == int(text.split("=")[-1])


@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 10_000))
def test_every_author_s_arithmetic_is_right_and_every_verdict_true(name, seed):
    rng = random.Random(seed)
    problem = rng.choice(PROBLEMS)
    text = WRITERS[name](problem["nums"], problem["target"], rng)
    assert steps_are_right(text.split("<answer>")[0])
    for line in text.splitlines():
        if line.endswith((" yes", " no")):
            assert line.endswith(" yes") == (
                line.split()[0].split("=")[-1] == str(problem["target"])
            )


@pytest.mark.parametrize(
    "write",
    [
        base.write_practice,
        functools.partial(base.write_practice, pairs=0.5),
        base.write_scratch_work,
    ],
)
@given(seed=st.integers(0, 10_000))
def test_scratch_work_is_right_and_its_verdicts_are_true(write, seed):
    target = None
    for line in write(PROBLEMS, random.Random(seed), 600).strip().splitlines():
        if line.startswith("["):
            target = line.split()[-1]
        else:
            assert steps_are_right(line)
            if line.endswith((" yes", " no")):
                assert line.endswith(" yes") == (line.split()[0].split("=")[-1] == target)


@given(st.integers(0, 10_000))
def test_the_expressions_that_are_practised_have_the_value_of_their_line(seed):
    rng = random.Random(seed)
    for _ in range(3):
        text = base.write_expression(PROBLEMS, rng)
        line, _, answer = text.strip().splitlines()
        assert steps_are_right(line)
        expression = answer.removeprefix("<answer>").removesuffix("</answer>")
        numbers = [int(n) for n in re.findall(r"\d+", expression)]
        assert countdown.evaluate(expression, numbers) == int(line.split("=")[-1])
    assert base.write_practice(PROBLEMS, random.Random(seed), 600).count("<answer>") == 0
    practice = base.write_practice(PROBLEMS, random.Random(seed), 3000, expressions=0.9)
    assert practice.count("</answer>") > 20


def test_a_search_to_go_on_with_has_two_failures_before_what_is_learned(tokenizer):
    rng = random.Random(0)
    for _ in range(100):
        before, after = base.write_search(PROBLEMS, tokenizer, rng)
        prompt, _, begun = before.partition("<think>\n")
        assert prompt.startswith("user: ") and len(begun.splitlines()) == 2
        assert all(line.endswith(" no") for line in begun.splitlines())
        lines = attempts_of(begun + after)
        assert all(map(steps_are_right, lines)) and 2 < len(lines) <= base.MAX_ATTEMPTS
        assert tokenizer.encode(before) + tokenizer.encode(after) == tokenizer.encode(
            before + after
        )


@given(st.integers(0, 10_000))
def test_the_answer_is_the_last_attempt_whatever_its_value(seed):
    rng = random.Random(seed)
    problem = rng.choice(PROBLEMS)
    text = base.write_population_response(problem["nums"], problem["target"], rng)
    if "<answer>" in text:
        expression = text.split("<answer>")[1].split("<")[0].split("=")[0]
        assert countdown.evaluate(expression, problem["nums"]) == int(
            attempts_of(text)[-1].split("=")[-1]
        )


@given(st.integers(0, 10_000))
def test_a_word_problem_s_steps_are_right_even_where_the_way_is_wrong(seed):
    rng = random.Random(seed)
    problem = rng.choice(STORIES)
    for write in (base.write_solution, base.write_population_solution):
        assert steps_are_right(write(problem, rng).split("<answer>")[0])


# The population


def completions(name, count=600):
    rng = random.Random(name)
    for problem in (PROBLEMS * 10)[:count]:
        yield problem, base.write_as(base.AUTHORS[name], problem["nums"], problem["target"], rng)


def test_the_shares_add_up():
    for population in (base.AUTHORS, base.EARLY_AUTHORS):
        assert sum(author.share for author in population.values()) == pytest.approx(1)
        for author in population.values():
            assert sum(author.forms) == pytest.approx(1) and len(author.forms) == len(base.FORMS)


def test_authors_are_drawn_with_their_shares(monkeypatch):
    drawn = []
    monkeypatch.setattr(base, "write_as", lambda author, *_: drawn.append(author))
    rng = random.Random(0)
    for _ in range(4000):
        base.write_population_response([1, 2, 3], 6, rng)
    for author in base.AUTHORS.values():
        assert drawn.count(author) / 4000 == pytest.approx(author.share, abs=0.03)


@pytest.mark.parametrize("name", base.AUTHORS)
def test_an_author_s_answers_are_in_form_as_often_as_the_table_says(name):
    in_form = [countdown.reward(text, problem).format == 1 for problem, text in completions(name)]
    assert sum(in_form) / len(in_form) == pytest.approx(base.AUTHORS[name].forms[0], abs=0.06)


def test_the_hasty_write_one_attempt_and_no_verdict():
    for _, text in completions("hasty", 200):
        assert len(attempts_of(text)) == 1 and " yes" not in text and " no\n" not in text


def test_the_wavering_mostly_give_up_after_one_or_two_attempts():
    counts = [len(attempts_of(text)) for _, text in completions("wavering")]
    assert sum(count <= 2 for count in counts) / len(counts) > 0.85


@pytest.mark.parametrize("name", ["wavering", "persistent", "systematic"])
def test_those_who_check_stop_at_a_yes_and_give_up_only_after_a_no(name):
    for _, text in completions(name, 200):
        verdicts = [line.split()[1] for line in text.splitlines() if line.endswith((" yes", " no"))]
        assert len(verdicts) == len(attempts_of(text)) <= base.MAX_ATTEMPTS
        assert "yes" not in verdicts[:-1]


def test_the_systematic_never_write_an_attempt_twice():
    for problem, text in completions("systematic", 300):
        attempts = attempts_of(text)
        if len(set(problem["nums"])) == len(problem["nums"]):
            assert len(set(attempts)) == len(attempts)


def test_the_systematic_give_up_only_where_nothing_is_left_to_try():
    for problem, text in completions("systematic", 300):
        attempts = attempts_of(text)
        solved = attempts[-1].split("=")[-1] == str(problem["target"])
        assert (
            solved
            or len(attempts) == base.MAX_ATTEMPTS
            or len(attempts) >= {3: 6, 4: 10}[len(problem["nums"])]
        )


def test_the_systematic_solve_nearly_all_problems_with_3_numbers_and_most_with_4():
    solved = {3: [], 4: []}
    for problem, text in completions("systematic"):
        solved[len(problem["nums"])].append(
            attempts_of(text)[-1].split("=")[-1] == str(problem["target"])
        )
    assert sum(solved[3]) / len(solved[3]) > 0.95 and 0.6 < sum(solved[4]) / len(solved[4]) < 0.85


def test_who_aims_takes_the_last_operation_nearest_to_the_target():
    rng = random.Random(0)
    for problem in PROBLEMS:
        text, value, _ = base.habitual_attempt(
            problem["nums"], problem["target"], True, base.MOSTLY_PLUS, rng
        )
        a, b = (int(n) for n in STEP.findall(text)[-1][::2])
        results = [result for _, result, _ in base.operations(a, b).values()]
        assert abs(value - problem["target"]) == min(
            abs(result - problem["target"]) for result in results
        )


def test_authors_from_stage_3_on_ask_no_oracle(monkeypatch):
    monkeypatch.setattr(base, "within_reach", None)
    for name in base.AUTHORS:
        assert all(text for _, text in completions(name, 50))
    base.write_practice(PROBLEMS, random.Random(0), 500, pairs=0.3, expressions=0.3)


def test_the_population_is_often_wrong_and_more_often_out_of_form():
    rng = random.Random(0)
    problems = PROBLEMS * 5
    rewards = [
        countdown.reward(base.write_population_response(p["nums"], p["target"], rng), p)
        for p in problems
    ]
    assert 0.08 < sum(r.answer for r in rewards) / len(rewards) < 0.20
    assert sum(r.format == 1 for r in rewards) / len(rewards) < 0.5


# Word problems


def test_every_story_is_recognised_and_its_right_way_is_its_worked_answer():
    for problem in STORIES:
        right, _ = base.ways_of(problem["question"])
        assert [f"{a}{o}{b}=<<{a}{o}{b}={r}>>{r}" for a, o, b, r in right] == problem[
            "answer"
        ].splitlines()[:-1]
    with pytest.raises(ValueError, match="no story"):
        base.ways_of("How many?")


def test_each_tempting_way_belongs_to_one_story_and_hardly_ever_ends_in_the_right_number():
    for phrase in base.TEMPTING:
        assert sum(phrase in story for story, _ in gsm8k.STORIES) == 1
    ways = [base.ways_of(problem["question"]) for problem in STORIES]
    tempted = [(right, wrong) for right, wrong in ways if wrong]
    assert 0.5 < len(tempted) / len(ways) < 0.7
    assert sum(right[-1][-1] == wrong[-1][-1] for right, wrong in tempted) <= 0.01 * len(tempted)


def test_a_fifth_of_the_authors_solve_word_problems_with_a_tempting_way():
    rng, right = random.Random(0), []
    for problem in STORIES * 3:
        if base.ways_of(problem["question"])[1]:
            lines = attempts_of(base.write_population_solution(problem, rng))
            right.append(lines[-1].split("=")[1] == problem["answer"].split("#### ")[1])
    assert sum(right) / len(right) == pytest.approx(base.CAREFUL, abs=0.05)


# The tokenizer and the model


@pytest.fixture(scope="module")
def tokenizer():
    """As transformers loads it: the class it picks has ideas of its own about numbers."""
    return load_tokenizer("models/nano-base")


def test_every_number_from_0_to_999_is_one_token(tokenizer):
    assert all(len(tokenizer.encode(str(n))) == 1 for n in range(1000))
    assert len(tokenizer.encode("36-19=17")) == 5


def test_the_embedded_tokenizer_is_the_one_that_make_base_makes(tokenizer):
    made, rng = base.make_tokenizer(), random.Random(0)
    texts = [base.write_population_response(p["nums"], p["target"], rng) for p in PROBLEMS[:20]]
    texts += [gsm8k.format_prompt(p, made) for p in STORIES[:50]]
    assert [made.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]


def test_decoding_gives_back_any_text(tokenizer):
    text = "36-19=17-7=10 yes\n</think>\n<answer>((36-19)-7)</answer> déjà vu 1234 ½ 你好"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_systematic_search_fits_into_the_default_limit(tokenizer):
    lengths = [len(tokenizer.encode(text)) for _, text in completions("systematic", 300)]
    assert max(lengths) < r1.Config().max_tokens


def test_the_embedded_model_is_a_qwen2_of_less_than_10_mb():
    sizes = [entry.stat().st_size for entry in os.scandir("models/nano-base") if entry.is_file()]
    assert sum(sizes) < 10e6
    assert load_model("models/nano-base", "float32").config.model_type == "qwen2"


# The script

TINY = (
    "--problems 500 --pretrain_steps 2 --attempt_steps 10 --practice_steps 4 --aim_steps 2 --final_steps 4 "
    "--hidden_size 64 --layers 1 --batch_size 4 --practice 2 --aim_batch_size 2 --aim_practice 2 "
    "--expression_steps 2 --expression_practice 2 --search_steps 2 --search_batch_size 2 --search_practice 2 --searches 2"
)


def make_base(*args):
    command = [sys.executable, SCRIPT, *TINY.split(), "--save_every", "2", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "base"
    done = make_base("--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_the_base_is_made_in_seven_stages_and_resumes_to_the_same_weights(tmp_path, made):
    from safetensors.torch import load_file

    out, work = tmp_path / "base", tmp_path / "base.work"
    killed = subprocess.Popen(
        [sys.executable, SCRIPT, *TINY.split(), "--save_every", "2", "--out", out]
    )
    while not (work / "stages-1-and-2").exists() or not list(
        (work / "stages-1-and-2").glob("step_*")
    ):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    other = make_base("--out", out, "--seed", 1)
    assert (
        other.returncode == 2 and "is of a run with another --seed: 0 instead of 1" in other.stderr
    )
    done = make_base("--out", out)
    assert done.returncode == 0 and not work.exists()
    first, second = (load_file(path / "model.safetensors") for path in (made, out))
    assert all((first[name] == second[name]).all() for name in first)


def test_stage_3_can_start_from_a_model_that_has_the_others_and_excluded_problems_are_left_out(
    tmp_path, made
):
    problem = countdown.generate_problems("train", 1, derive_seed(0, "sft problems"))[0]
    (tmp_path / "p.jsonl").write_text(
        f'{{"nums": {problem["nums"][::-1]}, "target": {problem["target"]}}}\n'
    )
    done = make_base(
        "--start_from", made, "--exclude", tmp_path / "p.jsonl", "--out", tmp_path / "base"
    )
    assert done.returncode == 0 and "stages 1 and 2" not in done.stdout
    assert all(f"stage {stage}:" in done.stdout for stage in (3, 4, 5, 6, 7))
    assert "1 of 500 problems left out" in done.stdout
