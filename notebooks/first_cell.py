# Finds nano_r1.py around this notebook. If it is not there, as on Colab, the cell fetches the
# repository from ADDRESS, or unpacks nano_r1.zip. To make that file in a clone, type
#     git archive --output nano_r1.zip HEAD
import glob
import importlib.util
import os
import shutil
import subprocess
import sys

ADDRESS = ""  # of the repository, such as https://github.com/OWNER/nano_r1
places = [".", "..", "../..", "nano_r1", "nano_r1/*"]  # the last: GitHub's zip has a folder
found = [file for place in places for file in glob.glob(f"{place}/nano_r1.py")]
if not found:
    if ADDRESS:
        subprocess.run(["git", "clone", "-q", "--depth", "1", ADDRESS, "nano_r1"], check=True)
    else:
        if "google.colab" in sys.modules and not os.path.exists("nano_r1.zip"):
            from google.colab import files

            files.upload()
        if not os.path.exists("nano_r1.zip"):
            raise SystemExit("Put nano_r1.zip beside this notebook, then run this cell again.")
        shutil.unpack_archive("nano_r1.zip", "nano_r1")
    found = glob.glob("nano_r1/nano_r1.py") + glob.glob("nano_r1/*/nano_r1.py")
if importlib.util.find_spec("tyro") is None:  # Colab lacks it
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "tyro"], check=True)
os.chdir(os.path.dirname(found[0]))
