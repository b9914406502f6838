"""For test_nano_r1.py, by torchrun: an update by DeepSpeed. Its arguments: the episodes' file, the
ZeRO stage, "offload" or "no", the file for the weights after it."""

import sys

import torch

import nano_r1 as r1
from tests.test_nano_r1 import config

file, stage, offload, out = sys.argv[1:]
settings = config(zero_stage=int(stage), offload=offload == "offload")
device = r1.find_device(settings)
policy, tokenizer = r1.load_model(settings)
episodes = torch.load(file, weights_only=False)  # the test has just written them
mine = [e for place, e in enumerate(episodes) if place // 4 % r1.WORLD == r1.RANK]
engine = r1.make_engine(r1.Scorer(policy, settings), device, settings)
for group in engine.optimizer.param_groups:
    group["lr"] = 1e-3
reference = r1.Scorer(r1.load_model(settings)[0], settings)
r1.update(engine, reference, mine, settings, r1.grpo_loss)
given = list(r1.full_weights(policy))  # vLLM keeps some while it gets the next
weights = torch.cat([weight.detach().flatten() for _, weight in given])
if r1.RANK == 0:
    torch.save(weights, out)
