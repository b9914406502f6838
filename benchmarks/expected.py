"""How long a step should take on a card that nobody here has: counted FLOPs over its datasheet.

    python benchmarks/expected.py

FLOPs of a token are counted (torch's FlopCounterMode) on the real shapes, without memory for them;
peak and bandwidth are the datasheet's. Assumed: 40% of the peak in the update and in the rollout's
products, 60% of the bandwidth for reading the weights once for each token of the longest
completion, our loop's launches 30 ms a token; prompts of 150 tokens, completions of half the limit.
Expected, not measured.
"""

import gpu

import runs

CARDS = {  # TFLOP/s of the dtype that the script has there, GB/s
    "T4, float32": (8.1, 320),
    "L4": (121, 300),
    "RTX 3090": (71, 936),
    "RTX 4090": (165, 1008),
}
RUNS = {  # shape, episodes a step, limit of a completion, steps, bytes a weight, sampled by vLLM
    "gsm8k_qwen2.5_0.5b_t4.sh": ("0.5B", 128, 320, 200, 4, False, ["T4, float32"]),
    "colab.ipynb, its cell for a GPU": ("0.5B", 64, 300, 60, 4, False, ["T4, float32"]),
    "gsm8k_qwen2.5_1.5b_24gb.sh": ("1.5B", 128, 512, 300, 2, True, ["L4", "RTX 3090", "RTX 4090"]),
}


def counted(name):
    """GFLOP of a token: (forward, forward and backward with adapters, checkpointed)."""
    import peft
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = dict(zip(gpu.SIZES, gpu.SHAPES[name]))
    with torch.device("meta"):
        config = Qwen2Config(**sizes, tie_word_embeddings=True)
        model = AutoModelForCausalLM.from_config(config)
        lora = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
        ids = torch.zeros(1, 512, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        model(ids)
    with FlopCounterMode(display=False) as both:
        model(ids).logits.sum().backward()
    forward, both = (c.get_total_flops() / 512 / 1e9 for c in (forward, both))
    return forward, both + forward


def step_seconds(name, episodes, limit, size, vllm, card):
    """(rollout, update) of a step."""
    forward, trained = counted(name)
    peak, bandwidth = CARDS[card]
    tokens = episodes * (150 + limit / 2)
    weights = gpu.flops_per_token(name)["rollout"] / 2 * size  # bytes
    reading = limit * weights / (0.6e9 * bandwidth)
    launches = 0.0 if vllm else 0.03 * limit
    rollout = max(reading, launches) + tokens * forward / (400 * peak)
    return rollout, tokens * trained / (400 * peak)


def main():
    lines = [("run, with adapters", "card", "rollout, s", "update, s", "all steps, hours")]
    for run, (name, episodes, limit, steps, size, vllm, cards) in RUNS.items():
        for card in cards:
            rollout, update = step_seconds(name, episodes, limit, size, vllm, card)
            hours = (rollout + update) * steps / 3600
            lines.append((run, card, f"{rollout:.0f}", f"{update:.0f}", f"{hours:.1f}"))
    print(runs.table(lines))


if __name__ == "__main__":
    main()
