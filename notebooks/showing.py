# %% [markdown]
# Cells that notebooks/make.py puts into nano_r1.ipynb, each after the function or class of
# nano_r1.py that it names. They show what was defined, with the base models/nano-base.

# %% [markdown] after="Episode"
# **One problem.** This is a problem of the task Countdown, the prompt that the model gets, and the
# prompt's tokens.

# %% after="Episode"
config = Config()
policy, tokenizer = load_model(config)
task = Task(tokenizer, policy, config)
problems = task.load_problems("test", config)[:16]
prompt_ids = task.prompt_ids(problems[0])
print(problems[0])
print(tokenizer.decode(prompt_ids))
print(*[repr(tokenizer.decode([i])) for i in prompt_ids])

# %% [markdown] after="group_advantages"
# **Five groups of four rewards, and their advantages.** A reward that is rare in its group has a
# large advantage. If all rewards of a group are equal, its advantages are 0.

# %% after="group_advantages"
rewards = torch.tensor([[2, 0, 0, 0], [2, 2, 0, 0], [2, 2, 2, 0], [1, 1, 1, 1], [2, 1, 0.5, 0]])
for group, advantages in zip(rewards.tolist(), group_advantages(rewards, config).tolist()):
    print(*[f"{reward:4.1f}" for reward in group], "  ->", *[f"{a:+.2f}" for a in advantages])

# %% [markdown] after="grpo_loss"
# **The loss at ratio 1.** Two completions have three tokens and two; their advantages are 1.5 and
# -0.5. The policy has not moved, so each ratio is 1. A completion's loss is minus its advantage,
# divided by N = 2. The gradient tells what the step does: it raises the log-probs of the first
# completion and lowers those of the second. A token of a shorter completion moves more.

# %% after="grpo_loss"
old = torch.tensor([[-0.1, -2.0, -0.5], [-0.7, -0.2, 0.0]])
batch = {
    "old_log_probs": old,
    "ref_log_probs": old,
    "response_mask": torch.tensor([[True, True, True], [True, True, False]]),
    "advantages": torch.tensor([[1.5], [-0.5]]),
    "completions": 2,
}
log_probs = old.clone().requires_grad_()
losses = grpo_loss(log_probs, batch, config)
losses.sum().backward()
print("losses  ", losses.tolist())
print("gradient", log_probs.grad.tolist())

# %% [markdown] after="precision"
# **One micro-batch.** Two completions of the problem above stand in one tensor. The mask is 1 where
# the model wrote the next token. Behind the shorter completion is padding. Below each mask is the
# probability of each token under the base. Look for tokens that the base is sure of: the results of
# calculations. Which numbers to combine is a choice, so its tokens have smaller probabilities.

# %% after="precision"
episodes = []
for text in ("\n90-38=52-6=46\n", "\n38*6=228-90=138 no\n"):
    ids = tokenizer.encode(text) + [tokenizer.eos_token_id]
    episode = Episode(
        problem=problems[0],
        prompt_ids=prompt_ids,
        token_ids=ids,
        log_probs=[0.0] * len(ids),
        advantage=0.0,
    )
    episodes.append(episode)
batch = collate(episodes, "cpu")
with torch.no_grad():
    probabilities = Scorer(policy, config)(batch).exp()
for labels, mask, row in zip(batch["labels"], batch["response_mask"], probabilities):
    print(*mask.int().tolist(), sep="")
    print(*[f"{tokenizer.decode([i])!r} {p:.0%}" for i, p in zip(labels[mask].tolist(), row[mask])])

# %% [markdown] after="sample_and_reward"
# **A good and a bad completion.** The base writes 8 completions of each of 16 problems. Here is the
# group with the most different rewards: its best completion and its worst, and all its advantages.

# %% after="sample_and_reward"
sampler = TransformersSampler(policy, task, config)
n = config.group_size
episodes = sample_and_reward(sampler, problems, task, config, "notebook", n)
rewards = torch.tensor([e.reward.total for e in episodes]).view(-1, n)  # (m, n)
for e, advantage in zip(episodes, group_advantages(rewards, config).flatten().tolist()):
    e.advantage = advantage
first = n * rewards.std(dim=1).argmax().item()
group = sorted(episodes[first : first + n], key=lambda e: e.advantage)
print(group[0].problem)
for e in (group[-1], group[0]):
    print(f"\n{e.text.strip()}\n=> reward {e.reward.total:g}: {e.reward.why}")
print("\nadvantages", *[f"{e.advantage:+.2f}" for e in group])

# %% [markdown] after="update"
# **One update on this group.** Completions with a positive advantage should become more likely.
# Those that share tokens pull at them together, so a completion can move against its advantage.

# %% after="update"
engine = make_engine(Scorer(policy, config), torch.device("cpu"), config)
for parameters in engine.optimizer.param_groups:
    parameters["lr"] = config.learning_rate
reference = Scorer(copy.deepcopy(policy), config)
batches = update(engine, reference, group, config, grpo_loss)
for batch in batches:
    with torch.no_grad():
        moved = (engine(batch) - batch["old_log_probs"]).sum(dim=1)  # (B,)
    for e, nats in zip(batch["episodes"], moved.tolist()):
        print(f"advantage {e.advantage:+.2f}   log-prob of the completion {nats:+.2f}")

# %% [markdown] after="interval"
# **The metrics of this update, and how much 16, 128 and 512 problems say about a share of 50%.**

# %% after="interval"
rows = [as_row(e) for e in group]
for name, value in measure_step(rows, batches, engine, 1, config).items():
    print(f"{name:30} {value:.4g}")
for problems_tried in (16, 128, 512):
    low, high = interval(0.5, problems_tried)
    print(f"{problems_tried:4} problems: {low:.1%} to {high:.1%}")

# %% [markdown] after="Parts"
# **A run.** Word problems have short completions, so twelve steps take less than a minute.

# %% after="Parts"
main(Config(task="gsm8k", max_tokens=64, steps=12))
