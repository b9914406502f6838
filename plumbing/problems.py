"""The problems of a run: those that fit into the model's context, shared equally by the processes.

Apart from tasks.py, which the task modules import and which therefore must not import torch.
"""

from typing import NamedTuple

import torch.distributed as dist

from plumbing.models import context_length
from plumbing.settings import UserError
from plumbing.tasks import drop_long_prompts, load_problems


class Data(NamedTuple):
    """The problems of a run."""

    train: list
    eval: list
    left_out: int  # problems whose prompt is too long
    max_length: int  # tokens of the longest prompt and completion that can occur


def load_data(task, config):
    """The run's problems that fit into the model's context. Raises UserError, also where they are too few."""
    minibatches = getattr(config, "minibatches", 1)  # variants.py
    sharing = dist.get_world_size() * minibatches
    if config.prompts_per_step % sharing and not config.eval_only:
        parts = f"{dist.get_world_size()} process(es) and {minibatches} minibatch(es)"
        given = f"--prompts_per_step {config.prompts_per_step}"
        raise UserError(
            f"{given} cannot be shared equally by {parts}: take a multiple of {sharing}."
        )
    options = (
        config.data,
        config.eval_data,
        config.eval_problems,
        config.seed,
        not config.eval_only,
    )
    train, test = load_problems(task, *options)
    given, context = len(train) + len(test), context_length(config.model)
    train, _ = drop_long_prompts(train, task, config.max_tokens, context)
    test, max_length = drop_long_prompts(test, task, config.max_tokens, context)
    if len(train) < config.prompts_per_step and not config.eval_only:
        few = f"{len(train)} training problems are fewer than --prompts_per_step {config.prompts_per_step}"
        raise UserError(f"{few}: lower that.")
    return Data(train, test, given - len(train) - len(test), max_length)
