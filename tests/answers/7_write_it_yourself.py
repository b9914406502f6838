# With the advantages and the loss of nano_r1.py.

import torch

import nano_r1


def grpo_step(scorer, optimizer, problems, label):
    episodes = write_completions(scorer, problems, label)  # noqa: F821
    rewards = torch.tensor([e.reward for e in episodes]).view(len(problems), -1)
    advantages = nano_r1.group_advantages(rewards, scorer.config)
    for e, advantage in zip(episodes, advantages.flatten().tolist()):
        e.advantage = advantage
    batch = nano_r1.collate(episodes, "cpu")
    log_probs = scorer(batch)
    batch["old_log_probs"] = log_probs.detach()
    batch["completions"] = len(episodes)
    nano_r1.grpo_loss(log_probs, batch, scorer.config).sum().backward()
    torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return episodes
