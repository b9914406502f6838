#!/usr/bin/env bash
# What a new card is asked first: each row within its seconds; its output in out/gpu_day/NAME.log.
#
#     bash benchmarks/gpu_day.sh                          # again: rows that passed are not repeated
#     MODEL=Qwen/Qwen2.5-0.5B bash benchmarks/gpu_day.sh  # of the hub, or a directory
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python}
model=${MODEL:-Qwen/Qwen2.5-1.5B}
out=$(realpath -m "${OUT:-out/gpu_day}")
mkdir -p "$out"

row() { # NAME SECONDS COMMAND...
    local log=$out/$1.log passed=$out/$1.passed seconds=$2
    [ -e "$passed" ] && return
    rm -rf "${out:?}/${1:?}" # a run that failed
    shift 2
    echo "\$ $*" > "$log"
    if timeout -k 20 "$seconds" "$@" >> "$log" 2>&1; then
        touch "$passed"
    fi
    echo "$log: $([ -e "$passed" ] && echo passed || echo FAILED) $(tail -n 1 "$log")"
}

torchrun="$python -m torch.distributed.run --nproc_per_node 1"
tiny="--task countdown --device cuda --steps 4 --eval_problems 64 --eval_every 0"
large="--task gsm8k --prompt plain --model $model --dtype bfloat16 --learning_rate 1e-6 --steps 4
       --prompts_per_step 16 --max_tokens 512 --eval_problems 64 --eval_every 0 --kl_coef 0"
row card 60 nvidia-smi
row loop 300 $python nano_r1.py $tiny --sampler transformers --name "$out/loop"
row vllm 400 $python nano_r1.py $tiny --sampler vllm --name "$out/vllm"
row deepspeed 400 $torchrun nano_r1.py $tiny --name "$out/deepspeed"
row learns 900 $python nano_r1.py --task countdown --device cuda --name "$out/learns"
row large 900 $python nano_r1.py $large --name "$out/large"
row offload 900 $torchrun nano_r1.py $large --offload --name "$out/offload"
row lora 900 $python variants.py $large --lora_rank 16 --name "$out/lora"
row update 300 $python -m benchmarks.update $large --micro_batch_size 32 --gradient_checkpointing
