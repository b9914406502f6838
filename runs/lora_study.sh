#!/usr/bin/env bash
# Low-rank adapters and the KL penalty: Qwen3-4B-Instruct-2507 on Countdown, after the blog of
# Mystic-Slice/rl-grpo-countdown. One GPU with 48 GB. Not run yet.
#
#   bash runs/lora_study.sh          # the base, then seven runs of 50 steps: one table
#   bash runs/lora_study.sh --steps 5    # further flags go to each run
#   bash runs/lora_study.sh small    # the same grid on the embedded model, three seeds
#
# Reported there, on 100 problems (an interval of about +-7 points), correct answers / format:
#   base                             71% / 52%      initial configuration     about +4 points
#   improved, KL 0                   82% / 82%      KL 1e-4                   81% / 81%
#   KL 1e-2                          85% / 85%      KL 1e-1                   80% / 81%
#   all-linear, KL 0                 85% / 85%      all-linear, KL 1e-2       80% / 80%
#   learning rate 1e-4, KL 1e-4      80% / 80%      <think>                   79% / 79%
# On Qwen3 all-linear is the text's seven modules, so two of its rows repeat two others. Its dropout
# of 0.1 in the adapters is left out.
source "$(dirname "$0")/common.sh"
size=4b
case ${1:-} in small | 4b) size=$1 && more=("${@:2}") ;; esac
study="--task countdown --group_size 8 --cliprange 0.1 --cliprange_high 0.2
  --loss_agg_mode token-mean --scale_rewards none --kl_coef 0 --lora_rank 16
  --lr_scheduler_type constant --warmup_steps 0"
grid=(default kl_coef=1e-4 kl_coef=1e-2 kl_coef=1e-1)
initial=cliprange=0.2,scale_rewards=group
if [ "$size" = small ]; then
  SEEDS=${SEEDS:-0 1 2} sweep lora_study_small variants "$study --prompts_per_step 8
    --max_tokens 128 --learning_rate 1.5e-3 --steps 16 --eval_every 8 --eval_problems 256
    --record_tokens_every 0" --axis "${grid[@]}" learning_rate=1.5e-2,kl_coef=1e-4 \
    $initial,prompts_per_step=4,max_tokens=64
else
  use_deepspeed
  model="--model Qwen/Qwen3-4B-Instruct-2507 --dtype bfloat16 --data hub --eval_problems 500
    --prompt runs/prompts/countdown_reasoning.toml --max_tokens 1024"
  start lora_study_base nano_eval.py --task countdown $model "${more[@]}"
  sweep lora_study variants "$study $model --prompts_per_step 128 --learning_rate 1e-5 --steps 50
    --eval_every 10 --save_every 5 --gradient_checkpointing --micro_batch_size 4" \
    --axis "${grid[@]}" learning_rate=1e-4,kl_coef=1e-4 \
    prompt=runs/prompts/countdown_think.toml $initial,prompts_per_step=64,max_tokens=512
fi
