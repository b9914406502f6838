"""nano_r1.py for check_grpo.py and check_step.py; with variants.py, several steps on a batch."""

import torch

import nano_r1
import nano_sft
import variants

CONFIG = variants.Config(kl_coef=0.04)


def advantages(rewards):
    return nano_r1.group_advantages(rewards, CONFIG)


def loss(
    log_probs,
    old_log_probs,
    ref_log_probs,
    advantages,
    mask,
    sampler_log_probs,
    step,
    formula=nano_r1.grpo_loss,
    config=CONFIG,
):
    batch = {
        "old_log_probs": old_log_probs,
        "ref_log_probs": ref_log_probs,
        "sampler_log_probs": sampler_log_probs,
        "advantages": advantages[:, None],
        "response_mask": mask,
    }
    return formula(log_probs, batch | vars(step), config).sum()


def step(model, episodes, config, sft=False):
    if config.padding_side == "left":
        raise NotImplementedError("Padding is on the right.")
    if sft and (config.temperature < 1 or config.kl_coef or config.optimizer_steps > 1):
        raise NotImplementedError("Fine-tuning has no temperature, KL or second step.")
    settings = variants.Config(
        group_size=config.group_size,
        max_tokens=config.max_tokens,
        micro_batch_size=config.micro_batch_size,
        temperature=config.temperature,
        cliprange=config.cliprange,
        kl_coef=config.kl_coef,
        epochs=config.optimizer_steps,
        max_grad_norm=0.0,
    )
    device = nano_r1.start_process(settings)
    if nano_r1.WORLD > 1:
        # DeepSpeed knows AdamW. With an eps this large it is SGD.
        optimizer = torch.optim.AdamW(model.parameters(), 1e8, (0.0, 0.0), 1e8, weight_decay=0.0)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 1.0, config.momentum)
    engine = nano_r1.make_engine(nano_r1.Scorer(model, settings), device, settings, optimizer)
    if config.resume:
        nano_r1.load_checkpoint(engine, config.resume)
    reference = None
    if config.reference:
        reference = nano_r1.Scorer(config.reference, settings)
    batch = [nano_r1.Episode(**vars(e)) for e in episodes]
    rewards = torch.tensor([e.reward for e in batch]).view(-1, config.group_size)
    for e, advantage in zip(batch, nano_r1.group_advantages(rewards, settings).flatten().tolist()):
        e.advantage = advantage
    if sft:
        nano_sft.train_step(engine, batch, settings)
    elif config.optimizer_steps == 1:
        nano_r1.update(engine, reference, batch, settings, nano_r1.grpo_loss)
    else:
        variants.update(engine, reference, batch, settings, variants.loss)
    if config.save:
        nano_r1.save_checkpoint(engine, config.save, 1)
    return model
