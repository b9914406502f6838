"""What the benchmarks rest on: flags that exist, two loops with one gradient, verdicts that are not wishful."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ROOT, config, make_episodes, tiny_model

import countdown_rewards
import nano_r1 as r1
from plumbing.processes import init_distributed

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import ablations
import against_trl
import elicitation
import search
import update

import runs


@pytest.mark.parametrize("name", ablations.QUESTIONS)
def test_every_variant_of_an_ablation_is_a_setting_of_its_own(name):
    question = ablations.QUESTIONS[name]
    flags = [f"{ablations.SETTINGS} {variant}" for variant in question.variants.values()]
    configs = [runs.config_of(text) for text in flags]
    assert all(a != b for i, a in enumerate(configs) for b in configs[:i])
    paths = {ablations.run_path("out", variant, 0) for variant in question.variants.values()}
    assert len(paths) == len(configs)


def test_an_effect_is_called_one_only_if_every_seed_shows_it():
    assert ablations.compared([0.5, 0.6], [0.3, 0.4]) == "higher"
    assert ablations.compared([0.3, 0.4], [0.5, 0.6]) == "lower"
    assert (
        ablations.compared([0.3, 0.6], [0.5, 0.4])
        == ablations.compared([0.9], [0.5])
        == "within the noise"
    )


def test_a_question_is_answered_with_the_seeds_that_all_its_variants_have(tmp_path):
    for flags, seeds in (
        ("", (0, 1, 2)),
        ("--scale_rewards none", (0, 1, 2)),
        ("--scale_rewards batch", (0, 2)),
    ):
        for seed in seeds:
            path = tmp_path / os.path.basename(ablations.run_path("", flags, seed))
            path.mkdir()
            rows = [{"step": 0, "eval/pass@1": 0.1}]
            rows += [{"step": step, "reward/answer": 0.2 + seed / 10} for step in range(1, 7)]
            rows[-1]["eval/pass@1"] = 0.5 + seed / 10
            (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (path / "cost.json").write_text(
                '{"seconds": 60, "date": "2026-01-01", "commit": "abc"}'
            )
    args = SimpleNamespace(
        only=["std", "lora"], seeds=[0, 1, 2], out=str(tmp_path), write=str(tmp_path / "docs")
    )
    std, lora = ablations.report(args).split("## ")[1:]
    assert "2 seeds. The base model: 0.100." in std and std.count("| 0.600 (0.500 to 0.700) |") == 3
    assert "No seed is complete." in lora and os.listdir(tmp_path / "docs" / "ablations") == [
        "std.png"
    ]


def test_the_naive_loop_has_the_gradient_of_ours():
    init_distributed()
    episodes, c = make_episodes(), config(**update.SETTINGS)
    rows = [
        (e.prompt_ids, e.completion.token_ids, e.completion.logprobs, e.advantage) for e in episodes
    ]
    processed, norm = update.naive(tiny_model(), rows, c)
    ours_processed, ours_norm = update.ours(r1.make_engine(tiny_model(), c), episodes, c)
    assert norm == pytest.approx(ours_norm, rel=1e-4)
    assert processed > ours_processed > 0 and norm > 0


def test_trl_gets_as_many_completions_a_step_and_the_objective_of_ours():
    args = SimpleNamespace(
        model="models/nano-base", prompts_per_step=6, group_size=4, max_tokens=50, trl_rows=8
    )
    settings, ours = against_trl.trl_settings(args), runs.config_of(against_trl.our_flags(args))
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 24
    assert (settings["num_generations"], settings["max_completion_length"]) == (
        ours.group_size,
        ours.max_tokens,
    )
    assert (settings["beta"], settings["learning_rate"]) == (
        r1.Config().kl_coef,
        ours.learning_rate,
    )


def test_settings_of_several_runs_are_parsed_at_once():
    texts = [f"--steps {steps} --max_tokens 200" for steps in range(1, 40)]
    with ThreadPoolExecutor(4) as pool:
        assert [c.steps for c in pool.map(runs.config_of, texts)] == list(range(1, 40))


def test_pass_at_k_of_base_and_trained_and_what_only_one_solves():
    curve = elicitation.pass_curve([0, 1, 4], 4)
    assert curve.tolist() == [[0, 0, 0, 0], [0.25, 0.5, 0.75, 1], [1, 1, 1, 1]]
    assert (
        elicitation.crossing([0.3, 0.1, 0.0, -0.1]) == 3
        and elicitation.crossing([0.1, 0.1]) is None
    )
    assert elicitation.only_one_solves([0, 0, 3, 1], [2, 0, 0, 1]) == (1, 1)


def test_the_interval_of_a_difference_is_that_of_the_mean_over_problems():
    right = np.array([[1.0, 0.0]] * 90 + [[0.0, 0.0]] * 210)  # two columns, as of two k
    mean, low, high = elicitation.mean_interval(right)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 300)
    assert mean.tolist() == [0.3, 0.0] and [low[0], high[0]] == pytest.approx(
        [0.3 - half, 0.3 + half], abs=0.005
    )
    assert low[1] == high[1] == 0


def completion(thinking, finish_reason="stop"):
    """An episode of the problem 4, 6, 2 -> 8."""
    text = SimpleNamespace(finish_reason=finish_reason)
    return SimpleNamespace(
        text=f"{thinking}</think>", problem={"target": 8}, completion=text, length=10
    )


def test_what_completions_do_is_counted_in_their_text():
    solved, gives_up = (
        completion("4+6=10,10/2=5 no\n4+6=10,10-2=8 yes"),
        completion("4*6=24,24-2=21 no"),
    )
    in_vain = completion("4+6=10,10+2=12 no\n" * 4)
    seen = elicitation.behaviour(
        [solved, gives_up, in_vain, completion("6-4=2,2*2=4 no\n" * 2, "length")]
    )
    assert seen["attempts"] == 9 / 4 and seen["length"] == 10 and seen["cut off"] == 1 / 4
    assert seen["gives up"] == seen["in vain"] == 1 / 4
    assert (
        seen["repeats"] == 4 / 9 and seen["repeats 4 to 6"] == 1.0 and seen["with * or /"] == 4 / 9
    )
    assert seen["right -"] == 3 / 4 and seen["right +"] == 1.0
    assert set(seen) == set(elicitation.BEHAVIOUR)


def test_problems_are_sorted_by_how_often_the_base_solves_them():
    table = elicitation.rarity_table(
        [0, 0, 1, 50, 100], [[0, 50, 10, 80, 100], [0, 100, 30, 90, 100]], 100
    )
    assert [
        [cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]
    ] == [
        ["0 of 100 tries", "2", "0.375 (0.250 to 0.500)", "1"],
        ["up to 1% of its tries", "1", "0.200 (0.100 to 0.300)", "0"],
        ["25% to 100% of its tries", "2", "0.925 (0.900 to 0.950)", "0"],
    ]


# search.py


@pytest.mark.parametrize(
    ("attempt", "verdict"),
    [
        ("36-19=17-7=10+55=65 yes", (65, True, True)),
        ("19+7=26,36-26=10,55-10=45 no", (45, True, True)),
        ("36-19=18-7=11+55=66 no", (66, False, True)),
        ("36-19=17-7=10 no", (10, True, False)),
        ("36-19=17-7=10+56=66 no", (66, True, False)),
        ("55/0=7", (7, False, False)),
        ("I give up", (None, False, False)),
    ],
)
def test_an_attempt_of_a_search_is_judged_by_its_own_arithmetic_and_numbers(attempt, verdict):
    assert search.judge(attempt, [19, 36, 55, 7]) == verdict


def test_a_search_to_go_on_with_has_begun_with_two_failures():
    problems = countdown_rewards.generate_problems("test", 60, 0)
    begun = search.begin(problems)
    assert 20 < len(begun) < 60
    for problem, lines, _ in begun:
        verdicts = [search.judge(line, problem["nums"]) for line in lines.splitlines()[1:]]
        assert len(verdicts) == 2 and all(right and complete for _, right, complete in verdicts)
        assert all(value != problem["target"] for value, _, _ in verdicts)
