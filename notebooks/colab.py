# %% [markdown]
# # nano_r1, here and now
#
# Reinforcement learning from verifiable rewards (RLVR), the recipe of DeepSeek-R1-Zero. The model
# has a million parameters and learns within minutes on the two CPU cores of a free runtime: no GPU,
# no account. This notebook calls `nano_r1.py`, one commented file. Run the cells from the top.
# Write down your **prediction** before you run the cell below it.

# %% [markdown]
# ## One problem, eight completions
#
# The task is Countdown: combine the given numbers with + - * / to reach a target. A small program
# checks the answer: a reward of 0 to 1 for the format, and 1 for a correct solution. The base gives
# up early as a rule. GRPO compares each completion with its group: the *advantage* is the reward
# minus the group's mean, divided by its standard deviation.
#
# **Predict:** how many of eight completions are correct? What is the advantage of a correct one, if
# two are correct?

# %% tags=["parameters"]
steps, short_steps = 30, 12  # of the run; of each run with one line changed
problems, eval_problems = 16, 256  # in each step; held-out ones
max_tokens = 320  # of a completion

# %%
import tempfile

import pandas as pd
import torch

import countdown_rewards
import nano_r1 as r1
from report.viewer import show

settings = {"task": "countdown", "prompts_per_step": problems, "max_tokens": max_tokens}
settings |= {"warmup_steps": 3}
config = r1.Config(**settings, steps=steps, eval_problems=eval_problems, eval_every=10)
base = config.model


def completions(model, problem):
    """A group of completions by the model in that directory, as a table."""
    policy, tokenizer = r1.load_model(r1.Config(model=model))
    task = r1.Task(tokenizer, policy, config)
    sampler = r1.TransformersSampler(policy, task, config)
    group = r1.sample_and_reward(sampler, [problem], task, config, "colab", config.group_size)
    rewards = torch.tensor([e.reward.total for e in group])  # (n,)
    rows = {"completion": [e.text.strip() for e in group], "verdict": [e.reward.why for e in group]}
    rows |= {"reward": rewards, "advantage": r1.group_advantages(rewards[None], config)[0]}
    lines = {"text-align": "left", "white-space": "pre-wrap"}
    return pd.DataFrame(rows).style.format(precision=2).set_properties(**lines)


problem = countdown_rewards.load_problems("test")[0]
print(problem)
completions(base, problem)

# %% [markdown]
# ## Training
#
# Each of 30 steps has 16 problems, 8 completions of each, their rewards and advantages, and one
# optimizer step. If you interrupt the cell, the step ends and is saved.
#
# **Predict:** the share of correct answers on held-out problems, before and after.

# %%
run = r1.main(config)

# %% [markdown]
# ## Before and after
#
# **Predict:** are the completions longer or shorter than before? What do they do differently?
#
# All of this is sampled at temperature 1. At its best temperature the base solves 14% of public
# problems (`docs/base.md`). Systematic search was in its training data; training makes it frequent
# (`docs/results.md`).

# %%
rows = pd.read_json(f"{run}/metrics.jsonl", lines=True).dropna(subset="eval/pass@1")
print(rows.set_index("step")[["eval/pass@1", "eval/format", "eval/mean_length"]].round(3))
completions(f"{run}/model", problem)

# %% [markdown]
# ## Try it
#
# A problem of yours. **Predict:** what does the model do with five numbers, or with a target that
# cannot be reached?

# %%
yours = {"nums": [3, 7, 25], "target": 46}  # three or four numbers from 1 to 99
completions(f"{run}/model", yours)

# %% [markdown]
# ## Look inside
#
# The report shows every group: the completions, and what the update did to the probability of each
# token.

# %%
show([run], steps=sorted({1, steps}))

# %% [markdown]
# ## Change one line
#
# Four short runs: one as it is, and three in each of which one thing is different. `main` takes
# functions instead of its own: there GRPO's relatives in `variants.py` come in, and your
# experiments.
#
# - **no baseline**: the raw reward instead of the advantage, so that every completion with a reward
#   is pushed up;
# - **flipped**: minus the advantage;
# - **heavy KL**: a KL penalty of weight 1 instead of 0.001.
#
# **Predict** for each: does the reward rise faster, as fast, more slowly, or fall? How far from the
# base does the policy get?


# %%
def raw_rewards(rewards, config):
    """(m, n) -> (m, n), instead of `group_advantages`."""
    return rewards


def flipped(rewards, config):
    """The same."""
    return -r1.group_advantages(rewards, config)


short = {**settings, "steps": short_steps, "eval_every": 0, "eval_problems": 8}
paths = {
    "as it is": r1.main(r1.Config(**short, name=tempfile.mkdtemp())),
    "no baseline": r1.main(r1.Config(**short, name=tempfile.mkdtemp()), advantages=raw_rewards),
    "flipped": r1.main(r1.Config(**short, name=tempfile.mkdtemp()), advantages=flipped),
    "heavy KL": r1.main(r1.Config(**short, name=tempfile.mkdtemp(), kl_coef=1.0)),
}

# %%
records = {name: pd.read_json(f"{path}/metrics.jsonl", lines=True) for name, path in paths.items()}
for metric in ("reward", "completions/mean_length", "kl"):
    curves = pd.DataFrame({name: rows.set_index("step")[metric] for name, rows in records.items()})
    curves.loc[1:].plot(title=metric, figsize=(7, 3))

# %% [markdown]
# Without a baseline every completion with a reward is pushed up, the better ones more: the policy
# learns, with a noisier gradient. Flipped, it learns what is *worse* than its group. The heavy
# penalty holds it near the base. One seed and a dozen steps prove little: `docs/results.md` has
# three seeds, on Countdown.
#
# Six chapters, each a notebook of a few minutes with an exercise, are in `notebooks/chapters/`. The
# algorithm itself is `nano_r1.py`, from the top. `docs/own_task.md` explains a task of your own,
# and `runs/` has commands for GPUs.
