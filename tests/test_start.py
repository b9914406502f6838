"""Mistakes that are known without torch: one sentence at once, also from `main`; how a run ends."""

import os
import subprocess
import sys
import types
import weakref

import pytest
import torch
from helpers import ROOT, config, cpu_seconds_of_children, run, start

from nano_r1 import Config
from plumbing.models import load_model
from plumbing.settings import UserError
from plumbing.start import check_start, run_safely, run_script, starting_vllm
from plumbing.timing import timed

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
    "a run as a model": ("--model {tmp}/run", "--model {tmp}/run/model"),
    "vLLM": ("--rollout vllm", "pip install vllm"),
    "existing name": ("--out {tmp} --name run", "--resume {tmp}/run"),
    "resume": ("--resume {tmp}", "--resume {tmp}"),
}


@pytest.fixture
def place(tmp_path):
    """A directory with what a run leaves of itself."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2_within_two_seconds(name, place):
    flags, named = (text.format(tmp=place) for text in MISTAKES[name])
    before, files = cpu_seconds_of_children(), sorted(place.rglob("*"))
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


def test_help_into_a_pipe_that_closes_early_ends_quietly():
    command = f"{sys.executable} nano_r1.py --help | head -1"
    options = {"cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], **options)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["task", "data", "no such model", "vLLM", "existing name"])
def test_a_config_made_in_a_notebook_is_told_the_same(name, place):
    flags, named = (text.format(tmp=place).split() for text in MISTAKES[name])
    with pytest.raises(UserError) as caught:
        check_start(Config(**{k.removeprefix("--"): v for k, v in zip(flags[::2], flags[1::2])}))
    assert " ".join(named) in str(caught.value)


PACKAGES = {"wandb": "offline", "peft": 4, "datasets": "hub", "deepspeed": "deepspeed"}
SETTINGS = {"wandb": "wandb", "peft": "lora_rank", "datasets": "data", "deepspeed": "engine"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_that_is_missing_is_one_sentence_with_the_command(package, monkeypatch):
    """And only where it is used."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_start(Config())
    with pytest.raises(UserError, match=f"pip install {package}"):
        check_start(Config(**{SETTINGS[package]: PACKAGES[package]}))


@pytest.mark.parametrize("harm", ["cut short", "empty"])
def test_weights_that_cannot_be_read_is_one_sentence(harm, tmp_path):
    for name in ("config.json", "model.safetensors"):
        with open(os.path.join(ROOT, "models/nano-base", name), "rb") as file:
            content = file.read()
        cut = {"cut short": len(content) // 2, "empty": 0}.get(harm)
        (tmp_path / name).write_bytes(content[: cut if name == "model.safetensors" else None])
    with pytest.raises(UserError, match=str(tmp_path)) as caught:
        load_model(str(tmp_path), "float32")
    assert "\n" not in str(caught.value)


# Out of memory, and vLLM's start

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
ASLEEP = RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119")
ENDS = [  # what happened, in which part, what the sentence names
    (NO_MEMORY, "update", "--micro_batch_tokens (now 77)"),
    (ASLEEP, "sync", "--vllm_gpu_memory_utilization (now 0.3)"),  # vLLM's wake_up
    (MemoryError(), "rollout", "--max_tokens"),
    (NO_MEMORY, "reward", "--prompts_per_step"),
    (NO_MEMORY, None, "--lora_rank 16"),
]


@pytest.mark.parametrize("error, part, named", ENDS)
def test_memory_that_runs_out_is_one_sentence_that_says_what_to_lower(error, part, named):
    @run_safely
    def main(config):
        if part is None:
            raise type(error)(*error.args)
        with timed("evaluation" if part == "reward" else part), timed(part):
            raise type(error)(*error.args)

    with pytest.raises(UserError) as caught:
        main(config(micro_batch_tokens=77))
    assert named in str(caught.value) and f"in the {part or 'start'}" in str(caught.value)


def test_another_error_stays_what_it_is():
    @run_safely
    def main(config):
        with timed("update"):
            torch.empty(2) @ torch.empty(3, 3)

    with pytest.raises(RuntimeError, match="shape"):
        main(config())


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


@pytest.mark.parametrize("loaded", [True, False])
def test_where_vllm_was_used_a_traceback_holds_nothing_of_a_run_that_failed(loaded, monkeypatch):
    """Or it would hold vLLM's memory too, and the next run in that notebook could not start."""
    monkeypatch.setitem(sys.modules, "vllm", types) if loaded else sys.modules.pop("vllm", None)
    held = []

    @run_safely
    def main(config):
        sampler = torch.empty(3)
        held.append(weakref.ref(sampler))
        raise ValueError("of the update")

    with pytest.raises(ValueError) as caught:  # it keeps the traceback
        main(config())
    assert (held[0]() is None) == loaded and caught.tb


@pytest.mark.parametrize("said", [None, "3"])
def test_for_vllm_on_a_gpu_the_threads_are_set_before_it_sets_one_for_all(said, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", said or "")
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    with starting_vllm(config()):
        assert os.environ["OMP_NUM_THREADS"] == (said or str(torch.get_num_threads()))


def test_vllm_stays_in_this_process_whatever_was_exported():
    code = "import os, plumbing; print(os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'])"
    done = run(code, script="-c", cwd=ROOT, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    assert done.stdout == "0\n"


@pytest.mark.parametrize("end, code", [(UserError("x"), 2), (KeyboardInterrupt(), 130)])
def test_a_script_ends_with_the_code_of_its_end(end, code, capsys):
    def main(_):
        raise end

    with pytest.raises(SystemExit) as caught:
        run_script(main, types.SimpleNamespace(plan=0))
    assert caught.value.code == code and capsys.readouterr().err
