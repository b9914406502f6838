"""vLLM's own implementation of each architecture against transformers', two steps of the loop.

All in this process, as in a notebook: a run that left its vLLM behind would stop the next one.
"""

import importlib

import pytest
import torch.distributed as dist
from families import FAMILIES, train_two_steps
from vllm import ModelRegistry

from plumbing.processes import shutdown_hooks


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_train_what_vllm_sampled(family, tmp_path):
    *_, name = FAMILIES[family]
    module = importlib.import_module(f"vllm.model_executor.models.{family.lower()}")
    # Or it starts a Python for each to look at the class.
    ModelRegistry.register_model(name, getattr(module, name))
    tied = family not in ("Qwen3", "Llama")
    metrics, *_ = train_two_steps(tmp_path, family, tied, rollout="vllm")
    for row in metrics:  # the second step's tokens are sampled with the first update's weights
        assert row["sampling/logp_difference_max"] < 1e-2
        assert row["sampling/logp_difference_mean"] < 1e-3
        assert row["bad_updates"] == 0 < row["grad_norm"]
    assert not dist.is_initialized() and shutdown_hooks == []
