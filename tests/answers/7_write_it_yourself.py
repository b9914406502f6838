# With the advantages, the engine and the update of nano_r1.py.

import torch

import nano_r1


def grpo_step(scorer, optimizer, problems, label):
    episodes = write_completions(scorer, problems, label)  # noqa: F821
    rewards = torch.tensor([e.reward.total for e in episodes]).view(len(problems), -1)
    advantages = nano_r1.group_advantages(rewards, scorer.config)
    for e, advantage in zip(episodes, advantages.flatten().tolist()):
        e.advantage = advantage
    engine = nano_r1.TorchEngine(scorer, torch.device("cpu"), scorer.config, optimizer)
    nano_r1.update(engine, None, episodes, scorer.config, nano_r1.grpo_loss)
    return episodes
