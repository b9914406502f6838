"""OpenRLHF's PolicyLoss for check_grpo.py: its own code, without a KL.

No test runs it, because OpenRLHF needs a GPU's packages. By hand, with 0.11.2: docs/check_grpo.md.
"""

import sys
from unittest.mock import MagicMock

from transformers import PreTrainedModel  # noqa: F401, it looks for the real flash_attn

# OpenRLHF imports flash_attn, which needs a GPU, but its loss does not call it.
for name in ("bert_padding", "utils", "utils.distributed"):
    sys.modules[f"flash_attn.{name}"] = sys.modules["flash_attn"] = MagicMock()

from openrlhf.models.loss import PolicyLoss


def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, step, **options):
    return PolicyLoss(clip_eps_high=0.28, **options)(
        log_probs,
        old_log_probs,
        advantages[:, None],
        mask.double(),
        batch_num_tokens=step.tokens,
        global_batch_size=step.completions,
    )[0]
