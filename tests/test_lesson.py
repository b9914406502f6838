"""The lesson's pages: of the files as they are, and in a browser what the record says."""

import copy
import os
import re
import sys

import pytest
from helpers import ROOT, browser_needed, make_episodes
from helpers import config as make_config

sys.path.insert(0, os.path.join(ROOT, "docs"))

from lesson import equations, make, sources
from lesson.tracer import Tracer
from lesson.values import Group, Values

import nano_r1 as r1
from plumbing.evaluation import measure_update

WIDTH = 1440  # of a page
FILES = [file for file, path in make.PAGES.items() if path.exists()]
RECORDS = {file: make.record_in(make.PAGES[file].read_text("utf-8")) for file in FILES}
RECORD = make.payload_in(make.PAGES["nano_r1.py"].read_text("utf-8"))


@pytest.mark.parametrize("file", FILES)
def test_a_page_is_of_the_file_as_it_is(file):
    """Its source, equations, places and predictions; only the step's numbers are its own."""
    made = make.page(file, RECORDS[file])
    assert made == make.PAGES[file].read_text("utf-8"), "run: python docs/lesson/make.py --keep"


def test_comments_may_change_without_a_new_record():
    code = "def f(x):\n    '''One.'''\n    return x  # a\n"
    assert sources.fingerprint(code) == sources.fingerprint(code.replace("One", "Two") + "# b\n")
    assert sources.fingerprint(code) != sources.fingerprint(code.replace("return x", "return -x"))


def test_an_equation_that_is_gone_stops_the_build_with_one_sentence(monkeypatch):
    monkeypatch.setitem(equations.PROSE, "nano_r1.py", {"e = m c^2": "e = mc^2"})
    monkeypatch.setitem(equations.COMMENTS, "nano_r1.py", {})
    with pytest.raises(SystemExit, match="e = m c.2"):
        sources.render("nano_r1.py", "# %% [markdown]\n# text\n")


def test_the_tracer_keeps_what_a_line_sets_and_the_row_of_each_completion():
    config = make_config(kl_coef=0.1, prompts_per_step=1)
    episodes = make_episodes(count=2)
    batch = r1.collate(episodes, "cpu")
    batch["old_log_probs"] = batch["log_probs"] = batch["ref_log_probs"] = -batch["advantages"]
    group = Group(0, 2, 1, {"nums": []})
    group.learn([[e.completion for e in episodes]])
    group.prompt_length = 3
    values = Values(group)
    with Tracer(["nano_r1.py"], ("nano_r1.py", "grpo_loss"), values, lambda _: True) as tracer:
        parts, stats = r1.grpo_loss(batch["log_probs"] + 0.1, batch, 2, config)
    visits = tracer.root.record["visits"]
    seen = {name: values.table[at] for visit in visits for name, at in visit["set"]}
    assert seen["ratio"]["shape"] == list(batch["labels"].shape)
    rows = values.table[seen["return"]["items"][0][1]]["rows"]
    assert [rows[k]["num"] for k in "01"] == pytest.approx(parts.tolist(), rel=1e-3)
    assert seen["lengths"]["first"] == [e.length for e in episodes]
    kl = [float(x) for x in seen["stats['kl']"]["first"]]
    counted = stats["kl"][0][batch["response_mask"][0]]
    assert kl == pytest.approx(counted[:6].tolist(), rel=1e-3, abs=1e-6)


# ---- In a browser


def number(text):
    return float(text.replace("−", "-"))


def line(page, start):
    """The line of the file that has this text."""
    lines = page.locator("#file > section > .code > .line")
    return lines.filter(has=page.locator("code", has_text=start)).first


@browser_needed
def test_following_an_attempt_shows_its_numbers_everywhere(opened):
    page = opened(make.PAGES["nano_r1.py"])
    page.keyboard.press("a")
    for k, (attempt, facts) in enumerate(zip(RECORD["attempts"], RECORD["facts"][0]), start=1):
        page.keyboard.press(str(k))
        assert page.text_content("#story pre.said") == attempt["text"]
        assert attempt["why"] in page.inner_text('.facts dt:text-is("reward") + dd')
        shown = number(page.inner_text('.facts dt:text-is("advantage") + dd span'))
        assert shown == pytest.approx(facts["advantage"], abs=6e-4)
        beside = line(page, "e.advantage = advantage").locator(".side").inner_text()
        assert number(beside.split()[-1].lstrip("①②③④⑤⑥⑦⑧")) == shown


@browser_needed
def test_calls_open_in_place_down_to_the_loss(opened):
    page = opened(make.PAGES["nano_r1.py"])
    page.keyboard.press("a")
    page.keyboard.press(str(RECORD["shown"] + 1))
    chip = lambda place, name: place.locator(".chips").get_by_text(name, exact=True)
    chip(line(page, "measured = update("), "update").click()
    update = page.locator('.call[data-call="update"]')
    chip(update, "grpo_loss").click()
    last = update.locator('.call[data-call="grpo_loss"] .line:has-text("per_completion / comp")')
    returned = re.search(r"−?\d[\d.e−]*", last.first.locator(".side").inner_text())[0]
    part = RECORD["facts"][0][RECORD["shown"]]["loss"]
    assert number(returned) == pytest.approx(part, rel=0.01)
    chip(update, "measure_update").click()
    said = measure_update.__doc__.split("\n")[0]
    assert any(text.startswith(said) for text in update.locator(".doc").all_inner_texts())


@browser_needed
def test_six_places_ask_before_they_show(opened):
    page = opened(make.PAGES["nano_r1.py"])
    assert page.locator("#file > section > .code > .below > .question").count() == 6
    place = line(page, "advantages = (rewards - mean)")
    assert place.locator(".side").inner_text() == "predict first"
    right = next(p for p in page.evaluate("page.predictions") if p["key"].endswith("advantages"))
    below = place.locator("xpath=following-sibling::div[1]")
    below.get_by_role("button", name=right["choices"][right["right"]]).click()
    assert "✓ Yes" in below.locator(".answer").inner_text()
    assert place.locator(".side").inner_text().startswith("advantages")


@browser_needed
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("file", FILES)
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(file, theme, opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(make.PAGES[file], "#L200", width=390, color_scheme=theme)
    page.keyboard.press("1")
    page.keyboard.press("v")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in found] == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@browser_needed
def test_every_line_has_an_address_and_keys_go_from_line_to_line(opened):
    page = opened(make.PAGES["nano_r1.py"], "#L200")
    count = len((make.ROOT / "nano_r1.py").read_text().splitlines())
    # Not each one: a browser ignores more than 200 changes of the address within 10 seconds.
    lines = [*range(1, count + 1, 9), 200]
    known = page.evaluate("lines => lines.map(n => (location.hash = `L${n}`, place()))", lines)
    assert all(0 <= at <= n for n, at in zip(lines, known)) and known[-1] == 200
    page.keyboard.press("j")
    page.wait_for_function("Number(location.hash.slice(2)) > 200")


@browser_needed
@pytest.mark.skipif("variants.py" not in FILES, reason="run: python docs/lesson/make.py")
def test_a_relative_marks_what_differs_from_grpo(opened):
    page = opened(make.PAGES["variants.py"])
    assert page.locator("[data-differs]").count() >= len(RECORDS["variants.py"]["runs"]) - 1
    page.get_by_role("button", name="Dr. GRPO").click()
    assert line(page, "values = rewards - BASELINES").locator(".side[data-differs]").count() == 0
    assert page.locator(".side[data-differs]").count() > 3


HOSTILE = "<script>window.harm = 1</script></script><img src=x onerror='window.harm = 1'><b>"


@browser_needed
def test_what_a_model_wrote_is_text_and_nothing_else(opened, tmp_path):
    record = copy.deepcopy(RECORD)
    record["attempts"][0] |= {"text": HOSTILE, "why": HOSTILE}
    record["tokens"] = dict.fromkeys(record["tokens"], HOSTILE)
    (tmp_path / "page.html").write_text(make.page("nano_r1.py", record), encoding="utf-8")
    page = opened(tmp_path / "page.html")
    page.keyboard.press("1")
    assert page.text_content("#story pre.said") == HOSTILE
    assert page.evaluate("window.harm") is None and page.locator("img, #story pre b").count() == 0
