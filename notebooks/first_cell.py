# Finds nano_r1.py around this notebook. Elsewhere, as on Colab, it unpacks nano_r1.zip, which
# `git archive --output nano_r1.zip HEAD` makes in a clone, or clones the repository.
import os
import shutil
import subprocess
import sys
from pathlib import Path

ADDRESS = ""  # of the repository, such as https://github.com/OWNER/nano_r1
places = [Path.cwd(), *Path.cwd().parents, Path.cwd() / "nano_r1"]
if not any((place / "nano_r1.py").exists() for place in places):
    if Path("nano_r1.zip").exists():
        shutil.unpack_archive("nano_r1.zip", "nano_r1")
    elif ADDRESS:
        subprocess.run(["git", "clone", "-q", "--depth", "1", ADDRESS, "nano_r1"], check=True)
    else:
        raise SystemExit("Put nano_r1.zip beside this notebook, then run this cell again.")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "tyro"], check=True)
os.chdir(next(place for place in places if (place / "nano_r1.py").exists()))
