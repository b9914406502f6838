#!/usr/bin/env bash
# The MATH exercises of the same course with Qwen2.5-Math-1.5B: the base evaluated, then fine-tuned
# on 128, 256, 512, 1,024 and all rows, and each tuned model evaluated. One GPU with 48 GB or more.
# Not run yet: we had no GPU.
#
# SFT: a file of rows {"prompt": ..., "response": ...}, the course's sft.jsonl.
# MATH_TEST: a file of problems to evaluate on, with the columns problem and answer.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${SFT:?set SFT to the file of rows to fine-tune on}"
: "${MATH_TEST:?set MATH_TEST to a file with the columns problem and answer}"
model=Qwen/Qwen2.5-Math-1.5B
sampled="--temperature 0 1 --samples 1"  # greedy, and once at temperature 1
run="math-$(date +%Y%m%d-%H%M%S)"
common=(
  --task math --prompt plain --dtype bfloat16 --max_tokens 2048 --sampler vllm
  --eval_data "$MATH_TEST" --eval_problems 5000
)
tuning=(
  --learning_rate 2e-5 --batch_size 32 --steps 200 --eval_every 20
  --gradient_checkpointing --micro_batch_size 2
)
python evaluate.py $sampled --name "$run-baseline" --model "$model" "${common[@]}"
for examples in 128 256 512 1024 0; do  # 0: all
  name="$run-sft-$examples"
  python nano_sft.py --name "$name" --model "$model" --data "$SFT" --examples "$examples" \
    "${common[@]}" "${tuning[@]}" "$@"
  python evaluate.py $sampled --name "$name-evaluation" --model "out/$name/model" "${common[@]}"
done
