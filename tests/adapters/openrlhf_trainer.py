"""OpenRLHF's ActorPPOTrainer for check_step.py, with DeepSpeed on the CPU, under torchrun.

No test runs it, because OpenRLHF needs a GPU's packages. By hand, with 0.11.2: docs/check_grpo.md.
"""

import os
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ["DS_ACCELERATOR"] = "cpu"
for name in ("vllm", "vllm.inputs", "vllm.utils"):
    sys.modules[name] = MagicMock()

import deepspeed
import openrlhf_loss  # noqa: F401, it replaces flash_attn
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.deepspeed import DeepspeedStrategy
from transformers.modeling_outputs import CausalLMOutput

from check_step import WORLD, TinyModel


class Device(str):
    def __format__(self, spec):
        return "0"  # in "cuda:0"


torch.cuda.current_device = lambda: Device("cpu")
torch.cuda.synchronize = torch.cuda.set_device = MagicMock()
deepspeed.ops.__compatible_ops__ = {}  # otherwise it compiles an all-reduce


class make_model(TinyModel):
    def forward(self, *inputs, **named):
        return CausalLMOutput(logits=super().forward(*inputs, **named).logits)


def step(model, episodes, config, loss_agg_mode="token-mean"):
    size = config.micro_batch_size
    if config.padding_side == "left" or len(episodes) % size:
        raise NotImplementedError("It pads on the right, and its micro-batches have equal sizes.")
    args = MagicMock(
        local_rank=-1,
        ds=SimpleNamespace(param_dtype="fp32", packing_samples=False, tensor_parallel_size=1),
        train=SimpleNamespace(max_epochs=config.optimizer_steps, dynamic_batch_enable=False),
        actor=SimpleNamespace(
            eps_clip_low_high=(config.cliprange, config.cliprange),
            dual_clip=None,
            loss_agg_mode=loss_agg_mode,
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
            entropy_coef=None,
        ),
        reward=SimpleNamespace(clip_range=None),
    )
    args.rollout.n_samples_per_prompt = config.group_size
    args.algo.kl = SimpleNamespace(
        use_loss=config.kl_coef > 0,
        init_coef=config.kl_coef,
        estimator="k3",
        unbiased_gradient=False,
    )
    args.algo.advantage = SimpleNamespace(
        estimator="group_norm",
        gamma=1.0,
        is_correction_level="off",
        is_correction_mode="mask",
        is_correction_gating="ratio",
        is_correction_threshold=None,
    )
    batch_size = len(episodes) * WORLD
    strategy = DeepspeedStrategy(0, False, 0.0, size, batch_size, zero_stage=0, args=args)
    strategy.setup_distributed()
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
    settings = strategy.get_ds_train_config()
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    if config.resume:
        strategy.load_ckpt(engine, config.resume)
    actor = Actor(engine, temperature=config.temperature)
    reference = Actor(config.reference or engine, temperature=config.temperature)
    actor.packing_samples = reference.packing_samples = False
    samples = []
    for i, e in enumerate(episodes):
        ids = torch.tensor([e.prompt_ids + e.token_ids])
        seen = torch.ones_like(ids)
        mask = seen.cumsum(1)[:, :-1] >= len(e.prompt_ids)
        sample = Experience(
            index=[i],
            sequences=ids,
            attention_mask=seen,
            action_mask=mask,
            action_log_probs=actor(ids, mask, seen).detach(),
            base_action_log_probs=reference(ids, mask, seen).detach(),
            rewards=torch.tensor([e.reward]),
            kl=torch.zeros(mask.shape),
        )
        samples.append(sample)
    no_kl = SimpleNamespace(value=0.0)  # in the reward
    maker = RemoteExperienceMaker(None, None, None, None, no_kl, strategy, None)
    trainer = ActorPPOTrainer(strategy, actor, None, optimizer, MagicMock(), 0.0, size)
    trainer.dataloader_pin_memory = False
    for sample in maker.compute_advantages_and_returns(samples):
        trainer.replay_buffer.append(sample)
    trainer.ppo_train(config.kl_coef)
    if config.save:
        strategy.save_ckpt(engine, config.save, "1")
    return model
