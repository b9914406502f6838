# %% [markdown]
# # 6. Rewards that go wrong
#
# A policy learns what is paid, not what was meant. One base, one task, one algorithm, six rewards:
# five of them are wrong in a different way each. You see what each run was paid and what it
# learned, without being told which is which, and match them. Two CPU cores, one to two minutes; the
# long runs come as a record.
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
# ## Six rewards for one group
#
# The task is Countdown: make the target from the given numbers. The verifier gives a *format* of 0,
# 0.5 or 1 and a *verdict*, 1 for a right answer and 0 for a wrong one.
#
# 1. **right**: format + verdict.
# 2. **form only**: format. The verdict is not paid.
# 3. **lines**: format + verdict + 1 for each line that holds a sum, to make the model show its
#    working.
# 4. **noisy verifier**: format + verdict, but each verdict is turned round with a chance of 0.2.
# 5. **coin**: 0 or 1, by a coin.
# 6. **majority**: format + 1 for the answer that most of the group give (TTRL, arXiv:2504.16084).
#    Nobody looks at the true answer. Here a completion votes for the value of its expression, if
#    that is legal. In Countdown nobody needs a vote, since the target stands in the question. The
#    run shows what a vote does where the answers are not known.
#
# Each is a rollout, a function in the place of `nano_r1.rollout`: `benchmarks/wrong_rewards.py`.
# One seed gives all of them the same eight completions, and only the pay differs. The problem is to
# make 44 from 53, 57 and 48. First the completions, and for each the value it votes for.

# %% tags=["parameters"]
attempts, draws = 8, 20_000  # completions of the group; groups of flipped verdicts
steps, questions = 8, 4  # of the run at the end

# %%
import hashlib
import json
import tempfile

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.utils.capture import capture_output

import nano_r1 as r1
from plumbing.console import quoted
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.tasks import load_task

sys.path.append(f"{home}/benchmarks")
from wrong_rewards import REWARDS

config = r1.Config(task="countdown", max_tokens=128, prompts_per_step=1, group_size=attempts)
init_distributed()
task = load_task(config.task, config.prompt, load_tokenizer(config.model))
problems = task.load_problems("test", None, 0)
sampler = r1.make_sampler(config, load_model(config.model, config.dtype), task, max_length=512)
DRAW = 13  # a place in the order of the problems: another number gives another problem
group = r1.rollout(sampler, problems, task, config, DRAW)
votes = task.votes([e.text for e in group], group[0].problem)
print(task.title(group[0].problem))
for number, (e, vote) in enumerate(zip(group, votes), 1):
    print(f"\n{number}: format {e.reward.format:g}, verdict {e.reward.answer:g}, votes for {vote}")
    print(quoted(e.text.strip()))

# %% [markdown]
# **Predict:** the sign of the right completion's advantage under each of the six rewards. Under
# which of them is a wrong completion the best of the group?

# %%
columns = {}
for name, rollout in REWARDS.items():
    paid = rollout(sampler, problems, task, config, DRAW)
    rewards = torch.tensor([float(e.reward.total) for e in paid])  # (n,)
    columns[name] = r1.group_advantages(rewards[None], config)[0].tolist()
table = pd.DataFrame(columns, index=range(1, attempts + 1))
table.insert(0, "verdict", [e.reward.answer for e in group])
table.round(2)

# %% [markdown]
# Each column sums to 0. The update makes the completions above 0 more likely, whatever they are. Of
# a reward only this reaches the policy: who is above the mean of the group, and by how much. Under
# the vote three completions agree on a wrong value, and the right one is alone.
#
# ## Six runs
#
# The same base, 20 steps of 16 problems with 8 completions each, under each reward. The letters are
# in no order. Each of two seeds has a line. The upper row is what the run was *paid*, what one
# would watch if one had no verifier but the reward. The lower row is what was meant: the share of
# *right* answers in the batches (lines), and pass@1 on 192 held-out problems (dots).
#
# **Predict:** in how many of the six runs does the paid reward rise? In how many the share of right
# answers? Is there one where it falls?

# %%
RECORD = f"{home}/notebooks/chapters/records/six"
curves = pd.read_json(f"{RECORD}/curves.jsonl", lines=True)


def show(rows, letters="ABCDEF"):
    """A column for each run, a row for each metric, a line for each seed."""
    size = (2.4 * len(letters), 2.1 * len(rows))
    _, axes = plt.subplots(len(rows), len(letters), figsize=size, squeeze=False, sharex=True)
    for column, letter in enumerate(letters):
        for _, run in curves[curves["run"] == letter].groupby("seed"):
            for axis, name in zip(axes[:, column], rows):
                axis.plot(run["step"], run[name], linewidth=1)
                if name == "right":
                    axis.scatter(run["step"], run["pass@1"], s=9)
        axes[0, column].set_title(f"run {letter}")
    for row, name in zip(axes, rows):
        row[0].set_ylabel(name)
        if name in ("right", "format"):
            plt.setp(row, ylim=(-0.03, 1.03))
    plt.tight_layout()
    plt.show()


show(["paid", "right"])

# %% [markdown]
# Four curves more: the format, the mean length in tokens (128 is the limit), the share of groups in
# which all rewards are equal, and the entropy.

# %%
show(["format", "length", "no signal", "entropy"])


# %%
def ends(name, letters="ABCDEF"):
    """A metric before training or in the first step, and in the last: a column for each seed."""
    chosen = curves[curves["run"].isin(list(letters))].dropna(subset=name)
    by_run = chosen.groupby(["run", "seed"])[name].agg(["first", "last"])
    return by_run.unstack("seed").round(2)


ends("pass@1")

# %% [markdown]
# ## Their completions
#
# The last step of seed 0. All six runs had the same problem before them.
#
# **Predict:** which of the runs would you recognize by one completion?

# %%
with open(f"{RECORD}/completions.jsonl") as file:
    kept = [json.loads(line) for line in file]


def completions(letter, which=0, count=3):
    """The first `count` completions of the group 0 or 1 that was kept of a run's last step."""
    rows = [row for row in kept if row["run"] == letter][8 * which : 8 * which + count]
    print(f"\n==== run {letter}: {task.title(rows[0]['problem'])}")
    for row in rows:
        form, verdict = row["format_reward"], row["answer_reward"]
        print(f"paid {row['reward']:g} (format {form:g}, verdict {verdict:g}), {row['why']}")
        print(quoted(row["completion"].strip()))


for letter in "ABCDEF":
    completions(letter)

# %% [markdown]
# What all eight completions of two groups were paid, beside what they deserved. (`completions("A",
# which=1, count=8)` shows any of them.)

# %%
SHOWN = {"paid": "reward", "format": "format_reward", "verdict": "answer_reward"}
for letter in "ABCDEF":
    rows = [row for row in kept if row["run"] == letter]
    print(f"run {letter}")
    for name, key in SHOWN.items():
        print(f"  {name:8}", *(f"{row[key]:4g}" for row in rows))

# %% [markdown]
# ## Exercise: which run had which reward?
#
# The numbers 1 to 6 of the list at the top. For each run say to yourself which curve or which
# completion proves it. A hint: look at paid minus format.

# %% tags=["exercise"]
reward_of = {"A": None, "B": None, "C": None, "D": None, "E": None, "F": None}  # your numbers

# %% tags=["test"]
KEY = {
    "A": "4e8756fa", "B": "1de7fbb4", "C": "560f344a",
    "D": "578d232e", "E": "e1a76499", "F": "37f862c4",
}  # fmt: skip
if None in reward_of.values():
    print("The exercise is open: fill in reward_of in the cell above, run it, and then this one.")
else:
    for run, number in reward_of.items():
        said = hashlib.sha256(f"run {run}: {number}".encode()).hexdigest()[:8]
        assert said == KEY[run], f"Run {run}: another reward fits better. Look at what was paid."
    print("Right. Read on: what each reward did.")

# %% [markdown]
# ## What was seen
#
# Numbers below are of seed 0, first value and last; `python benchmarks/wrong_rewards.py --seeds 0
# 1` made the record. Every run starts from the same base, whose pass@1 is 0.11. With 192 problems
# the 95% interval is about +-0.07 at 0.5 and +-0.04 at 0.1.
#
# - **E had the right reward (1).** Paid minus format is the share of right answers. pass@1 ends at
#   0.54.
# - **F was paid for form only (2).** Paid *is* the format: it rises from 0.51 to 0.95, while pass@1
#   ends at 0.10. In 62% of the groups all rewards are equal then: they teach nothing.
# - **B was paid for lines (3).** Paid rises from 2.6 to 9.5. pass@1 rises at first, to 0.40 at step
#   10: this base is right more often where it tries longer (`docs/elicitation.md`), and the bonus
#   buys length. Then it falls, to 0.18 at step 20. In 7 of the 16 completions kept a line reaches
#   the target and says `no`; 9 go on until the limit. Ten steps of rising accuracy do not prove a
#   reward right.
# - **A had the noisy verifier (4).** Some right completions are not paid, some wrong ones are, and
#   no rule says which. It learns all the same: pass@1 ends at 0.54, as under the right reward.
# - **D had the coin (5).** Paid stays near 0.5. There is an update in every step, but none has a
#   direction: pass@1 ends at 0.07, which is not resolved from the base, and the format goes from
#   0.51 to 0.39.
# - **C was paid for agreeing (6).** Paid rises from 0.73 to 1.77 of 2, higher than under the right
#   reward, and pass@1 falls to 0.01. 14 of the 16 completions kept add all numbers. On that a
#   group agrees most easily: it is legal, and every order gives the same value. TTRL reports gains,
#   with far stronger models: a vote points the right way where the most frequent answer is mostly
#   the right one. This base is right in one of nine completions.
#
# Seed 1 ends alike, from A to F: pass@1 at 0.55; 0.22, after 0.39 at step 10; 0.01; 0.05; 0.48;
# 0.09.
#
# The paid reward rises in all runs but D. In two of the six, A and E, pass@1 ends far above the
# base. The paid reward alone does not tell E from C: that takes a verifier that is not the reward,
# or reading the completions.
#
# ## A repair
#
# Run G pays the bonus for lines as run B does, but for a right answer alone.
#
# **Predict:** are its completions longer or shorter than run B's? Where does the share of right
# answers end?

# %%
show(["paid", "right", "length"], "EBG")
ends("pass@1", "EBG")

# %% [markdown]
# Run G is paid for length as well, and its completions grow as long as run E's, not as run B's:
# lines that lead to no right answer pay nothing. pass@1 ends at 0.56 and 0.59, not resolved from
# run E's. A bonus that is paid only with a right answer can no longer be had in its place. It can
# still decide which of the right answers is learned.
#
# ## How much noise does a run bear?
#
# The verifier turns each verdict v (0 or 1) round with a chance p. What it says then is on average
#
# $$E[v' \mid v] = (1 - p) v + p (1 - v) = p + (1 - 2p) v$$
#
# In the difference to the group's mean the constant p cancels: $E[v' - \bar v' \mid v] = (1 - 2p)
# (v - \bar v)$. With p = 0.2 the expected advantage, before it is divided by the standard
# deviation, is 0.6 times the true one: smaller, of the same sign. It is 0 at p = 0.5, where the
# verdict is a coin.
#
# **Predict:** a group of eight has two right answers. What is the mean advantage of a right one
# for p = 0, 0.2, 0.5 and 0.8? How large is its spread? What happens in a group of eight wrong ones?


# %%
def flip(verdicts, p, generator):
    """Each verdict turned round with a chance of p."""
    flipped = torch.rand(verdicts.shape, generator=generator) < p
    return torch.where(flipped, 1 - verdicts, verdicts)


two_right = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0]).expand(draws, 8)
generator = torch.Generator().manual_seed(0)
for p in (0.0, 0.2, 0.5, 0.8):
    noisy = flip(two_right, p, generator)  # (draws, 8)
    difference = (noisy - noisy.mean(dim=1, keepdim=True))[:, :2]  # of the right ones
    advantage = r1.group_advantages(noisy, config)[:, :2]
    all_wrong = flip(torch.zeros(draws, 8), p, generator)
    signal = (all_wrong != all_wrong[:, :1]).any(dim=1).float().mean()
    print(
        f"p {p:.1f}: v' - mean {difference.mean():+.3f} ({1 - 2 * p:+.1f} x 0.75 is "
        f"{(1 - 2 * p) * 0.75:+.3f}); advantage {advantage.mean():+.3f}, "
        f"sd {advantage.std():.2f}; all wrong, and yet with signal: {signal:.0%}"
    )

# %% [markdown]
# The direction survives, but its share of what each completion gets is smaller: the mean shrinks
# and the spread grows, and groups that had nothing to teach now push in a direction that is chance.
# More completions average that out, since the flips of different completions are independent. An
# error that always hits the same kind of answer does not average out: it is the reward of run B or
# F in small.
#
# ## Exercise: an unbiased verdict
#
# A verifier rarely errs equally on both sides. Let `fp` be the chance that it accepts a wrong
# answer, and `fn` that it rejects a right one. Both are known and fp + fn < 1. Write the verdict
# whose mean is 1 for a right answer and 0 for a wrong one (arXiv:2510.00915 calls it the backward
# correction).


# %% tags=["exercise"]
def corrected(verdict, fp, fn):
    """(N,) verdicts, 0 or 1, of a verifier with these error rates -> (N,) unbiased ones."""
    return None  # your line


# %% tags=["test"]
if corrected(torch.ones(1), 0.1, 0.3) is None:
    print("The exercise is open: write corrected above, run that cell, and then this one.")
else:
    for fp, fn in ((0.2, 0.2), (0.1, 0.3), (0.0, 0.5)):
        rejected, accepted = corrected(torch.tensor([0.0, 1.0]), fp, fn).tolist()
        of_right = (1 - fn) * accepted + fn * rejected
        of_wrong = fp * accepted + (1 - fp) * rejected
        said = f"fp {fp}, fn {fn}: the mean is {of_right:.2f} for a right answer"
        said = f"{said}, {of_wrong:.2f} for a wrong one"
        assert abs(of_right - 1) < 1e-5 and abs(of_wrong) < 1e-5, said
    noisy = flip(two_right, 0.2, generator)
    plain, unbiased = (r1.group_advantages(v, config) for v in (noisy, corrected(noisy, 0.2, 0.2)))
    difference = (plain - unbiased).abs().max()
    print("Right: unbiased for each pair of error rates.")
    print(f"GRPO's advantages with and without it differ by at most {difference:.4f}.")

# %% [markdown]
# The last line says that the correction changes nothing for GRPO, if the verdict is the whole
# reward and all completions have the same error rates: it is one shift and one scale for the whole
# group, and the advantage subtracts the mean and divides by the standard deviation. Here the format
# is paid beside the verdict, and the correction would give the verdict its old weight against it:
# 1 / 0.6 of what the noise has left. No correction takes the spread away.
#
# ## A reward of your own
#
# `steps` steps of `questions` problems, some seconds each, are enough to see where a reward pushes,
# and too few to see where it ends. This one pays format and verdict, less the length in shares of
# 64 tokens: "be right, and be brief".
#
# **Predict:** which of paid, right and length rise, which fall? Then write a reward of your own and
# try to say beforehand how it will be cheated.


# %%
def brief(sampler, problems, task, config, step):
    """`nano_r1.rollout`, with a price on length."""
    episodes = r1.rollout(sampler, problems, task, config, step)
    for e in episodes:
        e.reward = e.reward._replace(total=e.reward.total - e.length / 64)
    return episodes


sizes = {"prompts_per_step": questions, "steps": steps, "warmup_steps": 3, "max_tokens": 128}
sizes |= {"eval_problems": 4 * questions, "lr_scheduler_type": "constant"}
quiet = {"save_every": 0, "record_tokens_every": 0, "report": False, "out": tempfile.mkdtemp()}
with capture_output():
    run = r1.main(r1.Config(task="countdown", **sizes, **quiet), rollout=brief)
rows = pd.read_json(f"{run}/metrics.jsonl", lines=True).set_index("step").iloc[1:]
watched = ["reward", "reward/answer", "reward/format", "completions/mean_length"]
rows[watched].round(2)
