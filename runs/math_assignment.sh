#!/usr/bin/env bash
# The MATH exercises of the same course with Qwen2.5-Math-1.5B: the base model evaluated, then
# fine-tuned on 128, 256, 512, 1,024 and all rows, and each tuned model evaluated. One GPU with 48
# GB or more. Not run yet: we had no GPU.
#
# SFT: a file of rows {"prompt": ..., "response": ...}, the course's sft.jsonl.
# MATH_TEST: a file of at most 5,000 problems to evaluate on, with the columns problem and answer.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${SFT:?set SFT to the file of rows to fine-tune on}"
: "${MATH_TEST:?set MATH_TEST to a file with the columns problem and answer}"
model=Qwen/Qwen2.5-Math-1.5B
common=(
  --task math --prompt plain --dtype bfloat16 --max_tokens 2048
  --eval_data "$MATH_TEST" --eval_problems 5000
)
tuning=(
  --learning_rate 2e-5 --batch_size 32 --steps 200 --eval_every 20
  --gradient_checkpointing --micro_batch_tokens 4096
)
python nano_r1.py --eval_only --name math-baseline --model "$model" "${common[@]}"
for examples in 128 256 512 1024 0; do  # 0: all
  name="math-sft-$examples"
  python nano_sft.py --name "$name" --model "$model" --data "$SFT" --examples "$examples" \
    "${common[@]}" "${tuning[@]}" "$@"
  python nano_r1.py --eval_only --name "$name-evaluation" --model "out/$name/model" "${common[@]}"
done
