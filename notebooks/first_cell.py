# If this notebook stands alone, as on Colab, it downloads the repository it came from.
import os
import subprocess

ADDRESS = ""  # of that repository, such as https://github.com/OWNER/nano_r1
places = [".", "..", "../..", "nano_r1"]
if not any(os.path.exists(f"{place}/nano_r1.py") for place in places):
    if not ADDRESS:
        raise SystemExit("Set ADDRESS in this cell to the repository this notebook came from.")
    subprocess.run(["git", "clone", "-q", "--depth", "1", ADDRESS, "nano_r1"], check=True)
    subprocess.run(["pip", "install", "-q", "tyro"], check=True)
os.chdir(next(place for place in places if os.path.exists(f"{place}/nano_r1.py")))
