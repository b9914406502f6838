"""The example of the lesson: a completion of one group in a default run.

nano_report/payload.py chooses the group. The completion is the shortest of those with the
highest reward.
"""

from types import SimpleNamespace

from nano_report.labels import CUTS
from nano_report.payload import choose_example as choose_group


def shade(change):
    """The class of a token's colour for its change in nats: "up-3", or "" near 0."""
    size = sum(abs(change) >= cut for cut in CUTS)
    return f"{'up' if change > 0 else 'down'}-{size}" if size else ""


def choose_example(run):
    """The step, group and completion of a nano_report.run.Run."""
    step, group = choose_group(run)
    rows, _ = run.step(step)
    own = range(run.group_size * (group - 1), run.group_size * group)
    place = min(own, key=lambda i: (-rows[i]["reward"], rows[i]["length"]))
    return SimpleNamespace(step=step, group=group, place=place, text=rows[place]["completion"])
