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
SHARED = {"lab", "page"}
NAMES = sorted(p.stem for p in Path(LABS).glob("*.py") if p.stem not in SHARED)


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_is_short_predicts_and_has_flags_that_exist(name):
    from lab import Tuning, config_of

    import nano_sft
    from plumbing.settings import parse_args

    lab = importlib.import_module(name).LAB
    assert len(Path(LABS, f"{name}.py").read_text().splitlines()) <= 80
    assert lab.claim and lab.prediction and lab.limits and lab.expected
    assert any(e.claim for e in lab.expected)
    for run in lab.runs.values():
        if isinstance(run, Tuning):
            parse_args(nano_sft.Config, "nano_sft.py", "", [*run.flags.split(), "--data", "x"])
        else:
            config_of(run.flags)
    for expected in lab.expected:
        assert expected.high in lab.runs
        assert not isinstance(expected.low, str) or expected.low in {*lab.runs, "before"}
    assert name == "template" or f"<!-- lab {name} -->" in Path(ROOT, "docs/labs.md").read_text()


def test_a_prediction_holds_fails_or_is_not_resolved():
    from lab import Expected

    values = {"a": {"pass@1": [0.5, 0.6, 0.55], "before": [0.1] * 3}}
    values["b"] = {"pass@1": [0.4, 0.5, 0.45], "before": [0.1] * 3}
    word = lambda *args, **options: Expected(*args, **options).check(values)[-1]
    assert word("a", "b") == "held" and word("b", "a") == "failed"
    assert word("a", "b", within=0.05) == "failed" and word("a", "b", within=0.2) == "held"
    assert word("a", above=0.44) == "not resolved" and word("a", 0.9) == "failed"


def test_the_lab_to_copy_runs_and_is_not_repeated(tmp_path, monkeypatch):
    """Five runs in this process, which saves starts; the sixth by the lab's command."""
    monkeypatch.setitem(countdown_rewards.BUILT_IN, "train", 128)  # instead of 16,384
    lab = importlib.import_module("template").LAB
    page = tmp_path / "labs.md"
    page.write_text("# Labs\n")
    more = "--steps 1 --prompts_per_step 2 --eval_problems 4 --max_tokens 16 --eval_every 1"
    args = argparse.Namespace(out=tmp_path / "out", more=more)
    for label in lab.runs:
        lab.complete("template", label, 1, args)
        if label != "code of your own":
            lab.complete("template", label, 0, args)
    command = [os.path.join(LABS, "template.py"), "--seeds", "0", "1", "--jobs", "1"]
    command += ["--out", str(tmp_path / "out"), "--page", str(page), f"--more={more}"]
    monkeypatch.setattr(sys, "argv", command)
    lab.main()  # starts a process for the one run that is missing
    text = page.read_text()
    assert text.startswith("# Labs\n") and text.count("<!-- lab template -->") == 1
    assert "*GRPO* above *code of your own*" in text and "Not run yet" not in text
    assert (tmp_path / "labs" / "template.png").exists()
    records = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("metrics.jsonl")}
    lab.main()  # again: nothing is run
    assert page.read_text() == text and len(records) == 6
    assert records == {p: p.stat().st_mtime_ns for p in records}
    elsewhere = ["--out", str(tmp_path / "empty"), "--page", str(page), "--complete"]
    monkeypatch.setattr(sys, "argv", [command[0], *elsewhere])
    lab.main()  # where the runs are not: what was seen stays
    assert page.read_text() == text


def test_the_readme_says_each_verdict():
    """One line a lab: its title, linked to its section, and the verdict that stands there."""
    page = Path(ROOT, "docs/labs.md").read_text()
    readme = Path(ROOT, "README.md").read_text()
    sections = re.findall(r"<!-- lab \w+ -->\n## (.*)\n\n\*\*(.*?)\.\*\*(.*)\n", page)
    verdicts = {title: word for title, word, _ in sections if word != "Claim"}
    assert len(verdicts) >= 4
    for title, word in verdicts.items():
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        assert f"| [{title}](docs/labs.md#{anchor}) | {word.lower()} |" in readme, title
