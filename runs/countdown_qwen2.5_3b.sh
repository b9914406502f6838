#!/usr/bin/env bash
# Qwen2.5-3B (base) on Countdown-Tasks-3to4. One GPU with 80 GB. Not run yet.
#
# Settings: the defaults of nano-aha-moment: 64 completions per step, groups of 4, KL coefficient
# 0.001, learning rate 1e-6, at most 1,024 tokens and 1,000 steps. Its authors report pass@1 of
# about 60%. With the reference it is 62 GB and activations: --kl_coef 0 saves 12 GB.
source "$(dirname "$0")/common.sh"
use_deepspeed
options=(
  --model Qwen/Qwen2.5-3B --dtype bfloat16
  --data hub --prompt runs/prompts/countdown_nano_aha.toml  # 490,364 problems, 500 of them held out
  --prompts_per_step 16 --group_size 4
  --max_tokens 1024
  --kl_coef 0.001 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100  # two checkpoints of 37 GB
  --gradient_checkpointing --micro_batch_size 2 --vllm_gpu_memory_utilization 0.2
)
run variants.py --task countdown "${options[@]}"
