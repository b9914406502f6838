"""The report: its recorder against a direct computation, and its page in a real browser."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from axe_playwright_python import sync_playwright as axe
from test_nano_r1 import plain_log_probs as alone
from transformers import AutoTokenizer, ByT5Tokenizer
from two_processes import settings, tiny_model

import nano_r1
from nano_report import labels, payload, record, viewer
from nano_report.run import Run, vocabulary

HOSTILE = "</script>\r\t\x1b<img src=x onerror='window.harm = 1'><b>{{data}} \u202e &lt; \u2066 ∑🙂"
TEXTS = [HOSTILE, "6*7=42 yes\n</think>", "2*3=7", "no"]
TEXTS += ["19+36=55 no", "58+7=65 yes", "58+7=65 no", "four"]
PROBLEMS = [{"question": HOSTILE}, {"nums": [19, 36, 55, 7], "target": 65}]
REWARDS = [0.0, 2.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]  # two groups of four
ADVANTAGES = [-0.75, 1.25, 0.25, -0.75, 0.0, 0.0, 0.0, 0.0]
BY_REWARD = [1, 2, 0, 3]  # the first group in the order of its table
CONFIG = {"group_size": 4, "record_tokens_every": 2, "steps": 3, "model": "<b>$x$"}
CONFIG |= {"task": "gsm8k", "prompt": "chat"}


# ---- A run, made by hand: a tiny model, and updates that are noise


@torch.no_grad()
def record_step(path, step, size):
    """Record a step. Returns its episodes, each with what is `wanted`."""
    tokenizer = AutoTokenizer.from_pretrained("models/nano-base")
    model = tiny_model(0, len(tokenizer))
    engine = nano_r1.Scorer(model, settings())
    engine.device = "cpu"
    episodes = []
    for i, text in enumerate(TEXTS):
        e = nano_r1.Episode(
            problem=PROBLEMS[i // 4],
            completion=text,
            reward=REWARDS[i],
            format_reward=1.0,
            answer_reward=float(REWARDS[i] > 1),
            why=HOSTILE,
            prompt_ids=tokenizer.encode(f"Problem {i // 4}:"),
            token_ids=tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id],
            advantage=ADVANTAGES[i],
        )
        e.log_probs = alone(model, e.prompt_ids, e.token_ids).tolist()
        episodes.append(e)
    batches = []
    for part in (episodes[3::-1], episodes[4:7]):
        batch = nano_r1.collate(part, "cpu")
        batch["old_log_probs"] = engine(batch)
        batches.append(batch)
    for weight in model.parameters():
        weight.data += size * torch.randn_like(weight)
    for e in episodes:
        after = alone(model, e.prompt_ids, e.token_ids)
        e.extra["wanted"] = np.array([e.log_probs, after - torch.tensor(e.log_probs)])
    episodes[7].extra["wanted"][1] = np.nan  # it is not part of the update
    record.after_step(path, step, episodes, batches, engine, tokenizer, SimpleNamespace(**CONFIG))
    return episodes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps; the tokens of 1 and 3 are recorded, and those of 1 moved more."""
    path = tmp_path_factory.mktemp("report") / "<i>a&b"
    for step, size in ((2, 0.03), (3, 0.003), (1, 0.03)):
        episodes = record_step(path, step, size)
    rows = nano_r1.as_rows(episodes)
    metric = {"reward": 0.875, "grad_norm": float("nan"), "my/own": 1.0}
    metrics = [{"step": step} | metric for step in range(4)]
    for step, correct in ((0, 2), (3, 4)):
        metrics[step] |= {
            "eval/pass@1": correct / 8,
            "eval/pass@1_low": 0.1,
            "eval/pass@1_high": 0.7,
            "eval/problems": 8,
        }
        solved = [{**row, "answer_reward": float(i < correct)} for i, row in enumerate(rows)]
        nano_r1.write_rows(path / f"evaluations/step_{step:06d}.jsonl", solved)
    for step in (1, 2, 3):
        nano_r1.write_rows(path / f"episodes/step_{step:06d}.jsonl", rows)
    nano_r1.write_rows(path / "metrics.jsonl", metrics)
    nano_r1.write_rows(path / "config.json", [CONFIG])
    return SimpleNamespace(
        path=path, episodes=episodes, rows=rows, file=viewer.write(path), read=Run(path)
    )


@pytest.fixture
def copied(run, tmp_path):
    """The path of the run's copy, whose files a test may change."""
    return shutil.copytree(run.path, tmp_path / "run")


# ---- The recorder


def test_a_record_is_what_the_model_says_around_the_update(run):
    assert sorted(os.listdir(run.path / "tokens")) == ["step_000001.0.npz", "step_000003.0.npz"]
    for i, (row, e) in enumerate(zip(run.read.step(1), run.episodes, strict=True)):
        text = "".join(row["tokens"]).encode("latin-1").decode()
        assert (row["prompt"], text) == (f"Problem {i // 4}:", f"{e.completion}<|endoftext|>")
        found = [row["log_probs"], row["change"]]
        np.testing.assert_allclose(found, e.extra["wanted"], rtol=1e-5, atol=1e-5)


def test_the_files_of_12_processes_are_read_in_their_order(run, copied):
    file = copied / "tokens/step_000001.0.npz"
    arrays = {name: np.array_split(values, 12) for name, values in np.load(file).items()}
    for rank in range(12):
        part = {name: parts[rank] for name, parts in arrays.items()}
        record.save(file.with_suffix("").with_suffix(f".{rank}.npz"), part)
    assert str(Run(copied).step(1)) == str(run.read.step(1))


# ---- The page without a browser


def test_which_group_is_the_example():
    # Against its advantages; all correct; hardly; the example.
    ranks = []
    for moved, other in [(-1, 0), (1, 1), (0.01, 0), (0.1, 0)]:
        row = {"log_probs": [0.0]}
        good = row | {"advantage": 1, "change": [moved], "answer_reward": 1}
        bad = row | {"advantage": -1, "change": [-moved], "answer_reward": other}
        ranks.append(payload.rank_of([good, bad]))
    assert ranks == sorted(set(ranks))


def test_a_run_ends_with_the_problems_gained_and_a_command_that_names_its_data(copied, capsys):
    nano_r1.write_rows(copied / "config.json", [CONFIG | {"data": "my problems.jsonl"}])
    viewer.write_at_end(copied)
    text = capsys.readouterr().out
    assert text.startswith("Held-out problems gained: 2, lost: 0\n")
    assert "--data 'my problems.jsonl'" in text


def test_a_directory_without_a_run_gets_one_sentence():
    command = [sys.executable, "-m", "nano_report", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch("nano_report: .+\n", done.stderr)


def test_a_metric_has_one_name_everywhere():
    text = Path("docs/metrics.md").read_text()
    for name, (label, _) in labels.METRICS.items():
        assert name not in nano_r1.STEP_LINE or label in nano_r1.COLUMNS or name == "time/step"
        assert f"| `{name}` | {label}" in text


# ---- The page in a browser


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def redrawn(page, action, *arguments):
    """Do something, and wait until the page has been drawn anew."""
    before = page.evaluate("document.documentElement.dataset.drawn")
    action(*arguments)
    page.wait_for_function("was => document.documentElement.dataset.drawn !== was", arg=before)


def test_it_opens_with_the_result(run, opened):
    page = opened(run.file)
    assert page.inner_text("h1").startswith("25.0% → 50.0% of 8 held-out problems")
    assert page.locator(".wall .solved").count() == 2 + 4
    redrawn(page, page.keyboard.press, "g")
    assert page.inner_text("h1") == "Step 1, group 1"


def test_a_metric_of_ones_own_has_a_curve(run, opened):
    assert opened(run.file).get_by_text("my/own").count()


def test_numbers_are_rounded_as_on_the_console(run, opened):
    values = [0.125, 0.625, 0.41015625]
    rounded = opened(run.file).evaluate("values => values.map((x) => percent(x))", values)
    assert rounded == [f"{value:.0%}" for value in values]


MOVES = [  # a key or a click, and where it leads
    ("s", "#step=1"),
    ("ArrowRight", "#step=2"),
    ("#back", "#step=1"),
    ("[data-group='2']", "#step=1&group=2"),
    ("text=← group", "#step=1&group=1"),
    ("a[aria-label='completion 2']", "#step=1&group=1&completion=2"),
    ("ArrowRight", "#step=3&group=1"),  # the next step that is recorded, its best group
    ("r", "#run"),
    (".wall >> nth=1 >> [data-problem='2']", "#run&problem=2"),
    ("[data-kind='wrong, then correct']", "#run&problem=3"),
    (".dot >> nth=1", "#step=1&group=2&completion=2"),
    ("r", "#run&problem=3"),
    ("s", "#step=1"),
    ("a[aria-label^='completion 3'] >> nth=0", "#step=1&group=1&completion=3"),
]


def test_keys_and_clicks_go_to_the_same_places(run, opened):
    page = opened(run.file)
    for action, place in MOVES:
        act = page.keyboard.press if action.isalpha() else page.click
        redrawn(page, act, action)
        assert page.evaluate("location.hash") == place, action
    page.keyboard.press("?")
    assert page.is_visible("#help")


@pytest.mark.parametrize("corner", [0, 1])
def test_a_click_on_a_corner_of_all_completions_goes_to_a_group(corner, run, opened):
    page = opened(run.file)
    size = page.locator(".glance").bounding_box()
    x, y = (corner * (size[side] - 0.05) for side in ("width", "height"))
    page.click(".glance", position={"x": x, "y": y})
    assert "&group=" in page.evaluate("location.hash")


def test_what_a_model_wrote_is_text(run, opened):
    page = opened(run.file, "#step=1&group=1")
    assert texts(page, ".tokens") == [TEXTS[i] for i in BY_REWARD]
    assert texts(page, "figcaption .problem") == [HOSTILE]
    for key in "rsg":
        redrawn(page, page.keyboard.press, key)
        assert page.evaluate("window.harm") is None
        assert page.locator("main img, main b b, main i").count() == 0


def test_a_token_has_the_probabilities_of_the_record(run, opened):
    page = opened(run.file, "#step=1&group=1&completion=2&token=3")
    log_prob, change = run.episodes[1].extra["wanted"][:, 2]
    said = page.inner_text("#tooltip").replace("−", "-")
    shown = [float(x) for x in re.search(r"(\S+)% → (\S+)%\D*by \+?(\S+) nats", said).groups()]
    before, after = 100 * np.exp([log_prob, log_prob + change])
    assert shown == pytest.approx([before, after, change], abs=0.06)


def test_a_check_is_a_dot_at_its_p_yes_by_whether_its_result_is_the_target(run):
    [checks] = payload.checks_of(run.read, 1, run.read.step(1))
    words = [e.extra["wanted"][0][-2] for e in run.episodes[4:7]]  # before the end token
    no, yes, another_no = np.exp(words)
    shares = [dot.pop(0) for dot in checks["dots"]]
    assert shares == pytest.approx([1 - no, yes, 1 - another_no], abs=1e-3)
    assert checks["dots"] == [[0, 2, 1, "19+36=55"], [1, 2, 2, "58+7=65"], [1, 2, 3, "58+7=65"]]


def test_the_lines_of_step_1_are_read_again_after_each_update(run, opened):
    *_, text = payload.watched_of(run.read)  # of the seventh completion
    before, change = run.episodes[6].extra["wanted"][:, -2]
    shares = 1 - np.exp([before, before + change])
    assert text["title"] == "Make 65 from 19, 36, 55, 7"
    lines = [["58+7=65 no", 1, pytest.approx(share, abs=1e-4)] for share in shares]
    assert text["frames"] == [[0, lines[:1]], [1, lines[1:]]]
    page = opened(run.file)
    assert texts(page, ".lines code")[0] == "58+7=65"
    assert texts(page, ".lines .box")[:2] == [f"{share:.0%}" for share in shares]
    page.fill("[aria-label='update']", "0")
    assert texts(page, ".lines th")[2] == "after 0 steps"


def test_a_line_of_thousands_of_results_is_read_in_bounded_time():
    words = 99_999 * ["1="] + ["x", " yes", "\n1=", "1", " yes"]
    [[line, hit, share]] = payload.lines_of({"target": 1}, words, [0.0] * len(words))
    assert (line, hit, share) == ("1=1 yes", 1, 1.0)


def test_a_group_says_which_completions_moved_against_their_advantage(run, opened):
    page = opened(run.file, "#step=1&group=1")
    against = []
    for i in BY_REWARD:
        move = np.nansum(run.episodes[i].extra["wanted"][1])
        if move * ADVANTAGES[i] < 0:
            against.append(str(i + 1))
    assert texts(page, "tr:has(td.moved small) .which") == against != []


@contextlib.contextmanager
def started(page):
    """The page after a click on ▶, at the first frame, also on a slow machine; then at the end."""
    page.clock.install(time=0)
    page.clock.pause_at(60_000)
    page.click(".play")
    yield page
    page.clock.run_for(10_000)
    page.wait_for_selector(".play:text('play')")


def test_the_story_of_a_group_stops_at_its_end(run, opened):
    with started(opened(run.file, "#step=1&group=1")) as page:
        assert page.locator(".unseen").count() == 4
    assert page.inner_text("h1") == "Step 1, group 1" and not page.locator(".plain").count()


def test_the_film_stops_where_it_is(run, opened):
    with started(opened(run.file)) as page:
        page.click(".play")
    assert page.input_value("[aria-label='update']") == "0"


def test_a_held_out_completion_that_has_not_changed_says_so(run, opened):
    assert texts(opened(run.file), ".completions > *")[1:] == ["after 3 steps: the same text"]


def test_no_advantage_is_stated_that_the_update_did_not_use(copied, opened):
    nano_r1.write_rows(copied / "config.json", [CONFIG | {"credit": "vineppo"}])
    page = opened(viewer.write(copied), "#step=1&group=1")
    assert texts(page, "[data-advantage]") == ["–"] * 4 and not page.locator(".bar").count()
    assert "an advantage for each segment" in page.inner_text("figcaption")


def test_a_stopped_run_says_of_which_step_its_result_is(copied, opened):
    rows = nano_r1.read_rows(copied / "metrics.jsonl")
    nano_r1.write_rows(copied / "metrics.jsonl", [*rows, {"step": 4, "reward": 1.0}])
    page = opened(viewer.write(copied))
    assert page.inner_text("h1").endswith("solved at the first try after 3 steps")


@pytest.mark.parametrize("width, theme", [(390, "light"), (1400, "dark")])
def test_axe_finds_nothing(width, theme, run, opened):
    page = opened(run.file, width=width, color_scheme=theme)
    for key in "rsg":
        redrawn(page, page.keyboard.press, key)
        assert axe.Axe().run(page).response["violations"] == []
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), key


def test_a_page_of_a_large_run_has_some_of_its_steps(run, tmp_path, opened, monkeypatch):
    for step in (2, 3):
        nano_r1.write_rows(tmp_path / f"episodes/step_{step:06d}.jsonl", run.rows[:4])
    size = (tmp_path / "episodes/step_000002.jsonl").stat().st_size
    monkeypatch.setattr(payload, "LARGEST", 1.5 * size)
    page = opened(viewer.write(tmp_path), "#step=2&group=1")
    assert texts(page, ".tokens") == TEXTS[:1]
    redrawn(page, page.keyboard.press, "s")
    assert "This file has 1 of 2 recorded steps" in page.inner_text("#choice")


def test_evaluations_in_another_order_are_compared_problem_by_problem(tmp_path):
    """A run that was resumed with more --eval_problems, by two processes."""
    for numbers in ("0213", "02461357"):
        rows = [{"problem": {"question": n}, "completion": n} for n in numbers]
        nano_r1.write_rows(tmp_path / f"evaluations/step_{len(numbers):06d}.jsonl", rows)
    nano_r1.write_rows(tmp_path / "metrics.jsonl", [{"step": 0}])
    attempts = payload.pack_evaluations(Run(tmp_path))["attempts"]
    assert attempts == [({"problem": n, "completion": n},) * 2 for n in "0213"]


def in_notebook(cell, folder, opened):
    (folder / "cell.html").write_text(f"<!doctype html><html data-drawn=0><body>{cell.data}")
    return opened(folder / "cell.html").frame_locator("iframe")


def test_in_a_notebook_it_is_a_frame_with_the_same_page(run, tmp_path, opened):
    frame = in_notebook(viewer.show(run.path), tmp_path, opened)
    frame.locator('[data-view="step"]').click()
    frame.locator("h1", has_text="Step 1").wait_for()


def test_a_group_in_a_notebook_is_a_table_in_which_model_text_is_text(run, tmp_path, opened):
    rows = [row | {"advantage": a} for row, a in zip(run.rows, [-0.783, 1.306, 0.261, -0.783])]
    frame = in_notebook(viewer.show_group(rows), tmp_path, opened)
    assert frame.locator(".tokens").all_text_contents() == [TEXTS[i] for i in BY_REWARD]
    # With the usual advantages, a sentence computes the best one's.
    sentence = frame.locator("figcaption").inner_text().split()
    assert "".join(sentence).endswith("(2−0.75)/0.96=+1.31.")


def test_a_recording_is_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez_compressed", lambda file, **_: file.write(b"PK") / 0)
    with pytest.raises(ZeroDivisionError):  # it stops in the middle
        record.save(f"{tmp_path}/tokens/step_000001.0.npz", {})
    assert not list(tmp_path.glob("tokens/*.npz"))


def test_a_slow_tokenizer_has_a_vocabulary(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokens, special = vocabulary(tmp_path)
    assert tokens[100] == "a" and "</s>" in special
