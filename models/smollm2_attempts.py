"""Attempts at Countdown for SmolLM2's cold start, by the authors of nano-base's last stage.

    PYTHONPATH=models/nano-base python models/smollm2_attempts.py FILE

20,000 rows for nano_sft.py, with the prompt that nano_r1.py asks with. Two of the three authors end
each line with yes or no at random. So the rows show the format and a search, but no true check. The
problems are training problems of another seed than the reward's.
"""

import random
import sys

import make_base  # puts the repository's root on Python's path

import nano_r1
from benchmarks import runs

config = nano_r1.Config(model="models/smollm2-135m", prompt="chat", seed=1)
_, task = runs.load(config)
problems = task.load_problems("train", config)
rng = random.Random(0)
shares = [author.share for author in make_base.AUTHORS]
rows = []
for author in rng.choices(make_base.AUTHORS, shares, k=20_000):
    nums, target = make_base.draw(problems, rng)
    completion = make_base.write_completion(author, nums, target, False, rng)
    prompt = task.prompt_text({"nums": nums, "target": target})
    rows.append({"prompt": prompt, "completion": completion})
nano_r1.write_rows(sys.argv[1], rows)
