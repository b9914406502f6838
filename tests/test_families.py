"""The loop with other architectures than the embedded model's: tied output layers and others."""

import pytest
import torch
from families import CASES, make_family, train_two_steps

from plumbing.models import load_model


@pytest.mark.parametrize("family, tied", CASES)
def test_two_steps_train_what_was_sampled(family, tied, tmp_path):
    metrics, before, model = train_two_steps(tmp_path, family, tied)
    for row in metrics:  # of the loop with a cache, and of a pass over all tokens
        assert row["sampling/logp_difference_max"] < 1e-3
        assert row["bad_updates"] == 0 < row["grad_norm"]
    after = model.state_dict()
    assert set(after) == set(before)
    assert not any("proj" in n and torch.equal(after[n], before[n]) for n in after)
    output = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    assert torch.equal(output.weight, embedding.weight) == tied


def test_gemma_2_s_attention_is_the_one_that_caps(tmp_path):
    """torch's own leaves it out. vLLM's numbers: tests/with_vllm/test_families.py."""
    make_family(tmp_path, "Gemma2", tied=True)
    assert load_model(str(tmp_path), "float32").config._attn_implementation == "eager"
