"""Makes the lesson of nano_r1.py and a run's record: python -m docs.lesson.make out/NAME PAGE

The page shows the file as it is, with the values of one real step beside its lines. They are those
of out/NAME/lesson.json, which record.py has written with the same nano_r1.py.
"""

import ast
import html
import json
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from docs.lesson.equations import EQUATIONS
from docs.lesson.example import shade
from docs.lesson.source import FILE, functions_of, statements_of
from report.run import read_rows
from report.viewer import fill

SCRIPTS = "page/dom.js ../docs/lesson/page/lesson.js"
STYLES = "page/base.css ../docs/lesson/page/lesson.css"


# ---- Prose and code


def equation(text, display):
    """MathML, with the plain text for readers who do not see it."""
    math = convert(EQUATIONS[text], display=display)
    return math.replace("<math ", f'<math alttext="{html.escape(text)}" ', 1)


def cells_of(source):
    """[(whether it is prose, number of its first line, its lines)]."""
    cells = []
    for number, line in enumerate(source.splitlines(), start=1):
        if line.startswith("# %%"):
            cells.append(("[markdown]" in line, number + 1, []))
        else:
            cells[-1][2].append(line)
    return cells


def prose(lines):
    """A Markdown cell as HTML with its equations typeset."""
    markdown = MarkdownIt("commonmark", {"html": False})
    tokens = markdown.parse("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    for token in tokens:
        if token.type == "code_block" and token.content.strip() in EQUATIONS:
            token.type = "html_block"
            token.content = f'<div tabindex="0">{equation(token.content.strip(), "block")}</div>\n'
    text = markdown.renderer.render(tokens, markdown.options, {})
    within = "|".join(re.escape(plain) for plain in EQUATIONS)  # a sentence, not an attribute
    text = re.sub(f'(?<!")(?:{within})', lambda match: equation(match[0], "inline"), text)
    return text.replace("<pre>", '<pre tabindex="0">')


def highlighted(source):
    """[HTML of each line]; the name of a function that is called links to it."""
    text = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    dot = r'<span class="o">\.</span>'
    free = rf'(?:(?<!{dot})|(?<=<span class="n">parts</span>{dot}))'  # no method, or main's part
    for name, node in functions_of(source).items():
        called = rf'{free}<span class="n">{name}</span>(?=<span class="p">\()'
        text = re.sub(called, f'<a href="#L{node.lineno}">{name}</a>', text)
    return text.split("\n")


def folds_of(source, values):
    """{first line: (last line, name)} of the classes and functions of which no line ran."""
    functions = functions_of(source)
    ran = {name for name in functions if values.get(name)}
    folds = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inside = [name for name in functions if name.split(".")[0] == node.name]
            idle = {name: functions[name] for name in inside if name not in ran}
            if len(idle) == len(inside):
                idle = {node.name: node}
            for name, one in idle.items():
                first = min([one.lineno, *[decorator.lineno for decorator in one.decorator_list]])
                folds[first] = (one.end_lineno, name)
    return folds


# ---- Values


def value_html(record, name, text, tokens):
    """A value. If each token has a value, a click opens the list of them."""
    label = f"<b>{html.escape(name)}</b> {html.escape(text)}"
    if not tokens:
        return f"<div>{label}</div>"
    cells = []
    for piece, number in zip(record["pieces"], tokens):
        colour = f' class="{shade(float(number))}"' if name == CHANGE else ""
        cells.append(f"<li{colour}><code>{html.escape(repr(piece)[1:-1])}</code>{number}</li>")
    cells = "".join(cells)
    return f'<details><summary>{label}</summary><ol tabindex="0">{cells}</ol></details>'


def values_by_line(source, record):
    """{line: [[name, text, tokens]]}."""
    found = {}
    for function, node in functions_of(source).items():
        for number, statement in enumerate(statements_of(node)):
            shown = record["values"].get(function, {}).get(str(number))
            if shown:
                found[statement.lineno] = shown
    total = sum(record["changes"])
    line = line_of(source, "main", "batches = ")
    changes = [f"{change:+.4f}" for change in record["changes"]]
    found[line] = [[CHANGE, f"{total:+.3f} nats in all", changes]]
    return found


CHANGE = "change of its log-prob"


# ---- Predictions


def line_of(source, function, text):
    """The number of the first line of a function that begins with a text."""
    node = functions_of(source)[function]
    lines = source.splitlines()
    for number in range(node.lineno, node.end_lineno + 1):
        if lines[number - 1].strip().startswith(text):
            return number
    sys.exit(f"{function} of nano_r1.py has no line `{text}`: change docs/lesson/make.py.")


def predictions_of(source, record, values):
    """[{line, question, choices, answer, because}] in the order of the page."""
    row = record["rows"][record["place"] - 1]
    rewards = ", ".join(f"{one['reward']:g}" for one in record["rows"])
    signs = ["positive", "0", "negative"]
    d = line_of(source, "grpo_loss", "d = batch")
    distances = [float(x.replace("−", "-")) for x in values[d][0][2]]
    mean = f"{sum(distances) / len(distances):.3f}".replace("-", "−")
    further = sum(distances) < 0
    asked = [
        (
            line_of(source, "group_advantages", "return"),
            f"The rewards of the group are {rewards}. Completion {record['place']} has reward "
            f"{row['reward']:g}. What is the sign of its advantage?",
            signs,
            0 if row["advantage"] > 0 else 2,
            "The completion's reward is above the mean of the group.",
        ),
        (
            line_of(source, "grpo_loss", "ratio = "),
            "Each batch has one update, and pi_old is the policy before that update. Is the ratio "
            "of a token below 1, exactly 1, or above 1?",
            ["below 1", "exactly 1", "above 1"],
            1,
            "The policy is still the one that sampled. Only the gradient of the ratio matters.",
        ),
        (
            line_of(source, "grpo_loss", "loss = -torch"),
            "What is the sign of each token's loss?",
            signs,
            2 if row["advantage"] > 0 else 0,
            "At ratio 1 a token's loss is minus the advantage.",
        ),
        (
            d,
            f"The policy has had {record['step'] - 1} updates. On average, does it give these "
            "tokens a higher or a lower probability than the reference does?",
            ["higher", "lower"],
            0 if further else 1,
            f"The mean of d is {mean} nats per token.",
        ),
        (
            line_of(source, "main", "batches = "),
            "Is this completion more or less likely after the update than before?",
            ["more likely", "less likely"],
            0 if sum(record["changes"]) > 0 else 1,
            "Open the value to see each token's change. One update comes from all completions, so "
            "those that share a token pull at it together.",
        ),
    ]
    names = ("line", "question", "choices", "answer", "because")
    return [dict(zip(names, one)) for one in sorted(asked)]


# ---- The page


def code_html(source, record):
    """{line: its HTML}, with its value, and with folds begun and ended."""
    values = values_by_line(source, record)
    folds = folds_of(source, record["values"])
    asked = [one["line"] for one in predictions_of(source, record, values)]
    functions = functions_of(source).values()
    lines = {}
    ends = set()
    for number, code in enumerate(highlighted(source)[: len(source.splitlines())], start=1):
        comment = re.fullmatch(r"\s*# (.+?)(?:   .*)?", source.splitlines()[number - 1])
        math = equation(comment[1], "inline") if comment and comment[1] in EQUATIONS else ""
        shown = "".join(value_html(record, *one) for one in values.get(number, []))
        # Below a prediction the function's values also wait for the answer.
        here = [node for node in functions if node.lineno <= number <= node.end_lineno]
        waits = [i for i, line in enumerate(asked) if here and here[0].lineno < line <= number]
        ask = f' data-ask="{waits[-1]}"' if waits else ""
        line = (
            f'<div class="line" id="L{number}"><a href="#L{number}">{number}</a><code>{code}</code>'
            f'<div class="value"{ask}>{math}{shown}</div></div>'
        )
        if number in folds:
            last, name = folds[number]
            ends.add(last)
            count = f"{last - number + 1} lines; none of them ran in this step"
            line = f"<details><summary><code>{name}</code> {count}</summary>{line}"
        lines[number] = line + "</details>" * (number in ends)
    return lines


def outline(source):
    """The nine steps of the header as links to the lines of `main` that name them."""
    links = []
    main = functions_of(source)["main"]
    lines = source.splitlines()
    for number, text in re.findall(r"^#  (\d)\. (.+?)(?: o_1|[.:,;])", source, re.MULTILINE):
        for line in range(main.lineno, main.end_lineno + 1):
            if f" {number}. " in lines[line - 1]:
                links.append(f'<li><a href="#L{line}">{text}</a></li>')
    return "".join(links)


def story(record):
    """The group, and the completion that is followed."""
    row = record["rows"][record["place"] - 1]
    rewards = [one["reward"] for one in record["rows"]]  # 0 to 2
    cells = [f'<span class="cell level-{round(2 * r)}">{r:g}</span>' for r in rewards]
    cells[record["place"] - 1] = f"<mark>{cells[record['place'] - 1]}</mark>"
    nums = ", ".join(map(str, row["problem"]["nums"]))
    return (
        f"<p>Step {record['step']} of {record['steps']}, group {record['group']}: make "
        f"{row['problem']['target']} from {nums}.</p><p>Rewards of its {len(cells)} completions "
        f"(format, 0 to 1, plus 1 if correct): "
        f'<span class="strip">{"".join(cells)}</span></p><p>This page follows completion '
        f"{record['place']} ({row['why']}):</p><pre>{html.escape(row['completion'].strip())}</pre>"
    )


def page(source, record):
    """The page as text. The same file and record give the same page."""
    code = code_html(source, record)
    sections = []
    for is_prose, first, lines in cells_of(source):
        if is_prose:
            sections.append(f'<div class="prose">{prose(lines)}</div>')
        else:
            rows = [code[number] for number in range(first, first + len(lines))]
            sections.append(f'<div class="code">{"".join(rows)}</div>')
    asked = predictions_of(source, record, values_by_line(source, record))
    parts = {
        "title": "nano_r1, with the values of one step",
        "outline": outline(source),
        "story": story(record),
        "file": "\n".join(sections),
        "predictions": json.dumps(asked).replace("<", "\\u003c"),
        "loop": str(functions_of(source)["main"].lineno),
    }
    return fill("../docs/lesson/page/lesson.html", SCRIPTS, STYLES, parts)


if __name__ == "__main__":
    path, output = sys.argv[1:]
    record = read_rows(f"{path}/lesson.json")[0]
    Path(output).write_text(page(FILE.read_text(), record))
