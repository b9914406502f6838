# %% [markdown]
# # nano_r1, here and now
#
# Reinforcement learning from verifiable rewards (RLVR), the recipe of DeepSeek-R1-Zero, teaches a
# model of a million parameters within minutes, on the two CPU cores of a free runtime. The notebook
# calls `nano_r1.py`, one commented file. Run the cells from the top. Write down your **prediction**
# before you run the cell below it.

# %% [markdown]
# ## One problem, eight completions
#
# The task is Countdown: combine the given numbers with + - * / to reach a target. A small program
# checks the answer. It rewards the format with 0 to 1 and a correct solution with 1. The base ends
# most lines with "yes" or "no" almost at random, and stops at a yes. GRPO compares each completion
# with its group. The *advantage* is the reward minus the group's mean, divided by the group's
# standard deviation.
#
# **Predict:** how many of the eight completions are correct? If two are correct and all have the
# same format, what is the advantage of these two?

# %% tags=["parameters"]
steps = 30  # of the run
problems, eval_problems = 16, 256  # in each step; held-out ones
max_tokens = 320  # of a completion

# %%
from dataclasses import replace

import pandas as pd
import torch

import countdown_rewards
import nano_r1 as r1
from benchmarks import runs
from nano_report.viewer import show, show_group

config = r1.Config(
    task="countdown",
    prompts_per_step=problems,
    max_tokens=max_tokens,
    steps=steps,
    warmup_steps=3,
    eval_problems=eval_problems,
    eval_every=10,
)
base = config.model


def completions(model, problem):
    """A group of completions by the model in that directory, with rewards and advantages."""
    sampler, task = runs.load(replace(config, model=model))
    group = r1.sample_and_reward(sampler, [problem], task, config, "colab", config.group_size)
    rewards = torch.tensor([e.reward for e in group])  # (n,)
    for e, advantage in zip(group, r1.group_advantages(rewards[None], config)[0].tolist()):
        e.advantage = advantage
    return show_group(r1.as_rows(group))


problem = countdown_rewards.load_problems("test")[0]
completions(base, problem)

# %% [markdown]
# ## Training
#
# Each of 30 steps samples 8 completions of each of 16 problems, computes their rewards and
# advantages, and takes one optimizer step. If you interrupt the cell, it finishes and saves the
# step.
#
# **Predict:** what share of held-out problems is solved before training, and after?

# %%
run = r1.main(config)

# %% [markdown]
# ## Before and after
#
# **Predict:** when does the trained model write "yes"? Are its completions longer or shorter?
#
# All completions are sampled at temperature 1. At its best temperature the base solves 12% of
# public problems (`docs/results.md`). Its training data had systematic search. In the last part of
# them, yes and no were random; this training gives them their meaning again.

# %%
rows = pd.read_json(f"{run}/metrics.jsonl", lines=True).dropna(subset="eval/pass@1")
print(rows.set_index("step")[["eval/pass@1", "eval/format", "eval/mean_length"]].round(3))
completions(f"{run}/model", problem)

# %% [markdown]
# ## Try it
#
# Enter a problem. **Predict:** what does the model do with five numbers, or with a target that
# cannot be reached?

# %%
yours = {"nums": [3, 7, 25], "target": 46}  # three or four numbers from 1 to 99
completions(f"{run}/model", yours)

# %% [markdown]
# ## Look inside
#
# The report shows the completions of every group, and what the update did to the probability of
# each token.

# %%
show(run)

# %% [markdown]
# Next: seven chapters in `notebooks/chapters/`. In chapter 2 you break one line of the algorithm
# and see what happens. Or read `nano_r1.py` from its top.
