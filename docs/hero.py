"""The README's picture, of a default run's files: python -m docs.hero out/NAME PICTURE

It shows a held-out problem before training and after it, the first that went from
wrong to correct; one update (lesson/example.py chooses it); accuracy by step with its 95% interval.
"""

import itertools
import sys
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
from docs.lesson.example import choose_example, shade
from report.labels import PALETTE
from report.payload import pack_evaluations
from report.run import Run, title
from report.viewer import draw_accuracy

LINES = 8  # of a card, and characters of a line
WIDTH = 44.4
INK = PALETTE["ink"]
WORDS = PALETTE["muted"]
VERDICT = {True: ("✓", PALETTE["correct"], "up"), False: ("✗", PALETTE["wrong"], "down")}


def card(axis, heading, lines):
    """Lines of a monospace font, each [(text, its colour, the colour of its ground), ...]."""
    axis.set(xlim=(0, WIDTH), ylim=(-LINES - 0.2, 0), xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_color(PALETTE["rule"])
    axis.set_title(heading, loc="left", fontweight="bold", color=INK)
    for number, line in enumerate(lines):
        column = 0.8
        for text, colour, ground in line:
            box = {"facecolor": ground, "edgecolor": "none", "pad": 0.8}
            style = {"color": colour, "bbox": box, "family": "monospace", "fontsize": 10.7}
            axis.text(column, -number - 0.8, text, parse_math=False, **style)
            column += len(text)


def verdict(row):
    """Whether a completion is correct, and the verifier's reason: ✗ equals 138, not 53."""
    mark, colour, _ = VERDICT[row["answer_reward"] == 1]
    return [(f"{mark} {row['why'].partition(';')[0]}", colour, "none")]


def shortened(completion):
    """The lines of a completion, the middle ones left out."""
    lines = completion.strip().split("\n")
    if len(lines) > 6:
        lines[2:-3] = [f"... {len(lines) - 5} more lines"]
    return [[(line, INK, "none")] for line in lines]


def update_lines(one, room):
    """The token whose chance moved most, after up to `room` lines that end with the token's."""
    sign = VERDICT[one.correct][-1]
    at = one.gain.argmax() if sign == "up" else one.gain.argmin()
    tokens = [text.replace("\n", "↵") for text in one.texts]
    advantage = f", advantage {one.row['advantage']:+.2f}".replace("-", "−")
    lines = [[*verdict(one.row), (advantage, WORDS, "none")], []]
    search = itertools.takewhile(lambda pair: pair[0] != "</think>", zip(tokens, one.change))
    for token, change in itertools.islice(search, 1, None):
        lines[-1].append((token, INK, PALETTE.get(shade(change), "none")))
        if "↵" in token:
            lines.append([])
    number = 1 + "".join(tokens[1:at]).count("↵")  # of the token's line
    del lines[number + 1 :]
    del lines[1 : max(1, number + 1 - room)]
    words = " (end of line):" if tokens[at] == "↵" else ":"
    words += f" {one.before[at]:.0%} → {one.before[at] + one.gain[at]:.0%}"
    token = (tokens[at], INK, PALETTE.get(shade(one.change[at]), "none"))
    lines.append([("  → ", INK, "none"), token, (words, PALETTE[f"{sign}-line"], "none")])
    return [line for line in lines if line]


def draw(run, file):
    """The four cards."""
    example = choose_example(run)
    problems = pack_evaluations(run)["problems"]
    checked = [problem for problem in problems if " yes" in problem["rows"][0]["completion"]]
    problem = [*checked, *problems][0]  # one with a false yes before training, if there is any
    first, *_, last = [f"{one['eval/pass@1']:.0%}" for one in run.records if "eval/pass@1" in one]
    before, after = problem["rows"][0], problem["rows"][-1]
    made = [(problem["title"], WORDS, "none")]
    figure = Figure(figsize=(8.68, 5.0), facecolor="white")
    cards = figure.subplots(2, 2).flat
    figure.subplots_adjust(0.01, 0.1, 0.99, 0.94, 0.14, 0.16)
    lines = [made, *shortened(before["completion"]), verdict(before)]
    card(cards[0], f"1  Before training: {first} correct", lines)
    task = f"{title(example.up.row['problem'])} (2 of {run.group_size} shown)"
    lines = [[(task, WORDS, "none")], *update_lines(example.up, 2), *update_lines(example.down, 1)]
    card(cards[1], f"2  Step {example.step}: blue more likely, orange less", lines)
    lines = [made, *shortened(after["completion"]), verdict(after)]
    card(cards[2], f"3  After {after['step']} steps: {last} correct", lines)
    draw_accuracy(cards[3], run)
    cards[3].set_title("4  Accuracy by step", loc="left", fontweight="bold", color=INK)
    cards[3].yaxis.set_major_formatter("{x:.0%}")
    figure.savefig(file, dpi=200)


if __name__ == "__main__":
    draw(Run(sys.argv[1]), sys.argv[2])
