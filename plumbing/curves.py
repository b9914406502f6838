"""The curves that show whether a run learns: curves.png, and in a notebook below its cell.

The file is drawn again after each evaluation, the picture in a notebook after a step.
"""

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


def make_figure(records, title, panels):
    """A matplotlib figure of six panels from the objects of metrics.jsonl."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5))  # not pyplot: a notebook has its own
    # A layout that is computed takes as long as the drawing.
    figure.subplots_adjust(left=0.045, right=0.99, bottom=0.075, top=0.9, wspace=0.16, hspace=0.33)
    axes = figure.subplots(2, 3)
    for axis, (name_of_panel, series) in zip(axes.flat, panels):
        for name, label in series:
            points = [(r["step"], r[name]) for r in records if name in r]
            if points:
                axis.plot(*zip(*points), label=label, alpha=0.7, linewidth=1)
        axis.set(title=name_of_panel, xlabel="step")
    names = ("step", "eval/pass@1", "eval/pass@1_low", "eval/pass@1_high")
    evaluated = [[r[name] for name in names] for r in records if "eval/pass@1" in r]
    x, y, low, high = zip(*evaluated) if evaluated else ([], [], [], [])
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


def draw(records, path, title, panels=PANELS, shown=None):
    """Draw the objects of metrics.jsonl into the file `path`, and in a notebook below the cell.

    There it takes the place of what an earlier call has `shown`; returns what is shown now.
    """
    with atomic_write(path) as hidden:
        make_figure(records, title, panels).savefig(hidden, dpi=80, format="png")
    if not in_notebook():
        return None
    from IPython.display import Image, display

    image = Image(filename=path, metadata={"alt": title})  # as IPython 7 on Colab takes it
    if shown is None:
        return display(image, display_id=True)
    shown.update(image)
    return shown
