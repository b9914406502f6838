"""Makes the notebooks and runs them: python notebooks/make.py [NAME ...]; without names, all.

nano_r1.py and the scripts of this folder and of chapters/ become the notebooks of their names. Each
begins with first_cell.py. With the ADDRESS in that file, README.md gets the links that open.
"""

import os
import re
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
FIRST = (FOLDER / "first_cell.py").read_text()
ADDRESS = re.search('^ADDRESS = "(.*)"', FIRST, re.MULTILINE)[1]
# What nano_r1.ipynb runs after the definitions. Word problems have short completions.
RUN = 'main(Config(task="gsm8k", max_tokens=64, steps=12))'
OPEN_FIRST = re.compile("(<!-- notebooks/make.py writes this -->\n).*?(\n<!-- -->)", re.DOTALL)


def make_notebooks():
    """{path: notebook}."""
    scripts = [FOLDER / "colab.py", ROOT / "nano_r1.py", *sorted(FOLDER.glob("chapters/*.py"))]
    made = f"Made by `docs/make/all.sh` at commit {os.environ.get('COMMIT', '(not stated)')}."
    books = {}
    for script in scripts:
        book = jupytext.read(script)
        book.cells.insert(1, new_code_cell(f"#@title Find the repository\n{FIRST.strip()}"))
        book.cells[1].metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}
        if script.name == "nano_r1.py":
            book.cells.append(new_code_cell(RUN, metadata={"tags": ["parameters"]}))
        book.cells.append(new_markdown_cell(made))
        for number, cell in enumerate(book.cells):
            cell.id = f"cell-{number}"  # otherwise random: every notebook would differ each time
        folder = FOLDER if script.parent == ROOT else script.parent
        books[folder / f"{script.stem}.ipynb"] = book
    return books


def with_address(readme, address):
    """README.md with links to the pages at an address: GitHub does not show them."""
    owner, name = address.rstrip("/").split("/")[-2:]
    pages = f"https://{owner}.github.io/{name}"
    colab = f"https://colab.research.google.com/github/{owner}/{name}/blob/main"
    first = (
        f"Start with [the report of the run below]({pages}/report_default_run.html), or\n"
        f"[the lesson]({pages}), which walks through nano_r1.py with the values of a real step.\n"
        f"[The notebook on Colab]({colab}/notebooks/colab.ipynb) needs no installation."
    )
    readme = OPEN_FIRST.sub(lambda found: found[1] + first + found[2], readme)
    return re.sub("git clone [^ ]+", f"git clone {address}", readme)


if __name__ == "__main__":
    if ADDRESS:
        readme = ROOT / "README.md"
        readme.write_text(with_address(readme.read_text("utf-8"), ADDRESS), "utf-8")
    for path, book in make_notebooks().items():
        if path.stem in (sys.argv[1:] or [path.stem]):
            print(path.name, flush=True)
            client = NotebookClient(book, timeout=3600, record_timing=False)
            client.execute(cwd=str(path.parent))
            for cell in book.cells:
                if cell.cell_type == "code":
                    cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            jupytext.write(book, path, fmt="ipynb")
