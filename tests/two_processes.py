"""For test_variants.py: an update of each case by torchrun's processes, into the file argv[1]."""

import json
import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import nano_r1
import nano_sft
import variants

CASES = {
    "plain": {},
    "token-mean": {"loss_agg_mode": "token-mean", "mask_truncated_completions": True},
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


def make_episodes(count=12):
    """Random episodes, groups of 2 adjacent; every third was cut off."""
    g = torch.Generator().manual_seed(0)
    episodes = []
    for i in range(count):
        ids = torch.randint(1, 50, (7 + 3 * i % 11,), generator=g).tolist()
        episodes.append(
            nano_r1.Episode(
                prompt_ids=ids[:3],
                token_ids=ids[3:],
                log_probs=[-3.9] * len(ids[3:]),
                cut_off=i % 3 == 0,
                advantage=torch.randn(1, generator=g).item(),
            )
        )
    return episodes


def settings(**changes):
    sizes = {"prompts_per_step": 6, "group_size": 2, "micro_batch_size": 5, "max_tokens": 20}
    return variants.Config(**{**sizes, "kl_coef": 0.0, "max_grad_norm": 0.5, **changes})


def train(engine, episodes, config):
    reference = nano_r1.Scorer(tiny_model(1), config) if config.kl_coef else None
    return variants.update(engine, reference, episodes, config, variants.loss)


def updated(config, episodes, train=train):
    """(weights after an update with a learning rate of 0.01, what `train` returns)."""
    policy = tiny_model()
    engine = nano_r1.make_engine(nano_r1.Scorer(policy, config), torch.device("cpu"), config)
    engine.optimizer.param_groups[0]["lr"] = 0.01
    found = train(engine, episodes, config)
    weights = {name: weight.tolist() for name, weight in nano_r1.full_weights(policy)}
    return weights, found


def weights_of_cases():
    """{case: the weights after this process's share of an update}."""
    share = sum(variants.batched(make_episodes(), 2)[nano_r1.RANK :: nano_r1.WORLD], [])
    results = {"nano_sft": updated(settings(), share, nano_sft.train_step)[0]}
    for name, changes in CASES.items():
        results[name] = updated(settings(**changes), share)[0]
    return results


if __name__ == "__main__":
    nano_r1.start_process(settings(device="cpu"))
    nano_r1.CHUNK = 500  # logits: several chunks in each micro-batch
    results = weights_of_cases()
    if nano_r1.RANK == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(results, file)
