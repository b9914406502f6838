"""The loop with other architectures than the embedded model's: tied output layers and others."""

import pytest
import torch
from families import CASES, make_family, train_two_steps
from helpers import episode

from nano_r1 import collate, get_response_log_probs
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


def test_gemma_2_caps_its_logits_and_its_attention(tmp_path):
    """Both are part of the model. torch's own attention leaves the second out: it is not used."""
    make_family(tmp_path, "Gemma2", tied=True)
    model = load_model(str(tmp_path), "float32").eval()
    batch = collate([episode([0], list(range(1, 40)))], "cpu")
    with torch.no_grad():
        capped, _ = get_response_log_probs(model, batch, 1.0)
        assert model(batch["input_ids"]).logits.abs().max() < 3
        model.config._attn_implementation = "sdpa"
        assert (get_response_log_probs(model, batch, 1.0)[0] - capped).abs().max() > 1e-2
