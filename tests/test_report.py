"""The report in a real browser: opened from a file with no network, it says what the record says.

Whatever a model wrote.
"""

import dataclasses
import html
import json
import math
import os
import random
import re
import shlex
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import browser_needed, rows_of, train

import variants
from nano_r1 import Config
from plumbing import report
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


VOCABULARY = {"tokens": ["<|end|>", "1+1", "=3", "\n", "\xf0\x9f", "\x99", "\x82"], "special": [0]}


def write_tokens(path, step, tokens, groups):
    (path / "tokens").mkdir(exist_ok=True)
    flat = np.array(sum(tokens, []), np.uint16)
    values = np.linspace(-1, 1, len(flat)).astype(np.float16)
    lengths = np.array([len(ids) for ids in tokens])
    arrays = {
        **{"token_ids": flat, "lengths": lengths, "trained": lengths > 0},
        **dict.fromkeys(("log_probs", "entropy", "change"), values),
        "prompt_ids": np.array([3] * groups),
        "prompt_lengths": np.ones(groups, int),
    }
    np.savez_compressed(path / "tokens" / f"step_{step:06d}.npz", **arrays)
    (path / "vocabulary.json").write_text(json.dumps(VOCABULARY))


def make_run(path, completions, group_size=2, steps=(1,), tokens=(), settings=(), metrics=()):
    """A run's directory with these texts as the completions of each step.

    Some have tokens: [ids, ...].
    """
    (path / "episodes").mkdir(parents=True)
    config = {
        **{"model": "m", "task": "t", "group_size": group_size, "max_tokens": 9},
        **{"steps": len(steps), "temperature": 1.0, "loss_type": "grpo_clip"},
        **{"loss_agg_mode": "seq-mean-token-mean", "baseline": "group_mean"},
        **{"scale_rewards": "group", "advantage_eps": 1e-4, "kl_coef": 0.0, **dict(settings)},
    }
    (path / "config.json").write_text(json.dumps(config))
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
            "prompt_length": 1,
            "finish_reason": "stop",
        }
        for i, text in enumerate(completions)
    ]
    for step in steps:
        (path / "episodes" / f"step_{step:06d}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
        if tokens:
            write_tokens(path, step, tokens, len(rows) // group_size)
    plain = {"reward": 0.5, "loss": 0.0, "grad_norm": 0.3, "time/step": 1.0, "time/rollout": 0.5}
    pass_at_1 = {"eval/pass@1": 0.1, "eval/pass@1_low": 0.0, "eval/pass@1_high": 0.2}
    lines = [{"step": 0, "eval/problems": 9} | pass_at_1]
    lines += [{"step": step, **plain, **dict(metrics)} for step in steps]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# ---- Without a browser


def test_every_metric_of_a_run_is_explained(run):
    known = explanations()
    names = {name for row in rows_of(run / "metrics.jsonl") for name in row} - {"step"}
    assert {name for name in names if name not in known and not re.match("eval/.+/", name)} == set()


def test_steps_are_chosen_evenly_and_the_file_says_so(tmp_path):
    assert (
        by_bisection(list(range(9))) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
        and by_bisection([7]) == [7]
        and by_bisection([]) == []
    )
    run = make_run(
        tmp_path / "r",
        [random.Random(i).randbytes(500).hex() for i in range(4)],
        steps=range(1, 21),
    )
    text = report.page([str(run)], megabytes=0.03)
    steps = [int(step) for step in re.findall('id="run0-step(\\d+)"', text)]
    assert steps[0] == 1 and steps[-1] == 20 and 4 <= len(steps) < 12
    assert len(text) < 0.03e6 + len(report.page([str(make_run(tmp_path / "empty", []))]))
    assert re.findall('id="run0-step(\\d+)"', report.page([str(run)], steps=[3, 5])) == ["3", "5"]


def test_a_large_model_s_report_stays_below_30_megabytes(tmp_path):
    """512 completions of 1,024 tokens out of 151,936, every one as unlike the others as can be."""
    run = make_run(tmp_path / "r", ["x"] * 512, group_size=8, steps=range(1, 4), tokens=[[1]] * 512)
    rng = np.random.default_rng(0)
    n = 512 * 1024
    (run / "vocabulary.json").write_text(json.dumps({"tokens": ["ab"] * 151_936, "special": []}))
    for file in (run / "tokens").iterdir():
        values = {
            name: rng.normal(size=n).astype(np.float16)
            for name in ("log_probs", "entropy", "change")
        }
        ids = {
            "token_ids": rng.integers(0, 151_936, n),
            "prompt_ids": np.zeros(64, int),
            "prompt_lengths": np.ones(64, int),
        }
        np.savez(file, **values, **ids, lengths=np.full(512, 1024), trained=np.ones(512, bool))
    for file in (run / "episodes").iterdir():
        file.write_text(
            "".join(json.dumps({**row, "length": 1024}) + "\n" for row in rows_of(file))
        )
    text = report.page([str(run)])
    assert re.findall('id="run0-step(\\d+)"', text) == ["1", "3"] and len(text) < 20e6


@pytest.mark.parametrize(
    "file", sorted(Path(report.HERE, "page").glob("*.js")), ids=lambda file: file.name
)
def test_a_script_of_the_page_is_short_and_makes_no_markup_of_a_string(file):
    text = file.read_text()
    assert len(text.splitlines()) < 200 and text.startswith(("//", '"use strict";\n//'))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|fetch\(",
        text,
    )


@pytest.mark.parametrize(
    "argv", [["{tmp}/nowhere"], ["{tmp}"], ["{run}", "--steps", "99"], ["a", "b", "c"]]
)
def test_what_cannot_be_reported_gets_one_sentence_and_writes_nothing(argv, run, tmp_path, capsys):
    before = (run / "report.html").read_bytes()
    assert command([arg.format(tmp=tmp_path, run=run) for arg in argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (run / "report.html").read_bytes() == before


def test_the_base_is_found_beside_the_run_where_the_report_s_command_puts_it(run):
    evaluate, _, again = (shlex.split(line) for line in base_commands(read_run(str(run))))
    config = dataclasses.asdict(parse_args(Config, "nano_r1.py", "", evaluate[2:]))
    assert config["eval_only"] and again[1:] == ["-m", "plumbing.report", str(run)]
    beside = Path(config["out"], config["name"])
    assert beside.parent == run.parent
    beside.mkdir()
    (beside / "evaluation.json").write_text(
        json.dumps({"greedy": {"eval/pass@1": 0.5}, "sampled": {"eval/pass@1": 0.25}})
    )
    found = [(0.0, {"eval/pass@1": 0.5}), (0.3, {"eval/pass@1": 0.25})]
    for changes, wanted in (({"steps": 40}, found), ({"task": "gsm8k"}, [])):
        (beside / "config.json").write_text(json.dumps({**config, **changes}))
        assert read_run(str(run)).base_evaluations() == wanted
    shutil.rmtree(beside)


# ---- In a browser


def redrawn(page, action):
    """Do something, and wait until the page has been drawn anew."""
    before = page.evaluate("document.documentElement.dataset.drawn")
    action()
    page.wait_for_function(
        "before => document.documentElement.dataset.drawn !== before", arg=before
    )


def number(text):
    return float(text.replace("−", "-").replace("+", "").replace("%", ""))


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
        redrawn(page, lambda: does[kind](*arguments))
        at = [page.inner_text("#at"), page.url.partition("#")[2], page.inner_text("h1")]
        assert at == expected, action
    page = opened(run / "report.html", "#step=1&group=2&completion=4&colour=entropy")
    assert page.inner_text("h1") == "Step 1, group 2"
    assert page.get_attribute(".current", "data-completion") == "4"
    assert page.get_attribute('[data-colour="entropy"]', "aria-pressed") == "true"
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})  # the processor's seconds
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    metrics = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 2.0  # until all is drawn, whatever else runs beside it
    page.keyboard.press("?")
    assert page.is_visible("#help")


@browser_needed
def test_a_click_on_a_curve_goes_to_that_step(run, opened):
    page = opened(run / "report.html")
    redrawn(page, lambda: page.click("#back"))
    assert page.locator(".u-legend .u-value").first.inner_text() == "2"
    redrawn(page, lambda: page.click("#forward"))
    box = page.locator(".u-over").first.bounding_box()
    assert page.locator(".u-legend .u-value").first.inner_text() == "3"  # the slider's step
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40)  # steps 0 to 3 from left to right
    assert page.locator(".u-legend .u-value").first.inner_text() == "1"
    redrawn(page, lambda: page.mouse.click(box["x"] + box["width"] / 3, box["y"] + 40))
    assert page.inner_text("h1") == "Step 1"


@browser_needed
def test_numbers_on_the_page_are_those_of_the_record(run, opened):
    page = opened(run / "report.html", "#step=2")
    record = rows_of(run / "metrics.jsonl")[2]
    shown = page.eval_on_selector_all(
        "dd[data-metric]", "all => all.map(e => [e.dataset.metric, e.textContent])"
    )
    assert {name for name, _ in shown} == set(record) - {"step"}
    for name, text in shown:
        assert number(text) == pytest.approx(record[name], rel=0.06, abs=5e-5), name
    rows = rows_of(run / "episodes" / "step_000002.jsonl")
    redrawn(page, lambda: page.click('[data-group="2"]'))
    for k, row in enumerate(rows[4:8]):
        card = page.locator(f'[data-completion="{k + 1}"]')
        assert card.locator(".tokens").text_content() == row["completion"]
        assert number(card.locator("[data-advantage]").inner_text()) == pytest.approx(
            row["advantage"], abs=6e-4
        )
        assert number(card.locator("[data-reward] b").inner_text()) == pytest.approx(
            row["reward"], abs=6e-3
        )
        assert row["why"] in card.locator(".why").inner_text()
        assert card.locator(".token").count() == row["length"]


@browser_needed
def test_the_terms_of_the_loss_are_those_of_the_record_and_add_up(run, opened):
    page = opened(run / "report.html", "#step=3")
    record = rows_of(run / "metrics.jsonl")[3]
    rows = rows_of(run / "episodes" / "step_000003.jsonl")
    assert sum(row["loss"] for row in rows) == pytest.approx(record["loss"], rel=1e-9, abs=1e-15)
    texts = page.locator("[data-term]").all_inner_texts()
    *terms, loss = [Decimal(text.replace("−", "-")) for text in texts]
    assert sum(terms) == loss and float(loss) == pytest.approx(record["loss"], rel=0.01, abs=1e-9)
    pushed = [sum(-row["advantage"] for row in rows if row["advantage"] * s > 0) for s in (1, -1)]
    wanted = [*pushed, 0.001 * sum(row["kl"] for row in rows)]
    assert [float(term) * 16 for term in terms] == pytest.approx(wanted, abs=5e-7)


@browser_needed
def test_the_most_pushed_tokens_are_found_and_a_link_shows_each_with_its_numbers(run, opened):
    page = opened(run / "report.html", "#step=2")
    tokens = load_tokens(run / "tokens" / "step_000002.npz")
    before = np.exp(tokens["log_probs"].astype(float))
    gains = before * np.expm1(tokens["change"].astype(float))
    shown = page.eval_on_selector_all("[data-gain]", "all => all.map(e => +e.dataset.gain)")
    assert len(shown) == 20 and shown == [*sorted(shown[:10])[::-1], *sorted(shown[10:])]
    assert [shown[0], shown[10]] == pytest.approx([gains.max(), gains.min()], rel=0.06, abs=1e-4)
    redrawn(page, lambda: page.locator("[data-gain]").first.click())
    at = int(gains.argmax())
    chances = [f"{100 * p:.1f}%" for p in (before[at], before[at] + gains[at])]
    said = page.inner_text("#tooltip")
    row = rows_of(run / "episodes" / "step_000002.jsonl")[
        int(np.searchsorted(np.cumsum(tokens["lengths"]), at, "right"))
    ]
    advantage = f"{row['advantage']:.3f}".replace("-", "−")
    assert " → ".join(chances) in said and f"min(1 × {advantage}, 1 × {advantage})" in said
    assert f"16 completions × {row['length']} tokens" in said
    page.keyboard.press("]")
    place = [line for line in said.splitlines() if f", {tokens['token_ids'][at]}" in line]
    assert place and place[0] not in page.inner_text("#tooltip")  # it is the next one's
    page.keyboard.press("Escape")
    assert not page.is_visible("#tooltip")


@browser_needed
def test_all_tokens_of_a_step_are_unpacked_as_they_were_recorded(run, opened):
    """Also an entropy that was not computed: it is not 0."""
    file = run / "tokens" / "step_000003.npz"
    tokens = load_tokens(file)
    before = tokens["entropy"][1]
    tokens["entropy"][1] = np.nan
    np.savez(file, **tokens)
    page = opened(report.write([str(run)], str(run / "again.html")))
    read = (
        "loadStep(report.runs[0], 3).then(s => [[...s.tokens].map(t => s.run.tokenIds[t]), "
        "[...s.logProb], [...s.entropy], [...s.change]])"
    )
    for values, name in zip(page.evaluate(read), ("token_ids", "log_probs", "entropy", "change")):
        assert values == pytest.approx(tokens[name].astype(float), abs=5.1e-4, nan_ok=True), name
    tokens["entropy"][1] = before
    np.savez(file, **tokens)


@browser_needed
def test_filters_and_sorting_show_the_groups_they_name(run, opened):
    page = opened(run / "report.html", "#step=1")
    rows = rows_of(run / "episodes" / "step_000001.jsonl")
    groups = [rows[i : i + 4] for i in range(0, 16, 4)]
    wanted = {
        "no-signal": [len({row["reward"] for row in group}) == 1 for group in groups],
        "right": [all(row["answer_reward"] for row in group) for group in groups],
        "cut-off": [any(row["finish_reason"] == "length" for row in group) for group in groups],
        "form": [any(row["format_reward"] < 1 for row in group) for group in groups],
    }
    shown = lambda: page.eval_on_selector_all(
        "[data-group]", "all => all.map(e => Number(e.dataset.group))"
    )
    for name, kept in wanted.items():
        redrawn(page, lambda: page.click(f'[data-filter="{name}"]'))
        assert shown() == [i + 1 for i, keep in enumerate(kept) if keep], name
    redrawn(page, lambda: page.click('[data-filter="all"]'))
    redrawn(page, lambda: page.select_option("[data-sort]", "longest"))
    longest = [max(row["length"] for row in group) for group in groups]
    assert [longest[i - 1] for i in shown()] == sorted(longest, reverse=True)
    redrawn(page, lambda: page.select_option("[data-sort]", "update"))
    changes = np.abs(load_tokens(run / "tokens" / "step_000001.npz")["change"].astype(float))
    ends = np.cumsum([row["length"] for row in rows])[:-1]
    means = np.array([part.mean() for part in np.split(changes, ends)]).reshape(4, 4).mean(1)
    assert shown() == (np.argsort(-means) + 1).tolist()


PRESETS = {
    "GRPO": ("group_mean", "group"),
    "GRPO, biased std": ("group_mean", "group_biased"),
    "Dr. GRPO": ("group_mean", "none"),
    "RLOO": ("leave_one_out", "none"),
    "MaxRL": ("group_mean", "mean"),
    "batch std": ("group_mean", "batch"),
    "no baseline": ("none", "none"),
}

# Of a run's settings, the name under which the lab shows its own formula.
OWN_FORMULAS = [
    ({"task": "countdown"}, "GRPO"),  # nano_r1.py has no such settings
    ({"baseline": "group_mean", "scale_rewards": "mean"}, "MaxRL"),
    ({"baseline": "leave_one_out", "scale_rewards": "group"}, "the run's"),
    (
        {"baseline": "group_mean", "scale_rewards": "group", "loss_type": "no_baseline"},
        "no baseline",
    ),
]


def advantages_of(rewards, n, preset):
    baseline, scale = PRESETS[preset]
    config = variants.Config(baseline=baseline, scale_rewards=scale, binary_reward=scale == "mean")
    return variants.advantages(torch.tensor(rewards).view(-1, n), config).flatten().tolist()


@browser_needed
def test_the_lab_computes_what_the_lesson_computes(run, opened):
    """Its function on random and on equal rewards, its fields and buttons on a group of the run."""
    page = opened(run / "report.html", "#step=2&group=2")
    rng = random.Random(0)
    cases = [[rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(12)] for _ in range(8)] + [
        [0.1] * 12,
        [rng.gauss(0, 3) for _ in range(12)],
    ]
    for preset in PRESETS:
        script = (
            "([all, name]) => all.map(r => [0, 4, 8].flatMap("
            "i => advantages(r.slice(i, i + 4), PRESETS[name], 1e-4, r)))"
        )
        for rewards, found in zip(cases, page.evaluate(script, [cases, preset])):
            assert found == pytest.approx(advantages_of(rewards, 4, preset), rel=1e-4, abs=1e-5), (
                preset
            )
    for settings, name in OWN_FORMULAS:
        assert page.evaluate("config => ownFormula(config)[0]", settings) == name
    rewards = [row["reward"] for row in rows_of(run / "episodes" / "step_000002.jsonl")]
    results = lambda: [number(text) for text in page.locator(".lab .result").all_inner_texts()]
    assert page.locator(".lab button").last.is_disabled()
    page.locator(".lab input").nth(1).fill("3.5")
    rewards[5] = 3.5
    for preset in PRESETS:
        page.click(f'.lab .chips button:text-is("{preset}")')
        assert results() == pytest.approx(advantages_of(rewards, 4, preset)[4:8], abs=6e-4), preset
    assert "in the lab +3.500" in page.inner_text('[data-completion="2"]')
    page.click(".lab > button")
    recorded = [row["advantage"] for row in rows_of(run / "episodes" / "step_000002.jsonl")][4:8]
    assert results() == pytest.approx(recorded, abs=6e-4) and "in the lab" not in page.inner_text(
        '[data-completion="2"]'
    )


HOSTILE = [
    "<script>window.harm = 1</script></script><img src=x onerror='window.harm = 1'><b>bold</b>",
    "--></style></title><!-- {{script}} {{data}} &lt; \u202e right to left \u2066 \x00 \ud83d",
    "9" * 100_000,
    "1+1=3 🙂🙂 2*3=7",
]


@browser_needed
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_a_model_wrote_is_text_and_nothing_else(theme, tmp_path, opened):
    run = make_run(tmp_path / "<i>a&b", HOSTILE)
    page = opened(report.write([str(run)]), "#step=1&group=1", color_scheme=theme)
    texts = page.locator(".tokens").all_text_contents()
    redrawn(page, lambda: page.keyboard.press("N"))
    texts += page.locator(".tokens").all_text_contents()
    assert texts == [text.replace("\ud83d", "?") for text in HOSTILE]
    assert (
        page.evaluate("window.harm") is None
        and page.locator("main img, main b b, main i").count() == 0
    )
    assert page.locator(".completion [data-wrong]").all_text_contents() == ["1+1=3", "2*3=7"]


@browser_needed
def test_a_character_that_is_split_over_tokens_is_shown_once_it_is_complete(tmp_path, opened):
    texts = ["1+1=3🙂", "\n"]
    tokens = [[1, 2, 4, 5, 6, 0], [3, 0]]
    run = make_run(tmp_path / "r", texts, tokens=tokens, steps=(1, 2))
    os.remove(run / "tokens" / "step_000002.npz")  # the report opens on the last that has some
    page = opened(report.write([str(run)]))
    assert page.inner_text("#at") == "1" and page.locator("#recorded span").count() == 1
    redrawn(page, lambda: page.keyboard.press("g"))
    pieces = lambda k: page.locator(f'[data-completion="{k}"] .token').all_text_contents()
    assert pieces(1) == ["1+1", "=3", "", "", "🙂", ""] and pieces(2) == ["\n", ""]
    marked = page.locator('[data-completion="1"] [data-wrong]').all_text_contents()
    assert marked == ["1+1", "=3"]


@browser_needed
def test_a_run_of_one_step_with_nan_and_without_some_files_is_shown_as_far_as_it_goes(
    tmp_path, opened
):
    run = make_run(
        tmp_path / "r",
        ["a", "b"],
        tokens=[[1], [2]],
        metrics={"loss": math.nan, "grad_norm": math.nan},
        steps=(1, 2),
    )
    file = run / "tokens" / "step_000001.npz"
    file.write_bytes(file.read_bytes()[:-300])  # cut short, as by a full disk
    (run / "episodes" / "step_000002.jsonl").write_text("{}\n")
    page = opened(report.write([str(run)]), "#run")
    assert "not finite" in page.inner_text(
        ".warnings"
    ) and "tokens/step_000001.npz cannot be read" in page.inner_text(".warnings")
    redrawn(page, lambda: page.keyboard.press("s"))
    assert (
        "Step 1" in page.inner_text("h1")
        and page.text_content('[data-metric="grad_norm"]') == "not finite"
    )
    redrawn(page, lambda: page.keyboard.press("g"))
    assert "Single tokens were not recorded" in page.inner_text("main")
    os.remove(run / "metrics.jsonl"), os.remove(run / "config.json")
    page = opened(report.write([str(run)]), "#run")
    assert "metrics.jsonl is missing" in page.inner_text(".warnings")
    for key in "sgh":
        redrawn(page, lambda: page.keyboard.press(key))


@browser_needed
def test_one_problem_through_training_has_every_evaluation(run, opened):
    page = opened(run / "report.html", "#problems&problem=2")
    files = sorted((run / "held_out").iterdir())
    assert page.locator(".completion .tokens").all_text_contents() == [
        rows_of(file)[1]["completion"] for file in files
    ]
    assert page.locator(".completion .place").all_inner_texts() == [
        "base",
        "after step 1",
        "after step 2",
        "after step 3",
    ]
    redrawn(page, lambda: page.keyboard.press("ArrowLeft"))
    assert page.get_attribute(".completion.current", "data-evaluation") == "2"
    redrawn(page, lambda: page.click('[data-problem="5"]'))
    assert (
        page.locator(".completion .tokens").first.text_content()
        == rows_of(files[0])[4]["completion"]
    )


@browser_needed
def test_two_runs_are_side_by_side_with_one_slider(run, tmp_path, opened):
    other = make_run(tmp_path / "other", ["a", "b", "c", "d"], steps=(2, 3, 4))
    file = report.write([str(run), str(other)])
    page = opened(file)
    assert page.inner_text("#at") == "3"  # the last that both have
    said = page.inner_text(".differs")
    assert "max_tokens\t60\t9" in said and "advantage_eps" not in said
    hues = page.evaluate("charts[1].series.slice(1).map(s => [s.label[0], s.stroke()])")
    assert {a for a, _ in hues} == {"A", "B"} and len({tuple(pair) for pair in hues}) == 2
    page = opened(file, "#step=2&group=1")
    assert page.locator(".column").count() == 2 and page.locator(".column").nth(1).locator(
        ".tokens"
    ).all_text_contents() == ["a", "b"]
    assert page.get_attribute("#slider", "max") == "3"
    redrawn(page, lambda: page.locator("#slider").fill("3"))
    assert (
        page.inner_text("#at") == "4"
        and "not in this file" in page.locator(".column").first.inner_text()
    )
    redrawn(page, lambda: page.keyboard.press("r"))
    assert (
        "A" in page.locator(".run-name").first.inner_text() and page.locator(".plot").count() >= 3
    )


@browser_needed
def test_in_a_notebook_it_is_a_frame_with_the_same_page(run, tmp_path, opened):
    holder = tmp_path / "notebook.html"
    cell = report.show(run, steps=[2])._repr_html_()
    holder.write_text(f"<!doctype html><html data-drawn=0><body>{cell}</body></html>")
    frame = opened(holder).frame_locator("iframe")
    frame.locator("html[data-drawn]").wait_for()
    frame.locator('nav [data-view="step"]').click()
    assert frame.locator("h1").inner_text() == "Step 2"
    assert "It has 1 of 3 recorded steps" in frame.locator("#choice").inner_text()
    assert html.escape(report.page([str(run)], [2])) in holder.read_text()


@browser_needed
@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(theme, runs, run, opened, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    other = make_run(tmp_path / "other", ["a", "b"], steps=(1, 2))
    file = report.write([str(run), str(other)][:runs], str(tmp_path / "report.html"))
    page = opened(file, width=390, color_scheme=theme)
    for key in "rsgh":
        redrawn(page, lambda: page.keyboard.press(key))
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in found] == [], (
            key
        )
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), key
