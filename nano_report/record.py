"""The recorder writes what one update did to each token, in files that the report reads.

`out/NAME/tokens/step_000012.0.npz` has flat arrays (.1.npz is the second process's, and so on), of
the completions of this process, in the order of the step:

    token_ids     (F,)   the tokens of all completions, one after the other
    log_probs     (F,)   the sampler's
    change        (F,)   what the update has added to each token's log-prob; NaN if the token was
                         not in the update, such as one that a tool wrote
    prompt_ids    (Q,)   the tokens of all their prompts

`out/NAME/watched/` has a micro-batch of step 1, which is scored again after each update:
step_000000.0.npz has its tokens and its place, and, as each later file, its log_probs (B, T).
"""

import os

import numpy as np
import torch

TEXTS = ("input_ids", "labels", "response_mask")  # what an engine needs of a batch


@torch.no_grad()
def after_step(path, step, episodes, batches, engine, tokenizer, config):
    """Record the tokens of a step if it is due. Every process calls this function.

    Args:
        path: the run's directory.
        episodes: this process's episodes, groups adjacent.
        batches: the update's micro-batches: dicts of tensors (B, T) and their B "episodes".
        engine: engine(batch) -> log-probs (B, T) with the current weights; engine.device.
    """
    if not config.record_tokens_every:
        return
    rank = os.environ.get("RANK", "0")
    watch(f"{path}/watched", step, episodes, batches, engine, rank)
    if (step - 1) % config.record_tokens_every:
        return
    change = {e: np.full(len(e.token_ids), np.nan) for e in episodes}
    for batch in batches:
        moved = (engine(batch) - batch["old_log_probs"]).cpu()
        for e, row, mask in zip(batch["episodes"], moved, batch["response_mask"].cpu()):
            change[e][e.mask] = row[mask]
    arrays = {"change": np.concatenate(list(change.values()))}
    for name in ("token_ids", "log_probs", "prompt_ids"):
        arrays[name] = np.concatenate([getattr(e, name) for e in episodes])
    if rank == "0" and not os.path.exists(f"{path}/tokenizer"):  # the first recorded step
        tokenizer.save_pretrained(f"{path}/tokenizer")
    save(f"{path}/tokens/step_{step:06d}.{rank}.npz", arrays)


def watch(folder, step, episodes, batches, engine, rank):
    """Score a micro-batch of step 1 again, the densest in rejected solutions."""
    file = f"{folder}/step_000000.{rank}.npz"
    if step == 1:
        batch = max(batches, key=rejected_solutions)
        arrays = {name: batch[name].cpu() for name in TEXTS}
        arrays["place"] = [episodes.index(e) for e in batch["episodes"]]
        arrays["log_probs"] = batch["old_log_probs"].cpu()
        save(file, arrays)
    if os.path.exists(file):
        arrays = np.load(file)
        batch = {name: torch.tensor(arrays[name], device=engine.device) for name in TEXTS}
        save(f"{folder}/step_{step:06d}.{rank}.npz", {"log_probs": engine(batch).cpu()})


def rejected_solutions(batch):
    """How many of a micro-batch's completions have Countdown's target before a no, per token."""
    found = [f"={e.problem.get('target')} no" in e.completion for e in batch["episodes"]]
    return sum(found) / batch["labels"].numel()


def save(file, arrays):
    """Write a file of arrays, which is never half written."""
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(f"{file}.tmp", "wb") as whole:
        np.savez_compressed(whole, **arrays)
    os.replace(f"{file}.tmp", file)
