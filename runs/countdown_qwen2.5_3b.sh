#!/usr/bin/env bash
# Qwen2.5-3B (base) on Countdown-Tasks-3to4. One GPU with 80 GB. Not run yet: we had no GPU.
#
# Settings: the defaults of nano-aha-moment: 64 episodes a step, 4 completions of a prompt, KL
# coefficient 0.001, lr 1e-6, 1,024 tokens, temperature 1, at most 1,000 steps. Reported by its
# authors: pass@1 about 0.60.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-3B --dtype bfloat16
  --data hub --prompt chat                   # 490,364 problems, 500 of them held out
  --prompts_per_step 16 --group_size 4       # 64 episodes a step
  --max_tokens 1024 --temperature 1.0
  --kl_coef 0.001 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant
  --steps 1000 --eval_every 50 --save_every 100
  --keep_checkpoints 1                       # each has 43 GB, two at the peak
  --gradient_checkpointing --micro_batch_tokens 4096  # 8,192 without it: about 98 GiB
  --vllm_gpu_memory_utilization 0.2
)
python variants.py --task countdown "${options[@]}" "$@"
