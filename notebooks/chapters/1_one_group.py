# %% [markdown]
# # 1. One group, by hand
#
# One question, eight attempts, eight rewards: what GRPO makes of them, up to the sign of the
# gradient on one token. Two CPU cores and less than a minute of computing. Everything is imported
# from `nano_r1.py`, so what you see is what a run does.
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
# ## The model, the task, the sampler
#
# The first lines of `main`: a base model of a million parameters, word problems whose answer a
# program can check, and a loop that samples. No reward has changed this model yet.

# %%
import torch

import nano_r1 as r1
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.record import quoted
from plumbing.tasks import load_task

config = r1.Config(task="gsm8k", max_tokens=64)
init_distributed()
tokenizer = load_tokenizer(config.model)
task = load_task(config.task, config.prompt, tokenizer)
problems = task.load_problems("test", None, 0)[:16]
model = load_model(config.model, config.dtype)
sampler = r1.make_sampler(config, model, task, max_length=512)
print(task.prompt_text(problems[0]))

# %% [markdown]
# ## Eight attempts at each question
#
# Steps 2 and 3 of the algorithm: eight completions of each of 16 questions, and the verifier's
# reward: 1 for the form, 1 for the right number, so 0 to 2 in all.
#
# **Predict:** of 16 questions, in how many will all eight completions earn the same?

# %%
n = config.group_size
episodes = r1.sample_completions(
    sampler, problems, task, config, "chapter 1", n, config.temperature
)
r1.compute_rewards(episodes, task)
groups = r1.groups_of(episodes, config)
for problem, group in zip(problems, groups):
    paid = " ".join(f"{e.reward.total:3.1f}" for e in group)
    print(
        f"{paid}   {'' if r1.has_signal(group) else 'all the same'}   {problem['question'][:60]} ..."
    )

# %% [markdown]
# Read one group: the eight attempts at the question with the widest choice of rewards. `why` is the verifier's
# sentence.

# %%
group = max(groups, key=lambda group: len({e.reward.total for e in group}))
print(group[0].problem["question"])
for e in group:
    print(
        f"\nreward {e.reward.total} = form {e.reward.format} + answer {e.reward.answer} ({e.reward.why})"
    )
    print(quoted(e.text.strip()))

# %% [markdown]
# ## Better or worse than the rest of its group?
#
# Step 4: the advantage of completion i is $A_i = (r_i - \text{mean}(r)) / (\text{std}(r) +
# \epsilon)$. No second model has to say how good the question's answers usually are; the group's
# mean does.
#
# **Predict:** the sum of the eight advantages, and the sign of the advantage of the best one.

# %%
rewards = torch.tensor([e.reward.total for e in group])  # (n,)
by_hand = (rewards - rewards.mean()) / (rewards.std() + config.advantage_eps)
advantages, stats = r1.normalize_group_rewards(rewards, n, config.advantage_eps)
print("rewards   ", rewards.tolist())
print("by hand   ", [round(a, 3) for a in by_hand.tolist()])
print("nano_r1.py", [round(a, 3) for a in advantages.tolist()])
print("sum       ", round(advantages.sum().item(), 6), stats)
assert torch.allclose(by_hand, advantages)

# %% [markdown]
# ## A worked example
#
# Two questions, four completions each, rewards `2 1 0 1` and `2 2 2 0`. Papers and programs differ
# in the standard deviation: divided by n (`group_biased`, nano-aha-moment), by n - 1 (`group`), of
# all rewards (`batch`), or none at all (Dr. GRPO). RLOO compares with the mean of the *other*
# completions.
#
# **Predict,** with paper: the advantages with the standard deviation divided by n. (Means 1 and
# 1.5; the sum of squared deviations is 2 and 3.)

# %%
two_questions = torch.tensor([2.0, 1.0, 0.0, 1.0, 2.0, 2.0, 2.0, 0.0])
kinds = [("group_mean", scale) for scale in ("group_biased", "group", "batch", "none")] + [
    ("leave_one_out", "none")
]
for baseline, scale in kinds:
    advantages, _ = r1.normalize_group_rewards(two_questions, 4, 1e-4, baseline, scale)
    print(f"{baseline:14} {scale:13}", " ".join(f"{a:+6.2f}" for a in advantages.tolist()))

# %% [markdown]
# The first line has ±1.41 and +0.58. The one failure among three successes (-1.73) weighs three times as much as each
# success: what is rare in its group moves the model most.
#
# **Predict:** the advantages of a group that earned `2 2 2 2`. Of one that earned `0 0 0 0`?

# %%
for equal in ([2.0] * 4, [0.0] * 4):
    advantages, stats = r1.normalize_group_rewards(torch.tensor(equal), 4, 1e-4)
    print(equal, advantages.tolist(), "groups without signal:", stats["frac_reward_zero_std"])

# %% [markdown]
# ## The sign of the gradient on one token
#
# A distribution over five tokens, of which number 2 was sampled. The loss is $-A \log \pi(2)$, and
# an optimizer moves each logit *against* its gradient.
#
# **Predict:** with A = +1.41, which logits rise? With A = -1.41?

# %%
for advantage in (1.41, -1.41):
    logits = torch.tensor(
        [[[0.0, 1.0, 0.5, -1.0, 0.0]]], requires_grad=True
    )  # (B, T, V) = (1, 1, 5)
    log_probs, _ = r1.score_tokens(logits, torch.tensor([[2]]))  # (1, 1)
    r1.compute_naive_policy_gradient_loss(torch.tensor([[advantage]]), log_probs).sum().backward()
    moves = -logits.grad.flatten()
    print(
        f"A = {advantage:+.2f}: the logits move by",
        " ".join(f"{move:+.2f}" for move in moves.tolist()),
    )

# %% [markdown]
# The move is $A (1 - \pi)$ for the sampled token and $-A \pi$ for every other: what one gains the others lose, and a
# token that is already certain hardly moves.
#
# ## One step on the whole group
#
# The same with the real model: steps 6 and 7 on our eight completions, with plain gradient descent.
#
# **Predict:** after the step, has each completion's log-probability moved in the direction of its
# advantage?

# %%
r1.compute_advantages(group, config)
batch = r1.collate(group, "cpu")  # tensors (B, T)


def log_probs_of_the_group():
    out = r1.get_response_log_probs(model, batch["input_ids"], batch["labels"])
    return out["log_probs"]  # (B, T)


log_probs = log_probs_of_the_group()
batch["old_log_probs"] = before = log_probs.detach()
no_penalty = r1.Config(task="gsm8k", kl_coef=0.0)
loss, _ = r1.grpo_loss(log_probs, None, batch, r1.loss_denominator(group, no_penalty), no_penalty)
loss.backward()
with torch.no_grad():
    for weight in model.parameters():
        weight -= 0.05 * weight.grad
    change = ((log_probs_of_the_group() - before) * batch["response_mask"]).sum(dim=1)  # (B,)
for e, moved in zip(group, change.tolist()):
    print(f"A {e.advantage:+.2f}   log-prob of the whole completion {moved:+.2f}   {e.reward.why}")

# %% [markdown]
# Mostly it has, but completions share tokens: what pushes one up carries others along. That is how a model learns from
# one group something about other questions, and also how it unlearns things.
#
# ## Exercise
#
# RLOO compares each reward with the mean of the *other* completions' rewards: $A_i = r_i -
# \frac{1}{n-1} \sum_{j \ne i} r_j$. Write it for one group, without a loop if you can.


# %% tags=["exercise"]
def leave_one_out(rewards):
    """(n,) rewards of one group -> (n,) advantages."""
    return None  # your line


# %% tags=["test"]
if leave_one_out(torch.ones(2)) is None:
    print("The exercise is open: write leave_one_out in the cell above, run it, and then this one.")
else:
    for count in (2, 4, 9):
        rewards = torch.rand(count)
        expected, _ = r1.normalize_group_rewards(rewards, count, 0.0, "leave_one_out", "none")
        assert torch.allclose(leave_one_out(rewards), expected, atol=1e-6), (
            f"{rewards}: {leave_one_out(rewards)}"
        )
    print("Right: that is --baseline leave_one_out --scale_rewards none.")

# %% [markdown]
# Next: [2. The loss](2_the_loss.ipynb).
