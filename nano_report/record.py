"""The recorder writes what one update did to each token, in files that the report reads.

`out/NAME/tokens/step_000012.0.npz` has flat arrays (.1.npz is the second process's, and so on).
These arrays have the N completions of this process, in the order of the step:

    token_ids                       (F,)   the tokens of all completions, one after the other
    log_probs                       (F,)   the sampler's
    mask                            (F,)   False: the model did not write it
    prompt_ids                      (Q,)   the tokens of all their prompts

These arrays have the completions in the order of the update's micro-batches, and of these only the
tokens that the model wrote:

    place                           (M,)   each completion's place among the N
    old_log_probs, new_log_probs    (F',)  each token's log-prob before and after the update

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
    place = {id(e): i for i, e in enumerate(episodes)}
    watch(f"{path}/watched", step, place, batches, engine, rank)
    if (step - 1) % config.record_tokens_every:
        return
    arrays = {"place": [place[id(e)] for batch in batches for e in batch["episodes"]]}
    for name in ("token_ids", "mask", "prompt_ids", "log_probs"):
        arrays[name] = np.concatenate([getattr(e, name) for e in episodes])
    for batch in batches:
        batch["new_log_probs"] = engine(batch)
    for name in ("new_log_probs", "old_log_probs"):
        written = [batch[name][batch["response_mask"]] for batch in batches]
        arrays[name] = torch.cat(written).cpu()
    if rank == "0" and not os.path.exists(f"{path}/tokenizer"):  # the first recorded step
        tokenizer.save_pretrained(f"{path}/tokenizer")
    save(f"{path}/tokens/step_{step:06d}.{rank}.npz", arrays)


def watch(folder, step, place, batches, engine, rank):
    """Score a micro-batch of step 1 again, the densest in rejected solutions."""
    file = f"{folder}/step_000000.{rank}.npz"
    if step == 1:
        batch = max(batches, key=rejected_solutions)
        arrays = {name: batch[name].cpu() for name in TEXTS}
        arrays["place"] = [place[id(e)] for e in batch["episodes"]]
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
