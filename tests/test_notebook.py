"""The notebooks: generated from scripts and never edited, and each one runs from its first cell to its last."""

import importlib.util
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import jupytext
import pytest
from helpers import ROOT
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from plumbing import notebook

sys.path.append(os.path.join(ROOT, "notebooks"))
from make import make_notebooks

CHAPTERS = ["1_one_group", "2_the_loss", "3_kl", "4_reading_a_run"]
COLAB = "notebooks/colab.py"
WRONG = {  # answers that a student might give
    "1_one_group": "def leave_one_out(rewards):\n    return rewards - rewards.mean()",
    "2_the_loss": "def is_frozen(ratio, advantage, eps):\n    return (ratio > 1 + eps) | (ratio < 1 - eps)",
    "3_kl": "def member(d, w):\n    return -d + w * d.exp()\ndef best_weight(d):\n    return 1.0",
    "4_reading_a_run": "diagnosis = {'a': 2, 'b': 3, 'c': 1}",
}


def code_of(script):
    return [cell for cell in jupytext.read(script).cells if cell.cell_type == "code"]


def tagged(cells, tag):
    (cell,) = (cell for cell in cells if tag in cell.metadata.get("tags", []))
    return cell


def test_the_notebooks_are_up_to_date():
    cells = lambda book: [
        (cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in book.cells
    ]
    written = {
        path: cells(jupytext.read(path))
        for path in map(str, Path(ROOT, "notebooks").rglob("*.ipynb"))
    }
    made = {os.path.join(ROOT, path): cells(book) for path, book in make_notebooks().items()}
    assert made == written, "run: python notebooks/make.py"


def test_the_first_cell_of_every_notebook_is_the_same_and_clones_what_the_badge_opens():
    (first,) = {
        next(cell.source for cell in book.cells if cell.cell_type == "code")
        for book in make_notebooks().values()
    }
    repository, tag = re.search(r'REPO, TAG = "https://github.com/(\S+)", "(\S+)"', first).groups()
    url = f"https://colab.research.google.com/github/{repository}/blob/{tag}/notebooks/colab.ipynb"
    assert url in Path(ROOT, "README.md").read_text()


def test_only_what_is_missing_would_be_installed_and_never_torch(monkeypatch):
    assert notebook.missing() == []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("hjson", "torch") else name
    )
    assert notebook.missing() == ["hjson==3.1.0"]
    assert {"torch", "transformers", "numpy"} & set(notebook.ADDED) == set()


def test_in_the_lesson_s_notebook_only_the_last_cell_runs():
    _, *cells, last = (
        cell
        for cell in make_notebooks()["notebooks/nano_r1.ipynb"].cells
        if cell.cell_type == "code"
    )
    assert "main(Config(" in last.source
    scope = {"__name__": "__main__"}  # a notebook's cells: no __file__
    for cell in cells:
        exec(cell.source, scope)
    assert callable(scope["main"]) and scope["Config"](steps=20).steps == 20


# In a kernel


class Kernel:
    """A kernel that runs cells one by one, as a reader does."""

    def __init__(self, directory):
        resources = {"metadata": {"path": directory}}
        self.book = new_notebook()
        self.client = NotebookClient(
            self.book, timeout=600, kernel_name="python3", resources=resources
        )

    def run(self, cell):
        """The outputs of a cell or of code; CellExecutionError if it raises. Nothing may come on its standard error."""
        cell = new_code_cell(cell) if isinstance(cell, str) else cell
        self.book.cells.append(cell)
        self.client.execute_cell(cell, len(self.book.cells) - 1)
        assert [o.text for o in cell.outputs if o.get("name") == "stderr"] == []
        return cell.outputs

    def open(self, directory):
        """As if another notebook were opened in that directory, but for the modules that are imported already."""
        self.run("%reset -f")
        self.run(f"import os; os.chdir({str(directory)!r})")


@pytest.fixture(scope="module")
def kernel():
    """One for all: a new one imports for seven seconds. tests/colab/run gives each notebook its own."""
    kernel = Kernel(ROOT)
    with kernel.client.setup_kernel():
        kernel.run(
            "import gsm8k_rewards; gsm8k_rewards.BUILT_IN['train'] = 128"
        )  # instead of 16,384, at every start
        yield kernel


def printed(outputs):
    return "".join(o.text for o in outputs if o.output_type == "stream")


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_runs_without_its_exercise_and_tells_right_from_wrong(name, kernel):
    kernel.open(f"{ROOT}/notebooks/chapters")
    cells = code_of(f"notebooks/chapters/{name}.py")
    exercise, test = tagged(cells, "exercise"), tagged(cells, "test")
    for cell in cells:
        kernel.run(cell)
    assert printed(test.outputs).startswith("The exercise is open")
    kernel.run(Path(ROOT, "tests/solutions", f"{name}.py").read_text())
    assert printed(kernel.run(test)).startswith("Right")
    assert exercise.source != WRONG[name]
    kernel.run(WRONG[name])
    with pytest.raises(CellExecutionError, match="AssertionError"):
        kernel.run(test)


def test_the_colab_notebook_runs_and_its_training_cell_twice(kernel, tmp_path):
    kernel.open(f"{ROOT}/notebooks")
    cells = code_of(COLAB)
    tagged(cells, "parameters").source = "steps, short_steps, questions, eval_problems = 2, 1, 4, 8"
    kernel.run(cells[0])
    kernel.run(f"os.chdir({str(tmp_path)!r})")  # for what the runs write
    for cell in cells[1:]:
        kernel.run(cell)
    (training,) = (cell for cell in cells if "r1.main(config)" in cell.source)
    assert "after 2 steps" in printed(training.outputs) and "after 2 steps" in printed(
        kernel.run(training)
    )
    assert (
        len(os.listdir(tmp_path / "out")) == 7
    )  # the run, five with one line changed, the run again


RUN = """
from nano_r1 import Config, main
from plumbing.settings import read_config
small = dict(task="gsm8k", prompts_per_step=4, group_size=4, max_tokens=32, eval_problems=8)
path = main(Config(**small, steps=3))
"""


@pytest.fixture(scope="module")
def run(kernel, tmp_path_factory):
    """The outputs of a first run, in a directory that is not the repository's."""
    kernel.open(tmp_path_factory.mktemp("somewhere"))
    kernel.run(f"import sys; sys.path.insert(0, {ROOT!r})")
    return kernel.run(RUN)


def test_a_run_in_a_cell_finds_model_and_task_from_any_directory_and_no_library_prints(run):
    """`Kernel.run` has looked at the standard error, where the linker's messages were."""
    assert "after 3 steps" in printed(run)
    assert re.findall(r"(?i)warning|error|deepspeed|\bld\b", printed(run)) == []


def test_the_curves_of_a_running_cell_are_one_picture_with_the_time_that_is_left(run):
    (picture,) = (o for o in run if o.output_type == "display_data")
    assert (
        picture.metadata["image/png"]["alt"] == "models/nano-base on gsm8k: step 3 of 3, 0 s left"
    )


def test_after_a_run_plots_are_inline_as_before(run, kernel):
    outputs = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert any("image/png" in o.get("data", {}) for o in outputs)


def test_a_second_run_in_the_same_kernel_is_a_run_of_its_own(run, kernel):
    assert "after 3 steps" in printed(kernel.run("again = main(Config(**small, steps=3))"))
    same = "open(f'{path}/metrics.jsonl').read().count('\\n') == 4 and path != again"
    assert kernel.run(same)[-1].data["text/plain"] == "True"


def test_a_cell_that_is_interrupted_leaves_a_run_that_goes_on(run, kernel):
    def interrupt():
        deadline = time.monotonic() + 120
        while (
            "step    2/400" not in printed(kernel.book.cells[-1].outputs)
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        os.kill(kernel.client.km.provisioner.pid, signal.SIGINT)  # what the button for it does

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = printed(kernel.run("path = main(Config(**small, steps=400, name='stopped'))"))
    thread.join()
    (step,) = re.findall(r"Saved after step (\d+): --resume", stopped)
    resumed = f"import dataclasses\nmain(dataclasses.replace(read_config(path, Config), steps={int(step) + 1}))"
    assert f"Resuming after step {step}." in printed(kernel.run(resumed))
