"""docs/gpu.md: every command of the checklist can be typed as it stands, so that the first GPU loses no minute."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, script_commands

import nano_r1 as r1
from plumbing.settings import parse_args

sys.path[:0] = [os.path.join(ROOT, "benchmarks"), os.path.join(ROOT, "models", "nano-base")]

import gpu
import make_base

PAGE = Path(ROOT, "docs", "gpu.md").read_text()
COMMANDS = [
    line.strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
COMMANDS = [line for line in COMMANDS if line]


def config_of(flags):
    """What nano_r1.py makes of flags; a run that is resumed must have been started by a line before, and keeps its settings."""
    if "--resume" in flags:
        place = flags.index("--resume")
        started = re.compile(rf"nano_r1\.py .*--name {os.path.basename(flags[place + 1])}$")
        assert any(started.search(command) for command in COMMANDS), flags
        flags = flags[:place] + flags[place + 2 :]
    return parse_args(r1.Config, "nano_r1.py", "", flags)


def check(words, folder):
    """Raise if the words of a command cannot be what somebody means to type."""
    while re.fullmatch(r"[A-Z_0-9]+=\S*", words[0]):
        words = words[1:]
    program, *rest = words
    if program == "bash":
        for lesson, *flags in script_commands(*rest, folder=folder):
            assert lesson == "nano_r1.py" and config_of(flags)
    elif program.endswith("pip") or rest[:2] == ["-m", "pip"]:
        assert rest[-3:-1] == ["install", "-r"] and os.path.exists(os.path.join(ROOT, rest[-1]))
    elif rest[:1] == ["-c"]:
        ast.parse(rest[1])
    elif rest[:1] == ["nano_r1.py"]:
        config_of(rest[1:])
    elif rest[:1] == ["benchmarks/gpu.py"]:
        gpu.parse_args(rest[1:])
    elif rest[:1] == ["models/nano-base/make_base.py"]:
        import tyro

        tyro.cli(make_base.BaseConfig, args=rest[1:], use_underscores=True)
    else:
        assert words in (["nvidia-smi"], ["python", "-m", "venv", ".venv-gpu"]), words


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_checklist_can_be_typed_as_it_stands(command, tmp_path):
    check(shlex.split(command), tmp_path)


@pytest.mark.parametrize(
    "command, error",
    [
        ("python nano_r1.py --zero 3", SystemExit),
        ("python benchmarks/gpu.py --models 9B", SystemExit),
        ("python nano_r1.py --resume out/none", AssertionError),
        ("bash runs/no.sh", subprocess.CalledProcessError),
    ],
)
def test_a_command_that_cannot_be_typed_is_found(command, error, tmp_path):
    with pytest.raises(error):
        check(shlex.split(command), tmp_path)


def test_every_name_is_given_once():
    names = re.findall(r"--name (\S+)", "\n".join(COMMANDS))
    assert len(names) == len(set(names))
