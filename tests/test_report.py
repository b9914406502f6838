"""The report in a real browser: opened from a file with no network, it says what the record says.

Whatever a model wrote.
"""

import dataclasses
import json
import math
import os
import random
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import browser_needed, rows_of, train

import variants
from nano_r1 import Config
from plumbing import report
from plumbing.files import write_text
from plumbing.report.__main__ import main as command
from plumbing.report.payload import base_commands, by_bisection
from plumbing.report.read import explanations, read_run
from plumbing.settings import parse_args
from plumbing.token_record import load_tokens

WIDTH = 1200  # of a page


# ---- Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run of three steps, with its report."""
    path, _ = train(
        tmp_path_factory.mktemp("report"), "run", steps=3, eval_every=1, save_every=0, group_size=4
    )
    return path


def completions(run, step):
    return rows_of(run / "episodes" / f"step_{step:06d}.jsonl")


VOCABULARY = ["<|end|>", "1+1", "=3", "\n", "\xf0\x9f", "\x99", "\x82"]


def make_run(path, texts, steps=(1,), tokens=(), vocabulary=VOCABULARY, group_size=2, metrics=()):
    """A run's directory with these completions, in tokens too if there are some, in each step."""
    rows = [
        {
            "problem": {"question": text[:50]},
            "completion": text,
            "reward": float(i % 2),
            "format_reward": 1.0,
            "answer_reward": float(i % 2),
            "why": text[:80],
            "advantage": (-1) ** (i + 1) * 0.7,
            "length": len(tokens[i]) if tokens else 5,
            "finish_reason": "stop",
        }
        for i, text in enumerate(texts)
    ]
    files = {
        "config.json": [{"group_size": group_size, "max_tokens": 9, "advantage_eps": 1e-4}],
        "metrics.jsonl": [
            {"step": step, "reward": 0.5, "loss": 0.0, **dict(metrics)} for step in steps
        ],
        "vocabulary.json": [{"tokens": vocabulary, "special": [0]}],
        **{f"episodes/step_{step:06d}.jsonl": rows for step in steps},
    }
    for name, objects in files.items():
        write_text(path / name, "".join(json.dumps(each) + "\n" for each in objects))
    for step in steps if tokens else ():
        write_tokens(path / "tokens" / f"step_{step:06d}.npz", tokens, len(texts) // group_size)
    return path


def write_tokens(file, tokens, groups):
    """With values that tell the arrays apart; one of each was not computed."""
    flat = np.concatenate(tokens)
    values = np.random.default_rng(0).normal(size=len(flat)).astype(np.float16)
    values[-1] = np.nan
    arrays = {
        **{"token_ids": flat, "log_probs": values, "entropy": -values, "change": values[::-1]},
        **{"lengths": [len(ids) for ids in tokens], "trained": [True] * len(tokens)},
        **{"prompt_ids": [1] * groups, "prompt_lengths": [1] * groups},
    }
    file.parent.mkdir(exist_ok=True)
    np.savez(file, **arrays)


# ---- Without a browser


def test_every_metric_of_a_run_is_explained(run):
    names = {name for row in rows_of(run / "metrics.jsonl") for name in row} - {"step"}
    unexplained = names - set(explanations())
    assert {name for name in unexplained if not re.match("eval/.+/", name)} == set()


STEP = 'id="run0-step(\\d+)"'


def test_of_steps_that_do_not_fit_some_are_chosen_evenly(tmp_path):
    assert by_bisection(list(range(9))) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
    texts = [random.Random(i).randbytes(500).hex() for i in range(4)]
    run = make_run(tmp_path / "r", texts, steps=range(1, 21))
    text = report.page([run], megabytes=0.03)
    assert {"1", "20"} < set(re.findall(STEP, text)) and 4 <= len(re.findall(STEP, text)) < 12
    assert len(text) < 0.03e6 + len(report.page([make_run(tmp_path / "empty", [])]))
    assert re.findall(STEP, report.page([run], steps=[3, 5])) == ["3", "5"]


def test_a_large_model_s_report_stays_below_20_megabytes(tmp_path):
    """512 completions of 1,024 tokens out of 151,936, every one as unlike the others as can be."""
    ids = np.random.default_rng(0).integers(0, 151_936, (512, 1024)).tolist()
    large = {"tokens": ids, "vocabulary": ["ab"] * 151_936}
    run = make_run(tmp_path / "r", ["x"] * 512, group_size=8, steps=range(1, 4), **large)
    text = report.page([run])
    assert re.findall(STEP, text) == ["1", "3"] and len(text) < 20e6


@pytest.mark.parametrize(
    "argv", [["{tmp}/nowhere"], ["{tmp}"], ["{run}", "--steps", "99"], ["a", "b", "c"]]
)
def test_what_cannot_be_reported_gets_one_sentence_and_writes_nothing(argv, run, tmp_path, capsys):
    before = (run / "report.html").read_bytes()
    assert command([arg.format(tmp=tmp_path, run=run) for arg in argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (run / "report.html").read_bytes() == before


def test_raw_rewards_teach_without_a_difference_and_no_warning_is_given(tmp_path):
    run = make_run(tmp_path / "r", "ab", metrics={"frac_reward_zero_std": 1})
    assert "no signal" in read_run(str(run)).warnings()[0][0]
    write_text(run / "config.json", '{"loss_type": "no_baseline"}')
    assert read_run(str(run)).warnings() == []


def test_the_base_is_found_beside_the_run_where_the_report_s_command_puts_it(run):
    evaluate, _, again = map(shlex.split, base_commands(read_run(str(run))))
    assert again[1:] == ["-m", "plumbing.report", str(run)]
    config = dataclasses.asdict(parse_args(Config, "nano_r1.py", "", evaluate[2:]))
    assert config["eval_only"] and config["out"] == str(run.parent)
    beside = Path(config["out"], config["name"])
    results = {"greedy": {"eval/pass@1": 0.5}, "sampled": {"eval/pass@1": 0.25}}
    write_text(beside / "evaluation.json", json.dumps(results))
    found = [(0.0, results["greedy"]), (0.3, results["sampled"])]
    for task, wanted in (("countdown", found), ("gsm8k", [])):
        write_text(beside / "config.json", json.dumps({**config, "task": task}))
        assert read_run(str(run)).base_evaluations() == wanted


# ---- In a browser


def redrawn(page, action, *args):
    """Do something, and wait until the page has been drawn anew."""
    before = page.evaluate("document.documentElement.dataset.drawn")
    action(*args)
    page.wait_for_function(
        "before => document.documentElement.dataset.drawn !== before", arg=before
    )


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def numbers(page, selector):
    return [
        float(text.replace("−", "-").replace("+", "").rstrip("%")) for text in texts(page, selector)
    ]


STEPS = [  # an action, and where it leads: the slider's step, the address, the heading
    ("key s", "3", "step=3", "Step 3"),
    ("key ArrowLeft", "2", "step=2", "Step 2"),
    ("fill #slider 0", "1", "step=1", "Step 1"),
    ("click #forward", "2", "step=2", "Step 2"),
    ("click [data-group='3']", "2", "step=2&group=3", "Step 2, group 3"),
    ("key N", "2", "step=2&group=4", "Step 2, group 4"),
    ("key P", "2", "step=2&group=3", "Step 2, group 3"),
    ("key n", "2", "step=2&group=3&completion=2", "Step 2, group 3"),
    ("key p", "2", "step=2&group=3", "Step 2, group 3"),
    ("key ArrowRight", "3", "step=3&group=3", "Step 3, group 3"),
]


@browser_needed
def test_slider_keys_and_links_go_to_the_same_places(run, opened):
    page = opened(run / "report.html")
    does = {"key": page.keyboard.press, "click": page.click, "fill": page.fill}
    for action, *expected in STEPS:
        kind, *arguments = action.split()
        redrawn(page, does[kind], *arguments)
        at = [page.inner_text("#at"), page.url.partition("#")[2], page.inner_text("h1")]
        assert at == expected, action
    page = opened(run / "report.html", "#step=1&group=2&completion=4&colour=entropy")
    assert page.inner_text("h1") == "Step 1, group 2"
    assert page.get_attribute(".current", "data-completion") == "4"
    assert page.get_attribute('[data-colour="entropy"]', "aria-pressed") == "true"
    page.keyboard.press("?")
    assert page.is_visible("#help")


@browser_needed
def test_a_page_is_drawn_in_two_seconds_of_the_processor(run, opened):
    page = opened(run / "report.html", "#step=1&group=2&completion=4&colour=entropy")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    metrics = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 2.0


@browser_needed
def test_a_click_on_a_curve_goes_to_that_step(run, opened):
    page = opened(run / "report.html")
    box = page.locator(".u-over").first.bounding_box()
    redrawn(page, page.mouse.click, box["x"] + box["width"] / 3, box["y"] + 40)
    assert page.inner_text("h1") == "Step 1"  # of steps 0 to 3 from left to right


@browser_needed
def test_numbers_on_the_page_are_those_of_the_record(run, opened):
    page = opened(run / "report.html", "#step=2")
    metrics = page.eval_on_selector_all("dd[data-metric]", "all => all.map(e => e.dataset.metric)")
    shown = dict(zip(metrics, numbers(page, "dd[data-metric]"))) | {"step": 2}
    assert shown == pytest.approx(rows_of(run / "metrics.jsonl")[2], rel=0.06, abs=5e-5)
    rows = completions(run, 2)[4:8]
    column = lambda name: [row[name] for row in rows]
    redrawn(page, page.click, '[data-group="2"]')
    assert texts(page, ".tokens") == column("completion")
    assert numbers(page, "[data-advantage]") == pytest.approx(column("advantage"), abs=6e-4)
    assert numbers(page, "[data-reward] b") == pytest.approx(column("reward"), abs=6e-3)
    assert all(why in text for why, text in zip(column("why"), texts(page, ".why")))
    assert page.locator(".tokens .token").count() == sum(column("length"))


@browser_needed
def test_the_terms_of_the_loss_are_those_of_the_record_and_add_up(run, opened):
    *terms, loss = numbers(opened(run / "report.html", "#step=3"), "[data-term]")
    assert sum(terms) == pytest.approx(loss, abs=1e-12)  # of what is shown
    assert loss == pytest.approx(rows_of(run / "metrics.jsonl")[3]["loss"], rel=0.01, abs=1e-9)
    rows = completions(run, 3)
    pushed = [sum(-row["advantage"] for row in rows if row["advantage"] * s > 0) for s in (1, -1)]
    wanted = [*pushed, 0.001 * sum(row["kl"] for row in rows)]
    assert [term * 16 for term in terms] == pytest.approx(wanted, abs=5e-7)


@browser_needed
def test_the_most_pushed_tokens_are_found_and_a_link_shows_each_with_its_numbers(run, opened):
    page = opened(run / "report.html", "#step=2")
    tokens = load_tokens(run / "tokens" / "step_000002.npz")
    before = np.exp(tokens["log_probs"].astype(float))
    gains = before * np.expm1(tokens["change"].astype(float))
    shown = page.eval_on_selector_all("[data-gain]", "all => all.map(e => +e.dataset.gain)")
    assert shown == [*sorted(shown[:10], reverse=True), *sorted(shown[10:])]
    assert [shown[0], shown[10]] == pytest.approx([gains.max(), gains.min()], rel=0.06, abs=1e-4)
    redrawn(page, page.locator("[data-gain]").first.click)
    at = int(gains.argmax())
    row = completions(run, 2)[np.repeat(np.arange(16), tokens["lengths"])[at]]
    advantage = f"{row['advantage']:.3f}".replace("-", "−")
    said = page.inner_text("#tooltip")
    assert f"{before[at]:.1%} → {before[at] + gains[at]:.1%}" in said
    assert f"min(1 × {advantage}, 1 × {advantage})" in said
    assert f"16 completions × {row['length']} tokens" in said
    page.keyboard.press("]")  # the next one
    assert page.inner_text("#tooltip") != said


@browser_needed
def test_all_tokens_of_a_step_are_unpacked_as_they_were_recorded(tmp_path, opened):
    """Also an entropy that was not computed: it is not 0."""
    some = {"tokens": [range(70_000, 70_300), [5]], "vocabulary": ["ab"] * 80_000}
    run = make_run(tmp_path / "r", ["a", "b"], **some)
    page = opened(report.write([run]))
    read = (
        "loadStep(report.runs[0], 1).then(s => [[...s.tokens].map(t => s.run.tokenIds[t]), "
        "[...s.logProb], [...s.entropy], [...s.change]])"
    )
    tokens = load_tokens(run / "tokens" / "step_000001.npz")
    wanted = [
        tokens[name].astype(float) for name in ("token_ids", "log_probs", "entropy", "change")
    ]
    np.testing.assert_allclose(page.evaluate(read), wanted, rtol=0, atol=5.1e-4)


@browser_needed
def test_filters_and_sorting_show_the_groups_they_name(run, opened):
    page = opened(run / "report.html", "#step=1")
    rows = completions(run, 1)
    groups = [rows[i : i + 4] for i in range(0, 16, 4)]
    wanted = {
        "no-signal": [len({row["reward"] for row in group}) == 1 for group in groups],
        "right": [all(row["answer_reward"] for row in group) for group in groups],
        "cut-off": [any(row["finish_reason"] == "length" for row in group) for group in groups],
        "form": [any(row["format_reward"] < 1 for row in group) for group in groups],
        "all": [True] * 4,
    }
    shown = lambda: page.eval_on_selector_all(
        "[data-group]", "all => all.map(e => +e.dataset.group)"
    )
    for name, kept in wanted.items():
        redrawn(page, page.click, f'[data-filter="{name}"]')
        assert shown() == [i for i, keep in enumerate(kept, start=1) if keep], name
    changes = np.abs(load_tokens(run / "tokens" / "step_000001.npz")["change"].astype(float))
    lengths = np.array([row["length"] for row in rows])
    starts = np.cumsum(lengths) - lengths
    means = np.add.reduceat(changes, starts) / lengths
    orders = {"longest": lengths.reshape(4, 4).max(1), "update": means.reshape(4, 4).mean(1)}
    for name, sizes in orders.items():
        redrawn(page, page.select_option, "[data-sort]", name)
        assert [sizes[i - 1] for i in shown()] == sorted(sizes, reverse=True), name


PRESETS = {
    "GRPO": ("group_mean", "group"),
    "GRPO, biased std": ("group_mean", "group_biased"),
    "Dr. GRPO": ("group_mean", "none"),
    "RLOO": ("leave_one_out", "none"),
    "MaxRL": ("group_mean", "mean"),
    "batch std": ("group_mean", "batch"),
    "no baseline": ("none", "none"),
}


def advantages_of(rewards, n, preset):
    baseline, scale = PRESETS[preset]
    config = variants.Config(baseline=baseline, scale_rewards=scale, binary_reward=scale == "mean")
    return variants.advantages(torch.tensor(rewards).view(-1, n), config).flatten().tolist()


@browser_needed
def test_the_lab_computes_what_the_lesson_computes(run, opened):
    """On random and on equal rewards."""
    page = opened(run / "report.html")
    rng = random.Random(0)
    cases = [[rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(12)] for _ in range(8)]
    cases += [[0.1] * 12, [rng.gauss(0, 3) for _ in range(12)]]
    script = (
        "([all, name]) => all.map(r => [0, 4, 8].flatMap("
        "i => advantages(r.slice(i, i + 4), PRESETS[name], 1e-4, r)))"
    )
    for preset in PRESETS:
        found = page.evaluate(script, [cases, preset])
        wanted = [advantages_of(rewards, 4, preset) for rewards in cases]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=preset)


OWN_FORMULAS = [  # of a run's settings, the name under which the lab shows its own formula
    ({"task": "countdown"}, "GRPO"),  # nano_r1.py has no such settings
    ({"baseline": "group_mean", "scale_rewards": "mean"}, "MaxRL"),
    ({"baseline": "leave_one_out", "scale_rewards": "group"}, "the run's"),
    ({"baseline": "group_mean", "loss_type": "no_baseline"}, "no baseline"),
]


@browser_needed
def test_the_lab_begins_with_the_run_and_its_formula_and_comes_back_to_them(run, opened):
    page = opened(run / "report.html", "#step=2&group=2")
    for settings, name in OWN_FORMULAS:
        assert page.evaluate("config => ownFormula(config)[0]", settings) == name
    rewards = [row["reward"] for row in completions(run, 2)]
    rewards[5] = 3.5
    page.locator(".lab input").nth(1).fill("3.5")
    page.click('.lab .chips button:text-is("batch std")')
    wanted = advantages_of(rewards, 4, "batch std")[4:8]
    assert numbers(page, ".lab .result") == pytest.approx(wanted, abs=6e-4)
    assert "in the lab" in page.inner_text('[data-completion="2"]')
    page.click(".lab > button")
    recorded = [row["advantage"] for row in completions(run, 2)][4:8]
    assert numbers(page, ".lab .result") == pytest.approx(recorded, abs=6e-4)
    assert "in the lab" not in page.inner_text('[data-completion="2"]')


HOSTILE = [
    "<script>window.harm = 1</script></script><img src=x onerror='window.harm = 1'><b>bold</b>",
    "--></style></title><!-- {{script}} {{data}} &lt; \u202e right to left \u2066 \x00 \ud83d",
    "9" * 100_000,
    "1+1=3 🙂🙂 2*3=7",
]


@browser_needed
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_a_model_wrote_is_text_and_nothing_else(theme, tmp_path, opened):
    run = make_run(tmp_path / "<i>a&b", HOSTILE, group_size=4)
    shutil.copytree(run / "episodes", run / "held_out")
    page = opened(report.write([run]), "#step=1&group=1", color_scheme=theme)
    assert texts(page, ".tokens") == [text.replace("\ud83d", "?") for text in HOSTILE]
    assert texts(page, ".completion [data-wrong]") == ["1+1=3", "2*3=7"]
    for key in "rshg":
        redrawn(page, page.keyboard.press, key)
        assert page.evaluate("window.harm") is None
        assert page.locator("main img, main b b, main i").count() == 0


@browser_needed
def test_a_character_that_is_split_over_tokens_is_shown_once_it_is_complete(tmp_path, opened):
    tokens = [[1, 2, 4, 5, 6, 0], [3, 0]]
    run = make_run(tmp_path / "r", ["1+1=3🙂", "\n"], tokens=tokens, steps=(1, 2))
    os.remove(run / "tokens" / "step_000002.npz")  # the report opens on the last that has some
    page = opened(report.write([run]))
    assert page.inner_text("#at") == "1" and page.locator("#recorded span").count() == 1
    redrawn(page, page.keyboard.press, "g")
    assert texts(page, '[data-completion="1"] .token') == ["1+1", "=3", "", "", "🙂", ""]
    assert texts(page, '[data-completion="2"] .token') == ["\n", ""]
    assert texts(page, '[data-completion="1"] [data-wrong]') == ["1+1", "=3"]
    assert texts(page, "details pre") == ["1+1"]  # the prompt


@browser_needed
def test_a_damaged_run_with_nan_is_shown_as_far_as_it_goes(tmp_path, opened):
    nan = {"loss": math.nan, "grad_norm": math.nan}
    run = make_run(tmp_path / "r", "ab", steps=(1, 2), tokens=[[1], [2]], metrics=nan)
    os.truncate(run / "tokens" / "step_000001.npz", 300)  # as by a full disk
    (run / "episodes" / "step_000002.jsonl").write_text("{}\n")
    page = opened(report.write([run]), "#run")
    warnings = page.inner_text(".warnings")
    assert "not finite" in warnings and "tokens/step_000001.npz cannot be read" in warnings
    redrawn(page, page.keyboard.press, "s")
    assert page.text_content("h1") + page.text_content('[data-metric="loss"]') == "Step 1not finite"
    redrawn(page, page.keyboard.press, "g")
    assert "Single tokens were not recorded" in page.inner_text("main")


@browser_needed
def test_a_run_without_settings_and_metrics_is_shown_as_far_as_it_goes(tmp_path, opened):
    run = make_run(tmp_path / "r", "ab")
    os.remove(run / "metrics.jsonl")
    os.remove(run / "config.json")
    page = opened(report.write([run]), "#run")
    assert "metrics.jsonl is missing" in page.inner_text(".warnings")
    for key in "sgh":
        redrawn(page, page.keyboard.press, key)


@browser_needed
def test_one_problem_through_training_has_every_evaluation(run, opened):
    page = opened(run / "report.html", "#problems&problem=2")
    evaluations = [rows_of(file) for file in sorted((run / "held_out").iterdir())]
    assert texts(page, ".completion .tokens") == [rows[1]["completion"] for rows in evaluations]
    assert texts(page, ".completion .place") == ["base", *(f"after step {n}" for n in (1, 2, 3))]
    redrawn(page, page.keyboard.press, "ArrowLeft")
    assert page.get_attribute(".completion.current", "data-evaluation") == "2"
    redrawn(page, page.click, '[data-problem="5"]')
    assert texts(page, ".completion .tokens") == [rows[4]["completion"] for rows in evaluations]


@browser_needed
def test_two_runs_are_side_by_side_with_one_slider(run, tmp_path, opened):
    file = report.write([run, make_run(tmp_path / "other", "abcd", steps=(2, 3, 4))])
    page = opened(file)
    assert page.inner_text("#at") == "3"  # the last that both have
    said = page.inner_text(".differs")
    assert "max_tokens\t60\t9" in said and "advantage_eps" not in said
    page = opened(file, "#step=2&group=1")
    assert texts(page, ".column:nth-child(2) .tokens") == ["a", "b"]
    redrawn(page, page.fill, "#slider", "3")  # of four: 1 to 4
    assert page.inner_text("#at") == "4"
    assert "not in this file" in page.inner_text(".column >> nth=0")


@browser_needed
def test_in_a_notebook_it_is_a_frame_with_the_same_page(run, tmp_path, opened):
    cell = report.show(run, steps=[2])._repr_html_()
    holder = tmp_path / "notebook.html"
    holder.write_text(f"<!doctype html><html data-drawn=0><body>{cell}</body></html>")
    frame = opened(holder).frame_locator("iframe")
    frame.locator("html[data-drawn]").wait_for()
    frame.locator('nav [data-view="step"]').click()
    assert frame.locator("h1").inner_text() == "Step 2"
    assert "It has 1 of 3 recorded steps" in frame.locator("#choice").inner_text()


@browser_needed
@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(theme, runs, run, opened, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    both = [run, make_run(tmp_path / "other", "ab", steps=(1, 2))]
    file = report.write(both[:runs], tmp_path / "report.html")
    page = opened(file, width=390, color_scheme=theme)
    for key in "rsgh":
        redrawn(page, page.keyboard.press, key)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in found] == [], key
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), key
