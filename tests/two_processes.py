"""What test_golden.py starts with torchrun, and a tiny model: results in the folder argv[1]."""

import contextlib
import io
import runpy
import signal
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import nano_r1
import nano_sft
import variants

CASES = {
    "token-mean": {"loss_agg_mode": "token-mean"},
    "gspo": {"loss_type": "gspo", "cliprange": 0.2, "minibatches": 3, "epochs": 2},
    "ZeRO 3": {"zero_stage": 3, "kl_coef": 0.5},
}


def tiny_model(seed=0, vocabulary=50):
    """Random weights, the same at each call; 13,000 with this vocabulary."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def make_episodes():
    """Random episodes, the same at each call; groups of 2 adjacent."""
    torch.manual_seed(0)
    episodes = []
    for i in range(12):
        ids = torch.randint(1, 50, (7 + 3 * i % 11,)).tolist()
        episodes.append(
            nano_r1.Episode(
                prompt_ids=ids[:3],
                token_ids=ids[3:],
                log_probs=[-3.9] * len(ids[3:]),
                advantage=torch.randn(1).item(),
            )
        )
    return episodes


SETTINGS = variants.Config(
    prompts_per_step=6,
    group_size=2,
    max_tokens=20,
    micro_batch_size=5,
    kl_coef=0.0,
    max_grad_norm=0.5,
)


def settings(**changes):
    return replace(SETTINGS, **changes)


def train(engine, episodes, config):
    reference = nano_r1.Scorer(tiny_model(1), config) if config.kl_coef else None
    return variants.update(engine, reference, episodes, config, variants.loss)


def updated(config, episodes, train=train):
    """(weights after an update with a learning rate of 0.01, what `train` returns)."""
    policy = tiny_model()
    engine = nano_r1.make_engine(nano_r1.Scorer(policy, config), torch.device("cpu"), config)
    engine.optimizer.param_groups[0]["lr"] = 0.01
    found = train(engine, episodes, config)
    return weights_of(policy), found


def weights_of(model):
    return {name: weight.tolist() for name, weight in nano_r1.full_weights(model)}


def weights_of_cases():
    """{case: the weights after this process's share of an update}."""
    share = sum(variants.batched(make_episodes(), 2)[nano_r1.RANK :: nano_r1.WORLD], [])
    results = {"nano_sft": updated(settings(), share, nano_sft.train_step)[0]}
    for name, changes in CASES.items():
        results[name] = updated(settings(**changes), share)[0]
    return results


if __name__ == "__main__":
    from test_golden import golden_run, rollout

    def stopped_rollout(*args):
        if args[-1] == 2 and nano_r1.RANK == 1:
            signal.raise_signal(signal.SIGTERM)  # to one process; both stop after this step
        return rollout(*args)

    folder = sys.argv[1]
    path = f"{folder}/run"
    with pytest.raises(KeyboardInterrupt):
        golden_run(path, stopped_rollout, zero_stage=1, offload=True)
    golden_run(path, stopped_rollout, resume=path, zero_stage=1, offload=True)
    with mock.patch.object(nano_r1, "CHUNK", 500):  # logits: several chunks in each micro-batch
        weights = weights_of_cases()
    sys.argv = ["check_step.py", "tests/adapters/ours.py"]
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        runpy.run_path("check/check_step.py", run_name="__main__")
    nano_r1.write_rows(f"{folder}/results", [weights, said.getvalue()])
