#!/usr/bin/env bash
# The GRPO exercise of the course "Building LLM Reasoners" (after Stanford CS336):
# Qwen2.5-Math-1.5B-Instruct on Countdown. One GPU with 48 GB or more. Not run yet: we had no GPU.
#
# The prompt and the settings are the assignment's: steps or one equation, sampling ends at
# </answer>, 16 completions a step, groups of 8, temperature 0.7, learning rate 1e-5, REINFORCE with
# the group's baseline, no KL penalty. Its own implementation reports about 37%.
# DATA: a training file with the columns nums and target; without it the hub's problems.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(
  --model Qwen/Qwen2.5-Math-1.5B-Instruct --dtype bfloat16
  --data "${DATA:-hub}" --prompt steps
  --prompts_per_step 2 --group_size 8  # on N GPUs a multiple of N prompts
  --max_tokens 1024 --temperature 0.7
  --loss_type reinforce --loss_agg_mode seq-mean-token-mean
  --kl_coef 0 --advantage_eps 1e-6
  --learning_rate 1e-5 --lr_scheduler_type constant
  --steps 200 --eval_every 10 --eval_problems 500
  --gradient_checkpointing --micro_batch_size 4
)
python "${SCRIPT:-variants.py}" --task countdown "${options[@]}" "$@"
