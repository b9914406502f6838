"""Runs of nano_r1.py as a user starts them: alone in a directory, stopped, killed, resumed."""

import ast
import contextlib
import fcntl
import importlib
import io
import json
import math
import os
import pty
import re
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import fields, replace

import pytest
import torch
import transformers
import tyro

import nano_r1
import variants

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SMALL = "--prompts_per_step 4 --group_size 4 --max_tokens 60 --eval_problems 8 --warmup_steps 0"


def copied(tmp_path, *files):
    """A directory with nano_r1.py, these files and the model: nothing else of the repository."""
    for file in ("nano_r1.py", *files):
        shutil.copy(os.path.join(ROOT, file), tmp_path)
    shutil.copytree(os.path.join(ROOT, "models/nano-base"), tmp_path / "models/nano-base")
    return tmp_path


def start(directory, flags):
    command = [sys.executable, "nano_r1.py", *flags.split()]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=directory, env=environment, **pipes)


def run(directory, flags):
    """(exit code, what it printed)"""
    process = start(directory, flags)
    text, _ = process.communicate()
    return process.returncode, text


def metrics(directory, name):
    """Of each step, without its times."""
    with open(directory / "out" / name / "metrics.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(directory, name):
    return (directory / "out" / name / "model/model.safetensors").read_bytes()


def test_copied_alone_with_gsm8k_it_trains_evaluates_saves_and_resumes(tmp_path):
    """The same with countdown: the fixture `straight` and the tests that use it."""
    directory = copied(tmp_path, "gsm8k_rewards.py")
    code, text = run(directory, f"--task gsm8k {SMALL} --steps 2 --name first")
    assert code == 0, text
    assert "held-out problems correct" in text and "out/first/model" in text
    for name in ("model/model.safetensors", "model/tokenizer.json", "checkpoint/latest.json"):
        assert (directory / "out/first" / name).exists()
    code, text = run(directory, f"--task gsm8k {SMALL} --steps 3 --resume out/first")
    assert code == 0 and [row["step"] for row in metrics(directory, "first")] == [0, 1, 2, 3], text


def test_pasted_into_a_cell_of_a_notebook_it_trains(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    directory = copied(tmp_path, "countdown_rewards.py")
    source = (directory / "nano_r1.py").read_text()
    os.remove(directory / "nano_r1.py")
    call = "main(Config(steps=1, prompts_per_step=2, max_tokens=20, eval_problems=2, name='cell'))"
    cells = [nbformat.v4.new_code_cell(text) for text in (source, call)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(directory)}}).execute()
    assert (directory / "out/cell/model/model.safetensors").exists()


# ---- The size is counted in expression nodes: statements are free, nesting is not.


def size(file):
    """(statements without docstrings, expression nodes) of a Python file."""
    with open(os.path.join(ROOT, file), encoding="utf-8") as opened:
        nodes = list(ast.walk(ast.parse(opened.read())))
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    texts = [node for node in statements if isinstance(node, ast.Expr)]
    docstrings = [node for node in texts if isinstance(node.value, ast.Constant)]
    expressions = [node for node in nodes if isinstance(node, (ast.expr, ast.comprehension))]
    return len(statements) - len(docstrings), len(expressions)


def test_the_default_command_loads_little_code(tmp_path, capsys):
    """Of this repository, until model and checkpoint are saved."""
    code = (
        "import sys, runpy, tyro, nano_r1\n"
        "def save(*args, then=nano_r1.save_model):\n"
        "    then(*args)\n"
        "    files = {getattr(m, '__file__', None) or '' for m in list(sys.modules.values())}\n"
        "    print('LOADED', *sorted(f for f in files if f.startswith(sys.argv[1])))\n"
        "nano_r1.save_model = save\n"
        f"nano_r1.main(nano_r1.Config(steps=1, prompts_per_step=2, max_tokens=20, eval_problems=2, "
        f"model={os.path.join(ROOT, 'models/nano-base')!r}, name={str(tmp_path / 'run')!r}))\n"
    )
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT + os.sep], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    loaded = [file for file in loaded.split()[1:] if "site-packages" not in file]
    counts = {os.path.relpath(file, ROOT): size(file)[1] for file in loaded}
    with capsys.disabled():
        print(f"\n{sum(counts.values())} nodes: {counts}")
    assert {"nano_r1.py", "countdown_rewards.py", "report/record.py"} <= set(counts)
    assert sum(counts.values()) <= 5_300


def test_the_whole_repository_is_small_and_no_file_of_the_root_is_folded(capsys):
    """All Python, tests included; at most 7.0 nodes a statement in nano_r1.py, 7.5 elsewhere."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    files = [name for name in listed.stdout.split() if name.endswith(".py")]
    sizes = {name: size(name) for name in files if os.path.exists(os.path.join(ROOT, name))}
    if not sizes:
        pytest.skip("not a git checkout")
    total = sum(nodes for _, nodes in sizes.values())
    with capsys.disabled():
        print(f"\n{total} nodes")
    for name, (statements, nodes) in sizes.items():
        if "/" not in name:
            assert nodes / statements <= (7.0 if name == "nano_r1.py" else 7.5), name
    assert total <= 58_000


# ---- Stopped, killed, resumed


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A directory with a run of six steps."""
    directory = copied(tmp_path_factory.mktemp("runs"), "countdown_rewards.py")
    code, text = run(directory, f"{SMALL} --steps 6 --save_every 2 --name straight")
    assert code == 0, text
    return directory


def interrupt(directory, name, number, after):
    """Start the run, send it a signal after so many seconds; what it printed."""
    process = start(directory, f"{SMALL} --steps 6 --save_every 2 --name {name}")
    episodes = directory / "out" / name / "episodes"
    while not episodes.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(after)
    process.send_signal(number)
    return process.communicate()[0]


def assert_resumed_as_straight(directory, name):
    code, text = run(directory, f"{SMALL} --steps 6 --save_every 2 --resume out/{name}")
    assert code == 0, text
    assert metrics(directory, name) == metrics(directory, "straight")
    assert weights(directory, name) == weights(directory, "straight")


@pytest.mark.parametrize("after", [0.0, 0.9])
def test_a_killed_run_resumes_bit_for_bit(after, straight):
    name = f"killed{after}"
    interrupt(straight, name, signal.SIGKILL, after)
    assert_resumed_as_straight(straight, name)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_continue(straight):
    text = interrupt(straight, "stopped", signal.SIGINT, 0.0)
    assert "Finishing this step" in text and "--resume out/stopped" in text
    assert not (straight / "out/stopped/model").exists()
    assert_resumed_as_straight(straight, "stopped")


class Disk:
    """An engine whose checkpoints can be damaged."""

    def __init__(self):
        self.whole = {}

    def save_checkpoint(self, folder, tag, save_latest):
        self.whole[tag] = nano_r1.read(f"{folder}/latest.json")  # what is listed meanwhile

    def load_checkpoint(self, folder, tag):
        if tag not in self.whole:
            raise EOFError("Ran out of input")


def test_a_torn_checkpoint_falls_back_to_the_one_before_with_a_line(tmp_path, capsys):
    disk = Disk()
    assert nano_r1.load_checkpoint(disk, tmp_path) == 0  # a new run
    for step in (2, 4, 6):
        nano_r1.save_checkpoint(disk, str(tmp_path), step)
    one, two, three = ({"tag": tag, "step": 2 * i + 2} for i, tag in enumerate("aba"))
    assert disk.whole == {"a": [two], "b": [one]}  # what is being written is not listed
    assert nano_r1.read(tmp_path / "checkpoint/latest.json") == [two, three]
    assert nano_r1.load_checkpoint(disk, tmp_path) == 6 and capsys.readouterr().out == ""
    del disk.whole["a"]
    assert nano_r1.load_checkpoint(disk, tmp_path) == 4
    assert capsys.readouterr().out.startswith("The checkpoint of step 6 cannot be read: EOFError")
    disk.whole = {}
    with pytest.raises(SystemExit, match="no checkpoint can be read"):  # not from the beginning
        nano_r1.load_checkpoint(disk, tmp_path)


RESUMED = nano_r1.Config(
    prompts_per_step=4, group_size=4, max_tokens=60, eval_problems=8, warmup_steps=0, steps=6
)


def resumable(path, parts=None, **changes):
    """Whether open_run lets a run go on with other settings or functions."""
    config = replace(RESUMED, resume=str(path), **changes)
    try:
        nano_r1.open_run(config, vars(nano_r1.Parts(**(parts or {}))))
    except SystemExit as error:
        assert str(error).startswith(f"--resume {path} needs what it was started with: ")
        return False
    return True


MAY = {"micro_batch_size": 1, "gradient_checkpointing": True, "offload": True, "device": "cpu"}
MAY |= {"vllm_gpu_memory_utilization": 0.1, "sampler": "vllm", "eval_problems": 4, "steps": 9}
MUST_NOT = {"seed": 1, "learning_rate": 1e-4, "kl_coef": 0.0, "max_tokens": 50, "dtype": "bfloat16"}
MUST_NOT |= {"prompts_per_step": 2, "group_size": 8, "zero_stage": 3, "prompt": "chat"}
MUST_NOT |= {"max_grad_norm": 0.0, "temperature": 0.9, "data": "a.jsonl", "task": "gsm8k"}


def test_a_resumed_run_may_change_memory_and_speed_but_not_the_algorithm(straight):
    path = straight / "out/straight"
    assert all(resumable(path, **{name: value}) for name, value in MAY.items())
    assert not any(resumable(path, **{name: value}) for name, value in MUST_NOT.items())


def test_a_resumed_run_needs_the_program_and_the_launcher_of_its_start(straight, monkeypatch):
    path = straight / "out/straight"
    assert resumable(path) and not resumable(path, {"loss": lambda *args: None})
    assert resumable(path, {"measure": lambda *args: None})
    relative = variants.Config(**vars(RESUMED) | {"resume": str(path)})
    with pytest.raises(SystemExit, match="needs what it was started with: binary_reward None"):
        nano_r1.open_run(relative, vars(nano_r1.Parts()))
    for processes in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", processes)
        assert not resumable(path)


# ---- Where it runs


def test_a_log_in_another_encoding_gets_utf_8(monkeypatch):
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, encoding="cp1252"))
    nano_r1.find_device(nano_r1.Config(device="cpu"))
    print("π ≈ ½ 木 \ud800", flush=True)
    assert log.getvalue().decode("utf-8") == "π ≈ ½ 木 \\ud800\n"


@pytest.mark.parametrize("file", ["report/report.tex", "report/record.py", "report.py"])
def test_a_report_of_somebody_else_is_left_alone(file, tmp_path, monkeypatch):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("words = 3\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "report"]:
        monkeypatch.delitem(sys.modules, name)
    assert nano_r1.find_recorder() is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "report"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert nano_r1.find_recorder() is None


def test_copied_without_model_or_task_it_says_to_clone_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="--model models/nano-base .*clone the repository"):
        nano_r1.load_model(nano_r1.Config())
    with pytest.raises(SystemExit, match="--task chess: .*clone the repository"):
        nano_r1.import_task("chess")


def test_an_error_in_ones_own_task_is_pythons_with_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rewards.py").write_text(
        "from countdown_rewards import PROMPTS\n\n"
        "def load_problems(split, source=None, seed=0):\n    return {}['colour']\n"
    )
    (tmp_path / "lacks_rewards.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        nano_r1.import_task("lacks")
    monkeypatch.setattr(sys, "argv", ["nano_r1.py"])
    with pytest.raises(ModuleNotFoundError):  # and no advice to install it
        nano_r1.run_command(lambda config: nano_r1.import_task("lacks"), nano_r1.Config)
    config = nano_r1.Config(task="own", model=f"{ROOT}/models/nano-base")
    policy, tokenizer = nano_r1.load_model(config)
    with pytest.raises(KeyError, match="colour") as raised:
        nano_r1.Task(tokenizer, policy, config).load_problems("train", config)
    assert raised.traceback[-1].path.name == "own_rewards.py"


# ---- The mistakes that people make


OUTSIDE = {
    "prompts_per_step": (0, -4),
    "group_size": (0, -1),
    "max_tokens": (0, -5),
    "temperature": (0.0, -1.0, math.nan, math.inf),
    "advantage_eps": (0.0, -1e-4, math.nan),
    "cliprange": (-0.2, math.nan),
    "kl_coef": (-0.1, math.nan),
    "steps": (0, -1),
    "learning_rate": (-1.0, math.nan, math.inf),
    "warmup_steps": (-1,),
    "max_grad_norm": (-1.0, math.nan),
    "micro_batch_size": (0, -8),
    "vllm_gpu_memory_utilization": (0.0, -0.3),
    "eval_every": (-1,),
    "eval_problems": (0, -1),
    "save_every": (-1,),
    "record_tokens_every": (-4,),
}


def test_a_number_outside_its_range_is_a_sentence_that_names_it():
    for name, values in OUTSIDE.items():
        for value in values:
            config = replace(nano_r1.Config(), **{name: value})
            with pytest.raises(SystemExit, match=f"^--{name} .* is not possible"):
                nano_r1.check_settings(config, [], nano_r1.Parts())
    numbers = {field.name for field in fields(nano_r1.Config) if field.type in (int, float)}
    assert numbers - {"zero_stage"} == {*OUTSIDE, "seed"}
    for name in ("cliprange", "kl_coef", "learning_rate", "max_grad_norm", "eval_every"):
        nano_r1.check_numbers(replace(nano_r1.Config(), **{name: 0}))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"task": "chess"}, "No module named 'chess_rewards'; try countdown, gsm8k or a file"),
        ({"prompt": "poem"}, "--prompt must be a toml file or one of short, chat"),
        ({"data": "nothing.jsonl"}, "nothing.jsonl"),
        ({"data": "lacks.jsonl"}, "target"),
        ({"data": "hub"}, "hub"),
        ({"model": "models/none"}, "--model models/none must be a directory"),
        ({"model": "Qwen/Qwen2.5-0.5B"}, "needs a network"),
        ({"device": "cuda"}, "sees no GPU"),
        ({"name": "straight"}, "--resume out/straight continues it"),
        ({"resume": "out/nothing"}, "there is no run"),
        ({"resume": "out/straight", "seed": 1}, "needs what it was started with: seed 0"),
        ({"prompts_per_step": 99_999}, "at most the 16384 training problems"),
        ({"group_size": 1}, "--group_size must be at least 2"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_to_type(changes, said, straight, monkeypatch):
    monkeypatch.chdir(straight)
    (straight / "lacks.jsonl").write_text('{"nums": [1, 2]}\n' * 4)
    settings = {"eval_problems": 8, "prompts_per_step": 4, "group_size": 4, "max_tokens": 60}
    settings |= {"warmup_steps": 0, "steps": 6, "save_every": 2}
    before = sorted(os.listdir(straight / "out"))
    with pytest.raises(SystemExit, match=re.escape(said)):
        nano_r1.main(nano_r1.Config(**settings | changes))
    assert sorted(os.listdir(straight / "out")) == before


def test_what_the_sentence_about_memory_names_can_change_when_a_run_is_resumed(monkeypatch):
    def fail(config):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB")

    monkeypatch.setattr(sys, "argv", ["nano_r1.py"])
    with pytest.raises(SystemExit) as raised:
        nano_r1.run_command(fail, nano_r1.Config)
    resumed, _, new_run = str(raised.value).partition("all also with --resume")
    allowed = {"micro_batch_size", "gradient_checkpointing", "offload", "eval_problems"}
    assert set(re.findall(r"--(\w+)", resumed)) == allowed <= set(nano_r1.MAY_CHANGE)
    assert set(re.findall(r"--(\w+)", new_run)) == {"prompts_per_step", "max_tokens"}


@pytest.mark.parametrize(
    "error, said",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB"), "--micro_batch_size 1"),
        (ModuleNotFoundError("No module", name="vllm"), "pip install vllm"),
    ],
)
def test_out_of_memory_and_a_missing_package_are_a_sentence(error, said, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
    monkeypatch.setattr(sys, "argv", ["nano_r1.py", "--model", f"{ROOT}/models/nano-base"])
    with pytest.raises(SystemExit, match=re.escape(said)):
        runpy.run_path(f"{ROOT}/nano_r1.py", run_name="__main__")


def test_help_names_every_setting_with_its_comment(capsys):
    with pytest.raises(SystemExit):
        tyro.cli(nano_r1.Config, args=["--help"], use_underscores=True)
    text = capsys.readouterr().out
    assert all(f"--{field.name}" in text.replace("--no_", "--") for field in fields(nano_r1.Config))
    assert "linear warm-up" in text


# ---- The console

TINY = "--steps 2 --prompts_per_step 2 --eval_problems 4 --max_tokens 40 --eval_every 1"


def on_a_terminal(command):
    """All that a command writes to a terminal of 80 columns."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = subprocess.Popen(command.split(), cwd=ROOT, stdout=terminal, stderr=terminal)
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(screen, 9999):
            text += part
    assert process.wait() == 0, text
    return text.decode().replace("\r\n", "\n")


def test_a_run_ends_with_its_result_its_files_and_the_command_that_asks(tmp_path):
    path = f"{tmp_path}/run"
    text = on_a_terminal(f"{sys.executable} nano_r1.py {TINY} --name {path}")
    plain = re.sub("\033.*?m", "", text)
    short = plain.replace(path, "out/countdown-20261126-205055")  # as it is without --name
    assert max(map(len, short.splitlines())) <= 80, short
    # The prompt is printed once. After the last verdict only the result follows.
    assert plain.count("user: Using the numbers [90, 6, 38]") == 1
    found = re.search(r"(✓|✗) .*\n\nFrom \S+% to \S+% of .*, in [\d.]+ minutes.*\n", plain)
    assert plain[found.end() :] == (
        f"Model: {path}/model\nReport, for a browser: {path}/report.html\n"
        f"Picture: {path}/card.png\n"
        "To ask the model: python ask.py --task countdown --prompt short \\\n"
        f"    --model {path}/model\n"
    )
    coloured = re.findall("\033\\[(?:31|32|1)m(.).*?\033\\[0m", text)
    assert len(coloured) == 5 and set(coloured) <= {*"✓✗0123456789"}


def test_without_a_terminal_nothing_is_coloured(capsys):
    nano_r1.say("\033[31m✗ no\033[0m")
    assert capsys.readouterr().out == "✗ no\n"


def test_the_time_left_grows_with_the_completions(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nano_r1, "STEP_LINE", "LEFT {left} of {time/step}")
    settings = {"prompts_per_step": 2, "max_tokens": 20, "eval_problems": 2, "steps": 2}
    nano_r1.main(nano_r1.Config(**settings, name=str(tmp_path / "run")))
    left, seconds = re.search("LEFT (.*) of (.*)", capsys.readouterr().out).groups()
    assert float(left) == pytest.approx(float(seconds) / 60 * (2**1.1 - 1))


@pytest.mark.parametrize("name", ["nano_r1", "evaluate", "ask", "nano_sft", "variants"])
def test_help_fits_into_80_columns(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        tyro.cli(importlib.import_module(name).Config, args=["--help"], use_underscores=True)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) == 80
    assert ("--learning_rate" in text) == (name != "evaluate")
