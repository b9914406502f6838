# %% [markdown]
# # 4. Reading a run
#
# A run's record shows whether the run learns and, if not, why. First you read a run that went well,
# then three that did not, for you to diagnose. Nothing is trained here: the records are of real
# runs, kept beside this notebook. The last cell shows their commands.
#
# Each part asks for a **prediction**. Write it down before you run the cell below it.
#
# ## A run that went well
#
# `metrics.jsonl` has one object per step; `docs/metrics.md` explains every name. The task is word
# problems, the model the embedded one: 24 steps of 16 questions with 8 completions each.
#
# **Predict:** which of these rise, which fall: reward, entropy, length, the share of groups with
# equal rewards, the norm of the gradient?

# %%
import hashlib

import matplotlib.pyplot as plt
import pandas as pd

from report.labels import METRICS

RECORDS = "notebooks/chapters/records"


def show(run):
    """The metrics of a run by step; those of evaluations have points at some steps only."""
    table = pd.read_json(f"{RECORDS}/{run}/metrics.jsonl", lines=True).set_index("step")
    titles = [METRICS[name][0] if name in METRICS else name for name in table]
    options = {"subplots": True, "layout": (4, 3), "figsize": (12, 8), "legend": False}
    table.plot(**options, title=titles, marker=".", color="C0")
    plt.suptitle(f"run {run}")
    plt.tight_layout()
    plt.show()
    return table


good = show("good")

# %% [markdown]
# - **reward** rises; format first, since it is quickly learned, then the correct answers.
# - **entropy** falls: the policy settles. If it reaches 0, nothing new is tried.
# - **no signal**, groups with equal rewards, rises: solved questions teach nothing.
#   If the share is near 1 at the *start*, the task is too hard, or the prompt does not fit.
# - **tokens** follow the reward; here they hardly change. Few completions are cut off.
# - **kl** grows slowly, and the **gradient** keeps its order of magnitude. The loss is not shown:
#   its value says nothing (chapter 2).
#
# **Predict:** of 16 groups in the last step, how many could still teach something?

# %%
print(f"{good.iloc[-1]['frac_reward_zero_std']:.0%} of the groups have equal rewards")

# %% [markdown]
# ## Three patients
#
# The same model and program. Look at the curves, then at a few completions of the first and of the
# last step with their rewards: most failures are seen in the completions, not in the curves.


# %%
def completions(run, count=2):
    """The first completions of the group that was kept of a run's first and last step."""
    rows = pd.read_json(f"{RECORDS}/{run}/episodes.jsonl", lines=True)
    for step, group in rows.groupby("step"):
        print(f"\n==== run {run}, step {step}: {group.iloc[0]['problem']}")
        for row in group.head(count).itertuples():
            correct = "correct" if row.answer_reward else "wrong"
            print(f"reward {row.reward}, {correct}, {row.length} tokens\n{row.completion.strip()}")


a = show("a")
completions("a")

# %%
b = show("b")
completions("b")

# %%
c = show("c")
completions("c")

# %% [markdown]
# ## Exercise
#
# Write your diagnosis for each run: the number of the sentence that fits best. For each, say to
# yourself which curve or which completion proves it, and what you would change.
#
# 1. The learning rate is too high: the policy dissolves.
# 2. The learning rate is too low: hardly anything changes.
# 3. No completion ends in time: there is no reward, so there is nothing to learn from.
# 4. The reward can be cheated: it rises, and accuracy does not.
# 5. The training problems are memorized: held-out problems are not solved.
# 6. The KL penalty is too strong: the policy cannot leave the base.

# %% tags=["exercise"]
diagnosis = {"a": None, "b": None, "c": None}  # your numbers

# %% tags=["test"]
KEY = {"a": "94045a37", "b": "9d24213c", "c": "f9e63b9b"}
if None in diagnosis.values():
    print("Not solved yet: fill in diagnosis in the cell above, run it, and then this one.")
else:
    for run, number in diagnosis.items():
        code = hashlib.sha256(f"run {run}: {number}".encode()).hexdigest()[:8]
        assert code == KEY[run], (
            f"Run {run}: another sentence fits better. Look at the completions."
        )
    with open(f"{RECORDS}/commands.txt") as file:
        print(f"Correct. The commands:\n\n{file.read()}")

# %% [markdown]
# `docs/metrics.md` says what to do about each of them. A run of your own has all of this in its
# directory, and its `report.html` shows every completion.
#
# Next: [5. Imitate, select, reinforce](5_imitate_select_reinforce.ipynb).
