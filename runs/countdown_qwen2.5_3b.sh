#!/usr/bin/env bash
# Qwen2.5-3B (base) on Countdown-Tasks-3to4, one GPU with 80 GB. Not run by us yet: no GPU was at hand.
# The defaults of the original nano-aha-moment: 64 episodes a step, 4 completions a question, KL coefficient 0.001,
# lr 1e-6, 1,024 tokens, temperature 1, at most 1,000 steps. Reported by its authors: pass@1 about 0.60.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-3B --dtype bfloat16 --gradient_checkpointing
  --data hub --prompt chat
  --questions 16 --completions 4     # 64 episodes a step
  --max_tokens 1024 --temperature 1.0
  --kl_coef 0.001 --learning_rate 1e-6 --schedule constant
  --steps 1000 --eval_every 50 --save_every 100
  --micro_batch_tokens 4096
  --vllm_memory 0.2
)
python nano_r1.py --task countdown "${options[@]}" "$@"
