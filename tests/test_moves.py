"""How far a step of the lesson sends its reader, counted."""

import os
import sys

from helpers import ROOT

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import moves


def test_a_step_of_the_lesson_is_within_28_moves():
    found = moves.count_moves(prompts_per_step=4, group_size=4)
    lesson = {code for code in found.entered if code.co_filename == moves.LESSON}
    assert len(lesson | found.from_lesson) <= 28 and len(found.entered) <= 75
