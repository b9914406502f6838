# From k3 of nano_r1.py, and by torch's least squares.

import torch

import nano_r1


def member(d, w):
    return (1 - w) * -d + w * nano_r1.k3(d, 0.0)


def best_weight(d):
    k1 = member(d, 0.0)
    added = member(d, 1.0) - k1
    return torch.linalg.lstsq((added - added.mean())[:, None], k1.mean() - k1).solution[0]
