"""Settings: the command line, the checks of a config wherever it is made, resuming."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers import cpu_seconds_of_children, run, train

import nano_r1
import variants
from nano_r1 import Config
from plumbing.processes import check_device
from plumbing.settings import UserError, check_resumable, parse_args, read_config


def parse(*argv):
    return parse_args(Config, "nano_r1.py", "", list(map(str, argv)))


@pytest.mark.parametrize(
    "argv, settings",
    [
        ("", {}),
        (
            "--steps 7 --learning_rate 1e-5 --offload",
            {"steps": 7, "learning_rate": 1e-5, "offload": True},
        ),
        ("--local_rank=1 --steps 7", {"steps": 7}),  # the deepspeed launcher's
        ("--record-tokens-every 3 --no-report", {"record_tokens_every": 3, "report": False}),
    ],
)
def test_flags_set_the_settings_of_their_name(argv, settings):
    assert parse(*argv.split()) == Config(**settings)


def test_help_lists_every_setting_with_its_comment_and_answers_at_once():
    before = cpu_seconds_of_children()  # not by the clock, which other programs make run
    done = run("--help")
    assert cpu_seconds_of_children() - before < 1.0 and done.returncode == 0
    said = " ".join(done.stdout.replace("│", " ").split())
    names = [field.name for field in dataclasses.fields(Config)]
    assert [name for name in names if f"--{name} " not in said and f"--{name}," not in said] == []
    assert "adapters 1e-5" in said  # a comment


@pytest.mark.parametrize(
    "argv", ["--no_such_flag 3", "--steps many", "--zero_stage 4", "--rollout sglang"]
)
def test_a_flag_that_cannot_be_read_is_named(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*argv.split())
    assert caught.value.code == 2 and argv.split()[0] in capsys.readouterr().err


# Of a setting: values that are refused, in a notebook as on the command line.
WRONG = {
    "steps": ["20", 2.0, True, None, 0, -1],
    "group_size": [1],
    "max_tokens": [0],
    "learning_rate": ["1e-4", None, True, 0, 0.0, 1e38, float("inf"), float("nan")],
    "kl_coef": [-0.1],
    "temperature": [0.0],
    "save_every": [-1],
    "record_tokens_every": [-1, "4", 1.5],
    "eval_only": ["False", 1, None],
    "seed": ["0", 0.0],
    "dtype": ["float16", 32],
    "zero_stage": [4, "2", None],
    "task": [20, None],
    "data": [3],
    "name": ["../x", "a/b", "", "..", "a\nb", 3],
    "lora_target_modules": ["q_proj"],  # without a rank
}


CONTRADICTIONS = [
    ("zero_stage", {"dtype": "bfloat16", "zero_stage": 1}),
    ("offload", {"offload": True, "zero_stage": 0}),
]
REFUSED = [(name, {name: value}) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize("name, settings", REFUSED + CONTRADICTIONS)
def test_a_wrong_value_is_one_sentence_that_names_the_setting(name, settings):
    with pytest.raises(UserError) as caught:
        Config(**settings)
    assert f"--{name} " in str(caught.value) and "\n" not in str(caught.value)


def test_paths_and_whole_numbers_are_taken_for_texts_and_numbers():
    config = Config(out=Path("a") / "b", model=Path("m"), learning_rate=1, record_tokens_every=None)
    assert (config.out, config.model, config.learning_rate) == ("a/b", "m", 1)


@pytest.mark.parametrize("given", [Config, {}, None, "out/NAME"], ids=str)
def test_main_with_something_else_than_a_config_is_one_sentence(given):
    with pytest.raises(UserError, match="Config"):
        nano_r1.main(given)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"lora_rank": 4, "lora_target_modules": "no_such_layer"}, "--lora_target_modules no_such"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16"),
        ({"device": "cuda"}, "--device cuda"),
        ({"data": "no_such_file.jsonl"}, "no_such_file.jsonl"),
        ({"task": "chess"}, "chess_rewards.py"),
        ({"task": "../countdown"}, "'../countdown'"),
        ({"task": "math"}, "--data hub"),
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"prompts_per_step": 100_000}, "--prompts_per_step 100000"),
        ({"prompt": "haiku"}, "--prompt haiku"),
        ({"max_tokens": 100_000}, "--max_tokens 100000"),
        ({"resume": "no/such/run"}, "--resume no/such/run"),
        ({"out": "/sys/nano_r1"}, "/sys/nano_r1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(settings, named, tmp_path):
    with pytest.raises(UserError) as caught:
        train(**{"out": tmp_path / "out", "name": "a", **settings})
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_card_without_bfloat16_is_told_what_to_take_instead(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Tesla T4")
    check_device(Config(), True)
    with pytest.raises(UserError, match="Tesla T4 .*--dtype float32"):
        check_device(Config(dtype="bfloat16"), True)


def test_bfloat16_on_a_cpu_is_asked_for_and_no_card_is_passed_over():
    check_device(Config(device="cpu", dtype="bfloat16"), on_gpu=False)
    with pytest.raises(UserError, match="--device cpu"):
        check_device(Config(device="cpu"), on_gpu=True)


# Resuming


@pytest.fixture
def directory(tmp_path):
    """Of a run with other settings than the defaults."""
    saved = Config(name="run", prompts_per_step=4, steps=10)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(saved)))
    return str(tmp_path)


@pytest.mark.parametrize("argv", ["", "--prompts_per_step 4", "--steps 20 --micro_batch_tokens 99"])
def test_resume_takes_the_settings_of_the_run_but_for_those_that_may_change(argv, directory):
    config = parse("--resume", directory, *argv.split())
    check_resumable(config)
    assert config.resume == directory and config.prompts_per_step == 4
    assert config.steps == (20 if "--steps" in argv else 10)
    assert config == parse(f"--resume={directory}", *argv.split())


@pytest.mark.parametrize("argv", ["--prompts_per_step 8", "--seed 1", "--steps 0"])
def test_resume_with_another_setting_or_a_wrong_one_is_refused(argv, directory):
    with pytest.raises(UserError, match=argv.split()[0]):
        check_resumable(parse("--resume", directory, *argv.split()))


def test_resume_gives_a_setting_that_an_older_config_lacks_its_default(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"prompts_per_step": 4}))
    assert parse("--resume", tmp_path, "--cliprange", "0.2").cliprange == 0.2


UNREADABLE = {
    "": "--resume",
    "{": "--resume",
    "[1]": "--resume",
    "3": "--resume",
    '{"steps": 9, "epochs": 2}': "--resume .* another script .*'epochs'",
    '{"steps": "9"}': "--steps",
}


@pytest.mark.parametrize("content, named", UNREADABLE.items())
def test_resume_with_an_unreadable_config_is_refused(content, named, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=named):
        parse("--resume", tmp_path)


def test_a_run_of_the_lesson_is_not_gone_on_with_by_its_relatives(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(Config())))
    assert read_config(tmp_path, Config).resume == str(tmp_path)
    with pytest.raises(UserError, match="another script.*has no setting"):
        read_config(tmp_path, variants.Config)


def test_a_flag_of_a_relative_names_the_script_that_has_it():
    with pytest.raises(UserError, match="variants.py"):
        parse("--loss_type", "gspo")
