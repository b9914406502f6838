"""What the benchmarks rest on: flags that exist, two loops with one gradient, verdicts that are not wishful."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers import ROOT, config, make_episodes, tiny_model

import nano_r1 as r1
from plumbing.processes import init_distributed

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import ablations
import against_trl
import elicitation
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
    assert ablations.compared([0.3, 0.6], [0.5, 0.4]) == ablations.compared([0.5], [0.5]) == "within the noise"


def test_the_naive_loop_has_the_gradient_of_ours():
    init_distributed()
    episodes, c = make_episodes(), config(**update.SETTINGS)
    rows = [(e.prompt_ids, e.completion.token_ids, e.completion.logprobs, e.advantage) for e in episodes]
    processed, norm = update.naive(tiny_model(), rows, c)
    ours_processed, ours_norm = update.ours(r1.make_engine(tiny_model(), c), episodes, c)
    assert norm == pytest.approx(ours_norm, rel=1e-4)
    assert processed > ours_processed > 0 and norm > 0


def test_trl_gets_as_many_completions_a_step_and_the_objective_of_ours():
    args = SimpleNamespace(model="models/nano-base", prompts_per_step=6, group_size=4, max_tokens=50, trl_rows=8)
    settings, ours = against_trl.trl_settings(args), runs.config_of(against_trl.our_flags(args))
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 24
    assert (settings["num_generations"], settings["max_completion_length"]) == (ours.group_size, ours.max_tokens)
    assert (settings["beta"], settings["learning_rate"]) == (r1.Config().kl_coef, ours.learning_rate)


def test_settings_of_several_runs_are_parsed_at_once():
    texts = [f"--steps {steps} --max_tokens 200" for steps in range(1, 40)]
    with ThreadPoolExecutor(4) as pool:
        assert [c.steps for c in pool.map(runs.config_of, texts)] == list(range(1, 40))


def test_pass_at_k_of_base_and_trained_and_what_only_one_solves():
    curve = elicitation.pass_curve([0, 1, 4], 4)
    assert curve.tolist() == [[0, 0, 0, 0], [0.25, 0.5, 0.75, 1], [1, 1, 1, 1]]
    assert elicitation.crossing([0.3, 0.1, 0.0, -0.1]) == 3 and elicitation.crossing([0.1, 0.1]) is None
    assert elicitation.only_one_solves([0, 0, 3, 1], [2, 0, 0, 1]) == (1, 1)


def test_problems_are_sorted_by_how_often_the_base_solves_them():
    table = elicitation.rarity_table([0, 0, 1, 50, 100], [[0, 50, 10, 80, 100], [0, 100, 30, 90, 100]], 100)
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]] == [
        ["0 of 100 tries", "2", "0.375 (0.250 to 0.500)", "1"],
        ["up to 1% of its tries", "1", "0.200 (0.100 to 0.300)", "0"],
        ["25% to 100% of its tries", "2", "0.925 (0.900 to 0.950)", "0"],
    ]
