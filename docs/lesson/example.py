"""The example of the lesson: a completion of one group in a default run.

report/payload.py chooses the group. The completion is the shortest of those with the
highest reward.
"""

from types import SimpleNamespace

import numpy as np

from report.labels import CUTS
from report.payload import choose_example as choose_group


def shade(change):
    """The class of a token's colour for its change in nats: "up-3", or "" near 0."""
    size = sum(abs(change) >= cut for cut in CUTS)
    return f"{'up' if change > 0 else 'down'}-{size}" if size else ""


def choose_example(run):
    """The step, group and completion of a report.run.Run."""
    step, group = choose_group(run)
    rows, arrays = run.step(step)
    own = range(run.group_size * (group - 1), run.group_size * group)
    place = min(own, key=lambda i: (-rows[i]["reward"], rows[i]["length"]))
    change = np.split(arrays["change"], np.cumsum(arrays["lengths"]))[place]
    up = SimpleNamespace(place=place, row=rows[place], change=change)
    return SimpleNamespace(step=step, group=group, up=up)
