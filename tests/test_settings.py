"""Settings: the command line, the checks of a config wherever it is made, and what a resumed run may change."""

import dataclasses
import itertools
import json
import os
import re
import shlex

import pytest
from helpers import SMALL, cpu_seconds_of_children, flags, main, run, train

import nano_r1 as r1
from nano_r1 import Config
from plumbing import devices
from plumbing.settings import UserError, parse_args


def parse(argv):
    return parse_args(Config, "nano_r1.py", r1.DESCRIPTION, shlex.split(argv) if isinstance(argv, str) else argv)


def test_no_flags_give_the_defaults():
    assert parse("") == Config()


def test_flags_set_the_settings_of_their_name():
    config = parse("--steps 7 --learning_rate 1e-5 --scale_rewards none --loss_type gspo --epochs 2 --offload")
    expected = {"steps": 7, "learning_rate": 1e-5, "scale_rewards": "none", "loss_type": "gspo", "epochs": 2}
    assert config == Config(**expected, offload=True)


def test_the_flag_of_the_deepspeed_launcher_is_passed_over():
    assert parse(["--local_rank=1", "--steps", "7"]) == Config(steps=7)


def test_help_lists_every_setting_with_its_comment(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert [
        f.name for f in dataclasses.fields(Config) if f"--{f.name} " not in text and f"--{f.name}," not in text
    ] == []
    assert "what a reward is compared with; leave_one_out" in " ".join(text.replace("│", " ").split())


def test_help_answers_within_a_second_and_advises_for_larger_models():
    before = cpu_seconds_of_children()  # not by the clock, which other programs make run
    done = run("--help")
    assert cpu_seconds_of_children() - before < 1.0
    assert done.returncode == 0
    assert "[1e-6, adapters 1e-5: see runs/]" in " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    "argv, words",
    [
        ("--no_such_flag 3", "Unrecognized options: --no_such_flag"),
        ("--steps many", "Error parsing --steps: invalid literal for int() with base 10: 'many'"),
        ("--loss_type ppo", "invalid choice 'ppo' for argument '--loss_type'"),
        ("--zero_stage 4", "invalid choice '4' for argument '--zero_stage'"),
        ("--rollout sglang", "invalid choice 'sglang' for argument '--rollout'"),
        ("--scale_rewards False", "invalid choice 'False' for argument '--scale_rewards'"),
    ],
)
def test_a_flag_that_cannot_be_read_is_named(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())


WRONG = {
    "steps": (0, "--steps 0: it must be at least 1"),
    "prompts_per_step": (0, "--prompts_per_step 0: it must be at least 1"),
    "group_size": (0, "--group_size 0: it must be at least 1"),
    "max_tokens": (-3, "--max_tokens -3: it must be at least 1"),
    "micro_batch_tokens": (0, "--micro_batch_tokens 0: it must be at least 1"),
    "eval_problems": (0, "--eval_problems 0: it must be at least 1"),
    "eval_samples": (0, "--eval_samples 0: it must be at least 1"),
    "kl_coef": (-0.1, "--kl_coef -0.1: it must be not negative"),
    "entropy_coef": (float("inf"), "--entropy_coef inf: it must be not negative, and finite"),
    "save_every": (-1, "--save_every -1: it must be not negative"),
    "temperature": (0.0, "--temperature 0.0: it must be above 0"),
    "cliprange_high": (float("nan"), "--cliprange_high nan: it must be above 0"),
    "learning_rate": (float("inf"), "--learning_rate inf: it must be above 0, and finite"),
    "name": ("../x", "--name ../x: a name, not a path; --out says where run directories go"),
    "lora_target_modules": ("q_proj", "--lora_target_modules without --lora_rank has no effect"),
    "epochs": (2, "take --loss_type grpo_clip"),
    "overlong_buffer": (10_000, "--overlong_buffer must not exceed --max_tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_one_sentence_on_the_command_line_and_in_a_notebook(name):
    value, sentence = WRONG[name]
    settings = {name: value, **({"loss_type": "no_baseline"} if name == "epochs" else {})}
    for make in (lambda: Config(**settings), lambda: parse(flags(**settings))):
        with pytest.raises(UserError, match=re.escape(sentence)) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name, value", [("loss_type", "nonsense"), ("scale_rewards", True), ("zero_stage", 4)])
def test_a_choice_that_does_not_exist_is_refused_in_a_notebook_too(name, value):
    with pytest.raises(UserError, match=f"--{name} {value}: it must be one of"):
        Config(**{name: value})


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"group_size": 1}, "--group_size 1 leaves nothing to compare with"),
        ({"offload": True, "zero_stage": 0}, "--offload needs --zero_stage 1, 2 or 3"),
        ({"dtype": "bfloat16", "zero_stage": 1}, "--dtype bfloat16 needs --zero_stage 2 or 3"),
        ({"loss_type": "no_baseline", "credit": "vineppo"}, "no_baseline ignores advantages"),
        ({"loss_type": "no_baseline", "max_num_gen_batches": 2}, "no_baseline ignores advantages"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Config(**settings)


def test_one_completion_is_enough_without_a_baseline():
    assert parse("--group_size 1 --loss_type no_baseline").group_size == 1


# What goes wrong before the first step: nothing is written


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"lora_rank": 4, "lora_target_modules": "no_such_layer"}, "--lora_target_modules no_such_layer: "),
        ({"minibatches": 3}, r"shared equally by 1 process\(es\) and 3 minibatch\(es\): take a multiple of 3."),
        (
            {"dtype": "bfloat16"},
            "--dtype bfloat16 is for a GPU, and torch sees none: .* driver of version 580 or newer",
        ),
        ({"device": "cuda"}, "--device cuda is for a GPU, and torch sees none: "),
        ({"data": "no_such_file.jsonl"}, "No such data file: no_such_file.jsonl"),
        ({"task": "chess"}, "there is no chess_rewards.py. Tasks here: countdown"),
        ({"task": "../countdown"}, "--task takes the name of a task, not '../countdown'"),
        ({"task": "math"}, "--data hub"),
        ({"model": "/no/such/model"}, "The model /no/such/model could not be read"),
        ({"prompts_per_step": 100_000}, "fewer than --prompts_per_step 100000"),
        ({"prompt": "haiku"}, "--prompt haiku is not one of the task's prompts"),
        ({"max_tokens": 100_000}, "No prompt leaves room for --max_tokens 100000"),
        ({"resume": "no/such/run"}, "--resume no/such/run: no readable config.json there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(settings, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught:
        train(tmp_path / "out", "a", **settings)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("said", ["550.54.15", None])
def test_an_old_driver_or_none_is_named(said, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr(devices, "DRIVER", str(tmp_path / "version"))
    if said:
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {said}  Thu Feb 22 01:44:30 UTC 2024\n"
        (tmp_path / "version").write_text(line)
    with pytest.raises(
        UserError, match="built for CUDA 13.0, which needs an NVIDIA driver of version 580 or newer"
    ) as e:
        devices.check_device(Config(dtype="bfloat16"), False)
    assert str(e.value).endswith(f"; here it is {said}." if said else ", and none is loaded here.")


def test_a_card_without_bfloat16_is_told_what_to_take_instead(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Tesla T4")
    devices.check_device(Config(), True)
    with pytest.raises(UserError, match="Tesla T4 cannot; take --dtype float32, and --rollout transformers with it"):
        devices.check_device(Config(dtype="bfloat16"), True)


def test_float32_in_vllm_s_kernels_is_not_tf32():
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee"  # read when vLLM's first kernel is compiled


def test_a_directory_that_cannot_be_written_is_one_sentence():
    with pytest.raises(UserError, match="--out /sys/nano_r1 could not be written: ") as caught:
        train("/sys/nano_r1", "a")
    assert "\n" not in str(caught.value)


# Resuming


@pytest.fixture
def run_directory(tmp_path):
    saved = Config(name="run", prompts_per_step=4, steps=10)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(saved)))
    return str(tmp_path)


def test_resume_takes_the_settings_of_the_run(run_directory):
    expected = Config(name="run", prompts_per_step=4, steps=10, resume=run_directory)
    assert parse(["--resume", run_directory]) == parse([f"--resume={run_directory}"]) == expected


def test_resume_may_change_the_number_of_steps(run_directory):
    assert parse(["--resume", run_directory, "--steps", "20"]).steps == 20


def test_resume_with_another_setting_is_refused(run_directory):
    with pytest.raises(UserError, match="drop --prompts_per_step"):
        parse(["--resume", run_directory, "--prompts_per_step", "8"])


def test_resume_with_a_setting_repeated_as_it_was_is_allowed(run_directory):
    assert parse(["--resume", run_directory, "--prompts_per_step", "4"]).prompts_per_step == 4


def test_resume_with_wrong_steps_is_refused(run_directory):
    with pytest.raises(UserError, match="--steps 0: it must be at least 1"):
        parse(["--resume", run_directory, "--steps", "0"])


def test_resume_gives_a_setting_that_an_older_config_lacks_its_default(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"prompts_per_step": 4}))
    assert parse(["--resume", str(tmp_path), "--cliprange", "0.2"]).cliprange == 0.2


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '{"no_such_setting": 1}'])
def test_resume_with_an_unreadable_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match="no readable config.json there"):
        parse(["--resume", str(tmp_path)])


# The table of algorithms


def algorithms():
    """{name: flags} of the table in docs/algorithms.md."""
    with open("docs/algorithms.md") as file:
        lines = file.read().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| algorithm | flags |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return {name: flags.strip("`") for _, name, flags, *_ in cells}


ALGORITHMS = algorithms()


def test_the_table_has_the_algorithms_that_the_course_and_the_papers_name():
    names = " ".join(ALGORITHMS)
    known = ("Dr. GRPO", "RLOO", "REINFORCE", "DAPO", "GSPO", "VinePPO", "nano-aha-moment", "importance sampling")
    assert [name for name in known if name not in names] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_table_is_a_setting_of_its_own(name):
    config = parse(ALGORITHMS[name])
    assert config not in [parse(argv) for other, argv in ALGORITHMS.items() if other != name]


@pytest.mark.parametrize("name", ["DAPO", "GSPO", "VinePPO", "RLOO"])
def test_a_step_of_an_algorithm_of_the_table_changes_the_weights(name, tmp_path):
    (argv,) = (flags for other, flags in ALGORITHMS.items() if other.startswith(name))
    small = {**SMALL, "max_tokens": 64, "steps": 1, "save_every": 0, "eval_problems": 2, "vine_samples": 2}
    config = dataclasses.replace(parse(argv), **small, out=str(tmp_path), name="a")
    path, printed = main(**dataclasses.asdict(config))
    assert "WARNING: loss" not in printed
    with open(path / "metrics.jsonl") as file:
        _, row = map(json.loads, file)
    assert row["grad_norm"] > 0 and row["bad_updates"] == 0
