# %% [markdown]
# # 2. The loss
#
# Why it is 0 while the model learns, what the ratio and the clip do, and how much each token
# weighs. On real completions of the embedded model; two CPU cores, about a minute of computing.
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
# ## A batch
#
# Steps 1 to 4: eight questions, eight completions of each, their rewards, their advantages.
# `collate` makes tensors of them: one row a completion (B), one column a token (T).

# %%
import matplotlib.pyplot as plt
import torch

import nano_r1 as r1
import variants
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.tasks import load_task

config = r1.Config(task="gsm8k", max_tokens=64, prompts_per_step=8, kl_coef=0.0)
init_distributed()
tokenizer = load_tokenizer(config.model)
task = load_task(config.task, config.prompt, tokenizer)
problems = task.load_problems("test", None, 0)
model = load_model(config.model, config.dtype)
sampler = r1.make_sampler(config, model, task, max_length=512)

episodes = r1.rollout(sampler, problems, task, config, step=1)
rewards = torch.tensor([e.reward.total for e in episodes]).view(-1, config.group_size)  # (m, n)
advantages = r1.group_advantages(rewards, config)  # (m, n)
for e, advantage in zip(episodes, advantages.flatten().tolist()):
    e.advantage = advantage
    e.per_token["advantages"] = [advantage] * e.length
batch = r1.collate(episodes, "cpu")
mask = batch["response_mask"]  # (B, T)
print({name: tuple(tensor.shape) for name, tensor in batch.items()})

# %% [markdown]
# ## Why is my loss 0?
#
# Step 6 as `main` has it. With one optimizer step for each batch the old policy is the policy, so
# the ratio is 1.
#
# **Predict:** the value of the loss, and whether its gradient is 0.


# %%
def log_probs_now():
    """Of the batch's tokens under the model's present weights, (B, T)."""
    log_probs, _ = r1.get_response_log_probs(model, batch, config.temperature)
    return log_probs


log_probs = log_probs_now()
batch["old_log_probs"] = log_probs.detach()
parts, _ = r1.grpo_loss(log_probs, batch, len(episodes), config)  # (B,)
loss = parts.sum()
loss.backward()
norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
print(f"loss {loss.item():.1e}, norm of the gradient {norm.item():.2f}")

# %% [markdown]
# At ratio 1 each token's loss is $-\rho A = -A$. Averaged over a completion it is -A again, and a
# group's advantages sum to 0. So the value says nothing; the gradient is the sum of $-A \nabla \log
# \pi$ over the tokens, and two completions have different ones. Look at `grad_norm` and at the
# reward. One group's terms:

# %%
place = advantages.abs().sum(dim=1).argmax().item()  # a group whose rewards differ
group = slice(place * config.group_size, (place + 1) * config.group_size)
for e, part in zip(episodes[group], parts[group].tolist()):
    print(f"A {e.advantage:+.2f}  its part of the loss {part:+.4f}  {e.length} tokens")
print(f"their sum {parts[group].sum().item():+.7f}")

# %% [markdown]
# ## The ratio and the clip
#
# $L = -\min(\rho A, \text{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A)$ with $\rho = \pi /
# \pi_{old}$. A token whose ratio has gone far enough in the direction of its advantage gets no more
# gradient.
#
# **Predict:** where are the two curves flat, for A = +1 and for A = -1?


# %%
def loss_of(ratio, advantage):
    """`grpo_loss` of completions of one token each: (N,), (N,) -> (N,)."""
    tokens = {"advantages": advantage[:, None], "old_log_probs": torch.zeros(len(ratio), 1)}
    tokens["response_mask"] = torch.ones(len(ratio), 1)
    parts, _ = r1.grpo_loss(ratio.log()[:, None], tokens, 1, config)
    return parts


ratio = torch.linspace(0.5, 1.5, 101)
for advantage in (1.0, -1.0):
    loss = loss_of(ratio, torch.full_like(ratio, advantage))
    plt.plot(ratio, loss, label=f"A = {advantage:+.0f}")
plt.axvline(1.0, color="grey", linewidth=0.5)
plt.xlabel("ratio"), plt.ylabel("loss of one token"), plt.legend()
plt.show()

# %% [markdown]
# Flat where A > 0 and the ratio is above 1.2, and where A < 0 and it is below 0.8. On the other
# side nothing is clipped: a step in the wrong direction can always be undone.
#
# Now seven optimizer steps on the *same* batch: what `python variants.py --epochs 7` does.
#
# **Predict:** is the loss still 0 after the first step? What share of tokens is frozen after seven?

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, betas=(0.9, 0.95), weight_decay=0.0)
for step in range(8):
    log_probs = log_probs_now()
    parts, stats = r1.grpo_loss(log_probs, batch, len(episodes), config)
    loss = parts.sum()
    ratio = (log_probs.detach() - batch["old_log_probs"])[mask].exp()
    low = stats["clip_ratio/low"][mask].float().mean()
    high = stats["clip_ratio/high"][mask].float().mean()
    print(
        f"after {step} steps: loss {loss.item():+.4f}, ratio {ratio.min():.2f} to "
        f"{ratio.max():.2f}, frozen {low:.1%} with A < 0 and {high:.1%} with A > 0"
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# The loss falls below 0 as soon as the ratio is not 1: it is the surrogate that is minimized, on
# old samples. The clip does not stop a ratio from leaving the range, it only takes the reason away
# to push it further.
#
# ## How much does a token weigh?
#
# The per-token losses become one number in three ways (`variants.py --loss_agg_mode`): the mean of
# each completion's mean (GRPO), the mean over all tokens (DAPO), the sum divided by completions x
# max_tokens (Dr. GRPO).
#
# **Predict:** a wrong completion of 20 tokens and one of 60 have the same advantage. In which of
# the three is a token of the long one pushed down less?

# %%
by_length = sorted(range(len(episodes)), key=lambda i: episodes[i].length)
shown = [by_length[0], by_length[len(by_length) // 2], by_length[-1]]
print(f"{'':22}", *(f"{episodes[i].length:>4} tokens" for i in shown))
for mode, aggregate in variants.AGGREGATES.items():
    token_losses = torch.zeros(mask.shape, requires_grad=True)  # (B, T)
    parts = aggregate(token_losses, mask, len(episodes), mask.sum(), config)  # (B,)
    parts.sum().backward()
    weights = [token_losses.grad[i][mask[i]].mean().item() for i in shown]
    print(f"{mode:23}", *(f"{weight:11.6f}" for weight in weights))

# %% [markdown]
# With GRPO's mean a long wrong completion is punished less for each of its tokens: one of the
# reasons why wrong completions grow longer in training (Dr. GRPO, arXiv:2503.20783). With the other
# two every token of the batch weighs the same, so long completions weigh more in all.
#
# ## Exercise
#
# Which tokens get no gradient from PPO's clip? Write the condition, for tensors of ratios and
# advantages.


# %% tags=["exercise"]
def is_frozen(ratio, advantage, eps):
    """(N,) ratios, (N,) advantages, a number -> (N,) bool: True where the clipped loss is flat."""
    return None  # your line


# %% tags=["test"]
ratio, advantage = torch.cartesian_prod(
    torch.linspace(0.55, 1.45, 10), torch.tensor([-2.0, 0.5])
).unbind(1)  # (N,) each
if is_frozen(ratio, advantage, 0.2) is None:
    print("The exercise is open: write is_frozen in the cell above, run it, and then this one.")
else:
    ratio.requires_grad_()
    loss_of(ratio, advantage).sum().backward()
    said = is_frozen(ratio.detach(), advantage, config.cliprange)
    for r, a, gradient, frozen in zip(ratio.tolist(), advantage, ratio.grad, said):
        assert bool(frozen) == (gradient == 0), f"ratio {r:.2f}, A {a:+.1f}: {gradient:.2f}"
    print("Right: that is clip_ratio/low and clip_ratio/high of metrics.jsonl.")

# %% [markdown]
# Next: [3. KL](3_kl.ipynb).
