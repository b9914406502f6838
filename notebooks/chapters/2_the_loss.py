# %% [markdown]
# # 2. The loss
#
# Why it is 0 while the model learns, what the ratio and the clip do, and how much each token
# weighs. On real completions of the embedded model; two CPU cores, about a minute of computing.
#
# Each part asks for a **prediction**. Write it down before you run the cell below it.

# %%
import os
import sys

REPO, TAG = (
    "https://github.com/nano-r1/nano_r1",
    "v1",
)  # cloned where this notebook stands alone, as on Colab
home = os.getcwd()
while home != "/" and not os.path.exists(f"{home}/nano_r1.py"):
    home = os.path.dirname(home)
if home == "/":
    home = os.path.abspath("nano_r1")
    os.system(f"git clone -q --depth 1 --branch {TAG} {REPO} {home}")
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

drawn = r1.draw_prompts(problems, config, "chapter 2")
episodes = r1.sample_completions(
    sampler, drawn, task, config, "chapter 2", config.group_size, config.temperature
)
r1.compute_rewards(episodes, task)
stats = r1.compute_advantages(episodes, config)
batch = r1.collate(episodes, "cpu")
mask = batch["response_mask"]  # (B, T)
print({name: tuple(tensor.shape) for name, tensor in batch.items()})
print({name: round(value, 3) for name, value in stats.items()})

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
    return r1.get_response_log_probs(
        model, batch["input_ids"], batch["labels"], response_mask=mask
    )["log_probs"]


log_probs = log_probs_now()
batch["old_log_probs"] = log_probs.detach()
loss, _ = r1.grpo_loss(log_probs, None, batch, r1.loss_denominator(episodes, config), config)
loss.backward()
norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
print(f"loss {loss.item():.1e}, norm of the gradient {norm.item():.2f}")

# %% [markdown]
# At ratio 1 each token's loss is $-\rho A = -A$. Averaged over a completion it is -A again, and a group's advantages
# sum to 0. So the value says nothing; the gradient is the sum of $-A \nabla \log \pi$ over the tokens, and two
# completions have different ones. Look at `grad_norm` and at the reward. One group's terms:

# %%
group = next(group for group in r1.groups_of(episodes, config) if r1.has_signal(group))
for e in group:
    print(
        f"A {e.advantage:+.2f}  its part of the loss {-e.advantage / len(episodes):+.4f}  {e.length} tokens"
    )
print("their sum", f"{sum(-e.advantage / len(episodes) for e in group):+.7f}")

# %% [markdown]
# ## The ratio and the clip
#
# $L = -\min(\rho A, \text{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A)$ with $\rho = \pi /
# \pi_{old}$. A token whose ratio has gone far enough in the direction of its advantage gets no more
# gradient.
#
# **Predict:** where are the two curves flat, for A = +1 and for A = -1?

# %%
ratio = torch.linspace(0.5, 1.5, 101)[:, None]  # (B, 1): each "completion" is one token
for advantage in (1.0, -1.0):
    loss, _ = r1.compute_grpo_clip_loss(
        torch.full_like(ratio, advantage), ratio.log(), torch.zeros_like(ratio), 0.2
    )
    plt.plot(ratio, loss, label=f"A = {advantage:+.0f}")
plt.axvline(1.0, color="grey", linewidth=0.5)
plt.xlabel("ratio"), plt.ylabel("loss of one token"), plt.legend()
plt.show()

# %% [markdown]
# Flat where A > 0 and the ratio is above 1.2, and where A < 0 and it is below 0.8. On the other side nothing is
# clipped: a step in the wrong direction can always be undone.
#
# Now seven optimizer steps on the *same* batch: what `--epochs 7` does.
#
# **Predict:** is the loss still 0 after the first step? What share of tokens is frozen after seven?

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, betas=(0.9, 0.95), weight_decay=0.0)
for step in range(8):
    log_probs = log_probs_now()
    loss, stats = r1.grpo_loss(
        log_probs, None, batch, r1.loss_denominator(episodes, config), config
    )
    ratio = (log_probs.detach() - batch["old_log_probs"])[mask].exp()
    frozen = {
        end: stats[f"clip_ratio/{end}"][mask].float().mean().item() for end in ("low", "high")
    }
    print(
        f"after {step} steps: loss {loss.item():+.4f}, ratio {ratio.min():.2f} to {ratio.max():.2f}, "
        f"frozen {frozen['low']:.1%} with A < 0 and {frozen['high']:.1%} with A > 0"
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# The loss falls below 0 as soon as the ratio is not 1: it is the surrogate that is minimized, on old samples. The clip
# does not stop a ratio from leaving the range, it only takes the reason away to push it further.
#
# ## How much does a token weigh?
#
# The per-token losses become one number in three ways (`--loss_agg_mode`): the mean of each
# completion's mean (GRPO), the mean over all tokens (DAPO), the sum divided by completions x
# max_tokens (Dr. GRPO).
#
# **Predict:** a wrong completion of 20 tokens and one of 60 have the same advantage. In which of
# the three is a token of the long one pushed down less?

# %%
by_length = sorted(range(len(episodes)), key=lambda i: episodes[i].length)
shown = [by_length[0], by_length[len(by_length) // 2], by_length[-1]]
print(f"{'':22}", *(f"{episodes[i].length:>4} tokens" for i in shown))
for mode in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"):
    config.loss_agg_mode = mode
    log_probs = batch["old_log_probs"].clone().requires_grad_()
    ones = batch | {
        "advantages": torch.ones(len(episodes), 1)
    }  # A = 1 for all: what is left is the weight
    r1.grpo_loss(log_probs, None, ones, r1.loss_denominator(episodes, config), config)[0].backward()
    weights = [-log_probs.grad[i][mask[i]].mean().item() for i in shown]
    print(f"{mode:23}", *(f"{weight:11.6f}" for weight in weights))
config.loss_agg_mode = "seq-mean-token-mean"

# %% [markdown]
# With GRPO's mean a long wrong completion is punished less for each of its tokens: one of the reasons why wrong
# completions grow longer in training (Dr. GRPO, arXiv:2503.20783). With the other two every token of the batch weighs
# the same, so long completions weigh more in all.
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
    log_ratio = ratio.log()[:, None].requires_grad_()  # (N, 1)
    loss, _ = r1.compute_grpo_clip_loss(
        advantage[:, None], log_ratio, torch.zeros_like(log_ratio), 0.2
    )
    loss.sum().backward()
    for r, a, gradient, said in zip(
        ratio, advantage, log_ratio.grad.flatten(), is_frozen(ratio, advantage, 0.2)
    ):
        assert bool(said) == (gradient == 0), (
            f"ratio {r:.2f}, A {a:+.1f}: the gradient is {gradient:.2f}"
        )
    print("Right: that is clip_ratio/low and clip_ratio/high of metrics.jsonl.")

# %% [markdown]
# Next: [3. KL](3_kl.ipynb).
