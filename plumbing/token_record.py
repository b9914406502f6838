"""The record of single tokens: what the sampler, the update and the advantage say about each.

`out/NAME/tokens/step_000012.npz` has these arrays, for the completions of
`episodes/step_000012.jsonl` one after the other (F tokens in all, N completions, m groups, Q tokens
of prompts):

    token_ids    (F,)  uint16 or uint32      lengths         (N,)  tokens of each completion
    log_probs    (F,)  of the sampler        trained         (N,)  whether it was part of the update
    entropy      (F,)  nats                  prompt_ids      (Q,)  one prompt for each group
    change       (F,)  nats                  prompt_lengths  (m,)
    reference    (F,)  nats, with a penalty
    advantages   (F,)  only with vineppo: otherwise a completion's tokens share that of its row

`change` is a token's log-prob after the step's update minus before; `reference` the reference
model's minus the policy's before it, the d of the KL penalty. Floats are float16; NaN means not
computed.
`out/NAME/vocabulary.json` has the bytes of every token, so that a report needs no tokenizer.
"""

import re

import numpy as np
import torch

LARGEST = 100e6  # parameters of a model whose tokens are recorded unless the settings say otherwise


def tokens_every(config, policy):
    """Every how many steps tokens are recorded; 0: never."""
    if config.record_tokens_every is not None:
        return config.record_tokens_every
    # At each step it would take some 14% of the time.
    return 4 if sum(p.numel() for p in policy.parameters()) <= LARGEST else 0


def token_arrays(episodes, config):
    """The arrays of one process's episodes."""
    prompts = [e.prompt_ids for e in episodes[:: config.group_size]]
    trained = ["loss" in e.measured for e in episodes]
    arrays = {
        "token_ids": flat([e.completion.token_ids for e in episodes], np.uint32),
        "lengths": np.array([e.length for e in episodes], np.int32),
        "trained": np.array(trained),
        "prompt_ids": flat(prompts, np.uint32),
        "prompt_lengths": np.array([len(ids) for ids in prompts], np.int32),
        "log_probs": flat([e.completion.logprobs for e in episodes], np.float16),
        "entropy": flat([e.measured.get("entropy", not_computed(e)) for e in episodes], np.float16),
        "change": flat([change(e, config) for e in episodes], np.float16),
    }
    if config.kl_coef:
        d = [
            difference(e, e.per_token.get("ref_log_probs"), e.measured.get("log_probs"))
            for e in episodes
        ]
        arrays["reference"] = flat(d, np.float16)
    if getattr(config, "credit", None) == "vineppo":  # otherwise all of a completion are equal
        arrays["advantages"] = flat([e.per_token["advantages"] for e in episodes], np.float16)
    return arrays


def change(e, config):
    """Log-prob of each of the episode's tokens after the update minus before: (length,)."""
    before = e.per_token.get("old_log_probs", e.measured.get("log_probs"))
    if before is None and config.dtype == "float32":
        # It was not in the loss; sampler and trainer agree to 1e-4.
        before = torch.tensor(e.completion.logprobs)
    return difference(e, e.per_token.get("new_log_probs"), before)


def difference(e, log_probs, others):
    """Of the log-probs of the episode's tokens; NaN where one of both was not computed."""
    return not_computed(e) if log_probs is None or others is None else log_probs - others


def not_computed(e):
    return np.full(e.length, np.nan)


def flat(rows, dtype):
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
        return np.concatenate([np.asarray(row).astype(dtype) for row in rows])


def join(parts):
    """The arrays of all processes, in their order; token ids as small as they fit."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if max(arrays["token_ids"].max(initial=0), arrays["prompt_ids"].max(initial=0)) < 2**16:
        arrays |= {name: arrays[name].astype(np.uint16) for name in ("token_ids", "prompt_ids")}
    return arrays


def load_tokens(path):
    """The arrays of a file, as they were saved."""
    with np.load(path) as file:  # without pickle, which could run code
        return dict(file)


def vocabulary(tokenizer):
    """What a report needs of a tokenizer: {"tokens": [...], "special": ids without text}.

    A token's bytes stand there as a text of the characters U+0000 to U+00FF: a character may be
    split over tokens.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # slow to import

    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokens = [""] * (max(tokenizer.get_vocab().values()) + 1)
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
    for piece, i in tokenizer.get_vocab().items():
        raw = added.get(i, piece.replace("\u2581", " ")).encode()
        if i not in added and byte_level:
            raw = bytes(byte_of[letter] for letter in piece if letter in byte_of)
        elif re.fullmatch("<0x[0-9A-F]{2}>", piece):  # SentencePiece's bytes
            raw = bytes([int(piece[3:5], 16)])
        tokens[i] = raw.decode("latin-1")
    return {"tokens": tokens, "special": sorted(tokenizer.all_special_ids)}
