#!/usr/bin/env bash
# OLMo-2-1B (base) on GSM8K: a model whose training data are public, while Qwen2.5 may have met the
# problems (arXiv:2507.10532). One GPU with 48 GB or more. Not run yet.
#
#   bash runs/gsm8k_olmo2_1b.sh                 # one run for each of three prompts, one figure
#
# Model, prompts and settings: Stanford's CS336, assignment 5 of 2026: 200 steps of 256 completions,
# groups of 8, learning rate 1e-5, temperature 1, at most 512 tokens, rewards of 0 and 1. It asks
# for 25% or more. Its third prompt, question_only, is here the question and the tags of the answer.
source "$(dirname "$0")/common.sh"
use_deepspeed
sweep "$(basename "$0" .sh)" variants "--task gsm8k --model ${MODEL:-allenai/OLMo-2-0425-1B}
  --data ${DATA:-hub} --dtype bfloat16 --prompts_per_step 32 --group_size 8 --max_tokens 512
  --binary_reward --kl_coef 0 --learning_rate 1e-5 --lr_scheduler_type constant --warmup_steps 0
  --steps 200 --eval_every 20 --eval_problems 1024 --gradient_checkpointing" \
  --axis prompt=runs/prompts/gsm8k_r1_zero.toml prompt=runs/prompts/gsm8k_r1_zero_three_shot.toml \
  prompt=runs/prompts/gsm8k_question.toml
