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


def execute(path, directory, times=1):
    """Print the time and what libraries wrote on standard error; raises what a cell raises."""
    book = jupytext.read(path)
    start = time.monotonic()
    for cell in book.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = SHORT
    book.cells = [
        new_code_cell(cell.source)
        for _ in range(times)
        for cell in book.cells
        if cell.cell_type == "code"
    ]
    NotebookClient(
        book, timeout=1200, kernel_name="python3", resources={"metadata": {"path": directory}}
    ).execute()
    outputs = [output for cell in book.cells for output in cell.outputs]
    noise = "".join(output.text for output in outputs if output.get("name") == "stderr")
    seconds = time.monotonic() - start
    print(
        f"{path.name} from {directory}, {times} time(s): {seconds:.0f} s"
        f"{'; on standard error: ' * bool(noise)}{noise}"
    )
    print(book.cells[0].outputs[-1].text.strip(), flush=True)


print(sys.version)
for directory in (ROOT, ROOT / "notebooks"):
    execute(ROOT / "notebooks" / "colab.ipynb", str(directory), times=2)
for chapter in sorted(ROOT.glob("notebooks/chapters/*.ipynb")):
    execute(chapter, str(chapter.parent))
