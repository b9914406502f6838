"""Makes the notebooks from their scripts: python notebooks/make.py

Each script in this folder and in chapters/ becomes the notebook of its name. nano_r1.py becomes
nano_r1.ipynb, with two cells more: the first of all the notebooks, which finds the repository or
clones it, and a short run at the end.
"""

from pathlib import Path

import jupytext

ROOT = Path(__file__).parents[1]
SHORT_RUN = """# A short run:
# python nano_r1.py --task gsm8k --max_tokens 64 --prompts_per_step 16 --steps 12
main(Config(task="gsm8k", max_tokens=64, prompts_per_step=16, steps=12))"""


def make_notebooks():
    """{path from the repository's root: notebook}."""
    scripts = [ROOT / "notebooks" / "colab.py", *sorted(ROOT.glob("notebooks/chapters/*.py"))]
    books = {
        str(script.with_suffix(".ipynb").relative_to(ROOT)): jupytext.read(script)
        for script in scripts
    }
    first = next(cell for cell in books["notebooks/colab.ipynb"].cells if cell.cell_type == "code")
    text = (ROOT / "nano_r1.py").read_text()
    lesson = jupytext.reads(text.partition("# /// script")[0], fmt="py:percent")  # not uv's lines
    last = jupytext.reads(f"# %%\n{SHORT_RUN}", fmt="py:percent").cells
    lesson.cells = [lesson.cells[0], first, *lesson.cells[1:], *last]
    books["notebooks/nano_r1.ipynb"] = lesson
    for book in books.values():
        for number, cell in enumerate(book.cells):
            cell.id = (
                f"cell-{number}"  # otherwise random, and every notebook would differ each time
            )
    return books


if __name__ == "__main__":
    for path, book in make_notebooks().items():
        jupytext.write(book, ROOT / path, fmt="ipynb")
