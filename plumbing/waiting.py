"""What is said on the first process's console."""

import contextlib
import os


def tell(text):
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the terminal is gone: the run goes on
            print(text, flush=True)


def waiting(what):
    """Before a run is silent for seconds."""
    tell(f"... {what}")
