"""Files of a run: each is written whole or not at all; what a kill left half is passed over."""

import contextlib
import json
import os
import re
import shutil

from safetensors import SafetensorError

from plumbing.settings import UserError


@contextlib.contextmanager
def writing(path):
    """Errors while `path` is written become a UserError."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, (OSError, SafetensorError))
        if not known and "os error" not in str(error):  # as the library of tokenizers says it
            raise
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} could not be written: {reason}.") from None


def remove(path):
    """Delete a file or a directory if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


@contextlib.contextmanager
def atomic_write(path, flush=False):
    """Yield a hidden path for a file or directory; it is renamed to `path` once it is complete.

    `flush`: by then it is on disk, whatever happens to the machine.
    """
    path = os.path.normpath(path)
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.tmp")
    with writing(path):
        try:
            os.makedirs(os.path.dirname(hidden) or ".", exist_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)  # what a killed run left
            yield hidden
            if flush and hasattr(os, "sync"):  # Windows has none
                os.sync()
            if os.path.isdir(path):  # a directory cannot be replaced atomically
                shutil.rmtree(path)
            os.replace(hidden, path)
        except BaseException:
            remove(hidden)
            raise


def write_text(path, text, flush=False):
    """Write a text file atomically."""
    with atomic_write(path, flush) as hidden, open(hidden, "w", encoding="utf-8") as file:
        file.write(text)


def read_json(path):
    """What a file holds; None if it is missing or cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return json.load(file)


def read_rows(path):
    """The objects of a jsonl file, [] if there is none; a line that a kill cut off is left out."""
    rows = []
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def numbered(directory):
    """{step: path} of the files and directories `step_000012`, with any ending, in order."""
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    found = [(re.fullmatch(r"(?:bad_)?step_(\d+)(\.\w+)?", name), name) for name in names]
    return {int(match[1]): os.path.join(directory, name) for match, name in found if match}
