"""The lesson stays a lesson: what its files import, and the form of its code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}
LESSONS = ("nano_r1.py", "variants.py", "nano_sft.py")
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
    left = {name: imported(path) & set(PLUMBING) - {name} for name, path in PLUMBING.items()}
    while left:
        free = {name for name, needs in left.items() if not needs & set(left)}
        assert free, f"these import each other: {left}"
        left = {name: needs for name, needs in left.items() if name not in free}


@pytest.mark.parametrize("task", sorted(ROOT.glob("*_rewards.py")), ids=lambda path: path.stem)
def test_a_task_imports_neither_a_lesson_nor_another_task(task):
    assert imported(task) & SCRIPTS == set()


def test_the_lesson_imports_none_of_its_relatives():
    assert imported(ROOT / "nano_r1.py") & SCRIPTS == set()


def test_no_test_imports_another():
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    names = {path.stem for path in tests}
    assert [path.name for path in tests if imported(path) & names] == []


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


@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize("form", [packed, positional_flag, double_comprehension])
def test_a_lesson_is_written_plainly(lesson, form):
    found = [node.lineno for node in nodes(ROOT / lesson, ast.AST) if form(node)]
    assert found == []
