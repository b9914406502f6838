"""What a change of the GPU's path gains: arms in turn in one process. card.sh has the rows.

    python -m benchmarks.card --arms none chunk layers --sampler transformers --dtype bfloat16

An arm is a list of the changes below, with a plus between them; `none` is nano_r1.py as it is. Each
time samples a step's completions and updates on them, with the advantage 1, because random weights
have no correct completion. The other flags are those of nano_r1.py.
"""

import json
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
import transformers

import nano_r1


@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """Times of sampling and update, arm by arm."""

    arms: tuple[str, ...] = ("none",)  # what is compared
    part: Literal["both", "update"] = "both"  # update: of random tokens, without sampling
    rounds: int = 1  # how often the arms run forwards and backwards, A B B A
    # TRL's GRPOTrainer instead; lean: without detokenizing and its extra forward pass
    trl: Literal["no", "default", "lean"] = "no"


# ---- Changes: functions of the engine and of patch(owner, name, value).


def none(engine, patch):
    pass


def clocks(engine, patch):
    """Where the file's own loop spends its time: seconds in its parts, each waited for."""
    for name in ("next_logits", "sample_token", "rows_to_keep"):
        patch(nano_r1, name, timed(name, getattr(nano_r1, name)))


def graphs(engine, patch):
    """vLLM's CUDA graphs for 1,024 rows; its own end at 512."""
    import vllm

    patch(vllm, "LLM", partial(vllm.LLM, max_cudagraph_capture_size=1024))


def chunk(engine, patch):
    patch(nano_r1, "CHUNK", 2**27)


def layers(engine, patch):
    """Each layer compiled. (As a whole, the decoder is slower.)"""
    for layer in engine.module.model.get_decoder().layers:
        patch(layer, "_compiled_call_impl", torch.compile(layer._call_impl, dynamic=True))


# ---- Times


def clock():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def timed(name, function):
    """The function; `seconds[name]` has the sum of its calls."""

    def call(*args, **settings):
        began = clock()
        result = function(*args, **settings)
        seconds[name] += clock() - began
        return result

    return call


seconds = defaultdict(float)  # since the last line


def peak():
    """The most GB that torch has had on a GPU at once."""
    return torch.cuda.max_memory_allocated() / 1e9


def random_tokens(problems, task, config):
    """A step's episodes with random tokens, each --max_tokens long."""
    for problem in problems[: config.prompts_per_step]:
        prompt = task.prompt_ids(problem)
        for _ in range(config.group_size):
            ids = torch.randint(5, 1000, (config.max_tokens,)).tolist()
            yield nano_r1.Episode(problem=problem, prompt_ids=prompt, token_ids=ids)


def main(config):
    device = nano_r1.start_process(config)
    policy, tokenizer = nano_r1.load_model(config)
    task = nano_r1.Task(tokenizer, policy, config)
    problems = task.load_problems("train", config)
    if config.trl != "no":
        return with_trl(config, policy, task, problems)
    engine = nano_r1.make_engine(nano_r1.Scorer(policy, config), device, config)
    sampler = None
    for arm in [*config.arms, *config.arms[::-1]] * config.rounds:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with ExitStack() as changed:

            def patch(*change):
                changed.enter_context(mock.patch.object(*change))

            for name in arm.split("+"):
                globals()[name](engine, patch)
            if config.part == "update":
                episodes = list(random_tokens(problems, task, config))
            else:
                sampler = sampler or nano_r1.make_sampler(policy, task, device, config)
                sample = timed("sampling", nano_r1.rollout)
                with torch.compiler.set_stance("force_eager"):  # compiled layers: for the update
                    episodes = sample(sampler, problems, task, config, 1)
                sampler.sleep()
            for e in episodes:
                e.advantage = 1.0
            update = timed("update", nano_r1.update)
            batches = update(engine, None, episodes, config, nano_r1.grpo_loss)
            rows = nano_r1.as_rows(episodes)
            metrics = nano_r1.measure_step(rows, batches, engine, 1, config)
            if sampler:
                timed("sync", sampler.sync)(policy)
            print(arm, sum(row["length"] for row in rows), "tokens;", seconds_of(metrics))
    if sampler:
        sampler.close()


def seconds_of(metrics):
    """The seconds since the last line, and what the step says."""
    parts = [f"{name} {value:.2f}" for name, value in seconds.items()]
    seconds.clear()
    difference = metrics["sampling/logp_difference_mean"]
    return f"seconds: {', '.join(parts)}; {peak():.1f} GB; log-probs differ by {difference:.4f}"


# ---- TRL


def with_trl(config, policy, task, problems):
    """TRL's trainer with vLLM in its process: seconds of --steps steps, and of sampling in them."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completion_ids, **_):
        return [float(ids[0] % 2) for ids in completion_ids]

    on_gpu = torch.cuda.is_available()
    lean = config.trl == "lean"
    count = config.prompts_per_step * config.group_size
    settings = GRPOConfig(
        output_dir="out/trl",
        max_steps=config.steps,
        num_generations=config.group_size,
        max_completion_length=config.max_tokens,
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=count // config.micro_batch_size,
        gradient_checkpointing=config.gradient_checkpointing,
        bf16=on_gpu,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=config.vllm_gpu_memory_utilization,
        vllm_enable_sleep_mode=True,
        vllm_importance_sampling_correction=not lean,
        vllm_max_model_length=task.max_length,
        generation_kwargs={"detokenize": False} if lean and on_gpu else None,
        use_vllm=on_gpu,
        use_cpu=not on_gpu,
        report_to="none",
        save_strategy="no",
    )
    rows = Dataset.from_list([{"prompt": task.prompt_text(p)} for p in problems[:2000]])
    trainer = GRPOTrainer(
        policy, reward, args=settings, train_dataset=rows, processing_class=task.tokenizer
    )
    trainer._generate = timed("sampling", trainer._generate)

    class Steps(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.began = clock()

        def on_step_end(self, *_, **__):
            step = clock() - self.began
            print(f"step {step:.2f} s, sampling {seconds['sampling']:.2f} s, {peak():.1f} GB")
            seconds.clear()

    trainer.add_callback(Steps())
    trainer.train()


# ---- Random weights


def make(path, **shape):
    """Random weights of this shape, and nano-base's tokenizer, filled up to `vocab_size` tokens."""
    config = transformers.Qwen2Config(eos_token_id=0, tie_word_embeddings=True, **shape)
    transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(nano_r1.Config.model)
    tokenizer.save_pretrained(path)
    file = Path(path, "tokenizer.json")
    settings = json.loads(file.read_text("utf-8"))
    for number in range(len(tokenizer), config.vocab_size):
        settings["model"]["vocab"][f"<{number}>"] = number
    file.write_text(json.dumps(settings), "utf-8")


if __name__ == "__main__":
    nano_r1.run_command(main, Config)
