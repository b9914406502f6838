# What the scripts in runs/ share. A run has a fixed name in out/, or in $OUT. The same command
# again continues a run that was stopped, and does not repeat one that is complete.
set -eo pipefail
more=("$@")  # further flags, which go to the program
for name in DATA DEV SFT MODEL FILES; do  # files in the caller's directory
  words=()
  for word in ${!name}; do
    if [[ $word != /* && -e $word ]]; then word=$PWD/$word; fi
    words+=("$word")
  done
  declare "$name=${words[*]}"
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
out=${OUT:-$PWD/out}
mkdir -p "$out"
export LAUNCHER=  # what starts a program; benchmarks/runs.py reads it, too

use_deepspeed() {  # start the programs with torchrun, on one GPU or on $GPUS
  if "$python" -c "import importlib.util as i; exit(i.find_spec('deepspeed') is None)"; then
    LAUNCHER="-m torch.distributed.run --standalone --nproc_per_node ${GPUS:-1}"
    LAUNCHER+=" --local-ranks-filter 0"
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600 # seconds after Ctrl-C: a step may take longer than 30
  else
    echo "DeepSpeed is not installed (pip install deepspeed). torch trains on one GPU instead."
  fi
}

start() {  # start NAME PROGRAM FLAGS...
  local path="$out/$1" how=--name
  if [ -e "$path/model/tokenizer_config.json" ] || [ -e "$path/evaluation.json" ]; then
    echo "$path is complete"
    return
  fi
  if [ -e "$path/config.json" ]; then how=--resume; fi
  "$python" $LAUNCHER "${@:2}" "$how" "$path"
}

run() {  # run NAME PROGRAM FLAGS...: one run. SCRIPT, its text and further flags add to its name
  local added="${more[*]}"
  if [ "$SCRIPT" ]; then added="-$SCRIPT-$(cksum < "$SCRIPT" | cut -d " " -f 1)$added"; fi
  start "$1${added//[^A-Za-z0-9.]/_}" "${SCRIPT:-$2}" "${@:3}" "${more[@]}"
}

sweep() {  # sweep NAME PROGRAM FLAGS --axis ...: a grid of runs, with its tables
  if [ "$SCRIPT" ]; then
    echo "$1 is a grid of $2. For your own program: python -m benchmarks.sweep --script" && exit 2
  fi
  "$python" -m benchmarks.sweep --script "$2" --flags "$3 ${more[*]}" --seeds ${SEEDS:-0} \
    --out "$out/$1" "${@:4}"
}

join_gsm8k() {  # all 8,792 problems as one file, if DATA names none
  local file=$out/gsm8k_all.jsonl
  if [ ! "$DATA" ] && [ ! -e "$file" ]; then
    "$python" -c "
import os, sys, datasets
splits = datasets.load_dataset('openai/gsm8k', 'main')
datasets.concatenate_datasets(list(splits.values())).to_json(sys.argv[1] + '.part')
os.replace(sys.argv[1] + '.part', sys.argv[1])  # whole or not there" "$file"
  fi
}
