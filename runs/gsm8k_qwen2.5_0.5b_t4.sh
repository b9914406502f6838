#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on GSM8K with low-rank adapters, on a T4 as Colab has it (16 GB). Not run yet.
#
# A T4 has no bfloat16, and vLLM has hardly a kernel for it: float32 and nano_r1's own loop. Slow: a
# first look, not a result. Reported elsewhere for this model with adapters on a T4, after
# supervised fine-tuning: 31% before, 38% after 200 steps.
source "$(dirname "$0")/common.sh"
options=(
  --model Qwen/Qwen2.5-0.5B --device cuda --dtype float32 --lora_rank 16 --sampler transformers
  --data hub --prompt runs/prompts/gsm8k_beh.toml  # 7,473 problems; GSM8K's own test split
  --prompts_per_step 16 --group_size 8
  --max_tokens 320
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 2e-5 --lr_scheduler_type constant --warmup_steps 0
  --steps 200 --eval_every 50 --save_every 20 --eval_problems 200
  --gradient_checkpointing --micro_batch_size 4
)
run variants.py --task gsm8k "${options[@]}"
