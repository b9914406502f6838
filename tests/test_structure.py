"""The lesson stays a lesson: what its files import, and the form of its code."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}
PLUMBING = {}  # module -> its file
for path in sorted((ROOT / "plumbing").rglob("*.py")):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    PLUMBING[module.removesuffix(".__init__")] = path


def nodes(path, *kinds):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imported(path):
    """The modules that a file imports anywhere ; `from plumbing import x` is plumbing.x."""
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        assert node.level == 0, f"{path.name}, line {node.lineno}: a relative import"
        names = {f"plumbing.{alias.name}" for alias in node.names}
        found |= names if node.module == "plumbing" else {node.module}
    return found


@pytest.mark.parametrize("module", PLUMBING)
def test_a_module_of_the_plumbing_imports_no_script_and_says_what_it_is_for(module):
    assert imported(PLUMBING[module]) & SCRIPTS == set()
    assert ast.get_docstring(ast.parse(PLUMBING[module].read_text()))


def test_imports_within_the_plumbing_have_no_cycle():
    needs = {name: imported(path) & set(PLUMBING) - {name} for name, path in PLUMBING.items()}
    graphlib.TopologicalSorter(needs).prepare()  # raises the cycle


@pytest.mark.parametrize(
    "script", ["nano_r1.py", *(path.name for path in ROOT.glob("*_rewards.py"))]
)
def test_the_lesson_and_a_task_import_none_of_their_relatives(script):
    assert imported(ROOT / script) & SCRIPTS == set()


def test_no_function_of_the_lesson_is_longer_than_a_screen():
    functions = nodes(ROOT / "nano_r1.py", ast.FunctionDef)
    lengths = {f.name: f.end_lineno - f.lineno + 1 for f in functions}
    limits = {"main": 90, "grpo_loss": 30}
    assert {name: n for name, n in lengths.items() if n > limits.get(name, 45)} == {}


def packed(node):
    """a, b = c, d: a function's result may be unpacked, values that are written down may not."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)


def positional_flag(node):
    values = node.args if isinstance(node, ast.Call) else []
    return any(isinstance(v, ast.Constant) and isinstance(v.value, bool) for v in values)


def double_comprehension(node):
    return len(getattr(node, "generators", ())) > 1


@pytest.mark.parametrize("lesson", ["nano_r1.py", "variants.py", "nano_sft.py"])
@pytest.mark.parametrize("form", [packed, positional_flag, double_comprehension])
def test_a_lesson_is_written_plainly(lesson, form):
    found = [node.lineno for node in nodes(ROOT / lesson, ast.AST) if form(node)]
    assert found == []
