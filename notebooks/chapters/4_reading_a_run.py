# %% [markdown]
# # 4. Reading a run
#
# A run tells in its record whether it learns and, if not, why. First the record of a run that went
# well, then those of three that did not, for you to diagnose. Nothing is trained here: the records
# are of real runs, kept beside this notebook; the commands that made them are shown once you have
# found out what they are.
#
# Each part asks for a **prediction**. Write it down before you run the cell below it.

# %%
import os
import subprocess
import sys

# Cloned where this notebook stands alone, as on Colab.
REPO, TAG = "https://github.com/nano-r1/nano_r1", "v1"
home = os.getcwd()
while not os.path.exists(f"{home}/plumbing") and home != os.path.dirname(home):
    home = os.path.dirname(home)
if not os.path.exists(f"{home}/plumbing"):
    home = os.path.abspath("nano_r1")
if not os.path.exists(home):
    clone = ["git", "clone", "-q", "--depth", "1", "--branch", TAG, REPO, home]
    done = subprocess.run(clone, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(clone)}\n{done.stderr}")
sys.path.insert(0, home)
from plumbing.notebook import prepare

prepare()

# %% [markdown]
# ## A run that went well
#
# `metrics.jsonl` has one object a step; `docs/metrics.md` explains every name. Word problems, the
# embedded model, 24 steps of 16 questions with 8 completions each.
#
# **Predict:** which of these rise, which fall: reward, entropy, length, the share of groups without
# signal, the norm of the gradient?

# %%
import hashlib
import json

import matplotlib.pyplot as plt
import pandas as pd

from plumbing.console import quoted

RECORDS = f"{home}/notebooks/chapters/records"
SHOWN = [
    "reward",
    "reward/answer",
    "reward/format",
    "completions/mean_length",
    "completions/clipped_ratio",
]
SHOWN += ["frac_reward_zero_std", "entropy", "grad_norm", "kl"]


def metrics(run):
    """The record of a run as a table, one row a step."""
    return pd.read_json(f"{RECORDS}/{run}/metrics.jsonl", lines=True).set_index("step")


def show(run):
    metrics(run)[SHOWN].plot(
        subplots=True, layout=(3, 3), figsize=(12, 6), title=f"run {run}", sharex=True
    )
    plt.show()


show("good")
metrics("good")[
    ["eval/pass@1", "eval/pass@1_low", "eval/pass@1_high", "eval/format"]
].dropna().round(3)

# %% [markdown]
# - **reward** rises; format first, since it is quickly learned, then the right answers.
# - **entropy** falls: the policy settles. To 0 it must not fall: nothing new would be tried.
# - **groups without signal** become more: solved questions teach nothing. Near 1 at the *start* it
#   means that the task is too hard, or that the prompt does not fit.
# - **length** follows what pays; here it hardly changes. **Cut off** stays near 0.
# - **kl** grows slowly, the **gradient** stays of one order of magnitude. The loss is not shown:
#   its value says nothing (chapter 2).
#
# **Predict:** of 16 groups in the last step, how many could still teach something?

# %%
last = metrics("good").iloc[-1]
print(f"{last['frac_reward_zero_std']:.0%} of the groups have no signal")
print(f"reward/answer is {last['reward/answer']:.2f}")

# %% [markdown]
# ## Three patients
#
# The same model, the same program. Look at the curves, then at a few completions of the first and
# of the last step, with what they were paid: most failures are read in the completions, not in the
# curves.

# %%
show("a")
show("b")
show("c")


# %%
def completions(run, count=2):
    """The first completions of the group that was kept of a run's first and last step."""
    with open(f"{RECORDS}/{run}/episodes.jsonl") as file:
        rows = [json.loads(line) for line in file]
    for step in sorted({row["step"] for row in rows}):
        group = [row for row in rows if row["step"] == step]
        print(f"\n==== run {run}, step {step}: {group[0]['problem']}")
        for row in group[:count]:
            paid = f"reward {row['reward']}, right {row['answer_reward']}"
            print(f"{paid}, ended by {row['finish_reason']}, {row['length']} tokens")
            print(quoted(row["completion"].strip()))


completions("a")

# %%
completions("b")

# %%
completions("c")

# %% [markdown]
# ## Exercise
#
# Your diagnosis for each run: the number of the sentence that fits best. For each, say to yourself
# which curve or which completion proves it, and what you would change.
#
# 1. The learning rate is too high: the policy dissolves.
# 2. The learning rate is too low: hardly anything changes.
# 3. No completion ends in time: nothing is ever paid, so there is nothing to learn from.
# 4. The reward can be cheated: what is paid rises, what was meant does not.
# 5. The training problems are memorized: held-out problems are not solved.
# 6. The KL penalty is too strong: the policy cannot leave the base.

# %% tags=["exercise"]
diagnosis = {"a": None, "b": None, "c": None}  # your numbers

# %% tags=["test"]
KEY = {"a": "94045a37", "b": "9d24213c", "c": "f9e63b9b"}
if None in diagnosis.values():
    print("The exercise is open: fill in diagnosis in the cell above, run it, and then this one.")
else:
    for run, number in diagnosis.items():
        said = hashlib.sha256(f"run {run}: {number}".encode()).hexdigest()[:8]
        assert said == KEY[run], (
            f"Run {run}: another sentence fits better. Look at the completions again."
        )
    print("Right. The commands:\n")
    with open(f"{RECORDS}/commands.txt") as file:
        print(file.read())

# %% [markdown]
# What to do about each of them is in `docs/metrics.md`. A run of your own has all of this in its
# directory, and `report.html` shows every completion of it.
#
# Next: [5. Imitate, select, reinforce](5_imitate_select_reinforce.ipynb).
