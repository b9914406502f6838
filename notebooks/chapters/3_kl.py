# %% [markdown]
# # 3. KL
#
# How far has the policy moved from the base? The KL divergence measures this, but a run can only
# estimate the KL from the tokens that it sampled. This chapter compares the means and spreads of
# three estimates, and what each does as a loss. It takes less than a minute on two CPU cores.
#
# Write each **prediction** down before you run its cell.
#
# ## Two policies whose KL is known
#
# The reference is the embedded base. The policy is the same model at temperature 0.9, which has
# another distribution at every token. The KL can be computed exactly from all entries of the
# vocabulary: $KL(\pi \| \pi_{ref}) = \sum_v \pi(v) (\log \pi(v) - \log \pi_{ref}(v))$. The next
# cell samples 512 completions of the policy, and computes it at each of their tokens.

# %% tags=["parameters"]
questions = 64  # with 8 completions each

# %%
import matplotlib.pyplot as plt
import torch

import nano_r1 as r1
from benchmarks import runs

config = r1.Config(task="gsm8k", max_tokens=64, temperature=0.9, device="cpu")
sampler, task = runs.load(config)  # as chapter 1 begins
problems = task.load_problems("test", config)[:questions]
episodes = r1.sample_and_reward(sampler, problems, task, config, "chapter 3", config.group_size)
batch = r1.collate(episodes, "cpu")
with torch.no_grad():
    logits = sampler.model(batch["input_ids"]).logits  # (B, T, V)
logits = logits[batch["response_mask"]]  # (N, V), at the N tokens of the completions
reference = logits.log_softmax(dim=-1)  # (N, V)


def policy_at(temperature):
    """The policy's log-probs, (N, V), and the mean of its exact KL from the reference."""
    policy = (logits / temperature).log_softmax(dim=-1)
    return policy, (policy.exp() * (policy - reference)).sum(dim=-1).mean()


policy, exact = policy_at(config.temperature)
print(f"{len(policy)} tokens; KL, exact: {exact:.4f} nats per token")

# %% [markdown]
# ## The same from samples
#
# In a run only the two log-probs of one sampled token are known. With $d = \log \pi_{ref} - \log
# \pi$ for that token, the three estimates are
#
# $$k_1 = -d \qquad k_2 = d^2 / 2 \qquad k_3 = e^d - 1 - d$$
#
# **Predict:** which of the three can be negative for a token? Which has the smallest spread? Is one
# of the means wrong?


# %%
def estimate_kl(log_pi, log_ref):
    """{name: estimate}, of the sampled tokens' log-probs."""
    d = log_ref - log_pi
    return {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d}


def estimates_of(policy):
    """The same from one token at each place, drawn from this policy: (N,) each."""
    torch.manual_seed(1)
    tokens = torch.multinomial(policy.exp(), 1)  # (N, 1)
    return estimate_kl(policy.gather(-1, tokens)[:, 0], reference.gather(-1, tokens)[:, 0])


estimates = estimates_of(policy)
for name, values in estimates.items():
    plt.hist(values.clamp(-1, 1).tolist(), 96, histtype="step", log=True, label=name)
    print(
        f"{name}  mean {values.mean():.4f} +- {values.std() / len(values) ** 0.5:.4f}   standard "
        f"deviation {values.std():.3f}   negative {(values < -1e-6).float().mean():.0%}"
    )
plt.gca().set(xlabel="estimate for one token (nats)", ylabel="tokens")
plt.legend()
plt.show()

# %% [markdown]
# A divergence is never negative, but a *sample* of k1 is negative if the token is more likely under
# the reference than under the policy: only its mean over the policy's tokens is the KL. k3 adds
# $e^d - 1$, whose mean is 0, because $\sum_v \pi(v) \pi_{ref}(v) / \pi(v) = 1$. So k3 has the same
# mean, no negative value, and a much smaller spread. k2's mean is not the KL, but is near it if the
# policies are near each other.
#
# **Predict:** the policy moves further away, to lower temperatures. Which estimate becomes wrong?
# Which spread grows most?

# %%
for temperature in (0.9, 0.7, 0.4):
    far, exact = policy_at(temperature)
    found = estimates_of(far).items()
    numbers = [f"   {name} {x.mean():.4f} (sd {x.std():.3f})" for name, x in found]
    print(f"T {temperature}: exact {exact:.4f}", *numbers)

# %% [markdown]
# k2 falls below the KL, and k3's spread passes k1's. If the policy has nearly given up a token but
# still draws it, $e^d$ is huge. Near the reference k3 is the best of the three. Far away no
# estimate from samples is good, so read a large `kl` of a run as "far".
#
# ## As a loss
#
# An estimate with the correct *value* need not have the correct *gradient*, because the gradient
# treats the samples as fixed. Here a policy over six tokens starts away from its reference. Each
# step draws 64 tokens from the policy and descends on the mean of one estimate, without a reward.
#
# **Predict:** with each of k1, k2 and k3, does the exact KL go to 0, stay, or grow?


# %%
def descend(kind, seed):
    """The exact KL before each of 300 steps of gradient descent on the mean of one estimate."""
    torch.manual_seed(seed)
    target = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]).log()  # the reference
    logits = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.0], requires_grad=True)
    path = []
    for _ in range(300):
        log_pi = logits.log_softmax(-1)
        path.append((log_pi.exp() * (log_pi - target)).sum().item())
        tokens = torch.multinomial(log_pi.detach().exp(), 64, replacement=True)
        loss = estimate_kl(log_pi[tokens], target[tokens])[kind].mean()
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.2 * gradient).detach().requires_grad_()
    return path


for color, kind in enumerate(estimates):
    for seed in range(3):
        label = kind if seed == 0 else None
        plt.plot(descend(kind, seed), color=f"C{color}", linewidth=1, label=label)
plt.gca().set(xlabel="step", ylabel="exact KL (nats)")
plt.legend()
plt.show()

# %% [markdown]
# The gradient of k1's mean over fixed samples is the mean of $\nabla \log \pi$, whose expectation
# is 0. So k1 as a loss does not depend on the reference, and the policy takes a random walk. k2 has
# the gradient of $KL(\pi \| \pi_{ref})$, and k3 has the gradient of $KL(\pi_{ref} \| \pi)$. Both
# lead back to the reference. GRPO uses k3.
#
# All of that holds if every token weighs the same. In a run each token of a completion weighs $1 /
# |o|$, and |o| is its length. Then k1 as a loss has the gradient of $E[1 / |o|]$, which is a bonus
# for length.
#
# ## Exercise
#
# k1 and k3 belong to one family: k1 plus w times a quantity whose mean is 0. The weight w = 0 gives
# k1, and w = 1 gives k3, so every member has the correct mean. Write `member`, and the weight w
# with the smallest variance on samples d. (The variance is a parabola in w.)


# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
def member(d, w):
    """(N,) and a number -> (N,) estimates."""
    return None  # your line


def best_weight(d):
    """(N,) -> the w for which member(d, w) has the smallest variance."""
    return None  # your lines


# %% tags=["test"]
d = -estimates["k1"]  # (N,)
if member(d, 0.0) is None or best_weight(d) is None:
    print("Not solved yet: write member and best_weight above, run that cell, then this one.")
else:
    assert torch.allclose(member(d, 0.0), estimates["k1"], atol=1e-5), "w = 0 must give k1"
    assert torch.allclose(member(d, 1.0), estimates["k3"], atol=1e-5), "w = 1 must give k3"
    for samples in (1 + torch.randn(1000) / 2, d):
        w = float(best_weight(samples))
        spread = {near: member(samples, near).std() for near in (0.0, w - 0.05, w, w + 0.05, 1.0)}
        assert min(spread, key=spread.get) == w, f"a weight other than {w:.2f} has a smaller spread"
    print(f"Correct: w = {w:.2f}, standard deviation {spread[w]:.3f}; k3 has {spread[1.0]:.3f}.")

# %% [markdown]
# ## Open task
#
# `variants.py` has `--kl_estimator` and `--kl_coef`. Predict from the gradients which of k2 and k3
# keeps the policy nearer to the base at `--kl_coef 0.1`, and which reaches the higher reward. Then
# run both, three seeds each, on the word problems: `python -m benchmarks.sweep --help`. *Hand in*
# prediction, table and figure, and say what the intervals show. No answer is in this repository.
#
# Next: [4. Reading a run](4_reading_a_run.ipynb).
