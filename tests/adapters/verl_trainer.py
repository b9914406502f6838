"""verl's FSDP engine for check_step.py: its train_batch, on the CPU and without shards.

No test runs it, because verl needs ray and more. By hand, with verl 0.9.1: docs/check_grpo.md.
"""

import functools
import math
from unittest.mock import MagicMock

import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.plugin.platform import platform_manager

platform_manager.set_platform(MagicMock(device_name="cpu", current_device=lambda: "cpu"))

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

import check_step

torch.distributed.init_process_group("gloo")


def step(model, episodes, config, **options):
    if config.padding_side == "left" or len(episodes) % config.micro_batch_size:
        raise NotImplementedError("Padding is removed, micro-batches are of equal sizes.")
    if config.save or check_step.WORLD > 1:
        raise NotImplementedError("Checkpoints and several processes need FSDP.")
    prompts = [torch.tensor(e.prompt_ids) for e in episodes]
    prompts = pad_sequence(prompts, batch_first=True, padding_side="left")
    responses = pad_sequence([torch.tensor(e.token_ids) for e in episodes], batch_first=True)
    ids = torch.cat([prompts, responses], dim=1)
    mask = responses > 0
    rewards = torch.tensor([[e.reward] for e in episodes])
    groups = [i // config.group_size for i in range(len(episodes))]
    padded = TensorDict(
        batch_size=len(episodes),
        prompts=prompts,
        responses=responses,
        input_ids=ids,
        attention_mask=ids > 0,
        position_ids=((ids > 0).cumsum(1) - 1).clamp(min=0),
        response_mask=mask,
        advantages=compute_grpo_outcome_advantage(rewards, mask, groups)[0],
    )
    data = left_right_2_no_padding(padded)
    tensordict_utils.assign_non_tensor(
        data,
        use_dynamic_bsz=False,
        use_remove_padding=False,
        micro_batch_size_per_gpu=config.micro_batch_size,
        global_batch_size=len(episodes),
        temperature=config.temperature,
    )
    engine = FSDPEngineWithLMHead(
        MagicMock(use_remove_padding=False, lora_rank=0),
        FSDPEngineConfig(),
        FSDPOptimizerConfig(clip_grad=math.inf),
        None,
    )
    engine._autocast_dtype = torch.float32
    engine.optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
    for name, scored in {"ref_log_prob": config.reference, "old_log_probs": model}.items():
        engine.module = scored or model
        log_probs = engine.infer_batch(data)["model_output"]["log_probs"]
        data[name] = no_padding_2_padding(log_probs, data)
    settings = ActorConfig(
        strategy="fsdp",
        rollout_n=config.group_size,
        ppo_micro_batch_size_per_gpu=config.micro_batch_size,
        clip_ratio_low=config.cliprange,
        clip_ratio_high=config.cliprange,
        use_kl_loss=config.kl_coef > 0,
        kl_loss_coef=config.kl_coef,
        **options,
    )
    for _ in range(config.optimizer_steps):
        engine.train_batch(data, functools.partial(ppo_loss, settings))
    return model
