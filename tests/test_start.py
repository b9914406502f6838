"""Mistakes that are known without torch: one sentence at once, also from `main`; how a run ends."""

import itertools
import json
import os
import re
import shutil
import signal
import sys
import types
import weakref

import pytest
import torch
from helpers import ROOT, config, cpu_seconds_of_children, run, start
from safetensors.torch import load_file, save_file

from nano_r1 import Config
from plumbing.models import load_model, load_tokenizer
from plumbing.settings import UserError, parse_args
from plumbing.start import check_start, run_safely, starting_vllm
from plumbing.timing import LOWER_FIRST, advice, take_seconds, timed

# Flags, and what the sentence names.
MISTAKES = {
    "value": ("--learning_rate inf", "--learning_rate inf"),
    "path as a name": ("--name ../../x", "--name"),
    "flag without effect": ("--lora_target_modules q_proj", "--lora_rank"),
    "task": ("--task chess", "chess_rewards.py"),
    "prompt": ("--prompt haiku", "--prompt haiku"),
    "data": ("--data none.jsonl", "none.jsonl"),
    "evaluation data": ("--eval_data none.jsonl", "none.jsonl"),
    "no such model": ("--model ./none", "--model ./none"),
    "no model of ours": ("--model models/nope", "no such directory"),
    "a run as a model": ("--model {tmp}/run", "--model {tmp}/run/model"),
    "vLLM": ("--rollout vllm", "pip install vllm"),
    "another name of a flag": ("--lr 1e-4", "--learning_rate"),
    "switch with a value": ("--report no", "--no-report"),
    "a bad row": ("--data {tmp}/rows.jsonl", "rows.jsonl, row 2"),
    "brackets": ("--eval_data {tmp}/deep.jsonl", "brackets within brackets"),
    "existing name": ("--out {tmp} --name run", "--resume {tmp}/run"),
    "resume": ("--resume {tmp}", "--resume {tmp}"),
}


@pytest.fixture
def place(tmp_path):
    """A directory with what a run leaves of itself."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    row = '{"nums": [1, 2], "target": 3}\n'
    (tmp_path / "rows.jsonl").write_text(row + row.replace("2", "true"))
    (tmp_path / "deep.jsonl").write_text(row.replace("2", "[" * 100_000 + "]" * 100_000))
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2_within_two_seconds(name, place):
    flags, named = (text.format(tmp=place) for text in MISTAKES[name])
    before = cpu_seconds_of_children()
    files = sorted(place.rglob("*"))
    done = run(*flags.split())
    assert cpu_seconds_of_children() - before < 2.0
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("nano_r1.py: ") and named in done.stderr
    assert sorted(place.rglob("*")) == files


def test_what_is_waited_for_is_said_within_two_seconds():
    process = start("--steps", 1)
    assert process.stdout.readline().startswith("... importing torch")
    with open(f"/proc/{process.pid}/stat") as file:
        ticks = file.read().split()[13:15]  # of user and system time
    process.kill()
    assert sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") < 2.0


def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path):
    process = start("--out", tmp_path / "out", launcher=(sys.executable, "-X", "importtime"))
    for line in process.stderr:
        if " torch." in line:  # a part of it is imported, the rest is to come
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    said = [line for line in error.splitlines() if line and not line.startswith("import time:")]
    assert process.returncode == 130 and said == ["Interrupted. Nothing was written."]
    assert not (tmp_path / "out").exists()


def test_help_into_a_pipe_that_closes_early_ends_quietly():
    command = f"{sys.executable} nano_r1.py --help | head -1"
    done = run(command, launcher=("bash", "-o", "pipefail"), script="-c", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["task", "data", "no such model", "vLLM", "existing name"])
def test_a_config_made_in_a_notebook_is_told_the_same(name, place):
    flags, named = (text.format(tmp=place) for text in MISTAKES[name])
    with pytest.raises(UserError, match=re.escape(named)):
        check_start(parse_args(Config, "nano_r1.py", "", flags.split()))


@pytest.mark.parametrize(
    "package, settings",
    [
        ("wandb", {"wandb": "offline"}),
        ("peft", {"lora_rank": 4}),
        ("datasets", {"data": "hub"}),
        ("deepspeed", {"engine": "deepspeed"}),
    ],
)
def test_a_package_that_is_missing_is_one_sentence_with_the_command(package, settings, monkeypatch):
    """And only where it is used."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_start(Config())
    with pytest.raises(UserError, match=f"pip install {package}"):
        check_start(Config(**settings))


def other_weights(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def other_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


UP = "model.layers.0.mlp.up_proj.weight"
CODE = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}
HARMS = {  # of a model's directory, and what the sentence names
    "cut short": (lambda path: os.truncate(path / "model.safetensors", 10**6), ""),
    "empty": (lambda path: os.truncate(path / "model.safetensors", 0), ""),
    "no tensor": (lambda path: other_weights(path, lambda t: t.pop(UP)), UP),
    "half a tensor": (lambda p: other_weights(p, lambda t: t.update({UP: t[UP][:5]})), UP),
    "no output layer": (lambda p: other_config(p, tie_word_embeddings=False), "lm_head.weight"),
    "its own code": (lambda p: other_config(p, model_type="x", auto_map=CODE), "code of its own"),
    "no tokenizer": (lambda path: os.remove(path / "tokenizer.json"), "tokenizer"),
    "few rows": (lambda path: other_config(path, vocab_size=99), "rows for 99 tokens"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_model_that_is_not_whole_is_one_sentence_and_never_trained_at_random(harm, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(os.path.join(ROOT, "models/nano-base"), path)
    function, named = HARMS[harm]
    function(path)
    with pytest.raises(UserError, match=str(path)) as caught:
        load_tokenizer(str(path))
        load_model(str(path), "float32")
    assert named in str(caught.value) and "\n" not in str(caught.value)


# Out of memory, and vLLM's start

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
ASLEEP = RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119")
ENDS = [  # what happened, in which part, what the sentence names
    (NO_MEMORY, "update", "--micro_batch_tokens (now 77)"),
    (ASLEEP, "sync", "--vllm_gpu_memory_utilization (now 0.3)"),  # vLLM's wake_up
    (MemoryError(), "rollout", "--max_tokens"),
    (NO_MEMORY, "reward", "--prompts_per_step"),
]


@pytest.mark.parametrize("error, part, named", ENDS)
def test_memory_that_runs_out_is_one_sentence_that_says_what_to_lower(
    error, part, named, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    @run_safely
    def main(config):
        with timed("evaluation"), timed(part):
            raise type(error)(*error.args)

    with pytest.raises(UserError) as caught:
        main(config(micro_batch_tokens=77))
    assert named in str(caught.value) and f"in the {part}" in str(caught.value)


def test_memory_that_runs_out_while_a_model_is_loaded_is_no_unreadable_model(monkeypatch):
    """torch's CPU allocator refuses 2^58 bytes on any machine."""
    load = lambda *args, **options: torch.empty(2**58)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    with pytest.raises(UserError, match="in the start: .*--lora_rank 16"):
        run_safely(lambda config: load_model(config.model, "float32"))(config())


def test_a_part_within_another_counts_for_itself_alone(monkeypatch):
    monkeypatch.setattr("time.perf_counter", itertools.count(start=1).__next__)
    take_seconds()  # of the tests before
    with timed("rollout"):
        with timed("reward"):
            pass
    assert take_seconds() == {"time/rollout": 2, "time/reward": 1, "time/step": 4}


def test_without_a_gpu_the_advice_names_nothing_of_one():
    parts = [part for part in LOWER_FIRST if part != "start of vLLM"]
    said = [advice(part, config(), on_gpu=False) for part in parts]
    assert not any(word in " ".join(said) for word in ("vllm", "offload", "zero_stage"))
    assert all(said) and "--group_size (now 2)" in advice("rollout", config(), on_gpu=False)


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shape"):
        run_safely(lambda config: torch.empty(2) @ torch.empty(3, 3))(config())


@pytest.mark.parametrize(
    "error, named",
    [
        (ValueError("Free memory\nis less than desired"), "--vllm_gpu_memory_utilization 0.3"),
        (ValueError("max_model_len is too\nlarge"), "max_model_len is too large"),
        (ImportError("libcudart.so.12"), "libcudart.so.12"),
        (AssertionError("one instance per process"), "restart this process, or the kernel"),
    ],
)
def test_what_vllm_says_at_its_start_is_one_line(error, named):
    with pytest.raises(UserError) as caught, starting_vllm(config()):
        raise error
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_where_vllm_was_used_a_traceback_holds_nothing_of_a_run_that_failed(monkeypatch):
    """Or it would hold vLLM's memory too, and the next run in that notebook could not start."""
    monkeypatch.setitem(sys.modules, "vllm", types)
    held = []

    @run_safely
    def main(config):
        sampler = torch.empty(3)
        held.append(weakref.ref(sampler))
        raise ValueError("of the update")

    with pytest.raises(ValueError) as caught:  # it keeps the traceback
        main(config())
    assert held[0]() is None and caught.tb


def test_for_vllm_on_a_gpu_the_threads_are_set_before_it_sets_one_for_all(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with starting_vllm(config()):
        assert os.environ["OMP_NUM_THREADS"] == str(torch.get_num_threads())


def test_vllm_stays_in_this_process_whatever_was_exported():
    code = "import os, plumbing; print(os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'])"
    done = run(code, script="-c", cwd=ROOT, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    assert done.stdout == "0\n"
