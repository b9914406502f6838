# %% [markdown]
# # nano_r1: reinforcement learning from verifiable rewards (RLVR), in one file
#
# The recipe of DeepSeek-R1-Zero: ask a language model a question whose answer a small program can
# check, sample several completions, and make those that did better than the others more likely.
# The model sees no worked solution, only its own attempts and their rewards.
#
#     python nano_r1.py --task countdown                    # 2 CPU cores, 4 to 10 minutes
#     python nano_r1.py --task countdown --resume out/NAME  # go on after an interruption
#     python nano_r1.py --eval_only --model out/NAME/model  # share solved in k tries, by vote
#     python -m plumbing.report out/NAME                    # look inside a run, in a browser
#     python nano_r1.py --help                              # every setting
#     bash runs/countdown_qwen2.5_1.5b.sh                   # Qwen2.5-1.5B on one GPU
#     torchrun --nproc_per_node 8 nano_r1.py ...            # the same loop on eight GPUs
#
# One step of GRPO, group relative policy optimization (Shao et al. 2024, arXiv:2402.03300;
# DeepSeek-AI 2025, arXiv:2501.12948):
#
#  1. Draw m prompts.
#  2. Sample a group of n completions o_1 .. o_n of each from the policy, the model in training.
#  3. Reward each completion with the task's verifier: r_i.
#  4. Compare it with its group. PPO trains a critic for that; here it is the advantage
#
#         A_i = (r_i - mean(r)) / (std(r) + 1e-4)
#
#  5. Log-probs of the same tokens under the reference model, a frozen copy of the base.
#  6. The loss of token t of completion i, with rho = pi(o_it) / pi_old(o_it) and
#     d = log pi_ref(o_it) - log pi(o_it):
#
#         L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)
#
#     Its mean over each completion's tokens, then over all completions. pi is the policy now,
#     pi_old the policy that sampled.
#  7. One AdamW step (DeepSpeed).
#  8. The sampler gets the new weights.
#  9. Log; every N steps evaluate and save a checkpoint.
#
# There is one optimizer step for each batch, as in the first paper's runs (R1-Zero has 16). So the
# policy that is updated is the one that sampled: rho is 1 and the clip does not act, but the
# gradient of rho is that of log pi, which is what learns.
#
# Left out here, and where it is:
#
# - GRPO's relatives (REINFORCE, RLOO, Dr. GRPO, DAPO, GSPO, VinePPO, several optimizer steps a
#   batch): `variants.py`, each as a short function in the place of one of this file.
# - The task (prompt, problems, reward): `countdown_rewards.py` and its neighbours.
# - Supervised fine-tuning: `nano_sft.py`.
# - Files, processes, checkpoints, statistics, the CPU's sampling loop: `plumbing/`.
# - A learned reward model, a critic, rewards for single steps of the reasoning, sampling that runs
#   ahead of the update, a reference model that is replaced now and then: not in this repository.

# %%
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

if find_spec("plumbing") is None:  # this file was copied alone
    raise SystemExit(
        "nano_r1.py needs what is beside it; type (in a notebook with ! and % before them):\n"
        "  git clone https://github.com/nano-r1/nano_r1\n  cd nano_r1"
    )
from plumbing.settings import Engine, Evaluation, EvaluationOnly, Record, UserError
from plumbing.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from plumbing.settings import check_settings
from plumbing.start import parse_or_exit

# %% [markdown]
# ## 1. Settings
#
# The defaults are right for the embedded 1M-parameter model on two cores; in [brackets] what a
# 0.5B-3B model wants. `Config(steps=20)` in a notebook is `--steps 20` on the command line.
# Settings without an equation (engine, evaluation, record) are in `plumbing/settings.py`.


# %%
@dataclass(kw_only=True)
class Problems:
    """what to learn, and from what"""

    task: str = "countdown"  # the task: the module TASK_rewards.py beside this file
    model: str = "models/nano-base"  # a local directory or a hub id [Qwen/Qwen2.5-1.5B]
    # problems: a jsonl/json/csv/parquet file, or `hub`; left out: the task's generator
    data: str | None = None
    # one of the task's prompts: short, chat, plain; countdown also reasoning, steps [chat]
    prompt: str = "short"


@dataclass(kw_only=True)
class Rollout:
    """the rollout, steps 1 to 3"""

    prompts_per_step: PositiveInt = 16  # m [16 to 128]
    group_size: PositiveInt = 8  # n, completions of each prompt
    max_tokens: PositiveInt = 320  # completions longer than this are cut off [1024]
    # of the softmax that is sampled from; the loss scores the whole of it, so no top-p, no top-k
    temperature: PositiveFloat = 1.0


@dataclass(kw_only=True)
class Objective:
    """the objective, steps 4 to 6"""

    advantage_eps: PositiveFloat = 1e-4  # added to the standard deviation of a group's rewards
    cliprange: PositiveFloat = 0.2  # eps of the clip
    # beta, weight of the KL penalty that holds the policy near the reference; 0 saves that model,
    # its forward pass, and the update of completions whose advantage is 0
    kl_coef: NonNegativeFloat = 0.001


@dataclass(kw_only=True)
class Update:
    """the update, step 7"""

    steps: PositiveInt = 60  # GRPO steps [200 to 1000]
    learning_rate: PositiveFloat = 1.5e-4  # AdamW's [1e-6; adapters 1e-5: see runs/]
    warmup_steps: NonNegativeInt = 10  # linear warm-up: Adam's first steps rest on few gradients
    # linear: the learning rate falls towards 0, so that the last steps leave less noise
    lr_scheduler_type: Literal["linear", "constant"] = "linear"
    max_grad_norm: PositiveFloat = 1.0  # gradients are scaled down to this norm
    weight_decay: NonNegativeFloat = 0.0  # AdamW's


@dataclass(kw_only=True)
class Config(Problems, Rollout, Objective, Update, Engine, Evaluation, EvaluationOnly, Record):
    """Everything a run depends on; saved as `config.json` in its directory. Raises UserError."""

    def __post_init__(self):
        check_settings(self)
        if self.group_size < 2:
            raise UserError("--group_size 1 leaves nothing to compare with: take 2 or more.")


# In a notebook __name__ is "__main__" as well, but there is no __file__.
IS_SCRIPT = __name__ == "__main__" and "__file__" in globals()
DESCRIPTION = "Reinforcement learning from verifiable rewards: GRPO on a language model."
if IS_SCRIPT:  # before torch is imported, which takes seconds: --help answers at once
    CONFIG = parse_or_exit(Config, "nano_r1.py", DESCRIPTION)

# %%
import functools
import os
import random

import torch
import torch.distributed as dist

from plumbing.batching import micro_batches
from plumbing.checkpoints import restore_optimizer, resume_point, save_checkpoint, save_policy
from plumbing.chunked_logits import score_in_chunks
from plumbing.evaluation import measure_evaluation, measure_update
from plumbing.models import find, gathered, initialize_deepspeed, load_policy, load_reference
from plumbing.models import load_tokenizer, merged_weights, stop_token_ids, vocabulary_size
from plumbing.problems import load_data
from plumbing.processes import catch_signals, close_vllm, derive_seed, init_distributed
from plumbing.processes import shutdown_hooks, stop_requested
from plumbing.record import RunLog
from plumbing.sampler import Completion, TransformersSampler, sampler_kind
from plumbing.start import run_safely, run_script, starting_vllm
from plumbing.sync_check import checked
from plumbing.tasks import Reward, load_task
from plumbing.timing import timed
from plumbing.torch_engine import TorchEngine, engine_kind

# %% [markdown]
# ## 2. The objective
#
# Shapes: m groups of n completions; B completions in a micro-batch; T positions; V vocabulary
# entries. `labels[b, t]` is the token that follows `input_ids[b, t]`. `response_mask` is 1 where
# the model wrote that token, its end-of-sequence token included: a model that gets no gradient
# there never learns to stop.


# %%
def group_advantages(rewards, config):
    """Step 4: how much better is each completion than its group? (m, n) -> (m, n).

    GRPO, arXiv:2402.03300, section 4.1.2. With several processes: of this one's groups.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # (m, 1)
    std = rewards.std(dim=1, keepdim=True)  # (m, 1), with n - 1
    # A_i = (r_i - mean(r)) / (std(r) + eps)
    advantages = (rewards - mean) / (std + config.advantage_eps)
    # If all rewards of a group are equal, it teaches nothing: exactly 0, whatever the rounding.
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)  # (m, 1)
    return advantages.masked_fill(equal, 0.0)


def score_tokens(logits, labels, temperature):
    """log pi of each label and the entropy of its distribution: (..., V), (...) -> (...), (...)."""
    logits = logits.float() / temperature  # float32, and the distribution that was sampled from
    # log pi(y) = log softmax(logits / T)_y
    log_probs = torch.log_softmax(logits, dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    entropy = torch.zeros_like(log_probs)
    if torch.is_grad_enabled():  # in the update, where it is logged
        with torch.no_grad():
            # H = -sum_v p_v log p_v = log Z - sum_v p_v logit_v
            log_z = torch.logsumexp(logits, dim=-1)
            entropy = log_z - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)
    return log_probs, entropy


def get_response_log_probs(model, batch, temperature, score=score_tokens):
    """Log-probs and entropies of a batch's response tokens, 0 elsewhere: (B, T), (B, T).

    `score_in_chunks` gives the numbers of these two lines at the response tokens:

        logits = model(input_ids).logits
        return score(logits, labels, temperature)

    without all logits, (B, T, V), in memory: they would be by far the largest tensor of the step.
    """
    score = functools.partial(score, temperature=temperature)
    return score_in_chunks(
        model, batch["input_ids"], batch["labels"], batch["response_mask"], score
    )


def grpo_loss(log_probs, batch, completions, config):
    """Step 6: each completion's part of the loss, (B,), and tensors (B, T) to log.

    `log_probs` (B, T) are the policy's, and carry the gradient. `batch` has, as (B, T),
    `advantages` (A_i, repeated at each token of completion i), `old_log_probs`, `ref_log_probs`
    and `response_mask`. `completions` is N, the number of all in the step, not only in this
    micro-batch: so the parts of all micro-batches add up to the step's loss.
    """
    mask = batch["response_mask"]
    advantages = batch["advantages"]
    # rho_it = pi(o_it) / pi_old(o_it)
    ratio = torch.exp(log_probs - batch["old_log_probs"])  # (B, T)
    # L_it = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)           PPO, arXiv:1707.06347, eq. 7
    low = 1 - config.cliprange
    high = 1 + config.cliprange
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)  # (B, T)
    stats = {"clip_ratio/low": (ratio < low) & (advantages < 0)}  # tokens that the clip froze
    stats["clip_ratio/high"] = (ratio > high) & (advantages > 0)
    if config.kl_coef:
        # L_it = L_it + beta (exp(d) - 1 - d)                     k3; arXiv:2402.03300, eq. 4
        d = batch["ref_log_probs"] - log_probs  # log(pi_ref / pi), (B, T)
        stats["kl"] = torch.expm1(d) - d  # expm1(d) is exp(d) - 1, exact for a small d too
        loss = loss + config.kl_coef * stats["kl"]
    # 1/|o_i| sum_t L_it
    lengths = mask.sum(dim=1).clamp(min=1)  # (B,)
    per_completion = (loss * mask).sum(dim=1) / lengths  # (B,)
    # 1/N sum_i
    return per_completion / completions, stats


# %% [markdown]
# ## 3. The optimizer
#
# DeepSpeed holds the weights, their gradients and AdamW's states, on one process or many; ZeRO
# shards them. `engine(...)` is the forward pass. `engine.backward(loss)` adds to the gradient, any
# number of times, and DeepSpeed averages it over the processes. `engine.step()` clips it to
# `max_grad_norm`, takes one AdamW step and sets the gradient to zero.


# %%
def make_engine(model, config):
    """The engine around the policy."""
    if config.gradient_checkpointing:
        model.train()  # from_pretrained returns a model in eval mode, where checkpointing is off
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adamw = {
        "lr": config.learning_rate,
        "betas": [0.9, 0.95],
        "weight_decay": config.weight_decay,
        "torch_adam": True,  # DeepSpeed's own would have to be compiled
        "fused": config.offload or torch.cuda.is_available(),  # one pass over the weights
    }
    zero = {"stage": config.zero_stage}
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    settings = {
        "train_micro_batch_size_per_gpu": 1,  # it wants a number; our micro-batches vary in size
        "managed_gradient_accumulation": False,  # any number of backward passes, then one step
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": config.dtype == "bfloat16"},  # keeps float32 master weights
        # 64 micro-batches summed in bfloat16 would be wrong by 0.8%
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW with --offload, too
        "optimizer": {"type": "AdamW", "params": adamw},
    }
    if engine_kind(config) == "torch":  # where there is no DeepSpeed: the same calls, one process
        return TorchEngine(model, settings, config)
    return initialize_deepspeed(model, settings, config)


def learning_rate(step, config):
    """Of a step: linear warm-up, and with "linear" a decay by the factor 1 - (step - 1) / steps."""
    lr = config.learning_rate * min(1.0, step / max(1, config.warmup_steps))
    if config.lr_scheduler_type == "linear":
        lr *= 1 - (step - 1) / config.steps
    return lr


# %% [markdown]
# ## 4. The sampler
#
# A completion is sampled token by token: draw one, append it, ask the model for the next, until it
# writes its end token or has `max_tokens`. `sample_token` is the draw. Who runs that loop depends
# on the machine: vLLM on a GPU, `plumbing/sampler.py` elsewhere. Both return with each token its
# log-prob under the distribution that it was drawn from. If the trainer's differs by more than
# rounding, weights, temperature or precision are not the same.


# %%
def sample_token(logits, temperature, uniform):
    """One token from softmax(logits / T), and its log-prob: (R, V) -> (R, 1), (R, 1).

    `uniform` (R, 1): a random number from [0, 1) for each row. It picks the first token at which
    the sum of the probabilities exceeds it, so each token with its probability.
    """
    # p = softmax(logits / T)
    probs = torch.softmax(logits.float() / temperature, dim=-1)  # (R, V)
    cumulated = probs.cumsum(dim=-1, dtype=torch.float64)  # (R, V)
    token = torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True)  # (R, 1)
    token = token.clamp(max=logits.shape[-1] - 1)  # rounding can put a number at the very end
    return token, probs.gather(-1, token).log()


class VLLMSampler:
    """vLLM in this process: paged KV cache, continuous batching; sleeps while we train."""

    def __init__(self, config, stop_ids, stop_texts, max_length, padding_ids=()):
        on_gpu = torch.cuda.is_available()
        if not on_gpu:  # GiB; without it vLLM takes a share of all memory
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import LLM

        self.stop_ids = stop_ids
        self.stop_texts = list(stop_texts)
        self.can_sleep = on_gpu
        # Rows of the embedding that stand for no token are never sampled. (vLLM takes 1,024 at
        # most; Qwen2.5 has 271.)
        self.bias = {i: -100.0 for i in padding_ids} if len(padding_ids) <= 1024 else None
        options = {"enforce_eager": True}
        if on_gpu:
            options = {
                "gpu_memory_utilization": config.vllm_gpu_memory_utilization,
                "enable_sleep_mode": True,
            }
        if dist.get_world_size() > 1:  # one vLLM in each of torchrun's processes
            options["distributed_executor_backend"] = "external_launcher"
        self.llm = LLM(
            model=find(config.model),
            dtype=config.dtype,
            max_model_len=max_length,
            logprobs_mode="processed_logprobs",  # those of softmax(logits / T)
            seed=derive_seed(config.seed, dist.get_rank(), "vllm"),
            disable_log_stats=True,
            **options,
        )
        shutdown_hooks.append(functools.partial(close_vllm, self.llm))

    def generate(self, prompt_token_ids, n, temperature, max_tokens, seeds):
        """n `Completion`s of each prompt; `max_tokens` and `seeds` have one for each prompt."""
        if not prompt_token_ids:  # this process has no share of a small evaluation
            return []
        from vllm import SamplingParams

        params = [
            SamplingParams(
                n=n,
                temperature=temperature,
                max_tokens=limit,
                seed=seed,
                logprobs=0,  # of the sampled token alone
                stop_token_ids=self.stop_ids,
                stop=self.stop_texts,
                include_stop_str_in_output=True,
                detokenize=bool(self.stop_texts),
                logit_bias=self.bias,
            )
            for seed, limit in zip(seeds, max_tokens)
        ]
        prompts = [{"prompt_token_ids": ids} for ids in prompt_token_ids]
        groups = []
        for result in self.llm.generate(prompts, params, use_tqdm=False):
            group = []
            for out in result.outputs:
                log_probs = [at[i].logprob for i, at in zip(out.token_ids, out.logprobs)]
                group.append(Completion(list(out.token_ids), log_probs, out.finish_reason))
            groups.append(group)
        return groups

    def sleep(self):
        """Give the GPU's memory to the update."""
        if self.can_sleep:
            self.llm.sleep(level=1)  # 2 spares a copy of the weights; some models broke with it

    def sync_weights(self, policy):
        """Step 8: wake up, load the trained weights, drop every prefix cached with the old."""
        if self.can_sleep:
            self.llm.wake_up()
        with gathered(policy):
            weights = merged_weights(policy)
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, and with it keys of old weights")


def make_sampler(config, policy, task, max_length):
    """The sampler that `--rollout` names."""
    stop_ids = stop_token_ids(policy, task.tokenizer)
    if sampler_kind(config) == "transformers":
        return TransformersSampler(policy, task, stop_ids, sample_token, config)
    rows = policy.get_input_embeddings().num_embeddings
    padding_ids = range(vocabulary_size(task.tokenizer), rows)
    with starting_vllm(config):
        return VLLMSampler(config, stop_ids, task.stop_texts, max_length, padding_ids)


# %% [markdown]
# ## 5. The steps of the algorithm
#
# What is known of one completion is its `Episode`. Each step adds to it: the reward, the advantage,
# log-probs. Processes (torchrun's) share the prompts: each samples, rewards and scores its own.


# %%
@dataclass
class Episode:
    """One completion, and what is known of it."""

    problem: dict  # a row of the data set
    prompt_ids: list  # token ids
    completion: Completion  # token ids, the sampler's log-prob of each, why it ended
    text: str  # of the completion, for the verifier
    reward: Reward = None  # step 3: total, format, answer, why
    advantage: float = 0.0  # step 4
    # A number for each token, by name: `advantages`, `ref_log_probs`, ...; (length,) each.
    per_token: dict = field(default_factory=dict)
    # What the update measured: its part of the loss, log-probs and entropies before the step.
    measured: dict = field(default_factory=dict)
    # No token of it counts: it stands in on a process with too few micro-batches. (variants.py
    # leaves completions out by it.)
    masked: bool = False

    @property
    def length(self):
        return len(self.completion.token_ids)


def rollout(sampler, problems, task, config, step, draw=0):
    """Steps 1 to 3: a batch of rewarded episodes. (variants.py draws more than once a step.)"""
    label = f"step {step}, {draw}"
    # 1. Draw m prompts. Every random choice derives from the seed and its place in the run.
    rng = random.Random(derive_seed(config.seed, label, "questions"))
    drawn = rng.sample(problems, config.prompts_per_step)
    # 2. Sample a group of n completions of each. 3. Reward them.
    return sample_and_reward(
        sampler, drawn, task, config, label, config.group_size, config.temperature
    )


def sample_and_reward(sampler, problems, task, config, label, n, temperature):
    """Steps 2 and 3: n completions of each problem of this process's share, groups adjacent."""
    # The seed derives from a problem's place: the same completions for any number of processes.
    seeds = [derive_seed(config.seed, label, place) for place in range(len(problems))]
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    problems = problems[mine]
    prompts = [task.prompt_ids(problem) for problem in problems]
    limits = [config.max_tokens] * len(prompts)
    groups = sampler.generate(prompts, n, temperature, limits, seeds[mine])
    episodes = []
    for problem, prompt, group in zip(problems, prompts, groups):
        for completion in group:
            text = task.text(completion.token_ids)
            episodes.append(Episode(problem, prompt, completion, text))
            episodes[-1].per_token["sampler_log_probs"] = completion.logprobs
    with timed("reward"):
        rewards = task.rewards([e.text for e in episodes], [e.problem for e in episodes])
    for e, reward in zip(episodes, rewards):
        e.reward = reward
    return episodes


def collate(episodes, device):
    """Episodes -> a dict of tensors (B, T): input_ids, labels, response_mask, all of per_token.

    For the prompt 7 8 9 and the completion 5 2:

        input_ids      7 8 9 5
        labels         8 9 5 2     what follows each of them
        response_mask  0 0 1 1     where that was written by the model
    """
    rows = [e.prompt_ids + e.completion.token_ids for e in episodes]
    width = max(len(row) for row in rows)
    # Padding may be any token: it is on the right, where with causal attention nobody sees it.
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    batch = {"response_mask": torch.zeros(len(rows), width - 1, dtype=torch.bool)}
    for i, e in enumerate(episodes):
        tokens[i, : len(rows[i])] = torch.tensor(rows[i])
        response = slice(len(e.prompt_ids) - 1, len(rows[i]) - 1)  # where labels are its tokens
        batch["response_mask"][i, response] = not e.masked
        for name, values in e.per_token.items():
            batch.setdefault(name, torch.zeros(len(rows), width - 1))
            batch[name][i, response] = torch.as_tensor(values, dtype=torch.float32)
    batch["input_ids"] = tokens[:, :-1]
    batch["labels"] = tokens[:, 1:]
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def add_log_probs(model, episodes, name, config):
    """Step 5: the log-probs of each episode's tokens under `model`, as `per_token[name]`."""
    for rows in micro_batches(episodes, config):
        batch = collate(rows, model.device)
        log_probs, _ = get_response_log_probs(model, batch, config.temperature)  # (B, T)
        for e, row, mask in zip(rows, log_probs, batch["response_mask"]):
            e.per_token[name] = row[mask].cpu()  # (length,)


def update(engine, episodes, config, lr, loss_function=grpo_loss, score=score_tokens):
    """Steps 6 and 7: one AdamW step on the loss of all episodes. Returns its metrics.

    Another `loss_function` or `score` makes one of GRPO's relatives (variants.py).
    """
    batches = []
    # All episodes; without a penalty those of advantage 0 have no gradient and are left out.
    for rows in micro_batches(episodes, config, with_gradient=True):
        batch = collate(rows, engine.device)  # tensors (B, T)
        # The forward pass.
        log_probs, entropy = get_response_log_probs(engine, batch, config.temperature, score)
        batch["log_probs"] = log_probs.detach()
        batch["entropy"] = entropy
        # pi_old is the policy as it is now: it has sampled these, and this is the only step on
        # them. (The sampler's own log-probs are rounded in another way. Where variants.py takes
        # several steps, it has scored pi_old before the first.)
        if "old_log_probs" not in batch:
            batch["old_log_probs"] = batch["log_probs"]
        # 6. The loss. Every process has as many episodes; DeepSpeed averages over processes.
        parts, stats = loss_function(log_probs, batch, len(episodes), config)  # (B,)
        loss = parts.sum()
        # An infinite loss may have a finite gradient; NaN makes DeepSpeed skip the step.
        engine.backward(loss if loss.isfinite() else loss * torch.nan)
        # What is kept for the metrics, without its graph.
        batch["entropy"] = entropy.detach()
        stats = {name: values.detach() for name, values in stats.items()}
        batches.append((rows, batch, parts.detach(), stats))
    # 7. One AdamW step: the gradient is clipped, applied, and set to zero.
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    engine.step()
    return measure_update(batches, float(engine.get_global_grad_norm()))


def evaluate(sampler, problems, task, config, n, temperature):
    """(metrics, episodes) of n completions of each problem; the same seeds every time."""
    with timed("evaluation"):
        episodes = sample_and_reward(sampler, problems, task, config, "evaluation", n, temperature)
        return measure_evaluation(episodes, task, n), episodes


# %% [markdown]
# ## 6. The loop
#
# The four functions in the signature of `main` are where GRPO's relatives differ from it:
# `variants.py` and your own experiments put others in their place (docs/own_loss.md).


# %%
@run_safely
def main(config, rollout=rollout, advantages=group_advantages, loss=grpo_loss, update=update):
    """Evaluate, train, evaluate again, save. Returns the run's directory. Raises UserError."""
    device = init_distributed(config)
    checkpoint, start = resume_point(config)  # (None, 0) without --resume
    tokenizer = load_tokenizer(config.model)
    task = load_task(config.task, config.prompt, tokenizer)  # prompts, problems, the verifier
    data = load_data(task, config)
    policy = load_policy(config, checkpoint, device)  # the model that is trained
    log = RunLog(config)  # the run's directory, the console, the curves
    log.start(policy, task, data)
    sampler = make_sampler(config, policy, task, data.max_length)
    temperature = config.temperature
    if config.eval_only:  # greedy and at this temperature, as a table
        return log.evaluate_only(functools.partial(evaluate, sampler, data.eval, task, config))
    reference = load_reference(config, policy)  # a frozen copy of the base; None without penalty
    engine = make_engine(policy, config)  # the policy with its gradients and AdamW's states
    if config.resume:
        log.rewind(start)
        restore_optimizer(engine, checkpoint)
        sampler.sync_weights(policy)
    sampler = checked(sampler, engine, task, data.eval, config)  # as it is, but for --check_sync
    if start == 0:
        metrics, episodes = evaluate(sampler, data.eval, task, config, n=1, temperature=temperature)
        log.save_evaluation(0, metrics, episodes)
        log.write_metrics({"step": 0} | metrics)

    catch_signals()  # from here on Ctrl-C finishes the step and saves a checkpoint
    stopping = False
    for step in range(start + 1, config.steps + 1):
        # 1. Draw m prompts. 2. Sample a group of n completions of each. 3. Reward them.
        with timed("rollout"):
            episodes = rollout(sampler, data.train, task, config, step)
        # 4. Advantages: how much better is each completion than its group?
        rewards = torch.tensor([float(e.reward.total) for e in episodes])
        rewards = rewards.view(-1, config.group_size)  # (m, n)
        values = advantages(rewards, config).flatten().tolist()
        for e, advantage in zip(episodes, values, strict=True):
            e.advantage = advantage  # the same for all its tokens
            e.per_token["advantages"] = [advantage] * e.length
        sampler.sleep()  # vLLM frees its share of the GPU

        with timed("update"):
            # 5. Log-probs under the reference.
            if reference is not None:
                add_log_probs(reference, episodes, "ref_log_probs", config)
            # 6. The loss and its gradient. 7. One AdamW step.
            lr = learning_rate(step, config)
            measured = update(engine, episodes, config, lr, loss)
        if log.is_due(step, "tokens"):  # what the update did to each token, for the report
            with timed("record"):
                add_log_probs(engine, episodes, "new_log_probs", config)

        # 8. The sampler gets the new weights.
        with timed("sync"):
            sampler.sync_weights(policy)

        # 9. Log, evaluate, save.
        metrics = log.save_step(step, lr, episodes, measured)
        if log.is_due(step, "evaluation"):
            result, shown = evaluate(sampler, data.eval, task, config, n=1, temperature=temperature)
            log.save_evaluation(step, result, shown)
            metrics |= result
        log.write_metrics(metrics)
        stopping = stop_requested()
        if stopping or log.is_due(step, "checkpoint"):
            save_checkpoint(engine, tokenizer, log.checkpoints, step, config)
        if stopping:
            break
    if not stopping:
        save_policy(policy, tokenizer, log.model, merge=config.lora_merge)
    log.finish(stopping)
    return log.path


if IS_SCRIPT:
    run_script(main, CONFIG)

# /// script
# # What `uv run nano_r1.py` installs: the core of requirements.txt, with torch's CPU build.
# requires-python = ">=3.11,<3.14"
# dependencies = [
#   "torch==2.13.0",
#   "transformers==5.19.0",
#   "numpy==2.3.5",
#   "matplotlib==3.11.2",
#   "tqdm==4.70.1",
#   "tyro==1.0.17",
#   "psutil==7.2.2",
#   "safetensors==0.8.0",
# ]
# [tool.uv.sources]
# torch = { index = "pytorch-cpu" }
# [[tool.uv.index]]
# name = "pytorch-cpu"
# url = "https://download.pytorch.org/whl/cpu"
# explicit = true
# ///
