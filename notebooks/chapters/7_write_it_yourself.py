# %% [markdown]
# # 7. Write it yourself
#
# A blank function, about 30 lines, and two questions: is it GRPO, and does it learn? You have read
# the steps of GRPO at the top of `nano_r1.py`. Now write them without looking, from four pieces of
# that file. The two tests take about 30 seconds on two CPU cores.

# %% tags=["parameters"]
steps, questions = 20, 128  # of training; held-out ones

# %%
import random

from types import SimpleNamespace
from unittest import mock

import torch

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
#   episode has `reward.total` and `token_ids`; its `advantage` is for you to set.
# - `r1.collate(episodes, "cpu")`: a dict of tensors. You need `response_mask` (B, T), True at the
#   completions' tokens, and `advantages` (B, 1).
# - `scorer(batch)`: the policy's log-probs (B, T), with a gradient, 0 outside of the mask.
# - `optimizer`: AdamW, as torch has it.
#
# ## Exercise
#
# Write one step of GRPO without a KL penalty. There is one optimizer step per batch, so the loss of
# a token may be $-A \log \pi$. Average it over each completion's tokens, then over the completions.
# Keep the norm of the gradient at most 1 (`torch.nn.utils.clip_grad_norm_`).
#
# There are two tests, of one point each:
#
# - **Is it GRPO?** [check_step.py](../../check_step.py) calls your function once, with a tiny model
#   and 4 problems with 4 completions each, and compares the weights after it with those of the
#   formula. So count the problems with `len(problems)`. Another method, such as one without a
#   baseline or with the mean of all tokens, learns too, but gets no point here.
# - **Does it learn?** Any method passes that adds 15 points to the share of correct answers.
#
# **Predict:** the base solves about 20% of the questions. What share is solved after 20 steps of 8
# questions with 8 completions each?


# %% tags=["exercise"]
def grpo_step(scorer, optimizer, problems, label):
    """One step on these problems. Returns its episodes."""
    # 2. and 3. Sample and reward.
    # 4. Advantages: compare each completion with its group.
    # 6. The loss and its gradient.
    # 7. One optimizer step; then the gradient is zero again.
    return None


# %% tags=["test"]
def one_step(model, episodes, settings):
    """What check_step.py judges: `grpo_step` on its model and its episodes."""
    written = [r1.Episode(**vars(e), advantage=0.0) for e in episodes]
    for e in written:
        e.reward = SimpleNamespace(total=e.reward)
    optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate)
    problems = [None] * (len(written) // settings.group_size)
    with mock.patch.dict(globals(), write_completions=lambda *inputs: written):
        finished.append(grpo_step(r1.Scorer(model, config), optimizer, problems, "frozen"))
    return model


finished = []
situation = check_step.Situation(check_step.FIRST, check_step.TinyModel)
situation.run(one_step)
formulas = list(check_step.algorithms())  # the first is GRPO
if None in finished:
    print("Not solved yet: write grpo_step in the cell above, run it, and then this one.")
else:
    with r1.threads_for(policy):
        found = [f"{a}, {loss.mean}" for a, loss in formulas if situation.agrees((a, loss))]
        name = (found or situation.difference(formulas[:1]))[0]
    is_grpo = "GRPO: group mean, deviation with n" in name and "completions' means" in name
    assert is_grpo, f"Another step: {name}."
    print(f"Correct. {name}.")


# %% tags=["test"]
def share_correct(scorer):
    """On the held-out questions: one completion each, always with the same seeds."""
    episodes = write_completions(scorer, test, "test", n=1)
    return r1.mean(r1.as_rows(episodes), "answer_reward")


scorer = r1.Scorer(r1.load_model(config)[0], config)  # the base, untrained
optimizer = torch.optim.AdamW(scorer.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
rng = random.Random(0)
returned = []
with r1.threads_for(scorer.model):
    before = share_correct(scorer)
    for step in range(steps):
        drawn = rng.sample(train, 8)
        returned.append(grpo_step(scorer, optimizer, drawn, f"step {step}"))
    after = share_correct(scorer)
if None in returned:
    print("Not solved yet: write grpo_step in the cell above, run it, and then this one.")
else:
    assert after > before + 0.15, (
        f"It does not learn: {before:.0%} correct before, {after:.0%} after."
    )
    print(f"Correct, it learns: {before:.0%} of the questions before, {after:.0%} after.")

# %% [markdown]
# If it does not learn, print the mean reward of each step. Then look at one thing at a time: the
# shape of the advantages, the sign of the loss, the mask, the order of `backward`, `step` and
# `zero_grad`. Only then compare with `group_advantages`, `grpo_loss` and `update` in `nano_r1.py`.
#
# ## Open task
#
# Which line of your step can you remove so that it still learns? Remove one at a time: the division
# by the standard deviation, the clipping of the gradient, the mean over a completion's tokens.
# Choose the learning rate anew for each. *Hand in* a table with three seeds for each, and say which
# differences its intervals show. No answer is in this repository.
