"""--check_sync: does the sampler give the same tokens the same log-probs as the trainer?

Independent of the lesson's code: its own log-softmax, one row at a time, no masks and no padding.
"""

import torch
import torch.distributed as dist

from plumbing.models import perturbed
from plumbing.processes import all_reduce, derive_seed
from plumbing.settings import UserError

# Nats a token, on average. bfloat16 alone makes some 0.02, with perturbed weights up to 0.13; there
# a sync that is skipped makes 8 or more, one matrix left out 0.4.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
TOLERANCE_PERTURBED = {"float32": 1e-3, "bfloat16": 0.3}
PROMPTS = 8  # of each process


def check_sync(sampler, engine, task, problems, config, tolerance=TOLERANCE):
    """Sample a little with the weights just synced, compare log-probs; UserError if they differ.

    Always the same problems, so that a prefix cached with older weights would show.
    """
    places = range(dist.get_rank(), PROMPTS * dist.get_world_size(), dist.get_world_size())
    prompts = [task.prompt_ids(problems[i % len(problems)]) for i in places]
    seeds = [derive_seed(config.seed, "sync", i) for i in places]
    limits = [min(64, config.max_tokens)] * len(prompts)
    differences = []
    groups = sampler.generate(prompts, 2, config.temperature, limits, seeds)
    for prompt, group in zip(prompts, groups):
        for completion in group:
            ids = torch.tensor([prompt + completion.token_ids], device=engine.device)
            with torch.no_grad():
                logits = engine(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            log_probs = torch.log_softmax(logits.float() / config.temperature, dim=-1)
            log_probs = log_probs.gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
            differences += (log_probs - torch.tensor(completion.logprobs)).abs().tolist()
    total, tokens = all_reduce([sum(differences), len(differences)])
    if not total / tokens <= tolerance[config.dtype]:
        raise UserError(
            "--check_sync: the sampler does not have the trainer's weights: their log-probs of "
            f"the same tokens differ by {total / tokens:.3g} nats on average."
        )


def checked(sampler, engine, task, problems, config):
    """The sampler as it is, or with --check_sync one that checks itself after each sync."""
    if not config.check_sync:
        return sampler
    sync = sampler.sync_weights

    def sync_and_check(policy, tolerance=TOLERANCE):
        sync(policy)
        check_sync(sampler, engine, task, problems, config, tolerance)

    sampler.sync_weights = sync_and_check
    # A few updates alone would change the weights too little: perturb them all, and restore them.
    with perturbed(engine.module):
        sampler.sync_weights(engine.module, TOLERANCE_PERTURBED)
    sampler.sync_weights(engine.module)
    return sampler
