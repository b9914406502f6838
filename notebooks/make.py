"""Makes the notebooks: python notebooks/make.py

nano_r1.py becomes nano_r1.ipynb: a call of `main` stands in the place of its command line. The
scripts of this folder and of chapters/ become the notebooks of their names. Each notebook begins
with first_cell.py.
"""

from pathlib import Path

import jupytext
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


if __name__ == "__main__":
    for path, book in make_notebooks().items():
        jupytext.write(book, path, fmt="ipynb")
