"""Makes the notebooks: python notebooks/make.py [NAME ...]; those named are run for their outputs.

nano_r1.py becomes nano_r1.ipynb: a call of `main` replaces its command line. The scripts of this
folder and of chapters/ become the notebooks of their names. Each notebook begins with
first_cell.py. A cell keeps what it printed until the notebook's code changes.
"""

import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).parents[1]
FIRST = ROOT / "notebooks" / "first_cell.py"
RUN = 'main(Config(task="gsm8k", max_tokens=64, steps=12))'


def make_notebooks():
    """{path: notebook}."""
    scripts = [ROOT / "notebooks" / "colab.py", *sorted(ROOT.glob("notebooks/chapters/*.py"))]
    books = {script.with_suffix(".ipynb"): jupytext.read(script) for script in scripts}
    lesson = (ROOT / "nano_r1.py").read_text().partition('\nif __name__ == "__main__"')[0]
    books[ROOT / "notebooks" / "nano_r1.ipynb"] = book = jupytext.reads(lesson, "py:percent")
    book.cells.append(new_code_cell(RUN))
    for book in books.values():
        book.cells.insert(1, new_code_cell(FIRST.read_text().strip()))
        for number, cell in enumerate(book.cells):
            cell.id = f"cell-{number}"  # otherwise random: every notebook would differ each time
    return books


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def add_outputs(book, path, run):
    """What the cells print: of a new run, or of the notebook at `path` if its code is the same."""
    if run:
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(book, timeout=3600, resources=where).execute()
    elif path.exists():
        before = code(jupytext.read(path))
        if [cell.source for cell in before] == [cell.source for cell in code(book)]:
            for cell, old in zip(code(book), before):
                cell.outputs = old.outputs
    for cell in code(book):
        cell.metadata.pop("execution", None)  # times of day
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]


if __name__ == "__main__":
    for path, book in make_notebooks().items():
        print(path.name, flush=True)
        add_outputs(book, path, path.stem in sys.argv)
        jupytext.write(book, path, fmt="ipynb")
