"""The record of single tokens: it says what sampler and update did, whatever the settings."""

import json

import numpy as np
import pytest
import torch
from helpers import episode, rows_of, score, train
from transformers import AutoModelForCausalLM, AutoTokenizer

import variants
from nano_r1 import Config
from plumbing.token_record import load_tokens, tokens_every, vocabulary

SHORT = {
    "prompts_per_step": 4,
    "group_size": 4,
    "max_tokens": 40,
    "eval_problems": 9,
    "learning_rate": 1e-3,
}
HARD = {"epochs": 2, "minibatches": 2, "max_num_gen_batches": 3, "kl_coef": 0.0, "group_size": 2}


LONG = {**SHORT, "steps": 2, "warmup_steps": 0, "save_every": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of two steps with a checkpoint after each."""
    return train(tmp_path_factory.mktemp("tokens"), "plain", **LONG)[0]


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """The same with several optimizer steps, dynamic sampling, completions that are not scored."""
    settings = {**LONG, **HARD, "zero_stage": 3}
    return train(tmp_path_factory.mktemp("tokens"), "hard", lesson=variants, **settings)[0]


def scores(path, step, prompts, ids):
    """Log-probs and entropies (F,) of completions under a checkpoint, without the lesson."""
    checkpoint = path / "checkpoints" / f"step_{step:06d}" / "policy"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        found = [score(model, episode(p, c), Config()) for p, c in zip(prompts, ids)]
    log_probs, entropies = zip(*found)
    return torch.cat(log_probs).numpy(), torch.cat(entropies).numpy()


def split(values, lengths):
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])]


def completions(path, step, group_size):
    """(arrays, prompts, token ids) of a step's completions."""
    arrays = load_tokens(path / "tokens" / f"step_{step:06d}.npz")
    prompts = split(arrays["prompt_ids"], arrays["prompt_lengths"])
    prompts = [p for p in prompts for _ in range(group_size)]
    return arrays, prompts, split(arrays["token_ids"], arrays["lengths"])


@pytest.mark.parametrize("name, group_size, count", [("plain", 4, 16), ("hard", 2, 8)])
def test_a_change_is_the_log_prob_after_the_update_minus_before(name, group_size, count, request):
    """Against the checkpoints before and after the second step, computed anew."""
    path = request.getfixturevalue(name)
    arrays, prompts, ids = completions(path, 2, group_size)
    old, entropy = scores(path, 1, prompts, ids)
    new, _ = scores(path, 2, prompts, ids)
    trained = np.repeat(arrays["trained"], arrays["lengths"])  # (F,)
    assert arrays["trained"].sum() == count
    assert (np.isfinite(arrays["change"]) == trained).all()
    assert (np.isfinite(arrays["entropy"]) == trained).all()
    changes = (new - old)[trained]
    assert arrays["log_probs"] == pytest.approx(old, rel=1e-3, abs=1e-3)
    assert arrays["change"][trained] == pytest.approx(changes, rel=2e-3, abs=1e-3)  # float16
    assert np.abs(changes).max() > 0.02
    if name == "plain":  # with several optimizer steps an entropy may be of a later one
        assert np.abs(arrays["entropy"] - entropy).max() < 2e-3


def test_what_was_sampled_and_not_trained_on_is_recorded_without_a_change(hard):
    trained = [load_tokens(file)["trained"] for file in sorted((hard / "tokens").iterdir())]
    rows = [rows_of(file) for file in sorted((hard / "episodes").iterdir())]
    assert [len(t) for t in trained] == [len(r) for r in rows] and max(map(len, trained)) > 8


def test_tokens_are_the_text_and_vocabulary_bytes_are_its_bytes(plain):
    known = json.loads((plain / "vocabulary.json").read_text())
    arrays, _, ids = completions(plain, 1, 4)
    for row, tokens in zip(rows_of(plain / "episodes" / "step_000001.jsonl"), ids):
        raw = "".join(known["tokens"][i] for i in tokens if i not in known["special"])
        assert raw.encode("latin-1").decode() == row["completion"]
    assert arrays["token_ids"].dtype == np.uint16


@pytest.mark.parametrize("text", ["naïve 🙂 ∑", "\u202eright to left", "a\n\tb", "</script>"])
def test_any_text_is_the_bytes_of_its_tokens(text):
    tokenizer = AutoTokenizer.from_pretrained("models/nano-base")
    known = vocabulary(tokenizer)["tokens"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(known[i] for i in ids).encode("latin-1").decode() == text


def test_the_first_eight_held_out_problems_are_kept_at_every_evaluation(plain):
    files = sorted((plain / "held_out").iterdir())
    assert [file.name for file in files] == ["step_000000.jsonl", "step_000002.jsonl"]
    first, last = ([row["problem"] for row in rows_of(file)] for file in files)
    assert first == last and len(first) == 8


def test_large_models_are_recorded_only_if_asked_for(tmp_path):
    for size, every in ((1_000, 4), (500_000, 0)):
        policy = torch.nn.Linear(size, 1000, device="meta")
        assert tokens_every(Config(), policy) == every
        assert tokens_every(Config(record_tokens_every=3), policy) == 3


def test_recording_tokens_changes_nothing_in_training(plain, tmp_path):
    without = train(tmp_path, "without", **{**LONG, "record_tokens_every": 0})[0]
    assert not (without / "tokens").exists() and list((plain / "tokens").iterdir())
    weights = [(path / "model" / "model.safetensors").read_bytes() for path in (plain, without)]
    assert weights[0] == weights[1]


def test_with_vineppo_each_token_has_its_own_advantage_and_other_steps_are_not_recorded(tmp_path):
    vine = {"credit": "vineppo", "vine_samples": 1, "vine_segments": 2}
    settings = {**SHORT, **vine, "steps": 2, "record_tokens_every": 2, "eval_every": 0}
    path = train(tmp_path, "v", lesson=variants, **settings, report=False)[0]
    assert [file.name for file in (path / "tokens").iterdir()] == ["step_000001.npz"]
    assert not (path / "report.html").exists()
    arrays, _, _ = completions(path, 1, 4)
    assert len(arrays["advantages"]) == len(arrays["log_probs"])
    assert np.isfinite(arrays["advantages"]).all()
    assert any(len(set(own)) > 1 for own in split(arrays["advantages"], arrays["lengths"]))
