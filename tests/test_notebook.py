"""The notebook is nano_r1.py, cell by cell; it is generated, never edited."""

import jupytext


def test_the_notebook_is_up_to_date():
    script, notebook = jupytext.read("nano_r1.py"), jupytext.read("notebooks/nano_r1.ipynb")
    cells = lambda book: [(cell.cell_type, cell.source) for cell in book.cells]
    again = "run: jupytext --to ipynb nano_r1.py -o notebooks/nano_r1.ipynb"
    assert cells(script) == cells(notebook), again


def test_pasted_into_a_notebook_nothing_runs_and_main_is_there():
    scope = {"__name__": "__main__"}  # a notebook's cells: no __file__
    for cell in jupytext.read("nano_r1.py").cells:
        if cell.cell_type == "code":
            exec(cell.source, scope)
    assert callable(scope["main"]) and scope["Config"](steps=20).steps == 20
