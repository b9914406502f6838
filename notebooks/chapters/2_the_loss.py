# %% [markdown]
# # 2. The loss
#
# This chapter shows why the loss is 0 while the model learns, what the ratio and the clip do, how
# much each token weighs, and what breaks if one line is wrong. It uses real completions of the
# embedded model, and takes about three minutes on two CPU cores.
#
# Write each **prediction** down before you run its cell.
#
# ## A batch
#
# Steps 1 to 4 draw eight questions, sample eight completions of each, and compute rewards and
# advantages. `collate` turns them into tensors with a row for each completion (B) and a column for
# each token (T).

# %% tags=["parameters"]
questions = 8
short = {"steps": 12}  # settings of each run at the end of the chapter

# %%
import contextlib
import copy
import io
import sys
import tempfile

import matplotlib.pyplot as plt
import pandas as pd
import torch

sys.path.append("check")
import check_grpo
import nano_r1 as r1
from benchmarks import runs

config = r1.Config(
    task="gsm8k", max_tokens=64, prompts_per_step=questions, kl_coef=0.0, device="cpu"
)
sampler, task = runs.load(config)  # as chapter 1 begins
model = sampler.model
episodes = r1.rollout(sampler, task.load_problems("test", config), task, config, step=1)
rewards = torch.tensor([e.reward for e in episodes]).view(-1, config.group_size)  # (m, n)
advantages = r1.group_advantages(rewards, config)  # (m, n)
for e, advantage in zip(episodes, advantages.flatten().tolist()):
    e.advantage = advantage
batch = r1.collate(episodes, "cpu") | {"completions": len(episodes)}
mask = batch["response_mask"]  # (B, T)
scorer = r1.Scorer(model, config)  # scorer(batch): log-probs (B, T)
print({name: tuple(x.shape) for name, x in batch.items() if isinstance(x, torch.Tensor)})

# %% [markdown]
# ## Why is my loss 0?
#
# This is step 6 as in `update`. With one optimizer step per batch, the old policy equals the
# policy, so the ratio is 1.
#
# **Predict:** what is the value of the loss? Is its gradient also 0?

# %%
log_probs = scorer(batch)
batch["old_log_probs"] = log_probs.detach()
parts = r1.grpo_loss(log_probs, batch, config)  # (B,)
parts.sum().backward()
norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
print(f"loss {parts.sum().item():.1e}, norm of the gradient {norm.item():.2f}")

# %% [markdown]
# At ratio 1 each token's loss is $-\rho A = -A$. The mean over a completion is also -A, and a
# group's advantages sum to 0. So the value of the loss says nothing. The gradient is the sum of $-A
# \nabla \log \pi$ over the tokens, and $\nabla \log \pi$ differs between completions. Look at
# `grad_norm` and at the reward instead. The next cell prints the parts of the loss of the first
# group's completions, and their sum.

# %%
group = parts.detach()[: config.group_size]
print(group, group.sum())

# %% [markdown]
# ## The ratio and the clip
#
# $L = -\min(\rho A, \text{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A)$ with $\rho = \pi /
# \pi_{old}$. If a token's ratio has moved far enough in the direction of its advantage, the token
# gets no more gradient.
#
# **Predict:** where are the two curves flat, for A = +1 and for A = -1?

# %%
ratio = torch.linspace(0.5, 1.5, 101)[:, None]  # (B, T): completions of one token each
tokens = {"old_log_probs": 0.0, "response_mask": torch.ones_like(ratio), "completions": 1}
for advantage in (1.0, -1.0):
    values = r1.grpo_loss(ratio.log(), tokens | {"advantages": advantage}, config)  # (B,)
    plt.plot(ratio, values, label=f"A = {advantage:+.0f}")
plt.gca().set(xlabel="ratio", ylabel="loss of one token")
plt.legend()
plt.show()

# %% [markdown]
# For A > 0 the loss is flat at ratios above 1.2, and for A < 0 at ratios below 0.8. Nothing is
# clipped on the other side, so a step in the wrong direction can always be undone.
#
# Now take seven optimizer steps on the same batch, as PPO does. A token is *frozen* if the clip
# leaves it no gradient.
#
# **Predict:** is the loss still 0 after the first step? What share of tokens is frozen after seven?

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0)
pushed = mask & (batch["advantages"] != 0)  # (B, T)
for step in range(8):
    log_probs = scorer(batch)
    log_probs.retain_grad()
    loss = r1.grpo_loss(log_probs, batch, config).sum()
    optimizer.zero_grad()
    loss.backward()
    frozen = (log_probs.grad[pushed] == 0).float().mean()
    ratio = (log_probs.detach() - batch["old_log_probs"])[mask].exp()
    print(
        f"after {step} steps: loss {loss.item():+.4f}, ratio {ratio.min():.2f} to "
        f"{ratio.max():.2f}, frozen {frozen:.1%}"
    )
    optimizer.step()

# %% [markdown]
# The loss falls below 0 as soon as the ratio is not 1, because it is minimized on old samples. The
# clip does not stop a ratio from leaving the range. It only removes the reason to push the ratio
# further.
#
# ## How much does a token weigh?
#
# There are three ways to make the tokens' losses one number: the mean of the completions' means
# (GRPO), the mean over all tokens (DAPO), and the sum divided by completions x max_tokens (Dr.
# GRPO).
#
# **Predict:** a wrong completion of 20 tokens and a wrong one of 60 have the same advantage. With
# which of the three is a token of the long one pushed down less?

# %%
lengths = mask.sum(dim=1)  # (B,)
for length in (lengths.min(), lengths.max()):
    print(f"GRPO, a completion of {length} tokens: {1 / (length * len(lengths)):.6f}")
print(f"DAPO: {1 / lengths.sum():.6f}")
print(f"Dr. GRPO: {1 / (len(lengths) * config.max_tokens):.6f}")

# %% [markdown]
# With GRPO's mean each token of a long wrong completion is punished less. This is one of the
# reasons why wrong completions grow longer in training (Dr. GRPO, arXiv:2503.20783). With the other
# two, every token of the batch weighs the same, so a long completion weighs more in total.
#
# ## Break one line
#
# Here are four short runs: one as it is, and three that each change one thing. They take most of
# this chapter's time. `main` accepts functions that replace its own. `variants.py` uses this for
# GRPO's relatives; you can use it for experiments.
#
# - **no baseline**: the mean is not subtracted, but the reward is still divided by the group's
#   standard deviation. So in a group with a signal, every completion with a reward is pushed up; a
#   group with equal rewards has no signal, as before;
# - **flipped**: the advantage changes its sign;
# - **no sync**: the sampler never gets the new weights, so all completions are the base's.
#
# **Predict** for each: does the reward rise faster, as fast or more slowly, or does it fall? Which
# metric shows the missing sync?


# %% tags=["untested"]
def no_baseline(rewards, config):
    """(m, n) -> (m, n), instead of `group_advantages`."""
    std = rewards.std(dim=1, keepdim=True)  # (m, 1)
    return torch.where(std > 0, rewards / (std + config.advantage_eps), 0.0)


def flipped(rewards, config):
    """The same."""
    return -r1.group_advantages(rewards, config)


def stale_sampler(policy, task, device, config):
    """It samples from a copy of the base, and its `sync` does nothing."""
    return r1.TransformersSampler(copy.deepcopy(policy), task, config)


changes = {
    "as it is": {},
    "no baseline": {"advantages": no_baseline},
    "flipped": {"advantages": flipped},
    "no sync": {"make_sampler": stale_sampler},
}
records = {}
for name, change in changes.items():
    run = r1.Config(
        task="gsm8k",
        max_tokens=64,
        warmup_steps=3,
        eval_every=0,
        eval_problems=8,
        name=tempfile.mkdtemp(),
        **short,
    )
    with contextlib.redirect_stdout(io.StringIO()):  # the log of each step
        path = r1.main(run, **change)
    records[name] = pd.read_json(f"{path}/metrics.jsonl", lines=True).set_index("step")
    print(f"{name}: reward {records[name]['reward'].iloc[-1]:.2f} in the last step")

# %% tags=["untested"]
for metric in ("reward", "completions/mean_length", "sampling/logp_difference_mean"):
    curves = pd.DataFrame({name: rows[metric] for name, rows in records.items()})
    curves.loc[1:].plot(title=metric, figsize=(7, 3))

# %% [markdown]
# With an earlier base, the mean reward of the last three of 12 steps, for three seeds: as it is
# 1.75, 1.72 and 1.66; no baseline 1.21, 1.31 and 1.37. For seed 0 only: flipped 0.01, no sync 0.82.
# The first step has 0.76, 0.82 and 0.86.
#
# - **No baseline** still learns, but more slowly. Every completion with a reward is pushed up, and
#   a better one more. The *difference* within the group teaches. The common part, mean / std,
#   pushes all completions of the group alike. If it were a constant, its mean over many samples
#   would be 0, because $E[\nabla \log \pi] = 0$. But mean and std come from the same samples. If
#   most completions are correct, a group with mixed rewards has more failures than usual, and they
#   are pushed up. So the common part adds variance *and* a bias: with the rewards 1 and 2, eight
#   completions, one logit and 90% correct, the exact expectation of the step is only 14% of GRPO's;
#   with 20% correct it is 126%. (With GRPO's mean a bonus for short completions is added; chapter 3
#   says why. In the last step a completion had 20, 22 and 20 tokens as it is, and 16, 18 and 17
#   with no baseline.)
# - **Flipped**: the policy learns what is *worse* than its group.
# - **No sync**: the reward stays where it was, because the completions are always the base's, and
#   the gradient pushes at them again and again. The log-probs of sampler and trainer differ more
#   with each step, so `main` compares them and prints a warning.
#
# A dozen steps on one task are little evidence.
#
# ## Exercise
#
# Write GRPO's loss without a KL penalty. The inputs `log_probs`, `old_log_probs` and
# `ref_log_probs` are (B, T) and `advantages` is (B,), in float64. `mask` is (B, T), bool. The test
# below compares value and gradient with formulas:
# [check_grpo.py](../../check/check_grpo.py) names the algorithm, or the mistake.


# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask):
    """The mean of the completions' means of -min(rho A, clip(rho, 0.8, 1.2) A): a scalar."""
    return None  # your lines


# %% tags=["test"]
example = torch.zeros(2, 3, dtype=torch.float64)
if loss(example, example, example, example[:, 0], example == 0) is None:
    print("Not solved yet: write loss in the cell above, run it, and then this one.")
else:
    right, names, text = check_grpo.judge_loss(loss)
    asked = "token, clip 0.2 below and 0.2 above, mean of the completions' means.\n"  # and no more
    assert right and names == ["GRPO"] and asked in text, text
    print("Correct:", text)

# %% [markdown]
# ## Open task
#
# Break another line, in a way that the reward does not show within 12 steps, but another metric
# does. For example, change `loss`, `rollout` or `make_engine` (`parts_of_main` in `nano_r1.py`
# lists what can be replaced). Before the runs, write into a cell what each metric will show. *Hand
# in* the prediction, your function, the curves of three seeds with and without it, and the metric
# that would have warned you. No answer is in this repository.
#
# Next: [3. KL](3_kl.ipynb).
