#!/usr/bin/env bash
# GRPO on Countdown and GSM8K: a line of the table below is a run.
#
#   bash runs/train.sh gsm8k_qwen2.5_1.5b_24gb --steps 5     # further flags go to the program
#   DATA=hub bash runs/train.sh gsm8k_qwen2.5_1.5b           # GSM8K's own splits
#
# Text 1 is that of docs/seeds.md, and has the settings of its table 1; loss and prompt of Countdown
# are nano-aha-moment's. For GSM8K, both splits are joined and 500 problems held out, as there.
source "$(dirname "$0")/common.sh"
name=${1:?a run of the table in runs/train.sh, for example gsm8k_qwen2.5_1.5b}
more=("${@:2}")
least=$((GPUS > 2 ? GPUS : 2))  # prompts per step: at least one per GPU
pretrained="--dtype bfloat16 --group_size 8 --max_tokens 512 --kl_coef 0
  --lr_scheduler_type constant --warmup_steps 0 --gradient_checkpointing"
text1="$pretrained --loss_agg_mode token-mean --scale_rewards group_biased --learning_rate 1e-6
  --steps 1000 --eval_every 50 --save_every 100"
# Of 490,364 problems, 500 are held out.
countdown="--task countdown --data ${DATA:-hub} $text1 --prompt runs/prompts/countdown_nano_aha.toml
  --prompts_per_step 128"
gsm8k="--task gsm8k --data ${DATA:-hub} $text1 --prompt runs/prompts/gsm8k_beh.toml"
joined="$gsm8k --data ${DATA:-$out/gsm8k_all.jsonl} --prompts_per_step $least --eval_problems 1319"

card() { # card GB: what the run needs; DeepSpeed for cards of 24 GB or more
  if [ "$1" -ge 24 ]; then use_deepspeed; fi
}

train() { # train GB FLAGS...
  card "$1"
  run "$name" variants.py "${@:2}"
}

# Stanford's CS336, assignment 5 of 2026: 200 steps of 256 completions, learning rate 1e-5, rewards
# of 0 and 1, and one run for each of three prompts, in one table. It asks for 25% or more. Its
# prompt question_only is here the question and the tags of the answer.
three_prompts() {
  card "$1"
  sweep "$name" variants "--task gsm8k --data ${DATA:-hub} $pretrained --prompts_per_step 32
    --binary_reward --learning_rate 1e-5 --steps 200 --eval_every 20 --eval_problems 1024 ${*:2}" \
    --axis prompt=runs/prompts/gsm8k_r1_zero.toml prompt=runs/prompts/gsm8k_r1_zero_three_shot.toml \
    prompt=runs/prompts/gsm8k_question.toml
}

# Each number is the card's memory in GB. What the texts report: docs/seeds.md. No pretrained model
# has been trained; random weights of the first one have (docs/gpu.md).
case $name in
  # The embedded base with the default settings: two CPU cores.
  countdown_nano) run "$name" nano_r1.py --task countdown ;;
  gsm8k_nano) run "$name" nano_r1.py --task gsm8k ;;

  countdown_qwen2.5_0.5b)
    train 24 $countdown --model Qwen/Qwen2.5-0.5B --micro_batch_size 32 \
      --vllm_gpu_memory_utilization 0.4 ;;
  countdown_qwen2.5_1.5b) train 48 $countdown --model Qwen/Qwen2.5-1.5B ;;
  # The defaults of nano-aha-moment.
  countdown_qwen2.5_3b)
    train 80 $countdown --model Qwen/Qwen2.5-3B --prompts_per_step 16 --group_size 4 \
      --max_tokens 1024 --kl_coef 0.001 --micro_batch_size 2 --vllm_gpu_memory_utilization 0.2 \
      --offload ;;
  # Adapters, fewer completions, ten times the learning rate. bfloat16: Ampere or newer.
  countdown_qwen2.5_0.5b_8gb)
    train 8 $countdown --model Qwen/Qwen2.5-0.5B --lora_rank 16 --prompts_per_step 32 \
      --learning_rate 1e-5 --micro_batch_size 4 --vllm_gpu_memory_utilization 0.4 ;;
  # Text 1 names the prompt as a possible reason for its low pass@1, and a report that Qwen does
  # better without one. The last prompt is the question and the tags, which the reward needs.
  compare_prompts)
    card 48
    sweep "$name" variants "$countdown --model Qwen/Qwen2.5-1.5B --steps 200 --eval_every 20
      --save_every 20" --axis prompt=runs/prompts/countdown_nano_aha.toml prompt=chat prompt=plain \
      prompt=runs/prompts/countdown_question.toml ;;

  gsm8k_qwen2.5_0.5b) join_gsm8k; train 24 $joined --model Qwen/Qwen2.5-0.5B ;;
  gsm8k_qwen2.5_1.5b) join_gsm8k; train 48 $joined --model Qwen/Qwen2.5-1.5B ;;
  # Adapters, GSM8K's own test split, more completions. verl reports 77.9% for the Instruct model.
  gsm8k_qwen2.5_1.5b_24gb)
    train 24 $gsm8k --model Qwen/Qwen2.5-1.5B --lora_rank 16 --prompts_per_step 16 \
      --learning_rate 1e-5 --steps 300 --save_every 25 --eval_problems 500 --micro_batch_size 4 \
      --vllm_gpu_memory_utilization 0.4 ;;
  # Colab's T4 has no bfloat16, and vLLM hardly a kernel for it: a first look, not a result.
  gsm8k_qwen2.5_0.5b_t4)
    train 16 $gsm8k --model Qwen/Qwen2.5-0.5B --lora_rank 16 --device cuda --dtype float32 \
      --sampler transformers --prompts_per_step 16 --max_tokens 320 --learning_rate 2e-5 \
      --steps 200 --save_every 20 --eval_problems 200 --micro_batch_size 4 ;;
  # Newer models. OLMo's training data are public, while Qwen2.5 may have met the problems
  # (arXiv:2507.10532).
  gsm8k_olmo2_1b) three_prompts 48 --model allenai/OLMo-2-0425-1B ;;
  gsm8k_qwen3_0.6b) three_prompts 24 --model Qwen/Qwen3-0.6B-Base ;;
  *) echo "$name: no such run; the table in runs/train.sh has all" && exit 2 ;;
esac
