"""A lesson's file as HTML: prose cells as prose, code cells line by line, equations typeset."""

import ast
import hashlib
import html
import re
import sys
from pathlib import Path

from lesson import equations
from lesson.tracer import functions_of
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[2]


def stop(sentence):
    sys.exit(f"{sentence} The pages are as they were.")


def fingerprint(source):
    """Of the code alone: comments, docstrings and line numbers play no part."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant):
                del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def cells_of(source):
    """[(kind, number of its first line, its lines), ...]; a cell begins behind its `# %%`."""
    cells = []
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("# %%"):
            cells.append(("prose" if "[markdown]" in line else "code", number + 1, []))
        elif cells:
            cells[-1][2].append(line)
    return cells


BLOCK = "<!-- -->"  # before an equation of its own line


class Prose:
    """Prose cells as HTML, each block with the number of its line."""

    def __init__(self, file, source):
        self.file = file
        self.equations = equations.PROSE.get(file, {})
        for text in self.equations:
            if text not in source:
                stop(f"{file} no longer has the equation `{text}`: mend docs/lesson/equations.py.")
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

    def render(self, first, lines):
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
        tokens = self.markdown.parse(text)
        used = set()
        for token in tokens:
            number = first + token.map[0] if token.map else None
            if number and token.nesting != -1 and token.type != "inline" and number not in used:
                token.attrSet("id", f"L{number}")
                used.add(number)
            if token.type == "code_block":
                token.type = "html_block"
                token.content = self.block(token)
        found = self.markdown.renderer.render(tokens, self.markdown.options, {})
        # In one pass: an equation's text stands in what it becomes, too.
        plain = {html.escape(text): text for text in self.equations}
        known = "|".join(map(re.escape, sorted(plain, key=len, reverse=True)))
        return re.sub(known, lambda m: self.typeset(plain[m[0]], m), found) if known else found

    def typeset(self, text, match):
        block = match.string[: match.start()].endswith(BLOCK)
        return equations.typeset(self.equations[text], text, block=block)

    def block(self, token):
        """An indented block: an equation, or commands."""
        content = token.content.strip("\n")
        where = f' id="{token.attrs["id"]}"' if "id" in token.attrs else ""
        if content.strip() in self.equations:
            equation = html.escape(content.strip())
            return f'<div class="display" tabindex="0"{where}>{BLOCK}{equation}</div>\n'
        return f'<pre{where} tabindex="0">{html.escape(content)}</pre>\n'


def code_lines(file, source):
    """[HTML of each line]"""
    whole = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return whole.split("\n")


def line_html(number, line, code, file):
    indent = len(line) - len(line.lstrip())
    equation = equations.in_comment(line, file)
    math = f'<span class="beside" tabindex="0">{equation[1]}</span>' if equation else ""
    return (
        f'<div class="line" id="L{number}" data-line="{number}" style="--i:{indent}">'
        f'<a class="number" href="#L{number}" aria-label="line {number}" tabindex="-1">{number}</a>'
        f"<code>{code or ' '}</code>{math}</div>"
    )


def render(file, source):
    """The file as HTML sections of prose and code."""
    lines = source.splitlines()
    for text in equations.COMMENTS.get(file, {}):
        if not any((equations.in_comment(line, file) or [""])[0] == text for line in lines):
            stop(f"{file} no longer has the comment `# {text}`: mend docs/lesson/equations.py.")
    coded = code_lines(file, source)
    prose = Prose(file, source)
    sections = []
    for kind, first, cell in cells_of(source):
        if kind == "prose":
            sections.append([f'<div class="prose">{prose.render(first, cell)}</div>', ""])
            continue
        while cell and not cell[-1].strip():
            cell = cell[:-1]
        start = next(i for i, line in enumerate(cell) if line.strip())
        numbered = [(first + i, cell[i]) for i in range(start, len(cell))]
        rows = [line_html(n, line, coded[n - 1], file) for n, line in numbered]
        block = f'<div class="code" data-file="{file}">{"".join(rows)}</div>'
        if not sections or sections[-1][1]:
            sections.append(["", block])
        else:
            sections[-1][1] = block
    return "\n".join(f"<section>{text}{code}</section>" for text, code in sections)


def functions(file, source):
    """{"FILE:NAME": its lines and statements}, for the page."""
    found = {}
    for name, statements in functions_of(source).items():
        places = []
        for i, node in enumerate(statements.all):
            own = [line for line, at in statements.at.items() if at == i]
            places.append([min(own, default=node.lineno), max(own, default=node.lineno)])
        doc = ast.get_docstring(statements.node) or ""
        text = statements.node.body[0]
        found[f"{file}:{name}"] = {
            "first": statements.first,
            "last": statements.node.end_lineno,
            "doc": re.split(r"\n\n", doc)[0].replace("\n", " "),
            "docstring": [text.lineno, text.end_lineno] if doc else [0, 0],
            "statements": places,
        }
    return found
