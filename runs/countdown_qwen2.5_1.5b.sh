#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on Countdown-Tasks-3to4, one GPU with 48 GB or more. Not run by us yet: no GPU was at hand.
# Table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang), as for the 0.5B model. Reported there, on a
# 4090 with 48 GB: pass@1 0.35 after 200 steps, near 0.4 at step 700, 0.35 again at step 1,000.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data hub --prompt chat
  --questions 128 --completions 8
  --max_tokens 512 --temperature 1.0
  --kl_coef 0 --learning_rate 1e-6 --schedule constant
  --steps 1000 --eval_every 50 --save_every 100
  --micro_batch_tokens 8192
  --vllm_memory 0.3
)
python nano_r1.py --task countdown "${options[@]}" "$@"
