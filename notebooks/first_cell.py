# Finds nano_r1.py around this notebook. If it is not there, as on Colab, the cell fetches the
# repository from ADDRESS, or unpacks nano_r1.zip. To make that file in a clone, type
#     git archive --output nano_r1.zip HEAD
import os
import shutil
import subprocess
import sys

ADDRESS = ""  # of the repository, such as https://github.com/OWNER/nano_r1
places = [".", "..", "../..", "nano_r1"]
if not any(os.path.exists(f"{place}/nano_r1.py") for place in places):
    if ADDRESS:
        subprocess.run(["git", "clone", "-q", "--depth", "1", ADDRESS, "nano_r1"], check=True)
    else:
        if "google.colab" in sys.modules and not os.path.exists("nano_r1.zip"):
            from google.colab import files

            files.upload()
        if not os.path.exists("nano_r1.zip"):
            raise SystemExit("Put nano_r1.zip beside this notebook, then run this cell again.")
        shutil.unpack_archive("nano_r1.zip", "nano_r1")
    subprocess.run(["pip", "install", "-q", "tyro"], check=True)
os.chdir(next(place for place in places if os.path.exists(f"{place}/nano_r1.py")))
