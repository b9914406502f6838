"""The files of the lesson: nano_r1.py and its verifier."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "nano_r1.py"
VERIFIER = ROOT / "countdown_rewards.py"


def functions_of(source):
    """{name: its node}, of top-level functions."""
    nodes = ast.parse(source).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
