"""Tables of cases: a case a line, ` | ` between its columns, `# ` in front of a comment.

In a column ⏎ is a newline, ⟨99×ab⟩ is ab 99 times, EMPTY is the empty text, and \\u00a0 is the
character of that number. Spaces count inside a column, not at its ends: write \\u0020 there. A list
of texts is one line that goes on after each ` |` at a line's end.
"""

import re


def lines(table):
    return [line for line in table.strip().splitlines() if not line.startswith("# ")]


def columns(line, words=()):
    """The texts of a line or list, with each of the table's own `words` replaced by its text."""

    def read(text):
        for word, meaning in [*words, ("EMPTY", ""), ("⏎", "\n")]:
            text = text.replace(word, meaning)
        text = re.sub(r"⟨(\d+)×(.+?)⟩", lambda found: int(found[1]) * found[2], text)
        return re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)

    return [read(column.strip()) for column in re.split(r"\s\|\s", line)]
