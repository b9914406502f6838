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
"""

import os

import numpy as np
import torch


@torch.no_grad()
def after_step(path, step, episodes, batches, engine, tokenizer, config):
    """Record the tokens of a step if it is due. Every process calls this function.

    Args:
        path: the run's directory.
        episodes: this process's episodes, groups adjacent.
        batches: the update's micro-batches: dicts of tensors (B, T) and their B "episodes".
        engine: engine(batch) -> log-probs (B, T) with the current weights.
    """
    if not config.record_tokens_every or (step - 1) % config.record_tokens_every:
        return
    place = {id(e): i for i, e in enumerate(episodes)}
    arrays = {"place": [place[id(e)] for batch in batches for e in batch["episodes"]]}
    for name in ("token_ids", "mask", "prompt_ids", "log_probs"):
        arrays[name] = np.concatenate([getattr(e, name) for e in episodes])
    for batch in batches:
        batch["new_log_probs"] = engine(batch)
    for name in ("new_log_probs", "old_log_probs"):
        written = [batch[name][batch["response_mask"]] for batch in batches]
        arrays[name] = torch.cat(written).cpu()
    rank = os.environ.get("RANK", "0")
    if step == 1 and rank == "0":
        tokenizer.save_pretrained(f"{path}/tokenizer")
    os.makedirs(f"{path}/tokens", exist_ok=True)
    file = f"{path}/tokens/step_{step:06d}.{rank}.npz"
    with open(f"{file}.tmp", "wb") as whole:
        np.savez_compressed(whole, **arrays)
    os.replace(f"{file}.tmp", file)
