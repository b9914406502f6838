#!/usr/bin/env bash
# Qwen2.5-1.5B (base) on GSM8K, one GPU with 48 GB or more. Not run by us yet: no GPU was at hand.
# Table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 16 episodes a step, 8 completions a question,
# lr 1e-6, responses of up to 512 tokens, KL coefficient 0. Reported there: pass@1 0.7 after 200 steps, above 0.8 in the
# end; the 0.5B model (--model Qwen/Qwen2.5-0.5B) reaches 0.5.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data hub --prompt chat         # 7,473 problems; evaluated on GSM8K's own test split
  --questions 2 --completions 8    # 16 episodes a step; gradients of so few are noisy, hence the many steps
  --max_tokens 512 --temperature 1.0
  --kl_coef 0 --learning_rate 1e-6 --schedule constant
  --steps 2000 --eval_every 100 --save_every 200
  --eval_problems 1319
)
python nano_r1.py --task gsm8k "${options[@]}" "$@"
