"""Points of notebooks that students hand in: python notebooks/points.py FOLDER/*.ipynb

A file's name must begin with its chapter's name, such as 1_one_group-mary.ipynb. The chapter is run
afresh with the student's cells in the place of its exercises. Each test that then prints "Correct"
is one point. This runs the students' code: do it on a machine that has nothing else on it.
"""

import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient

CHAPTERS = Path(__file__).parent / "chapters"


def tagged(book, tag):
    """The cells with this tag."""
    return [cell for cell in book.cells if tag in cell.metadata.get("tags", [])]


def points(file):
    """(points, how many there are) of one notebook."""
    [chapter] = [path for path in CHAPTERS.glob("*.py") if Path(file).name.startswith(path.stem)]
    book = jupytext.read(chapter)
    written = tagged(jupytext.read(file), "exercise")
    for cell, by_student in zip(tagged(book, "exercise"), written, strict=True):
        cell.source = by_student.source
    NotebookClient(book, timeout=600, allow_errors=True).execute(cwd=CHAPTERS.parents[1])
    tests = tagged(book, "test")
    printed = [out.get("text", "") for cell in tests for out in cell.outputs]
    return sum(text.startswith("Correct") for text in printed), len(tests)


if __name__ == "__main__":
    for file in sys.argv[1:]:
        print(file, *points(file))
