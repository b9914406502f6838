"""What several test files need: small models, episodes and runs, the equations once more in plain
form, and how to start a run in a process of its own."""

import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import countdown_rewards
import nano_r1 as r1
import variants
from plumbing import packing
from plumbing.evaluation import combine
from plumbing.models import gathered
from plumbing.processes import derive_seed
from plumbing.sampler import Completion
from plumbing.tasks import Reward

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser_needed = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: `apt-get install chromium` and run it again"
)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SMALL = {
    "prompts_per_step": 4,
    "group_size": 4,
    "max_tokens": 60,
    "eval_problems": 16,
    "save_every": 2,
    "record_tokens_every": 1,
}


def flags(**settings):
    """Settings as command-line flags."""
    pairs = {name: value for name, value in settings.items() if not isinstance(value, bool)}
    switches = [f"--{name}" for name, value in settings.items() if value is True]
    return [str(part) for name, value in pairs.items() for part in (f"--{name}", value)] + switches


def start(*args, launcher=(sys.executable,), script="nano_r1.py", env=(), **options):
    """A script in a process of its own, small but for `args`; with a pipe for what it prints."""
    command = [str(part) for part in (*launcher, script, *args)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(env)}
    return subprocess.Popen(command, env=env, **options)


def run(*args, timeout=600, **options):
    """The same to its end, as a `CompletedProcess`; only what hangs forever meets the timeout."""
    process = start(*args, **options)
    try:
        out, error = process.communicate(timeout=timeout)
    finally:
        process.terminate()  # a launcher ends its workers, too
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def cpu_seconds_of_children():
    """Of those that have ended: how long something takes, though other programs run beside it."""
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for(process, text):
    """Read what the process prints up to a line that begins with `text`."""
    for line in process.stdout:
        if line.startswith(text):
            return
    raise AssertionError(process.stderr.read())


def train(out, name, **settings):
    """`main` in this process, without the seconds that imports take: (directory, its output)."""
    return main(out=str(out), name=name, **{**SMALL, **settings})


# seconds, the same at every start
generate_problems = functools.cache(countdown_rewards.generate_problems)


def main(lesson=r1, **settings):
    """`lesson`: nano_r1 or variants."""
    printed = io.StringIO()
    generator = mock.patch.object(countdown_rewards, "generate_problems", generate_problems)
    with contextlib.redirect_stdout(printed), generator:
        path = lesson.main(lesson.Config(**settings))
    return Path(path), printed.getvalue()


def resume(path, **changes):
    """Go on with the run of directory `path` in this process, with its settings but `changes`."""
    with open(Path(path) / "config.json") as file:
        return main(**{**json.load(file), **changes, "resume": str(path)})


def rows_of(file):
    """The objects of a jsonl file."""
    with open(file) as lines:
        return [json.loads(line) for line in lines]


def records(path):
    """metrics.jsonl without what depends on the machine's speed."""
    rows = rows_of(path / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


# The scripts in runs/


def script_commands(script, *arguments, folder, **env):
    """What a script gives to python, as lists of arguments.

    `folder` is for a python that only writes them down.
    """
    python = Path(folder) / "python"
    said = Path(folder) / "said"
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" -- >> {said}\n")
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **env}
    subprocess.run(["bash", script, *arguments], check=True, env=env)
    commands = said.read_text().split("\n--\n")[:-1]
    said.unlink()
    return [command.split("\n") for command in commands]


# One update


def config(**changes):
    """Settings of an update of the 12 episodes below, for both lessons; without a penalty."""
    sizes = {"prompts_per_step": 6, "group_size": 2, "micro_batch_tokens": 60}
    return variants.Config(**{**sizes, "kl_coef": 0.0, "learning_rate": 1e-2, **changes})


def tiny_model():
    """13,000 random weights, the same at each call."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    config._attn_implementation = packing.NAME  # as `load_model` has it
    return Qwen2ForCausalLM(config)


def episode(prompt_ids, token_ids, advantage=0.0, reward=1.0, finish_reason="stop", **per_token):
    """One whose sampler found -3.9 for every token, unless `per_token` says otherwise."""
    length = len(token_ids)
    completion = Completion(token_ids, [-3.9] * length, finish_reason)
    e = r1.Episode({}, prompt_ids, completion, "", Reward(reward, 0.0, 0.0, ""), advantage)
    e.per_token = {"sampler_log_probs": completion.logprobs, "advantages": [advantage] * length}
    e.per_token |= per_token
    return e


def make_episodes(count=12, seed=0):
    """Episodes of a random policy, every fourth of advantage 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(1, 50, (n,), generator=g).tolist()
    lengths = torch.randint(4, 21, (count,), generator=g).tolist()
    advantages = torch.randn(count, generator=g) * (torch.arange(count) % 4 > 0)
    rows = enumerate(zip(lengths, advantages.tolist()))
    return [episode(draw(3 + i % 3), draw(n), a, float(i % 3)) for i, (n, a) in rows]


def updated(c, episodes, model=None, update=r1.update):
    """(weights after one update, what it measured)."""
    engine = r1.make_engine(model or tiny_model(), c)
    measured = combine(update(engine, episodes, c, c.learning_rate))
    with gathered(engine.module):
        weights = engine.module.named_parameters()
        return {name: p.detach().float().clone() for name, p in weights}, measured


def assert_same(weights, others, tolerance=2e-5):
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], atol=tolerance, rtol=1e-5, msg=name)


# The equations once more, completion by completion, without padding, masks or micro-batches


def score(model, e, c):
    """Log-probs and entropies of an episode's tokens, from all of the model's logits."""
    ids = torch.tensor([e.prompt_ids + e.completion.token_ids])
    logits = model(ids).logits[0, len(e.prompt_ids) - 1 : -1] / c.temperature
    now = torch.distributions.Categorical(logits=logits)
    return now.log_prob(torch.tensor(e.completion.token_ids)), now.entropy()


def formula(c, completions, count):
    """The loss of a step of `count` completions, of which these are not masked.

    Of each: `advantage`, and of its tokens `policy`, `old`, `ref`, `sampler` (log-probs),
    `entropy`.
    """
    total = 0.0
    for o in completions:
        n = len(o.policy)
        a = o.advantage
        log_ratio = o.policy - o.old
        ratio = (log_ratio.mean().expand(n) if c.loss_type == "gspo" else log_ratio).exp()
        # Beyond the bound that lies in the advantage's direction the loss is constant.
        bound = 1 + (c.cliprange_high or c.cliprange) if a > 0 else 1 - c.cliprange
        factor = torch.where((ratio - bound) * a > 0, bound, ratio)
        others = {"no_baseline": o.policy, "reinforce_with_baseline": o.policy}
        loss = -a * (others | {"grpo_no_clip": ratio}).get(c.loss_type, factor)
        weight = (o.old - o.sampler).exp()
        loss = loss * torch.where(weight > c.tis_cap, c.tis_cap, weight) if c.tis_cap else loss
        d = o.ref - o.policy
        kl = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d}[c.kl_estimator]
        divisors = {
            "seq-mean-token-mean": n * count,
            "seq-mean-token-sum-norm": count * c.max_tokens,
        }
        tokens = sum(len(other.policy) for other in completions)
        loss = (loss + c.kl_coef * kl - c.entropy_coef * o.entropy).sum()
        total = total + loss / divisors.get(c.loss_agg_mode, tokens)
    return total


def sample(sampler, prompts, n, max_tokens=40, seed=1, temperature=1.0):
    """n completions of each prompt, each prompt with a seed of its own."""
    seeds = [derive_seed(seed, place) for place in range(len(prompts))]
    return sampler.generate(prompts, n, temperature, [max_tokens] * len(prompts), seeds)


def mismatch(model, prompts, groups, temperature=1.0):
    """Largest difference between the sampler's and the trainer's log-prob of a token."""
    episodes = []
    for prompt, group in zip(prompts, groups):
        for c in group:
            episodes.append(episode(prompt, c.token_ids, sampler_log_probs=c.logprobs))
    batch = r1.collate(episodes, "cpu")
    with torch.no_grad():
        log_probs, _ = r1.get_response_log_probs(model, batch, temperature)
    return (log_probs - batch["sampler_log_probs"]).abs().max().item()
