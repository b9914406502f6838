"""The curves that show whether a run learns: curves.png, and in a notebook below its cell.

The file is drawn again after each evaluation, the picture in a notebook after a step.
"""

import io
import os
import sys

from plumbing.files import atomic_write

# Of each panel: title, and (metric, label) of each curve. The evaluations are in the first panel.
PANELS = [
    ("accuracy", [("reward/answer", "training batch")]),
    ("reward", [("reward", "total"), ("reward/format", "format")]),
    ("completion length (tokens)", [("completions/mean_length", "mean")]),
    ("entropy (nats a token)", [("entropy", None)]),
    ("gradient norm", [("grad_norm", None)]),
    (
        "shares",
        [
            ("frac_reward_zero_std", "groups without signal"),
            ("completions/clipped_ratio", "cut off"),
        ],
    ),
]
TUNING_PANELS = [
    ("accuracy", []),
    ("loss (nats a token)", [("loss", None)]),
    ("entropy (nats a token)", [("entropy", None)]),
    ("gradient norm", [("grad_norm", None)]),
    ("learning rate", [("lr", None)]),
    ("validation", [("eval/format", "well-formed"), ("eval/clipped_ratio", "cut off")]),
]


def make_figure(records, title, panels=PANELS):
    """A matplotlib figure of six panels from the objects of metrics.jsonl."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5), constrained_layout=True)  # not pyplot: a notebook has its own
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    for axis, (name_of_panel, series) in zip(axes.flat, panels):
        for name, label in series:
            points = [(r["step"], r[name]) for r in records if name in r]
            if points:
                axis.plot(*zip(*points), label=label, alpha=0.7, linewidth=1)
        axis.set(title=name_of_panel, xlabel="step")
    evals = [r for r in records if "eval/pass@1" in r]
    columns = {key: [r[key] for r in evals] for key in ("step", "eval/pass@1")}
    x, y = columns.values()
    low, high = ([r[f"eval/pass@1_{end}"] for r in evals] for end in ("low", "high"))
    axes[0, 0].plot(x, y, "o-", label="evaluation, pass@1")
    axes[0, 0].fill_between(x, low, high, alpha=0.2, color="C1", label="95% interval")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    figure.suptitle(title)
    return figure


def in_notebook():
    """Whether a cell runs this: a kernel can show a picture and replace it, a terminal cannot."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def draw(records, directory, title, panels=PANELS):
    """Write `directory`/curves.png from the objects of metrics.jsonl."""
    name = os.path.basename(os.path.normpath(directory))
    with atomic_write(os.path.join(directory, "curves.png")) as hidden:
        make_figure(records, f"{name}: {title}", panels).savefig(hidden, dpi=110, format="png")


def show(records, title, panels, shown):
    """Show them below the notebook's cell, in the place of what an earlier call has `shown`.

    Returns what is shown now.
    """
    from IPython.display import Image, display

    png = io.BytesIO()
    make_figure(records, title, panels).savefig(png, dpi=60, format="png")
    image = Image(png.getvalue(), metadata={"alt": title})  # as IPython 7 on Colab takes it
    if shown is None:
        return display(image, display_id=True)
    shown.update(image)
    return shown
