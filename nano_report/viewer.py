"""The report of a run: every step, group, completion and token, in one HTML file for a browser.

    python -m nano_report out/NAME      # writes out/NAME/report.html
    show("out/NAME")                    # in a notebook
    show_group(as_rows(episodes))       # one group's episodes, in a notebook

The report reads only a run's directory, even while the run is training. The page needs no network.
"""

import base64
import hashlib
import html
import os
import re
import shlex
from pathlib import Path

import tyro

from nano_report.payload import as_json, group_table, pack
from nano_report.run import Run, paired, read_rows

HERE = Path(__file__).parent
SCRIPTS = """page/dom.js page/tokens.js page/table.js page/chart.js page/lines.js page/data.js
page/run.js page/step.js page/group.js page/main.js"""
TABLE = "page/dom.js page/tokens.js page/table.js page/alone.js"
STYLES = "page/base.css page/page.css"


def write(path: tyro.conf.Positional[str]):
    """Write the report of a run into its directory. Open it in a browser.

    Args:
        path: The run's directory, out/NAME.

    Returns:
        The path of the report.

    Raises:
        ValueError: if there is no such run.
    """
    text = page(Run(path))
    output = os.path.join(path, "report.html")
    Path(f"{output}.hidden").write_text(text, "utf-8")
    os.replace(f"{output}.hidden", output)
    return output


def write_at_end(path):
    """Write the report of a run that has ended. Print its gains, and how to ask the model."""
    report = write(path)
    run = Run(path)
    files = list(run.evaluations.values())
    pairs = paired([read_rows(file) for file in files[:1] + files[-1:]])
    gains = [after["answer_reward"] - before["answer_reward"] for before, after in pairs]
    print(f"Held-out problems gained: {gains.count(1)}, lost: {gains.count(-1)}")
    print(f"Report, for a browser: {report}")
    flags = "--ask 4"
    for name in ("task", "prompt", "data"):
        if run.config.get(name):
            flags += f" --{name} {shlex.quote(run.config[name])}"
    print(f"To ask the model: python nano_eval.py {flags} \\\n    --model {path}/model")


def show(path):
    """Show the report of a run's directory below a notebook's cell."""
    return in_frame(page(Run(path)), "report of the run", 760)


def show_group(rows):
    """Show one group's rows of episodes/ as a table below a notebook's cell."""
    return in_frame(table_page(group_table(rows)), "one group", 640)


def in_frame(text, title, height):
    """A page below a notebook's cell."""
    from IPython.display import HTML

    return HTML(
        f'<div><iframe srcdoc="{html.escape(text)}" title="{title}" width="100%" '
        f'height="{height}"></iframe></div>'
    )


def table_page(table, scripts=TABLE, styles="page/base.css"):
    """A group of nano_report/payload.py as a page of its own."""
    data = as_json(table).replace("<", "\\u003c")
    return fill("page/table.html", scripts, styles, {"title": "one group", "group": data})


def page(run):
    """The report as the text of an HTML page."""
    # Base64 has no `<`, so no data can end its element.
    element = '<script type="application/octet-stream" id="{}">{}</script>'
    data = [element.format(*item) for item in pack(run).items()]
    parts = {"title": html.escape(run.name), "data": "\n".join(data)}
    return fill("page/page.html", SCRIPTS, STYLES, parts)


def fill(template, scripts, styles, parts):
    """Replace a template's {{names}}. Only these scripts run, and the page fetches nothing."""
    script, style = ["\n".join(map(read, names.split())) for names in (scripts, styles)]
    policy = f"default-src 'none'; script-src {sha256(script)}; style-src {sha256(style)}"
    parts |= {"script": script, "style": style, "policy": policy}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read(template))


def read(name):
    return (HERE / name).read_text("utf-8")


def sha256(text):
    """The hash of a script or style, as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
