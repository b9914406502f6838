"""The labs: each says what it expects before it runs; the one to copy runs, and is resumed."""

import argparse
import importlib
import os
import re
import sys
from pathlib import Path

import pytest
from helpers import ROOT

import countdown_rewards

LABS = os.path.join(ROOT, "labs")
sys.path.append(LABS)
NAMES = sorted({path.stem for path in Path(LABS).glob("*.py")} - {"lab", "page"})

from lab import Expected


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_predicts_has_flags_that_exist_and_a_section_of_the_page(name):
    lab = importlib.import_module(name).LAB
    assert lab.claim and lab.prediction and lab.limits and any(e.claim for e in lab.expected)
    for run in lab.runs.values():
        run.config()
    for expected in lab.expected:
        assert expected.high in lab.runs
        assert not isinstance(expected.low, str) or expected.low in {*lab.runs, "before"}
    assert name == "template" or f"<!-- lab {name} -->" in Path(ROOT, "docs/labs.md").read_text()


@pytest.mark.parametrize(
    ("expected", "word"),
    [
        (Expected("a", "b"), "held"),
        (Expected("b", "a"), "failed"),
        (Expected("a", "b", within=0.05), "failed"),
        (Expected("a", "b", within=0.2), "held"),
        (Expected("a", above=0.44), "not resolved"),
        (Expected("a", 0.9), "failed"),
    ],
)
def test_a_prediction_holds_fails_or_is_not_resolved(expected, word):
    values = {"a": {"pass@1": [0.5, 0.6, 0.55], "before": [0.1] * 3}}
    values["b"] = {"pass@1": [0.4, 0.5, 0.45], "before": [0.1] * 3}
    assert expected.check(values)[-1] == word


def test_the_lab_to_copy_runs_and_is_not_repeated(tmp_path, monkeypatch):
    """Five runs in this process, which saves starts; the sixth by the lab's command."""
    monkeypatch.setitem(countdown_rewards.BUILT_IN, "train", 128)  # instead of 16,384
    lab = importlib.import_module("template").LAB
    page = tmp_path / "labs.md"
    page.write_text("# Labs\n")
    more = "--steps 1 --prompts_per_step 2 --eval_problems 4 --max_tokens 16 --eval_every 1"
    args = argparse.Namespace(out=tmp_path / "out", more=more)
    for label, seed in [(label, seed) for label in lab.runs for seed in (0, 1)][:-1]:
        lab.complete("template", label, seed, args)
    command = [f"{LABS}/template.py", "--page", str(page), "--jobs", "1", "--seeds", "0", "1"]
    mine = ["--out", str(tmp_path / "out"), f"--more={more}"]
    monkeypatch.setattr(sys, "argv", [*command, *mine])
    lab.main()  # starts a process for the one run that is missing
    text = page.read_text()
    assert text.startswith("# Labs\n") and text.count("<!-- lab template -->") == 1
    assert "*GRPO* above *code of your own*" in text and "Not run yet" not in text
    assert (tmp_path / "labs" / "template.png").exists()
    records = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("metrics.jsonl")}
    lab.main()  # again: nothing is run
    assert records == {p: p.stat().st_mtime_ns for p in records} and len(records) == 6
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "empty"), "--complete"])
    lab.main()  # where the runs are not: what was seen stays
    assert page.read_text() == text


def test_the_readme_says_each_verdict_and_leads_to_it():
    page = Path(ROOT, "docs/labs.md").read_text()
    readme = Path(ROOT, "README.md").read_text()
    for title, word in re.findall(r"<!-- lab \w+ -->\n## (.*)\n\n\*\*(.*?)\.\*\*", page):
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        row = f"| [{title}](docs/labs.md#{anchor}) | {word.lower()} |"
        assert row in readme or word == "Claim", title  # not run yet
