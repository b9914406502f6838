"""Makes the lesson of nano_r1.py and a run's record: python -m docs.make.lesson.make out/NAME PAGE

The page shows the lines of the file, from its top to its end, with the values of one real step
beside them; the verifier's lines stand after those that call it. The values are those of
out/NAME/lesson.json, which record.py has written with the same files.
"""

import html
import json
import math
import re
import sys
from pathlib import Path

import jupytext
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from docs.make.lesson.source import FILE, VERIFIER, functions_of
from nano_report.run import read_rows
from nano_report.viewer import fill

FOLDER = "../docs/make/lesson/page"
SCRIPTS = f"page/dom.js page/tokens.js page/table.js page/lines.js {FOLDER}/lesson.js"
STYLES = f"page/base.css {FOLDER}/lesson.css"
LETTERS = {FILE: "L", VERIFIER: "V"}  # of a line's id on the page
STEPS = [  # (title, file, function, the beginning of its line), of steps 1 to 9
    ("draw a problem", FILE, "rollout", "drawn = "),
    ("sample", FILE, "sample_and_reward", "completions = "),
    ("reward", VERIFIER, "reward", "return Reward"),
    ("advantage", FILE, "group_advantages", "return"),
    ("reference", FILE, "update", 'batch["ref_log_probs"]'),
    ("loss", FILE, "grpo_loss", "return"),
    ("AdamW", FILE, "update", "engine.step()"),
    ("new weights", FILE, "main", "sampler.sync(policy)"),
    ("log", FILE, "main", "metrics = parts.measure"),
]


# ---- The files


def sections_of(source):
    """[(title, Markdown, first line of the code, line after it)]."""
    sections = []
    for cell in jupytext.reads(source, "py:percent").cells:
        if cell.cell_type == "markdown":
            text = cell.source
        else:
            title = re.findall(r"^#+ (?:\d+\. )?(.+)", text, re.MULTILINE)[-1]
            first = 1 + source.count("\n", 0, source.index(cell.source))
            sections.append((title, text, first, first + len(cell.source.splitlines())))
    return sections


def prose(text):
    """Markdown as HTML, without its titles."""
    text = re.sub("^#.*", "", text, flags=re.MULTILINE)
    rendered = MarkdownIt("commonmark", {"html": False}).render(text)
    return f'<div class="prose">{rendered}</div>'.replace("<pre>", '<pre tabindex="0">')


def line_of(file, function, text):
    """The number of the last line of a function that begins with a text."""
    source = file.read_text()
    node = functions_of(source)[function]
    lines = source.splitlines()
    for number in range(node.end_lineno, node.lineno, -1):
        if lines[number - 1].strip().startswith(text):
            return number
    sys.exit(f"{function} has no line `{text}`: change docs/make/lesson/make.py.")


# ---- Values


def value_html(record, name, text, tokens):
    """A value. If each token has a value, a click opens the list of them."""
    label = f"<b>{html.escape(name)}</b> {html.escape(text)}"
    if not tokens:
        return f"<div>{label}</div>"
    cells = ""
    for token, number in zip(completion_of(record)["tokens"], tokens):
        cells += f"<li><code>{html.escape(repr(token)[1:-1])}</code>{number}</li>"
    return f'<details><summary>{label}</summary><ol tabindex="0">{cells}</ol></details>'


def number_of(text):
    """The number that record.py has written as a text."""
    return float(text.replace("−", "-"))


def completion_of(record):
    """The completion that is followed."""
    return record["table"]["completions"][record["place"] - 1]


def times_as_likely(record):
    """What the update has made of the completion's probability."""
    return math.exp(sum(completion_of(record)["change"]))


def values_of(record, file):
    """{line of a file: [[name, text, tokens]]}."""
    found = {int(line): shown for line, shown in record["values"][file.name].items()}
    if file == FILE:
        times = f"now {times_as_likely(record):.2f} times as likely"
        change = [f"{100 * math.expm1(x):+.1f}%" for x in completion_of(record)["change"]]
        found[line_of(FILE, "main", "batches = ")] = [["the completion:", times, change]]
    return found


def outline(record):
    """The nine steps as links to their lines, each with its value."""
    e = completion_of(record)
    metrics = record["metrics"]
    values = [
        record["table"]["title"],
        e["completion"].strip(),
        f"format {e['format_reward']:g} + answer {e['answer_reward']:g} = {e['reward']:g}",
        f"+{e['advantage']:.2f} in its group",  # which has no higher reward
        f"{e['length']} log-probs",
        f"−{e['advantage']:.2f} a token, + KL",
        f"rate {metrics['lr']:.2g}, gradient {metrics['grad_norm']:.2f}",
        f"the text: × {times_as_likely(record):.2f}",
        f"{metrics['reward/answer']:.0%} of the step correct",
    ]
    links = ""
    for number, ((title, file, *place), value) in enumerate(zip(STEPS, values), start=1):
        text = html.escape(value)
        line = f"{LETTERS[file]}{line_of(file, *place)}"
        links += f'<li><a href="#{line}"><b>{number}</b> {title}<code>{text}</code></a>'
    return links


# ---- Predictions


def predictions_of(record, values):
    """[{line, question, choices, answer, because}] in the order of the file.

    No line above a question tells its answer, and none asks for what the group's table shows.
    """
    advantage = f"{completion_of(record)['advantage']:.2f}"
    d = line_of(FILE, "k3", "d = ")
    total = sum(map(number_of, values[d][0][2]))
    asked = [
        (
            line_of(FILE, "group_advantages", "std = "),
            "Another group has the rewards 2, 2, 1, 1. What is the advantage of its first?",
            ["+0.50", "+0.87", "+1.00"],
            1,
            "The mean is 1.5 and the standard deviation, with n − 1, is 0.58: 0.5 / 0.58.",
        ),
        (
            line_of(FILE, "grpo_loss", "clipped = "),
            f"The ratio of each token is 1, and the advantage is +{advantage}. What is the loss of "
            "a token, without the KL penalty?",
            [f"−{advantage}", f"+{advantage}"],
            0,
            "It is minus the advantage: the update lowers the loss.",
        ),
        (
            d,
            f"The policy has had {record['step'] - 1} updates. On average, does it give these "
            "tokens a higher or a lower probability than the reference does?",
            ["higher", "lower"],
            int(total > 0),
            f"Over all tokens, the two log-probs differ by {abs(total):.2f} nats.",
        ),
        (
            line_of(FILE, "grpo_loss", "lengths = "),
            "Two completions have the same advantage. In which one does a token weigh more?",
            ["in the shorter one", "in the longer one", "the same in both"],
            0,
            "Each completion has the same weight, which its tokens share.",
        ),
    ]
    names = ("line", "question", "choices", "answer", "because")
    return [dict(zip(names, one)) for one in sorted(asked)]


# ---- The page


def code_html(file, record):
    """The HTML of each line with its values; the first is line 1."""
    source = file.read_text()
    values = values_of(record, file)
    highlighted = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    lines = [""]
    for number, code in enumerate(highlighted.split("\n"), start=1):
        shown = "".join(value_html(record, *one) for one in values.get(number, []))
        name = f"{LETTERS[file]}{number}"
        link = f'<a href="#{name}" tabindex="-1">{number}</a>'
        value = f'<div class="value">{shown}</div>'
        lines.append(f'<div class="line" id="{name}">{link}<code>{code}</code>{value}</div>')
    return lines


def folded(title, text):
    return f'<details class="rest"><summary>{title}</summary>{text}</details>'


def piece_html(lines, first, after):
    return f'<div class="code">{"".join(lines[first:after])}</div>'


def verifier_html(record):
    """The lines of the reward's functions that the step ran."""
    lines = code_html(VERIFIER, record)
    shown = "<h2>The verifier: step 3, countdown_rewards.py</h2>"
    for node in functions_of(VERIFIER.read_text()).values():
        places = range(node.lineno, node.end_lineno + 1)
        if any(int(line) in places for line in record["values"][VERIFIER.name]):
            shown += piece_html(lines, node.lineno, node.end_lineno + 1)
    return shown


def file_html(record):
    """The file from top to end. Folded: settings, machinery, main's preparation."""
    lines = code_html(FILE, record)
    source = FILE.read_text()
    main = functions_of(source)["main"].lineno
    loop = line_of(FILE, "main", "for step")
    start = line_of(FILE, "rollout", "return")  # the settings are before it
    end = line_of(FILE, "interval", "return")  # of what is measured: then comes the machinery
    found = []
    for title, text, first, after in sections_of(source):
        shown = prose(text)
        if first < main < after:
            before = piece_html(lines, main, loop)
            shown += piece_html(lines, first, main)
            shown += folded("The beginning of main: it prepares the run", before)
            first = loop
        shown += piece_html(lines, first, after)
        if start < after and first < end:
            found.append(f"<h2>{title}</h2>{shown}")
        else:
            found.append(folded(title, shown))
        if "rollout" in title:
            found.append(verifier_html(record))
    return "\n".join(found)


def page(record):
    """The page as text. The same files and record give the same page."""
    data = {
        "predictions": predictions_of(record, values_of(record, FILE)),
        "watched": record["watched"],
        "table": record["table"],
        "place": record["place"],
    }
    parts = {
        "outline": outline(record),
        "story": f"step {record['step']} of {record['steps']}. The page follows completion "
        f"{record['place']}, in the frame",
        "file": file_html(record),
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    return fill(f"{FOLDER}/lesson.html", SCRIPTS, STYLES, parts)


if __name__ == "__main__":
    path, output = sys.argv[1:]
    record = read_rows(f"{path}/lesson.json")[0]
    Path(output).write_text(page(record))
