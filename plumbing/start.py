"""How a script starts and ends: one sentence for a mistake, before torch is imported if possible.

A script checks when it has read its command line; its `main` checks again, for a config that was
made in a notebook. torch takes seconds to import, so what needs it is imported where it is used.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import os
import signal
import socket
import sys
import traceback
import urllib.parse

from plumbing.data import JSON_FILES
from plumbing.files import numbered
from plumbing.settings import UserError, check_resumable, find, parse_args
from plumbing.tasks import load_task
from plumbing.waiting import waiting

# Packages that only some values of a setting need.
NEEDS = {"data": "datasets", "eval_data": "datasets", "wandb": "wandb", "lora_rank": "peft"}
NEEDS |= {"rollout": "vllm", "engine": "deepspeed"}
NEEDS_NOTHING = (None, "off", 0, "auto", "transformers", "torch")
READ_HERE = tuple(f"{ending}{packed}" for ending in JSON_FILES for packed in ("", ".gz"))


def parse_or_exit(config_class, prog, description):
    """Command line -> a config that can start; an error is one sentence and exit code 2."""
    sys.stdout.reconfigure(errors="replace")  # a console that cannot show every character
    signal.signal(signal.SIGINT, quit_at_once)  # until `run_script`: torch's import is no `try`
    try:
        config = parse_args(config_class, prog, description)
        check_start(config)
        if not config.plan:  # a plan is printed alone
            waiting("importing torch, transformers, DeepSpeed: some seconds")
        return config
    except UserError as error:
        sys.exit(say(error))
    except BrokenPipeError:  # --help | head: what is still to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def quit_at_once(*_):
    """Ctrl-C while the libraries are imported."""
    os.write(2, b"\nInterrupted. Nothing was written.\n")
    os._exit(130)


def say(error):
    """Print an error of the user's. Returns its exit code."""
    print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
    return 2


def check_start(config, functions=None):
    """Raise UserError for what the disk and the task's module tell; nothing is left behind.

    `functions` are those of `main`, where it is known.
    """
    check_resumable(config, functions)
    task = load_task(config.task, config.prompt, None)
    for file in (config.data, config.eval_data):
        if file not in (None, "hub") and not os.path.exists(file):
            raise UserError(f"No such data file: {file}.")
    rows = {config.data, config.eval_data} if hasattr(config, "group_size") else {config.eval_data}
    for file in sorted(filter(None, rows)):  # nano_sft.py's --data holds no problems
        if file.lower().endswith(READ_HERE):
            task.load_problems("all", file, config.seed)  # kept: it is not read again
    for flag, package in NEEDS.items():
        value = getattr(config, flag)
        if value in NEEDS_NOTHING or flag.endswith("data") and value.lower().endswith(READ_HERE):
            continue
        if not importlib.util.find_spec(package):
            how = f"pip install {package} (with uv: uv run --with {package} ...)"
            raise UserError(f"--{flag} {value} needs a package: {how}.")
    path = os.path.join(config.out, config.name or "")
    if config.name and not config.resume and os.path.exists(os.path.join(path, "config.json")):
        raise UserError(f"{path} exists: --resume {path} resumes it; or take another --name.")
    check_model(config.model)
    if config.data == "hub":
        notice_no_network()


def notice_no_network():
    """Where the hub's host has no address, do not let its client retry for most of a minute."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"} & {name.lower() for name in os.environ}
    hub = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if not proxies:
        try:
            socket.getaddrinfo(hub.hostname, hub.port or 443)
        except OSError:
            os.environ["HF_HUB_OFFLINE"] = "1"  # read when the client is imported


def check_model(model):
    """A local model must be there; OWNER/NAME is one of the hub."""
    path = find(model)
    ours = path.split("/")[0] in ("models", "out")  # no names of the hub
    if os.path.isdir(path):
        names = os.listdir(path)
        if "adapter_config.json" in names and "config.json" not in names:
            hint = "of their run: --resume RUN --lora_merge makes a whole model"
            raise UserError(f"--model {model} has adapters alone; {hint}.")
        if not any(name.endswith(".safetensors") for name in names):
            hint = f"of a run take --model {os.path.join(model, 'model')}"
            raise UserError(f"--model {model} has no weights in safetensors; {hint}.")
    elif os.path.isabs(path) or path.startswith(".") or path.count("/") > 1 or ours:
        raise UserError(f"--model {model}: there is no such directory.")
    else:
        notice_no_network()


def functions_of_ones_own(main, *args, **kwargs):
    """`loss=my_loss, ...`: which of main's functions were given others in their place."""
    signature = inspect.signature(main)
    own = []
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        if callable(value) and value is not signature.parameters[name].default:
            own.append(f"{name}={getattr(value, '__qualname__', type(value).__name__)}")
    return ", ".join(own)


def run_safely(main):
    """Decorates a `main`: it checks the config first; out of memory is one sentence.

    At its end, whatever happened, signals and vLLM are as before.
    """

    @functools.wraps(main)
    def safe_main(config, *args, **kwargs):
        from plumbing import processes, timing

        if isinstance(config, type) or not dataclasses.is_dataclass(config):
            raise UserError(f"main takes a Config, e.g. Config(steps=20), not {config!r:.80}.")
        config.functions = functions_of_ones_own(main, config, *args, **kwargs)
        check_start(config, config.functions)
        with processes.cleaned_up():
            try:
                return main(config, *args, **kwargs)
            except BaseException as error:
                if "vllm" in sys.modules:  # a notebook keeps the traceback, and with it all of main
                    traceback.clear_frames(error.__traceback__)
                ours = isinstance(error, RuntimeError | MemoryError)
                if not ours or not timing.out_of_memory(error):
                    raise
                sentence = timing.memory_advice(error, config)
            raise UserError(sentence)  # here, so that the error's tensors are freed

    return safe_main


@contextlib.contextmanager
def starting_vllm(config):
    """vLLM's errors at its start become a UserError."""
    waiting("starting vLLM: a minute or more")
    import torch

    if torch.cuda.is_available():  # or vLLM leaves one to all of this process: --offload's step
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"vLLM could not be imported ({error}): see requirements-gpu.txt."
        ) from None
    except AssertionError as error:  # it sleeps in one instance a process
        hint = "something holds the vLLM of a run before: restart this process, or the kernel"
        raise UserError(f"vLLM could not start ({error}): {hint}.") from None
    except ValueError as error:
        said = " ".join(str(error).split())
        share = f" with --vllm_gpu_memory_utilization {config.vllm_gpu_memory_utilization}"
        blamed = share if "memory" in said else ""
        raise UserError(f"vLLM could not start{blamed}: {said}") from None
    except (RuntimeError, MemoryError) as error:
        error.part = "start of vLLM"
        raise


def run_script(main, config, after_interrupt=None):
    """Run a script's main, and end the program: 0; 2 for an error of the user's; 128 + signal."""
    from plumbing import processes
    from plumbing.memory import plan_for_card
    from plumbing.record import RunLog

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if config.plan:
            text, fits = plan_for_card(config)
            print(text)
            sys.exit(0 if fits else 1)
        main(config)
        processes.shutdown()
        sys.exit(processes.exit_code())
    except UserError as error:
        sys.exit(say(error))
    except KeyboardInterrupt:
        print(f"\nInterrupted. {after_interrupt or remaining(RunLog.current)}", file=sys.stderr)
        sys.exit(130)


def remaining(log):
    """What there is of a run that was quit, in words."""
    if log is None:
        return "Nothing was written."
    if getattr(log.config, "eval_only", False):
        return f"The evaluation in {log.path} is not complete."
    steps = list(numbered(log.checkpoints))
    if steps:
        return f"--resume {log.path} goes on after step {steps[-1]}."
    return f"{log.path} has no checkpoint yet: --resume {log.path} begins again at step 1."
