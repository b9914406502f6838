#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on Countdown-Tasks-3to4 with low-rank adapters. One GPU with 8 GB or more and
# bfloat16 (Ampere or newer). Not run yet.
#
# Settings: those of countdown_qwen2.5_0.5b.sh with fewer completions per step and a learning rate ten
# times as high, for adapters. No result was reported for it.
source "$(dirname "$0")/common.sh"
options=(
  --model Qwen/Qwen2.5-0.5B --dtype bfloat16 --lora_rank 16
  --data hub --prompt runs/prompts/countdown_nano_aha.toml  # 490,364 problems, 500 of them held out
  --prompts_per_step 32 --group_size 8
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-5 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100
  --gradient_checkpointing --micro_batch_size 4 --vllm_gpu_memory_utilization 0.4
)
run variants.py --task countdown "${options[@]}"
