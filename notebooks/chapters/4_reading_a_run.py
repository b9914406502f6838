# %% [markdown]
# # 4. Reading a run
#
# A run's record shows whether the run learns and, if not, why. First you read a run that went well,
# then you diagnose three that did not. Nothing is trained here.
#
# Write each **prediction** down before you run its cell.
#
# ## A run that went well
#
# `metrics.jsonl` has one object per step; `docs/metrics.md` explains every name. The run trained an
# earlier embedded base on word problems, for 24 steps of 16 questions with 8 completions each.
#
# **Predict:** which of these rise, and which fall: reward, entropy, length, the share of groups
# with equal rewards, the norm of the gradient?

# %%
import matplotlib.pyplot as plt
import pandas as pd

from nano_report.labels import METRICS
from notebooks import diagnoses

RECORDS = "notebooks/chapters/records"


def show(run):
    """The metrics of a run by step; those of evaluations have points at some steps only."""
    table = pd.read_json(f"{RECORDS}/{run}/metrics.jsonl", lines=True).set_index("step")
    titles = [METRICS[name][0] if name in METRICS else name for name in table]
    table.plot(
        subplots=True,
        layout=(4, 3),
        figsize=(12, 8),
        title=titles,
        legend=False,
        marker=".",
        color="C0",
    )
    plt.suptitle(f"run {run}")
    plt.tight_layout()
    plt.show()
    return table


good = show("good")

# %% [markdown]
# - **reward** rises: format and correct answers are learned at once.
# - **held-out correct** ends far below the training problems' share, because 10 of the 30 kinds of
#   held-out stories are in no training problem. On problems of the same kinds, such a distance
#   would mean that the training problems are memorized.
# - **entropy** falls as the policy settles. At 0 the policy tries nothing new.
# - **no signal**, the share of groups with equal rewards, rises: solved questions teach nothing. If
#   it is near 1 at the *start*, the task is too hard, or the prompt does not suit the model.
# - **tokens**, the length, follows the reward; here it hardly changes. No completion is cut off.
# - **kl** grows to about 0.1, and the **gradient** keeps its order of magnitude. The loss is not
#   shown because its value says nothing (chapter 2).
#
# **Predict:** of 16 groups in the last step, how many could still teach something?

# %%
print(f"{good.iloc[-1]['frac_reward_zero_std']:.0%} of the groups have equal rewards")

# %% [markdown]
# ## Three patients
#
# These runs use the same model and program. Look at the curves, then at a few completions of the
# first and last step with their rewards. Most failures show in the completions, not in the curves.


# %%
def completions(run):
    """Two completions of a run's first step, and two of its last."""
    rows = pd.read_json(f"{RECORDS}/{run}/episodes.jsonl", lines=True)
    for step, group in rows.groupby("step"):
        print(f"\n==== run {run}, step {step}: {group.iloc[0]['problem']}")
        for row in group.itertuples():
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
# For each run, write the number of the diagnosis that fits best. Which curve or completion proves
# it, and what would you change?
#
# 1. The learning rate is too high, so the policy falls apart.
# 2. The learning rate is too low, so hardly anything changes.
# 3. Almost no completion ends in time, so there is no reward to learn from.
# 4. The reward can be cheated: the policy is paid more for something else than for correct answers.
# 5. The training problems are memorized, but held-out problems are not solved.
# 6. The KL penalty is too strong, so the policy cannot leave the base.

# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
diagnosis = {"a": None, "b": None, "c": None}  # your numbers

# %% tags=["test"]
KEY = {"a": "94045a37", "b": "9d24213c", "c": "f9e63b9b"}
diagnoses.judge(KEY, diagnosis, "Read the completions.")

# %% [markdown]
# Your teacher has the runs' commands: `records/commands.txt`, which is not in the students' zip
# file. `docs/metrics.md` says what to do about each of these failures. A run of your own keeps the
# same files in its directory, and its `report.html` shows every completion.
#
# ## Open task
#
# Make a fourth patient: a run of at most three minutes that fails in a way that is none of the six
# diagnoses. Give another student two things of its directory: `metrics.jsonl` without the column
# `lr`, and the folder `episodes`. (`config.json`, `report.html` and `lr` tell the cause.) Get
# theirs. Before you start the run, write into a cell how it will fail, and hand this in at once.
# *Hand in* your command, the other student's diagnosis, and yours of their run, each with the curve
# or completion that proves it. No answer is in this repository.
#
# Next: [5. Imitate, select, reinforce](5_imitate_select_reinforce.ipynb).
