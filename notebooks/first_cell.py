# If this notebook stands alone, as on Colab, the repository is downloaded.
import os
import subprocess

places = [".", "..", "../..", "nano_r1"]
if not any(os.path.exists(f"{place}/nano_r1.py") for place in places):
    clone = "git clone -q --depth 1 https://github.com/nano-r1/nano_r1 && pip install -q tyro"
    subprocess.run(clone, shell=True, check=True)
os.chdir(next(place for place in places if os.path.exists(f"{place}/nano_r1.py")))
