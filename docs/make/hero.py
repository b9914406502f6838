"""The README's pictures, of a default run's files: python -m docs.make.hero out/NAME FOLDER

It shows one update in a group (nano_report/payload.py chooses the group), and beside it, by step,
P(yes) of every check that the model wrote. lines.png has the lines of a completion of step 1 as the
model reads them before training and after it. FOLDER gets both, also dark, hero.png for phones, and
hero.gif and lines.gif, which tell the same pictures as stories and end with them.
"""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import nano_r1
from nano_report.payload import checks_of, choose_example, watched_of
from nano_report.run import Run
from nano_report.viewer import TABLE, table_page

SCRIPTS = TABLE.replace("page/alone.js", "page/chart.js page/lines.js ../docs/make/hero.js")
STYLES = "page/base.css ../docs/make/hero.css"
# (name, width, pixels a point: 1 for a story); 868 is the width of a README's column on GitHub.
PICTURES = [
    ("hero", 868, 2),
    ("hero_phone", 390, 2),
    ("lines", 390, 2),
    ("hero", 868, 1),
    ("lines", 390, 1),
]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
COLOURS = {"method": Image.Quantize.FASTOCTREE, "dither": Image.Dither.NONE}


@contextlib.contextmanager
def browser():
    """Chromium, until the end of the block."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def picture_page(path):
    """The picture as a page; docs/make/hero.js draws it."""
    run = Run(path)
    step, _, table = choose_example(run)
    before, *_, after = [row["eval/pass@1"] for row in run.records if "eval/pass@1" in row]
    data = {
        "group": table,
        "sentence": f"Held-out problems solved: {before:.1%} → {after:.1%}; "
        f"{nano_r1.minutes_of_training(run.records):.1f} minutes of training on "
        f"{os.cpu_count()} CPU cores.",  # of this machine
        "step": step,
        "checks": [one for step in run.tokens for one in checks_of(run, step, run.step(step))],
        "watched": watched_of(run),
    }
    return table_page(data, SCRIPTS, STYLES)


def picture_of(page):
    return Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")


def save_gif(page, file):
    """The page's story, which plays once. The colours are those of the last frame."""
    frames = []
    durations = []
    for number in range(page.evaluate("story.length")):
        seconds = page.evaluate("n => { story[n][0](); return story[n][1]; }", number)
        frames.append(picture_of(page))
        durations.append(1000 * seconds)
    palette = frames[-1].quantize(40, **COLOURS)
    first, *more = [frame.quantize(palette=palette, **COLOURS) for frame in frames]
    first.save(file, save_all=True, append_images=more, duration=durations, optimize=True)


def draw(path, folder):
    """Write the picture's files."""
    with tempfile.TemporaryDirectory() as temporary, browser() as chromium:
        file = Path(temporary) / "hero.html"
        file.write_text(picture_page(path))
        for theme, ending in (("light", ""), ("dark", "_dark")):
            for name, width, scale in PICTURES:
                page = chromium.new_page(
                    viewport={"width": width, "height": 100},
                    device_scale_factor=scale,
                    color_scheme=theme,
                    reduced_motion="reduce",
                )
                page.set_default_timeout(300_000)
                page.goto(f"{file.as_uri()}#{name}")
                if scale == 1:
                    save_gif(page, f"{folder}/{name}{ending}.gif")
                else:
                    still = picture_of(page).quantize(88, **COLOURS)
                    still.save(f"{folder}/{name}{ending}.png", optimize=True)


if __name__ == "__main__":
    draw(*sys.argv[1:])
