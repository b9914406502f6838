#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on GSM8K. One GPU with 48 GB or more. Not run yet: we had no GPU.
#
# Settings: table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 16 completions a
# step, groups of 8, learning rate 1e-6, at most 512 tokens, no KL penalty; the loss is
# nano-aha-moment's. Reported there: pass@1 70% after 200 steps, above 80% in the end; 50% for the
# 0.5B model (--model Qwen/Qwen2.5-0.5B).
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data hub --prompt chat  # 7,473 problems; evaluated on GSM8K's own test split
  --prompts_per_step 2 --group_size 8  # on N GPUs a multiple of N prompts
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant
  --steps 2000 --eval_every 100 --save_every 200 --eval_problems 1319  # checkpoints of 19 GB
  --gradient_checkpointing
)
python "${SCRIPT:-variants.py}" --task gsm8k "${options[@]}" "$@"
