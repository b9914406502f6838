"""docs/make/all.sh, and the lesson it makes: in a browser the page asks before it shows."""

import os
import re
import statistics
import subprocess

import pytest

from docs.make import hero
from docs.make.lesson import make, source
from nano_report.run import read_rows

FLAGS = "--steps 2 --prompts_per_step 2 --eval_problems 4 --max_tokens 128"
COMPLETIONS = 16  # of a step
# axe reads every word of 1,600 lines of code: lines that show nothing new are taken out for it.
ONE_LINE_OF_A_KIND = """() => {
  const seen = new Set();
  const name = (e) => e.localName + e.className + (e.textContent.length > 1);
  for (const line of document.querySelectorAll(".line")) {
    const all = [line, ...line.querySelectorAll("*")].map((e) => name(e.parentElement) + name(e));
    if (!line.checkVisibility() || all.every((one) => seen.has(one))) line.remove();
    else all.forEach((one) => seen.add(one));
  }
}"""


def make_pages(folder, **options):
    command = ["bash", source.ROOT / "docs/make/all.sh", folder, *FLAGS.split()]
    return subprocess.run(command, check=True, text=True, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory, chromium):
    """A folder with the pages of a short run. Chromium draws the picture."""
    folder = tmp_path_factory.mktemp("pages")
    make_pages(folder)
    return folder


def test_each_page_states_its_commit(made):
    assert len(list(made.glob("hero*.*"))) == 6 and len(list(made.glob("lines*.*"))) == 4
    for page in ("lesson.html", "report_default_run.html"):
        text = (made / page).read_text()
        assert re.search(r"docs/make/all.sh</code> at commit \w+", text)
        assert (made / re.search('og:image" content="(.*?)"', text)[1]).exists()


def test_the_picture_has_the_result_of_its_run(made, tmp_path, opened):
    path = next(made.glob("default-command-*"))
    (tmp_path / "hero.html").write_text(hero.picture_page(path))
    first, _, last = [row.get("eval/pass@1") for row in read_rows(path / "metrics.jsonl")]
    said = opened(tmp_path / "hero.html").inner_text("body")
    assert f"Held-out problems solved: {first:.1%} → {last:.1%};" in said


def test_a_finished_run_is_not_run_again(made, tmp_path):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$2"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    again = make_pages(made, env=environment, stdout=subprocess.PIPE)
    assert again.stdout.split() == ["docs.make.lesson.make", "docs.make.hero"]


@pytest.fixture(scope="module")
def record(made):
    [record] = read_rows(next(made.glob("default-command-*")) / "lesson.json")
    return record


def value(record, function, text):
    """[name, text, tokens] beside a line of nano_r1.py."""
    return make.values_of(record, source.FILE)[make.line_of(source.FILE, function, text)][0]


def test_the_values_of_the_loss_are_those_of_the_completion(record):
    completion = make.completion_of(record)
    advantage = make.number_of(value(record, "main", "e.advantage = ")[1])
    assert advantage == pytest.approx(completion["advantage"], abs=1e-3)
    losses = [make.number_of(text) for text in value(record, "grpo_loss", "loss = loss +")[2]]
    part = make.number_of(value(record, "grpo_loss", "return")[1])
    assert len(losses) == len(completion["tokens"])
    assert part == pytest.approx(sum(losses) / len(losses) / COMPLETIONS, rel=1e-3)


def test_a_completion_is_shown_by_its_first_tokens_and_log_probs(record):
    _, shown, _ = value(record, "sample_and_reward", "completions = ")
    [first, *_] = make.completion_of(record)["tokens"]
    assert shown.startswith(f"({first!r} ") and shown.count("…") == 2


def test_the_page_has_each_line_of_code_once_in_the_order_of_the_file(record):
    numbers = re.findall(r'class="line" id="L(\d+)"', make.page(record))
    numbers = list(map(int, numbers))
    lines = source.FILE.read_text().splitlines()
    code = {k for k, line in enumerate(lines, start=1) if line and not line.startswith("#")}
    assert numbers == sorted(set(numbers)) and code <= set(numbers)


def test_the_verifier_has_values_that_add_up_to_the_reward(record):
    reward = make.completion_of(record)
    [shown] = list(record["values"]["countdown_rewards.py"].values())[-1]
    assert shown[1].startswith(f"Reward(total={reward['reward']}, format={reward['format_reward']}")


@pytest.mark.parametrize("width", [1400, 390])
def test_nine_links_reach_nine_places(width, made, opened):
    page = opened(made / "lesson.html", width=width)
    places = set()
    for link in page.locator("nav a").all():
        place = link.get_attribute("href")
        places.add(place)
        link.click()
        assert 0 < page.locator(place).bounding_box()["y"] < 900, place
        assert 0 <= link.bounding_box()["y"] < 900
    assert len(places) == 9


def test_each_prediction_hides_its_value_also_in_the_boxes_until_it_is_answered(made, opened):
    page = opened(made / "lesson.html")
    asked = page.evaluate("predictions")
    for number, one in enumerate(asked):
        value = page.locator(f"#L{one['line']} .value > :is(div, details)").first
        answer = one["choices"][one["answer"]]
        assert not value.is_visible() and answer not in page.inner_text("nav")
        question = page.locator(f"#question-{number}")
        question.get_by_role("button", name=answer, exact=True).click()
        assert value.is_visible() and "✓" in question.locator("[aria-live=polite]").inner_text()
        if number + 1 < len(asked):
            following = f"#L{asked[number + 1]['line']}"
            assert question.locator("a").get_attribute("href") == following


def test_a_clicked_reward_moves_all_advantages_by_the_chosen_rule(made, opened):
    page = opened(made / "lesson.html")
    page.click("summary:text('What if')")
    real = page.locator("#what-if .edit").all_text_contents()
    page.click("#what-if .edit >> nth=0")
    rewards = [(float(real[0]) + 1) % 3, *map(float, real[1:])]
    mean = statistics.mean(rewards)
    divisors = {"GRPO": statistics.stdev(rewards) + 1e-4, "RLOO": 7 / 8, "Dr. GRPO": 1}
    for rule, divisor in divisors.items():
        page.click(f"#what-if button:text-is('{rule}')")
        shown = page.locator("#what-if [data-advantage]").all_text_contents()
        expected = [(reward - mean) / divisor for reward in rewards]
        assert list(map(make.number_of, shown)) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("width, theme", [(1400, "dark"), (390, "light")])
def test_axe_finds_nothing(width, theme, made, opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(made / "lesson.html", width=width, color_scheme=theme)
    assert page.locator("#film .lines").count()
    page.locator("#all").click()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.evaluate(ONE_LINE_OF_A_KIND)
    assert Axe().run(page).response["violations"] == []
