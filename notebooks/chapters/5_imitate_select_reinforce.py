# %% [markdown]
# # 5. Imitate, select, reinforce
#
# Four ways to teach a base model, and one that teaches nothing: imitate a teacher's solutions,
# select the model's own right ones (best of n, or fine-tuning on them), reinforce, and distil a
# teacher on the student's own samples. All of them add up $w \, \nabla \log \pi$ over tokens. They
# differ in whose tokens these are and in the weight w. Two CPU cores, under three minutes; what
# takes longer comes as a record.
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

# %% tags=["parameters"]
questions, teacher_steps, student_steps = 64, 16, 8  # fewer are faster, and noisier

# %% [markdown]
# ## Imitate
#
# Somebody else writes the tokens. Here it is a program that tries one equation after the other
# until one is right, in the form that the model knows; with a large model it would be people or a
# larger model. Supervised fine-tuning (SFT) makes every token of theirs more likely: $w = 1$.
#
# **Predict:** the base is right, in good form, in less than one completion of ten. After 16 steps
# of 32 traces each: how often, and are its completions longer or shorter?

# %%
import inspect

import matplotlib.pyplot as plt
import pandas as pd
import torch

import nano_r1 as r1
import nano_sft
from plumbing.console import quoted
from plumbing.evaluation import pass_at_k
from plumbing.models import load_model, load_tokenizer
from plumbing.processes import init_distributed
from plumbing.tasks import load_task

RECORDS = f"{home}/notebooks/chapters/records"
sys.path.append(RECORDS)
import five  # the script of this chapter's record, and what it calls
from forgetting import systematic_rows

config = r1.Config(task="countdown", max_tokens=128, kl_coef=0.0)
init_distributed()
tokenizer = load_tokenizer(config.model)
task = load_task(config.task, config.prompt, tokenizer)
pool = task.load_problems("test", None, 0)
problems, spare = pool[:questions], pool[questions:]  # to look at; to distil on
n = config.group_size


def load_engine():
    """The base in an engine, to be trained."""
    return r1.make_engine(load_model(config.model, config.dtype), config)


def sample(model, count=questions):
    """n completions of each of the first problems: rewarded episodes, groups adjacent."""
    sampler = r1.make_sampler(config, model, task, max_length=512)
    return r1.sample_and_reward(sampler, problems[:count], task, config, "chapter 5", n, 1.0)


def is_kept(episode):
    """Right and in good form: what rejection sampling keeps."""
    return episode.reward.answer == 1 and episode.reward.format == 1


def summary(episodes):
    length = sum(e.length for e in episodes) / len(episodes)
    kept = sum(map(is_kept, episodes)) / len(episodes)
    return f"right, in good form: {kept:4.0%}; {length:3.0f} tokens"


model = load_model(config.model, config.dtype)
episodes = sample(model)
print("base    ", summary(episodes))

examples = [
    nano_sft.make_example(row["prompt"], row["response"], tokenizer)
    for row in systematic_rows(0)[: 32 * max(16, teacher_steps)]
]
print("a trace:", quoted(examples[0].text.strip()), sep="\n")
teacher = load_engine()
for step in range(teacher_steps):
    rows = examples[32 * step : 32 * (step + 1)]
    nano_sft.train_step(teacher, rows, config, lr=3e-4)
teacher_episodes = sample(teacher.module)
print("imitator", summary(teacher_episodes))

# %% [markdown]
# Nobody was rewarded. The traces say what to write after every prefix, so a batch holds as many
# lessons as tokens. But they are somebody else's: the model learns what to do where *they* have
# been, and a mistake of its own leads where no trace goes.
#
# ## Select
#
# Let the model write, and the verifier choose. *Best of n* shows the right one of n attempts, and
# trains nothing: with a verifier that is never wrong its accuracy is pass@n. *Rejection-sampling
# fine-tuning* (RFT, arXiv:2308.01825; STaR, arXiv:2203.14465) imitates what was chosen.
#
# **Predict:** of 512 completions of 64 problems, how many are kept? Of how many problems are none?
# Are the kept ones longer or shorter than the others?

# %%
groups = [episodes[i : i + n] for i in range(0, len(episodes), n)]
kept = [e for e in episodes if is_kept(e)]
others = [e for e in episodes if not is_kept(e)]
solved = [group for group in groups if any(map(is_kept, group))]
print(f"{len(kept)} of {len(episodes)} are kept, of {len(solved)} of {len(groups)} problems")
tries = lambda e: e.text.count("\n") - e.text.count("<answer>") - e.text.count("</think>")
for name, some in (("kept", kept), ("not kept", others)):
    counts = [tries(e) for e in some]
    shares = [sum(c == k for c in counts) / max(1, len(some)) for k in range(1, 6)]
    print(f"{name:8}  share by number of attempts 1 to 5:", *(f"{s:5.0%}" for s in shares))
for e in kept[:3]:
    print(quoted(e.text.strip()))

# %% [markdown]
# Most problems give nothing: selection learns from those that the model can already solve. An easy
# problem gives several completions, a hard one none. What is thrown away is most of what was paid
# for: the wrong completions say nothing here.
#
# ## Reinforce: one sum, other weights
#
# For the model's own samples all of these follow
#
# $$\sum_i w_i \sum_t \nabla \log \pi(o_{it})$$
#
# | method | whose tokens | weight w |
# | --- | --- | --- |
# | imitate (SFT) | a teacher's | 1 |
# | best of n | | no update |
# | select (RFT) | its own | 1 if right and in good form, else 0 |
# | reinforce (REINFORCE) | its own | the reward r |
# | reinforce (GRPO) | its own | the advantage |
# | distil on policy | its own | one for every token: below |
#
# (Each divides the sum by a number of tokens or of completions, which chapter 2 is about.)
#
# **Predict:** in a group of eight with two right ones: which weights are negative, and under which
# method? Which methods weigh a wrong completion in good form more than one in bad form?


# %%
def weights_of(group):
    """{method: (n,) weights} of one group."""
    rewards = torch.tensor([[e.reward.total for e in group]])  # (1, n)
    kept = torch.tensor([float(is_kept(e)) for e in group])  # (n,)
    return {
        "select (RFT)": kept,
        "REINFORCE": rewards[0],
        "GRPO": r1.group_advantages(rewards, config)[0],
        "GRPO, right alone": r1.group_advantages(kept[None], config)[0],
    }


group = max(groups, key=lambda g: (len({e.reward.total for e in g}), sum(map(is_kept, g))))
table = pd.DataFrame(weights_of(group), index=[e.reward.why for e in group])
table.reset_index(drop=True).plot.bar(subplots=True, layout=(1, 4), figsize=(12, 3), legend=False)
plt.gcf().supxlabel("completion of the group"), plt.gcf().supylabel("w")
plt.tight_layout()
plt.show()
table.round(2)

# %% [markdown]
# RFT is REINFORCE with a reward of 0 and 1 and no baseline: fine-tuning on the kept ones and a
# policy gradient with $w = 1[\text{right}]$ are the same update (`python variants.py
# --binary_reward --loss_type no_baseline` takes it at each step, on new samples, and does not ask
# for the form; RFT once keeps imitating what the base has written). GRPO adds two things: wrong
# ones are pushed down, and a right one counts more where the group has few. For rewards of 0 and 1
# and a share p of right ones it is $\sqrt{(1-p)/p}$ for a right one and $-\sqrt{p/(1-p)}$ for a
# wrong one, but for the n - 1 and the eps.
#
# **Predict:** in a group with one right one of eight: by how much does GRPO weigh it more than in a
# group with seven? And RFT?

# %%
for right in (1, 2, 4, 7):
    rewards = torch.tensor([[1.0] * right + [0.0] * (n - right)])  # (1, n)
    advantages = r1.group_advantages(rewards, config)[0]
    print(f"{right} of {n} right: RFT 1 and 0; GRPO {advantages[0]:+.2f} and {advantages[-1]:+.2f}")

# %% [markdown]
# ## Do they point the same way?
#
# The sums themselves, at the base: imitate on as many traces, the others on completions of the
# problems that give a signal to all of them. Two sums whose cosine is 1 are the same update but for
# its size. *GRPO, right alone* has the advantages of a reward that is 1 for what RFT keeps, else 0.
#
# **Predict:** is GRPO nearer to RFT or to REINFORCE? And GRPO with RFT's reward?


# %%
def gradients(some, weights):
    """[sum_t w_t grad log pi over the tokens of these episodes, as one vector], for each w (B,)."""
    batch = r1.collate(some, "cpu")
    log_probs, _ = r1.get_response_log_probs(model, batch, config.temperature)  # (B, T)
    sums = []
    for w in weights:
        w = w[:, None] * batch["response_mask"]  # (B, T)
        parts = torch.autograd.grad(
            log_probs, list(model.parameters()), grad_outputs=w, retain_graph=True
        )
        sums.append(torch.cat([part.flatten() for part in parts]))
    return sums


chosen = (solved or groups)[:16]
of_groups = [weights_of(group) for group in chosen]
own = [e for group in chosen for e in group]
names = list(of_groups[0])
vectors = gradients(examples[: len(own)], [torch.ones(len(own))])
vectors += gradients(own, [torch.cat([each[name] for each in of_groups]) for name in names])
units = torch.stack([vector / vector.norm() for vector in vectors])
pd.DataFrame(units @ units.T, ["imitate", *names], ["imitate", *names]).round(2)

# %% [markdown]
# Change one thing at a time. From *RFT* to *GRPO, right alone* it is the baseline and the scale;
# from there to *GRPO* it is the reward, which pays for form as well; from RFT to *imitate* it is
# the author. This is the first step: later ones start from policies that differ.
#
# ## Distil on policy
#
# A reward is one number for a completion. A teacher that can score tokens says more: its
# distribution at every place. The student samples, and the loss is $KL(\pi \| \pi_T)$ at each of
# its tokens, over the whole vocabulary; no reward is used, and which tokens were met is seen as
# fixed (GKD, arXiv:2306.13649). For the sampled token the weight is $\log \pi_T - \log \pi$: up
# where the teacher gives it more than the student, down where less. The teacher is the imitator
# from above.
#
# **Predict:** in a wrong completion of the student, is every token's weight negative?

# %%
print(inspect.getsource(five.reverse_kl), inspect.getsource(five.distil), sep="\n\n")


# %%
@torch.no_grad()
def both(some):
    """Log-probs of student and teacher at the response tokens, and the tokens: (N, V) x 2, (N,)."""
    batch = r1.collate(some, "cpu")
    scored = [five.log_probs_at(which, batch) for which in (model, teacher.module)]
    return *scored, batch["labels"][batch["response_mask"]]


shown = min((e for e in others if e.reward.format == 1), key=lambda e: abs(e.length - 40))
log_pi, log_teacher, tokens = both([shown])
token_weights = (log_teacher - log_pi).gather(-1, tokens[:, None])[:, 0]  # (N,)
plt.figure(figsize=(12, 3))
plt.bar(range(len(tokens)), token_weights.tolist())
names = [tokenizer.decode(token).replace("\n", "\\n") for token in tokens.tolist()]
plt.xticks(range(len(tokens)), names, fontsize=7, rotation=90), plt.ylabel("w")
plt.show()
print(f"{shown.reward.why}; w of RFT: 0 everywhere")

# %% [markdown]
# Most tokens are as the teacher would write them, w near 0. A few decide, such as the `</think>`
# with which the student gives up. That is credit for single tokens; GRPO gives all tokens of a
# completion the same.
#
# Now some steps of it, of 64 completions each.
#
# **Predict:** does the share of right completions rise, without any reward?

# %%
student = load_engine()
sampler = r1.make_sampler(config, student.module, task, max_length=512)
path = []
for step in range(student_steps):
    own = r1.sample_and_reward(
        sampler, spare[8 * step : 8 * step + 8], task, config, f"step {step}", n, 1.0
    )
    measured = five.distil(student, own, config, lr=3e-4, teacher=teacher.module)
    path.append(measured["loss"][0].item())
plt.figure(figsize=(6, 3)), plt.plot(range(1, student_steps + 1), path, "o-")
plt.xlabel("step"), plt.ylabel("KL(student || teacher), nats a token")
plt.show()
print("before  ", summary(episodes))
print("after   ", summary(sample(student.module)))
print("teacher ", summary(teacher_episodes))

# %% [markdown]
# ## Which KL, and on whose tokens?
#
# SFT on the teacher's samples is the other direction: the mean of $-\log \pi$ over tokens of the
# teacher is $KL(\pi_T \| \pi)$ but for a constant. So off policy: the teacher's prefixes, and the
# mean over the teacher's tokens. On policy: the student's prefixes, and the student's mean.
#
# **Predict:** base and teacher again. Which of the four numbers is largest?

# %%
rows = {}
for name, some in (("the student's", episodes), ("the teacher's", teacher_episodes)):
    log_pi, log_teacher, _ = both(some[: 16 * n])
    rows[f"{name} samples"] = {
        "KL(student || teacher)": five.reverse_kl(log_pi, log_teacher).mean().item(),
        "KL(teacher || student)": five.reverse_kl(log_teacher, log_pi).mean().item(),
    }
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# On its own samples the student is further from the teacher than on the teacher's, in both
# directions: a loss on the teacher's samples does not see where the student is worst.
#
# The direction matters where the student cannot become the teacher. A teacher with two ways to
# solve, and a student that has room for one: a bell over 60 tokens, with a centre and a width. Of
# all bells the one with the smallest KL:
#
# **Predict:** where does it lie with each direction?

# %%
places = torch.arange(60.0)
bell = lambda centre, width: (-0.5 * ((places - centre) / width) ** 2).log_softmax(-1)
two_ways = torch.logaddexp(bell(15.0, 3.0) + 0.5, bell(45.0, 3.0)).log_softmax(-1)
plt.figure(figsize=(8, 3)), plt.plot(two_ways.exp(), color="black", label="teacher")
bells = torch.stack([bell(c, w) for c in torch.arange(60.0) for w in torch.arange(1.0, 30.0)])
for name, kl in (
    ("KL(student || teacher)", five.reverse_kl(bells, two_ways)),
    ("KL(teacher || student)", five.reverse_kl(two_ways, bells)),
):
    plt.plot(bells[kl.argmin()].exp(), label=f"smallest {name}")
plt.xlabel("token"), plt.ylabel("probability"), plt.legend()
plt.show()

# %% [markdown]
# Imitation has to cover all that the teacher does, and puts weight where the teacher never is. The
# student's own direction settles for one way and does that one well.

# %% [markdown]
# ## The record: equal tokens
#
# The same base, Countdown, each method with the tokens that 20 steps of GRPO (16 groups of 8)
# sample. *Imitate*: so many tokens of traces. *Best of n*: so many tokens for the attempts at the
# 64 problems of the test. *Select*: so many sampled from the base, once, and the right ones
# imitated. *Distil*: 17 steps of 16 x 8 samples, with that seed's GRPO model as the teacher, whose
# own tokens are not counted. SFT has 100 steps of 32 rows, as in `labs/select_or_reinforce.py`.
#
# Measured at temperature 1: 64 held-out problems, 64 completions each; and what is forgotten, on
# 256 word problems (`gsm8k`, built in, of the twenty stories that the base knows), 4 completions
# each. `kl` is the exact KL to the base, a token, on the model's own completions.
#
# **Predict:** the order by pass@1, and the order by pass@64. Which forgets most? Which stays
# nearest to the base?

# %%
import runs  # benchmarks/runs.py

record = pd.read_json(f"{RECORDS}/five.json")
ks = [1, 2, 4, 8, 16, 32, 64]
seeds = sorted(set(record["seed"].tolist()))
found = {method: rows.set_index("seed") for method, rows in record.groupby("method", sort=False)}
lines = {}
for method, rows in found.items():
    columns = ["tokens", "pass@1", "pass@64", "gsm8k", "kl", "mean_length"]
    digits = {"tokens": 0, "mean_length": 0}
    lines[method] = {c: runs.spread(list(rows[c]), digits.get(c, 3)) for c in columns}
base, reinforced = found["base"], found["reinforce"]
chances = []
for seed in seeds:
    spent = 64 * base["mean_length"][seed]  # tokens of one attempt at each problem
    attempts = min(64, round(reinforced["tokens"][seed] / spent))
    chances.append(sum(pass_at_k(64, count, attempts) for count in base["right"][seed]) / 64)
lines["best of n"] = {"tokens": lines["reinforce"]["tokens"], "pass@1": runs.spread(chances)}
print(f"seeds {seeds}, best of {attempts}; mean (smallest to largest)")
pd.DataFrame(lines).T.fillna("")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
for number, (method, rows) in enumerate(found.items()):
    curves = rows[[f"pass@{k}" for k in ks]]
    left.plot(ks, curves.mean(), "o-", color=f"C{number}", label=method)
    left.fill_between(ks, curves.min(), curves.max(), color=f"C{number}", alpha=0.15)
    right.scatter(rows["kl"], rows["gsm8k"], color=f"C{number}", label=method)
left.set(xscale="log", xlabel="k", ylabel="pass@k, Countdown", xticks=ks, xticklabels=ks)
right.set(xlabel="KL to the base (nats a token)", ylabel="word problems, pass@1", ylim=(0, 0.5))
left.legend()
plt.show()

# %% [markdown]
# The record has two seeds: what is said of "both" is no interval.
#
# - **Best of n** is right more often than a single try of any trained model, in both. It spends
#   those tokens again on the next 64 problems, and it needs the verifier there.
# - **Imitation** is first of the trained ones and **selection** second, in both, by pass@1 and by
#   pass@64. Tokens are equal, updates are not: SFT takes 100 optimizer steps, GRPO 20. With three
#   seeds and 256 problems the difference in pass@1 of RFT and GRPO is not resolved (`docs/labs.md`,
#   *Select or reinforce*).
# - **GRPO** has more than four times the base's pass@1 in both. Its pass@64 is that of the base in
#   seed 0 (0.750, base 0.734) and far below in seed 1 (0.516, base 0.797): problems that
#   the base solves now and then it no longer solves in 64 tries.
# - **Distillation** comes near its teacher in pass@1 (0.444 of 0.492, and 0.438 of 0.444), with
#   no reward, and has the lowest pass@64 of all in both (0.562 and 0.500): a sharp teacher, and a
#   KL that settles for one way.
# - **Forgetting**: reinforcement is said to stay nearer to the base than SFT, and so to forget
#   less (RL's razor, arXiv:2509.04259). Here GRPO goes further from the base than imitation, in
#   both: the traces are by an author whom the base has learned from. None loses more than 0.03 on
#   the word problems, and selection gains 0.1 there: the second half of the claim is not tested.

# %% [markdown]
# ## Exercise
#
# With the whole vocabulary no sample is needed: at each place
#
# $$\sum_v \pi(v) \, w(v) \, \nabla \log \pi(v)$$
#
# is the expected update, w seen as fixed. Write w for both directions:
#
# - `off_policy`: descent on $KL(\pi_T \| \pi)$, imitation, as weights on the *student's* tokens.
# - `on_policy`: descent on $KL(\pi \| \pi_T)$, as advantages: their mean under $\pi$ is 0. (A
#   constant may be added to w at each place without a change of the gradient. Why?)


# %% tags=["exercise"]
def off_policy(policy, teacher):
    """Log-probs (N, V), (N, V) -> weights (N, V)."""
    return None  # your line


def on_policy(policy, teacher):
    """Log-probs (N, V), (N, V) -> weights (N, V), whose mean under the policy is 0."""
    return None  # your lines


# %% tags=["test"]
generator = torch.Generator().manual_seed(0)
logits = torch.randn(5, 11, generator=generator).requires_grad_()  # (N, V)
policy = logits.log_softmax(-1)
other = (2 * torch.randn(5, 11, generator=generator)).log_softmax(-1)
answers = {"off_policy": off_policy(policy.detach(), other)}
answers["on_policy"] = on_policy(policy.detach(), other)
if any(answer is None for answer in answers.values()):
    print("The exercise is open: write both functions above, run that cell, then this one.")
else:
    wanted = {"off_policy": five.reverse_kl(other, policy)}
    wanted["on_policy"] = five.reverse_kl(policy, other)
    for name, w in answers.items():
        weighted = (policy.detach().exp() * w * policy).sum()
        (update,) = torch.autograd.grad(weighted, logits, retain_graph=True)
        (descent,) = torch.autograd.grad(-wanted[name].sum(), logits, retain_graph=True)
        assert torch.allclose(update, descent, atol=1e-5), f"{name} has another gradient"
    means = (policy.detach().exp() * answers["on_policy"]).sum(-1)  # (N,)
    assert means.abs().max() < 1e-5, f"on_policy: the means are not 0: {means.tolist()}"
    print("Right: imitation and distillation are sums of w grad log pi, too.")

# %% [markdown]
# Whether a method of yours beats these is a question for `labs/` (`docs/labs.md`). Next:
# [rewards that go wrong](6_rewards_that_go_wrong.ipynb).
