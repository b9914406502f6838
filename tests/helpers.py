"""What several test files need: small models, episodes and runs, and how to start a run in a process of its own."""

import contextlib
import functools
import io
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import countdown_rewards
import nano_r1 as r1
from plumbing.evaluation import combine
from plumbing.sampler import Completion
from plumbing.tasks import Reward

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_PROCESSES = [*TORCHRUN, "--standalone", "--nproc_per_node", "2"]
SMALL = {"prompts_per_step": 4, "group_size": 4, "max_tokens": 60, "eval_problems": 16, "save_every": 2}
SMALL |= {"record_tokens_every": 1}


def flags(**settings):
    """Settings as command-line flags."""
    pairs = {name: value for name, value in settings.items() if not isinstance(value, bool)}
    switches = [f"--{name}" for name, value in settings.items() if value is True]
    return [str(part) for name, value in pairs.items() for part in (f"--{name}", value)] + switches


def start(*args, launcher=(sys.executable,), script="nano_r1.py", env=(), **options):
    """A script in a process of its own, small but for `args`; with a pipe for what it prints."""
    command = [str(part) for part in (*launcher, script, *args)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1", **dict(env)}, **options)


def run(*args, timeout=600, **options):
    """The same to its end, as a `CompletedProcess`; a timeout that only what hangs forever meets, also beside others."""
    process = start(*args, **options)
    try:
        out, error = process.communicate(timeout=timeout)
    finally:
        process.terminate()  # a launcher ends its workers, too
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def cpu_seconds_of_children():
    """Of those that have ended: how long something takes, though other programs run beside it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for(process, text):
    """Read what the process prints up to a line that begins with `text`."""
    for line in process.stdout:
        if line.startswith(text):
            return
    raise AssertionError(process.stderr.read())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train(out, name, **settings):
    """`main` in this process; (the run's directory, what it printed). Quicker by the ten seconds that imports take."""
    return main(out=str(out), name=name, **{**SMALL, **settings})


generate_problems = functools.cache(countdown_rewards.generate_problems)  # seconds, the same at every start


def main(**settings):
    printed = io.StringIO()
    generator = mock.patch.object(countdown_rewards, "generate_problems", generate_problems)
    with contextlib.redirect_stdout(printed), generator:
        path = r1.main(r1.Config(**settings))
    return Path(path), printed.getvalue()


def resume(path, **changes):
    """Go on with the run of directory `path` in this process, with its settings but for `changes`."""
    with open(Path(path) / "config.json") as file:
        return main(**{**json.load(file), **changes, "resume": str(path)})


def rows_of(file):
    """The objects of a jsonl file."""
    with open(file) as lines:
        return [json.loads(line) for line in lines]


def records(path):
    """metrics.jsonl without what depends on the machine's speed."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows_of(path / "metrics.jsonl")]


# The scripts in runs/


def script_commands(script, *arguments, folder, **env):
    """What a script gives to python, as lists of arguments; `folder` is for a python that only writes them down."""
    python, said = Path(folder) / "python", Path(folder) / "said"
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" -- >> {said}\n")
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **env}
    subprocess.run(["bash", script, *arguments], check=True, env=env)
    commands = said.read_text().split("\n--\n")[:-1]
    said.unlink()
    return [command.split("\n") for command in commands]


# One update


def config(**changes):
    """Settings under which the loss is the plain policy gradient's mean over the step's tokens, unless changed."""
    plain = {"kl_coef": 0.0}
    return r1.Config(**{**plain, "learning_rate": 1e-2, "zero_stage": 2, "micro_batch_tokens": 60, **changes})


def tiny_model():
    """13,000 random weights, the same at each call."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=32, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def make_episodes(count=12, seed=0):
    """Episodes of a random policy, every fourth of advantage 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(1, 50, (n,), generator=g).tolist()
    episodes = []
    for i in range(count):
        length = 1 + int(torch.randint(3, 20, (1,), generator=g))
        completion = Completion(draw(length), [-3.9] * length, "stop")
        advantage = 0.0 if i % 4 == 0 else float(torch.randn(1, generator=g))
        reward = Reward(float(i % 3), 0.0, 0.0, "")
        episodes.append(r1.Episode({}, draw(3 + i % 3), completion, "", reward, advantage))
        episodes[-1].per_token |= {"advantages": [advantage] * length}
    return episodes


def update(engine, episodes, config, reference=None):
    """Steps 5 to 7 of `main`, and what was measured."""
    if reference is not None:
        r1.add_log_probs(reference, episodes, "ref_log_probs", config)
    return combine(r1.update(engine, episodes, config, config.learning_rate))
