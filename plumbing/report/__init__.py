"""The report of a run: every step, group, completion and token, in one HTML file for a browser.

    python -m plumbing.report out/NAME               # writes out/NAME/report.html
    python -m plumbing.report out/NAME out/OTHER     # two side by side: report_beside_OTHER.html
    show("out/NAME")                                 # in a notebook

read.py reads a run's directory, payload.py packs it, page/ is the page itself. The file needs no
network, and may be made of any run, also of an older one or of one that goes on.
"""

import base64
import hashlib
import html
import os
import re
from pathlib import Path

from plumbing.files import write_text
from plumbing.notebook import Html
from plumbing.report.payload import pack
from plumbing.report.read import read_run
from plumbing.settings import UserError

HERE = Path(__file__).parent
SCRIPTS = (
    "page/dom.js",
    "vendor/uPlot.iife.min.js",
    "page/data.js",
    "page/lab.js",
    "page/curves.js",
    "page/run.js",
    "page/loss.js",
    "page/pushed.js",
    "page/step.js",
    "page/tokens.js",
    "page/group.js",
    "page/problems.js",
    "page/keys.js",
    "page/main.js",
)
STYLES = ("vendor/uPlot.min.css", "page/page.css")
MEGABYTES = 10  # a file of more steps than fit has some of them, evenly chosen


def write(run_dirs, output=None, steps=None, megabytes=MEGABYTES):
    """Write the report of one run, or of two side by side. Returns its path.

    Args:
        output: by default report.html in the first run's directory.
        steps: whose completions are in it, as a list; None: all, or as many as fit, evenly chosen.
    Raises:
        UserError: no such run, none of these steps, no room to write.
    """
    beside = f"report_beside_{os.path.basename(os.path.abspath(run_dirs[-1]))}.html"
    output = output or os.path.join(run_dirs[0], "report.html" if len(run_dirs) == 1 else beside)
    write_text(output, page(run_dirs, steps, megabytes))
    return output


def show(run_dirs, steps=None, height=760, megabytes=2):
    """The same inside a notebook, of a directory or two; by default of a few steps, as they fit."""
    run_dirs = [run_dirs] if isinstance(run_dirs, str | os.PathLike) else list(run_dirs)
    text = html.escape(page(run_dirs, steps, megabytes))
    style = f"width: 100%; height: {height}px; border: 0"
    return Html(
        f'<div><iframe srcdoc="{text}" title="report of the run" style="{style}"></iframe></div>'
    )


def page(run_dirs, steps=None, megabytes=MEGABYTES):
    """The report as the text of an HTML page."""
    if not 1 <= len(run_dirs) <= 2:
        raise UserError(f"A report is of one run or of two side by side, not of {len(run_dirs)}.")
    runs = [read_run(str(path)) for path in run_dirs]
    head, blobs = pack(runs, steps, megabytes * 1e6)
    # Only these scripts may run, and nothing may be fetched, whatever a model has written.
    script, style = ("\n".join(map(read, names)) for names in (SCRIPTS, STYLES))
    policy = (
        f"default-src 'none'; script-src {sha256(script)}; style-src 'unsafe-inline'; img-src data:"
    )
    parts = {
        "policy": policy,
        "licence": read("vendor/uPlot.LICENSE"),
        "title": html.escape(" and ".join(run.name for run in runs)),
        "style": style,
        "script": script,
        # Base64 holds no `<`: none of the data can end the element it is in.
        "data": "\n".join(
            f'<script type="application/octet-stream" id="{name}">{blob}</script>'
            for name, blob in {"head": head, **blobs}.items()
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("page/page.html"))


def read(name):
    return (HERE / name).read_text("utf-8")


def sha256(text):
    """A script's or style's hash, as a content security policy has it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
