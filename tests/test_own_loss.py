"""docs/own_loss.md: its block of code is a file that trains."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from helpers import ROOT


def test_the_loss_of_the_page_trains_and_its_curve_is_drawn(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", Path(ROOT, "docs/own_loss.md").read_text(), re.S)
    assert sum(map(bool, code.splitlines())) <= 30
    (tmp_path / "my_loss.py").write_text(code)
    spec = importlib.util.spec_from_file_location("my_loss", tmp_path / "my_loss.py")
    my_loss = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(my_loss)
    monkeypatch.chdir(tmp_path)
    my_loss.compare(
        "own_loss",
        task="gsm8k",
        steps=2,
        report=False,
        prompts_per_step=4,
        group_size=4,
        max_tokens=40,
        eval_problems=8,
    )
    assert (tmp_path / "own_loss.png").stat().st_size > 1000
    rows = (tmp_path / "out/own_loss-undecided/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["undecided"] == pytest.approx(0.2, abs=0.05)
