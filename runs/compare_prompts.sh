#!/usr/bin/env bash
# Does the prompt decide? Qwen2.5-1.5B (base) on Countdown with four prompts; the other settings are
# those of countdown_qwen2.5_1.5b.sh. One GPU with 48 GB or more. Not run yet.
#
# "Deep Dive into RLVR with nano-aha-moment" names the prompt as a possible reason for its low
# pass@1, and a report that Qwen does better without a prompt. The last prompt is the question and
# the tags of the answer, which the reward needs: no chat template, no thinking, no example.
source "$(dirname "$0")/common.sh"
use_deepspeed
sweep compare_prompts variants "--task countdown --model Qwen/Qwen2.5-1.5B --dtype bfloat16
  --data hub --prompts_per_step 128 --group_size 8 --max_tokens 512 --kl_coef 0
  --loss_agg_mode token-mean --scale_rewards group_biased
  --learning_rate 1e-6 --lr_scheduler_type constant --warmup_steps 0
  --steps 200 --eval_every 20 --save_every 20 --gradient_checkpointing" --axis \
  prompt=runs/prompts/countdown_nano_aha.toml prompt=chat prompt=plain \
  prompt=runs/prompts/countdown_question.toml
