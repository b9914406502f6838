"""nano_sft.py for check_step.py: each row has the advantage 1, and the mean is over all tokens."""

import functools

import ours
import torch

advantages = torch.ones_like
step = functools.partial(ours.step, sft=True)
