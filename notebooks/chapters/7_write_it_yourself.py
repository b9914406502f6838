# %% [markdown]
# # 7. Write it yourself
#
# A blank function, about a dozen lines, and two questions: is it GRPO, and does it learn? You have
# read the steps of GRPO at the top of `nano_r1.py`. Now write them without looking. Four pieces of
# that file are given: they sample, compute the rewards, make the tensors and score the tokens. The
# two tests take about 30 seconds on two CPU cores.

# %% tags=["parameters"]
steps, questions = 20, 128  # of training; held-out ones

# %%
import random
import sys

from dataclasses import replace
from unittest import mock

import matplotlib.pyplot as plt
import torch

sys.path.append("check")
import check_step
import nano_r1 as r1

config = r1.Config(task="gsm8k", max_tokens=64, kl_coef=0.0)
policy, tokenizer = r1.load_model(config)
task = r1.Task(tokenizer, policy, config)
train = task.load_problems("train", config)
test = task.load_problems("test", config)[:questions]


def write_completions(scorer, problems, label, n=config.group_size):
    """Steps 2 and 3: n completions of each problem, rewarded. The label is a part of the seed."""
    sampler = r1.TransformersSampler(scorer.model, task, config)
    return r1.sample_and_reward(sampler, problems, task, config, label, n)


# %% [markdown]
# ## The pieces
#
# - `write_completions(scorer, problems, label)`: a list of Episodes, the n of problem 0 first. An
#   episode has `reward` and `token_ids`; its `advantage` is for you to set.
# - `r1.collate(episodes, "cpu")`: a dict of tensors. You need `response_mask` (B, T), True at the
#   completions' tokens, and `advantages` (B, 1).
# - `scorer(batch)`: the policy's log-probs (B, T), with a gradient, 0 outside of the mask.
# - `optimizer`: torch's AdamW; in the first test, SGD.
#
# ## Exercise
#
# Write one step of GRPO without a KL penalty. There is one optimizer step per batch, so the loss of
# a token may be $-A \log \pi$. Average it over each completion's tokens, then over the completions.
# Add 1e-4 to the standard deviation, because equal rewards have 0. Keep the gradient's
# norm at most 1 (`torch.nn.utils.clip_grad_norm_`).
#
# There are two tests, of one point each:
#
# - **Is it GRPO?** The test calls your function with the tiny model of
#   [check_step.py](../../check/check_step.py) and 4 problems with 4 completions each, and compares
#   the weights after it with those of the formula. So count the problems with `len(problems)`. It
#   also takes two steps in a row, and one with a gradient whose norm is 1.9. Another method, such
#   as one without a baseline or with the mean of all tokens, learns too, but gets no point here.
# - **Does it learn?** Any method passes that adds 15 points to the share of correct answers.
#
# **Predict:** the base solves about 20% of the questions. What share is solved after 20 steps of 8
# questions with 8 completions each?


# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
def grpo_step(scorer, optimizer, problems, label):
    """One step on these problems. Returns its episodes."""
    # 2. and 3. Sample and reward.
    # 4. Advantages: compare each completion with its group.
    # 6. The loss and its gradient.
    # 7. One optimizer step; then the gradient is zero again.
    return None  # your lines; at their end, return the episodes


# %% tags=["test"]
def one_step(model, episodes, settings):
    """What is judged: `grpo_step` on the model and the episodes of check_step.py."""
    written = [r1.Episode(problem={}, **vars(e)) for e in episodes]
    scorer = r1.Scorer(model, replace(config, temperature=settings.temperature))
    optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate)
    problems = [None] * (len(written) // settings.group_size)
    with mock.patch.dict(globals(), write_completions=lambda *inputs: written):
        returned.append(grpo_step(scorer, optimizer, problems, "frozen"))
    return model


def two_steps(model, episodes, settings):
    """The rate of the first is 0. So the second is a first step, if no gradient is left over."""
    one_step(model, episodes, check_step.changed(settings, learning_rate=0.0))
    return one_step(model, episodes, settings)


returned = []
once, again, large = [
    check_step.Situation(check_step.FIRST, check_step.TinyModel) for _ in range(3)
]
large.config.temperature = 0.25  # the norm of the gradient is 1.9
once.run(one_step)
again.run(two_steps)
large.run(one_step)
is_blank = None in returned and not once.moved.any()
if is_blank:
    print("Not solved yet: write grpo_step in the cell above, run it, and then this one.")
else:
    formulas = list(check_step.algorithms())  # the first is GRPO
    with r1.threads_for(policy):
        found = next(filter(once.agrees, formulas), None)
        if found:
            advantages, loss = found
            name = f"{advantages}, {loss.mean}."
        else:
            name = ". ".join(once.difference(formulas[:1]))
    is_grpo = "GRPO: group mean, deviation with n" in name and "completions' means" in name
    assert is_grpo, f"Another step: {name}"
    assert again.agrees(found), "A second step adds the first's gradient: zero_grad is missing."
    assert 0.99 < large.moved.norm() < 1.001, f"Its gradient's norm is {large.moved.norm():.2f}."
    assert None not in returned, "It is GRPO, but the episodes are not returned."
    print(f"Correct. {name}")


# %% tags=["test"]
def share_correct(scorer):
    """On the held-out questions: one completion each, always with the same seeds."""
    episodes = write_completions(scorer, test, "test", n=1)
    return r1.mean(r1.as_rows(episodes), "answer_reward")


scorer = r1.Scorer(r1.load_model(config)[0], config)  # the base, untrained
optimizer = torch.optim.AdamW(scorer.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
rng = random.Random(0)
rewards = []  # the mean of each step
with r1.threads_for(scorer.model):
    before = share_correct(scorer)
    for step in range(steps):
        episodes = grpo_step(scorer, optimizer, rng.sample(train, 8), f"step {step}")
        rewards.append(sum(e.reward for e in episodes or []) / (8 * config.group_size))
    after = share_correct(scorer)
plt.plot(range(1, steps + 1), rewards)
plt.gca().set(xlabel="step", ylabel="mean reward")
plt.show()
if is_blank:
    print("Not solved yet: write grpo_step in the cell above, run it, and then this one.")
else:
    assert after > before + 0.15, (
        f"It does not learn: {before:.0%} correct before, {after:.0%} after."
    )
    print(f"Correct, it learns: {before:.0%} of the questions before, {after:.0%} after.")

# %% [markdown]
# If the curve does not rise, look at one thing at a time: the shape of the advantages, the sign of
# the loss, the mask, the order of `backward`, `step` and `zero_grad`. Only then compare with
# `group_advantages`, `grpo_loss` and `update` in `nano_r1.py`.
#
# ## Open task
#
# Which line of your step can you remove so that it still learns? Remove one at a time: the division
# by the standard deviation, the clipping of the gradient, the mean over a completion's tokens.
# Choose the learning rate anew for each. Before the runs, write your prediction into a cell. *Hand
# in* the prediction and a table with three seeds for each, and say which differences its intervals
# show. No answer is in this repository.
