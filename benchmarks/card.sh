#!/usr/bin/env bash
# What a card is asked, in two stretches of a quarter of an hour; pip install trl for its rows.
#
#   bash benchmarks/card.sh 1                # where a step's seconds go, and what changes gain; TRL
#   bash benchmarks/card.sh 2                # what a user runs
#   DEVICE=cpu bash benchmarks/card.sh 1     # each row once, tiny, before a card is spent on it
#
# Again: rows that passed are not repeated, others begin anew; MINUTES=8 makes a stretch shorter. Each
# row has its own limit in seconds. out/card/results.txt has what the rows say in the end, the logs
# beside it everything. SMALL and LARGE: models in the place of random weights of Qwen2.5's shapes.
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=.:$PYTHONPATH
python=${PYTHON:-python}
out=$(realpath -m "${OUT:-out/card}")
end=$((SECONDS + 60 * ${MINUTES:-15}))
torchrun="-m torch.distributed.run --nproc_per_node 1"
mkdir -p "$out"

row() { # NAME SECONDS COMMAND...
  local name=$1 log=$out/$1.log left=$((end - SECONDS)) limit=$2 result=FAILED
  if [ -e "$out/$name.passed" ] || [ $left -lt 20 ]; then return; fi
  rm -rf "${out:?}/${name:?}" # a run that failed
  shift 2
  echo "\$ $*" > "$log"
  if timeout -k 20 $((limit < left ? limit : left)) "$@" >> "$log" 2>&1; then
    touch "$out/$name.passed"
    result=passed
  fi
  # The lines of steps and of times; of a row that failed, the last lines.
  local lines='^ +[0-9]+/|^(From|step) |(sampling|update|seconds)'
  if [ $result = FAILED ]; then lines=.; fi
  echo "$(date +%H:%M:%S) $name $result" | tee -a "$out/results.txt"
  grep -E "$lines" "$log" | tail -n 12 | tee -a "$out/results.txt"
}

program() { # NAME SECONDS PROGRAM FLAGS...
  row "$1" "$2" $python "${@:3}" --name "$out/$1" $few
}

card() { # NAME SECONDS FLAGS...
  row "$1" "$2" $python -m benchmarks.card $common "${@:3}" $few
}

random_weights() { # NAME SHAPE
  row "make-$1" 120 $python -c "
from benchmarks import card
card.make('$out/$1', vocab_size=151936, num_key_value_heads=2, $2)"
}

device=cuda
if [ "$DEVICE" = cpu ]; then
  device=cpu
  torchrun=
  tiny="--device cpu --sampler transformers --prompts_per_step 2 --group_size 2 --micro_batch_size 2
    --max_tokens 8 --model models/nano-base"
  few="$tiny --steps 2 --eval_problems 2"
  export TORCHDYNAMO_DISABLE=1 # a minute on a CPU
else
  row card 20 nvidia-smi
  random_weights small "hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14"
  random_weights large "hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12"
fi
small="--model ${SMALL:-$out/small}"
large="--model ${LARGE:-$out/large}"
base="--task countdown --device $device --eval_problems 64 --eval_every 0 --steps 4"
common="--task countdown --prompt plain --dtype bfloat16 --kl_coef 0 --gradient_checkpointing
  --micro_batch_size 32 --vllm_gpu_memory_utilization 0.4 --group_size 8 --max_tokens 512"
user="--data None --eval_problems 2 --steps 2" # of runs/: generated problems, two steps

case $1 in
  1)
    # 1,024 completions where sampling counts, 128 for an update alone, 256 beside TRL.
    card clocks 60 $small --sampler transformers --prompts_per_step 128 --max_tokens 64 --arms clocks
    card update 150 $small --part update --prompts_per_step 16 --rounds 2 --arms none chunk layers
    card vllm 140 $small --sampler vllm --prompts_per_step 128 --arms none
    card graphs 120 $small --sampler vllm --prompts_per_step 128 --arms graphs
    card trl 120 $small --prompts_per_step 32 --steps 4 --trl default
    card trl_lean 120 $small --prompts_per_step 32 --steps 4 --trl lean
    card ours 120 $small --prompts_per_step 32 --sampler vllm
    card loop 90 $small --prompts_per_step 32 --sampler transformers
    card large 120 $large --part update --prompts_per_step 16 --rounds 2 --arms none chunk+layers ;;
  2)
    program learns 200 nano_r1.py --task countdown --device $device
    if [ ! "$few" ]; then row smollm2 800 bash runs/countdown_smollm2.sh; fi
    # A card of 24 GB: torch may take this share of the card, and vLLM 0.4 of it.
    total=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits || echo 24000)
    share=$(awk "BEGIN { print 24000 / $total }")
    OUT=$out PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:$share row 24gb 300 \
      bash runs/train.sh gsm8k_qwen2.5_1.5b_24gb ${tiny:-$large} $user \
      --vllm_gpu_memory_utilization "$(awk "BEGIN { print 0.4 * $share }")"
    OUT=$out row qwen 240 bash runs/train.sh countdown_qwen2.5_0.5b ${tiny:-$small} $user
    program vllm_base 180 nano_r1.py $base --sampler vllm
    program deepspeed 120 $torchrun nano_r1.py $base
    program offload 240 $torchrun nano_r1.py $common $large --prompts_per_step 16 --steps 2 \
      --eval_problems 8 --offload ;;
  *) echo "bash benchmarks/card.sh 1, or 2" && exit 2 ;;
esac
