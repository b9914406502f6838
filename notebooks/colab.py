# %% [markdown]
# # nano_r1, here and now
#
# Reinforcement learning from verifiable rewards (RLVR), the recipe of DeepSeek-R1-Zero, on a model
# of a million parameters that learns within minutes on the two CPU cores of a free runtime: no GPU,
# no account, no restart. What runs is `nano_r1.py` itself, one commented file; this notebook only
# calls it. Run the cells from the top, and write down your **prediction** before you run the cell
# below it.

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
# ## One question, eight attempts
#
# The task is word problems whose answer a small program checks: a reward of 1 for the form, 1 for
# the right number. The base has seen such problems with right and with wrong solutions; no reward
# has changed it yet. GRPO compares each attempt with its group: the *advantage* is the reward minus
# the group's mean, divided by its standard deviation.
#
# **Predict:** how many of eight attempts are right? What is the advantage of a right one, if two
# are right?

# %% tags=["parameters"]
steps, short_steps = 30, 12  # of the run; of each run with one line changed
questions, eval_problems = 16, 256  # in each step; held-out ones

# %%
import pandas as pd

import torch
from IPython.utils.capture import capture_output

import nano_r1 as r1
import variants
from plumbing.models import load_model, load_tokenizer
from plumbing.notebook import Attempt, attempts_table
from plumbing.processes import init_distributed
from plumbing.tasks import load_task

settings = {"task": "gsm8k", "max_tokens": 64, "prompts_per_step": questions, "warmup_steps": 3}
settings |= {"eval_problems": eval_problems, "save_every": 0}
config = r1.Config(**settings, steps=steps, eval_every=10, record_tokens_every=1)
init_distributed()
task = load_task(config.task, config.prompt, load_tokenizer(config.model))
problem = task.load_problems("test", None, 0)[9]


def attempts(model_path):
    """A group of completions of the problem by the model in that directory."""
    sampler = r1.make_sampler(config, load_model(model_path, config.dtype), task, max_length=512)
    group = r1.sample_and_reward(
        sampler, [problem], task, config, "colab", config.group_size, config.temperature
    )
    rewards = torch.tensor([e.reward.total for e in group])  # (n,)
    advantages = r1.group_advantages(rewards[None], config)[0].tolist()
    shown = []
    for e, advantage in zip(group, advantages):
        said = f"{e.reward.why}. Reward {e.reward.total:g}, advantage {advantage:+.2f}"
        shown.append(Attempt(e.text, e.reward.answer == 1, said))
    return shown


before = attempts(config.model)
attempts_table({"attempt": before}, problem["question"])

# %% [markdown]
# ## Training
#
# In each of 30 steps: 16 questions, 8 completions of each, their rewards and advantages, one
# optimizer step. The curves are drawn again while it runs; the time left is measured, not promised.
# Interrupting the cell ends the step, saves, and says how to go on.
#
# **Predict:** the share of right answers on held-out problems, before (the last cell gives a hint)
# and after.

# %%
run = r1.main(config)

# %% [markdown]
# ## Before and after
#
# **Predict:** has the model learned to compute, or to give the answer in the right form? Compare
# `strict` (right and well-formed) with `lenient` (the right number stands somewhere).
#
# All of this is sampled at temperature 1. Decoded greedily, its best temperature, the untrained
# base is right on 0.37 of such problems (`docs/base.md` has the command): only what is above that
# has been learned from the reward.

# %%
rows = pd.read_json(f"{run}/metrics.jsonl", lines=True).dropna(subset="eval/pass@1")
shown = ["eval/strict", "eval/lenient", "eval/format", "eval/mean_length"]
print(rows.set_index("step")[shown].round(3).to_string())
after = attempts(f"{run}/model")
attempts_table({"before": before, "after": after}, problem["question"])

# %% [markdown]
# ## Try it
#
# A problem of yours, or numbers and a target such as `19 36 55 7 = 65`. **Predict:** what does the
# trained model do with a kind of problem that it was not trained on? (In a terminal the same is
# `python ask.py out/NAME`.)

# %%
import ask

text = "Ava has 12 apples and buys 30 more. Then Ava gives 5 of them to Ben."
text += " How many apples does Ava have left?"
ask.show(text, [config.model, f"{run}/model"], answer=37, max_tokens=64)

# %% [markdown]
# ## Look inside
#
# Every group of the first, the middle and the last step: the completions, what each token's
# probability did in the update, the advantages under other rules.

# %%
from plumbing import report

report.show(run, steps=sorted({1, (steps + 1) // 2, steps}))

# %% [markdown]
# ## Change one line
#
# Five short runs: one as it is, and four in each of which one thing is different. `main` takes
# functions in the place of its own: that is where GRPO's relatives in `variants.py` come in, and
# experiments of yours (`docs/own_loss.md`).
#
# - **no baseline**: the raw reward instead of the advantage, so that every completion with a reward
#   is pushed up;
# - **flipped**: minus the advantage;
# - **k3** and **k1**: a heavy KL penalty (weight 1 instead of 0.001) with two estimates of the same
#   quantity.
#
# **Predict** for each: does the reward rise faster, as fast, more slowly, or fall? How far from the
# base does it get?


# %%
def raw_rewards(rewards, config):
    """(m, n) -> (m, n), in the place of `group_advantages`."""
    return rewards


def flipped(rewards, config):
    return -r1.group_advantages(rewards, config)


short = {**settings, "steps": short_steps, "eval_every": 0}
records = {}


def keep(name, main, config, **functions):
    """Run without its lines and curves; keep the metrics, and say how the reward went."""
    print(f"{name} ...", end=" ", flush=True)
    with capture_output():
        path = main(config, **functions)
    records[name] = pd.read_json(f"{path}/metrics.jsonl", lines=True).set_index("step")
    rewards = records[name]["reward"].dropna()
    print(f"reward {rewards.iloc[0]:.2f} in its first step, {rewards.iloc[-1]:.2f} in its last")


keep("as it is", r1.main, r1.Config(**short))
keep("no baseline", r1.main, r1.Config(**short), advantages=raw_rewards)
keep("flipped", r1.main, r1.Config(**short), advantages=flipped)
for name in ("k3", "k1"):
    keep(name, variants.main, variants.Config(**short, kl_coef=1.0, kl_estimator=name))

# %%
for metric in ("reward", "completions/mean_length", "kl"):
    curves = pd.DataFrame({name: record[metric] for name, record in records.items()})
    curves.loc[1:].plot(title=metric, figsize=(7, 3))

# %% [markdown]
# Without a baseline every paid completion is pushed up, the better ones more: it learns, with a
# noisier gradient. Flipped, it learns as eagerly what is *worse* than its group. k3 holds the model
# near the base. k1 as a loss does not know the reference, and `kl` grows nearly as without it;
# where each completion's tokens weigh 1/length, as here, its mean gradient is a bonus for length
# instead (chapter 3), which is hardly seen in these short solutions and decides much on Countdown.
# One seed and a dozen steps prove little: `docs/ablations.md` has three or five seeds, on
# Countdown.
#
# ## With a GPU
#
# The same loop trains Qwen2.5-0.5B on the real GSM8K, with low-rank adapters, so that it fits
# beside its samples into a T4's 15 GB; a T4 computes in float32 and samples with our loop, newer
# cards in bfloat16 and with vLLM where it is installed. By the T4's datasheet half an hour
# (`docs/larger_models.md` has the arithmetic); a checkpoint every 10 steps. Not tried on Colab's
# cards by us.

# %%
with_a_gpu = False  # Runtime > Change runtime type > T4, then True
if with_a_gpu:
    # Colab's own peft may be too old to save adapters with its transformers.
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-U", "peft"], check=True)
    dtype = "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float32"
    larger = {"model": "Qwen/Qwen2.5-0.5B", "data": "hub", "prompt": "chat", "lora_rank": 16}
    larger |= {"max_tokens": 300, "prompts_per_step": 8, "micro_batch_tokens": 2048}
    larger |= {"dtype": dtype, "learning_rate": 2e-5, "steps": 60, "eval_problems": 100}
    larger |= {"gradient_checkpointing": True, "save_every": 10}
    r1.main(r1.Config(task="gsm8k", **larger))

# %% [markdown]
# ## Go on
#
# Chapters, each a notebook of a few minutes with an exercise: `notebooks/chapters/` (one group by
# hand, the loss, KL, reading a run, imitate or select or reinforce). The algorithm itself:
# `nano_r1.py`, from the top. Another task of yours: `docs/own_task.md`.
