"""A micro-batch as one sequence: the numbers of the rows one by one, from fewer tokens."""

import random

import peft
import pytest
import torch
from families import make_family
from helpers import episode
from torch.testing import assert_close

from nano_r1 import collate, get_response_log_probs
from plumbing.models import load_model

rng = random.Random(0)
PROMPTS = [[rng.randrange(256) for _ in range(n)] for n in (1, 9, 30)]
LENGTHS = [[7], [2, 1, 40], [5, 5, 12, 3]]  # completions of each prompt
EPISODES = [
    episode(prompt, [rng.randrange(256) for _ in range(length)])
    for prompt, lengths in zip(PROMPTS, LENGTHS)
    for length in lengths
]


@pytest.fixture(params=["Qwen2", "Qwen3", "Llama"])
def model(request, tmp_path):
    make_family(tmp_path, request.param, tied=True)
    return load_model(str(tmp_path), "float32")


def scored(model, episodes):
    """[log-probs of each episode], the gradient of a weighted sum of them."""
    batch = collate(episodes, "cpu")
    log_probs, _ = get_response_log_probs(model, batch, 1.3)
    weights = torch.arange(batch["labels"].shape[1])
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad((log_probs * weights).sum(), trained)
    rows = [row[mask] for row, mask in zip(log_probs.detach(), batch["response_mask"])]
    return rows, torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize("adapters", [False, True])
def test_a_pack_gives_the_numbers_and_the_gradient_of_the_rows(model, adapters):
    """With --gradient_checkpointing too: test_update.py."""
    if adapters:
        lora = peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear")
        model = peft.get_peft_model(model, lora)
    packed, gradient = scored(model, EPISODES)
    model.config._attn_implementation = "sdpa"
    alone = [scored(model, [e])[0][0] for e in EPISODES]
    assert_close(packed, alone, atol=2e-5, rtol=2e-5)
    assert_close(gradient, scored(model, EPISODES)[1], rtol=0, atol=1e-5 * gradient.abs().max())


def test_what_is_computed_is_each_prompt_once_and_each_completion_without_padding(model):
    computed = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda _, x: computed.append(x[0].shape))
    scored(model, EPISODES)
    # The last token of a completion predicts nothing.
    tokens = sum(map(len, PROMPTS)) + sum(e.length - 1 for e in EPISODES)
    assert [tuple(shape) for shape in computed] == [(1, tokens, 64)]


def test_a_model_that_was_loaded_to_be_packed_is_saved_as_any_other(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    assert "packed" not in (tmp_path / "saved" / "config.json").read_text()
