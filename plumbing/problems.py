"""The problems of a run: those that fit into the model's context, shared equally by the processes.

Apart from tasks.py, which the task modules import and which therefore must not import torch.
"""

from typing import NamedTuple

import torch.distributed as dist

from plumbing.data import as_text
from plumbing.models import context_length
from plumbing.settings import UserError
from plumbing.tasks import drop_long_prompts, load_problems


def overlap(task, data):
    """A line that says how many evaluation problems are trained on, "" where none is.

    (A file's own held-out rows never are; those of an --eval_data may be.)
    """
    key = getattr(task.module, "problem_key", as_text)
    trained = {key(problem) for problem in data.train}
    same = sum(key(problem) in trained for problem in data.eval)
    if not same:
        return ""
    return f"\nWARNING: {same} of {len(data.eval)} evaluation problems are training problems, too"


class Data(NamedTuple):
    """The problems of a run."""

    train: list
    eval: list
    left_out: int  # problems whose prompt is too long
    max_length: int  # tokens of the longest prompt and completion that can occur


def load_data(task, config):
    """The run's `Data`. Raises UserError, also where there are too few problems."""
    sharing = dist.get_world_size() * getattr(config, "minibatches", 1)  # variants.py
    drawn = config.prompts_per_step
    if drawn % sharing and not config.eval_only:
        shared = "the number of processes (times --minibatches)"
        raise UserError(f"--prompts_per_step {drawn}: take a multiple of {sharing}, {shared}.")
    task.seconds = config.reward_seconds
    options = (config.data, config.eval_data, config.eval_problems, config.seed)
    every, tests = load_problems(task, *options, train=not config.eval_only)
    context = context_length(config.model)
    train, longest = drop_long_prompts(every, task, config.max_tokens, context)
    test, max_length = drop_long_prompts(tests, task, config.max_tokens, context)
    if len(train) < drawn and not config.eval_only:
        few = f"{len(train)} training problems are fewer than --prompts_per_step {drawn}"
        raise UserError(f"{few}: lower that.")
    left_out = len(every) + len(tests) - len(train) - len(test)
    return Data(train, test, left_out, max(longest, max_length))
