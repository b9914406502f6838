"""What a reader of the lessons may skip: settings, processes, checkpoints, the record of a run.

Nothing of the objective and of the loop is in here, and nothing imports a script of the top level.

    settings, start, processes, timing          settings without an equation, refusals, seeds
    torch_engine, systems                       AdamW without DeepSpeed; what systems differ in
    models, checkpoints, sync_check             loading, LoRA, ZeRO 3; resuming; proof of the sync
    sampler, decoding                           the CPU's sampling loop
    batching, packing, chunked_logits, memory   micro-batches, each one sequence; the memory plan
    tasks, forms, data, problems                what task modules share; the problems of a run
    arithmetic, written_steps, stated_number    what the verifiers read
    math_reading, math_expressions, math_equality, math_workers    whether two formulas are equal
    evaluation, record, token_record, files     statistics, the run directory, each token's numbers
    console, waiting, curves, health, report/, notebook    what a run says and shows
"""

import os
import warnings

# Read by the libraries when they are imported. Silence start-up messages; keep vLLM in this
# process, whatever was exported, so that weights can be handed over.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# float32 means float32 in vLLM's Triton kernels too: on an Ampere card or newer they would round to
# TF32's 10 bits.
os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
# Threads that wait for each other go to sleep ten times as soon as usual: beside a busy program one
# that waits awake holds a core that the other may need. No sooner: on a busy virtual machine one
# that sleeps is slow to wake up. (GNU's OpenMP, torch's on Linux.)
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
# A notebook without widgets: no bar is drawn there.
warnings.filterwarnings("ignore", message="IProgress not found")
