#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on GSM8K. One GPU with 24 GB or more. Not run yet.
#
# Settings: those of gsm8k_qwen2.5_1.5b.sh. Reported there: pass@1 about 50% after 1,000 steps.
source "$(dirname "$0")/common.sh"
use_deepspeed
data=${DATA:-$out/gsm8k_all.jsonl}
gsm8k "$data"
options=(
  --model Qwen/Qwen2.5-0.5B --dtype bfloat16
  --data "$data" --prompt runs/prompts/gsm8k_beh.toml
  --prompts_per_step $((GPUS > 2 ? GPUS : 2)) --group_size 8  # at least one prompt per GPU
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100 --eval_problems 1319
  --gradient_checkpointing
)
run variants.py --task gsm8k "${options[@]}"
