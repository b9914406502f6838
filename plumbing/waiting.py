"""What is said on the first process's console."""

import contextlib
import os


def tell(text):
    """Print it, whatever has become of the terminal."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            print(text, flush=True)


def waiting(what):
    """Before a run is silent for seconds."""
    tell(f"... {what}")
