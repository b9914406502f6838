"""What the server of tests/forks.py imports and makes once, for all the processes that it forks."""

import functools

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 (its torch.compile imports much)
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import transformers.models.qwen2.modeling_qwen2  # noqa: F401

import countdown_rewards
import nano_r1  # noqa: F401
import nano_sft  # noqa: F401
import variants  # noqa: F401
from plumbing.processes import prepare_libraries

prepare_libraries(None, on_gpu=False)
generate = functools.cache(countdown_rewards.generate_problems)
countdown_rewards.generate_problems = generate
for split, size in countdown_rewards.BUILT_IN.items():
    generate(split, size, 0)
