"""card.png: a run in one picture of 1200 x 630 pixels, to show to others."""

import math

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from nano_report.labels import PALETTE
from nano_report.run import paired, read_rows, title

FONTS = f"{matplotlib.get_data_path()}/fonts/ttf/DejaVu"
PLAIN = ImageFont.Layout.BASIC  # the other one fails at some control characters
WALL = 540  # pixels: the width of the squares of an evaluation; they are half as high
LINES = 7  # of a completion, and their letters
LETTERS = 60


def where(run):
    """How long the run has trained, and on what: the machine on which this is called."""
    import torch

    minutes = sum(record.get("time/step", 0) for record in run.records) / 60
    machine = f"{torch.get_num_threads()} CPU cores"
    if torch.cuda.is_available() and run.config.get("device") != "cpu":
        machine = torch.cuda.get_device_name()
    return f"{minutes:.1f} minutes of training on {machine}"


def draw_card(run, file):
    """Draw the first and last evaluation of a `run.Run`: every problem, and one to read."""
    shares = [record["eval/pass@1"] for record in run.records if "eval/pass@1" in record]
    if not shares or not run.evaluations:
        return
    card = Image.new("RGB", (1200, 630), PALETTE["paper"])
    draw = ImageDraw.Draw(card)

    def put(x, y, text, color="ink", size=15, face="Sans"):
        font = ImageFont.truetype(f"{FONTS}{face}.ttf", size, layout_engine=PLAIN)
        draw.text((x, y), text, PALETTE[color], font, spacing=5)

    steps = [min(run.evaluations), max(run.evaluations)]
    evaluations = [read_rows(run.evaluations[step]) for step in steps]
    example = max(paired(evaluations), key=how_telling)
    put(44, 28, f"{shares[0]:.1%} → {shares[-1]:.1%}", size=56, face="Sans-Bold")
    about = f"of {len(evaluations[0])} held-out problems solved at the first try"
    put(560, 36, f"{about}\n{steps[1]} steps, {where(run)}", "muted", 20)
    for x, step, rows, row in zip((44, 616), steps, evaluations, example):
        put(x, 110, f"after {step} steps" if step else "before training", size=20, face="Sans-Bold")
        draw_wall(draw, x, 142, rows)
        lines = shortened(row["completion"])
        put(x, 420, title(row["problem"])[:LETTERS], "muted")
        put(x, 441, "\n".join(lines), face="SansMono")
        mark, color = ("✓", "correct") if row["answer_reward"] == 1 else ("✗", "wrong")
        why = row["why"].partition(";")[0]
        put(x, 444 + 19 * len(lines), f"{mark} {why}"[:LETTERS], color, face="Sans-Bold")
    put(44, 606, "Each square is a problem. It is filled if the model solved it.", "muted", 14)
    seed = run.config.get("seed")
    put(616, 606, f"nano_r1: GRPO in one Python file · seed {seed}", "muted", 14)
    card.save(file)


def draw_wall(draw, left, top, rows):
    """A square for each problem."""
    columns = math.ceil(math.sqrt(2 * len(rows)))
    pitch = WALL / columns
    for i, row in enumerate(rows):
        down, right = divmod(i, columns)
        x = left + pitch * right
        y = top + pitch * down
        color = PALETTE["level-3" if row["answer_reward"] == 1 else "rule"]
        draw.rounded_rectangle((x, y, x + 0.8 * pitch, y + 0.8 * pitch), 2, color)


def how_telling(rows):
    """A problem is best that went from wrong to correct, if possible after a wrong yes."""
    before, after = rows
    gained = after["answer_reward"] - before["answer_reward"]
    believed = before["format_reward"] * (" yes" in before["completion"])
    return gained, believed, -abs(after["completion"].count("\n") - LINES)


def shortened(completion):
    """The lines of a completion, the middle ones left out."""
    lines = [line[:LETTERS] for line in completion.strip().split("\n")]
    if len(lines) > LINES:
        lines[2 : 3 - LINES] = [f"… {len(lines) - LINES + 1} lines …"]
    return lines
