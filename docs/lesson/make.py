"""Makes docs/lesson.html and docs/variants.html: python docs/lesson/make.py

The lessons' files with what each line computed in one real step of the default run. It takes some
minutes; --keep takes the records out of the pages as they are, which takes seconds: for a change of
comments, docstrings or the page itself.
"""

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from lesson import reading, sources

PAGES = {
    "nano_r1.py": ROOT / "docs" / "lesson.html",
    "variants.py": ROOT / "docs" / "variants.html",
}
SCRIPTS = ("values.js", "predict.js", "lines.js", "calls.js", "main.js")
LEAD = {
    "nano_r1.py": (
        "nano_r1, with the values of one step",
        "The file as it is, and beside each line what it computed in step {step} of {steps} of "
        "<code>python nano_r1.py --task countdown</code>: {prompts} prompts, {size} attempts at "
        "each. Click a line for all its values, and ▸ to open a call below its line. Six places "
        "ask for a prediction first.",
    ),
    "variants.py": (
        "One step under GRPO’s relatives",
        "The file as it is, and beside each line what it computed when step {step} of "
        "<code>python nano_r1.py --task countdown</code> was taken under one of GRPO’s relatives: "
        "the same weights, the same prompts, the same seeds. Choose a relative; ≠ marks what "
        "differs from GRPO.",
    ),
}


def page(file, record):
    """The page of a file as text: the same for the same file and record."""
    source = (ROOT / file).read_text(encoding="utf-8")
    lesson = (ROOT / "nano_r1.py").read_text(encoding="utf-8")
    known = [sources.fingerprint(source), sources.fingerprint(lesson)]
    if record["code"] != known:
        sources.stop(f"{file} is not the code that was recorded: run it without --keep.")
    others = "" if file == "nano_r1.py" else sources.render("nano_r1.py", lesson)
    payload = {
        "file": file,
        **record,
        "functions": sources.functions(file, source) | sources.functions("nano_r1.py", lesson),
        "lines": reading.lines("nano_r1.py", lesson) if file == "nano_r1.py" else {},
        "facts": [
            reading.Reading(run["call"], record["values"]).facts(record["size"])
            for run in record["runs"]
        ],
        "predictions": [],
    }
    if file == "nano_r1.py":
        payload["predictions"] = reading.predictions(file, source, record, payload["facts"][0])
    script = "\n".join((HERE / "page" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    title, lead = LEAD[file]
    runs = '<div id="runs"></div>' if len(record["runs"]) > 1 else ""
    parts = {
        "policy": f"default-src 'none'; script-src {sha256(script)}; style-src 'unsafe-inline'",
        "title": f"{title} · nano_r1",
        "name": names(file),
        "opening": f'<h1>{title}</h1><p class="lead">{lead.format(**record)}</p>{runs}',
        "file": sources.render(file, source),
        "others": f"<div hidden>{re.sub(' id=.L[0-9]+.', '', others)}</div>" if others else "",
        "footer": "Made by <code>python docs/lesson/make.py</code> of nano_r1, never by hand. "
        "Highlighted by Pygments, equations by latex2mathml.",
        "style": (HERE / "page" / "page.css").read_text(encoding="utf-8"),
        "script": script,
        # A `<` in a text of the model could end the element that the record is in.
        "record": json.dumps(payload, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = (HERE / "page" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def names(file):
    links = [
        f'<a href="{PAGES[name].name}"{" aria-current=page" if name == file else ""}>{name}</a>'
        for name in PAGES
    ]
    return " · ".join(links)


def sha256(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


RECORD = re.compile(r'<script type="application/json" id="record">(.*?)</script>', re.DOTALL)
ADDED = ("file", "functions", "lines", "facts", "predictions")  # by `page`


def payload_in(text):
    """All that a page has of its step."""
    return json.loads(RECORD.search(text)[1])


def record_in(text):
    """The record that a page was made of."""
    return {name: value for name, value in payload_in(text).items() if name not in ADDED}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the records of the pages")
    if parser.parse_args().keep:
        kept = [path for path in PAGES.values() if path.exists()]
        if not kept:
            sources.stop("There is no page to keep a record of: leave out --keep.")
        records = {
            file: record_in(path.read_text("utf-8")) for file, path in PAGES.items() if path in kept
        }
    else:
        from lesson import runs  # torch and the lessons: seconds

        records = runs.records()
    texts = {file: page(file, record) for file, record in records.items()}
    for file, text in texts.items():
        PAGES[file].write_text(text, encoding="utf-8")
        print(f"{PAGES[file].relative_to(ROOT)}: {len(text.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
