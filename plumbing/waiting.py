"""What a run does before it is silent for seconds, said once, on the first process's console."""

import contextlib
import os


def waiting(what):
    with contextlib.suppress(OSError):  # the terminal is gone: the run goes on
        if os.environ.get("RANK", "0") == "0":
            print(f"... {what}", flush=True)
