# %% [markdown]
# # 1. One group, by hand
#
# One question, eight attempts, eight rewards: what GRPO makes of them, up to the sign of the
# gradient on one token. Two CPU cores and less than a minute of computing. Everything is imported
# from `nano_r1.py`, and its relatives from `variants.py`, so what you see is what a run does.
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
# ## The model, the task, the sampler
#
# The first lines of `main`: a base model of a million parameters, word problems whose answer a
# program can check, and a loop that samples. No reward has changed this model yet.

# %%
import torch

import nano_r1 as r1
import variants
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.console import quoted
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
episodes = r1.sample_and_reward(sampler, problems, task, config, "chapter 1", n, config.temperature)
groups = [episodes[i : i + n] for i in range(0, len(episodes), n)]  # those of a group are adjacent
for problem, group in zip(problems, groups):
    paid = [f"{e.reward.total:3.1f}" for e in group]
    remark = "all the same" if len(set(paid)) == 1 else ""
    print(f"{' '.join(paid)}   {remark:12}   {problem['question'][:60]} ...")

# %% [markdown]
# Read one group: the eight attempts at the question with the widest choice of rewards. `why` is the
# verifier's sentence.

# %%
group = max(groups, key=lambda group: len({e.reward.total for e in group}))
print(group[0].problem["question"])
for e in group:
    r = e.reward
    print(f"\nreward {r.total} = form {r.format} + answer {r.answer} ({r.why})")
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
advantages = r1.group_advantages(rewards[None], config)[0]  # (m, n) with m = 1 -> (n,)
print("rewards   ", rewards.tolist())
print("by hand   ", [round(a, 3) for a in by_hand.tolist()])
print("nano_r1.py", [round(a, 3) for a in advantages.tolist()])
print("sum       ", round(advantages.sum().item(), 6))
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
two_questions = torch.tensor([[2.0, 1.0, 0.0, 1.0], [2.0, 2.0, 2.0, 0.0]])  # (m, n)
kinds = [("group_mean", scale) for scale in ("group_biased", "group", "batch", "none")]
kinds.append(("leave_one_out", "none"))
for baseline, scale in kinds:
    kind = variants.Config(baseline=baseline, scale_rewards=scale)
    advantages = variants.advantages(two_questions, kind).flatten().tolist()
    print(f"{baseline:14} {scale:13}", " ".join(f"{a:+6.2f}" for a in advantages))

# %% [markdown]
# The first line has ±1.41 and +0.58. The one failure among three successes (-1.73) weighs three
# times as much as each success: what is rare in its group moves the model most.
#
# **Predict:** the advantages of a group that earned `2 2 2 2`. Of one that earned `0 0 0 0`?

# %%
for equal in ([2.0] * 4, [0.0] * 4):
    print(equal, r1.group_advantages(torch.tensor([equal]), config)[0].tolist())

# %% [markdown]
# ## The sign of the gradient on one token
#
# A distribution over five tokens, of which number 2 was sampled. The loss is $-A \log \pi(2)$, and
# an optimizer moves each logit *against* its gradient.
#
# **Predict:** with A = +1.41, which logits rise? With A = -1.41?

# %%
for advantage in (1.41, -1.41):
    logits = torch.tensor([0.0, 1.0, 0.5, -1.0, 0.0], requires_grad=True)  # (V,)
    log_prob, _ = r1.score_tokens(logits, torch.tensor(2), temperature=1.0)
    loss = -advantage * log_prob
    loss.backward()
    moves = " ".join(f"{-slope:+.2f}" for slope in logits.grad.tolist())
    print(f"A = {advantage:+.2f}: the logits move by {moves}")

# %% [markdown]
# The move is $A (1 - \pi)$ for the sampled token and $-A \pi$ for every other: what one gains the
# others lose, and a token that is already certain hardly moves.
#
# ## One step on the whole group
#
# The same with the real model: steps 6 and 7 on our eight completions, with plain gradient descent.
#
# **Predict:** after the step, has each completion's log-probability moved in the direction of its
# advantage?

# %%
for e, advantage in zip(group, by_hand.tolist()):
    e.per_token["advantages"] = [advantage] * e.length  # the same for all its tokens
batch = r1.collate(group, "cpu")  # tensors (B, T)


def log_probs_of_the_group():
    log_probs, _ = r1.get_response_log_probs(model, batch, config.temperature)
    return log_probs  # (B, T), 0 but for the response


log_probs = log_probs_of_the_group()
batch["old_log_probs"] = log_probs.detach()
no_penalty = r1.Config(kl_coef=0.0)
parts, _ = r1.grpo_loss(log_probs, batch, len(group), no_penalty)  # (B,)
parts.sum().backward()
with torch.no_grad():
    for weight in model.parameters():
        weight -= 0.05 * weight.grad
    change = (log_probs_of_the_group() - batch["old_log_probs"]).sum(dim=1)  # (B,)
for e, a, moved in zip(group, by_hand.tolist(), change.tolist()):
    print(f"A {a:+.2f}   log-prob of the whole completion {moved:+.2f}   {e.reward.why}")

# %% [markdown]
# Mostly it has, but completions share tokens: what pushes one up carries others along. That is how
# a model learns from one group something about other questions, and also how it unlearns things.
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
        expected = rewards - variants.leave_one_out(rewards[None])[0]
        yours = leave_one_out(rewards)
        assert torch.allclose(yours, expected, atol=1e-6), f"{rewards}: {yours}, not {expected}"
    print("Right: that is variants.py --baseline leave_one_out --scale_rewards none.")

# %% [markdown]
# Next: [2. The loss](2_the_loss.ipynb).
