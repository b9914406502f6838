"""Another reward, or another mask of a tool's tokens: a script for benchmarks.sweep.

    constant="--warmup_steps 3 --lr_scheduler_type constant"
    python -m benchmarks.sweep --script benchmarks.labs --flags "$constant --task coins \\
        --max_tokens 40 --group_size 16 --steps 60 --eval_problems 384 --learning_rate 1.5e-4 \\
        --binary_reward --scale_rewards mean" \\
        --axis default scale_rewards=group reward=format reward=none,kl_estimator=k1,kl_coef=1
    python -m benchmarks.sweep --script benchmarks.labs --flags "$constant --task checker \\
        --max_tokens 128 --steps 12 --eval_problems 256" \\
        --axis default mask=none mask=length reward=format reward=random task=countdown

These are the runs of docs/results.md, "Coins" and "A tool that checks". Without the tool:
python nano_eval.py --task countdown --model RUN/model --temperature 1 --samples 1
"""

from dataclasses import dataclass
from typing import Literal

import nano_r1
import variants
from benchmarks import controls
from tasks import tool_use


@dataclass(kw_only=True)
class Config(variants.Config):
    """variants.py with another reward, or another mask of a tool's tokens."""

    reward: Literal["task", "format", "random", "none"] = "task"
    # model: the loss has the model's tokens; none: all; length: |o_i| counts the tool's tokens, too
    mask: Literal["model", "none", "length"] = "model"


def unmasked(*arguments):
    """`tool_use.rollout`, but all tokens count as the model's."""
    episodes = tool_use.rollout(*arguments)
    for e in episodes:
        e.mask = [True] * len(e.mask)
    return episodes


def divided_by_all_tokens(log_probs, batch, config):
    """`nano_r1.grpo_loss`, but |o_i| counts the tool's tokens, too."""
    losses = nano_r1.grpo_loss(log_probs, batch, config)  # (B,)
    written = batch["response_mask"].sum(dim=1)
    lengths = written.new_tensor([len(e.token_ids) for e in batch["episodes"]])
    return losses * written / lengths


def main(config):
    """`variants.main` with these functions."""
    functions = {}
    if hasattr(nano_r1.import_task(config.task), "tool"):
        functions |= tool_use.FUNCTIONS
    if config.mask == "none":
        functions["rollout"] = unmasked
    if config.mask == "length":
        functions["loss"] = divided_by_all_tokens
    if config.reward == "none":
        functions["advantages"] = controls.no_reward
    elif config.reward != "task":
        rewarded = controls.CONTROLS[config.reward]["rollout"]
        inner = functions.get("rollout", nano_r1.rollout)

        def rollout(*arguments):  # no partial: a run is continued with a function of the same name
            return rewarded(*arguments, rollout=inner)

        functions["rollout"] = rollout
    return variants.main(config, **functions)


if __name__ == "__main__":
    nano_r1.run_command(main, Config)
