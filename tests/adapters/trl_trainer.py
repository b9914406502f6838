"""TRL's GRPOTrainer for check_step.py. It needs a model of transformers."""

import contextlib
import os
import tempfile

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer


def make_model(seed):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=20,
        initializer_range=0.5,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return Qwen2ForCausalLM(config).eval()


def step(model, episodes, config, **options):
    if config.padding_side == "left":
        raise NotImplementedError("It pads prompts on the left, completions on the right.")
    size = config.micro_batch_size
    if len(episodes) % size:
        raise NotImplementedError("Its micro-batches have equal sizes.")
    folder = config.save or tempfile.mkdtemp()
    checkpoint = f"{config.resume}/checkpoint-1" if config.resume else None
    if config.reference and "RANK" in os.environ:
        raise NotImplementedError("Only the first process saves the reference.")
    if config.reference:  # TRL loads it from where the policy came from
        config.reference.save_pretrained(folder)
        model.config._name_or_path = folder
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"0": 0, "1": 1}, unk_token="0")),
        pad_token="0",
        eos_token="1",
    )
    settings = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        save_strategy="steps" if config.save else "no",
        save_steps=1,
        ignore_data_skip=True,
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        bf16=False,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        shuffle_dataset=False,
        learning_rate=config.learning_rate,
        num_generations=config.group_size,
        max_completion_length=config.max_tokens,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=len(episodes) // size,
        num_iterations=config.optimizer_steps,
        max_steps=config.optimizer_steps + (checkpoint is not None),
        temperature=config.temperature,
        epsilon=config.cliprange,
        beta=config.kl_coef,
        **options,
    )
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
    trainer = GRPOTrainer(
        model,
        args=settings,
        reward_funcs=lambda reward, **others: reward,
        train_dataset=Dataset.from_list([{"prompt": ""}] * 4),
        processing_class=tokenizer,
        optimizers=(optimizer, None),
        rollout_func=lambda prompts, trainer: {
            "prompt_ids": [e.prompt_ids for e in episodes],
            "completion_ids": [e.token_ids for e in episodes],
            "logprobs": [e.log_probs for e in episodes],
            "reward": [e.reward for e in episodes],
        },
    )
    with contextlib.redirect_stdout(None):
        trainer.train(resume_from_checkpoint=checkpoint)
    return model
