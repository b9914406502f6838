"""The folder of real problems and completions with other people's verdicts: docs/own_task.md."""

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real cases is absent")


def real(name):
    return [json.loads(line) for line in open(DATA / f"{name}.jsonl", encoding="utf-8")]
