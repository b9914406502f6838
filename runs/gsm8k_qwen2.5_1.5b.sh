#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on GSM8K. One GPU with 48 GB or more. Not run yet.
#
# Settings: table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 16 completions a
# step, groups of 8, learning rate 1e-6 from the first step, at most 512 tokens, no KL penalty,
# 1,000 steps; the loss is nano-aha-moment's. Reported there: pass@1 70% after 200 steps, above 80%
# in the end. As there, both splits are joined and 500 problems held out. DATA=hub keeps the splits.
source "$(dirname "$0")/common.sh"
use_deepspeed
data=${DATA:-$out/gsm8k_all.jsonl}
gsm8k "$data"
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data "$data" --prompt runs/prompts/gsm8k_beh.toml
  --prompts_per_step $((GPUS > 2 ? GPUS : 2)) --group_size 8  # at least one prompt per GPU
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100 --eval_problems 1319  # checkpoints of 19 GB
  --gradient_checkpointing
)
run variants.py --task gsm8k "${options[@]}"
