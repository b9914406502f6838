"""Runs of nano_r1.py as a user starts them: alone in a directory, stopped, killed, resumed."""

import ast
import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

import countdown_rewards
import nano_eval
import nano_r1
import variants
from benchmarks import runs

ROOT = Path(__file__).parents[1]
SMALL = """--prompts_per_step 4 --group_size 4 --max_tokens 60 --eval_problems 8 --warmup_steps 0"""
SHORT = {"steps": 1, "prompts_per_step": 2, "max_tokens": 4}


def metrics(path):
    """Of each step of a run, without its times."""
    rows = runs.metrics(path)
    for row in rows:
        row.pop("time/step", None)
    return rows


def weights(path):
    return Path(path, "model/model.safetensors").read_bytes()


# ---- The size is counted in expression nodes: statements are free, nesting is not.


DEFAULT_COMMAND = ["nano_r1.py", "countdown_rewards.py", "nano_report/record.py"]


def tracked(*patterns):
    """{file: its bytes} of the repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    return {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).exists()}


def test_the_sizes_are_within_the_limits_of_the_contributors_page():
    page = (ROOT / "docs/CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| .* \| ([\d,.]+) \| ([\d,.]+) \|$", page.replace(",", ""), re.MULTILINE)
    expressions = Counter()
    statements = Counter()  # without docstrings
    for name, content in tracked("*.py").items():
        for node in ast.walk(ast.parse(content)):
            expressions[name] += isinstance(node, (ast.expr, ast.comprehension))
            statements[name] += isinstance(node, ast.stmt)
            if isinstance(node, ast.Expr):
                statements[name] -= isinstance(node.value, ast.Constant)
    if not expressions:
        pytest.skip("not a git checkout")
    density = {name: n / statements[name] for name, n in expressions.items() if "/" not in name}
    sizes = [
        sum(expressions[name] for name in DEFAULT_COMMAND),
        expressions.total(),
        sum(map(len, tracked("*.py", "*.js", "*.css", "*.sh").values())),
        sum(len(text.split()) for text in tracked("README.md", "docs/*.md").values()),
        density.pop("nano_r1.py"),
        max(density.values()),
    ]
    for size, row in zip(sizes, rows, strict=True):
        assert size <= max(map(float, row)) + 0.05, sizes


# ---- Stopped, killed, resumed


SIX = f"{SMALL} --steps 6 --save_every 2"


def finish(directory, flags):
    """A run of six steps in this process."""
    with contextlib.chdir(directory):
        nano_r1.main(runs.parse("nano_r1", f"{SIX} {flags}"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A directory with nano_r1.py, its task, the model and no more; and a run of six steps."""
    directory = tmp_path_factory.mktemp("runs")
    for file in ("nano_r1.py", "countdown_rewards.py"):
        shutil.copy(ROOT / file, directory)
    shutil.copytree(ROOT / "models/nano-base", directory / "models/nano-base")
    finish(directory, "--name straight")
    return directory


def interrupt(directory, flags, number, file):
    """Start the program, send it a signal as soon as that file is there; what it printed."""
    process = subprocess.Popen(
        [sys.executable, "nano_r1.py", *flags.split()],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": ""},  # without the repository
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not (directory / file).exists() and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(number)
    return process.communicate()[0]


@pytest.fixture(scope="module")
def stopped(straight):
    """What a run prints that gets SIGTERM in its first step."""
    return interrupt(straight, f"{SIX} --name stopped", signal.SIGTERM, "out/stopped/episodes")


def test_sigterm_finishes_the_step(stopped):
    assert "Finishing this step" in stopped and "--resume out/stopped" in stopped


def test_a_run_that_was_stopped_then_killed_while_it_saved_is_the_straight_one(stopped, straight):
    path = straight / "out/stopped"
    steps = [row["step"] for row in metrics(path)]
    assert steps in ([0, 1], [0, 1, 2])  # a slow machine sends the signal late
    assert not (path / "model").exists()
    resumed = "--resume out/stopped"
    interrupt(straight, f"{SIX} {resumed}", signal.SIGKILL, "out/stopped/checkpoint/b.pt")
    finish(straight, resumed)
    assert metrics(path) == metrics(straight / "out/straight")
    assert weights(path) == weights(straight / "out/straight")
    # What is deleted by hand does not make it begin again.
    (path / "metrics.jsonl").unlink()
    finish(straight, resumed)
    assert metrics(path)[0]["step"] == 6
    shutil.rmtree(path / "checkpoint")
    with pytest.raises(SystemExit, match="no checkpoint can be read"):
        finish(straight, resumed)


class Disk(dict):
    """An engine with its checkpoints: {name: what was listed while it was written}."""

    def save_checkpoint(self, folder, tag, save_latest):
        self[tag] = [row["step"] for row in nano_r1.read_rows(f"{folder}/latest.json")]

    def load_checkpoint(self, folder, tag):
        self[tag]


def test_a_torn_checkpoint_falls_back_to_the_one_before_with_a_line(tmp_path, capsys):
    disk = Disk()
    for step in (2, 4, 6):
        nano_r1.save_checkpoint(disk, tmp_path, step)
    assert disk == {"a": [4], "b": [2]}  # what is being overwritten is not listed
    assert nano_r1.load_checkpoint(disk, tmp_path) == 6
    del disk["a"]
    assert nano_r1.load_checkpoint(disk, tmp_path) == 4
    assert capsys.readouterr().out == "The checkpoint of step 6 cannot be read: KeyError('a')\n"
    nano_r1.save_checkpoint(disk, tmp_path, 8)
    assert disk == {"a": [4], "b": [2]}  # what cannot be read is overwritten first
    disk.clear()
    with pytest.raises(SystemExit, match="no checkpoint can be read"):  # not from the beginning
        nano_r1.load_checkpoint(disk, tmp_path)


def test_a_checkpoint_that_another_process_cannot_read_is_read_by_none(tmp_path, monkeypatch):
    disk = Disk()
    for step in (2, 4):
        nano_r1.save_checkpoint(disk, tmp_path, step)
    others = iter([[[]], ["torn"], []])  # what another process gives: rows, a fault, none
    monkeypatch.setattr(nano_r1, "gather", lambda items: items + next(others))
    assert nano_r1.load_checkpoint(disk, tmp_path) == 2


def test_all_processes_save_where_the_first_one_does(tmp_path, monkeypatch):
    disk = Disk()  # of another machine: only the first process writes latest.json
    monkeypatch.setattr(nano_r1, "gather", lambda items: [[{"tag": "a", "step": 2}], *items])
    nano_r1.save_checkpoint(disk, tmp_path, 4)
    assert list(disk) == ["b"]


@pytest.mark.parametrize("part", ["advantages", "loss"])
def test_a_part_whose_result_has_another_shape_is_an_error(part, tmp_path):
    config = nano_r1.Config(name=f"{tmp_path}/run", eval_problems=1, **SHORT)
    with pytest.raises((ValueError, RuntimeError), match="is shorter|shape '.8.' is invalid"):
        nano_r1.main(config, **{part: lambda values, *_: values[:, 0].mean()[None]})


def test_the_result_is_that_of_the_last_evaluation(capsys):
    shares = [{"eval/pass@1": 0.1}, {"eval/pass@1": 0.5}, {}]
    nano_r1.print_summary([row | {"time/step": 60.0} for row in shares], "x")
    assert capsys.readouterr().out.startswith("From 10.0% to 50.0% of held-out problems, in 2.0")


def test_of_two_runs_that_begin_at_once_one_gets_the_directory(tmp_path):
    nano_r1.create_run(f"{tmp_path}/x", {"seed": 0})
    (tmp_path / "x/config.json").unlink()  # also one whose settings are gone keeps it
    with pytest.raises(SystemExit, match="just begun there; try another --name"):
        nano_r1.create_run(f"{tmp_path}/x", {"seed": 1})


MAY_CHANGE = """--micro_batch_size 1 --gradient_checkpointing --offload --device cpu --steps 9
--sampler vllm --vllm_gpu_memory_utilization 0.1 --eval_problems 4 --record_tokens_every 2"""
REFUSED = """--seed 1|--learning_rate 1e-4|--kl_coef 0|--max_tokens 50|--dtype bfloat16|--task math
--prompt chat|--prompts_per_step 2|--group_size 8|--zero_stage 3|--max_grad_norm 0|--model out/x
--data x|--temperature 2|--advantage_eps 1|--cliprange 1|--warmup_steps 1
--lr_scheduler_type constant"""


def resume(path, flags, program="nano_r1", **own):
    nano_r1.find_run(runs.parse(program, f"{SMALL} --resume {path} {flags}"), own)


def test_a_resumed_run_keeps_its_algorithm(straight, monkeypatch):
    path = straight / "out/straight"
    # `resume` gives no data, which is compared last: so these flags are not refused.
    with pytest.raises(SystemExit, match="with checksum of prompt and data .*; use the same"):
        resume(path, MAY_CHANGE, measure=print)
    for flags in re.split(r"[|\n]", REFUSED):
        name, _ = flags.removeprefix("--").split()
        with pytest.raises(SystemExit, match=f"the run was started with {name} .*; use the same"):
            resume(path, flags)
    with pytest.raises(SystemExit, match="the run was started with"):
        resume(path, "", "variants")
    with pytest.raises(SystemExit, match="the run was started with loss None"):
        resume(path, "", loss=print)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(SystemExit, match="started with processes 1, without torchrun"):
        resume(path, "")


def test_a_prompt_with_other_weights_is_another_one(straight, monkeypatch):
    changed = countdown_rewards.PROMPTS["short"]._replace(weights=())
    monkeypatch.setitem(countdown_rewards.PROMPTS, "short", changed)
    with pytest.raises(SystemExit, match="with checksum of prompt and data"):
        finish(straight, "--resume out/straight")


def test_a_name_is_that_of_a_directory_in_out():
    for name, path in ("x", "x"), ("out/x", "x"), ("out//etc", "etc"), ("output", "output"):
        assert nano_r1.path_of(name, "") == f"out/{path}"


def test_settings_of_any_kind_are_compared(tmp_path):
    def fixed(value):  # a new function in each process, as it were
        return {"loss": partial(lambda *_: value, value)}

    config = nano_eval.Config(name=f"{tmp_path}/x", temperature=(0.0, 1.0))
    path, settings = nano_r1.find_run(config, fixed(1))
    nano_r1.create_run(path, settings)
    config = replace(config, resume=path)
    nano_r1.find_run(config, fixed(1))
    with pytest.raises(SystemExit, match="the run was started with temperature"):
        nano_r1.find_run(replace(config, temperature=(1.0,)), fixed(1))
    with pytest.raises(SystemExit, match="the run was started with loss"):
        nano_r1.find_run(config, fixed(2))


def test_a_task_imports_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text("from collections import namedtuple\n")
    file = tmp_path / "own.task.py"
    file.write_text("import beside_it\nReward = beside_it.namedtuple('Reward', 'total')\n")
    task = nano_r1.import_task(str(file))
    assert pickle.loads(pickle.dumps(task.Reward(1))) == (1,)


COUNTS = """
from gsm8k_rewards import *
import gsm8k_rewards
print("executed")
def load_problems(split, source=None, seed=0):
    print("loaded", split, source)
    return gsm8k_rewards.load_problems("test")[:6]
"""


def test_a_task_is_executed_and_its_problems_are_read_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(COUNTS)
    config = variants.Config(
        task=f"{tmp_path}/own.py", eval_data="x", name=f"{tmp_path}/x", **SHORT
    )
    path = variants.main(config)
    found = re.findall("^(?:executed|loaded .*|WARNING)", capsys.readouterr().out, re.MULTILINE)
    # The six are both: that is said.
    assert found == ["executed", "loaded train None", "loaded all x", "WARNING"]
    assert runs.metrics(path)[-1]["eval/problems"] == 6


# ---- Where it runs


@pytest.fixture
def command(monkeypatch):
    """command(main): as the program, without flags."""
    monkeypatch.setattr(sys, "argv", ["nano_r1.py"])
    return partial(nano_r1.run_command, settings=nano_r1.Config)


def test_a_log_in_another_encoding_gets_utf_8(monkeypatch, command):
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, encoding="cp1252"))
    command(lambda _: print("π ≈ ½ 木 \ud800", flush=True))
    assert log.getvalue().decode("utf-8") == "π ≈ ½ 木 \\ud800\n"


def test_what_an_own_task_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacks_rewards.py").write_text("import no_such_package")
    with pytest.raises(SystemExit, match="--task lacks .* No module named 'no_such_package'"):
        nano_r1.import_task("lacks")


# ---- The mistakes that people make


@pytest.mark.parametrize(
    "flags",
    """prompts_per_step 0|group_size 0|max_tokens 0|temperature 0|advantage_eps 0
micro_batch_size 0|steps 0|vllm_gpu_memory_utilization 0|eval_problems 0
cliprange -0.2|kl_coef nan|learning_rate inf|seed -1""".replace("\n", "|").split("|"),
)
def test_a_number_that_no_run_can_have_is_a_sentence_that_names_it(flags):
    with pytest.raises(SystemExit, match=f"^--{flags.split()[0]} must be"):
        nano_r1.check_numbers(runs.parse("nano_r1", f"--{flags}"))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"task": "chess"}, "No module named 'tasks.chess_rewards'. There are countdown, gsm8k"),
        # Before the model, which is not there.
        (
            {"data": "nothing.jsonl", "model": "none"},
            "nothing.jsonl: No such file; --data hub is the",
        ),
        ({"prompt": "nothing.toml", "model": "none"}, "nothing.toml"),
        ({"model": "models/none"}, "clone the repository; of git-lfs: git lfs pull"),
        ({"device": "cuda"}, "sees no GPU"),
        ({"name": "out/straight"}, "--resume out/straight continues it"),
        ({"resume": "out/nothing"}, "there is no run; try the directory of one"),
        ({"prompts_per_step": 99_999}, "at most the 16384 training problems"),
        ({"group_size": 1}, "--group_size must be at least 2"),
        ({"max_tokens": 4000}, "--max_tokens must be below"),
        ({"max_tokens": 1000}, "No problem, or none with room for a completion"),
        ({"zero_stage": 3}, "--sampler vllm"),
    ],
)
def test_a_mistake_is_one_sentence(changes, said, straight, monkeypatch):
    monkeypatch.chdir(straight)
    before = sorted(os.listdir(straight / "out"))
    with pytest.raises(SystemExit, match=re.escape(said)):
        nano_r1.main(nano_r1.Config(**changes))
    assert sorted(os.listdir(straight / "out")) == before


def test_a_mistake_in_a_path_is_not_looked_for_on_the_hub(straight, monkeypatch):
    monkeypatch.chdir(straight)
    asked = mock.Mock(side_effect=OSError)
    monkeypatch.setattr(nano_r1.AutoTokenizer, "from_pretrained", asked)
    for model in ("out/none", "Qwen/none"):
        with pytest.raises(SystemExit):
            nano_r1.load_model(nano_r1.Config(model=model))
    assert [call.kwargs["local_files_only"] for call in asked.call_args_list] == [True, False]


@pytest.mark.parametrize(
    "error, said",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB"), "--micro_batch_size 1"),
        (ValueError("larger than the available KV cache memory (0.1 GiB)"), "Out of memory"),
        (ModuleNotFoundError("No module", name="vllm"), "pip install vllm"),
    ],
)
def test_an_error_of_the_machine_is_a_sentence(error, said, command):
    with pytest.raises(SystemExit, match=said) as raised:
        command(mock.Mock(side_effect=error))
    of_an_update, *_ = str(raised.value).partition("all also with --resume")
    assert set(re.findall(r"--(\w+)", of_an_update)) <= set(nano_r1.Config.MAY_CHANGE)


def test_an_own_error_keeps_its_traceback(command):
    with pytest.raises(ValueError):
        command(mock.Mock(side_effect=ValueError("this word is not in memory")))


# ---- The console


def test_a_run_ends_with_its_result(tmp_path, capsys):
    path = f"{tmp_path}/run"
    nano_r1.main(nano_r1.Config(name=path, eval_problems=4, **SHORT))
    text = capsys.readouterr().out
    short = text.replace(path, "out/countdown-20261126-205055")  # as it is without --name
    assert max(map(len, short.splitlines())) <= 80, short
    assert "Hint: all completions are cut off; try a larger --max_tokens" in text
    assert "0.0% [0.0%, 49.0%] of 4 held-out problems correct" in text
    # The prompt is printed once. After the last verdict only the result follows.
    assert text.count("user: Using the numbers [90, 6, 38]") == 1
    found = re.search(r"(✓|✗) .*\n\nFrom \S+% to \S+% of .*, in [\d.]+ minutes.*\n", text)
    assert text[found.end() :] == (
        f"Model: {path}/model\nHeld-out problems gained: 0, lost: 0\n"
        f"Report, for a browser: {path}/report.html\n"
        "To ask the model: python nano_eval.py --ask 4 --task countdown --prompt short \\\n"
        f"    --model {path}/model\n"
    )


def test_control_characters_of_a_model_do_not_reach_the_terminal():
    assert (
        nano_r1.printable("\033]0;title\a π\n\tno\r\x9b2J")
        == "\ufffd]0;title\ufffd π\n\tno\ufffd\ufffd2J"
    )


def test_the_time_left_grows_with_the_completions():
    left = nano_r1.minutes_left([{}, {"step": 1, "time/step": 60.0}], nano_r1.Config(steps=2))
    assert left == pytest.approx(2**1.1 - 1)
