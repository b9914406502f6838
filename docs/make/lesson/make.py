"""Makes the lesson of nano_r1.py and a run's record: python -m docs.make.lesson.make out/NAME PAGE

The page shows the lines of the file with the values of one real step beside them. It begins with
the loop of `main`. The functions follow in the order in which the step called them, then the rest
of the file. The values are those of out/NAME/lesson.json, which record.py has written with the same
nano_r1.py.
"""

import ast
import html
import json
import math
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from docs.make.lesson.equations import EQUATIONS
from docs.make.lesson.example import shade
from docs.make.lesson.source import FILE, functions_of, statements_of
from nano_report.run import read_rows
from nano_report.viewer import fill

SCRIPTS = "page/dom.js page/tokens.js page/table.js ../docs/make/lesson/page/lesson.js"
STYLES = "page/base.css ../docs/make/lesson/page/lesson.css"


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


def sections_of(source):
    """[[the lines of its prose, its pieces of code, its title]].

    A piece (first line, line after it) ends with a function or class.
    """
    sections = []
    defined = [node for node in ast.parse(source).body if hasattr(node, "name")]
    for is_prose, first, lines in cells_of(source):
        if is_prose:
            title = [line.strip("# ") for line in lines if line.startswith("# #")][-1]
            sections.append([lines, [], title])
            continue
        end = first + len(lines)
        ends = [node.end_lineno + 1 for node in defined if first <= node.lineno < end]
        for last in [*ends[:-1], end]:
            sections[-1][1].append((first, last))
            first = last
    return sections


def prose(lines):
    """A Markdown cell as HTML with its equations typeset. The page's own title is the only <h1>."""
    markdown = MarkdownIt("commonmark", {"html": False})
    tokens = markdown.parse("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    for token in tokens:
        if token.type == "code_block" and token.content.strip() in EQUATIONS:
            token.type = "html_block"
            token.content = f'<div tabindex="0">{equation(token.content.strip(), "block")}</div>\n'
        if token.tag == "h1":
            token.tag = "h2"
        for part in token.children or []:
            if part.type == "text":
                part.type = "html_inline"
                part.content = typeset(part.content)
    text = markdown.renderer.render(tokens, markdown.options, {})
    return f'<div class="prose">{text}</div>'.replace("<pre>", '<pre tabindex="0">')


def typeset(text):
    """A text as HTML with its equations and symbols typeset."""
    within = "|".join(rf"(?<!\w){re.escape(plain)}(?!\w)" for plain in EQUATIONS)
    pieces = re.split(f"({within})", text)
    return "".join(equation(p, "inline") if p in EQUATIONS else html.escape(p) for p in pieces)


def highlighted(source):
    """[HTML of each line]; the name of a function that is called links to it."""
    text = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    dot = r'<span class="o">\.</span>'
    free = rf'(?:(?<!{dot})|(?<=<span class="n">parts</span>{dot}))'  # no method, or main's part
    for name, node in functions_of(source).items():
        called = rf'{free}<span class="n">{name}</span>(?=<span class="p">\()'
        text = re.sub(called, f'<a href="#L{node.lineno}">{name}</a>', text)
    return text.split("\n")


def folds_of(source):
    """{first line: (last line, summary)}: what stands around the loop of `main`."""
    main = functions_of(source)["main"]
    loop = next(node for node in statements_of(main) if isinstance(node, ast.For))
    [piece] = [
        p for _, pieces, _ in sections_of(source) for p in pieces if loop.lineno in range(*p)
    ]
    return {
        piece[0]: (loop.lineno - 1, "The beginning of <code>main</code>: it prepares the run"),
        loop.end_lineno + 1: (main.end_lineno, "The end of <code>main</code>: it saves the model"),
    }


# ---- Values


def value_html(record, name, text, tokens):
    """A value. If each token has a value, a click opens the list of them."""
    label = f"<b>{html.escape(name)}</b> {html.escape(text)}"
    if not tokens:
        return f"<div>{label}</div>"
    cells = []
    for piece, number in zip(record["pieces"], tokens):
        colour = ""
        if name == CHANGE:
            colour = f' class="{shade(number)}"'
            number = f"{100 * math.expm1(number):+.1f}%".replace("-", "−")
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
    changes = attempt_of(record)["change"]
    times = f"now {math.exp(sum(changes)):.2f} times as likely"
    found[line_of(source, "main", "batches = ")] = [[CHANGE, times, changes]]
    return found


CHANGE = "the completion:"


def attempt_of(record):
    """The completion that is followed."""
    return record["table"]["attempts"][record["place"] - 1]


# ---- Predictions


def line_of(source, function, text):
    """The number of the first line of a function that begins with a text."""
    node = functions_of(source)[function]
    lines = source.splitlines()
    for number in range(node.lineno, node.end_lineno + 1):
        if lines[number - 1].strip().startswith(text):
            return number
    sys.exit(f"{function} of nano_r1.py has no line `{text}`: change docs/make/lesson/make.py.")


def predictions_of(source, record, values):
    """[{line, question, choices, answer, because}] in the order of the calls.

    The page begins with the group's table. So no question asks for a reward, an advantage or a
    change of a probability.
    """
    d = line_of(source, "grpo_loss", "d = batch")
    distances = [float(x.replace("−", "-")) for x in values[d][0][2]]
    mean = f"{sum(distances) / len(distances):.3f}".replace("-", "−")
    asked = [
        (
            line_of(source, "group_advantages", "std = "),
            "If all rewards of a group are equal, what are its advantages?",
            ["0", "1", "not defined"],
            0,
            "The difference from the mean is 0, and the small constant keeps the divisor above 0.",
        ),
        (
            line_of(source, "collate", "mask = padded"),
            "Do the tokens of the prompt count in the loss?",
            ["yes", "no"],
            1,
            "The mask is 1 only at the tokens that the model wrote.",
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
            "The advantage is positive. What is the sign of each token's loss?",
            ["positive", "0", "negative"],
            2,
            "At ratio 1 a token's loss is minus the advantage.",
        ),
        (
            d,
            f"The policy has had {record['step'] - 1} updates. On average, does it give these "
            "tokens a higher or a lower probability than the reference does?",
            ["higher", "lower"],
            0 if sum(distances) < 0 else 1,
            f"The mean of d is {mean} nats per token.",
        ),
        (
            line_of(source, "grpo_loss", "lengths = "),
            "Two completions have the same advantage. In which one does a token weigh more?",
            ["in the shorter one", "in the longer one", "the same in both"],
            0,
            "Each completion has the same weight, which its tokens share.",
        ),
    ]
    names = ("line", "question", "choices", "answer", "because")
    return [dict(zip(names, one)) for one in asked]


# ---- The page


def code_html(source, record):
    """{line: its HTML}, with its value, and with folds begun and ended."""
    values = values_by_line(source, record)
    folds = folds_of(source)
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
        waits = [line for line in asked if here and here[0].lineno < line <= number]
        ask = f' data-ask="{asked.index(max(waits))}"' if waits else ""
        line = (
            f'<div class="line" id="L{number}"><a href="#L{number}" tabindex="-1">{number}</a>'
            f'<code>{code}</code><div class="value"{ask}>{math}{shown}</div></div>'
        )
        if number in folds:
            last, name = folds[number]
            ends.add(last)
            line = f"<details><summary>{name} ({last - number + 1} lines)</summary>{line}"
        lines[number] = line + "</details>" * (number in ends)
    return lines


def file_html(source, record):
    """The file: its algorithm in the order of the calls, then the rest, each section folded."""
    code = code_html(source, record)
    lines = {name: node.lineno for name, node in functions_of(source).items()}
    sections = sections_of(source)
    story = []  # HTML
    for line in [lines[called] for called in record["values"]]:
        for section in sections[2:8]:  # 2. to 7.
            for piece in [piece for piece in section[1] if line in range(*piece)]:
                if section[0]:
                    story.append(prose(section[0]))
                    section[0].clear()
                story.append(piece_html(code, piece))
                section[1].remove(piece)
    story.append("<h2>The rest of the file</h2>")
    for text, pieces, title in sections:
        if pieces:
            parts = [prose(text), *[piece_html(code, piece) for piece in pieces]]
            summary = f"<summary>{title}</summary>"
            story.append(f'<details class="rest">{summary}{"".join(parts)}</details>')
    return "\n".join(story)


def piece_html(code, piece):
    """A piece of code without the empty lines around it."""
    lines = "".join(code[number] for number in range(*piece))
    lines = re.sub(f"^({EMPTY})+|({EMPTY})+$", "", lines)
    return f'<div class="code">{lines}</div>'


EMPTY = '<div class="line"[^>]*><a [^>]*>\\d+</a><code></code><div class="value"></div></div>'


def outline(source):
    """The nine steps of the header as links, each to its own place: a function whose docstring
    names the step, else the last line that begins with the step's number.
    """
    links = []
    lines = source.splitlines()
    for number, text in re.findall(r"^#  (\d)\. (.+?)(?: o_1|[.:,;])", source, re.MULTILINE):
        places = []
        for place, line in enumerate(lines, start=1):
            if line.strip().startswith(f'"""Step {number}:'):
                places = [place - 1]
                break
            if line.startswith("  ") and line.strip().startswith(f"# {number}. "):
                places.append(place)
        links.append(f'<li><a href="#L{places[-1]}"><b>{number}</b> <span>{text}</span></a></li>')
    return "".join(links)


def page(source, record):
    """The page as text. The same file and record give the same page."""
    asked = predictions_of(source, record, values_by_line(source, record))
    loop = line_of(source, "main", "for step")
    about = f"Eight attempts at one problem, in step {record['step']} of {record['steps']}."
    follows = f"This page follows attempt {record['place']}, in the frame."
    parts = {
        "title": "nano_r1, with the values of one step",
        "outline": outline(source),
        "story": f"{about} {follows}",
        "file": file_html(source, record),
        "predictions": json.dumps(asked).replace("<", "\\u003c"),
        "group": json.dumps(record["table"]).replace("<", "\\u003c"),
        "place": str(record["place"]),
        "loop": str(loop),
    }
    return fill("../docs/make/lesson/page/lesson.html", SCRIPTS, STYLES, parts)


if __name__ == "__main__":
    path, output = sys.argv[1:]
    record = read_rows(f"{path}/lesson.json")[0]
    Path(output).write_text(page(FILE.read_text(), record))
