# %% [markdown]
# # 1. One group, by hand
#
# One question, eight completions, eight rewards: this chapter follows GRPO from the rewards to the
# advantages and to the gradient on one token. It takes less than a minute on two CPU cores. All
# functions are those of `nano_r1.py`, so you see what a run does.
#
# Each part asks for a **prediction**. Write it down before you run the cell below it.
#
# ## The model, the task, the sampler
#
# `main` begins much like this: a base model of a million parameters, word problems whose
# answer a program can check, and a loop that samples. No reward has changed this model yet. The
# problems of the task gsm8k are made from templates, in the style of the public data set GSM8K.

# %%
import torch

import nano_r1 as r1
from nano_report.viewer import show_group

config = r1.Config(task="gsm8k", max_tokens=64, kl_coef=0.0)
model, tokenizer = r1.load_model(config)
task = r1.Task(tokenizer, model, config)
problems = task.load_problems("test", config)[:16]
sampler = r1.TransformersSampler(model, task, config)
print(tokenizer.decode(task.prompt_ids(problems[0])))

# %% [markdown]
# ## Eight completions of each question
#
# Sample eight completions of each of 16 questions, and reward them. (These are steps 2 and 3 of the
# list at the top of `nano_r1.py`.) The reward is 0 to 2: format (0, 0.5 or 1) plus answer (0 or 1).
#
# **Predict:** for how many of the 16 questions do all eight completions get the same reward? For
# how many would they, if the answer were the whole reward?

# %%
n = config.group_size
# "chapter 1" is a part of the seed, so these samples differ from those of other cells.
episodes = r1.sample_and_reward(sampler, problems, task, config, "chapter 1", n)
groups = r1.batched(episodes, n)  # one for each problem
for problem, group in zip(problems, groups):
    rewards = [f"{e.reward:3.1f}" for e in group]
    answers = {e.answer_reward for e in group}
    remark = "same answers" if len(answers) == 1 else ""
    print(f"{' '.join(rewards)}   {remark:12}   {problem['question'][:60]} ...")

# %% [markdown]
# No group here has equal rewards, because the format's part differs. In a group marked "same
# answers", all are wrong or all are correct. If the answer were the whole reward, such a group
# could teach nothing: all its advantages would be 0.
#
# Read the group with the most different rewards. `why` is the verifier's sentence.

# %%
group = max(groups, key=lambda group: len({e.reward for e in group}))
print(group[0].problem["question"])
for e in group:
    print(f"\nreward {e.reward} = format {e.format_reward} + answer {e.answer_reward} ({e.why})")
    print(e.completion.strip())

# %% [markdown]
# ## Better or worse than the rest of its group?
#
# Step 4: the advantage of completion i is $A_i = (r_i - \text{mean}(r)) / (\text{std}(r) +
# \epsilon)$. PPO has a second model that predicts how good the answers to a question usually are.
# Here the group's mean does that job.
#
# **Predict:** the sum of the eight advantages, and the sign of the best one's advantage.

# %%
rewards = torch.tensor([e.reward for e in group])  # (n,)
by_hand = (rewards - rewards.mean()) / (rewards.std() + config.advantage_eps)
advantages = r1.group_advantages(rewards[None], config)[0]  # (m, n) with m = 1 -> (n,)
print("rewards   ", rewards)
print("by hand   ", by_hand)
print("nano_r1.py", advantages)
print(f"sum of the advantages {advantages.sum():.6f}")

# %% [markdown]
# The same group as a picture: a bar to the right is a positive advantage.

# %%
for e, advantage in zip(group, by_hand.tolist()):
    e.advantage = advantage
show_group(r1.as_rows(group))

# %% [markdown]
# ## A worked example
#
# Two questions with four completions each have the rewards `2 1 0 1` and `2 2 2 0`. Papers and
# programs divide the difference from the mean by different things; the cell shows four. (Dr. GRPO
# is a variant of GRPO that divides by 1, arXiv:2503.20783.)
#
# **Predict,** on paper: the advantages, with a standard deviation that divides by n. (The means are
# 1 and 1.5; the sums of squared deviations are 2 and 3.)

# %%
rewards = torch.tensor([[2.0, 1.0, 0.0, 1.0], [2.0, 2.0, 2.0, 0.0]])  # (m, n)
difference = rewards - rewards.mean(dim=1, keepdim=True)
divisors = {
    "std of the group, with n": rewards.std(dim=1, correction=0, keepdim=True),
    "with n - 1 (nano_r1.py)": rewards.std(dim=1, keepdim=True),
    "std of the whole batch": rewards.std(),
    "1 (Dr. GRPO)": 1.0,
}
for name, divisor in divisors.items():
    print(f"{name:24}", *(f"{a:+6.2f}" for a in (difference / divisor).flatten().tolist()))

# %% [markdown]
# In the first line, question 1 has ±1.41 and 0, question 2 has +0.58 for each success and -1.73 for
# the one failure. So the failure weighs three times as much as each success: what is rare in its
# group moves the model most.
#
# **Predict:** the advantages of a group with the rewards `2 2 2 2`, and of one with `0 0 0 0`.

# %%
for equal in (2.0, 0.0):
    print(equal, r1.group_advantages(torch.full((1, 4), equal), config)[0].tolist())

# %% [markdown]
# ## The sign of the gradient on one token
#
# Why does the loss have a logarithm? The goal is a large expected reward, $J = \sum_o \pi(o) R(o)$,
# over all completions o. Because $\nabla \pi = \pi \, \nabla \log \pi$ (the log-derivative
# trick), $\nabla J = \sum_o \pi(o) R(o) \nabla \log \pi(o) = E[R \, \nabla \log \pi]$. This mean
# can be estimated from samples. A baseline b that does not depend on the completion does not change
# it: $E[b \, \nabla \log \pi] = b \sum_o \nabla \pi(o) = b \, \nabla 1 = 0$. Only the variance
# changes. So R minus a baseline may replace R.
# [docs/policy_gradient.md](../../docs/policy_gradient.md) has every step, and says why the group's
# mean is almost such a baseline.
#
# **On paper:** two completions have $\pi(1) = p$, $\pi(2) = 1 - p$ and the rewards 1 and 0. The
# single logit is z, with $p = 1 / (1 + e^{-z})$. Compute $E[(R - b) \, d \log \pi / dz]$ for any b,
# and compare it with $dJ / dz$. Is the mean reward, p, the b with the smallest variance?
#
# Now take a distribution over five tokens, 0 to 4. Token 2 was sampled. The loss is $-A \log
# \pi(2)$, and an optimizer moves each logit against its gradient.
#
# **Predict:** which logits rise with A = +1.41? And with A = -1.41?

# %%
for advantage in (1.41, -1.41):
    logits = torch.tensor([0.0, 1.0, 0.5, -1.0, 0.0], requires_grad=True)  # (V,)
    loss = -advantage * logits.log_softmax(dim=-1)[2]
    loss.backward()
    print(f"A = {advantage:+.2f}: the logits move by", *(f"{-x:+.2f}" for x in logits.grad))

# %% [markdown]
# The sampled token's logit moves by $A (1 - \pi(2))$, that of another token k by $-A \pi(k)$. So
# what one token gains the others lose, and a token that is almost certain hardly moves.
#
# (On paper, the variance is 0 with b = 1 - p. GRPO's mean is simpler, not best.)
#
# ## One step on the whole group
#
# Now the same with the real model: steps 6 and 7 on the eight completions, with plain gradient
# descent. There is no KL penalty, which would keep the model near the base (chapter 3). GRPO's loss
# has the ratio rho in place of the log-prob: a token's probability under the model, divided by that
# under pi_old, the model before the step. Here both are the same model, so rho is 1, and its
# gradient is that of the log-prob.
#
# **Predict:** after the step, has each completion's log-prob moved in the direction of its
# advantage?

# %%
batch = r1.collate(group, "cpu")  # tensors (B, T), with the advantages from above
batch["completions"] = len(group)  # grpo_loss divides by it
scorer = r1.Scorer(model, config)
log_probs = scorer(batch)  # (B, T), 0 outside the completions
batch["old_log_probs"] = log_probs.detach()
loss = r1.grpo_loss(log_probs, batch, config).sum()
loss.backward()
with torch.no_grad():
    for weight in model.parameters():
        weight -= 0.05 * weight.grad
    moves = (scorer(batch) - batch["old_log_probs"]).sum(dim=1)  # (B,)
for e, moved in zip(group, moves.tolist()):
    print(f"A {e.advantage:+.2f}   log-prob of the completion {moved:+.2f}   {e.why}")

# %% [markdown]
# Most have. But completions share tokens, so what makes one more likely also moves the others that
# look like it. In this way a model learns something from one group about other questions, and also
# unlearns things.
#
# ## Exercise
#
# RLOO compares each reward with the mean of the *other* completions' rewards: $A_i = r_i -
# \frac{1}{n-1} \sum_{j \ne i} r_j$. Write it for one group of any size n, without a loop if you
# can.
#
# In every chapter, only the cell that begins with "Only this cell is graded" is graded: put imports
# and helpers into it, and do not split it. To hand in, run all cells, save the notebook as
# `1_one_group-YOURNAME.ipynb`, and send it to your teacher. For another chapter, the name begins
# with that chapter's name.


# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
def leave_one_out(rewards):
    """(n,) rewards of one group -> (n,) advantages."""
    return None  # your line


# %% tags=["test"]
expected = {(2, 0, 0, 1): (2 - 1 / 3, -1, -1, 1 - 2 / 3), (1, 0.5): (0.5, -0.5)}
yours = [leave_one_out(torch.tensor(rewards, dtype=torch.float32)) for rewards in expected]
if None in yours:
    print("Not solved yet: write leave_one_out in the cell above, run it, and then this one.")
else:
    for (rewards, correct), found in zip(expected.items(), yours):
        error = (found - torch.tensor(correct)).abs().max()
        assert error < 1e-5, f"{rewards}: {found.tolist()}, not {correct}"
    print("Correct: these are RLOO's advantages. docs/algorithms.md has its command.")

# %% [markdown]
# ## Open task
#
# A group of n completions has no signal if all its rewards are equal. Suppose that the reward is 0
# or 1 and that a completion is correct with probability p. Write the probability that a group has
# a signal, as a function of n and p. Then measure the share of groups with a signal for n = 2, 4,
# 8 and 16 on 64 questions, with `e.answer_reward` as the reward. Your formula with the mean p of
# all questions will not fit. *Hand in* formula, figure and the reason why it does not fit, and your
# choice of n if a step has room for 128 completions. Before you measure, write a prediction into a
# cell of this notebook and hand it in (docs/course.md, "Points"). No answer is in this repository.
#
# Next: [2. The loss](2_the_loss.ipynb).
