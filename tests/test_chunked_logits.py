"""Scores in chunks of the logits: those of all logits at once, with the same gradient."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import transformers
from helpers import tiny_model
from torch.testing import assert_close

import nano_r1 as r1
from plumbing import chunked_logits
from plumbing.settings import UserError
from variants import score_with_entropy_gradient

TOKENS = torch.randint(0, 50, (3, 13), generator=torch.Generator().manual_seed(1))
SOME = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) < 0.5
MASKS = {"all": torch.ones_like(SOME), "some": SOME, "none": torch.zeros_like(SOME)}


def scored(model, mask, *options, ids=TOKENS):
    """At temperature 0.7: log-probs, entropies and the gradient of a weighted sum of them."""
    batch = {"input_ids": ids[:, :-1], "labels": TOKENS[:, 1:], "response_mask": mask}
    log_probs, entropy = r1.get_response_log_probs(model, batch, 0.7, *options)
    loss = ((log_probs * torch.arange(12) + entropy) * mask).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return log_probs, entropy, torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", [r1.score_tokens, score_with_entropy_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_in_chunks_are_those_of_the_softmax_at_the_temperature(
    mask, score, dtype, monkeypatch
):
    """In chunks of 1 and 5 tokens, or in one: values in float64, gradients of all the logits."""
    model = tiny_model().to(dtype)
    mask = MASKS[mask]
    p = (model(TOKENS[:, :-1]).logits.double() / 0.7).softmax(-1)
    chosen = p.gather(-1, TOKENS[:, 1:, None])[..., 0].log()
    exact = [chosen * mask, -(p * p.log()).sum(-1) * mask]
    near = 1e-5 if dtype == torch.float32 else 0.02
    with mock.patch.object(chunked_logits, "SCALED", ["vocab_size"]):  # as with Gemma 2
        plain = scored(model, mask, score)[2]
    for chunk in (1, 50 * 5, 10**9):  # of a vocabulary of 50
        monkeypatch.setitem(chunked_logits.CHUNK, "cpu", chunk)
        *found, gradient = scored(model, mask, score)
        assert [values.dtype for values in found] == [torch.float32] * 2
        assert_close([values.double() for values in found], exact, atol=near, rtol=near)
        atol = max(1e-6, near * plain.abs().max().item())
        assert_close(gradient, plain, rtol=0, atol=atol)


def test_a_model_that_caps_its_logits_is_scored_from_what_it_returns():
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    config = transformers.Gemma2Config(**sizes, **heads, final_logit_softcapping=3.0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    expected = (model(TOKENS[:, :-1]).logits / 0.7).log_softmax(-1).gather(-1, TOKENS[:, 1:, None])
    assert_close(scored(model, SOME)[0], expected[..., 0] * SOME)


def test_a_model_that_changes_its_logits_in_another_way_is_refused():
    model = tiny_model()
    forward = model.forward
    model.forward = lambda **given: SimpleNamespace(logits=2 * forward(**given).logits)
    with pytest.raises(UserError):
        scored(model, SOME)


def test_the_output_layer_is_itself_again_also_after_an_error():
    model = tiny_model()
    before = model(TOKENS).logits
    scored(model, SOME)
    with pytest.raises(IndexError):
        scored(model, SOME, ids=TOKENS + 10**6)
    assert torch.equal(model(TOKENS).logits, before)


def test_the_output_layer_never_makes_more_than_a_chunk_of_logits(monkeypatch):
    """Forward and backward: 5 of 36 rows."""
    monkeypatch.setitem(chunked_logits.CHUNK, "cpu", 50 * 5)
    linear = torch.nn.functional.linear
    with mock.patch("torch.nn.functional.linear", wraps=linear) as layers:
        scored(tiny_model(), MASKS["all"])
    calls = [call.args for call in layers.mock_calls]
    rows = [x.shape[:-1].numel() for x, weight, *_ in calls if len(weight) == 50]
    assert max(rows) == 5 and sum(rows) == 2 * 36
