#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on Countdown-Tasks-3to4. One GPU with 48 GB or more. Not run yet.
#
# Settings: table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang), as for the 0.5B
# model. Reported there, on a 4090 with 48 GB: pass@1 35% after 200 steps, near 40% at step 700, 35%
# again at step 1,000.
source "$(dirname "$0")/common.sh"
use_deepspeed
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data hub --prompt runs/prompts/countdown_nano_aha.toml  # 490,364 problems, 500 of them held out
  --prompts_per_step 128 --group_size 8
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100  # two checkpoints of 19 GB
  --gradient_checkpointing --vllm_gpu_memory_utilization 0.3
)
run variants.py --task countdown "${options[@]}"
