# %% [markdown]
# # 3. KL
#
# How far has the policy moved from the base? The KL divergence says so, and a run can only estimate
# it from the tokens that it sampled. Three estimates, their means and spreads, and what each does
# as a loss. Two CPU cores, under a minute.
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
# ## Two policies whose KL is known
#
# The reference is the embedded base. The policy is the same model at temperature 0.9: another
# distribution at every token, and one whose KL to the reference can be computed exactly, from all
# entries of the vocabulary: $KL(\pi \| \pi_{ref}) = \sum_v \pi(v) (\log \pi(v) - \log
# \pi_{ref}(v))$. Half a thousand completions of it:

# %%
import matplotlib.pyplot as plt
import torch

import nano_r1 as r1
import variants
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.tasks import load_task

config = r1.Config(task="gsm8k", max_tokens=64, temperature=0.9)
init_distributed()
tokenizer = load_tokenizer(config.model)
task = load_task(config.task, config.prompt, tokenizer)
problems = task.load_problems("test", None, 0)[:64]
model = load_model(config.model, config.dtype)
sampler = r1.make_sampler(config, model, task, max_length=512)
episodes = r1.sample_and_reward(
    sampler, problems, task, config, "chapter 3", config.group_size, config.temperature
)
batch = r1.collate(episodes, "cpu")
mask = batch["response_mask"]  # (B, T)
with torch.no_grad():
    logits = model(batch["input_ids"]).logits[mask].float()  # (N, V), at the N response tokens
policy, reference = (logits / config.temperature).log_softmax(-1), logits.log_softmax(-1)  # (N, V)
exact = (policy.exp() * (policy - reference)).sum(-1)  # (N,)
print(f"{len(exact)} tokens; KL, exact: {exact.mean():.4f} nats a token")

# %% [markdown]
# ## The same from samples
#
# In a run only the sampled token's two log-probs are known. With $d = \log \pi_{ref} - \log \pi$ of
# that token
#
# $$k_1 = -d \qquad k_2 = d^2 / 2 \qquad k_3 = e^d - 1 - d$$
#
# **Predict:** which of the three can be negative for a token? Which has the smallest spread? Is one
# of the means wrong?

# %%
token = batch["labels"][mask][:, None]  # (N, 1)
sampled = [table.gather(-1, token).squeeze(-1) for table in (policy, reference)]  # (N,) each
estimates = variants.estimate_kl(*sampled)
print(f"exact  mean {exact.mean():.4f}")
for name, values in estimates.items():
    error = values.std() / len(values) ** 0.5
    print(
        f"{name}     mean {values.mean():.4f} +- {error:.4f}   standard deviation "
        f"{values.std():.3f}   negative {(values < 0).float().mean():.0%}"
    )

# %%
bins = torch.linspace(-1.2, 1.2, 97).tolist()
for name, values in estimates.items():
    plt.hist(values.clamp(-1.2, 1.2).tolist(), bins, histtype="step", log=True, label=name)
plt.axvline(exact.mean().item(), color="black", linewidth=0.8, label="exact mean")
plt.xlabel("estimate for one token (nats)"), plt.ylabel("tokens"), plt.legend()
plt.show()

# %% [markdown]
# A divergence is never negative, yet a *sample* of k1 is, wherever the reference gives the token
# more than the policy does; only the mean over the policy's tokens is the KL. k3 adds $e^d - 1$,
# whose mean is 0, since $\sum_v \pi(v) \pi_{ref}(v) / \pi(v) = 1$: the mean stays, no value is
# negative, and most of the spread is gone. k2 is not the KL, but near it while the two policies are
# near each other.
#
# **Predict:** the policy moves further away (lower temperatures). Which estimate becomes wrong,
# which one wild?

# %%
for temperature in (0.9, 0.7, 0.4):
    far = (logits / temperature).log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    # (N, 1), a token of that policy at each place
    again = torch.multinomial(far.exp(), 1, generator=generator)
    log_probs = [table.gather(-1, again).squeeze(-1) for table in (far, reference)]  # (N,) each
    values = variants.estimate_kl(*log_probs)
    kl = (far.exp() * (far - reference)).sum(-1).mean()
    print(
        f"T {temperature:.2f}: exact {kl:.4f}",
        *(f"   {k} {v.mean():.4f} (sd {v.std():.3f})" for k, v in values.items()),
    )

# %% [markdown]
# k2 falls behind the KL, and k3's spread passes k1's: a token that the policy has nearly given up
# and draws all the same has a huge $e^d$. While the policy is near the reference k3 is the best of
# the three; far away no estimate from samples is good, and the metric `kl` of a run is to be read
# as "far".
#
# ## As a loss
#
# An estimate with the right *value* need not have the right *gradient*: the loss's gradient sees
# the samples as fixed. A policy over six tokens starts away from its reference; each step draws 64
# tokens from it and descends on one estimate's mean alone, with no reward.
#
# **Predict:** for each of k1, k2 and k3: does the exact KL go to 0, stay, or grow?


# %%
def descend(kind, seed):
    """The exact KL before each of 300 steps of gradient descent on the mean of one estimate."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]).log()  # the reference
    logits = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.0], requires_grad=True)
    path = []
    for _ in range(300):
        log_pi = logits.log_softmax(-1)
        path.append((log_pi.exp() * (log_pi - target)).sum().item())
        tokens = torch.multinomial(log_pi.detach().exp(), 64, replacement=True, generator=generator)
        loss = variants.estimate_kl(log_pi[tokens], target[tokens])[kind].mean()
        (gradient,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= 0.2 * gradient
    return path


for color, kind in zip(("C0", "C1", "C2"), ("k1", "k2", "k3")):
    for seed in range(3):
        label = kind if seed == 0 else None
        plt.plot(descend(kind, seed), color=color, linewidth=1, label=label)
plt.xlabel("step"), plt.ylabel("exact KL (nats)"), plt.legend()
plt.show()

# %% [markdown]
# The gradient of k1's mean over fixed samples is the mean of $\nabla \log \pi$, whose expectation
# is 0: k1 as a loss knows nothing of the reference. It is a random walk. k2's gradient is that of
# $KL(\pi \| \pi_{ref})$, k3's that of $KL(\pi_{ref} \| \pi)$: both lead back. `python variants.py
# --kl_estimator` chooses; k3 is GRPO's and the default.
#
# ## The same for completions of different lengths
#
# All of that holds where every token weighs the same, and for tokens of the policy that is updated.
# In a run each completion's tokens weigh $1 / |o|$, since the loss is a mean of means. Take the
# simplest policy that chooses its length: after each token it stops with probability p. k1 as a
# loss, $\frac{1}{|o|} \sum_t k_1$, has the gradient $\frac{1}{|o|} \nabla \log \pi(o)$, and its
# expectation is $\nabla E[1 / |o|]$.
#
# **Predict:** does descending on it make completions longer, shorter, or neither? And if every
# token weighs the same?

# %%
torch.manual_seed(0)
stop = torch.tensor(-1.0, requires_grad=True)  # the logit of stopping
p = stop.sigmoid()
lengths = 1 + torch.distributions.Geometric(p.detach()).sample((200_000,))  # (N,)
log_probs = (lengths - 1) * (1 - p).log() + p.log()  # (N,), log pi of each completion
means = {"each token weighs 1/|o|": log_probs / lengths, "each token weighs the same": log_probs}
for name, values in means.items():
    (slope,) = torch.autograd.grad(values.mean(), stop, retain_graph=True)
    print(f"{name:27} gradient {slope:+.4f}")
(slope,) = torch.autograd.grad(-p * p.log() / (1 - p), stop)  # E[1/|o|], summed by hand
print(f"{'exact: that of E[1/|o|]':27} gradient {slope:+.4f}")

# %% [markdown]
# The gradient on the logit of stopping is positive, so descending on it lowers that logit: k1 under
# a mean of means is a bonus for length. It has nothing to do with the reference, and where longer
# completions are better ones it passes for learning (`docs/elicitation.md`, the run without a
# reward). Under a constant denominator (`--loss_agg_mode seq-mean-token-sum-norm`) it is 0 but for
# noise.
#
# ## Exercise
#
# k1 and k3 are two members of a family: $k_w = -d + w (e^d - 1)$. Every member has the right mean.
# Write it, and with it the weight of the smallest variance on samples d: the least-squares answer
# is $w = -\text{cov}(-d, e^d) / \text{var}(e^d)$.


# %% tags=["exercise"]
def member(d, w):
    """(N,) and a number -> (N,) estimates."""
    return None  # your line


def best_weight(d):
    """(N,) -> the w for which member(d, w) has the smallest variance."""
    return None  # your lines


# %% tags=["test"]
d = sampled[1] - sampled[0]  # (N,), log pi_ref - log pi
if member(d, 0.0) is None or best_weight(d) is None:
    print("The exercise is open: write member and best_weight above, run that cell, then this one.")
else:
    assert torch.allclose(member(d, 0.0), estimates["k1"], atol=1e-5), "w = 0 must give k1"
    assert torch.allclose(member(d, 1.0), estimates["k3"], atol=1e-5), "w = 1 must give k3"
    w = float(best_weight(d))
    spread = {near: member(d, near).std().item() for near in (0.0, w - 0.05, w, w + 0.05, 1.0)}
    assert min(spread, key=spread.get) == w, f"another weight has a smaller spread: {spread}"
    others = f"k1 has {spread[0.0]:.3f}, k3 {spread[1.0]:.3f}"
    print(f"Right: w = {w:.2f}, standard deviation {spread[w]:.3f}; {others}.")

# %% [markdown]
# Next: [4. Reading a run](4_reading_a_run.ipynb).
