#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on GSM8K with low-rank adapters. One GPU with 24 GB or more and bfloat16 (L4,
# A10G, RTX 3090 or 4090). Not run yet.
#
# Settings: those of gsm8k_qwen2.5_1.5b.sh with more completions per step and a learning rate ten
# times as high, for adapters. Reported elsewhere for the Instruct model of this size with adapters
# (verl's table): 77.9%.
source "$(dirname "$0")/common.sh"
use_deepspeed
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16 --lora_rank 16
  --data hub --prompt runs/prompts/gsm8k_beh.toml  # 7,473 problems; GSM8K's own test split
  --prompts_per_step 16 --group_size 8
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-5 --lr_scheduler_type constant --warmup_steps 0
  --steps 300 --eval_every 50 --save_every 25 --eval_problems 500
  --gradient_checkpointing --micro_batch_size 4 --vllm_gpu_memory_utilization 0.4
)
run variants.py --task gsm8k "${options[@]}"
