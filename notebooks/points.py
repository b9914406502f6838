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
    chapters = [path for path in CHAPTERS.glob("*.py") if file.name.startswith(path.stem)]
    if not chapters:
        raise ValueError("no chapter has this name; rename it to CHAPTER-NAME.ipynb.")
    book = jupytext.read(chapters[0])
    exercises = tagged(book, "exercise")
    written = tagged(jupytext.read(file), "exercise")
    if len(written) != len(exercises):
        raise ValueError('a cell has lost the tag "exercise"; put it back.')
    for cell, by_student in zip(exercises, written):
        cell.source = by_student.source
    NotebookClient(book, timeout=600, allow_errors=True).execute(cwd=CHAPTERS.parents[1])
    tests = tagged(book, "test")
    printed = [out.get("text", "") for cell in tests for out in cell.outputs]
    return sum(text.startswith("Correct") for text in printed), len(tests)


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
