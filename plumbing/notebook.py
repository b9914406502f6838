"""For the notebooks: install what is missing, touch nothing that is there, say what was found.

Colab has torch, transformers and numpy loaded or ready: another version would ask for a restart.
"""

import importlib.metadata
import importlib.util
import subprocess
import sys

# What Colab's runtimes lack, by the name to import. Without dependencies: those are there.
ADDED = {"tyro": "tyro==1.0.17"}
if sys.platform == "linux":  # elsewhere torch's AdamW takes its place
    ADDED |= {
        "deepspeed": "deepspeed==0.19.8",
        "hjson": "hjson==3.1.0",
        "ninja": "ninja==1.13.2",
        "einops": "einops==0.8.2",
        "msgpack": "msgpack==1.2.4",
    }


def missing():
    """The packages of ADDED that cannot be imported here."""
    return [package for name, package in ADDED.items() if importlib.util.find_spec(name) is None]


def prepare():
    """Install what is missing; print the versions that were found."""
    if packages := missing():
        print("Installing", ", ".join(packages), "...", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", *packages]
        subprocess.run(pip, check=True)
        importlib.invalidate_caches()
    names = ("torch", "transformers", "numpy", "deepspeed")
    found = [name for name in names if importlib.util.find_spec(name)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in found]
    print(f"Python {sys.version.split()[0]}, {', '.join(versions)}.")
