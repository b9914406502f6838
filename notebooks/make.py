"""Makes the notebooks and runs them: python notebooks/make.py [NAME ...]; without names, all.

The scripts of this folder and of chapters/ become the notebooks of their names. Each begins with
first_cell.py. nano_r1.py becomes nano_r1.ipynb: its definitions are folded, and between them stand
the cells of showing.py, which show what was defined.
"""

import ast
import os
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
    made = f"Made by `docs/make.sh` at commit {os.environ.get('COMMIT', '(not stated)')}."
    for book in books.values():
        book.cells.insert(1, new_code_cell(FIRST.read_text().strip()))
        book.cells.append(new_markdown_cell(made))
        for number, cell in enumerate(book.cells):
            cell.id = f"cell-{number}"  # otherwise random: every notebook would differ each time
    return books


def nano_r1_notebook():
    """nano_r1.py with the cells of showing.py, each after the function that it names.

    These cells need samplers and engines, which stand below `main` in the file. In the notebook
    they come first, in one cell. Only `Parts`, which needs the functions above it, stays below.
    """
    source = (ROOT / "nano_r1.py").read_text().partition('\nif __name__ == "__main__"')[0]
    cells = source.split("\n# %%")
    loop = next(i for i, cell in enumerate(cells) if "\ndef main(" in cell)
    parts = next(i for i, cell in enumerate(cells) if "\nclass Parts" in cell) - 1  # its heading
    machinery = [cell.partition("\n")[2] for cell in cells[loop + 1 : parts]]
    del cells[loop + 1 : parts]
    shown = {}  # {name of a function: cells}
    for cell in jupytext.read(SHOWING).cells[1:]:
        shown.setdefault(cell.metadata.pop("after"), []).append(cell)
    book = jupytext.reads("\n# %%".join(cells), "py:percent")
    made = []
    for cell in book.cells:
        made += split(cell.source, shown) if cell.cell_type == "code" else [cell]
    made.insert(2, folded(MACHINERY, "\n".join(machinery)))  # below the imports
    book.cells = made
    if shown:
        sys.exit(f"nano_r1.py does not define {', '.join(shown)}: change notebooks/showing.py.")
    return book


def split(source, shown):
    """A cell's definitions, folded; the cells of `shown` are taken out and stand between them."""
    cells = []
    names = []
    lines = source.splitlines()
    start = 0
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        if names and names[-1] in shown:
            cells.append(folded(", ".join(names), "\n".join(lines[start : node.end_lineno])))
            cells += shown.pop(names[-1])
            names = []
            start = node.end_lineno
    rest = "\n".join(lines[start:])
    if rest.strip():
        cells.append(folded(", ".join(names) or "Imports", rest))
    return cells


def folded(title, source):
    """A cell of which Colab shows the title and JupyterLab the first line."""
    metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}
    return new_code_cell(f"#@title {title}\n{source.strip()}", metadata=metadata)


if __name__ == "__main__":
    for path, book in make_notebooks().items():
        if path.stem not in (sys.argv[1:] or [path.stem]):
            continue
        print(path.name, flush=True)
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(book, timeout=3600, resources=where).execute()
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.metadata.pop("execution", None)  # times of day
                cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        jupytext.write(book, path, fmt="ipynb")
