"""The lesson's page: it is of nano_r1.py as it is; in a browser it asks before it shows."""

import base64
import gzip
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "lesson"))
import equations
import make
import source

SOURCE = source.FILE.read_text()
RECORD = json.loads(make.RECORD.read_text())
WIDTH = 1400  # of a page


def test_the_page_is_of_the_file_as_it_is():
    assert make.page(SOURCE, RECORD) == make.PAGE.read_text(), "run: python docs/lesson/make.py"


def test_comments_may_change_without_a_new_record_and_code_may_not():
    assert source.fingerprint(f"{SOURCE}# a\n") == RECORD["code"]
    with pytest.raises(SystemExit, match="record.py"):
        make.page(f"{SOURCE}print()\n", RECORD)


def test_an_equation_that_is_gone_stops_the_build(monkeypatch):
    monkeypatch.setitem(equations.EQUATIONS, "e = m c^2", "e = mc^2")
    with pytest.raises(SystemExit, match="e = m c"):
        make.page(SOURCE, RECORD)


def test_the_values_of_the_loss_are_those_of_the_completion():
    row = RECORD["rows"][RECORD["place"] - 1]
    values = make.values_by_line(SOURCE, RECORD)

    def value(function, text):
        return values[make.line_of(SOURCE, function, text)][0]

    assert float(value("main", "e.advantage = ")[1].replace("−", "-")) == pytest.approx(
        row["advantage"], abs=1e-3
    )
    losses = [float(x.replace("−", "-")) for x in value("grpo_loss", "loss = loss +")[2]]
    part = float(value("grpo_loss", "return")[1].replace("−", "-"))
    assert len(losses) == len(RECORD["pieces"]) == row["length"]
    assert part == pytest.approx(sum(losses) / len(losses) / 128, rel=1e-3)


def test_the_default_runs_report_opens_at_the_completion_of_the_lesson():
    text = (make.PAGE.parent / "report_default_run.html").read_text()
    blocks = re.findall(r'id="(head|run0-step\d+)">([^<]+)<', text)
    blocks = {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in blocks}
    moved = blocks["head"]["runs"][0]["moved"]
    step = max(moved, key=moved.get)
    assert int(step) == RECORD["step"]
    assert blocks[f"run0-step{step}"]["opening"] == [RECORD["group"], RECORD["place"]]


def test_in_a_browser_each_prediction_hides_its_value_until_it_is_answered(opened):
    page = opened(make.PAGE)
    asked = page.evaluate("predictions")
    assert [one["line"] for one in asked] == sorted(one["line"] for one in asked)
    for number, one in enumerate(asked):
        value = page.locator(f"#L{one['line']} .value > :is(div, details)").first
        assert not value.is_visible()
        question = page.locator(f"#question-{number}")
        question.get_by_role("button", name=one["choices"][one["answer"]], exact=True).click()
        assert value.is_visible() and "✓" in question.inner_text()


def test_in_a_browser_an_address_in_a_fold_opens_it(opened):
    line = source.functions_of(SOURCE)["VLLMSampler.sleep"].lineno
    assert opened(make.PAGE, f"#L{line}").locator(f"#L{line}").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(theme, opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(make.PAGE, width=390, color_scheme=theme)
    page.locator("#all").click()
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in found] == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
