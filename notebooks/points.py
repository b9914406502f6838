"""Points of notebooks that students hand in: python notebooks/points.py FOLDER/*.ipynb

A file's name must contain its chapter's name, such as 1_one_group-mary.ipynb. The chapter is run
afresh with the student's cells in the place of its exercises; cells tagged "untested" are left out.
A test is one point if it has no error and prints a line that begins with "Correct". This runs the
students' code, each in a copy of the repository: do it on a machine that has nothing else on it.
An exercise can still change what its own tests do, so read those that you doubt.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
from nbclient import NotebookClient

CHAPTERS = Path(__file__).parent / "chapters"


def tagged(book, tag):
    """The cells with this tag."""
    return [cell for cell in book.cells if tag in cell.metadata.get("tags", [])]


def failed(cell):
    """Whether a cell that ran has an error."""
    return any(out.output_type == "error" for out in cell.get("outputs", []))


def is_passed(test):
    """Whether this cell has no error and printed "Correct" at the start of a line."""
    printed = "".join("\n" + out.get("text", "") for out in test.outputs)
    solved = "\nCorrect" in printed and "\nNot solved yet" not in printed
    return solved and not failed(test)


def points(file):
    """(points, how many there are) of one notebook."""
    chapters = [path for path in CHAPTERS.glob("*.py") if path.stem in file.name]
    if not chapters:
        raise ValueError("no chapter has this name; rename it to CHAPTER-NAME.ipynb.")
    book = jupytext.read(chapters[0])
    untested = tagged(book, "untested")
    book.cells = [cell for cell in book.cells if cell not in untested]
    exercises = tagged(book, "exercise")
    written = tagged(jupytext.read(file), "exercise")
    if len(written) != len(exercises):
        raise ValueError(
            f'{len(written)} cells have the tag "exercise" instead of {len(exercises)}; '
            "put a lost tag back, or join a split cell."
        )
    for cell, by_student in zip(exercises, written):
        cell.source = by_student.source
    with tempfile.TemporaryDirectory() as folder:
        left_out = shutil.ignore_patterns("out", ".*", "answers", "commands.txt")
        copy = shutil.copytree(CHAPTERS.parents[1], f"{folder}/copy", ignore=left_out)
        NotebookClient(book, timeout=600, allow_errors=True).execute(cwd=copy)
    tests = tagged(book, "test")
    if any(failed(cell) for cell in book.cells if cell not in exercises + tests):
        raise ValueError("a cell that is not the student's has an error; run the chapter itself.")
    return sum(map(is_passed, tests)), len(tests)


def main(files):
    """Print a line for each file; whether each has its points."""
    all_read = True
    for file in files:
        try:
            print(file, *points(Path(file)))
        except Exception as error:  # Files of students: one bad file must not stop the others.
            all_read = False
            print(f"{file}: {error}".partition("\n")[0])
    return all_read


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
