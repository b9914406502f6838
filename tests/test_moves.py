"""How far a step of the lesson sends its reader, counted."""

import ast
import os
import sys

from helpers import ROOT

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import moves


def test_a_step_of_the_lesson_is_within_28_moves():
    found = moves.count_moves(prompts_per_step=4, group_size=4)
    lesson = {code for code in found.entered if code.co_filename == moves.LESSON}
    assert len(lesson | found.from_lesson) <= 28
    assert len(found.entered) <= 90


def test_no_function_of_the_lesson_is_longer_than_a_screen():
    with open(moves.LESSON) as file:
        nodes = ast.walk(ast.parse(file.read()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    lines = {f.name: f.end_lineno - f.lineno + 1 for f in functions}
    limits = {"main": 90, "grpo_loss": 30}
    assert {name: n for name, n in lines.items() if n > limits.get(name, 45)} == {}
