"""The example of lesson, picture and report: two completions of one group in a default run.

The step is the one whose tokens moved most, among the steps whose tokens are recorded.
report/payload.py chooses the group and the correct completion. The other completion is the wrong
one, in the correct format, that has the token whose probability fell most.
"""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np

from report.labels import CUTS
from report.payload import pack_step


def shade(change):
    """The class of a token's colour for its change in nats: "up-3", or "" near 0."""
    size = sum(abs(change) >= cut for cut in CUTS)
    return f"{'up' if change > 0 else 'down'}-{size}" if size else ""


def choose_example(run):
    """The step, group, completions up and down of a report.run.Run."""
    best = max([pack_step(run, step) for step in run.tokens], key=itemgetter("moved"))
    rows, arrays = run.step(best["step"])
    group, opening = best["opening"]
    first = run.group_size * (group - 1)
    starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
    completions = []
    for i in range(first, first + run.group_size):
        own = slice(starts[i], starts[i] + rows[i]["length"])
        tokens = [run.vocabulary["tokens"][token] for token in arrays["token_ids"][own]]
        one = SimpleNamespace(
            place=i,
            row=rows[i],
            correct=rows[i]["answer_reward"] == 1,
            texts=[token.encode("latin-1").decode(errors="replace") for token in tokens],
            before=np.exp(arrays["log_probs"][own]),
            change=arrays["change"][own],
        )
        one.gain = one.before * np.expm1(one.change)  # of the probability
        completions.append(one)
    formed = [one for one in completions if one.row["format_reward"] == 1]
    return SimpleNamespace(
        step=best["step"],
        group=group,
        up=completions[opening - 1],
        down=min(formed, key=lambda one: (one.correct, one.gain.min())),
    )
