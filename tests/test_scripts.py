"""runs/: every run of every command of every script takes two steps on a random model."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

import nano_r1
from benchmarks import runs, sweep

EXERCISES = {
    "countdown_assignment": "train learning_rate baselines length std off_policy test".split(),
    "math_assignment": "baseline tune sizes test".split(),
    "lora_study": ["", "small"],
}
SCRIPTS = sorted(path.stem for path in Path(runs.ROOT, "runs").glob("*_*.sh"))
COMMANDS = [(s, words) for s in SCRIPTS for words in EXERCISES.get(s, [""])]
PROMPTS = sorted(map(str, Path(runs.ROOT, "runs/prompts").glob("*.toml")))
PROBLEMS = {
    "countdown": [{"nums": [i, 4, 5], "target": i + 9} for i in range(1, 31)],
    "gsm8k": [{"question": f"What is {i} plus 1?", "answer": f"#### {i + 1}"} for i in range(30)],
    "math": [{"problem": f"What is ${i}+1$?", "answer": str(i + 1)} for i in range(30)],
}
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
IN_WORDS = {
    "countdown_course": 0,
    "countdown_nano_aha": 0.5,
    "countdown_question": 0.5,
    "countdown_reasoning": 1,
    "countdown_think": 1,
}
SFT = [{"prompt": f"{i}+1=", "response": str(i + 1)} for i in range(20)]
SMALL = (
    "--device cpu --sampler transformers --steps 2 --prompts_per_step 2 --group_size 4 "
    "--max_tokens 8 --eval_problems 2 --eval_every 0 --record_tokens_every 0"
)
SFT_SMALL = "--batch_size 2 --examples 4"
# A program instead of python that writes its arguments to a file.
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" END >> "$(dirname "$0")/commands"
printf '%s' "$LAUNCHER" > "$(dirname "$0")/launcher"
case $2 in *deepspeed*) [ $INSTALLED ] ;; esac
"""
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node 8 --local-ranks-filter 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recorder, a random Qwen3 of a tiny shape, problems of each task, rows to imitate."""
    path = tmp_path_factory.mktemp("scripts")
    (path / "python").write_text(RECORDER)
    (path / "python").chmod(0o755)
    shutil.copytree(f"{runs.ROOT}/models/nano-base", path / "model")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 1640}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    made = transformers.AutoConfig.for_model("qwen3", **shape, **heads)
    transformers.AutoModelForCausalLM.from_config(made).save_pretrained(path / "model")
    for name, rows in (PROBLEMS | {"sft": SFT}).items():
        nano_r1.write_rows(f"{path}/{name}.jsonl", rows)
    return path


def recorded(folder, script, words, **environment):
    """[[program, flag, ...]] that a script starts."""
    (folder / "commands").write_text("")
    environment |= {"PYTHON": f"{folder}/python", "OUT": f"{folder}/out", "MODEL": "out/model"}
    environment |= {"DATA": "none.jsonl", "SFT": "sft.jsonl", "FILES": "one.jsonl two.jsonl"}
    environment["DEV"] = "countdown.jsonl"  # it is there
    command = ["bash", f"{runs.ROOT}/runs/{script}.sh", *words.split()]
    subprocess.run(command, check=True, env=os.environ | environment, cwd=folder)
    found = [text.split("\0") for text in (folder / "commands").read_text().split("\0END\0")[:-1]]
    return [command for command in found if not command[0].startswith(("-c", "models/"))]


def started(command, monkeypatch):
    """[(module, flags)] of the runs of a command: a sweep has many."""
    found = [(command[0], shlex.join(command[1:]))]
    if command[:2] == ["-m", "benchmarks.sweep"]:
        found.clear()
        monkeypatch.setattr(runs, "train", lambda name, flags, path: found.append((name, flags)))
        monkeypatch.setattr(runs, "draw_curves", lambda *_: None)
        for name in ("result_table", "curve_table", "subgroup_table", "minutes"):
            monkeypatch.setattr(sweep, name, lambda *_: "")
        monkeypatch.setattr(sys, "argv", command[1:])
        sweep.main()
    return [(name.removesuffix(".py"), flags) for name, flags in found]


@pytest.mark.parametrize("script, words", COMMANDS)
def test_each_run_of_a_command_takes_two_steps(script, words, folder, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    commands = recorded(folder, script, words)
    found = sum((started(command, monkeypatch) for command in commands), [])
    for number, (name, flags) in enumerate(found):
        problems = f"{folder}/{runs.parse(name, flags).task}.jsonl"
        files = {
            "nano_sft": f"--data {folder}/sft.jsonl --eval_data {problems} {SFT_SMALL}",
            "nano_eval": f"--eval_data {problems}",
        }
        files = files.get(name, f"--data {problems}")
        place = f"--model {folder}/model --name {folder}/{script}{words}{number}"
        config = runs.parse(name, f"{flags} {SMALL} {place} {files}")
        path = importlib.import_module(name).main(config)
        assert os.path.exists(f"{path}/model") or os.path.exists(f"{path}/evaluation.json")
        if "--eval_data" in f"{flags} {files}" and name != "nano_eval":
            rows = nano_r1.read_rows(f"{path}/evaluations/step_000000.jsonl")
            assert [row["problem"] for row in rows] == PROBLEMS[config.task][:2]
        asked = runs.parse(name, flags)
        assert asked.sampler == "auto" or "t4" in script
        # the short prompts name no tags: nano-base knows them
        assert asked.prompt != "short" or asked.model == nano_r1.Config.model
    assert found


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_scripts_for_24_gb_or_more_start_torchrun(script, folder):
    recorded(folder, script, EXERCISES.get(script, [""])[0], INSTALLED="yes", GPUS="8")
    large = re.search("GPU with [2-9]. GB", Path(runs.ROOT, f"runs/{script}.sh").read_text())
    assert (folder / "launcher").read_text() == (TORCHRUN if large else "")


@pytest.mark.parametrize("installed, start", [("", "variants.py"), ("yes", TORCHRUN)])
def test_a_script_starts_torchrun_or_says_that_deepspeed_is_missing(
    installed, start, folder, capfd
):
    (command,) = recorded(folder, "countdown_qwen2.5_0.5b", "", INSTALLED=installed, GPUS="8")
    assert shlex.join(command).startswith(start)
    assert ("pip install deepspeed" in capfd.readouterr().out) != bool(installed)


def test_a_sweep_starts_its_runs_as_its_script_does(monkeypatch, capfd):
    monkeypatch.setenv("LAUNCHER", TORCHRUN)
    monkeypatch.setattr(sys, "executable", "echo")  # instead of python
    with pytest.raises(SystemExit):  # it has trained nothing
        runs.train("variants", "--steps 5", "out/none")
    assert f"\n{TORCHRUN} -m variants --steps 5" in capfd.readouterr().out


@pytest.mark.parametrize("first", ["--steps 5", "4b --steps 5"])
def test_further_flags_of_the_study_of_adapters_go_to_its_runs(first, folder):
    base, sweep = recorded(folder, "lora_study", first)
    assert base[-4:-2] == ["--steps", "5"] and "--steps 5" in sweep[sweep.index("--flags") + 1]


def test_files_are_those_of_the_directory_in_which_a_script_is_started(folder):
    (command,) = recorded(folder, "countdown_assignment", "train")
    flags = command[command.index("--flags") + 1].split()
    assert {"none.jsonl", f"{folder}/countdown.jsonl"} < set(flags)


def test_a_test_without_a_model_says_what_is_missing(folder):
    command = ["bash", f"{runs.ROOT}/runs/countdown_assignment.sh", "test"]
    done = subprocess.run(command, env=os.environ | {"MODEL": ""}, capture_output=True, text=True)
    assert done.returncode and "MODEL: a directory" in done.stderr


def test_a_second_start_continues_and_a_third_does_nothing(folder):
    path = folder / "out" / "countdown_nano__steps_3"
    (command,) = recorded(folder, "countdown_nano", "--steps 3")
    assert command[-2:] == ["--name", str(path)]
    nano_r1.write_rows(f"{path}/config.json", [])
    (path / "model").mkdir()  # an empty one is not complete
    (command,) = recorded(folder, "countdown_nano", "--steps 3")
    assert command[-2:] == ["--resume", str(path)]
    (path / "model/tokenizer_config.json").touch()
    assert recorded(folder, "countdown_nano", "--steps 3") == []


@pytest.mark.parametrize("file", PROMPTS, ids=os.path.basename)
def test_a_prompt_file_asks_the_problem_and_its_answer_has_the_full_reward(file, folder):
    kind = os.path.basename(file).partition("_")[0]
    config = nano_r1.Config(task=kind, prompt=file, model=f"{folder}/model")
    policy, tokenizer = nano_r1.load_model(config)
    task = nano_r1.Task(tokenizer, policy, config)
    problem = PROBLEMS[kind][2]
    text = tokenizer.decode(task.prompt_ids(problem))
    assert all(str(value) in text for name, value in problem.items() if name != "answer")
    assert "{" + list(problem)[0] + "}" not in text and text.endswith(task.prompt.opening)
    completion = GOOD.get(Path(file).stem) or GOOD[kind]
    assert all(tag in text for tag in re.findall(r"</\w+>|boxed", completion))  # it is asked for
    reward = task.module.reward(completion, problem, task.prompt)
    best = sum(getattr(task.prompt, "weights", [1, 1]))
    assert (reward.total, reward.answer, reward.why) == (best, 1.0, "correct")
    in_words = task.module.reward(completion.replace("3+4+5", "it is 12"), problem, task.prompt)
    assert in_words.total == IN_WORDS.get(Path(file).stem, best)
