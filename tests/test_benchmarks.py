"""What the benchmarks rest on: flags that exist, two loops with one gradient, honest verdicts."""

import collections
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import ROOT, make_episodes, rows_of, tiny_model

import coins_rewards
import countdown_rewards
import nano_r1 as r1
from plumbing.processes import init_distributed

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import ablations
import against_trl
import choices
import controls
import cost_curve
import elicitation
import pretrained
import rules
import search
import step_profile
import update

import runs


@pytest.mark.parametrize("name", ablations.QUESTIONS)
def test_every_variant_of_an_ablation_is_a_setting_of_its_own_at_each_rate(name):
    question = ablations.QUESTIONS[name]
    every = [ablations.at_rate(v, r) for v in question.variants.values() for r in question.rates]
    configs = [runs.config_of(f"{ablations.SETTINGS} {flags}") for flags in every]
    assert all(a != b for i, a in enumerate(configs) for b in configs[:i])
    assert len({ablations.run_path("out", flags, 0) for flags in every}) == len(configs)
    assert {label for group in question.pooled.values() for label in group} <= {*question.variants}


@pytest.mark.parametrize(
    ("values", "others", "verdict"),
    [
        ([0.5, 0.61, 0.7], [0.4, 0.5, 0.61], "higher"),
        ([0.4, 0.5, 0.61], [0.5, 0.61, 0.7], "lower"),
        ([0.3, 0.6], [0.5, 0.4], "not resolved"),
        ([0.9], [0.5], "one seed"),
    ],
)
def test_an_effect_is_called_one_only_where_its_interval_leaves_0_out(values, others, verdict):
    assert ablations.difference(values, others).endswith(verdict)


def test_the_interval_over_seeds_is_student_s():
    half = 4.303 / 3**0.5  # three pairs, whose differences have the standard deviation 1
    found = runs.paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2.0 - half, 2.0 + half))


def test_a_variant_is_compared_at_the_rate_at_which_it_learned_fastest():
    """Which is not the one that is best on the held-out problems."""
    result = lambda during, after: ablations.Result([0.1] * 2, after, [during] * 2, [], [])
    first = {"5e-5": result(0.2, [0.9, 0.9]), "1.5e-4": result(0.4, [0.6, 0.5])}
    first["4.5e-4"] = result(0.3, [0.7, 0.7])
    better = {rate: result(r.during[0], [v - 0.1 for v in r.after]) for rate, r in first.items()}
    better["1.5e-4"] = result(0.4, [0.7, 0.6])
    question = ablations.Question("?", {"a": "", "b": "--x", "c": "--y"}, {"both": ["b", "c"]})
    lines = ablations.table(question, {"a": first, "b": better, "c": better}).splitlines()[3:]
    assert ["+0.100 [+0.100, +0.100], higher" in line for line in lines] == [True] * 3


def test_the_naive_loop_has_the_gradient_of_ours():
    init_distributed()
    config = r1.Config(**update.SETTINGS, learning_rate=1e-2)
    rows = [
        (e.prompt_ids, e.completion.token_ids, e.completion.logprobs, e.advantage)
        for e in make_episodes()
    ]
    processed, norm = update.naive(tiny_model(), rows, config)
    engine = r1.make_engine(tiny_model(), config)
    fewer, ours = update.ours(engine, update.episodes_of(rows), config)
    assert norm == pytest.approx(ours, rel=1e-4) and norm > 0
    assert processed > fewer > 0


def test_trl_gets_as_many_completions_a_step_and_the_objective_of_ours():
    sizes = {"prompts_per_step": 6, "group_size": 4, "max_tokens": 50, "trl_rows": 8}
    args = SimpleNamespace(model="models/nano-base", trl_continuous=0, **sizes)
    settings = against_trl.trl_settings(args)
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 24
    assert settings["num_generations"] == 4
    assert settings["beta"] == r1.Config().kl_coef


def test_pass_at_k_of_base_and_trained_and_what_only_one_solves():
    curve = elicitation.pass_curve([0, 1, 4], 4)
    assert curve.tolist() == [[0, 0, 0, 0], [0.25, 0.5, 0.75, 1], [1, 1, 1, 1]]
    assert [elicitation.crossing(d) for d in ([0.3, 0.1, 0.0, -0.1], [0.1, 0.1])] == [3, None]
    assert elicitation.only_one_solves([0, 0, 3, 1], [2, 0, 0, 1]) == (1, 1)


def test_the_interval_of_a_difference_is_that_of_the_mean_over_problems():
    right = np.array([[1.0, 0.0]] * 90 + [[0.0, 0.0]] * 210)  # two columns, as of two k
    mean, low, high = elicitation.mean_interval(right)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 300)
    assert [low[0], high[0]] == pytest.approx([0.3 - half, 0.3 + half], abs=0.005)
    assert mean.tolist() == [0.3, 0.0] and low[1] == high[1] == 0


def completion(thinking, finish_reason="stop"):
    """An episode of the problem 4, 6, 2 -> 8."""
    facts = {"problem": {"target": 8}, "completion": SimpleNamespace(finish_reason=finish_reason)}
    return SimpleNamespace(text=f"{thinking}</think>", length=10, **facts)


def test_what_completions_do_is_counted_in_their_text():
    solved = completion("4+6=10,10/2=5 no\n4+6=10,10-2=8 yes")
    gives_up = completion("4*6=24,24-2=21 no")
    in_vain = completion("4+6=10,10+2=12 no\n" * 4)
    cut_off = completion("6-4=2,2*2=4 no\n" * 2, "length")
    assert elicitation.behaviour([solved, gives_up, in_vain, cut_off]) == {
        **{"attempts": 9 / 4, "length": 10, "cut off": 1 / 4, "gives up": 1 / 4},
        **{"in vain": 1 / 4, "repeats": 4 / 9, "repeats 4 to 6": 1.0, "with * or /": 4 / 9},
        **{"right +": 1.0, "right -": 3 / 4, "right *": 1.0, "right /": 1.0},
    }


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
    begun = search.begin(countdown_rewards.generate_problems("test", 60, 0))
    assert 20 < len(begun) < 60
    for problem, text, _ in begun:
        verdicts = [search.judge(line, problem["nums"]) for line in text.splitlines()[1:]]
        assert [verdict[1:] for verdict in verdicts] == [(True, True)] * 2
        assert problem["target"] not in [value for value, *_ in verdicts]


@pytest.fixture(scope="module")
def base():
    """The embedded model's (sampler, policy, task)."""
    return runs.load_sampler(runs.config_of("--max_tokens 120"))


@pytest.mark.parametrize("rule", ["-", "minus"])
def test_a_decoding_rule_has_every_line_checked_and_begun_its_way_and_the_form_right(rule, base):
    _, model, task = base
    problems = countdown_rewards.generate_problems("test", 6, 0)
    texts = rules.sample(model, task.tokenizer, task, problems, rule, 1.0, 120)
    for text, problem in zip(texts, problems):
        thinking, answer = text.split("</think>")
        *lines, last = thinking.strip().splitlines()
        assert all(line.endswith((" yes", " no")) for line in lines)
        assert last.endswith("yes") or len(lines) > 1
        if rule == "-":
            assert all("-" in line[:4] for line in (*lines, last))
        else:
            assert thinking.strip().startswith(rules.subtracted(problem["nums"]))
        assert answer.startswith("\n<answer>") and answer.endswith("</answer>")


@pytest.mark.parametrize(
    "line, steps",
    [
        ("36-19=17-7=10+55=65 no", [(36, "-", 19, 17), (17, "-", 7, 10), (10, "+", 55, 65)]),
        ("55-36=19,7*19=133+19=152", [(55, "-", 36, 19), (19, "*", 7, 133), (133, "+", 19, 152)]),
        ("36-19=17", None),  # not all numbers
        ("36-19=17+36=53-7=46+55=101", None),  # one twice
        ("36-19=17,7-55=48", None),  # two sums that do not belong together
    ],
)
def test_the_operations_of_a_line(line, steps):
    assert choices.operations_of(line, [19, 36, 55, 7]) == steps


def test_a_choice_is_compared_with_an_even_draw_and_with_another_target():
    counts = collections.Counter()
    choices.count_choices("36+19=55 yes", [19, 36], 55, 17, counts)
    choices.count_choices("36-19=17 no", [19, 36], 55, 17, counts)
    assert counts["last"] == counts["last elsewhere"] == 1 and counts["last of"] == 2
    assert counts["last by chance"] == pytest.approx(2 / 3)  # of +, -, * (684)


def test_a_control_is_paid_for_something_else(tmp_path):
    few = "--steps 1 --prompts_per_step 2 --group_size 2 --max_tokens 40 --eval_problems 2"
    flags = f"--task countdown {few} --record_tokens_every 0"
    where = (0, str(tmp_path))
    path = controls.train("form", *where, flags, None, "")
    _, last = runs.records(path)
    assert last["reward"] == last["reward/format"] and last["step"] == 1
    assert controls.train("form", *where, flags, None, "") == path
    with pytest.raises(SystemExit, match="learning_rate"):
        controls.train("form", *where, f"{flags} --learning_rate 1e-3", None, "")
    (tmp_path / "rft-seed0.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 2)
    tuned = controls.train("rft", *where, flags, path, "--steps 1 --batch_size 2")
    assert os.path.isdir(f"{tuned}/model")


def test_what_a_pretrained_model_imitates_is_right_and_what_is_measured_is_sampled_once(tmp_path):
    model = os.path.join(ROOT, "models", "nano-base")
    pretrained.write_data(tmp_path, model)
    rows, train, test = (rows_of(tmp_path / f"{name}.jsonl") for name in ("rows", "train", "test"))
    paid = [coins_rewards.reward(r["response"], p).total for r, p in zip(rows, train)]
    assert paid == [2.0] * pretrained.ROWS
    assert len(test) == pretrained.HELD_OUT and not any(problem in train for problem in test)
    config = runs.config_of(f"{pretrained.REWARD} --model {model}")
    sampler, _, task = runs.load_sampler(config)
    cache = elicitation.Cache(tmp_path / "results.json")
    measured = elicitation.Model(model, config, sampler, task, cache)
    test = test[:6]
    values = pretrained.on_coins(measured, test)
    assert 1 < values["perplexity of a text"] and 0 <= values["in form, T 1.0"] <= 1
    begun = values["form written: first number less the second"]  # this model can subtract
    assert begun >= sum(problem["ava"] > problem["ben"] for problem in test) / len(test) > 0
    pretrained.picture(tmp_path / "one.png", ("base",), [values], [])
    assert (tmp_path / "one.png").stat().st_size > 5000
    other = tmp_path / "other"
    shutil.copytree(model, other)
    weights = safetensors.torch.load_file(other / "model.safetensors")
    weights = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    safetensors.torch.save_file(weights, other / "model.safetensors", {"format": "pt"})
    zeros = elicitation.Model(str(other), config, sampler, task, cache)
    in_turn = [pretrained.completions(each, test) for each in (zeros, measured)]
    assert in_turn[0] == [""] * len(in_turn[0]) and all(in_turn[1])
    measured.sampler = None  # not needed again
    assert pretrained.on_coins(measured, test) == values


def test_a_section_takes_the_place_of_the_one_before(tmp_path):
    page = tmp_path / "page.md"
    for name, text in (("a", "old\n"), ("b", "other\n"), ("a", "new\n")):
        runs.write_section(page, name, text)
    b = "<!-- b -->\nother\n<!-- end of b -->\n"
    assert page.read_text() == f"<!-- a -->\nnew\n<!-- end of a -->\n\n{b}"


def test_a_profile_tells_products_from_other_operations_and_what_they_would_take():
    machine = step_profile.Machine()
    a = torch.randn(256, 256)
    rows, result = step_profile.profiled(machine, "part", lambda: a @ a + a)
    assert result.shape == (256, 256)
    calls = {kind: count for _, kind, count, *_ in rows}
    assert calls["matrix products"] == calls["other arithmetic"] == "1"
    found, *_ = step_profile.operations(lambda: a @ a, shapes=True)
    (product,) = (operation for operation in found if operation.key == "aten::mm")
    least = machine.least("matrix products", product)
    assert least == pytest.approx(machine.call + 2 * 256**3 / machine.flops)


def test_the_arithmetic_of_a_step_counts_every_matrix_of_the_model():
    matrices = sum(p.numel() for p in cost_curve.model_of("1.2M").parameters() if p.dim() == 2)
    completions = [64] * 2 * cost_curve.GROUP
    sampling, reference, update = cost_curve.operations("1.2M", [30, 50], completions)
    tokens = sum(completions)
    attention = 4 * 128 * 5 * sum(64 * (p + 32) for p in (30, 50)) * cost_curve.GROUP
    assert sampling == 2 * matrices * tokens + attention
    assert reference == 2 * matrices * (80 + tokens) + attention
    assert update == 3 * reference
