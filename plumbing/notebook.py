"""For the notebooks: install what is missing, touch nothing that is there, and say what was found.

Colab has torch, transformers and numpy loaded or ready: another version of one of them would ask for a restart.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

# What Colab's runtimes lack, by the name to import. Without dependencies: those are there, in Colab's versions.
ADDED = {
    "deepspeed": "deepspeed==0.19.8",
    "hjson": "hjson==3.1.0",
    "ninja": "ninja==1.13.2",
    "einops": "einops==0.8.2",
    "msgpack": "msgpack==1.2.4",
    "tyro": "tyro==1.0.17",
}


def missing():
    """The packages of ADDED that cannot be imported here."""
    return [package for name, package in ADDED.items() if importlib.util.find_spec(name) is None]


def prepare():
    """Install what is missing; print the versions that were found."""
    packages = missing()
    if packages:
        print("Installing", ", ".join(packages), "...", flush=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", *packages], check=True
        )
        importlib.invalidate_caches()
    import torch

    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("torch", "transformers", "numpy", "deepspeed")
    ]
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU, and none is needed"
    )
    print(
        f"Python {sys.version.split()[0]}, {', '.join(versions)}; {os.cpu_count()} CPU cores, {device}."
    )
