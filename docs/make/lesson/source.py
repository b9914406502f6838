"""The files of the lesson as functions and statements: nano_r1.py and its verifier."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "nano_r1.py"
VERIFIER = ROOT / "countdown_rewards.py"


def functions_of(source):
    """{qualified name: its node}, of top-level functions and of methods."""
    found = {}
    for node in ast.parse(source).body:
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in node.body if prefix else [node]:
            if isinstance(member, ast.FunctionDef):
                found[prefix + member.name] = member
    return found


def statements_of(function):
    """The statements below a function in the order of the file, without the docstring."""
    has_docstring = ast.get_docstring(function) is not None
    inner = [node for child in function.body[has_docstring:] for node in ast.walk(child)]
    nodes = [node for node in inner if isinstance(node, ast.stmt)]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))
