#!/usr/bin/env bash
# Qwen2.5-0.5B (base) on Countdown-Tasks-3to4. One GPU with 24 GB or more. Run only with random
# weights: a step takes 35 s on an H200 (docs/gpu.md).
#
# Settings: table 1 of "Deep Dive into RLVR with nano-aha-moment" (BEH Chuen Yang): 1,024
# completions per step, groups of 8, learning rate 1e-6 from the first step, at most 512 tokens, no KL
# penalty; loss and prompt are nano-aha-moment's. Reported there after 1,000 steps: pass@1 about
# 35%, and hardly any reasoning: the model always writes the same form of equation.
source "$(dirname "$0")/common.sh"
use_deepspeed
options=(
  --model Qwen/Qwen2.5-0.5B --dtype bfloat16
  --data hub --prompt runs/prompts/countdown_nano_aha.toml  # 490,364 problems, 500 of them held out
  --prompts_per_step 128 --group_size 8
  --max_tokens 512
  --kl_coef 0 --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 1000 --eval_every 50 --save_every 100
  --gradient_checkpointing --micro_batch_size 32 --vllm_gpu_memory_utilization 0.4
)
run variants.py --task countdown "${options[@]}"
