"""For the notebooks: install what is missing, touch nothing that is there, show attempts in full.

Colab has torch, transformers and numpy loaded or ready: another version would ask for a restart.
"""

import html
import importlib.metadata
import importlib.util
import itertools
import subprocess
import sys
from typing import NamedTuple

# What Colab's runtimes lack, by the name to import. Without dependencies: those are there.
ADDED = {"tyro": "tyro==1.0.17"}
if sys.platform == "linux":  # elsewhere torch's AdamW takes its place
    ADDED |= {
        "deepspeed": "deepspeed==0.19.8",
        "hjson": "hjson==3.1.0",
        "ninja": "ninja==1.13.2",
        "einops": "einops==0.8.2",
        "msgpack": "msgpack==1.2.4",
    }


def prepare():
    """Install what is missing; print the versions that were found."""
    missing = [pin for name, pin in ADDED.items() if importlib.util.find_spec(name) is None]
    if missing:
        print("Installing", ", ".join(missing), "...", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", *missing]
        subprocess.run(pip, check=True)
        importlib.invalidate_caches()
    names = ("torch", "transformers", "numpy", "deepspeed")
    found = [name for name in names if importlib.util.find_spec(name)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in found]
    print(f"Python {sys.version.split()[0]}, {', '.join(versions)}.")


class Attempt(NamedTuple):
    """A completion as it is shown: its text, whether it is right (None: nobody knows), and why."""

    text: str
    right: bool | None
    why: str


class Html(NamedTuple):
    """What a notebook shows as it is."""

    text: str

    def _repr_html_(self):
        return self.text


def attempts_table(groups, above=""):
    """{name: [Attempt]} in full: one group as a grid, two side by side; `above`: a sentence."""
    width = 50 if len(groups) > 1 else 25  # percent of the line
    cells = []
    for number, row in enumerate(itertools.zip_longest(*groups.values()), start=1):
        for name, attempt in zip(groups, row):
            if attempt:
                cells.append(attempt_cell(f"{name} {number}", attempt))
    columns = f"repeat(auto-fill, minmax(max(220px, {width - 2}%), 1fr))"
    grid = f"display: grid; grid-template-columns: {columns}; gap: 8px; align-items: stretch"
    return Html(f'<p><b>{html.escape(above)}</b></p><div style="{grid}">{"".join(cells)}</div>')


def attempt_cell(name, attempt):
    """One attempt with its line breaks, as HTML; what a model wrote is text and nothing else."""
    mark = {True: "✓ ", False: "✗ ", None: ""}[attempt.right]
    box = "border: 1px solid #8886; border-radius: 6px; padding: 8px; overflow-wrap: anywhere"
    box += "; font-size: 13px; display: grid; gap: 6px; align-content: start"
    text = "white-space: pre-wrap; font: 12px/1.4 monospace; max-height: 22em; overflow: auto"
    return (
        f'<div style="{box}"><div style="opacity: 0.75">{html.escape(name)}</div>'
        f'<div style="{text}" dir="ltr">{html.escape(attempt.text.strip())}</div>'
        f"<div><b>{mark}</b>{html.escape(attempt.why)}</div></div>"
    )
