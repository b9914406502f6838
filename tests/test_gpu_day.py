"""`benchmarks/gpu_day.py` without a GPU: all rows with tiny shapes, stopped and gone on with."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from forks import Forked
from helpers import ROOT

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import gpu_day


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """(directory of a day that was stopped twice and then gone on with, its outputs)."""
    folder = tmp_path_factory.mktemp("day")
    shutil.copy(os.path.join(ROOT, "docs/gpu.md"), folder)
    args = ["--tiny", "--dir", folder, "--write", folder]
    printed = []
    for minutes, rows in ((0, ""), (60, "^(machine|torch-lora)$"), (60, "")):
        flags = [*args, "--minutes", minutes, "--rows", rows]
        process = Forked(*flags, script="benchmarks/gpu_day.py", env={"CUDA_VISIBLE_DEVICES": ""})
        out, error = process.communicate(timeout=1200)
        assert process.returncode == 0, error
        printed.append(out)
    return folder, printed


def test_every_row_is_done_or_says_what_it_lacks(day):
    results = json.loads((day[0] / "results.json").read_text())
    lacks = {row.name: gpu_day.missing(row, "CPU") for row in gpu_day.all_rows()}
    states = {name: "left out" if lacking else "done" for name, lacking in lacks.items()}
    assert {name: r["state"] for name, r in results.items()} == states, results
    assert results["torch"]["result"]["resumed"] == "bit for bit"
    assert results["1.5B-loop"]["result"]["update"]["seconds"]
    done = {name: r["result"] for name, r in results.items() if r["state"] == "done"}
    gradients = {name: r["first gradients"] for name, r in done.items() if "first gradients" in r}
    same = {name: norms for name, norms in gradients.items() if "lora" not in name}
    assert len(same) >= 8 and same["torch"][0] > 0
    assert all(norms == pytest.approx(same["torch"], rel=1e-3) for norms in same.values()), same


def test_what_was_done_is_not_done_again_and_stands_in_the_page(day):
    folder, (nothing, some, rest) = day
    assert "0 minutes are over" in nothing and some.count(": done") == 2
    assert "torch-lora:" not in rest and rest.count(": done") > 10
    page, before = (Path(p, "gpu.md").read_text() for p in (folder, os.path.join(ROOT, "docs")))
    assert "| torch-lora | done | steps 2; reward" in page and "CPU, " in page
    mark = "## With the hub"
    assert page.split(mark)[1] == before.split(mark)[1] and "Nothing has been tried" not in page


def fail(row, args):
    raise RuntimeError("CUDA error: an illegal memory access")


def hang(row, args):
    while True:
        pass


def die(row, args):
    os._exit(3)


def test_a_row_that_fails_hangs_or_dies_is_written_down_and_the_next_one_runs(
    tmp_path, monkeypatch
):
    """What the piece's end cuts off is begun again in the next, and the third time given up."""
    shutil.copy(os.path.join(ROOT, "docs/gpu.md"), tmp_path)
    args = gpu_day.parse_args(["--tiny", "--dir", str(tmp_path), "--write", str(tmp_path)])
    here = {"card": "CPU", "commit": "c"}
    results = {}
    limits = {fail: 100, die: 100, hang: 1}
    rows = [gpu_day.Row(f.__name__, f, limit) for f, limit in limits.items()]
    assert gpu_day.go_through(rows, results, here, args)
    states = {name: r["state"] for name, r in results.items()}
    assert states == {"fail": "failed", "die": "failed", "hang": "out of time"}
    assert "illegal memory access" in results["fail"]["result"]
    args.minutes = 0.02
    monkeypatch.setattr(gpu_day, "ENOUGH", 0)
    states = []
    for _ in range(4):
        gpu_day.go_through([gpu_day.Row("long", hang, 1.3)], results, here, args)
        states.append(results["long"]["state"])
    assert states[0] == "stopped" and states[-1] == "failed"
