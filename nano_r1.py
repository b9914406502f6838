# %% [markdown]
# # nano_r1: reinforcement learning from verifiable rewards (RLVR), in one file
#
# The recipe of DeepSeek-R1-Zero: ask a language model a question whose answer a small program can
# check, sample several completions, and make those that did better than the others more likely.
# In this training the model sees no worked solution, only its own completions and their rewards.
#
# The small model in models/nano-base is the base: the model before this training. It searches for
# an equation, line after line, and ends most lines with "yes" (it reaches the target) or "no".
# `38*6=228-90=138 no` says that 38*6 is 228, and that 228-90 is 138, which is not the target.
# After a comma, a new number comes first: `59-57=2,86/2=43`. The prompt ends with `<think>`, so the
# model begins with its search. After its first yes it writes `</think>` and that line's equation as
# its answer. At first, yes is almost random: its probability is 27% after the target and 25% after
# another result, so the answer is mostly wrong. After 80 steps it is 98% and 0.4%, so the model
# searches until it has a solution. (The base has read true checks, but in the last stage of its
# training yes and no were random in every form of text: docs/results.md, "The base".)
#
#     python nano_r1.py --task countdown       # two CPU cores, seven minutes: from 9% to 62%
#     python nano_r1.py --resume out/NAME      # continue it; add the flags it was started with
#     python nano_r1.py --help                 # every setting
#     bash runs/train.sh gsm8k_qwen2.5_1.5b    # Qwen2.5-1.5B, a 48 GB GPU: not run (docs/gpu.md)
#     torchrun --nproc_per_node 8 --local-ranks-filter 0 nano_r1.py ...    # eight GPUs
#
# One step of GRPO, group relative policy optimization (Shao et al. 2024, arXiv:2402.03300;
# DeepSeek-AI 2025, arXiv:2501.12948):
#
#  1. Draw m problems.
#  2. Sample a group of n completions o_1 .. o_n of each from the policy, the model in training.
#  3. Reward each completion with a small program, the verifier: r_i is up to 1 for the format, and
#     1 more for a correct answer (`reward` in countdown_rewards.py).
#  4. Compare it with its group: the advantage. (PPO, the older method, compares it with the
#     prediction of a second trained model, the critic.)
#
#         A_i = (r_i - mean(r)) / (std(r) + 1e-4)
#
#  5. Compute the log-probs of all these completions' tokens under the reference, a frozen copy of
#     the model before training.
#  6. Compute the loss. o_it is token t of completion i, and pi(o_it) its probability under the
#     policy, given the text before it; pi_old is the policy before this step, pi_ref the reference.
#     With the ratio rho = pi(o_it) / pi_old(o_it) and d = log pi_ref(o_it) - log pi(o_it), a
#     token's loss is
#
#         L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)
#
#     with eps 0.2 and beta 0.001. Once rho is above 1 + eps with A > 0, or below 1 - eps with
#     A < 0, the min is constant and has no gradient. The last term, the KL penalty, keeps pi near
#     pi_ref: exp(d) - 1 - d is 0 at d = 0 and positive elsewhere. Its mean over tokens drawn from
#     pi estimates the Kullback-Leibler divergence KL(pi, pi_ref). (Its gradient is not KL's:
#     docs/algorithms.md.) The step's loss is the mean over each completion's tokens, then over all
#     completions.
#  7. Take one AdamW step (betas 0.9 and 0.95, no weight decay).
#  8. Give the new weights to the sampler.
#  9. Log; now and then evaluate and save a checkpoint.
#
# Why is there a ratio? Here each batch of completions serves one optimizer step, so pi_old is pi,
# rho is 1, and the clip does nothing. But the gradient of rho is not 0, because pi_old is a
# constant: grad rho = grad pi / pi_old = grad pi / pi = grad log pi. So the gradient of the loss,
# without the KL penalty, is -A grad log pi: it makes the tokens of completions with A > 0 more
# likely. If a batch serves several optimizer steps (`variants.py --minibatches 4`), pi leaves
# pi_old after the first, the ratio moves, and the clip acts.
#
# Reading from here to the end of `main` (section 6), the whole algorithm in the order of the steps,
# takes half an hour. It uses parts of the machinery below: `task`, a task's module with prompt and
# tokenizer, makes prompts and calls the verifier; `sampler.generate` writes completions,
# `sampler.sleep` frees its memory, `sampler.sync` wakes it with the new weights; `engine` is the
# policy with its optimizer (`Scorer` computes its log-probs); `gather` joins the lists of several
# processes.
#
# Left out: a critic, a learned reward, rewards for single reasoning steps, several optimizer steps
# per batch, and sampling the next batch during the update. `variants.py` has GRPO's relatives, each
# a function that replaces one of this file. The modules of tasks are `countdown_rewards.py`,
# `gsm8k_rewards.py` and those in tasks/.

# %%
import atexit
import copy
import importlib.util
import json
import math
import os
import random
import re
import signal
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Literal
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from safetensors import SafetensorError
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.utils import logging as transformers_logging

RANK = int(os.environ.get("RANK", 0))  # the number of this process, set by torchrun
WORLD = int(os.environ.get("WORLD_SIZE", 1))  # how many processes there are

# %% [markdown]
# ## 1. Settings
#
# The defaults suit the small model in models/nano-base on two CPU cores. In [brackets]: values for
# models of 0.5B to 3B parameters. In a notebook, `Config(steps=20)` is `--steps 20`.


# %%
@dataclass(kw_only=True)
class Config:
    """Reinforcement learning from verifiable rewards: GRPO on a language model.

    python nano_r1.py --task countdown    (seven minutes: from 9% to about 62%)

    python nano_r1.py --task gsm8k --steps 30 --name words    (in out/words)

    python nano_r1.py --resume out/NAME    (continue it; add its first flags)

    The options are in the order of the steps in nano_r1.py.

    In [brackets]: values for models of 0.5B to 3B parameters.
    """

    # What to learn.

    # countdown, gsm8k, one in tasks/, or the path of a task of your own (docs/own_task.md)
    task: str = "countdown"
    model: str = "models/nano-base"  # a directory, or a model on the hub [Qwen/Qwen2.5-1.5B]
    # how the task asks: short (for the small model), chat, plain, or a toml file of your own
    # (docs/own_task.md) [chat]
    prompt: str = "short"
    # where problems come from: a jsonl, json, csv or parquet file; "hub": the published data set;
    # None: the task generates them
    data: str | None = None

    # Steps 1 to 3.
    prompts_per_step: int = 16  # step 1: m problems, over all processes [16 to 128]
    group_size: int = 8  # step 2: n completions of each problem
    max_tokens: int = 320  # step 2: a longer completion is cut off [1024]
    # step 2: the sampling temperature, also used in the loss. Top-p and top-k do not exist, because
    # the loss must use the same distribution as the sampler
    temperature: float = 1.0

    # Steps 4 to 6.
    advantage_eps: float = 1e-4  # step 4: added to the standard deviation of a group's rewards
    micro_batch_size: int = 8  # steps 5, 6: completions in a pass; lower it if memory runs out
    cliprange: float = 0.2  # step 6: eps of the clip
    kl_coef: float = 0.001  # step 6: beta; with 0, no reference model is loaded or run

    # Step 7.
    steps: int = 80  # step 7: how many steps the run has [200 to 1000]
    learning_rate: float = 6e-4  # step 7: AdamW's [1e-6; with adapters (variants.py) 1e-5]
    # step 7: linear warm-up of the learning rate, because Adam's averages are noisy at first
    warmup_steps: int = 10
    # step 7: linear: the rate is also multiplied by a factor that falls from 1 to 1 / steps
    lr_scheduler_type: Literal["linear", "constant"] = "linear"
    # step 7: a larger gradient is scaled down to this norm; 0: never
    max_grad_norm: float = 1.0

    # Engines.
    device: Literal["auto", "cuda", "cpu"] = "auto"  # hardware: auto takes a GPU if there is one
    # hardware: the precision of matrix products [bfloat16]
    dtype: Literal["float32", "bfloat16"] = "float32"
    # hardware: vLLM, or the loop of this file; auto takes vLLM if it is installed and supports the
    # GPU
    sampler: Literal["auto", "transformers", "vllm"] = "auto"
    vllm_gpu_memory_utilization: float = 0.3  # hardware: share of the GPU's memory for vLLM
    # hardware: with torchrun, DeepSpeed's ZeRO: 1 shards AdamW's states, 2 also gradients, 3 also
    # the policy's weights (not the reference's)
    zero_stage: Literal[1, 2, 3] = 2
    # hardware: keep the idle reference in main memory; with torchrun, also the states of AdamW
    offload: bool = False
    # hardware: compute activations again in the backward pass: less memory, more time
    gradient_checkpointing: bool = False

    # Step 9.
    eval_every: int = 20  # step 9: evaluate every N steps; 0: only before and after training
    # step 9: held-out problems; with 512, the 95% interval is about 4 points to either side
    eval_problems: int = 512
    save_every: int = 20  # step 9: save a checkpoint every N steps
    # step 9: in steps 1, N + 1, 2N + 1 and so on, record how each token's probability changed, for
    # report.html; 0: never
    record_tokens_every: int = 4
    name: str | None = None  # the run: its directory is out/NAME; None: task, date and time
    resume: str | None = None  # the run: continue it; this is its directory
    wandb: Literal["off", "online", "offline"] = "off"  # the run: also log to Weights & Biases
    seed: int = 0  # the run: every random choice derives from it

    # Numbers that must be above 0; every other one must be 0 or more.
    ABOVE_0 = (
        "prompts_per_step group_size max_tokens temperature advantage_eps micro_batch_size steps "
        "vllm_gpu_memory_utilization eval_problems"
    ).split()
    # What may differ when a run is resumed: it does not change the loss. (`steps` does change the
    # linear learning rate.)
    MAY_CHANGE = (
        "steps resume name save_every eval_every eval_problems record_tokens_every wandb device "
        "micro_batch_size gradient_checkpointing offload sampler vllm_gpu_memory_utilization "
        "id make_sampler measure evaluate"
    ).split()


@dataclass(kw_only=True, slots=True, eq=False)  # equal only if the same object
class Episode:
    """One completion, and what is known of it. `as_row` says what of it a run's files keep."""

    problem: dict = None  # a row of the data set
    prompt_ids: list = ()  # token ids
    token_ids: list = ()  # the completion's token ids, with the end token if the model wrote it
    # float, one for each token of the completion, as the sampler computed it; None: not known
    log_probs: list = None
    # bool, one for each token of the completion: True if the model wrote it. Here that is every
    # token; a tool's tokens are False. Loss, entropy and KL are those of the model's tokens
    mask: list = None
    completion: str = ""
    cut_off: bool = False  # it reached max_tokens, without an end token or a stop text
    reward: float = 0.0  # step 3: the total
    format_reward: float = 0.0
    answer_reward: float = 0.0  # 1.0: correct
    why: str = ""  # "correct", or what is wrong
    advantage: float = 0.0  # step 4
    extra: dict = field(default_factory=dict)  # what functions of your own add

    def __post_init__(self):
        if self.mask is None:
            self.mask = [True] * len(self.token_ids)
        if self.log_probs is None:
            self.log_probs = [math.nan] * len(self.token_ids)


# %% [markdown]
# ## 2. The rollout: steps 1 to 3
#
# The sampler writes a completion token by token, each drawn from softmax(logits / temperature).
# `sampler.generate` returns the tokens and their log-probs. The processes of torchrun divide the
# problems: each samples, rewards and trains on its share.


# %%
def seed_of(*parts):
    """A seed for each purpose and step, so a resumed run makes the same random choices."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def rollout(sampler, problems, task, config, step):
    """Steps 1 to 3: a batch of rewarded episodes, problem by problem.

    Each step draws from all problems, so some come twice before others come once.
    """
    label = f"step {step}, 0"  # a part of each seed (the 0 says nothing)
    rng = random.Random(seed_of(config.seed, label, "questions"))
    drawn = rng.sample(problems, config.prompts_per_step)
    return sample_and_reward(sampler, drawn, task, config, label, config.group_size)


def sample_and_reward(sampler, problems, task, config, label, n):
    """Steps 2 and 3: n episodes of each problem of this process's share, problem by problem."""
    share = problems[RANK::WORLD]
    if not share:
        return []
    prompts = [task.prompt_ids(problem) for problem in share]
    seeds = [seed_of(config.seed, label, place) for place in range(RANK, len(problems), WORLD)]
    completions = sampler.generate(prompts, n, config.temperature, seeds)
    episodes = []
    for i, (token_ids, log_probs) in enumerate(completions):  # the first n are of problem 0
        e = Episode(
            problem=share[i // n],
            prompt_ids=prompts[i // n],
            token_ids=token_ids,
            log_probs=log_probs,
            completion=task.text_of(token_ids),
            cut_off=not task.has_ended(token_ids),
        )
        e.reward, e.format_reward, e.answer_reward, e.why = task.reward(
            e.completion, e.problem, token_ids
        )
        episodes.append(e)
    return episodes


# %% [markdown]
# ## 3. Advantages and loss: steps 4 and 6
#
# Shapes: m groups of n completions; B completions in a micro-batch; T positions; V vocabulary
# entries. `response_mask` (B, T) is True at the tokens that the model wrote.


# %%
def group_advantages(rewards, config):
    """Step 4: how much better is each completion than its group? (m, n) -> (m, n).

    GRPO, arXiv:2402.03300, section 4.1.2. A group whose rewards are all equal has no signal: its
    advantages are 0, up to rounding.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # (m, 1)
    std = rewards.std(dim=1, keepdim=True)  # (m, 1), divides by n - 1
    # A_i = (r_i - mean(r)) / (std(r) + 1e-4)
    return (rewards - mean) / (std + config.advantage_eps)


def k3(ref_log_probs, log_probs):
    """exp(d) - 1 - d, an estimate of KL(pi, pi_ref) from each token (Schulman 2020): (B, T)."""
    d = ref_log_probs - log_probs  # log(pi_ref / pi)
    return torch.exp(d) - 1 - d


def grpo_loss(log_probs, batch, config):
    """Step 6: each completion's part of the loss, (B,).

    `log_probs` (B, T) are the policy's, and carry the gradient. `batch` has `old_log_probs`,
    `ref_log_probs`, `response_mask` (B, T), `advantages` (B, 1) and `completions`: N, how many
    completions this process has in the step, over all its micro-batches. Each completion's loss is
    divided by N, so the losses of the micro-batches add up to the step's loss.
    """
    mask = batch["response_mask"]
    # rho_it = pi(o_it) / pi_old(o_it)
    ratio = torch.exp(log_probs - batch["old_log_probs"])  # (B, T)
    clipped = ratio.clamp(1 - config.cliprange, 1 + config.cliprange)
    # L_it = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)           PPO, arXiv:1707.06347, eq. 7
    loss = -torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"])  # (B, T)
    if config.kl_coef:
        # L_it = L_it + beta (exp(d) - 1 - d)                         GRPO, eq. 4
        loss = loss + config.kl_coef * k3(batch["ref_log_probs"], log_probs)  # (B, T)
    # 1/N sum_i 1/|o_i| sum_t L_it
    lengths = mask.sum(dim=1).clamp(min=1)  # |o_i|, (B,)
    return (loss * mask).sum(dim=1) / lengths / batch["completions"]


# %% [markdown]
# ## 4. A batch: what the loss is computed from
#
# `labels[b, t]` is the token that follows `input_ids[b, t]`. `response_mask[b, t]` is True if the
# model wrote that token. The end token counts, too: without it, the model never learns to stop.


# %%
def collate(episodes, device):
    """Episodes -> a batch, a dict. For the prompt 7 8 9 and the completion 5 2:

    input_ids          7 8 9 5     (B, T)
    labels             8 9 5 2     the next token
    response_mask      0 0 1 1     whether the model wrote it
    sampler_log_probs  of the labels, by the sampler; 0 where the mask is 0
    advantages         (B, 1)
    episodes           the list

    `update` adds completions (N, of this process's step), ref_log_probs and old_log_probs (B, T),
    and, at the end, loss. The losses of variants.py may add tokens (all of the step's, divided by
    the number of processes), clipped (B, T) and advantages (B, T).
    """
    for e in episodes:
        if not len(e.token_ids) == len(e.mask) == len(e.log_probs):
            raise ValueError("token_ids, mask and log_probs of an episode differ in length")
    # Padding may be any token: it is on the right, where causal attention never looks.
    ids = padded([e.prompt_ids + e.token_ids for e in episodes])  # (B, T + 1)
    mask = padded([[False] * len(e.prompt_ids) + e.mask for e in episodes])
    log_probs = padded([[0.0] * len(e.prompt_ids) + e.log_probs for e in episodes])
    batch = {
        "input_ids": ids[:, :-1],
        "labels": ids[:, 1:],
        "response_mask": mask[:, 1:],
        "sampler_log_probs": log_probs.where(mask, 0.0)[:, 1:],
        "advantages": torch.tensor([[e.advantage] for e in episodes]),  # (B, 1)
    }
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    batch["episodes"] = episodes
    return batch


def padded(rows):
    """Lists of numbers -> one tensor, with zeros on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def micro_batches(episodes, config):
    """Lists of episodes of similar lengths, so that a batch has little padding."""
    by_length = sorted(episodes, key=lambda e: len(e.prompt_ids + e.token_ids))
    return batched(by_length, config.micro_batch_size)


def batched(items, size):
    """Lists of `size` items each; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


# %% [markdown]
# ## 5. The update: steps 5 to 7
#
# The engine holds the policy, its gradients and AdamW's states. `engine(batch)` returns the
# log-probs. `engine.backward(loss)` adds to the gradient, as `loss.backward()` does.
# `engine.step()` clips the gradient, takes one AdamW step if the gradient is finite, and zeroes the
# gradient. With several processes, DeepSpeed's engine also averages their gradients.


# %%
def update(engine, reference, episodes, config, loss_function):
    """Steps 5 to 7: one AdamW step on the loss of all episodes. Returns the micro-batches."""
    # Only gradient checkpointing needs the training mode, in which some models (Phi-MoE) route
    # tokens at random.
    engine.module.train(config.gradient_checkpointing)
    # Steps 5 and 6 take one micro-batch at a time.
    batches = []
    for part in micro_batches(episodes, config):
        batch = collate(part, engine.device)
        # N, of this process; the engine averages over the processes.
        batch["completions"] = len(episodes)
        # 5. Log-probs under the reference.
        if reference is not None:
            with torch.no_grad():
                batch["ref_log_probs"] = reference.to(engine.device)(batch)  # (B, T)
        # 6. The loss and its gradient. pi_old, the policy before this step, is the policy as it is
        # now, as a constant. (It does not come from the sampler, whose log-probs are equal up to
        # rounding. measure_step compares them.)
        log_probs = engine(batch)  # (B, T)
        batch["old_log_probs"] = log_probs.detach()
        loss = loss_function(log_probs, batch, config).reshape(len(part)).sum()  # (B,), else error
        engine.backward(loss)
        batch["loss"] = loss.detach()
        batches.append(batch)
    if reference is not None and config.offload:
        reference.to("cpu")  # until the next step
    # 7. One AdamW step.
    engine.step()
    engine.module.eval()
    return batches


def make_reference(policy, config):
    """The frozen copy of the model before training; None without a KL penalty."""
    if config.kl_coef:
        return Scorer(copy.deepcopy(policy), config)


def learning_rate(step, config):
    """Linear warm-up; the "linear" schedule also multiplies by 1 - (step - 1) / steps."""
    rate = config.learning_rate * min(1.0, step / max(1, config.warmup_steps))
    if config.lr_scheduler_type == "linear":
        rate *= 1 - (step - 1) / config.steps
    return rate


def set_learning_rate(optimizer, rate):
    """Of each parameter group, times its `lr_scale`, which an optimizer of your own may have."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


# %% [markdown]
# ## 6. The loop: all nine steps
#
# `main` is one run. A caller can replace the functions that are called as `parts.NAME`:
# main(config, loss=my_loss, advantages=my_advantages). `variants.py` does.


# %%
def parts_of_main(replaced):
    """The functions that `main` calls. An experiment gives others with the same signature."""
    parts = {
        "load_problems": load_problems,  # (module, split, config) -> the task's problems
        "load_model": load_model,  # (config) -> policy, tokenizer
        "make_reference": make_reference,  # (policy, config) -> a scorer or None
        "make_sampler": make_sampler,  # (policy, task, device, config)
        "make_engine": make_engine,  # (scorer, device, config) -> policy and optimizer
        "rollout": rollout,  # (sampler, problems, task, config, step) -> episodes, by group
        "advantages": group_advantages,  # (rewards, config): (m, n) -> (m, n)
        "loss": grpo_loss,  # (log_probs, batch, config): (B, T) -> (B,)
        "update": update,  # (engine, reference, episodes, config, loss) -> micro-batches
        "measure": measure_step,  # (rows, batches, engine, step, config) -> metrics
        "evaluate": evaluate,  # (sampler, problems, task, config, path, step) -> metrics
    }
    for name in replaced:
        if name not in parts:
            raise TypeError(f"main has no part {name}; it has {', '.join(parts)}")
    return SimpleNamespace(**parts | replaced)


COLUMNS = (
    "(correct: share of completions; no signal: share of groups with equal rewards)\n"
    "   step   correct                  format reward tokens no signal seconds   left"
)
STEP_LINE = (  # The names are those of the metrics. The slash in reward/answer belongs to the name.
    "{step:>4}/{steps:<4} {bar:·<20}{reward/answer:4.0%} {reward/format:6.0%} {reward:6.2f} "
    "{completions/mean_length:6.0f} {frac_reward_zero_std:9.0%} {time/step:7.1f} {left:2.0f} min"
)


def main(config, **replaced):
    """Evaluate, train, evaluate again, save. Returns the run's directory.

    If Ctrl-C or SIGTERM stops the loop, the run is saved, and then KeyboardInterrupt is raised.
    """
    parts = parts_of_main(replaced)
    check_numbers(config)
    # However the run ends, `at_end` closes the sampler and gives back threads, signals and so on.
    with ExitStack() as at_end:
        at_end.enter_context(mock.patch.dict(os.environ))  # with settings of DeepSpeed and vLLM
        device = start_process(config)
        # Before a model is loaded: a mistake in --task, --prompt or --data costs no time.
        module, prompt = find_task(config)
        train = parts.load_problems(module, "train", config)
        test = parts.load_problems(module, "test", config)
        path, settings = find_run(config, replaced, [prompt, train])
        policy, tokenizer = parts.load_model(config)
        check_scorer(policy.eval(), config)  # again: a caller's load_model may leave it out
        task = Task(tokenizer, policy, config, (module, prompt))
        train = task.with_room(train, config)
        test = task.with_room(test, config)[: config.eval_problems]
        check_problems(config, train, test, parts)
        reference = parts.make_reference(policy, config)
        sampler = parts.make_sampler(policy, task, device, config)
        at_end.callback(sampler.close)
        at_end.enter_context(threads_for(policy))
        size = policy.num_parameters()  # before ZeRO 3 shards them: then each has 0 elements
        engine = parts.make_engine(Scorer(policy, config), device, config)
        recorder = find_recorder()
        create_run(path, settings)  # all settings have been checked
        print(f"{size:,} weights on {device}; {type(sampler).__name__}; {path}")
        wandb_run = open_wandb(path, config, at_end)
        start = load_checkpoint(engine, path)  # 0 if the run is new
        # A checkpoint, or a caller's load_model, may have other weights than the files of --model.
        sampler.sleep()  # sync expects a sleeping sampler
        sampler.sync(policy)
        history = read_history(path, start)
        if not history:  # a new run begins with an evaluation of the base, as step 0
            metrics = {"step": start} | parts.evaluate(sampler, test, task, config, path, start)
            log(metrics, history, path, wandb_run)
        stop_requests = catch_signals(at_end)
        print(COLUMNS)
        for step in range(start + 1, config.steps + 1):
            began = time.monotonic()
            # 1. Draw m problems. 2. Sample a group of completions of each. 3. Reward them.
            episodes = parts.rollout(sampler, train, task, config, step)
            sampler.sleep()  # vLLM frees its share of the GPU
            # 4. Advantages: how much better is each completion than its group?
            rewards = torch.tensor([e.reward for e in episodes]).view(-1, config.group_size)
            advantages = parts.advantages(rewards, config)  # (m, n)
            for e, advantage in zip(episodes, advantages.flatten().tolist(), strict=True):
                e.advantage = advantage
            # 5. Log-probs under the reference. 6. The loss and its gradient. 7. One AdamW step.
            set_learning_rate(engine.optimizer, learning_rate(step, config))
            batches = parts.update(engine, reference, episodes, config, parts.loss)
            # 8. vLLM wakes up and gets the new weights; the file's own sampler shares them.
            sampler.sync(policy)
            # 9. Log, evaluate, save.
            rows = as_rows(episodes)
            write_rows(f"{path}/episodes/step_{step:06d}.jsonl", rows)
            metrics = parts.measure(rows, batches, engine, step, config)
            metrics["time/step"] = time.monotonic() - began
            left = minutes_left([*history, metrics], config)
            bar = "█" * round(20 * metrics["reward/answer"])
            print(STEP_LINE.format(steps=config.steps, bar=bar, left=left, **metrics), flush=True)
            for advice in advice_on(metrics, step == start + 1, size, config):
                print(advice)
            if recorder:
                recorder(path, step, episodes, batches, engine, tokenizer, config)
            if is_due(step, config.eval_every, config):
                metrics |= parts.evaluate(sampler, test, task, config, path, step)
            log(metrics, history, path, wandb_run)
            save_or_stop(engine, path, step, stop_requests, config)
        save_model(policy, tokenizer, f"{path}/model")
    print_summary(history, path)
    if recorder and RANK == 0:
        from nano_report import viewer

        viewer.write_at_end(path)
    return path


def is_due(step, every, config):
    """Every so many steps (0: never), and after the last one."""
    return step == config.steps or (every and not step % every)


# %% [markdown]
# ## 7. Measuring: step 9


# %%
def measure_step(rows, batches, engine, step, config):
    """The metrics of a step over all processes; docs/metrics.md explains each.

    `rows` are the episodes of all processes, `batches` this process's micro-batches.
    """
    log_probs = all_values(batches, "old_log_probs")  # 0 outside of the mask, as the others
    difference = log_probs - all_values(batches, "sampler_log_probs")
    kl = torch.zeros(())
    if "ref_log_probs" in batches[0]:
        kl = k3(all_values(batches, "ref_log_probs"), log_probs)
    sums = {  # of this process
        "loss": sum(batch["loss"].item() for batch in batches),
        # Tokens are drawn from pi: the mean of -log pi(token) estimates the entropy.
        "entropy": -log_probs.sum().item(),
        "kl": kl.sum().item(),
        # Not a number if a rollout of your own does not know its log-probs.
        "difference": difference.nan_to_num().abs().sum().item(),
    }
    total = {name: sum(gather([value])) for name, value in sums.items()}
    tokens = max(1, sum(row["written"] for row in rows))  # 0 if all are outside the masks
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, config.group_size)  # (m, n)
    no_signal = (rewards == rewards[:, :1]).all(dim=1)  # (m,)
    return {
        "step": step,
        "lr": learning_rate(step, config),
        "grad_norm": float(engine.get_global_grad_norm()),
        "loss": total["loss"] / WORLD,  # grpo_loss has divided by this process's N
        "entropy": total["entropy"] / tokens,
        "kl": total["kl"] / tokens,
        "sampling/logp_difference_mean": total["difference"] / tokens,
        "reward": mean(rows, "reward"),
        "reward/format": mean(rows, "format_reward"),
        "reward/answer": mean(rows, "answer_reward"),
        "frac_reward_zero_std": no_signal.float().mean().item(),
        "completions/mean_length": mean(rows, "length"),
        "completions/clipped_ratio": mean(rows, "cut_off"),  # TRL's name; not PPO's clip
    }


def minutes_of_training(history):
    """Training time, without evaluations."""
    return sum(row["time/step"] for row in history[1:]) / 60


def minutes_left(history, config):
    """Completions often become longer, so the time of k steps is assumed to grow as k**1.1."""
    return minutes_of_training(history) * ((config.steps / history[-1]["step"]) ** 1.1 - 1)


def as_rows(episodes):
    """The episodes of all processes, as rows of a file."""
    return gather([as_row(e) for e in episodes])


def as_row(e):
    """An episode as a row of a file: lengths in the place of the lists of tokens."""
    return {
        "problem": e.problem,
        "completion": e.completion,
        "reward": e.reward,
        "format_reward": e.format_reward,
        "answer_reward": e.answer_reward,
        "why": e.why,
        "advantage": e.advantage,
        "length": len(e.token_ids),
        "written": sum(e.mask),  # tokens that the model wrote
        "prompt_length": len(e.prompt_ids),
        "cut_off": e.cut_off,
    }


def mean(rows, name):
    """The mean of one column of rows."""
    return sum(row[name] for row in rows) / len(rows)


def all_values(batches, name):
    """The values (B, T) of all micro-batches, one after the other."""
    return torch.cat([batch[name].flatten() for batch in batches])


def evaluate(sampler, problems, task, config, path, step):
    """The metrics of one completion of each held-out problem, always with the same seeds."""
    episodes = sample_and_reward(sampler, problems, task, config, "evaluation", n=1)
    rows = as_rows(episodes)
    write_rows(f"{path}/evaluations/step_{step:06d}.jsonl", rows)
    share = mean(rows, "answer_reward")
    n = len(rows)
    low, high = interval(share, n)
    print(f"\n{share:.1%} [{low:.1%}, {high:.1%}] of {n} held-out problems correct")
    print_example(rows[0], task, step)
    return {
        "eval/pass@1": share,
        "eval/pass@1_low": low,
        "eval/pass@1_high": high,
        "eval/format": mean(rows, "format_reward"),
        "eval/mean_length": mean(rows, "length"),
        "eval/clipped_ratio": mean(rows, "cut_off"),
        "eval/problems": n,
    }


def print_example(row, task, step):
    """A completion and its verdict: before training with its prompt, later only the last line."""
    text = task.prompt_text(row["problem"]) + row["completion"]
    if step:
        text = text.rstrip().rpartition("\n")[2]
    mark = "✓" if row["answer_reward"] == 1 else "✗"
    print(printable(f"{text}\n{mark} {row['why']}\n"), flush=True)


def printable(text):
    """A model can write characters that control a terminal; only line ends and tabs stay."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def print_summary(history, path):
    """The last lines of a run."""
    shares = [row["eval/pass@1"] for row in history if "eval/pass@1" in row]
    if shares:
        print(
            f"From {shares[0]:.1%} to {shares[-1]:.1%} of held-out problems, in "
            f"{minutes_of_training(history):.1f} minutes of training"
        )
    print(f"Model: {path}/model")


def interval(share, n):
    """95% interval (low, high) of a share of n problems; it stays within [0, 1] (Wilson 1927)."""
    z2 = 1.96**2 / n
    centre = share + z2 / 2
    half = (z2 * (share * (1 - share) + z2 / 4)) ** 0.5
    return max(0.0, centre - half) / (1 + z2), (centre + half) / (1 + z2)


def advice_on(metrics, is_first, size, config):
    """Warnings about a step's metrics and, in the first step, hints about the settings.

    `size`: how many weights the policy has.
    """
    if not math.isfinite(metrics["grad_norm"]):
        yield "WARNING: the gradient is not finite, so this step is skipped: lower --learning_rate?"
    if metrics["sampling/logp_difference_mean"] > 0.1:
        yield "WARNING: sampler and trainer differ in log-probs: do weights and precision agree?"
    if not is_first:
        return
    if size > 100_000_000:
        if config.learning_rate > 5e-5:
            yield "Hint: --learning_rate is for a tiny model; try 1e-6, with adapters 1e-5"
        if config.prompt == "short":
            yield "Hint: --prompt short is for models/nano-base; try chat or plain"
    if metrics["completions/clipped_ratio"] == 1:
        yield "Hint: all completions are cut off; try a larger --max_tokens"
    if metrics["reward"] == 0:
        yield "Hint: no completion has a reward; try another --prompt, or nano_sft.py first"
    elif metrics["frac_reward_zero_std"] == 1:
        yield "Hint: no group has a signal; try a larger --group_size, or another --model"


# %% [markdown]
# # The machinery
#
# The algorithm ends here. The rest makes it fast, or keeps it safe.
#
# ## 8. Log-probs with little memory

# %%
CHUNK = 2**25  # logits that are in memory at once: 128 MiB, and a few times that in copies


class Scorer(torch.nn.Module):
    """A language model that returns the log-probs of completions instead of logits."""

    def __init__(self, model, config):
        super().__init__()
        self.model = model
        self.config = config

    def forward(self, batch):
        """log pi of each label where response_mask is True, 0 elsewhere: (B, T)."""
        mask = batch["response_mask"]
        with precision(mask.device, self.config):
            decoder = self.model.get_decoder()
            hidden = decoder(batch["input_ids"], use_cache=False).last_hidden_state  # (B, T, H)
        # All logits, (B, T, V), would be by far the largest tensor of the step: 5 GB for 8 x 1,024
        # tokens of Qwen. So they are computed only at the completions' tokens, in chunks, and
        # `checkpoint` computes them again in the backward pass instead of storing them. (It keeps
        # no random state, because nothing here is random.) With ZeRO 3 each chunk waits for all
        # processes, so all have the same number of chunks: that of a full micro-batch.
        tokens = self.config.micro_batch_size * self.config.max_tokens
        count = 1 + tokens * self.model.config.get_text_config().vocab_size // CHUNK
        chunks = zip(hidden[mask].tensor_split(count), batch["labels"][mask].tensor_split(count))
        values = [
            checkpoint(self.token_log_probs, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, torch.cat(values))

    def token_log_probs(self, hidden, labels):
        """(K, H), (K,) -> (K,), in float32, at the temperature of the sampling. K tokens."""
        with precision(hidden.device, self.config):
            logits = self.model.get_output_embeddings()(hidden).float()  # (K, V)
        return -F.cross_entropy(logits / self.config.temperature, labels, reduction="none")


@torch.no_grad()
def check_scorer(policy, config):
    """Stop if `Scorer` does not compute this model's log-probs. The test is on tokens 1 to 8.

    A model may do more with its last hidden state than project it: Gemma 4 caps its logits, Granite
    scales them. Then `Scorer` and the sampler would have different distributions.
    """
    batch = collate([Episode(prompt_ids=[0], token_ids=list(range(1, 9)))], policy.device)
    logits = policy(batch["input_ids"]).logits[0].float()  # (T, V)
    expected = -F.cross_entropy(logits, batch["labels"][0], reduction="none")
    # max_tokens=1: one chunk, because bfloat16 weights may round other shapes differently.
    plain = replace(config, dtype="float32", temperature=1.0, max_tokens=1)
    found = Scorer(policy, plain)(batch)[0]
    if not (found - expected).abs().max() < 1e-3:
        raise SystemExit(
            f"--model {config.model} is not supported: the loss would have other log-probs "
            "than the model"
        )


def precision(device, config):
    """A context in which float32 weights are multiplied in config.dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")


# %% [markdown]
# ## 9. Samplers
#
# A sampler has four methods: `generate`; `sleep`, before the update; `sync`, after it; `close`.
# vLLM is the sampler for a GPU, the loop below for everything else. `generate` returns the tokens
# and their log-probs under the distribution that they were drawn from. The trainer computes these
# log-probs again. If the two differ by more than rounding, sampler and trainer do not use the same
# weights, temperature or precision.


# %%
def sample_token(logits, temperature, uniform):
    """A token from softmax(logits / temperature), and its log-prob: (R, V) -> (R,), (R,).

    Temperature 0 is greedy. `uniform` (R, 1) has a random number from [0, 1) for each row. The
    first token whose cumulative probability exceeds it is taken, so each token is drawn with its
    own probability.
    """
    probs = torch.softmax(logits.float() / max(temperature, 1e-6), dim=-1)  # (R, V)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    goal = uniform * cumulative[:, -1:]  # by rounding, the last sum is not quite 1
    token = torch.searchsorted(cumulative, goal, right=True)  # (R, 1)
    token = token.clamp(max=logits.shape[-1] - 1)  # rounding can give an index one past the last
    return token[:, 0], probs.gather(-1, token)[:, 0].log()


class TransformersSampler:
    """Samples directly from the policy's weights."""

    def __init__(self, policy, task, config):
        if config.zero_stage == 3:
            raise SystemExit("--zero_stage 3 needs --sampler vllm")
        self.model = policy
        self.task = task
        self.config = config
        self.continuation = LibraryContinuation
        if is_like_llama(policy.config):
            self.continuation = FastContinuation
        else:
            print("This model is sampled by transformers' forward pass, which is slower")

    def sleep(self):
        """Nothing to do: it uses the policy's memory."""

    def sync(self, policy):
        """Nothing to do: it uses the policy's weights."""

    def close(self):
        """Nothing to do: it started nothing."""

    def generate(self, prompts, n, temperature, seeds):
        """[(token ids, log-probs)]: n of the first prompt, then n of the second, and so on.

        Each prompt has its own seed, so its completions depend neither on the other prompts nor on
        the number of processes (except for rounding, which can change a token if the random number
        lies on the border between two). So if the GPU has too little memory for all prompts at
        once, one half is sampled after the other.
        """
        half = len(prompts) // 2
        try:
            return self.generate_together(prompts, n, temperature, seeds)
        except torch.OutOfMemoryError:
            if not half:
                raise
        completions = []  # here, after `except`, what did not fit has been freed
        for part in (slice(half), slice(half, None)):
            completions += self.generate(prompts[part], n, temperature, seeds[part])
        return completions

    @torch.inference_mode()
    def generate_together(self, prompts, n, temperature, seeds):
        """The same for prompts whose keys and values fit into the memory."""
        device = self.model.device
        max_tokens = self.config.max_tokens
        with precision(device, self.config):
            # One forward pass over all prompts, padded on the left to P rows of W tokens.
            rows = [torch.tensor(ids, device=device) for ids in prompts]
            ids = pad_sequence(rows, batch_first=True, padding_value=-1, padding_side="left")
            visible = ids >= 0  # (P, W)
            position = (visible.cumsum(dim=1) - 1).clamp(min=0)
            out = library_forward(self.model, ids.clamp(min=0), position, visible)
            # Each prompt's logits, keys and values are copied to n rows. A row is a completion; R
            # is how many have not ended.
            copies = torch.arange(len(prompts), device=device).repeat_interleave(n)
            logits = out.logits[copies, -1]  # (R, V)
            continuation = self.continuation(self.model, out.past_key_values, copies, self.config)
            visible = visible[copies]  # (R, S): all columns but the padding
            uniforms = random_numbers(seeds, max_tokens, n).to(device)  # (max_tokens, R)
            completions = [([], []) for _ in visible]
            row = torch.arange(len(visible), device=device)  # row[k]: which completion is in row k
            # The bar is shown only on a screen.
            for t in tqdm(range(max_tokens), "sampling", leave=False, disable=None):
                # The embedding can have more rows than there are tokens. The logits of these rows
                # are dropped. (The trainer's softmax keeps them: too unlikely to matter.)
                logits = logits[:, : len(self.task.tokenizer)]
                token, log_prob = sample_token(logits, temperature, uniforms[t, row, None])
                running = []
                for i, number, value in zip(row.tolist(), token.tolist(), log_prob.tolist()):
                    token_ids, log_probs = completions[i]
                    token_ids.append(number)
                    log_probs.append(value)
                    running.append(not self.task.has_ended(token_ids))
                # Completions that have ended leave the batch.
                kept = rows_to_keep(running)
                if not kept:
                    break
                row = row[kept]
                continuation.keep(kept)
                visible = F.pad(visible[kept], (0, 1), value=True)  # one column more
                position = visible.sum(dim=1) - 1  # (R,)
                logits = continuation.append(token[kept], position, visible)
            return completions


def random_numbers(seeds, max_tokens, n):
    """Uniform on [0, 1), for n rows of each seed: (max_tokens, R).

    A prompt's numbers depend only on its seed; made on the CPU, they are the same on all devices.
    """
    columns = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        columns.append(torch.rand(max_tokens, n, dtype=torch.float64, generator=generator))
    return torch.cat(columns, dim=1)


def rows_to_keep(running):
    """The rows that continue, in an order in which few of them move.

    For example, the rows a and c of a b c d have ended. The last running row, d, moves into the
    first free place, and b stays. The first two rows are then kept: [3, 1].
    """
    count = sum(running)
    movers = [i for i in range(count, len(running)) if running[i]]
    return [i if running[i] else movers.pop(0) for i in range(count)]


def library_forward(model, ids, position, visible, past=None):
    """transformers' forward pass for the next tokens of each row, with its cache."""
    return model(
        input_ids=ids,
        position_ids=position,
        attention_mask=visible,
        past_key_values=past,
        use_cache=True,
        logits_to_keep=1,
    )


def is_like_llama(config):
    """Whether `next_logits` computes this model: Llama, Qwen2 or Qwen3 with full attention."""
    layers = getattr(config, "layer_types", None) or []
    return config.model_type in ("llama", "qwen2", "qwen3") and "sliding_attention" not in layers


class FastContinuation:
    """Keys and values of all rows in one tensor, with room for the completions."""

    def __init__(self, model, past, copies, config):
        self.model = model
        layers = [torch.stack([layer.keys, layer.values]) for layer in past.layers]
        # transformers' cache is float32, because the rotary angles are. If it stayed so, attention
        # would round all of it to bfloat16 for each token.
        cache = torch.stack(layers).to(getattr(torch, config.dtype))
        cache = cache[:, :, copies]  # (layers, 2, R, heads, W, D)
        self.cache = F.pad(cache, (0, 0, 0, config.max_tokens))

    def keep(self, rows):
        """Only these rows, in this order. Those that stay in their place are not copied."""
        holes = [i for i, row in enumerate(rows) if row != i]
        self.cache[:, :, holes] = self.cache[:, :, [rows[i] for i in holes]]
        self.cache = self.cache[:, :, : len(rows)]

    def append(self, token, position, visible):
        """One token more in each row; the logits of the next one: (R,) -> (R, V)."""
        cache = self.cache[..., : visible.shape[1], :]
        return next_logits(self.model, token, position, visible, cache)


class LibraryContinuation:
    """The same by transformers' cache and forward pass, also for models with linear attention."""

    def __init__(self, model, past, copies, config):
        self.model = model
        self.past = past
        self.past.reorder_cache(copies)

    def keep(self, rows):
        self.past.reorder_cache(torch.tensor(rows))

    def append(self, token, position, visible):
        out = library_forward(self.model, token[:, None], position[:, None], visible, self.past)
        return out.logits[:, -1]


def next_logits(model, token, position, visible, cache):
    """Append one token to each row and return the logits of the next one: (R,) -> (R, V).

    For models built like Llama. R rows are the completions that have not ended.

    transformers' own forward pass gives the same numbers, but copies the cache for each token.
    `position` (R,); `visible` (R, S): which of the S columns a row attends to, this token included;
    `cache` (layers, 2, R, heads, S, D): keys and values of size D; their last column is written
    here.
    """
    decoder = model.get_decoder()
    hidden = decoder.embed_tokens(token)  # (R, H)
    cos, sin = decoder.rotary_emb(hidden, position[:, None])  # (R, 1, D)
    for layer, layer_cache in zip(decoder.layers, cache):
        attention = layer.self_attn
        x = layer.input_layernorm(hidden)
        # Grouped queries: several query heads share one key head; `heads` counts the key heads.
        # Attention expects (R, heads, positions, D). There is only one position, so the query uses
        # the positions axis for the heads that share a key head, and no key has to be copied.
        # (With -1, `view` computes that number: several query heads, but only one key head.)
        shape = (len(token), layer_cache.shape[2], -1, layer_cache.shape[-1])
        query = attention.q_proj(x).view(shape)
        key = attention.k_proj(x).view(shape)
        if hasattr(attention, "q_norm"):  # Qwen3
            query = attention.q_norm(query)
            key = attention.k_norm(key)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        layer_cache[0, :, :, -1:] = key
        layer_cache[1, :, :, -1:] = attention.v_proj(x).view(shape)
        out = F.scaled_dot_product_attention(
            query, layer_cache[0], layer_cache[1], visible[:, None, None], scale=attention.scaling
        )
        hidden = hidden + attention.o_proj(out.reshape(len(token), -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.get_output_embeddings()(decoder.norm(hidden))


class VLLMSampler:
    """vLLM in this process: paged KV cache, continuous batching. It sleeps during the update."""

    def __init__(self, policy, task, config):
        self.task = task
        self.config = config
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # or it logs each sleep and each sync
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, to pass it weights
        import vllm

        self.llm = vllm.LLM(
            model=config.model,
            dtype=config.dtype,
            max_model_len=task.max_length,
            logprobs_mode="processed_logprobs",  # those of softmax(logits / temperature)
            gpu_memory_utilization=config.vllm_gpu_memory_utilization,
            enable_sleep_mode=True,
            # One vLLM in each of torchrun's processes.
            distributed_executor_backend="external_launcher" if WORLD > 1 else None,
        )
        # A bias against sampling the rows that only pad the embedding. (vLLM takes at most 1,024
        # biases. Other rows are too unlikely to matter.)
        rows = range(len(task.tokenizer), policy.get_input_embeddings().num_embeddings)
        self.bias = dict.fromkeys(rows[:1024], -100.0)

    def generate(self, prompts, n, temperature, seeds):
        """Like `TransformersSampler.generate`."""
        import vllm

        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        params = [
            vllm.SamplingParams(
                n=n,
                temperature=temperature,
                max_tokens=self.config.max_tokens,
                seed=seed,
                logprobs=0,  # only of the sampled token
                flat_logprobs=True,  # lists of numbers instead of an object per token
                stop_token_ids=sorted(self.task.stop_ids),
                stop=list(self.task.prompt.stop),
                include_stop_str_in_output=True,
                detokenize=bool(self.task.prompt.stop),
                skip_special_tokens=False,  # a stop text can be a special token
                logit_bias=self.bias,
            )
            for seed in seeds
        ]
        completions = []
        # A bar on a screen only. (tqdm's own disable=None makes vLLM divide by 0.)
        bar = partial(tqdm, leave=False) if os.isatty(2) else False
        for result in self.llm.generate(inputs, params, use_tqdm=bar):
            for out in result.outputs:
                completions.append((list(out.token_ids), out.logprobs.logprobs))
        return completions

    def sleep(self):
        """Give the GPU's memory to the update."""
        self.llm.sleep()  # level 1; level 2 keeps no copy of the weights, and fails for some models

    def sync(self, policy):
        """Step 8: wake up, load the trained weights, forget what was computed with the old ones."""
        torch.cuda.empty_cache()  # what torch keeps for later is not free for vLLM
        self.llm.wake_up()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": full_weights(policy)})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept keys and values of old weights")

    def close(self):
        """Give back memory and process group, also torchrun's; a later run starts its own vLLM."""
        self.llm.llm_engine.engine_core.shutdown()


def make_sampler(policy, task, device, config):
    """vLLM if the settings ask for it; with "auto", if it is installed and supports the GPU."""
    use_vllm = config.sampler == "vllm"
    if config.sampler == "auto" and device.type == "cuda":
        # Below capability 8.0 (a T4) vLLM has no FlashAttention; its other kernel can crash.
        new_enough = torch.cuda.get_device_capability() >= (8, 0)
        # vLLM knows a checkpoint's names of weights; transformers may have loaded others from it.
        renamed = getattr(policy, "_weight_conversions", None)
        use_vllm = new_enough and not renamed and importlib.util.find_spec("vllm")
    if use_vllm:
        return VLLMSampler(policy, task, config)
    return TransformersSampler(policy.to(device), task, config)


@torch.no_grad()
def full_weights(policy):
    """(name, weight), one at a time, because ZeRO 3 shards them; tied ones under both names."""
    for name, weight in policy.named_parameters(remove_duplicate=False):
        if hasattr(weight, "ds_id"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([weight]):
                # vLLM keeps this weight until it has all weights of the layer. By then DeepSpeed
                # has sharded it again and freed its memory, so vLLM gets a copy.
                yield name, weight.clone()
        else:
            yield name, weight


# %% [markdown]
# ## 10. Engines
#
# Under torchrun (also with one process) the engine is DeepSpeed's, otherwise it is `TorchEngine`.
# `main` sets the learning rate before each step.


# %%
class TorchEngine:
    """torch's AdamW behind DeepSpeed's calls."""

    def __init__(self, scorer, device, config, optimizer):
        self.module = scorer.to(device)
        self.device = device
        self.config = config
        self.optimizer = optimizer

    def __call__(self, batch):
        return self.module(batch)

    def backward(self, loss):
        loss.backward()

    def step(self):
        max_norm = self.config.max_grad_norm or torch.inf  # 0: no clipping, as in DeepSpeed
        self.norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)
        if self.norm.isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self):
        return self.norm

    def save_checkpoint(self, path, tag, save_latest):
        state = [self.module.state_dict(), self.optimizer.state_dict()]
        torch.save(state, f"{path}/{tag}.pt")

    def load_checkpoint(self, path, tag):
        module, optimizer = torch.load(f"{path}/{tag}.pt", map_location="cpu", weights_only=True)
        self.module.load_state_dict(module)
        self.optimizer.load_state_dict(optimizer)


class TwoThreadsEngine(TorchEngine):
    """Each backward pass runs in a second thread, during the next forward pass.

    On a CPU, an operation of a small model uses one core (`threads_for`). The second thread uses
    another, so a step is 1.28 times as fast (docs/performance.md), with the same bits.
    """

    second_thread = ThreadPoolExecutor(1)
    last_backward = None  # still running, or done

    def wait(self):
        if self.last_backward:
            self.last_backward.result()  # an error in it is raised here

    def backward(self, loss):
        self.wait()
        self.last_backward = self.second_thread.submit(loss.backward)

    def step(self):
        self.wait()
        super().step()


def make_engine(scorer, device, config, optimizer=None):
    """DeepSpeed's engine for processes of torchrun, else torch's AdamW.

    An optimizer of your own takes the place of AdamW. (With several processes, it must be one that
    DeepSpeed's ZeRO knows.) A parameter group of it may have `lr_scale`: `main` multiplies the
    learning rate by it.
    """
    if optimizer is None:
        trained = [p for p in scorer.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.0)
    if "RANK" not in os.environ:
        # Two passes at once need memory for both, and are faster only if each uses one core.
        kind = TorchEngine
        one_core = device.type == "cpu" and torch.get_num_threads() == 1
        if one_core and not config.gradient_checkpointing:
            kind = TwoThreadsEngine
        return kind(scorer, device, config, optimizer)
    import deepspeed

    dist.barrier()  # wait until vLLM has started everywhere: DeepSpeed's start could hang it
    deepspeed.ops.__compatible_ops__ = {}  # otherwise it compiles an all-reduce on a CPU
    settings = {
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "managed_gradient_accumulation": False,  # any number of backward passes, then one step
        "gradient_clipping": config.max_grad_norm,
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": 50_000_000,  # the default takes 0.9 GiB
            "offload_optimizer": {"device": "cpu" if config.offload else "none"},
        },
        # torch's AdamW with --offload, too: DeepSpeed's own would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=scorer, optimizer=optimizer, config=settings)
    return engine


@contextmanager
def threads_for(policy):
    """One thread for a small model; restored afterwards.

    With two, an update takes two thirds of the time, but beside a busy program twice the time,
    because each waits for the other (docs/performance.md).
    """
    before = torch.get_num_threads()
    if policy.num_parameters() < 20_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# %% [markdown]
# ## 11. The model and the task


# %%
def load_model(config):
    """(policy, tokenizer). No code that comes with a model is run, and no pickle is read."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model,
            # A mistyped path is not looked for on the hub, which without a network takes a minute.
            local_files_only=os.path.isdir(os.path.dirname(config.model)),
            trust_remote_code=False,
        )
        settings = AutoConfig.from_pretrained(config.model, trust_remote_code=False)
        if getattr(settings, "quantization_config", None):
            raise SystemExit(f"--model {config.model}: it is quantized, which is not supported")
        for name, value in vars(settings).items():
            # No dropout: the policy that is trained is the one that has sampled.
            if "drop" in name and isinstance(value, float):
                setattr(settings, name, 0.0)
        policy = AutoModelForCausalLM.from_pretrained(
            config.model,
            config=settings,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
        )
        if config.gradient_checkpointing:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
    except (OSError, ValueError, SafetensorError) as error:
        raise SystemExit(
            f"--model {config.model} cannot be loaded. It must be a directory with safetensors "
            "(models/nano-base: clone the repository; of git-lfs: git lfs pull), or a model on the "
            "hub. That needs a network, and its name must not begin with a directory of yours: "
            f"{error}"
        ) from None
    check_scorer(policy, config)
    return policy, tokenizer


def import_task(name):
    """The module of --task: NAME_rewards.py on Python's path or in tasks/, or that file."""
    try:
        if not name.endswith(".py"):
            found = importlib.util.find_spec(f"{name}_rewards")
            return importlib.import_module(f"{name}_rewards" if found else f"tasks.{name}_rewards")
        sys.path.append(os.path.dirname(name))  # for modules beside it
        module_name = re.sub(r"\W", "_", name)
        spec = importlib.util.spec_from_file_location(module_name, name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # there, pickle finds its classes
        spec.loader.exec_module(module)
        return module
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise SystemExit(
            f"--task {name} cannot be imported: {error}. There are countdown, gsm8k and "
            "those in tasks/ (a nano_r1.py copied alone has none), or give a file's path"
        ) from None


def find_task(config):
    """(module, prompt) of --task and --prompt, which is one of the module's or a toml file."""
    module = import_task(config.task)
    if config.prompt in module.PROMPTS:
        return module, module.PROMPTS[config.prompt]
    import problem_files  # only files need it

    return module, problem_files.read_prompt(config.prompt, module)


def load_problems(module, split, config):
    """The problems of "train" or "test"."""
    return module.load_problems(split, config.data, config.seed)


# A tag such as <think> at the end of a prompt: the chat template has begun the answer.
THINKING = r"(?i)([<\[◁][^<>\[\]/\s]*(?:think|thought|reason)[^<>\[\]/\s]*[>\]▷])\s*$"


def closing(tag):
    """<think> -> </think>, [THINK] -> [/THINK]."""
    return f"{tag[0]}/{tag[1:]}"


def encode_prompt(tokenizer, text, chat=False):
    """Token ids; `chat`: of a chat template. The token that begins a text is there once."""
    # A chat template has it, a text may have it; else the tokenizer adds it.
    special = not (chat or text.startswith(tokenizer.bos_token or "\0"))
    ids = tokenizer.encode(text, add_special_tokens=special)
    if special and ids[-1] == tokenizer.eos_token_id:  # it was saved with add_eos_token
        ids.pop()
    return ids


class Task:
    """The module of a task, with one of its prompts and the model's tokenizer.

    The module has PROMPTS, {name: Prompt(text, opening, chat, stop, and what the reward needs)};
    HIDDEN, the columns of a problem that are never filled into a prompt, by default `answer`;
    load_problems(split, source, seed) -> list of dicts; reward(text, problem, prompt) -> total,
    format, answer (floats), why (str). Its `problem` also has the completion's `token_ids`.
    """

    def __init__(self, tokenizer, policy, config, found=None):
        self.module, self.prompt = found or find_task(config)
        self.tokenizer = tokenizer
        self.template = self.prompt.text  # of every prompt; a problem's columns stand in {braces}
        self.chat = self.prompt.chat and tokenizer.chat_template
        if self.chat:
            turns = [{"role": "user", "content": self.template}]
            try:
                self.template = tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=True,
                    # Instead of today's date: a run that is resumed tomorrow has the same prompts.
                    strftime_now=lambda _: "26 Jul 2024",
                )
            except Exception as error:  # many kinds: the model's template is a program
                raise SystemExit(
                    f"The model's chat template fails: {error}; use a prompt without it, such as "
                    "--prompt plain"
                ) from None
        # What the template has after the question, such as <|im_end|>; Qwen's base has another end.
        rest = self.template.partition(self.prompt.text)[2].partition("\n")[0]
        end_of_turn = tokenizer.get_added_vocab().get(rest)  # None if it is no such token
        self.tags = {}  # {the chat template's tag: the task's tag}
        opened = re.search(THINKING, self.template)
        known = re.search(THINKING, self.prompt.opening)
        if opened and known:  # a second one would never be closed
            self.tags[opened[1]] = known[1]
            self.tags[closing(opened[1])] = closing(known[1])
        elif opened:
            self.prompt = self.prompt._replace(opening=opened[1])  # the reward has to know it
        else:
            self.template += self.prompt.opening
        ends = policy.generation_config.eos_token_id  # a number, a list, or None
        if not isinstance(ends, list):
            ends = [ends]
        self.stop_ids = {tokenizer.eos_token_id, end_of_turn, *ends} - {None}
        longest = getattr(policy.config.get_text_config(), "max_position_embeddings", torch.inf)
        self.max_length = min(longest, 4096 + config.max_tokens)  # of a prompt and its completion

    def load_problems(self, split, config):
        """The problems of "train" or "test" whose prompts leave room for a completion."""
        return self.with_room(load_problems(self.module, split, config), config)

    def with_room(self, problems, config):
        """Those whose prompts leave room for a completion."""
        room = self.max_length - config.max_tokens
        if room < 1:
            raise SystemExit(f"--max_tokens must be below {self.max_length}: the model's positions")
        # A token is one byte or more, and a tokenizer adds only a few, so a short text fits. It is
        # not tokenized, because that would take minutes for the hub's 490,364 prompts.
        kept = [
            problem
            for problem in problems
            if len(self.prompt_text(problem).encode()) < room - 16
            or len(self.prompt_ids(problem)) <= room
        ]
        if not kept:
            raise SystemExit(
                "No problem, or none with room for a completion: a smaller --max_tokens?"
            )
        if len(kept) < len(problems):
            print(f"{len(problems) - len(kept)} problems left out: prompts above {room} tokens")
        return kept

    def prompt_text(self, problem):
        """The question and the beginning of the answer, with the problem's columns filled in."""
        hidden = getattr(self.module, "HIDDEN", ("answer",))

        def column(found):
            name = found[1]
            return str(problem[name]) if name in problem and name not in hidden else found[0]

        return re.sub(r"\{([^{}]+)\}", column, self.template)

    def prompt_ids(self, problem):
        """Token ids of `prompt_text`."""
        return encode_prompt(self.tokenizer, self.prompt_text(problem), self.chat)

    def reward(self, completion, problem, token_ids):
        """Step 3: (total, format, answer, why), three floats and a str."""
        # The reward gets the task's thinking tags for those of the chat template.
        for tag, known in self.tags.items():
            completion = completion.replace(tag, known)
        found = self.module.reward(completion, {"token_ids": token_ids} | problem, self.prompt)
        try:
            numbers = (found.total, found.format, found.answer)
            finite = all(map(math.isfinite, numbers)) and 0 <= found.answer <= 1
        except (AttributeError, TypeError):  # a number alone; None, a text, a list, ...
            finite = False
        if not finite:
            raise SystemExit(
                "The reward of a completion must have three finite numbers, the answer's from 0 to "
                f"1, not {found}. The problem: {problem!s:.1000}. The completion: "
                f"{completion!r:.1000}"
            )
        return *map(float, numbers), str(found.why)

    def text_of(self, token_ids):
        """A completion for the reward, without end tokens. Other special tokens can be tags."""
        return self.tokenizer.decode([i for i in token_ids if i not in self.stop_ids])

    def has_ended(self, token_ids):
        """Whether a completion ends with an end token, or has a stop text in its last 32 tokens."""
        if token_ids[-1] in self.stop_ids:
            return True
        end = token_ids[-32:]
        return any(stop in self.tokenizer.decode(end) for stop in self.prompt.stop)


# %% [markdown]
# ## 12. A run: its processes, its directory, its checkpoints, its end


# %%
def start_process(config):
    """This process's device. With torchrun, the processes connect to each other here."""
    on_gpu = torch.cuda.is_available() and config.device != "cpu"
    if config.device == "cuda" and not on_gpu:
        raise SystemExit("--device cuda: torch sees no GPU. Is it a build without CUDA?")
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it builds a graph for each new length
    os.environ.setdefault("DS_ACCELERATOR", device.type)  # DeepSpeed would guess, with a warning
    if "RANK" in os.environ and not dist.is_initialized():  # started by torchrun
        dist.init_process_group("nccl" if on_gpu else "gloo")
        atexit.register(leave_group)
    return device


def leave_group():
    """Leave the process group, unless vLLM has; otherwise a thread can crash at exit."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather(items):
    """The lists of all processes, joined; the same on each of them."""
    everywhere = [items] * WORLD
    if WORLD > 1:
        dist.all_gather_object(everywhere, items)
    return sum(everywhere, [])


def check_numbers(config):
    """Stop with a sentence if a setting is a number that no run can have."""
    for name, value in vars(config).items():
        if type(value) in (int, float):
            positive = name in config.ABOVE_0
            if not 0 <= value < math.inf or (positive and value == 0):
                needed = "above 0" if positive else "0 or more"
                raise SystemExit(f"--{name} must be {needed}, not {value}")


def check_problems(config, train, test, parts):
    """Stop with a sentence if a step cannot be drawn or has no group."""
    if test[0] in train:
        print("WARNING: a held-out problem is a training problem, too: is it the same file?")
    if config.prompts_per_step > len(train) or config.prompts_per_step % WORLD:
        raise SystemExit(
            f"--prompts_per_step must be a multiple of the {WORLD} processes, and at most the "
            f"{len(train)} training problems"
        )
    if config.group_size < 2 and parts.advantages is group_advantages:
        raise SystemExit("--group_size must be at least 2: a completion is compared with its group")


def write_rows(path, rows):
    """One JSON object per line. The file is never half written, even if the run is killed."""
    if RANK == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            for row in rows:
                print(json.dumps(row), file=file)
        os.replace(f"{path}.tmp", path)


def read_rows(path):
    """The rows of such a file; none if it is not there."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return list(map(json.loads, file))


def path_of(name, default):
    """out/NAME, which may be given as out/NAME, too; an absolute path stays."""
    return os.path.join("out", re.sub("^out/+", "", name or "") or default)


def find_run(config, functions, learned=None):
    """(the run's directory, the settings to save; None if it is continued). Nothing is written.

    `functions`: {name: function}, the caller's; `learned`: what the run learns from, such as its
    problems. To continue a run, all must be the same, except for those in `MAY_CHANGE`.
    """
    default = os.path.basename(config.task).removesuffix("_rewards.py")
    default += time.strftime("-%Y%m%d-%H%M%S")
    path = gather([config.resume or path_of(config.name, default)])[0]
    saved = shared_rows(f"{path}/config.json")
    if config.resume and not saved:
        raise SystemExit(f"--resume {path}: there is no run; try the directory of one, out/NAME")
    if saved and not config.resume:
        raise SystemExit(
            f"{path}: there is a run; --resume {path} continues it, another --name starts a new one"
        )
    settings = asdict(config)
    settings["processes"] = os.environ.get("WORLD_SIZE", "1, without torchrun")
    for name, function in functions.items():
        settings[name] = re.sub(r" at 0x\w+", "", repr(function))  # without addresses
    settings["checksum of prompt and data"] = seed_of(learned)
    settings = json.loads(json.dumps(settings))  # as in a file: a tuple is a list
    if not saved:
        return path, settings | {"id": str(time.time_ns())}  # the id of wandb's run
    for setting in settings | saved[0]:
        value = saved[0].get(setting)
        if value != settings.get(setting) and setting not in config.MAY_CHANGE:
            raise SystemExit(
                f"--resume {path}: the run was started with {setting} {value}; use the same"
            )
    return path, None


def create_run(path, settings):
    """Make a new run's directory. Of two runs that begin at once, one gets it."""
    if RANK == 0 and settings:
        try:
            os.makedirs(f"{path}/checkpoint")
        except FileExistsError:
            raise SystemExit(
                f"{path}/checkpoint: it is of a run without a config.json, or of one that has just "
                "begun there; try another --name"
            ) from None
        write_rows(f"{path}/config.json", [settings])


def shared_rows(path):
    """`read_rows` of the first process, for all: each machine may have a disk of its own."""
    return gather([read_rows(path)])[0]


def save_checkpoint(engine, path, step):
    """Save as a and b in turn, so one is complete even if the run is killed while it saves.

    latest.json lists the complete ones, newest last.
    """
    latest = f"{path}/checkpoint/latest.json"
    saved = shared_rows(latest)[-1:]
    tag = "b" if saved and saved[0]["tag"] == "a" else "a"
    write_rows(latest, saved)  # the other one is overwritten now
    engine.save_checkpoint(f"{path}/checkpoint", tag, save_latest=False)
    write_rows(latest, [*saved, {"tag": tag, "step": step}])


def save_or_stop(engine, path, step, stop_requests, config):
    """Save a checkpoint if it is due. A signal to one process stops all, after a checkpoint."""
    stopping = gather(stop_requests)
    if stopping or is_due(step, config.save_every, config):
        save_checkpoint(engine, path, step)
    if stopping:
        print(f"Saved after step {step}. To continue: the same flags and --resume {path}")
        raise KeyboardInterrupt


def load_checkpoint(engine, path):
    """Load the last checkpoint that all processes can read. Its step; 0 if there is none."""
    latest = f"{path}/checkpoint/latest.json"
    saved = shared_rows(latest)
    for row in reversed(saved):
        faults = []
        try:
            # DeepSpeed's files are pickles, which can run code: resume only runs of your own.
            engine.load_checkpoint(f"{path}/checkpoint", row["tag"])
        except Exception as error:  # its kind depends on the damage
            faults.append(repr(error))
        faults = gather(faults)
        if not faults:
            return row["step"]
        print(f"The checkpoint of step {row['step']} cannot be read: {faults[0]}")
        write_rows(latest, reversed(saved))  # the next save overwrites it
    if saved or os.path.exists(f"{path}/model"):  # a run that has ended had one
        raise SystemExit(f"--resume {path}: no checkpoint can be read. Start with another --name")
    return 0


def read_history(path, start):
    """The rows of metrics.jsonl up to the checkpoint's step; none if the run is new."""
    return [row for row in shared_rows(f"{path}/metrics.jsonl") if row["step"] <= start]


def save_model(policy, tokenizer, path):
    """The policy as a Hugging Face directory."""
    weights = policy.state_dict()  # with the buffers that are saved
    for name, weight in full_weights(policy):  # with ZeRO 3, all processes take part
        if RANK == 0:
            weights[name] = weight.detach().cpu()
    if RANK == 0:
        generation = policy.generation_config
        policy.generation_config = GenerationConfig()  # transformers refuses to save some
        policy.save_pretrained(path, state_dict=weights)
        generation.to_json_file(f"{path}/generation_config.json")
        policy.generation_config = generation
        tokenizer.save_pretrained(path)  # last, so its files mark a complete directory


def find_recorder():
    """nano_report/record.py's function, which records what updates do to tokens, or None."""
    try:
        from nano_report.record import after_step
    except ImportError:  # it is not here
        return None
    return after_step


def open_wandb(path, config, at_end):
    """A run of Weights & Biases, or None. A resumed run continues its own."""
    if config.wandb == "off" or RANK != 0:
        return None
    import wandb

    saved = read_rows(f"{path}/config.json")[0]
    run = wandb.init(
        project="nano_r1",
        name=os.path.basename(path),
        id=saved["id"],
        resume="allow",
        reinit="create_new",  # the caller's own run stays open
        config=saved,
        mode=config.wandb,
    )
    # A run that is continued after a kill logs some steps again.
    run.define_metric("*", step_metric="step")
    return at_end.enter_context(run)


def log(metrics, history, path, wandb_run):
    """Append a row to metrics.jsonl and to Weights & Biases."""
    history.append(metrics)
    write_rows(f"{path}/metrics.jsonl", history)
    if wandb_run:
        wandb_run.log(metrics)


def catch_signals(at_end):
    """Ctrl-C and SIGTERM finish and save the current step; a second one quits at once.

    Returns a list of the times at which they came. `at_end` restores what Python does with them.
    """
    received = []

    def on_signal(*_):
        received.append(time.monotonic())
        if received[-1] - received[0] > 1:  # seconds; torchrun sends one Ctrl-C twice
            raise KeyboardInterrupt
        print("\nFinishing this step, then saving. Ctrl-C again quits at once.", flush=True)

    if threading.current_thread() is threading.main_thread():  # Python allows it only there
        for number in (signal.SIGINT, signal.SIGTERM):
            at_end.callback(signal.signal, number, signal.signal(number, on_signal))
    return received


def run_command(main, settings):
    """Run `main` with the flags of the command line. A common error ends in one sentence."""
    # A log on Windows has another encoding, which lacks most characters that a model writes.
    with suppress(AttributeError):  # not in a notebook
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    # No bars of transformers. (A download's bar is the hub's, and stays.)
    transformers_logging.set_tqdm_hook(lambda _, args, __: transformers_logging.EmptyTqdm(*args))
    try:
        main(tyro.cli(settings, use_underscores=True))
    except KeyboardInterrupt:  # `main` has said what is saved
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if error.name not in "vllm deepspeed wandb peft problem_files".split():
            raise
        raise SystemExit(
            f"{error}: pip install {error.name}; if it is a file of nano_r1, clone the repository"
        ) from None
    except (RuntimeError, ValueError) as error:  # torch's, vLLM's
        if re.search(
            r"(?i)(out of|enough|insufficient|allocate|available|free)( \w+)* memory", str(error)
        ):
            raise SystemExit(
                "Out of memory. In an update, try --micro_batch_size 1, --gradient_checkpointing, "
                "--offload; in an evaluation, a smaller --eval_problems; all also with --resume. "
                "In a rollout, try a new run with a smaller --max_tokens or --group_size, on a CPU "
                "also --prompts_per_step. "
                f"{error}"
            ) from None
        raise


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    run_command(main, Config)
