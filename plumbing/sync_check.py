"""The proof that the sampler has the trainer's weights: the same tokens must get the same log-probs from both.

Independent of the lesson's code: its own log-softmax, one row at a time, no masks and no padding.
"""

import functools

import torch
import torch.distributed as dist

from plumbing.models import perturbed
from plumbing.processes import all_reduce, derive_seed
from plumbing.settings import UserError

TOLERANCE = {
    "float32": 1e-3,
    "bfloat16": 0.1,
}  # nats a token, on average; bfloat16 alone makes some 0.02
PROMPTS = 8  # of each process


def check_sync(sampler, engine, task, problems, config):
    """Sample a little with the weights just synced, compare log-probs; UserError if they differ.

    Always the same problems, so that a prefix cached with older weights would show.
    """
    places = range(dist.get_rank(), PROMPTS * dist.get_world_size(), dist.get_world_size())
    prompts = [task.prompt_ids(problems[i % len(problems)]) for i in places]
    seeds = [derive_seed(config.seed, "sync", i) for i in places]
    limits = [min(64, config.max_tokens)] * len(prompts)
    groups = sampler.generate(prompts, 2, config.temperature, limits, seeds)
    difference, tokens = 0.0, 0
    for prompt, completion in ((p, c) for p, group in zip(prompts, groups) for c in group):
        ids = torch.tensor([prompt + completion.token_ids], device=engine.device)
        with torch.no_grad():
            logits = engine(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(logits.float() / config.temperature, dim=-1)
        log_probs = log_probs.gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
        difference += (log_probs - torch.tensor(completion.logprobs)).abs().sum().item()
        tokens += len(completion.token_ids)
    mean, tolerance = all_reduce(difference) / all_reduce(tokens), TOLERANCE[config.dtype]
    if not mean <= tolerance:
        raise UserError(
            f"The sampler does not have the trainer's weights: their log-probabilities of the same tokens differ by "
            f"{mean:.3g} nats on average, more than {tolerance} (--check_sync)."
        )


def checked(sampler, engine, task, problems, config):
    """The sampler as it is, or with --check_sync one that checks itself after each sync."""
    if not config.check_sync:
        return sampler
    sampler = CheckedSampler(
        sampler, functools.partial(check_sync, sampler, engine, task, problems, config)
    )
    # A few updates alone would change the weights too little: perturb them all, and restore them.
    with perturbed(engine.module):
        sampler.sync_weights(engine.module)
    sampler.sync_weights(engine.module)
    return sampler


class CheckedSampler:
    """A sampler that compares its log-probs with the trainer's after each sync."""

    def __init__(self, sampler, check):
        self.sampler = sampler
        self.check = check

    def sync_weights(self, policy):
        self.sampler.sync_weights(policy)
        self.check()

    def __getattr__(self, name):
        return getattr(self.sampler, name)
