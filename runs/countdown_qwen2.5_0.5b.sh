#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on Countdown-Tasks-3to4, one GPU with 24 GB or more. Not run by us yet: no GPU was at hand.
# Table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 1,024 episodes a step, 8 completions a question,
# lr 1e-6, responses of up to 512 tokens, KL coefficient 0. Reported there after 1,000 steps: pass@1 about 0.35, and
# hardly any reasoning: the 0.5B model settles on one form of equation.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-0.5B --dtype bfloat16
  --data hub --prompt chat           # 490,364 problems, 500 of them held out
  --questions 128 --completions 8    # 1,024 episodes a step
  --max_tokens 512 --temperature 1.0
  --kl_coef 0 --learning_rate 1e-6 --schedule constant
  --steps 1000 --eval_every 50 --save_every 100
  --micro_batch_tokens 8192          # 5 GB of float32 logits at Qwen's 151,936 vocabulary entries; lower it first
  --vllm_memory 0.4
)
python nano_r1.py --task countdown "${options[@]}" "$@"
