"""What the benchmarks rest on: flags that exist, two loops with one gradient, verdicts that are not wishful."""

import os
import shlex
import sys

import pytest
import torch
from test_update import DEVICE, WORLD, make_episodes, tiny_model

import nano_r1 as r1

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks"))

import ablations
import update


@pytest.mark.parametrize("name", ablations.QUESTIONS)
def test_every_variant_of_an_ablation_is_a_setting_of_its_own(name):
    question = ablations.QUESTIONS[name]
    common = shlex.split(ablations.SETTINGS[question.task])
    configs = [r1.parse_args([*common, *shlex.split(flags)]) for flags in question.variants.values()]
    assert all(a != b for i, a in enumerate(configs) for b in configs[:i])
    paths = {ablations.run_path("out", question.task, flags, 0) for flags in question.variants.values()}
    assert len(paths) == len(configs)


def test_an_effect_is_called_one_only_if_every_seed_shows_it():
    assert ablations.compared([0.5, 0.6], [0.3, 0.4]) == "higher"
    assert ablations.compared([0.3, 0.4], [0.5, 0.6]) == "lower"
    assert ablations.compared([0.3, 0.6], [0.5, 0.4]) == ablations.compared([0.5], [0.5]) == "within the noise"


def test_the_naive_loop_has_the_gradient_of_ours():
    episodes = make_episodes()
    c = r1.Config(micro_batch_tokens=60)
    rows = [(e.prompt_ids, e.completion.token_ids, e.completion.logprobs, e.advantage) for e in episodes]
    r1.start_processes()
    processed, norm = update.naive(tiny_model(), rows, c)
    ours = r1.update_policy(r1.make_engine(tiny_model(), c), episodes, c, DEVICE, WORLD)
    assert norm == pytest.approx(ours["grad_norm"], rel=1e-4)
    assert processed > ours["tokens/update"]
    assert torch.isfinite(torch.tensor(norm))
