"""runs/: every run of every command has the right flags, and each setting has taken a step."""

import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.testing import assert_close

import nano_r1
import variants
from benchmarks import runs, sweep

SCRIPTS = Path(runs.ROOT, "runs")
# The names of train.sh's table, with the gigabytes of those that need a card.
TABLE = dict(
    re.findall(
        r"^  ([\w.]+)\)(?: join_gsm8k;)?\s+\w+ (\d*)", (SCRIPTS / "train.sh").read_text(), re.M
    )
)
COMMANDS = [
    *[f"train {name}" for name in TABLE],
    "countdown_smollm2",
    "lora_study",
    "lora_study small",
    "countdown_assignment train",
    "countdown_assignment learning_rate",
    "countdown_assignment baselines",
    "countdown_assignment length",
    "countdown_assignment std",
    "countdown_assignment off_policy",
    "countdown_assignment test",
    "math_assignment baseline",
    "math_assignment tune",
    "math_assignment sizes",
    "math_assignment test",
]
PROMPTS = sorted(path.stem for path in (SCRIPTS / "prompts").iterdir())
PROBLEMS = [  # of all tasks; also rows to imitate
    {
        "nums": [i + 1, 4, 5],
        "target": i + 10,
        "question": f"What is {i} plus 1?",
        "problem": f"What is ${i}+1$?",
        "answer": str(i + 1),
        "prompt": "1+1=",
        "response": str(i),
    }
    for i in range(30)
]
COLUMNS = {"countdown": ["nums", "target"], "gsm8k": ["question"], "math": ["problem"]}
GOOD = {  # a completion with the full reward, of problem 2
    "countdown": "</think><answer>3+4+5</answer>",
    "countdown_course": "<answer>3+4+5</answer>",
    "countdown_question": "<answer>3+4+5</answer>",
    "countdown_reasoning": "<reasoning></reasoning><answer>3+4+5</answer>",
    "countdown_think": "<think></think><answer>3+4+5</answer>",
    "gsm8k": "</think><answer>3</answer>",
    "math": "It is $\\boxed{3}$.",
}
# The reward of "it is 12": the study of <reasoning> has a binary format reward.
IN_WORDS = {"countdown_course": 0, "countdown_nano_aha": 0.5, "countdown_question": 0.5}
SMALL = """--device cpu --sampler transformers --model models/nano-base --prompts_per_step 2
--group_size 2 --max_tokens 4 --eval_problems 2 --eval_every 0 --record_tokens_every 0 --steps 1"""
# For python: writes its arguments, and how a sweep starts its runs, to a file.
RECORDER = """#!/bin/sh
case $2 in *deepspeed*) [ $INSTALLED ]; exit ;; esac
case $1 in -c | models/*) exit ;; esac
printf '%s\\0' "$LAUNCHER" "$@" END >> "$(dirname "$0")/commands"
"""
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node 8 --local-ranks-filter 0"


@pytest.fixture
def folder(tmp_path):
    """A recorder and a file of problems."""
    program = tmp_path / "python"
    program.write_text(RECORDER)
    program.chmod(0o755)
    nano_r1.write_rows(f"{tmp_path}/problems.jsonl", PROBLEMS)
    return tmp_path


def recorded(folder, words, **environment):
    """[[launcher, program, flag, ...]] that a script starts in a directory with a file."""
    log = folder / "commands"
    log.write_text("")
    script, *words = words.split()
    settings = {
        "PYTHON": folder / "python",
        "OUT": folder / "out",
        "DATA": "none.jsonl",
        "DEV": "problems.jsonl",
        "SFT": "sft.jsonl",
        "FILES": "one.jsonl two.jsonl",
        "MODEL": "model",
    }
    command = ["bash", SCRIPTS / f"{script}.sh", *words]
    subprocess.run(command, check=True, env=os.environ | settings | environment, cwd=folder)
    return [text.split("\0") for text in log.read_text().split("\0END\0")[:-1]]


TAKEN = {}  # {(program, setting, value, or whether a number is not 0): the run's directory}


def take_step(name, flags, folder):
    """Check a run's flags; it takes a step if a setting has a value that has taken none."""
    file = f"{folder}/problems.jsonl"
    more = f"--data {file}"
    if name == "nano_sft":
        more += f" --eval_data {file} --batch_size 2 --examples 4"
    if name == "nano_eval":
        more = f"--eval_data {file}"
    asked = runs.parse(name, f"{flags} {more}")
    # the short prompts name no tags: nano-base knows them
    assert asked.prompt != "short" or asked.model == nano_r1.Config.model
    nano_r1.check_numbers(asked)
    if name == "variants":
        with mock.patch.object(nano_r1, "main"):
            variants.main(asked)
    small = runs.parse(name, f"{flags} {SMALL} {more}")
    values = set()
    for setting, value in vars(small).items():
        if isinstance(value, (int, float)):  # other numbers would change nothing here
            value = value != 0
        if setting not in ("name", "data", "eval_data"):
            values.add((name, setting, value))
    if values <= TAKEN.keys():
        path = TAKEN[name, "task", small.task]
        shutil.copytree(path, small.name)
    else:
        path = importlib.import_module(name).main(small)
        TAKEN.update(dict.fromkeys(values, path))
    assert {"model", "evaluation.json"} & set(os.listdir(path))


@pytest.mark.parametrize("words", COMMANDS)
def test_each_setting_of_a_command_takes_a_step(words, folder, monkeypatch):
    def train(name, flags, path):
        take_step(name, f"{flags} --name {path}", folder)

    monkeypatch.chdir(runs.ROOT)
    monkeypatch.setattr(runs, "train", train)
    commands = recorded(folder, words)
    for _, program, *flags in commands:
        if program == "-m":  # benchmarks.sweep
            monkeypatch.setattr(sys, "argv", flags)
            sweep.main()
        else:
            take_step(program.removesuffix(".py"), shlex.join(flags), folder)
    assert commands


def test_the_advantage_of_docs_own_loss_trains_with_the_flags_of_a_script(folder, monkeypatch):
    text = Path(runs.ROOT, "docs/own_loss.md").read_text()
    program = folder / "my_advantage.py"
    program.write_text(re.search(r"```python\n(.*?)```", text, re.S)[1])
    words = "train gsm8k_nano --robust --steps 1 --prompts_per_step 2 --max_tokens 48"
    [(_, *command)] = recorded(folder, f"{words} --eval_problems 4", SCRIPT=program)
    monkeypatch.chdir(runs.ROOT)
    monkeypatch.setattr(sys, "argv", command)
    mine = runpy.run_path(command[0], run_name="__main__")["advantages"]
    [path] = (folder / "out").iterdir()
    config = (path / "config.json").read_text()
    assert '"robust": true' in config and '"task": "gsm8k"' in config and '"steps": 1,' in config
    rows = nano_r1.read_rows(path / "episodes/step_000001.jsonl")
    rewards, found = torch.tensor([[e["reward"], e["advantage"]] for e in rows]).T
    assert_close(found.view(2, 8), mine(rewards.view(2, 8)))
    assert found.any()


OWN_TASK = Path(runs.ROOT, "docs/own_task.md").read_text("utf-8")


def rows_of_a_step(task):
    """The episodes of a step with the command of docs/own_task.md for a task."""
    [(name, flags)] = re.findall(rf"python (\w+)\.py (--task {task} [^`\n]+)", OWN_TASK)
    config = runs.parse(name, f"{flags} {SMALL} --model {runs.ROOT}/models/nano-base")
    path = importlib.import_module(name).main(config)
    return nano_r1.read_rows(f"{path}/episodes/step_000001.jsonl")


@pytest.mark.parametrize("task", ["coins", "gym"])
def test_the_command_of_docs_own_task_takes_a_step(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(rows_of_a_step(task)) == 4


@pytest.mark.parametrize("name, memory", TABLE.items())
def test_only_runs_for_24_gb_or_more_start_torchrun(name, memory, folder, capfd):
    is_large = int(memory or 0) >= 24
    [(launcher, *_)] = recorded(folder, f"train {name}", INSTALLED="yes", GPUS="8")
    assert launcher == (TORCHRUN if is_large else "")
    recorded(folder, f"train {name}")
    assert ("pip install deepspeed" in capfd.readouterr().out) == is_large


def test_countdown_takes_the_problems_of_data(folder):
    (command,) = recorded(folder, "train countdown_qwen2.5_0.5b")
    assert command[command.index("--data") + 1] == "none.jsonl"


def test_a_grid_does_not_ignore_a_program_of_one_s_own(folder):
    with pytest.raises(subprocess.CalledProcessError):
        recorded(folder, "train compare_prompts", SCRIPT="my_advantage.py")


def test_a_sweep_starts_its_runs_as_its_script_does(monkeypatch, capfd):
    monkeypatch.setenv("LAUNCHER", TORCHRUN)
    monkeypatch.setattr(sys, "executable", "echo")  # instead of python
    with pytest.raises(SystemExit):  # it has trained nothing
        runs.train("variants", "--steps 5", "out/none")
    assert f"\n{TORCHRUN} -m variants --steps 5" in capfd.readouterr().out


def test_files_are_those_of_the_directory_in_which_a_script_is_started(folder):
    (command,) = recorded(folder, "countdown_assignment train")
    flags = command[command.index("--flags") + 1]
    assert "--data none.jsonl" in flags and f"--eval_data {folder}/problems.jsonl" in flags


def test_a_second_start_continues(folder):
    path = folder / "out/countdown_nano__steps_3"
    for how in ("--name", "--resume"):
        [(*_, setting, value)] = recorded(folder, "train countdown_nano --steps 3")
        assert (setting, value) == (how, str(path))
        (path / "model").mkdir(parents=True, exist_ok=True)  # an empty one is not complete
        (path / "config.json").touch()
    (path / "model/tokenizer_config.json").touch()
    assert recorded(folder, "train countdown_nano --steps 3") == []


@pytest.mark.parametrize("name", PROMPTS)
def test_the_answer_to_a_prompt_file_has_the_full_reward(name):
    kind = name.partition("_")[0]
    _, task = runs.load(nano_r1.Config(task=kind, prompt=f"{SCRIPTS}/prompts/{name}.toml"))
    problem = PROBLEMS[2]
    text = task.prompt_text(problem)
    for column in COLUMNS[kind]:
        assert str(problem[column]) in text and "{" + column not in text
    completion = GOOD.get(name, GOOD[kind])
    for tag in re.findall(r"</\w+>|boxed", completion):
        assert tag in text  # it is asked for
    best = sum(getattr(task.prompt, "weights", [1, 1]))
    reward = task.module.reward(completion, problem, task.prompt)
    assert (reward.total, reward.answer, reward.why) == (best, 1.0, "correct")
    if kind == "countdown":
        in_words = completion.replace("3+4+5", "it is 12")
        assert task.reward(in_words, problem, [])[0] == IN_WORDS.get(name, 1)
