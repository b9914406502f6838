"""docs/make.sh, and the lesson it makes: in a browser the page asks before it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.lesson import make, source
from report.run import read_rows

SOURCE = source.FILE.read_text()
SCRIPT = source.ROOT / "docs" / "make.sh"
FLAGS = "--steps 2 --prompts_per_step 4 --eval_problems 8"
COMPLETIONS = 32  # of a step
WIDTH = 1400  # of a page


def make_pages(folder, programs):
    """docs/make.sh for a short run, with `python` from that folder of programs."""
    path = f"{programs}:{os.environ['PATH']}"
    command = ["bash", SCRIPT, folder, *FLAGS.split()]
    subprocess.run(command, env={**os.environ, "PATH": path}, check=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory, chromium):
    """A folder with the pages of a short run. The picture is drawn in a browser."""
    folder = tmp_path_factory.mktemp("pages")
    make_pages(folder, Path(sys.executable).parent)
    return folder


def test_the_picture_is_there_and_each_page_states_the_commit_that_made_it(made):
    assert len(list(made.glob("hero*.*"))) == 6
    for page in ("lesson.html", "report_default_run.html"):
        assert re.search(r"docs/make.sh</code> at commit \w+", (made / page).read_text())


def test_a_finished_run_is_not_run_again(made, tmp_path):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/commands\n')
    program.chmod(0o755)
    make_pages(made, tmp_path)
    commands = (tmp_path / "commands").read_text()
    assert commands == "docs.lesson.make\ndocs.hero\n"


def test_the_values_of_the_loss_are_those_of_the_completion(made):
    [record] = read_rows(next(made.glob("pages-*")) / "lesson.json")
    row = record["rows"][record["place"] - 1]
    values = make.values_by_line(SOURCE, record)

    def value(function, text):
        return values[make.line_of(SOURCE, function, text)][0]

    assert float(value("main", "e.advantage = ")[1].replace("−", "-")) == pytest.approx(
        row["advantage"], abs=1e-3
    )
    losses = [float(x.replace("−", "-")) for x in value("grpo_loss", "loss = loss +")[2]]
    part = float(value("grpo_loss", "return")[1].replace("−", "-"))
    assert len(losses) == len(record["pieces"]) == row["length"]
    assert part == pytest.approx(sum(losses) / len(losses) / COMPLETIONS, rel=1e-3)


def test_in_a_browser_each_prediction_hides_its_value_until_it_is_answered(made, opened):
    page = opened(made / "lesson.html")
    asked = page.evaluate("predictions")
    assert [one["line"] for one in asked] == sorted(one["line"] for one in asked)
    for number, one in enumerate(asked):
        value = page.locator(f"#L{one['line']} .value > :is(div, details)").first
        assert not value.is_visible()
        question = page.locator(f"#question-{number}")
        question.get_by_role("button", name=one["choices"][one["answer"]], exact=True).click()
        assert value.is_visible() and "✓" in question.inner_text()


def test_in_a_browser_an_address_in_a_fold_opens_it(made, opened):
    line = source.functions_of(SOURCE)["VLLMSampler.sleep"].lineno
    assert opened(made / "lesson.html", f"#L{line}").locator(f"#L{line}").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(theme, made, opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(made / "lesson.html", width=390, color_scheme=theme)
    page.locator("#all").click()
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in found] == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
