#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on Countdown-Tasks-3to4. One GPU with 24 GB or more. Not run yet: we had no
# GPU.
#
# Settings: table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 1,024
# completions a step, groups of 8, learning rate 1e-6, at most 512 tokens, no KL penalty; the loss
# is nano-aha-moment's. Reported there after 1,000 steps: pass@1 about 35%, and hardly any
# reasoning: the model always writes the same form of equation.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-0.5B --dtype bfloat16
  --data hub --prompt chat  # 490,364 problems, 500 of them held out
  --prompts_per_step 128 --group_size 8
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant
  --steps 1000 --eval_every 50 --save_every 100
  --gradient_checkpointing --vllm_gpu_memory_utilization 0.4
)
python "${SCRIPT:-variants.py}" --task countdown "${options[@]}" "$@"
