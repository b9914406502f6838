"""docs/own_loss.md: its block of code is a file that trains."""

import importlib
import re
from pathlib import Path

import pytest
from helpers import ROOT, rows_of

import nano_r1
from plumbing.settings import UserError, read_config


def test_the_loss_of_the_page_trains_and_its_curve_is_drawn(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", Path(ROOT, "docs/own_loss.md").read_text(), re.S)
    (tmp_path / "my_loss.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    my_loss = importlib.import_module("my_loss")
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
    rows = rows_of(tmp_path / "out/own_loss-undecided/metrics.jsonl")
    assert rows[-1]["undecided"] == pytest.approx(0.2, abs=0.05)

    # Gone on with by the command line it would go on with the lesson's loss.
    path = str(tmp_path / "out/own_loss-undecided")
    config = read_config(path, nano_r1.Config)
    with pytest.raises(UserError, match="loss=undecided_loss"):
        nano_r1.main(config)
    assert nano_r1.main(config, loss=my_loss.undecided_loss) == path
    with pytest.raises(UserError, match="loss=undecided_loss"):
        default = read_config(path.replace("undecided", "default"), nano_r1.Config)
        nano_r1.main(default, loss=my_loss.undecided_loss)
