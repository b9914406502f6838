"""Where Linux, DeepSpeed and what else is missing: torch's AdamW, and the default command."""

import tomllib
from pathlib import Path

import pytest
import torch
from helpers import (
    ROOT,
    SMALL,
    config,
    flags,
    make_episodes,
    records,
    resume,
    run,
    tiny_model,
    train,
)

import nano_r1 as r1
from plumbing.models import add_lora, gathered
from plumbing.processes import init_distributed
from plumbing.settings import UserError
from plumbing.torch_engine import engine_kind


@pytest.fixture(autouse=True)
def processes():
    init_distributed()


CASES = [
    {},
    {"max_grad_norm": 1e-3},
    {"weight_decay": 0.1},
    {"offload": True},
    {"lora_rank": 2},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "offload": True},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_after_five_steps_the_weights_are_those_of_deepspeed_to_1e_6(changes):
    """The third step has an advantage that is not a number: both skip it."""
    found = []
    for engine in ("torch", "deepspeed"):
        c = config(engine=engine, learning_rate=1e-3, **changes)
        model = tiny_model().to(getattr(torch, c.dtype))
        engine = r1.make_engine(add_lora(model, c) if c.lora_rank else model, c)
        norms = []
        for step in range(5):
            episodes = make_episodes(seed=step)
            if step == 2:
                episodes[1].per_token["advantages"] = [float("nan")] * episodes[1].length
            norms.append(r1.update(engine, episodes, c, c.learning_rate)["grad_norm"][0])
        with gathered(engine.module):
            weights = {n: p.detach().float() for n, p in engine.module.named_parameters()}
        found.append((weights, torch.cat(norms)))
    (ours, norms), (theirs, expected) = found
    assert len(norms) == len(expected) == 4
    torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0.0)
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0.0, atol=1e-6, msg=name)


def test_a_run_of_one_engine_is_not_gone_on_with_by_the_other(tmp_path):
    for engine, other in (("torch", "deepspeed"), ("deepspeed", "torch")):
        path, _ = train(tmp_path, engine, engine=engine, steps=2)
        with pytest.raises(UserError, match=f"--engine {engine}: resume with that"):
            resume(path, engine=other, steps=3)
        assert len(records(resume(path, steps=3)[0])) == 4


def test_what_an_engine_cannot_do_is_one_sentence(monkeypatch):
    assert engine_kind(config()) == "deepspeed"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0b4a3c2e")  # DeepSpeed would raise ValueError
    assert engine_kind(config()) == "torch"
    with pytest.raises(UserError, match="with numbers"):
        engine_kind(config(engine="deepspeed"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="Several processes"):
        engine_kind(config())


# What macOS or Windows do not have is taken away; msvcrt's lock is the one that Linux has.
ELSEWHERE = """
import fcntl, os, psutil, runpy, signal, subprocess, sys, types
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK = fcntl.LOCK_EX | fcntl.LOCK_NB
def locking(number, mode, size, flock=fcntl.flock):
    try:
        flock(number, mode)
    except BlockingIOError as error:
        raise PermissionError(*error.args)
msvcrt.locking = locking
for name in "fork forkpty killpg setsid sync sysconf".split():
    delattr(os, name)
for name in "SIGHUP SIGPROF SIGKILL SIGALRM ITIMER_PROF setitimer alarm".split():
    delattr(signal, name)
sys.modules |= {"deepspeed": None, "fcntl": None, "resource": None, "msvcrt": msvcrt}
sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
"""
SCRIPT = "runpy.run_path(sys.argv[0], run_name='__main__')"
# The limits of time are for a warm worker: the second question is asked of a new one.
MATHS = """
from plumbing import math_workers
asked = [("\\\\frac{1}{2}", "0.5"), ("9^{9^{9^9}}", "3"), ("x+1", "1+x")]
print([math_workers.ask(*pair)[0] for pair in asked])
"""


def elsewhere(code, *arguments, **options):
    """A script or code as on a system without DeepSpeed, fork, fcntl and POSIX's signals."""
    return run(ELSEWHERE + code, *arguments, script="-c", cwd=ROOT, **options)


def test_the_default_command_needs_neither_deepspeed_nor_posix(tmp_path):
    """Its steps are those of DeepSpeed, its text is one that a Windows console can show."""
    settings = {**SMALL, "steps": 2}
    env = {"PYTHONIOENCODING": "cp1252"}
    out = tmp_path / "\u2192"  # no character of that console's
    done = elsewhere(SCRIPT, "nano_r1.py", *flags(out=out, name="w", **settings), env=env)
    assert done.returncode == 0 and "engine torch" in done.stdout, done.stderr
    resumed = elsewhere(SCRIPT, "nano_r1.py", "--resume", out / "w", "--steps", 3, env=env)
    assert resumed.returncode == 0 and "Resuming after step 2" in resumed.stdout, resumed.stderr
    path, _ = train(tmp_path, "l", **settings)
    for row, expected in zip(records(out / "w")[1:3], records(path)[1:]):
        assert row["reward"] == expected["reward"]
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)


def test_formulas_are_compared_within_limits_of_time_without_fork():
    done = elsewhere(MATHS)
    assert done.stdout == "[True, False, True]\n", done.stderr


def test_uv_installs_the_core_of_requirements_txt():
    """What the script says of itself (PEP 723) are the lines up to the empty one, to the letter."""
    _, block = Path(ROOT, "nano_r1.py").read_text().split("\n# /// script\n")
    lines = [line.removeprefix("#").strip() for line in block.splitlines()]
    said = tomllib.loads("\n".join(lines[: lines.index("///")]))
    core, _ = Path(ROOT, "requirements.txt").read_text().split("\n\n")
    core = [line for line in core.splitlines() if not line.startswith("#")]
    assert said["dependencies"] == core and len(core) == 8
    assert said["tool"]["uv"]["sources"] == {"torch": {"index": "pytorch-cpu"}}
