"""How many places one default step sends a reader to: python benchmarks/moves.py

Counts the functions of this repository that the second step of the default command enters, a step
without evaluation, record or checkpoint: those of nano_r1.py, those that it calls first outside of
it, and all the way down. Comprehensions and lambdas stand where they are used and are no place.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import nano_r1 as r1

LESSON = str(ROOT / "nano_r1.py")


def in_repository(code):
    path = Path(code.co_filename)
    inside = path.is_relative_to(ROOT) and path != Path(__file__)
    inside = inside and "site-packages" not in path.parts  # an environment within the repository
    return inside and not code.co_name.startswith("<")


class Moves:
    """The functions that are entered, and by whom."""

    def __init__(self):
        self.entered = set()
        self.from_lesson = set()

    def profile(self, frame, event, _):
        if event != "call" or not in_repository(frame.f_code):
            return
        self.entered.add(frame.f_code)
        caller = frame.f_back
        while caller and not in_repository(caller.f_code):  # contextlib's, torch's, a lambda
            caller = caller.f_back
        if caller and caller.f_code.co_filename == LESSON:
            self.from_lesson.add(frame.f_code)


def count_moves(**settings):
    """`Moves` of the second step of a run."""
    moves = Moves()

    def rollout(sampler, problems, task, config, step):
        sys.setprofile(moves.profile if step == 2 else None)
        return r1.rollout(sampler, problems, task, config, step)

    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        small = {"steps": 3, "eval_problems": 1, "eval_every": 0, "save_every": 0, "report": False}
        r1.main(r1.Config(out=out, **small, **settings), rollout=rollout)
    sys.setprofile(None)
    moves.entered.add(r1.main.__wrapped__.__code__)
    return moves


def names(codes):
    places = [f"{Path(c.co_filename).relative_to(ROOT)}: {c.co_qualname}" for c in codes]
    return "\n".join(f"  {place}" for place in sorted(places))


def report(moves):
    lesson = {code for code in moves.entered if code.co_filename == LESSON}
    calls = moves.from_lesson - lesson
    deeper = moves.entered - lesson - calls
    return (
        f"{len(lesson)} functions of nano_r1.py:\n{names(lesson)}\n"
        f"{len(calls)} that they call elsewhere:\n{names(calls)}\n"
        f"{len(deeper)} below those:\n{names(deeper)}\n"
        f"{len(lesson) + len(calls)} moves, {len(moves.entered)} all the way down"
    )


if __name__ == "__main__":
    text = report(count_moves())
    print(text)
