#!/usr/bin/env bash
# The MATH exercises of the same course with Qwen2.5-Math-1.5B: greedy, at most 2,048 tokens, the
# course's prompt. One GPU with 48 GB or more. Not run yet.
#
#   bash runs/math_assignment.sh baseline                  # the base, before any fine-tuning
#   SFT=sft.jsonl bash runs/math_assignment.sh tune        # learning rate and batch size
#   SFT=sft.jsonl bash runs/math_assignment.sh sizes       # 128, 256, 512, 1,024 and all rows
#   MODEL=out/NAME/model bash runs/math_assignment.sh test # one of the tuned models
#
# FILES: what baseline and test measure: hub, MATH's 500 test problems, by default; also files with
# the columns problem and answer, as FILES="hub intellect.jsonl". temperature_0.jsonl in out/NAME/
# has all completions with their categories. SFT: rows {"prompt": ..., "response": ...}.
source "$(dirname "$0")/common.sh"
use_deepspeed
exercise=${1:?one of: baseline tune sizes test}
more=("${@:2}")
base=Qwen/Qwen2.5-Math-1.5B
common="--task math --prompt runs/prompts/math_intellect.toml --dtype bfloat16 --max_tokens 2048"
grid() {
  sweep "math_assignment/$exercise" nano_sft "$common --model $base --data ${SFT:?the file of rows}
    --temperature 0 --eval_data hub --eval_problems 500 --lr_scheduler_type constant --steps 200
    --eval_every 20 --gradient_checkpointing --micro_batch_size 2 $1" "${@:2}"
}
measure() {
  for file in ${FILES:-hub}; do
    start "test-${1//[^A-Za-z0-9.]/_}-$(basename "$file")" nano_eval.py $common --model "$1" \
      --eval_data "$file" --eval_problems 10000 --temperature 0 "${more[@]}"
  done
}
case $exercise in
  baseline) measure $base ;;
  tune) grid "" --axis learning_rate=1e-5 learning_rate=2e-5 learning_rate=5e-5 \
    --axis batch_size=16 batch_size=32 batch_size=64 ;;
  sizes) grid "--learning_rate ${RATE:-2e-5} --batch_size ${BATCH:-32}" \
    --axis examples=128 examples=256 examples=512 examples=1024 examples=0 ;;
  test) measure "${MODEL:?a directory}" ;;
  *) echo "unknown exercise: $exercise"; exit 2 ;;
esac
