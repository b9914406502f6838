"""Reads a run's directory. If a file is missing, its part of the report stays empty."""

import json
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np


class Run:
    """A run's settings, metrics and vocabulary; on request a step's completions and tokens."""

    def __init__(self, path):
        """Raises ValueError if the directory does not hold a run."""
        self.name = os.path.basename(os.path.abspath(path))
        self.records = read_rows(f"{path}/metrics.jsonl")
        self.episodes = numbered(f"{path}/episodes", "jsonl")
        if not self.records and not self.episodes:
            raise ValueError(f"{path} has no metrics.jsonl and no episodes/: name a run, out/NAME.")
        self.tokens = numbered(f"{path}/tokens", "0.npz")
        self.watched = numbered(f"{path}/watched", "0.npz")
        self.evaluations = numbered(f"{path}/evaluations", "jsonl")
        self.config = next(iter(read_rows(f"{path}/config.json")), {})
        self.group_size = self.config.get("group_size", 1)
        self.vocabulary, self.special = vocabulary(f"{path}/tokenizer") if self.tokens else ([], [])

    def step(self, step):
        """The rows of a step, with their tokens (`add_tokens`) if these were recorded."""
        rows = read_rows(self.episodes[step])
        if step in self.tokens:
            files = list(self.tokens[step].parent.glob(f"step_{step:06d}.*.npz"))
            files.sort(key=lambda file: int(file.suffixes[0][1:]))  # by process: .2 before .10
            parts = [dict(np.load(file)) for file in files]  # without pickle, which could run code
            add_tokens(rows, parts, self.vocabulary)
        return rows


def paired(evaluations):
    """[the rows of one problem, one of each evaluation], for the problems that all of them have.

    Evaluations can differ in their problems and in the order of these: a resumed run may have
    another --eval_problems or another number of processes.
    """
    columns = []
    for rows in evaluations:
        column = defaultdict(list)
        for row in rows:
            column[str(row["problem"])].append(row)  # a problem can occur twice
        columns.append(column)
    found = []
    for problem in columns[0] if columns else ():
        found += zip(*[column[problem] for column in columns])
    return found


def add_tokens(rows, parts, vocabulary):
    """Add the arrays of record.py to the rows, unless some are missing.

    A process may not have written its own yet; those of an older version have other names.
    tokens; for each of them the sampler's log_probs, and change: the change of its log-prob by the
    update; and the prompt as a text.
    """
    flat = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ends = np.cumsum([row["length"] for row in rows])
    if ends[-1] != len(flat.get("change", ())):
        return
    for name in ("token_ids", "log_probs", "change"):
        for row, own in zip(rows, np.split(flat[name], ends[:-1])):
            row[name] = own.tolist()
    ends = np.cumsum([row["prompt_length"] for row in rows])
    for row, prompt_ids in zip(rows, np.split(flat["prompt_ids"], ends[:-1])):
        row["tokens"] = [vocabulary[i] for i in row.pop("token_ids")]
        prompt = "".join(vocabulary[i] for i in prompt_ids)
        row["prompt"] = prompt.encode("latin-1").decode(errors="replace")


def vocabulary(path):
    """({id: token}, the special tokens) of a tokenizer's directory; an id without a token is "".

    A token is stored as its bytes, written as characters U+0000 to U+00FF, because one character
    of a text may be split over tokens.
    """
    from transformers import AutoTokenizer  # slow to import
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)  # a slow tokenizer has none
    byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
    added = tokenizer.added_tokens_decoder  # slow: once, not for each token
    tokens = defaultdict(str)  # some models have more ids than their tokenizer
    for piece, i in tokenizer.get_vocab().items():
        raw = piece.replace("\u2581", " ").encode()  # SentencePiece's space
        if byte_level and i not in added:
            raw = bytes([byte_of[letter] for letter in piece])
        tokens[i] = raw.decode("latin-1")
    return tokens, [tokens[i] for i in tokenizer.all_special_ids]


def read_rows(path):
    """The objects of a jsonl file, or [] without a file."""
    text = Path(path).read_text("utf-8") if os.path.exists(path) else ""
    return [json.loads(line) for line in text.split("\n") if line]


def numbered(folder, kind):
    """{step: file} of a folder's files step_000012.KIND, in order."""
    files = sorted(Path(folder).glob(f"step_*.{kind}"))
    return {int(re.search(r"\d+", file.name)[0]): file for file in files}


def title(problem):
    """A problem in one line, from its columns."""
    if isinstance(problem.get("nums"), list) and "target" in problem:
        return f"Make {problem['target']} from {', '.join(map(str, problem['nums']))}"
    return str(problem.get("question") or problem.get("problem") or problem)
