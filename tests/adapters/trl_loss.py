"""The loss of TRL's GRPOTrainer for check_grpo.py: its own code, without a model."""

import functools
import os
from collections import defaultdict
from types import SimpleNamespace

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from accelerate import Accelerator
from trl import GRPOConfig, GRPOTrainer


@functools.cache
def make_trainer(loss_type, more):
    options = {"beta": 0.04, "use_bias_correction_kl": False, "epsilon_high": 0.28}
    options |= dict(more)
    args = GRPOConfig("out", use_cpu=True, bf16=False, loss_type=loss_type, **options)
    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        vars(args),
        args=args,
        epsilon_low=args.epsilon,
        max_completion_length=20,
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(cpu=True),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
    )
    return trainer


def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, step, loss_type="dapo", **more):
    trainer = make_trainer(loss_type, tuple(more.items()))
    trainer.current_gradient_accumulation_steps = step.micro_batches
    trainer.args.steps_per_generation = step.micro_batches
    found = (log_probs, torch.zeros_like(log_probs), None)
    trainer._get_per_token_logps_and_entropies = lambda *others, **named: found
    nothing = torch.zeros(len(mask), 0)
    return trainer._compute_loss(
        None,
        {
            "prompt_ids": nothing,
            "prompt_mask": nothing,
            "completion_ids": mask,
            "completion_mask": mask.double(),
            "advantages": advantages,
            "old_per_token_logps": old_log_probs,
            "ref_per_token_logps": ref_log_probs,
            "num_items_in_batch": torch.tensor(step.tokens),
        },
    )
