#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on GSM8K with low-rank adapters, on a T4 as Colab has it. One GPU with 16 GB
# or more. Not run yet: we had no GPU.
#
# A T4 has no bfloat16: weights in float32. Sampling by our own loop, because vLLM's kernels for
# this card are little tested. Slow: a first look at the real thing, not a result. Reported
# elsewhere for this model with adapters on a T4, after supervised fine-tuning: 0.31 before, 0.38
# after 200 steps.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-0.5B --device cuda --dtype float32 --lora_rank 16 --rollout transformers
  --data hub --prompt chat                   # 7,473 problems; evaluated on GSM8K's own test split
  --prompts_per_step 16 --group_size 8       # 128 episodes a step
  --max_tokens 320 --temperature 1.0
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 2e-5 --lr_scheduler_type constant
  --steps 200 --eval_every 50 --save_every 20 --eval_problems 200
  --gradient_checkpointing --micro_batch_tokens 2048
)
python variants.py --task gsm8k "${options[@]}" "$@"
