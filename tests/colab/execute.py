"""Runs every notebook as a reader would: python tests/colab/execute.py, called by tests/colab/run

From the repository's root and from notebooks/: the Colab notebook twice in one kernel, a few steps
instead of its minutes; each chapter in a kernel of its own.
"""

import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).parents[2]
SHORT = "steps, short_steps, questions, eval_problems = 3, 1, 4, 16"


def execute(path, directory, times=1, parameters=None):
    """Print the time and what libraries wrote on standard error; raises what a cell raises."""
    book = jupytext.read(path)
    start = time.monotonic()
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell in cells:
        if parameters and "parameters" in cell.metadata.get("tags", []):
            cell.source = parameters
    book.cells = [new_code_cell(cell.source) for cell in cells * times]
    where = {"metadata": {"path": directory}}
    NotebookClient(book, timeout=1200, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in book.cells for output in cell.outputs]
    noise = "".join(output.text for output in outputs if output.get("name") == "stderr")
    print(
        f"{path.name} from {directory}, {times} time(s): {time.monotonic() - start:.0f} s {noise}"
    )
    print(book.cells[0].outputs[-1].text.strip(), flush=True)


print(sys.version)
for directory in (ROOT, ROOT / "notebooks"):
    execute(ROOT / "notebooks" / "colab.ipynb", str(directory), times=2, parameters=SHORT)
for chapter in sorted(ROOT.glob("notebooks/chapters/*.ipynb")):
    execute(chapter, str(chapter.parent))
