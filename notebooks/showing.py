# %% [markdown]
# Cells that notebooks/make.py puts into nano_r1.ipynb, each after the function or class of
# nano_r1.py that it names. They show what was defined, with the base models/nano-base.

# %% [markdown] after="Episode"
# **One problem** of the task Countdown, the prompt that the model gets, and the prompt's tokens.

# %% after="Episode"
config = Config()
policy, tokenizer = load_model(config)
task = Task(tokenizer, policy, config)
problems = task.load_problems("test", config)[:8]
prompt_ids = task.prompt_ids(problems[0])
print(problems[0])
print(tokenizer.decode(prompt_ids))
print([tokenizer.decode([i]) for i in prompt_ids])

# %% [markdown] after="group_advantages"
# **Five groups of four rewards, and their advantages.** A reward that is rare in its group has a
# large advantage. If all rewards of a group are equal, its advantages are 0.

# %% after="group_advantages"
rewards = torch.tensor([[2, 0, 0, 0], [2, 2, 0, 0], [2, 2, 2, 0], [1, 1, 1, 1], [2, 1, 0.5, 0]])
print(group_advantages(rewards, config))

# %% [markdown] after="grpo_loss"
# **The loss at ratio 1.** Two completions have three tokens and two. Their advantages are 1.5 and
# -0.5. The policy has not moved, so each ratio is 1. A completion's loss is minus its advantage,
# divided by N = 2. A step follows minus the gradient: it raises the log-probs of the first
# completion and lowers those of the second. A token of a shorter completion has a larger share.

# %% after="grpo_loss"
log_probs = torch.full((2, 3), -0.7, requires_grad=True)
batch = {
    "old_log_probs": log_probs.detach(),
    "ref_log_probs": log_probs.detach(),
    "response_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    "advantages": torch.tensor([[1.5], [-0.5]]),
    "completions": 2,
}
losses = grpo_loss(log_probs, batch, config)
losses.sum().backward()
print(losses)
print(log_probs.grad)

# %% [markdown] after="sample_and_reward"
# **A good and a bad completion** of the 64 that the base writes for 8 problems, with their rewards.

# %% after="sample_and_reward"
sampler = TransformersSampler(policy, task, config)
episodes = sample_and_reward(sampler, problems, task, config, "notebook", config.group_size)
by_reward = sorted(episodes, key=lambda e: e.reward)
for e in (by_reward[-1], by_reward[0]):
    print(e.problem, e.completion, e.reward, e.why, sep="\n", end="\n\n")

# %% [markdown] after="update"
# **One update** on eight completions is in [chapter 1](chapters/1_one_group.ipynb): it prints the
# advantages, and how much each completion's log-prob changed.

# %% [markdown] after="Parts"
# **A run.** Word problems have short completions, so twelve steps take less than a minute.

# %% after="Parts"
main(Config(task="gsm8k", max_tokens=64, steps=12))
