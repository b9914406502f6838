"""The benchmarks: their statistics, and each command from end to end with tiny sizes."""

import importlib
import os
import random
import re
import statistics
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import countdown_rewards
import nano_r1
from benchmarks import card, checks, controls, race, runs, sweep

TINY = "--task countdown --steps 1 --prompts_per_step 4 --eval_problems 4 --max_tokens 64"
CONFIG = runs.parse("nano_r1", TINY)
PROBLEMS = countdown_rewards.load_problems("test")[:32]


@pytest.fixture
def run(monkeypatch, capsys):
    """run(main, words): what a command prints; it trains in this process, on 32 problems."""

    def run(main, *words):
        monkeypatch.setattr(sys, "argv", ["x", *map(str, words)])
        main()
        return capsys.readouterr().out

    monkeypatch.setattr(countdown_rewards, "load_problems", lambda *_: list(PROBLEMS))
    monkeypatch.setattr(
        runs,
        "train",
        lambda script, flags, path: runs.complete(
            importlib.import_module(script).main, runs.parse(script, flags), path
        ),
    )
    return run


@pytest.mark.parametrize(
    "text, solved",
    [
        ("55-36=19-7=12,19-12=7 yes", 1.0),
        ("55-36=19+7=26,26-19=7 no\n55-36=19-7=12,19-12=7 yes", 1.0),
        ("55-36=19-7=12,19-12=7 no", 0.0),
        ("55-36=20-7=12,19-12=7 yes", 0.0),  # a wrong step
        ("55-36=19-7=12,19-12=7\n</think>\n<answer>19-((55-36)-7)</answer>", 1.0),
        ("55-36=19-7=12,19-12=7\n</think>\n<answer>19-((55-36)+7)</answer>", 0.0),
    ],
)
def test_a_search_solves_a_problem_if_each_step_of_the_line_with_yes_is_right(text, solved):
    assert controls.is_solved(text, {"nums": [7, 19, 36, 55], "target": 7}) == solved


@pytest.mark.parametrize("form", ["question", "practice"])
def test_each_check_of_a_solved_example_is_true(form, monkeypatch):
    problem = {"nums": [19, 36, 55, 7], "target": 65}
    monkeypatch.setattr(controls, "example_problems", lambda: [problem])
    task = SimpleNamespace(prompt_text=str)
    for seed in range(8):
        text = controls.example(form, task, random.Random(seed))
        checks = re.findall(r"=(\d+) (yes|no)$", text, re.MULTILINE)
        said = {(result == "65", word) for result, word in checks}
        assert said == {(True, "yes"), (False, "no")}
        assert controls.is_solved(text, problem)


def searches(way, threshold, problems=PROBLEMS[:8]):
    return controls.searches(CONFIG, problems, controls.Way(*way), threshold)


def test_a_search_ends_at_its_first_yes_or_answer():
    texts, _ = searches(("question", 1, "no rule"), None)
    assert any(text.endswith(" yes") for text in texts)
    assert not any(re.search("( yes|</answer>).", text, re.DOTALL) for text in texts)


def test_a_threshold_decides_between_yes_and_no():
    texts, _ = searches(("practice", 0, "no rule"), 0.0)
    assert " no" not in str(texts) and " yes" in str(texts)
    texts, seen = searches(("practice", 0, "no rule"), 1.0)
    assert " yes" not in str(texts) and len(seen) > 8


def test_a_begun_line_has_the_numbers_subtracted_and_nothing_knows_the_target(monkeypatch):
    monkeypatch.setattr(controls, "question_of", lambda _, p, __: f"\n{p['nums']} 65\n")
    others = [problem | {"target": 65} for problem in PROBLEMS[:8]]
    found = searches(("question", 1, "begun"), 0.0)
    assert found == searches(("question", 1, "begun"), 0.0, others)
    for problem, text in zip(PROBLEMS, found[0]):
        assert re.fullmatch(controls.subtracted(problem["nums"]) + ".* yes", text)


def test_the_threshold_is_the_best_one_on_training_problems(monkeypatch):
    def searches(config, problems, way, threshold):
        return [threshold] * len(problems), [place / 100 for place in range(100)]

    monkeypatch.setattr(controls, "searches", searches)
    monkeypatch.setattr(controls, "is_solved", lambda threshold, _: 1 - abs(threshold - 0.94))
    assert controls.with_threshold(CONFIG, PROBLEMS[:1], None) == [pytest.approx(0.99)]


def test_intervals_are_student_s():
    # The standard deviation of the three differences is 1; t is 4.303, and 4.303 / sqrt(3) = 2.484.
    found = runs.difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2.0 - 2.484, 2.0 + 2.484), abs=1e-3)


def test_a_sweep_compares_its_rows(run, tmp_path):
    flags = f"{TINY} --prompts_per_step 2 --max_tokens 4"
    words = ("--script", "nano_r1", "--flags", flags, "--seeds", 0, 1, "--out", tmp_path)
    out = run(sweep.main, *words)
    assert "\n| default | 0 | " in out and "\n| default | 1 | " in out
    paths = sorted(path.parent for path in tmp_path.rglob("metrics.jsonl"))
    configs = [nano_r1.read_rows(path / "config.json")[0] for path in paths]
    assert [config["seed"] for config in configs] == [0, 1]
    assert sweep.result_table({"default": paths, "other": paths}).endswith(
        "+0.000 [+0.000, +0.000] |"
    )
    assert sweep.flags_of(("default", "kl_coef=0,steps=2")) == " --kl_coef=0 --steps=2"


RACED = (
    "variants.py --steps 2 --prompts_per_step 2 --group_size 2 --max_tokens 4 "
    "--max_num_gen_batches 2"
)


def test_a_race_counts_all_that_is_sampled_until_its_end(run, tmp_path, monkeypatch):
    def raced():
        return run(race.main, *RACED.split()).splitlines()[-1]

    monkeypatch.setattr(race, "REACH", 0.0)
    monkeypatch.setattr(runs, "place", lambda _, __, seed: f"{tmp_path}/{seed}")
    for name in ("evaluate", "sample_and_reward"):  # a race replaces them
        monkeypatch.setattr(nano_r1, name, getattr(nano_r1, name))
    # No short completion is correct, so each step draws two batches of 4 and trains on one.
    row = raced()
    assert raced() == row  # and the runs are not repeated
    histories = [nano_r1.read_rows(file) for file in tmp_path.rglob("metrics.jsonl")]
    assert [len(history) for history in histories] == [2] * 3
    assert all(16 < history[1]["race/tokens"] <= 32 for history in histories)
    assert row.startswith(f"| `{RACED}` | ") and "inf" not in row
    monkeypatch.setattr(race, "tokens_of", lambda path: 10 ** int(path[-1]))  # the seed
    assert " | 10 (1 to 100) | " in raced()


def test_a_race_evaluates_where_60_percent_of_the_last_8_steps_are_correct(tmp_path, monkeypatch):
    episode = partial(SimpleNamespace, token_ids=[5])
    monkeypatch.setattr(nano_r1, "sample_and_reward", lambda *x: [episode(answer_reward=x[-1])])
    monkeypatch.setattr(
        nano_r1, "evaluate", lambda *x: {"eval/pass@1": 0.6 if x[-1] == 12 else 0.59}
    )
    race.take_part()
    rows = [{"eval/pass@1": 0.9}]  # of the base, which does not count
    for step in range(1, 13):
        nano_r1.sample_and_reward(None, None, None, None, "", step < 7)
        config = SimpleNamespace(steps=12)
        rows.append(nano_r1.evaluate(None, None, None, config, tmp_path, step))
        nano_r1.write_rows(f"{tmp_path}/metrics.jsonl", rows)
    assert [step for step, row in enumerate(rows) if "eval/pass@1" in row] == [*range(10), 12]
    assert race.tokens_of(tmp_path) == 12  # one in each step until the held-out problems agree


def test_a_script_or_a_file_in_its_flags_that_has_changed_is_trained_again(
    run, tmp_path, monkeypatch
):
    def train(script, flags, path):
        raise SystemExit(path)

    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "train", train)
    paths = []
    for code, prompt in ("a = 1", ""), ("a = 1  # as before", ""), ("a = 2", ""), ("a = 1", "b"):
        (tmp_path / "mine.py").write_text(code)
        (tmp_path / "prompt.toml").write_text(prompt)
        runs.version.cache_clear()
        with pytest.raises(SystemExit) as stopped:
            run(sweep.main, "--script", "mine", "--axis", "prompt=prompt.toml")
        paths.append(str(stopped.value))
    assert paths[0] == paths[1] and len(set(paths)) == 3


def test_a_result_is_kept_for_its_settings_and_weights(tmp_path):
    asked = []

    def judge(config, problems, more):
        asked.append(config.max_tokens)
        return [1.0]

    config = runs.parse("nano_r1", TINY)
    for weights, config.max_tokens in ("a", 8), ("a", 8), ("a", 9), ("b", 9):
        (tmp_path / "model.safetensors").write_text(weights)
        runs.version.cache_clear()
        assert controls.judged(tmp_path, judge, config, [str(tmp_path)], PROBLEMS, 1) == [[1.0]]
    assert asked == [8, 9, 9]


@pytest.mark.parametrize("name, reward, error", [("format", 0.75, 0.0), ("random", 0.5, 0.1)])
def test_the_reward_of_a_control_knows_nothing_of_the_answer(name, reward, error, monkeypatch):
    def rollout(*_):
        return [
            nano_r1.Episode(token_ids=[5], format_reward=0.75, reward=9.0, answer_reward=i % 2)
            for i in range(400)
        ]

    monkeypatch.setattr(nano_r1, "rollout", rollout)
    found = controls.rewarded(controls.REWARDS[name])(None, [], None, CONFIG, 1)
    for answer in (0, 1):
        rewards = [e.reward for e in found if e.answer_reward == answer]
        assert statistics.mean(rewards) == pytest.approx(reward, abs=error)


def test_the_table_subtracts_each_at_its_best_from_the_reward_at_its_best():
    base = {0.0: [0.0, 0.0, 1.0, 0.0], 1.0: [0.0, 0.5, 1.0, 0.5]}
    table = controls.control_table({"base": base, "reward": {0.0: [1.0] * 4, 1.0: [0.5] * 4}})
    cells = table.splitlines()[2].split(" | ")
    assert [cell[:6] for cell in cells] == ["| base", "0.250", "0.500", "0.500 ", "+0.500"]


def test_every_control_stands_in_the_table(run, tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "searches", lambda _, problems, *__: ([""] * len(problems), []))
    monkeypatch.setattr(controls, "SFT", "--steps 1 --batch_size 1 --eval_problems 4")
    words = "--problems 4 --temperatures 1 --steps 1 --only random rft".split()
    words += ["--out", tmp_path, "--flags", TINY.replace("--steps 1", "")]
    words += ["--seeds"]
    of_base = run(controls.main, *words)  # without a seed
    out = run(controls.main, *words, 0)
    names = re.findall(r"^\| (base.*?) \| ", of_base, re.MULTILINE)
    assert len(names) > 2 * len(controls.WAYS) and "reward | " not in of_base
    for name in (*names, "reward", "random", "rft", "trained", "1"):
        assert f"\n| {name} | " in out


def test_a_yes_is_counted_as_true_if_the_result_is_the_target(tmp_path):
    text = "\n9-4=5 no\n9+4=13 no\n9*4=36 yes\n9*4=36 no\n9+4=13 yes\n</think>"
    rows = [{"completion": text, "problem": {"nums": [9, 4], "target": 36}}]
    nano_r1.write_rows(f"{tmp_path}/episodes/step_000001.jsonl", rows)
    nano_r1.write_rows(f"{tmp_path}/config.json", [{"steps": 10}])  # it was stopped after one
    rows = checks.truth_table([tmp_path]).split("\n")
    assert rows[-2:] == ["| 1 | 0.500 | 0.500 | 0.333 |", "| 10 | – | – | – |"]
    assert checks.better_than_chance([0.9, 0.2], [0.2, 0.1]) == pytest.approx(3.5 / 4)


def test_p_yes_is_read_before_the_word(monkeypatch):
    _, task = runs.load(CONFIG)
    yes, hit = (task.tokenizer.encode(word)[0] for word in (" yes", "36"))
    text = task.tokenizer.encode("\n9-4=5 no\n9*4=36 yes\n9*4=36 no\n")

    def model(ids):  # a yes after 36 is 9 times as probable as a no, elsewhere as a no after it
        logits = torch.zeros(*ids.shape, 2000)
        logits[..., yes] = torch.where(ids == hit, 9.0, 1 / 9).log()
        return SimpleNamespace(logits=logits)

    sampler = SimpleNamespace(model=model, generate=lambda *_: [(text, text)])
    monkeypatch.setattr(runs, "load", lambda _: (sampler, task))
    found = checks.checks(CONFIG, [{"nums": [9, 4], "target": 36}])
    assert found == [(pytest.approx(p), p > 0.5) for p in (0.1, 0.9, 0.9)]


CARD = """--prompt plain --kl_coef 0 --device cpu --prompts_per_step 2 --group_size 2 --steps 1
--micro_batch_size 2 --max_tokens 8 --dtype bfloat16"""


def test_arms_are_timed_forwards_and_backwards(capsys):
    with torch.compiler.set_stance("force_eager"):  # to compile would take a minute
        card.main(runs.parse("benchmarks.card", f"{CARD} --arms none clocks+chunk+layers"))
        card.main(runs.parse("benchmarks.card", f"{CARD} --part update"))
    lines = re.findall(r"(\S+) \d+ tokens; seconds: (.*);.* GB", capsys.readouterr().out)
    forwards = ["none", "clocks+chunk+layers"]
    assert [arm for arm, _ in lines] == [*forwards, *forwards[::-1], "none", "none"]
    names = [re.findall(r"[a-z_]+", seconds) for _, seconds in lines]
    assert names[0] == ["sampling", "update", "sync"]
    assert {"next_logits", "sample_token", "rows_to_keep"} < set(names[1])
    assert names[-1] == ["update"]


def test_trl_trains_on_the_same_prompts(capsys):
    card.main(runs.parse("benchmarks.card", f"{CARD} --trl lean"))
    assert re.search(r"step \S+ s, sampling \S+ s", capsys.readouterr().out)


@pytest.mark.parametrize("stretch", "12")
def test_the_rows_for_a_card_have_flags_that_exist(stretch, tmp_path):
    settings = {"PYTHON": "echo", "OUT": str(tmp_path), "DEVICE": "cpu"}
    command = ["bash", runs.ROOT / "benchmarks/card.sh", stretch]
    subprocess.run(command, check=True, env=os.environ | settings)
    logs = [file.read_text() for file in tmp_path.glob("*.log")]
    assert len(logs) > 5
    for log in logs:
        (program, flags) = re.findall(r"(\w+|benchmarks\.card)(?:\.py)? (--task .*)", log)[-1]
        assert runs.parse(program, flags).device == "cpu"


def test_random_weights_have_as_many_tokens_as_their_tokenizer(tmp_path):
    card.make(
        tmp_path,
        vocab_size=2000,
        num_key_value_heads=2,
        num_attention_heads=2,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
    )
    policy, tokenizer = nano_r1.load_model(nano_r1.Config(model=tmp_path))
    assert len(tokenizer) == policy.config.vocab_size == 2000
