# %% [markdown]
# # 5. Imitate, select, reinforce
#
# Four ways to teach a base model: imitate a teacher's solutions, select the model's own correct
# completions and imitate those, reinforce, and distil a teacher on the student's own samples. All
# of them add up $w \, \nabla \log \pi$ over tokens. They differ in whose tokens these are and in
# the weight w. The chapter takes under three minutes on two CPU cores; longer runs come as a
# record.
#
# Each part asks for a **prediction**. Write it down before you run the cell below it.

# %% tags=["parameters"]
questions, teacher_steps, student_steps = 64, 16, 8  # fewer are faster, and noisier

# %% [markdown]
# ## Imitate
#
# Somebody else writes the tokens. Here it is the author of the base's training who searches
# systematically, in the format that the model knows. Supervised fine-tuning (SFT) makes every token
# of these traces more likely: $w = 1$.
#
# **Predict:** the base is correct, in good format, in less than one completion of ten. After 16
# steps of 32 traces each: how often, and are its completions longer or shorter?

# %%
import random
import sys

import matplotlib.pyplot as plt
import pandas as pd
import torch

import nano_r1 as r1

sys.path.append("models/nano-base")
import make_base

config = r1.Config(task="countdown", max_tokens=128, kl_coef=0.0)
model, tokenizer = r1.load_model(config)
task = r1.Task(tokenizer, model, config)
pool = task.load_problems("test", config)
problems = pool[:questions]
n = config.group_size


def load_engine():
    """The base with AdamW, to be trained."""
    engine = r1.make_engine(r1.Scorer(r1.load_model(config)[0], config), model.device, config)
    engine.optimizer.param_groups[0]["lr"] = 3e-4
    return engine


def sample(policy, problems, label="chapter 5"):
    """n completions of each problem: rewarded episodes, groups adjacent."""
    sampler = r1.TransformersSampler(policy, task, config)
    return r1.sample_and_reward(sampler, problems, task, config, label, n)


def is_kept(e):
    """Correct and in good format: what rejection sampling keeps."""
    return e.reward.answer == 1 and e.reward.format == 1


def summary(name, episodes):
    """Print how many are kept, and their mean length."""
    length = sum(len(e.token_ids) for e in episodes) / len(episodes)
    kept = sum(map(is_kept, episodes)) / len(episodes)
    print(f"{name:9} correct, in good format: {kept:4.0%}; {length:3.0f} tokens")


author = make_base.AUTHORS["systematic"]._replace(forms=(1, 0, 0, 0, 0))
rng = random.Random(0)
traces = []  # (prompt ids, response ids)
for problem in task.load_problems("train", config)[: 32 * max(16, teacher_steps)]:
    text = make_base.write_as(author, problem["nums"], problem["target"], rng)
    traces.append((task.prompt_ids(problem), tokenizer.encode(text) + [tokenizer.eos_token_id]))
print("a trace:", tokenizer.decode(traces[0][1]))

teacher = load_engine()
for step in range(teacher_steps):
    make_base.train_step(teacher, traces[32 * step : 32 * (step + 1)], config)
teacher_episodes = sample(teacher.module.model, problems)
episodes = sample(model, problems)
summary("base", episodes)
summary("imitator", teacher_episodes)

# %% [markdown]
# There was no reward. The traces say what to write after every prefix, so a batch holds as many
# lessons as tokens. But they are somebody else's: the model learns what to do where *they* have
# been, and after a mistake of its own no trace continues.
#
# ## Select
#
# The model writes, and the verifier chooses. *Best of n* shows the correct one of n completions and
# trains nothing. *Rejection-sampling fine-tuning* (RFT, arXiv:2308.01825; STaR, arXiv:2203.14465)
# imitates what was chosen.
#
# **Predict:** of 512 completions of 64 problems, how many are kept? Of how many problems are none?
# Are the kept ones longer or shorter than the others?

# %%
groups = [episodes[i : i + n] for i in range(0, len(episodes), n)]
kept = [e for e in episodes if is_kept(e)]
others = [e for e in episodes if not is_kept(e)]
solved = [group for group in groups if any(map(is_kept, group))]
print(f"{len(kept)} of {len(episodes)} are kept, of {len(solved)} of {len(groups)} problems")
summary("not kept", others)
summary("kept", kept or others)

# %% [markdown]
# Selection learns from problems that the model can already solve. The wrong completions, most of
# what was sampled, teach nothing here.
#
# ## Reinforce: one sum, other weights
#
# For the model's own samples all of these follow $\sum_i w_i \sum_t \nabla \log \pi(o_{it})$.
#
# | method | whose tokens | weight w |
# | --- | --- | --- |
# | imitate (SFT) | a teacher's | 1 |
# | select (RFT) | its own | 1 if correct and in good format, else 0 |
# | reinforce (REINFORCE) | its own | the reward r |
# | reinforce (GRPO) | its own | the advantage |
# | distil on policy | its own | one for every token: below |
#
# (Each divides the sum by a number of tokens or of completions: chapter 2.)
#
# **Predict:** in a group of eight with two correct ones: which weights are negative, and with which
# method? Which methods weigh a wrong completion in good format more than one in bad format?


# %%
def weights_of(group):
    """{method: (n,) weights} of one group."""
    rewards = torch.tensor([e.reward.total for e in group])  # (n,)
    kept = torch.tensor([float(is_kept(e)) for e in group])  # (n,)
    return {
        "select (RFT)": kept,
        "REINFORCE": rewards,
        "GRPO": r1.group_advantages(rewards[None], config)[0],
        "GRPO, RFT's reward": r1.group_advantages(kept[None], config)[0],
    }


group = max(groups, key=lambda g: (len({e.reward.total for e in g}), sum(map(is_kept, g))))
pd.DataFrame(weights_of(group), index=[e.reward.why for e in group]).round(2)

# %% [markdown]
# RFT is REINFORCE with a reward of 0 or 1 and no baseline: fine-tuning on the kept ones and a
# policy gradient with $w = 1[\text{kept}]$ are the same update. GRPO adds two things: it pushes
# wrong ones down, and a correct one counts more if the group has few. With a share p of correct
# ones it is about $\sqrt{(1-p)/p}$ for a correct one and $-\sqrt{p/(1-p)}$ for a wrong one.
#
# ## Distil on policy
#
# A reward is one number for a completion. A teacher that can score tokens says more: its
# distribution at every place. The student samples, and the loss is $KL(\pi \| \pi_T)$ at each of
# its tokens, over the whole vocabulary (GKD, arXiv:2306.13649). For the sampled token the weight is
# $\log \pi_T - \log \pi$. The teacher is the imitator from above.
#
# **Predict:** in a wrong completion of the student, is every token's weight negative?


# %%
def log_probs_at(policy, batch):
    """log pi of every entry of the vocabulary at the N tokens of the completions: (N, V)."""
    return policy(batch["input_ids"]).logits[batch["response_mask"]].log_softmax(dim=-1)


def kl(policy, other):
    """KL(policy || other) of each token, of log-probs: (N, V), (N, V) -> (N,)."""
    return (policy.exp() * (policy - other)).sum(dim=-1)


with torch.no_grad():
    e = min(others, key=lambda e: (-e.reward.format, abs(len(e.token_ids) - 40)))
    batch = r1.collate([e], "cpu")
    gain = log_probs_at(teacher.module.model, batch) - log_probs_at(model, batch)  # (N, V)
weights = gain[range(len(gain)), batch["labels"][batch["response_mask"]]]  # (N,)
pieces = [tokenizer.decode([i]).replace("\n", "\\n") for i in e.token_ids]
pd.Series(weights.tolist(), pieces).plot.bar(figsize=(12, 3), title=e.reward.why, ylabel="w")
plt.show()

# %% [markdown]
# The teacher would write most tokens as they are: w is near 0. A few tokens decide, such as the
# `</think>` with which the student gives up. This is credit for single tokens. GRPO gives all
# tokens of a completion the same.
#
# Now some steps of it, of 64 completions each.
#
# **Predict:** does the share of correct completions rise, without any reward?

# %%
student = load_engine()
for step in range(student_steps):
    drawn = pool[questions + 8 * step : questions + 8 * step + 8]
    batch = r1.collate(sample(student.module.model, drawn, f"step {step}"), "cpu")
    with torch.no_grad():
        target = log_probs_at(teacher.module.model, batch)  # (N, V)
    loss = kl(log_probs_at(student.module.model, batch), target).mean()
    student.backward(loss)
    student.step()
    print(f"step {step}: KL(student || teacher) {loss.item():.3f} nats per token")
summary("before", episodes)
summary("after", sample(student.module.model, problems))
summary("teacher", teacher_episodes)

# %% [markdown]
# SFT on the teacher's samples is the other direction: the mean of $-\log \pi$ over the teacher's
# tokens is $KL(\pi_T \| \pi)$ plus a constant. Imitation has to cover all that the teacher does.
# The student's own direction settles for one way.
#
# ## The record: equal tokens
#
# Each method trains the same base on Countdown, with the tokens that 20 steps of GRPO (16 groups
# of 8) sample. Distillation has that seed's GRPO model as the teacher. Measured at temperature 1
# are 64 held-out problems with 64 completions each, and what is forgotten: 256 word problems. `kl`
# is the exact KL to the base, in nats per token. (Commit b154da9; `five.py` of commit beb1656.)
#
# **Predict:** the order by pass@1, and the order by pass@64. Which method forgets most?

# %%
record = pd.read_json("notebooks/chapters/records/five.json")
ks = [1, 2, 4, 8, 16, 32, 64]
for method, rows in record.groupby("method", sort=False):
    plt.plot(ks, rows[[f"pass@{k}" for k in ks]].mean(), "o-", label=method)
plt.gca().set(xscale="log", xlabel="k", ylabel="pass@k, mean of two seeds")
plt.legend()
plt.show()
record.set_index(["method", "seed"])[["tokens", "pass@1", "pass@64", "gsm8k", "kl"]].round(3)

# %% [markdown]
# The record has two seeds: "in both" is no interval.
#
# - **Imitation** is first and **selection** second in both, by pass@1 and by pass@64. The tokens
#   are equal, the updates are not: SFT takes 100 optimizer steps, GRPO 20.
# - **GRPO** has more than four times the base's pass@1 in both. Its pass@64 is that of the base in
#   seed 0 (0.750, base 0.734) and far below in seed 1 (0.516, base 0.797).
# - **Distillation** comes near its teacher in pass@1 (0.444 of 0.492, and 0.438 of 0.444) without a
#   reward, and has the lowest pass@64 in both (0.562 and 0.500).
# - **Forgetting**: GRPO goes further from the base than imitation, in both: the base has learned
#   from this author. No method loses more than 0.03 on the word problems.
#
# ## Exercise
#
# With the whole vocabulary no sample is needed: at each place $\sum_v \pi(v) \, w(v) \, \nabla \log
# \pi(v)$ is the expected update, with w fixed. Write w for both directions:
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
torch.manual_seed(0)
logits = torch.randn(5, 11, requires_grad=True)  # (N, V)
policy = logits.log_softmax(-1)
other = (2 * torch.randn(5, 11)).log_softmax(-1)
answers = [write(policy.detach(), other) for write in (off_policy, on_policy)]
if any(answer is None for answer in answers):
    print("Not solved yet: write both functions above, run that cell, then this one.")
else:
    for w, loss in zip(answers, (kl(other, policy), kl(policy, other))):
        expected = (policy.detach().exp() * w * policy).sum()
        (update,) = torch.autograd.grad(expected, logits, retain_graph=True)
        (descent,) = torch.autograd.grad(-loss.sum(), logits, retain_graph=True)
        assert torch.allclose(update, descent, atol=1e-5), f"another gradient: {update - descent}"
    means = (policy.exp() * answers[1]).sum(-1)  # (N,)
    assert means.abs().max() < 1e-5, f"on_policy: the means are not 0: {means.tolist()}"
    print("Correct: imitation and distillation are sums of w grad log pi, too.")

# %% [markdown]
# Next: [6. Rewards that go wrong](6_rewards_that_go_wrong.ipynb).
