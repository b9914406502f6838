# %% [markdown]
# # 6. Rewards that go wrong
#
# A policy learns what is rewarded, not what was meant. Here one algorithm trains one base with six
# rewards, of which five are wrong. From curves and completions you find out which run had which.
# The chapter takes less than a minute on two CPU cores and shows a record of the long runs.
#
# Write each **prediction** down before you run its cell.
#
# ## Six rewards for one group
#
# The task is Countdown: make the target from the given numbers. The verifier gives a *format*
# reward of 0, 0.5 or 1, and an *answer* reward of 1 if the answer is correct, else 0.
#
# 1. **correct**: format + answer.
# 2. **format only**: format.
# 3. **lines**: format + answer + 1 for each line with a calculation, so that the model shows its
#    work.
# 4. **noisy verifier**: format + answer, but the answer's 0 or 1 is flipped with probability 0.2.
# 5. **random**: 0 or 1, with equal probability.
# 6. **majority**: format + 1 for the answer that is most frequent in the group (TTRL,
#    arXiv:2504.16084), correct or not. A completion votes for the value of its expression.
#
# All six rewards judge the same eight completions of one problem, of which one is correct.

# %% tags=["parameters"]
draws = 20_000  # groups of flipped answers

# %%
import random
from statistics import mode

import matplotlib.pyplot as plt
import pandas as pd
import torch

import countdown_rewards
import nano_r1 as r1
from benchmarks import runs
from notebooks import diagnoses

config = r1.Config(task="countdown", max_tokens=128, prompts_per_step=1, device="cpu")
sampler, task = runs.load(config)  # as chapter 1 begins
problems = task.load_problems("test", config)
for draw in range(100):  # until one completion is correct, and the majority wrong
    group = r1.rollout(sampler, problems, task, config, draw)
    problem = group[0].problem
    answers = [countdown_rewards.read_answer(e.completion, task.prompt)[0] for e in group]
    votes = [countdown_rewards.judge(answer, problem, False)[0] for answer in answers]
    winner = mode([vote for vote in votes if vote] or [None])
    if votes.count(winner) > 1 and sum(e.answer_reward for e in group) == 1:
        break
print(problem)
for e, vote in zip(group, votes):
    print(f"\nformat {e.format_reward:g}, answer {e.answer_reward:g}, votes for {vote}")
    print(e.completion.strip())

# %% [markdown]
# **Predict:** what is the sign of the correct completion's advantage under each reward? Under which
# rewards is a wrong completion the best of the group?

# %%
rng = random.Random(0)
rows = []
for e, vote in zip(group, votes):
    form, answer = e.format_reward, e.answer_reward
    lines = sum("=" in line for line in e.completion.splitlines())
    noisy = 1 - answer if rng.random() < 0.2 else answer
    rows.append(
        {
            "correct": form + answer,
            "format": form,
            "lines": form + answer + lines,
            "noisy": form + noisy,
            "random": rng.randint(0, 1),
            "majority": form + (vote == winner),
        }
    )
rewards = pd.DataFrame(rows, dtype=float)  # (n, 6)
advantages = r1.group_advantages(torch.tensor(rewards.to_numpy().T), config)  # (6, n)
table = pd.DataFrame(advantages.T, columns=rewards.columns)
table.insert(0, "verdict", [e.answer_reward for e in group])
table.round(2)

# %% [markdown]
# Each reward's column sums to 0. The update makes the completions with an advantage above 0 more
# likely, whatever they are.
#
# ## Six runs
#
# Each run trains an earlier embedded base with one reward, in 20 steps of 16 problems with 8
# completions each. The letters are in no particular order; each line is one of two seeds. *reward*
# is what you would watch without a verifier. *correct* is the share of correct answers in the
# batches (lines), and pass@1 on 192 held-out problems (dots).
#
# **Predict:** in how many of the six runs does the reward rise? In how many does the share of
# correct answers rise? Does that share fall in any run?

# %%
RECORD = "notebooks/chapters/records/six"
curves = pd.read_json(f"{RECORD}/curves.jsonl", lines=True)


def show(names, letters="ABCDEF"):
    """A row for each run, a column for each metric, a line for each seed."""
    size = (3.2 * len(names), 2.1 * len(letters))
    figure, axes = plt.subplots(len(letters), len(names), figsize=size, sharex=True)
    for letter, row in zip(letters, axes):
        run = curves[curves["run"] == letter].pivot(index="step", columns="seed")
        for name, axis in zip(names, row):
            run[name].plot(ax=axis, legend=False)
            if name == "correct":
                axis.set_prop_cycle(None)  # the same colors again
                run["pass@1"].plot(ax=axis, legend=False, style=".")
            axis.set_title(f"run {letter}: {name}", fontsize=9)
    figure.tight_layout()
    plt.show()


show(["reward", "correct", "format", "length"])

# %% [markdown]
# These completions are from the last step of seed 1. All runs had the same problem.

# %%
kept = pd.read_json(f"{RECORD}/completions.jsonl", lines=True)
for letter, rows in kept.groupby("run"):
    print(f"\n==== run {letter}: {rows.iloc[0]['problem']}")
    print(rows[["reward", "format_reward", "answer_reward"]].T.to_string(header=False))
    for row in rows.head(3).itertuples():
        print(f"reward {row.reward:g}: {row.why}\n{row.completion.strip()}")

# %% [markdown]
# ## Exercise: which run had which reward?
#
# Write the numbers 1 to 6 of the list at the top. Which curve or completion proves it?

# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
reward_of = {"A": None, "B": None, "C": None, "D": None, "E": None, "F": None}  # your numbers

# %% tags=["test"]
KEY = {
    "A": "4e8756fa", "B": "1de7fbb4", "C": "560f344a",
    "D": "578d232e", "E": "e1a76499", "F": "37f862c4",
}  # fmt: skip
diagnoses.judge(KEY, reward_of, "Look at reward minus format.")

# %% [markdown]
# ## What was seen
#
# In each pair, seed 0 comes first, then seed 1. The base's pass@1 is 0.05 and 0.07. The
# 95% intervals are about +-0.07 at 0.5 and +-0.03 at 0.05. (`six.py` of commit 8366abf.)
#
# - **correct (1)**: pass@1 ends at 0.58 and 0.33.
# - **format only (2)**: the reward rises from 0.48 and 0.54 to 0.99, but pass@1 ends at 0.09 and
#   0.07.
# - **lines (3)**: the reward rises from 3.2 and 3.3 to 11.7 and 11.6, but pass@1 ends at 0. All
#   completions of the last step are cut off. The policy writes "no" even after a line that reaches
#   the target: after a "no" it can write another line.
# - **noisy verifier (4)**: pass@1 ends at 0.36 and 0.31, so the policy still learns. In seed 0 it
#   learns less than with the correct reward.
# - **random (5)**: the reward says nothing, but each step moves the policy. In seed 0 it loses the
#   format (0.48 to 0.03), and pass@1 ends at 0. In seed 1 pass@1 ends at 0.05; the difference from
#   the base is inconclusive.
# - **majority (6)**: the reward rises from 0.69 and 0.81 to 1.50 and 1.92 of 2. pass@1 rises to
#   0.28 in seed 0, but falls to 0.01 in seed 1. There the groups agree on the sum of all numbers,
#   as all 16 kept completions do.
#
# The reward rises in all runs except the random ones. With the majority, the seed with the higher
# reward has the worse policy. To see that without another verifier, read the completions.
#
# ## A repair
#
# Run G gets the bonus for lines, but only for a correct answer.
#
# **Predict:** are its completions longer or shorter than with the plain bonus for lines (3)? Where
# does pass@1 end?

# %%
show(["reward", "correct", "length"], "ABCDEFG")

# %% [markdown]
# Run G's completions have 63 and 53 tokens in the last step. With the correct reward they have 59
# and 35, with the plain bonus 128. Lines without a correct answer have no bonus. pass@1 ends at
# 0.53 and 0.46; the difference from the correct reward (0.58 and 0.33) is inconclusive.
#
# ## A hole in a public verifier
#
# The wrong rewards above are ours. This one is not: the library reasoning-gym (0.1.25) has a task
# `puzzle24`, make 24 of four numbers. Its scorer never compares the numbers used with the
# problem's, so it pays `((6+2)+6)+10` for 2, 6, 1 and 6. Three runs are paid by the scorer, and
# three, *repaired*, by Countdown's verifier, which also counts the correct completions of all six.
# The answer is the whole reward, so *paid* is the reward.
#
# **Predict:** do the runs find the hole? What happens to the share of correct answers?

# %%
curves = pd.read_json("notebooks/chapters/records/hole.jsonl", lines=True)
show(["paid", "correct"], ["scorer", "repaired"])

# %% [markdown]
# The distance between paid and correct is the hole. In steps 50 to 59, 16% of the paid completions
# are wrong (8 to 23% over the seeds), all with other numbers than the problem's. But these runs
# also learn the task: they solve 52% of the held-out problems at the end (44 to 57), the repaired
# ones 47% (32 to 65). With three times the learning rate, 69% of the paid completions were wrong in
# steps 20 to 29 (one seed): the hole was learned faster. (`benchmarks/hole.py` of d5a899d.)
#
# ## How much noise can a run bear?
#
# The verifier flips each answer v (0 or 1) with probability p. The mean of the flipped answer v' is
# $E[v' \mid v] = p + (1 - 2p) v$. In the difference from the group's mean, the constant p cancels:
# $E[v' - \bar v' \mid v] = (1 - 2p) (v - \bar v)$. At p = 0.2 the expected advantage, before the
# division by the standard deviation, is 0.6 times the true one. It is smaller but has the same
# sign. At p = 0.5 it is 0.
#
# **Predict:** a group of eight has two correct completions. What are the mean and the spread of a
# correct one's advantage for p = 0, 0.2, 0.5 and 0.8?


# %%
def flip(answers, p):
    """Each answer flipped with probability p."""
    return torch.where(torch.rand(answers.shape) < p, 1 - answers, answers)


torch.manual_seed(0)
two_correct = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0]).expand(draws, 8)
for p in (0.0, 0.2, 0.5, 0.8):
    noisy = flip(two_correct, p)  # (draws, 8)
    difference = (noisy - noisy.mean(dim=1, keepdim=True))[:, :2].mean()  # of the correct ones
    advantage = r1.group_advantages(noisy, config)[:, :2]
    print(
        f"p {p}: v' - mean {difference:+.3f}, expected {(1 - 2 * p) * 0.75:+.3f}; advantage "
        f"{advantage.mean():+.3f}, standard deviation {advantage.std():.2f}"
    )

# %% [markdown]
# Below p = 0.5 the direction survives, but the mean shrinks and the spread grows. More completions
# average the noise out, but not an error that always hits the same kind of answer.
#
# ## Exercise: an unbiased answer reward
#
# Let `fp` be the probability that a verifier accepts a wrong answer, and `fn` the probability that
# it rejects a correct one. Both are known, and fp + fn < 1. Write the reward whose mean is 1 for a
# correct answer and 0 for a wrong one (arXiv:2510.00915 calls it the backward correction).


# %% tags=["exercise"]
# Only this cell is graded. Chapter 1 says how to hand in.
def corrected(answer, fp, fn):
    """(N,) answers, 0 or 1, of a verifier with these error rates -> (N,) unbiased ones."""
    return None  # your line


# %% tags=["test"]
if corrected(torch.ones(1), 0.1, 0.3) is None:
    print("Not solved yet: write corrected above, run that cell, and then this one.")
else:
    for fp, fn in ((0.2, 0.2), (0.1, 0.3), (0.0, 0.5)):
        rejected, accepted = corrected(torch.tensor([0.0, 1.0]), fp, fn).tolist()
        means = [fp * accepted + (1 - fp) * rejected, (1 - fn) * accepted + fn * rejected]
        assert torch.allclose(torch.tensor(means), torch.tensor([0.0, 1.0]), atol=1e-5), means
    noisy = flip(two_correct, 0.2)
    plain, unbiased = (r1.group_advantages(v, config) for v in (noisy, corrected(noisy, 0.2, 0.2)))
    print("Correct: unbiased for each pair of error rates. GRPO's advantages with and without it")
    print(f"differ by at most {(plain - unbiased).abs().max():.4f}.")

# %% [markdown]
# The correction changes nothing for GRPO if the answer is the whole reward and all completions have
# the same error rates. It shifts and scales the whole group, and the advantage undoes both.
#
# ## Open task
#
# Write a reward of your own, for example "be correct, and be brief", and say beforehand how it will
# be cheated. Train with it for three minutes: `r1.main(config, rollout=my_rollout)`, where
# `my_rollout` calls `r1.rollout` and sets each episode's `e.reward`. Then repair the reward and
# train again. In the repair you may not use `e.answer_reward` or another verifier of the answer.
# The text, its length and `e.format_reward` are allowed. Train each with three seeds. *Hand in*
# both rewards, your prediction, the completion that cheats best, and the curves of reward and
# accuracy. No answer is in this repository.
#
# Next: [7. Write it yourself](7_write_it_yourself.ipynb).
