"""What is wrong with a run and can be known without torch: one sentence, before the seconds that its import takes.

A script asks here when it has read its command line; `main` asks again, for a config that was made in a notebook.
"""

import importlib.util
import json
import os
import sys
import tempfile

from plumbing.settings import UserError, find, parse_args
from plumbing.tasks import load_task


def parse_or_exit(config_class, prog, description, argv=None):
    """Command line -> a config that can start, for a script: an error is one sentence and exit code 2."""
    try:
        config = parse_args(config_class, prog, description, argv)
        check_start(config)
        return config
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
        sys.exit(0)


def check_start(config):
    """Raise UserError for what the disk and the task's module tell about a config; nothing is left behind."""
    load_task(config.task, config.prompt, None)
    for file in (config.data, config.eval_data):
        if file not in (None, "hub") and not os.path.exists(file):
            raise UserError(f"No such data file: {file}.")
    if config.wandb != "off" and not importlib.util.find_spec("wandb"):
        raise UserError(f"--wandb {config.wandb} needs a package: pip install wandb.")
    check_model(config)
    if not config.resume:
        if config.name:
            check_new(os.path.join(config.out, config.name))
        check_writable(config.out)


def check_model(config):
    """A local model must be there, and hold prompt and completion."""
    path, fault = find(config.model), f"The model {config.model} could not be read"
    if not os.path.isdir(path):
        if os.path.isabs(path) or path.startswith(".") or path.count("/") > 1:  # no id of the hub, which are OWNER/NAME
            raise UserError(f"{fault}: there is no such directory.")
        return
    names = os.listdir(path)
    if not any(name.endswith(".safetensors") for name in names):
        hint = f"; take --model {os.path.join(config.model, 'model')}" if "model" in names else ""
        raise UserError(f"{fault}: that directory has no weights in safetensors{hint}.")
    try:
        with open(os.path.join(path, "config.json")) as file:
            context = json.load(file).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return  # adapters, or a file that transformers will have a sentence about
    if context is not None and config.max_tokens >= context:
        room = f"--max_tokens {config.max_tokens} in the model's context of {context} tokens"
        raise UserError(f"No prompt leaves room for {room}.")


def check_new(path):
    """No run is overwritten."""
    if os.path.exists(os.path.join(path, "config.json")):
        raise UserError(f"{path} exists: --resume {path} resumes it, another --name starts a new run.")


def check_writable(path):
    """By a trial, in the nearest directory that exists: what root may do is not what a file's mode says."""
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    try:
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as error:
        raise UserError(f"--out {path} could not be written: {error.strerror}.") from None
