"""The notebooks: generated from scripts and never edited; each runs from first to last cell."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import jupytext
import pytest
from helpers import ROOT, run
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

sys.path.append(os.path.join(ROOT, "notebooks"))
from make import make_notebooks

COLAB = "notebooks/colab.py"
WRONG = {  # answers that a student might give
    "1_one_group": "def leave_one_out(rewards):\n    return rewards - rewards.mean()",
    "2_the_loss": "is_frozen = lambda ratio, advantage, eps: (ratio > 1 + eps) | (ratio < 1 - eps)",
    "3_kl": "def member(d, w):\n    return -d + w * d.exp()\ndef best_weight(d):\n    return 1.0",
    "4_reading_a_run": "diagnosis = {'a': 2, 'b': 3, 'c': 1}",
    "5_imitate_select_reinforce": "off_policy = on_policy = lambda policy, other: policy - other",
    "6_rewards_that_go_wrong": "reward_of = dict(zip('ABCDEF', (1, 2, 3, 4, 5, 6)))\n"
    "def corrected(verdict, fp, fn):\n    return verdict - fp",
}
SHORT = {  # sizes in place of those in the cell tagged "parameters"
    "5_imitate_select_reinforce": "questions, teacher_steps, student_steps = 8, 2, 1",
    "6_rewards_that_go_wrong": "attempts, draws, steps, questions = 4, 2_000, 1, 2",
    "colab": "steps, short_steps, questions, eval_problems = 2, 1, 4, 8",
}


def code_of(script):
    return [cell for cell in jupytext.read(script).cells if cell.cell_type == "code"]


def tagged(cells, tag):
    return [cell for cell in cells if tag in cell.metadata.get("tags", [])]


def test_the_notebooks_are_up_to_date_and_begin_alike():
    cells = lambda book: [(c.cell_type, c.source, c.metadata.get("tags")) for c in book.cells]
    paths = Path(ROOT, "notebooks").rglob("*.ipynb")
    written = {str(path.relative_to(ROOT)): cells(jupytext.read(path)) for path in paths}
    made = {path: cells(book) for path, book in make_notebooks().items()}
    assert made == written, "run: python notebooks/make.py"
    first = {next(source for kind, source, _ in book if kind == "code") for book in made.values()}
    assert len(first) == 1  # it finds the repository or clones it


def test_in_the_lesson_s_notebook_only_the_last_cell_runs():
    book = make_notebooks()["notebooks/nano_r1.ipynb"]
    *cells, last = (cell.source for cell in book.cells if cell.cell_type == "code")
    assert "main(Config(" in last
    scope = {"__name__": "__main__"}  # a notebook's cells: no __file__
    for source in cells[1:]:
        exec(source, scope)
    assert callable(scope["main"]) and scope["Config"](steps=20).steps == 20


def test_copied_alone_the_lesson_says_the_two_lines_to_type(tmp_path):
    """As one file into an empty folder, and as one cell into an empty notebook."""
    shutil.copy(f"{ROOT}/nano_r1.py", tmp_path)
    (tmp_path / "cell.py").write_text("exec(open('nano_r1.py').read(), {'__name__': '__main__'})")
    for script in ("nano_r1.py", "cell.py"):
        done = run(script=script, cwd=tmp_path)
        said = done.stderr.splitlines()
        assert done.returncode == 1 and len(said) == 3, done.stderr
        assert "git clone https://" in said[1] and "cd nano_r1" in said[2]


def test_where_nothing_can_be_cloned_the_first_cell_says_what_git_says(tmp_path):
    cell = code_of(COLAB)[0].source.replace("https://github.com/nano-r1", "file:///none")
    done = run(cell, script="-c", cwd=tmp_path)
    assert done.returncode == 1 and "--branch v1 file:///none/nano_r1" in done.stderr
    assert "fatal: " in done.stderr and "Traceback" not in done.stderr


# In a kernel


class Kernel:
    """A kernel that runs cells one by one, as a reader does."""

    def __init__(self):
        self.book = new_notebook()
        self.client = NotebookClient(self.book, timeout=600, kernel_name="python3")

    def run(self, cell):
        """The outputs of a cell or of code; CellExecutionError if it raises.

        Nothing may come on its standard error, where libraries and the linter would complain.
        """
        cell = new_code_cell(cell) if isinstance(cell, str) else cell
        self.book.cells.append(cell)
        self.client.execute_cell(cell, len(self.book.cells) - 1)
        assert [o.text for o in cell.outputs if o.get("name") == "stderr"] == []
        return cell.outputs

    def open(self, directory):
        """As if another notebook were opened there, but for the modules that are imported."""
        self.run(f"%reset -f\nimport os; os.chdir({str(directory)!r})")


@pytest.fixture(scope="module")
def kernel():
    """One for all: a new one imports for seconds. tests/colab/run gives each notebook its own."""
    kernel = Kernel()
    with kernel.client.setup_kernel():
        kernel.open(ROOT)
        # 128 problems of a task instead of 16,384, at every start
        for task in ("gsm8k_rewards", "countdown_rewards"):
            kernel.run(f"import {task}; {task}.BUILT_IN['train'] = 128")
        yield kernel


def printed(outputs):
    return "".join(o.text for o in outputs if o.output_type == "stream")


@pytest.mark.parametrize("name", WRONG)
def test_a_chapter_runs_without_its_exercise_and_tells_right_from_wrong(name, kernel):
    kernel.open(f"{ROOT}/notebooks/chapters")
    cells = code_of(f"notebooks/chapters/{name}.py")
    if name in SHORT:
        tagged(cells, "parameters")[0].source = SHORT[name]
    for cell in cells:
        kernel.run(cell)
    tests = tagged(cells, "test")
    assert tests and all("is open" in printed(test.outputs) for test in tests)
    kernel.run(Path(ROOT, "tests/solutions", f"{name}.py").read_text())
    assert all(printed(kernel.run(test)).startswith("Right") for test in tests)
    kernel.run(WRONG[name])
    for test in tests:
        with pytest.raises(CellExecutionError, match="AssertionError"):
            kernel.run(test)


def test_the_colab_notebook_runs(kernel, tmp_path):
    kernel.open(f"{ROOT}/notebooks")
    first, *cells = code_of(COLAB)
    tagged(cells, "parameters")[0].source = SHORT["colab"]
    kernel.run(first)
    kernel.run(f"os.chdir({str(tmp_path)!r})")  # for what the runs write
    for cell in cells:
        kernel.run(cell)
    assert len(os.listdir(tmp_path / "out")) == 6  # the run, and five with one line changed
    (training,) = (cell for cell in cells if "r1.main(config)" in cell.source)
    (picture,) = (o for o in training.outputs if o.output_type == "display_data")  # drawn in place
    assert "step 2 of 2" in picture.metadata["image/png"]["alt"]


RUN = """
import dataclasses
import sys
sys.path.insert(0, {root!r})
from nano_r1 import Config, main
from plumbing.settings import read_config
sizes = dict(prompts_per_step=4, group_size=4, max_tokens=32, eval_problems=8, steps=400)
path = main(Config(task="gsm8k", **sizes))
"""


def test_a_cell_that_is_interrupted_leaves_a_run_that_goes_on(kernel, tmp_path):
    def interrupt():
        end = time.monotonic() + 120
        while (
            "step    2/400" not in printed(kernel.book.cells[-1].outputs) and time.monotonic() < end
        ):
            time.sleep(0.1)
        # what the button for it does
        os.kill(kernel.client.km.provisioner.pid, signal.SIGINT)

    kernel.open(tmp_path)
    threading.Thread(target=interrupt).start()
    stopped = printed(kernel.run(RUN.format(root=ROOT)))
    (step,) = re.findall(r"Saved after step (\d+): --resume", stopped)
    longer = f"dataclasses.replace(read_config(path, Config), steps={int(step) + 1})"
    assert f"Resuming after step {step}." in printed(kernel.run(f"main({longer})"))
