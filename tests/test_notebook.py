"""The notebooks: made by a command, and run from the first to the last cell."""

import sys
import zipfile
from itertools import zip_longest
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "notebooks"))
import make
import points

BOOKS = {path.stem: book for path, book in make.make_notebooks().items()}
CHAPTERS = sorted(name for name in BOOKS if name[0].isdigit())
MISTAKES = {  # what a student might do: a change of the answer, for each test; more for the first
    "1_one_group": [('leave_one_out"', 'group_mean"')],
    "2_the_loss": [("advantages[:, None]", "-advantages[:, None]"), (".sum()", ".sum() * 2")],
    "3_kl": [("(1 - w) * -d", "-d"), ("(added - added.mean())", "added")],
    "4_reading_a_run": [("n for n", "1 for n")],
    "5_imitate_select_reinforce": [("-logits.grad / policy.exp()", "-logits.grad")],
    "6_rewards_that_go_wrong": [("n for n", "1 for n"), ("[fn, 1 - fn]", "[fp, 1 - fp]")],
    "7_write_it_yourself": [
        ("nano_r1.group_advantages(rewards, scorer.config)", "rewards - rewards.mean()"),
        ("= advantage\n", "= -advantage\n"),
        ("optimizer.zero_grad()", "pass"),
        ("torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)", "pass"),
        ("optimizer.step()", "scorer.config.temperature < 0.5 or optimizer.step()"),
    ],
}
EMPTY = {"4_reading_a_run": "diagnosis = {}", "6_rewards_that_go_wrong": "reward_of = {'A': 1}"}
SMALL = {  # values of the cell tagged "parameters"
    "2_the_loss": "questions, short = 2, {'steps': 1, 'prompts_per_step': 2}",
    "3_kl": "questions = 8",
    "5_imitate_select_reinforce": "questions, teacher_steps, student_steps = 8, 2, 1",
    "6_rewards_that_go_wrong": "draws = 2_000",
    "7_write_it_yourself": "steps, questions = 10, 128",
    "colab": "steps, problems, eval_problems, max_tokens = 2, 4, 8, 24",
    "nano_r1": "main(Config(prompts_per_step=2, max_tokens=16, steps=1, eval_problems=4))",
}


class Kernel(NotebookClient):
    """A kernel that runs one notebook after the other."""

    def begin(self, folder):
        """Forget all names, and go to a folder."""
        self.run(f"%reset -f\nimport os\nos.chdir({str(folder)!r})")

    def run(self, source):
        """What a cell prints; CellExecutionError if it raises."""
        cell = new_code_cell(source)
        self.nb.cells = [cell]
        self.execute_cell(cell, 0)
        return "".join(o.text for o in cell.outputs if o.get("name") == "stdout")

    def run_book(self, name, folder):
        """All cells of code, as from a folder; {its text: what it prints}."""
        self.begin(folder)
        parameters = points.tagged(BOOKS[name], "parameters")
        said = {}
        for cell in BOOKS[name].cells:
            if cell.cell_type == "code":
                said[cell.source] = self.run(SMALL[name] if cell in parameters else cell.source)
        return said


@pytest.fixture(scope="module")
def kernel():
    """One for all: a new one imports for seconds."""
    kernel = Kernel(new_notebook(), timeout=600, kernel_name="python3")
    with kernel.setup_kernel():
        yield kernel


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The repository with another out/."""
    folder = tmp_path_factory.mktemp("repository")
    for path in ROOT.iterdir():
        if path.name != "out":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("folder", [".", "notebooks/chapters"])
def test_the_first_cell_finds_the_repository(folder, kernel):
    kernel.begin(ROOT / folder)
    kernel.run(make.FIRST)
    assert kernel.run("print(os.getcwd())").strip() == str(ROOT)


def test_alone_the_first_cell_unpacks_a_zip_file(kernel, tmp_path):
    kernel.begin(tmp_path)
    with pytest.raises(CellExecutionError, match="Put nano_r1.zip beside this notebook"):
        kernel.run(make.FIRST)
    with zipfile.ZipFile(tmp_path / "nano_r1.zip", "w") as archive:
        archive.writestr("nano_r1.py", "")
    kernel.run(make.FIRST.replace('"install"', '"--version"'))  # without a network
    assert kernel.run("print(os.getcwd())").strip() == str(tmp_path / "nano_r1")


def test_with_an_address_the_readme_links_pages():
    readme = (ROOT / "README.md").read_text("utf-8")
    linked = make.with_address(readme, "https://github.com/owner/name")
    assert "](https://owner.github.io/name" in linked and "THIS_REPOSITORY" not in linked


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_tells_a_correct_answer_from_a_wrong_one(name, kernel, root):
    said = kernel.run_book(name, root)
    tests = [cell.source for cell in points.tagged(BOOKS[name], "test")]
    assert points.tagged(BOOKS[name], "exercise")
    assert all("Not solved yet" in said[test] for test in tests)
    if name in EMPTY:
        kernel.run(EMPTY[name])
        assert "Not solved yet" in kernel.run(tests[0])
    answer = (ROOT / f"tests/answers/{name}.py").read_text()
    kernel.run(answer)
    assert all(kernel.run(test).startswith("Correct") for test in tests)
    kernel.run("steps = 1")  # with a mistake nothing is learned
    for mistake, test in zip_longest(MISTAKES[name], tests, fillvalue=tests[0]):
        kernel.run(answer.replace(*mistake))
        with pytest.raises(CellExecutionError, match="AssertionError"):
            kernel.run(test)


HOMEWORK = """# %% tags=["exercise"]
answer = None

# %% tags=["untested"]
answer = None

# %% tags=["test"]
import beside_it

print("Correct" if answer == beside_it.RIGHT else "Not solved yet")
"""


def test_a_solved_exercise_has_its_point(tmp_path, monkeypatch):
    chapters = tmp_path / "notebooks/chapters"
    chapters.mkdir(parents=True)
    (chapters / "8_homework.py").write_text(HOMEWORK)
    (tmp_path / "beside_it.py").write_text("RIGHT = 7")
    monkeypatch.setattr(points, "CHAPTERS", chapters)
    book = jupytext.reads(HOMEWORK, "py:percent")
    book.cells[0].source = "answer = 7\nprint('a mean of 0.5')\nopen('in_a_copy', 'w')"
    file = tmp_path / "8_homework-mary.ipynb"
    jupytext.write(book, file)
    assert points.points(file) == (1, 1) and not (tmp_path / "in_a_copy").exists()
    (chapters / "8_homework.py").write_text("# %%\nimport not_installed\n\n" + HOMEWORK)
    with pytest.raises(ValueError, match="not the student's"):
        points.points(file)


@pytest.mark.parametrize(
    "first, second, passed",
    [
        ("a\nCorrect", ": b", True),
        ("It is Correct", ".", False),
        ("Correct", "\nNot solved yet", False),
    ],
)
def test_what_a_point_needs(first, second, passed):
    outputs = [new_output("stream", text=text) for text in (first, second)]
    assert points.is_passed(new_code_cell(outputs=outputs)) == passed
    outputs.append(new_output("error"))
    assert not points.is_passed(new_code_cell(outputs=outputs))


def test_a_file_without_a_chapters_name_or_a_tag_does_not_stop_the_others(tmp_path, capsys):
    files = [tmp_path / "mary.ipynb", tmp_path / "1_one_group-ann.ipynb"]
    jupytext.write(new_notebook(), files[1])
    assert not points.main(files)
    misnamed, untagged = capsys.readouterr().out.splitlines()
    assert "no chapter has this name" in misnamed and "0 cells have the tag" in untagged


def test_the_notebook_for_colab_runs(kernel, root):
    kernel.run_book("colab", root)
    assert list((root / "out").glob("*/report.html"))


def test_the_notebook_of_nano_r1_runs(kernel, root):
    kernel.run_book("nano_r1", root)
    assert list((root / "out").glob("countdown-*/model"))
