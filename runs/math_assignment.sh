#!/usr/bin/env bash
# The MATH exercises of the same course with Qwen2.5-Math-1.5B: zero-shot baseline, supervised fine-tuning on SFT rows
# ({"prompt", "response"}: the course's sft.jsonl) with 128, 256, 512, 1024 and all unique examples, and the tuned models
# evaluated again. One GPU; not run by us yet: no GPU was at hand.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${SFT:?set SFT to the file of rows to fine-tune on}"
common=(--task math --prompt plain --dtype bfloat16 --max_tokens 2048)
python nano_r1.py --eval_only --name math-baseline --model Qwen/Qwen2.5-Math-1.5B --data hub "${common[@]}"
for examples in 128 256 512 1024 0; do  # 0: all
  python nano_sft.py tune --name "math-sft-$examples" --model Qwen/Qwen2.5-Math-1.5B --data "$SFT" \
    --examples "$examples" --eval_data "${MATH_TEST:?a file with columns problem and answer}" \
    --learning_rate 2e-5 --batch_size 32 --steps 200 --eval_every 20 --gradient_checkpointing "${common[@]}" "$@"
done
