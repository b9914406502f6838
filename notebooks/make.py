"""Makes the notebooks and runs them: python notebooks/make.py [NAME ...]; without names, all.

The scripts of this folder and of chapters/ become the notebooks of their names. Each begins with
first_cell.py. nano_r1.py becomes nano_r1.ipynb: its definitions are folded, and between them stand
the cells of showing.py, which show what was defined.
"""

import ast
import os
import re
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).parents[1]
FIRST = ROOT / "notebooks" / "first_cell.py"
SHOWING = ROOT / "notebooks" / "showing.py"
MACHINERY = "Machinery: samplers, engines, loading (a first reading can skip this cell)"


def make_notebooks():
    """{path: notebook}."""
    scripts = [ROOT / "notebooks" / "colab.py", *sorted(ROOT.glob("notebooks/chapters/*.py"))]
    books = {script.with_suffix(".ipynb"): jupytext.read(script) for script in scripts}
    books[SHOWING.with_name("nano_r1.ipynb")] = nano_r1_notebook()
    made = f"Made by `docs/make/all.sh` at commit {os.environ.get('COMMIT', '(not stated)')}."
    for book in books.values():
        first = new_code_cell(FIRST.read_text().strip())
        fold(first, "Find the repository, or download it")
        book.cells.insert(1, first)
        book.cells.append(new_markdown_cell(made))
        for number, cell in enumerate(book.cells):
            cell.id = f"cell-{number}"  # otherwise random: every notebook would differ each time
    return books


def nano_r1_notebook():
    """nano_r1.py with the cells of showing.py, each after the function that it names.

    These cells need samplers and engines, which stand below `main` in the file. In the notebook
    they come first, in one cell. Only the last section, which needs the functions above it, stays.
    """
    shown = {}  # {name of a function: cells}
    for cell in SHOWING.read_text().split("\n# %%")[2:]:
        name = re.search(r'after="(\w+)"', cell)[1]
        shown[name] = f"{shown.get(name, '')}\n# %%{cell}"
    source = (ROOT / "nano_r1.py").read_text().partition('\nif __name__ == "__main__"')[0]
    story, _, machinery = source.partition("\n# %% [markdown]\n# # The machinery\n")
    machinery, heading, last = machinery.rpartition("\n# %% [markdown]\n")
    lines = (story + heading + last).splitlines()
    for node in reversed(ast.parse("\n".join(lines)).body):
        if getattr(node, "name", None) in shown:
            lines.insert(node.end_lineno, f"{shown.pop(node.name)}\n# %%")
    if shown:
        sys.exit(f"nano_r1.py does not define {list(shown)}: change notebooks/showing.py.")
    book = jupytext.reads("\n".join(lines), "py:percent")
    book.cells = [cell for cell in book.cells if cell.source]
    for cell in book.cells:
        if not cell.metadata.pop("after", None) and cell.cell_type == "code":
            names = re.findall(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
            fold(cell, ", ".join(names) or "Imports")
    below_imports = new_code_cell(re.sub("^# %%.*\n", "", machinery, flags=re.MULTILINE))
    fold(below_imports, MACHINERY)
    book.cells.insert(2, below_imports)
    return book


def fold(cell, title):
    """Colab shows the title of such a cell, JupyterLab its first line."""
    cell.source = f"#@title {title}\n{cell.source}"
    cell.metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}


if __name__ == "__main__":
    for path, book in make_notebooks().items():
        if path.stem in (sys.argv[1:] or [path.stem]):
            print(path.name, flush=True)
            client = NotebookClient(book, timeout=3600, record_timing=False)
            client.execute(cwd=str(path.parent))
            for cell in book.cells:
                if cell.cell_type == "code":
                    cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            jupytext.write(book, path, fmt="ipynb")
