# %% [markdown]
# # nano_r1: reinforcement learning from verifiable rewards (RLVR), in one file
#
# The recipe of DeepSeek-R1-Zero: ask a language model a question whose answer a small program can
# check, sample several completions, and make those that did better than the others more likely.
# In this training the model sees no worked solution, only its own completions and their rewards.
#
#     python nano_r1.py --task countdown       # two CPU cores, six minutes: from 11% to about 69%
#     python nano_r1.py --resume out/NAME      # continue it; add the flags it was started with
#     python nano_r1.py --help                 # every setting
#     bash runs/gsm8k_qwen2.5_1.5b.sh          # Qwen2.5-1.5B on one GPU; docs/gpu.md: what has run
#     torchrun --nproc_per_node 8 --local-ranks-filter 0 nano_r1.py ...    # eight GPUs
#
# One step of GRPO, group relative policy optimization (Shao et al. 2024, arXiv:2402.03300;
# DeepSeek-AI 2025, arXiv:2501.12948):
#
#  1. Draw m problems.
#  2. Sample a group of n completions o_1 .. o_n of each from the policy, the model in training.
#  3. Reward each completion with a small program, the verifier: r_i.
#  4. Compare it with its group: the advantage. (PPO, the older method, compares it with the
#     prediction of a second trained model, the critic.)
#
#         A_i = (r_i - mean(r)) / (std(r) + 1e-4)
#
#  5. Compute the log-probs of all these completions' tokens under the reference, a frozen copy of
#     the model before training.
#  6. Compute the loss. o_it is token t of completion i, and pi(o_it) its probability under the
#     policy, given the text before it; pi_old is the policy before this step, pi_ref the reference.
#     With rho = pi(o_it) / pi_old(o_it) and d = log pi_ref(o_it) - log pi(o_it), its loss is
#
#         L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)
#
#     Once rho is above 1 + eps with A > 0, or below 1 - eps with A < 0, the min is constant and has
#     no gradient. The last term, the KL penalty, keeps pi near pi_ref: exp(d) - 1 - d is 0 at d = 0
#     and positive elsewhere. Its mean over tokens drawn from pi estimates the KL divergence.
#     The step's loss is the mean over each completion's tokens, then over all completions.
#  7. Take one AdamW step.
#  8. Give the new weights to the sampler.
#  9. Log; now and then evaluate and save a checkpoint.
#
# There is one optimizer step for each batch of completions. So pi_old equals pi in value: rho is 1,
# and the clip does nothing. For the gradient, pi_old is a constant: grad rho = grad pi / pi_old =
# grad log pi. So the gradient of the loss, without the KL penalty, is -A grad log pi.
#
# Left out: a critic, a learned reward, rewards for single reasoning steps, several optimizer steps
# per batch, and sampling the next batch during the update. `variants.py` has GRPO's relatives. Each
# is a function that replaces a function of this file. A task is a module: `countdown_rewards.py`,
# `gsm8k_rewards.py`.

# %%
import atexit
import copy
import importlib.util
import json
import os
import random
import signal
import time
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

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

    python nano_r1.py --task countdown    (two CPU cores, six minutes: from 11% to about 69%)

    python nano_r1.py --task gsm8k --steps 30 --name words    (writes out/words)

    python nano_r1.py --task countdown --resume out/NAME    (continue; with the flags of its start)

    For another model: --model, --task, --data, --prompt, --max_tokens, --learning_rate.
    """

    # What to learn.
    task: str = "countdown"  # the module TASK_rewards.py
    model: str = "models/nano-base"  # a directory or a hub id [Qwen/Qwen2.5-1.5B]
    # one of the task's prompts [chat], or a toml file with the fields of the class Prompt
    prompt: str = "short"
    # problems: a jsonl, json, csv or parquet file; "hub": the published data set;
    # None: the task's generator
    data: str | None = None

    # Steps 1 to 3.
    prompts_per_step: int = 16  # m, over all processes [16 to 128]
    group_size: int = 8  # n, completions of each prompt
    max_tokens: int = 320  # a longer completion is cut off [1024]
    # no top-p or top-k: the loss must use the same distribution as the sampler
    temperature: float = 1.0

    # Steps 4 to 6.
    advantage_eps: float = 1e-4  # added to the standard deviation of a group's rewards
    cliprange: float = 0.2  # eps of the clip
    kl_coef: float = 0.001  # beta; with 0, no reference model is loaded or run

    # Step 7.
    steps: int = 60  # optimizer steps [200 to 1000]
    learning_rate: float = 1.5e-4  # of AdamW [1e-6; with adapters (variants.py) 1e-5]
    warmup_steps: int = 10  # linear warm-up: Adam's averages are noisy in its first steps
    # linear: the rate falls to learning_rate / steps, so that the last weights are less noisy
    lr_scheduler_type: Literal["linear", "constant"] = "linear"
    max_grad_norm: float = 1.0  # a larger gradient is scaled down to this norm
    micro_batch_size: int = 8  # completions in a forward pass; lower it if memory runs out

    # Engines.
    device: Literal["auto", "cuda", "cpu"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["float32", "bfloat16"] = "float32"  # of matrix products [bfloat16]
    # vLLM, or the loop of this file; auto: vLLM if it is installed and supports the GPU
    sampler: Literal["auto", "transformers", "vllm"] = "auto"
    vllm_gpu_memory_utilization: float = 0.3  # share of the GPU for vLLM
    # with torchrun, DeepSpeed's ZeRO: 1 shards AdamW's states, 2 also gradients, 3 also weights
    zero_stage: Literal[1, 2, 3] = 2
    # keep the idle reference in main memory; with torchrun, also the states of AdamW
    offload: bool = False
    gradient_checkpointing: bool = False  # recompute activations: less memory, more time

    # Step 9.
    eval_every: int = 20  # evaluate every N steps; 0: only before and after
    eval_problems: int = 512  # with 512, the 95% interval is about +-0.04
    save_every: int = 20  # save a checkpoint every N steps
    record_tokens_every: int = 4  # every N steps, what the update did to each token, for report/
    name: str | None = None  # the run's directory is out/NAME; None: task, date and time
    resume: str | None = None  # the directory of a run with the same settings: continue it
    wandb: Literal["off", "online", "offline"] = "off"  # also log to Weights & Biases
    seed: int = 0  # every random choice derives from it


class Episode(SimpleNamespace):
    """One completion, and what is known of it.

    problem     dict, a row of the data set
    prompt_ids  list of token ids
    token_ids   list of the completion's token ids, with the end token if the model wrote it
    log_probs   list, one for each token of the completion, as the sampler computed it
    ended       True: it ended with an end token or a stop text; False: it was cut off
    text        str, the completion
    reward      step 3: total, format, answer, why
    advantage   step 4: float
    """


# %% [markdown]
# ## 2. The objective
#
# Shapes: m groups of n completions; B completions in a micro-batch; T positions; V vocabulary
# entries. `labels[b, t]` is the token that follows `input_ids[b, t]`. `response_mask` is 1 where
# the model wrote that token. The end token counts, too: without it, the model never learns to stop.


# %%
def group_advantages(rewards, config):
    """Step 4: how much better is each completion than its group? (m, n) -> (m, n).

    GRPO, arXiv:2402.03300, section 4.1.2. A group whose rewards are all equal has no signal: its
    advantages are 0.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # (m, 1)
    std = rewards.std(dim=1, keepdim=True)  # (m, 1), divides by n - 1
    # A_i = (r_i - mean(r)) / (std(r) + 1e-4)
    return (rewards - mean) / (std + config.advantage_eps)


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
        # L_it = L_it + beta (exp(d) - 1 - d)   this estimate of the KL is called k3; GRPO, eq. 4
        d = batch["ref_log_probs"] - log_probs  # log(pi_ref / pi), (B, T)
        loss = loss + config.kl_coef * (torch.exp(d) - 1 - d)
    # 1/N sum_i 1/|o_i| sum_t L_it
    return (loss * mask).sum(dim=1) / mask.sum(dim=1) / batch["completions"]


class Scorer(torch.nn.Module):
    """A language model that returns the log-probs of completions instead of logits."""

    def __init__(self, model, config):
        super().__init__()
        self.model = model
        self.config = config

    def forward(self, batch):
        """log pi of each label where response_mask is 1, 0 elsewhere: (B, T)."""
        mask = batch["response_mask"]
        with precision(mask.device, self.config):
            hidden = self.model.get_decoder()(batch["input_ids"], use_cache=False).last_hidden_state
        # All logits, (B, T, V), would be by far the largest tensor of the step: 5 GB for 8 x 1,024
        # tokens of Qwen. So we compute them only at the completions' tokens, in chunks, and compute
        # them again in the backward pass instead of storing them. A chunk: 2**25 logits, 128 MiB.
        size = 2**25 // self.model.config.get_text_config().vocab_size
        scores = [
            torch.utils.checkpoint.checkpoint(  # (`score` draws no random numbers)
                self.score, *chunk, use_reentrant=False, preserve_rng_state=False
            )
            for chunk in zip(hidden[mask].split(size), batch["labels"][mask].split(size))
        ]
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, torch.cat(scores))

    def score(self, hidden, labels):
        """(K, H), (K,) -> (K,), in float32, at the temperature of the sampling. K tokens."""
        with precision(hidden.device, self.config):
            logits = self.model.get_output_embeddings()(hidden).float()  # (K, V)
        return -F.cross_entropy(logits / self.config.temperature, labels, reduction="none")


def precision(device, config):
    """A context in which float32 weights are multiplied in config.dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")


def collate(episodes, device):
    """Episodes -> a dict of tensors (B, T). For the prompt 7 8 9 and the completion 5 2:

    input_ids      7 8 9 5
    labels         - - 5 2     the next token; - (stored as -1) where the model did not write it
    response_mask  0 0 1 1
    """
    labels = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor([-1] * len(e.prompt_ids) + e.token_ids) for e in episodes],
        batch_first=True,
        padding_value=-1,
    )[:, 1:]
    batch = {
        # Padding may be any token: it is on the right, where causal attention never looks.
        "input_ids": torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(e.prompt_ids + e.token_ids) for e in episodes], batch_first=True
        )[:, :-1],
        "labels": labels,
        "response_mask": labels >= 0,
        "advantages": torch.tensor([[e.advantage] for e in episodes]),  # (B, 1)
        "sampler_log_probs": torch.zeros(labels.shape).masked_scatter(
            labels >= 0, torch.cat([torch.tensor(e.log_probs) for e in episodes])
        ),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()} | {"episodes": episodes}


# %% [markdown]
# ## 3. The sampler
#
# A completion is sampled token by token: draw one, append it, ask the model for the next, until it
# writes an end token or has `max_tokens`. vLLM does that on a GPU, the loop below elsewhere. Each
# returns the tokens and their log-probs under the distribution that they were drawn from. The
# trainer computes these log-probs again. If the two differ by more than rounding, sampler and
# trainer do not use the same weights, temperature or precision.


# %%
def sample_token(logits, temperature, uniform):
    """A token from softmax(logits / temperature), and its log-prob: (R, V) -> (R,), (R,).

    Temperature 0 is greedy. `uniform` (R, 1) has a random number from [0, 1) for each row. We take
    the first token whose cumulative probability exceeds it. So each token is drawn with its own
    probability.
    """
    probs = torch.softmax(logits.float() / max(temperature, 1e-6), dim=-1)  # (R, V)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)  # by rounding, the last is not quite 1
    token = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp(
        max=logits.shape[-1] - 1  # rounding can give an index one past the last
    )  # (R, 1)
    return token[:, 0], probs.gather(-1, token)[:, 0].log()


def next_logits(model, token, position, visible, cache):
    """Append one token to each row and return the logits of the next one: (R,) -> (R, V).

    For models built like Llama. R rows are the completions that have not ended.

    transformers' own forward pass gives the same numbers with five times as many calls of torch.
    `position` (R,); `visible` (R, S): which of the S columns a row attends to, this token included;
    `cache` (layers, 2, R, heads, S, D): keys and values of size D; their last column is written
    here.
    """
    decoder = model.get_decoder()
    hidden = decoder.embed_tokens(token)  # (R, H)
    cos, sin = decoder.rotary_emb(hidden, position[:, None])  # (R, 1, D)
    for layer, kept in zip(decoder.layers, cache):
        attention = layer.self_attn
        x = layer.input_layernorm(hidden)
        # Grouped queries: several query heads share one key head; `heads` counts the key heads.
        # Attention expects (R, heads, positions, D). There is only one position, so the query uses
        # the positions axis for the heads that share a key head, and no key has to be copied.
        # (`view` finds the -1: how many share one for the query, 1 for key and value.)
        shape = (len(token), kept.shape[2], -1, kept.shape[-1])
        query = attention.q_proj(x).view(shape)
        key = attention.k_proj(x).view(shape)
        if hasattr(attention, "q_norm"):  # Qwen3
            query = attention.q_norm(query)
            key = attention.k_norm(key)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        kept[0, :, :, -1:] = key
        kept[1, :, :, -1:] = attention.v_proj(x).view(shape)
        out = F.scaled_dot_product_attention(
            query, kept[0], kept[1], visible[:, None, None], scale=attention.scaling
        )
        hidden = hidden + attention.o_proj(out.reshape(len(token), -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.get_output_embeddings()(decoder.norm(hidden))


class TransformersSampler:
    """Samples from the very weights that are trained, in the same memory."""

    def __init__(self, policy, task, config):
        if policy.config.model_type not in ("llama", "qwen2", "qwen3") or config.zero_stage == 3:
            raise SystemExit("This model, or ZeRO 3, needs --sampler vllm")
        # With several threads, each waits for the others after every operation. So a small model
        # gains little from them, and loses much if another program is busy. (The update uses this
        # setting, too.)
        if policy.num_parameters() < 20_000_000:
            torch.set_num_threads(1)
        self.model = policy
        self.task = task
        self.config = config

    def sleep(self):
        """Nothing to do: it uses the policy's memory."""

    def sync(self, policy):
        """Nothing to do: it uses the policy's weights."""

    @torch.inference_mode()
    def generate(self, prompts, n, temperature, seeds):
        """[(token ids, log-probs)]: n of the first prompt, then n of the second, and so on.

        Each prompt has its own seed: its completions depend neither on the other prompts nor on the
        number of processes. (Except for rounding, which can change a token if the random number
        lies on the border between two.)
        """
        device = self.model.device
        # One forward pass over all prompts, padded on the left. The keys and values of each prompt
        # are then copied to n rows, one for each completion.
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)  # (P, W)
        padding = torch.tensor([width - len(p) for p in prompts], device=device)
        column = torch.arange(width + self.config.max_tokens, device=device)
        visible = column[:width] >= padding[:, None]  # (P, W)
        with precision(device, self.config):
            out = self.model(
                input_ids=ids,
                attention_mask=visible,
                position_ids=visible.cumsum(dim=1) - 1,
                use_cache=True,
                logits_to_keep=1,
            )
        logits = out.logits[:, -1].repeat_interleave(n, dim=0)  # (R, V): a row is a completion
        cache = torch.stack(
            [torch.stack([layer.keys, layer.values]) for layer in out.past_key_values.layers]
        ).repeat_interleave(n, dim=2)  # (layers, 2, R, heads, W, D)
        cache = F.pad(cache, (0, 0, 0, self.config.max_tokens))  # with room for the completions
        padding = padding.repeat_interleave(n)
        # Drawn on the CPU: the same on every device.
        uniforms = torch.cat(  # (max_tokens, R)
            [
                torch.rand(
                    self.config.max_tokens,
                    n,
                    dtype=torch.float64,
                    generator=torch.Generator().manual_seed(seed),
                )
                for seed in seeds
            ],
            dim=1,
        ).to(device)
        completions = [([], []) for _ in padding]
        row = torch.arange(len(padding), device=device)  # row[k]: which completion is in row k
        # The bar is shown only on a screen.
        for t in tqdm(range(self.config.max_tokens), "sampling", leave=False, disable=None):
            token, log_prob = sample_token(
                # The embedding can have more rows than there are tokens. We drop their logits. (The
                # trainer's softmax keeps them; their probability is too small to matter.)
                logits[:, : len(self.task.tokenizer)],
                temperature,
                uniforms[t, row, None],
            )
            for i, number, score in zip(row.tolist(), token.tolist(), log_prob.tolist()):
                completions[i][0].append(number)
                completions[i][1].append(score)
            running = [not self.task.has_ended(completions[i][0]) for i in row.tolist()]
            if not any(running):
                break
            # Completions that have ended leave the batch. For example, a and c of the rows a b c d
            # have ended. Two go on, in the first two rows: d moves to a's place, and we keep d b.
            count = sum(running)
            holes = [i for i in range(count) if not running[i]]
            movers = [i for i in range(count, len(running)) if running[i]]
            for values in (row, token):
                values[holes] = values[movers]
            row = row[:count]
            cache[:, :, holes] = cache[:, :, movers]
            cache = cache[:, :, :count]
            end = width + t + 1
            with precision(device, self.config):
                logits = next_logits(
                    self.model,
                    token[:count],
                    position=end - 1 - padding[row],
                    visible=column[:end] >= padding[row, None],  # (R, S)
                    cache=cache[..., :end, :],
                )
        return completions


class VLLMSampler:
    """vLLM in this process: paged KV cache, continuous batching. It sleeps during the update."""

    def __init__(self, policy, task, config):
        self.task = task
        self.config = config
        # A variable that is already set wins: os.environ comes last.
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, on a CPU; vLLM's default is a share of all
            "OMP_NUM_THREADS": str(torch.get_num_threads()),  # on a GPU vLLM would set it to 1
            "VLLM_LOGGING_LEVEL": "ERROR",  # or it logs each sleep and each sync
        } | os.environ
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, to pass it weights
        import vllm

        self.sampling_params = vllm.SamplingParams
        self.llm = vllm.LLM(
            model=config.model,
            dtype=config.dtype,
            max_model_len=task.max_length,
            logprobs_mode="processed_logprobs",  # those of softmax(logits / temperature)
            seed=seed_of(config.seed, RANK, "vllm"),
            gpu_memory_utilization=config.vllm_gpu_memory_utilization,
            enable_sleep_mode=torch.cuda.is_available(),  # without a GPU, sleep does nothing
            enforce_eager=not torch.cuda.is_available(),
            # One vLLM in each of torchrun's processes.
            distributed_executor_backend="external_launcher" if WORLD > 1 else None,
        )
        atexit.unregister(dist.destroy_process_group)  # vLLM does that at exit; twice would fail
        # A bias against sampling the rows that only pad the embedding. (vLLM takes at most 1,024;
        # with more such rows we set none, and rely on their low probability.)
        rows = range(len(task.tokenizer), policy.get_input_embeddings().num_embeddings)
        self.bias = {row: -100.0 for row in rows} if len(rows) <= 1024 else None

    def generate(self, prompts, n, temperature, seeds):
        """[(token ids, log-probs)]: n of the first prompt, then n of the second, and so on."""
        completions = []
        for result in self.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            [
                self.sampling_params(
                    n=n,
                    temperature=temperature,
                    max_tokens=self.config.max_tokens,
                    seed=seed,
                    logprobs=0,  # of the sampled token alone
                    stop_token_ids=sorted(self.task.stop_ids),
                    stop=list(self.task.prompt.stop),
                    include_stop_str_in_output=True,
                    detokenize=bool(self.task.prompt.stop),
                    logit_bias=self.bias,
                )
                for seed in seeds
            ],
            # False, or what makes a bar. (tqdm's disable=None makes vLLM divide by 0.)
            use_tqdm=os.isatty(2) and (lambda *a, **k: tqdm(*a, leave=False, **k)),
        ):
            for out in result.outputs:
                log_probs = [at[i].logprob for i, at in zip(out.token_ids, out.logprobs)]
                completions.append((list(out.token_ids), log_probs))
        return completions

    def sleep(self):
        """Give the GPU's memory to the update."""
        self.llm.sleep(level=1)  # level 2 keeps no copy of the weights; it fails for some models

    def sync(self, policy):
        """Step 8: wake up, load the trained weights, forget what was computed with the old ones."""
        torch.cuda.empty_cache()  # what torch keeps for later is not free for vLLM
        self.llm.wake_up()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": full_weights(policy)})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept keys and values of old weights")


def make_sampler(policy, task, device, config):
    # Below capability 8.0 (a T4) vLLM has no FlashAttention, and its other kernel can crash there.
    use_vllm = config.sampler == "vllm" or (
        config.sampler == "auto"
        and device.type == "cuda"
        and torch.cuda.get_device_capability() >= (8, 0)
        and importlib.util.find_spec("vllm") is not None
    )
    return (VLLMSampler if use_vllm else TransformersSampler)(policy, task, config)


@torch.no_grad()
def full_weights(policy):
    """(name, weight), one at a time, because ZeRO 3 shards them; tied ones under both names."""
    for name, weight in policy.named_parameters(remove_duplicate=False):
        if hasattr(weight, "ds_id"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([weight]):
                # vLLM keeps this weight until it has all weights of the layer. By then DeepSpeed
                # has sharded it again and freed its memory. So vLLM gets a copy.
                yield name, weight.clone()
        else:
            yield name, weight


# %% [markdown]
# ## 4. The optimizer
#
# An engine holds the policy, its gradients and AdamW's states. `engine(batch)` is the forward pass;
# `engine.backward(loss)` adds to the gradient, any number of times; `engine.step()` clips the
# gradient, takes one AdamW step and sets the gradient to zero. These calls are DeepSpeed's. Under
# torchrun (also with one process) the engine is DeepSpeed, else it is torch's AdamW. `main` sets
# the learning rate before each step.


# %%
class TorchEngine:
    """torch's AdamW behind DeepSpeed's calls.

    On a CPU, an operation of a small model uses one core (TransformersSampler sets that). So a
    second thread computes each backward pass on another core, during the next forward pass.
    docs/performance.md has the gain.
    """

    def __init__(self, scorer, device, config):
        self.module = scorer.to(device)
        self.device = device
        self.config = config
        self.optimizer = torch.optim.AdamW(
            [p for p in scorer.parameters() if p.requires_grad],
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )
        self.second_thread = ThreadPoolExecutor(1)
        self.last_backward = self.second_thread.submit(int)  # nothing to wait for yet

    def __call__(self, batch):
        return self.module(batch)

    def backward(self, loss):
        self.last_backward.result()  # waits until it is done
        self.last_backward = self.second_thread.submit(loss.backward)
        # Two passes at once need memory for both, and are faster only if each uses one core.
        if (
            self.device.type == "cuda"
            or self.config.gradient_checkpointing
            or torch.get_num_threads() > 1
        ):
            self.last_backward.result()

    def step(self):
        self.last_backward.result()
        self.norm = torch.nn.utils.clip_grad_norm_(
            self.module.parameters(), self.config.max_grad_norm
        )
        if self.norm.isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self):
        return self.norm

    def save_checkpoint(self, path, tag, save_latest):
        os.makedirs(f"{path}/{tag}", exist_ok=True)
        torch.save(
            [self.module.state_dict(), self.optimizer.state_dict()], f"{path}/{tag}/state.pt"
        )

    def load_checkpoint(self, path, tag):
        state = torch.load(f"{path}/{tag}/state.pt", map_location="cpu", weights_only=True)
        self.module.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def make_engine(scorer, device, config):
    """DeepSpeed's engine for processes of torchrun, else torch's AdamW."""
    if "RANK" not in os.environ:
        return TorchEngine(scorer, device, config)
    import deepspeed

    dist.barrier()  # wait until vLLM has started everywhere: DeepSpeed's start could hang it
    deepspeed.ops.__compatible_ops__ = {}  # otherwise it compiles an all-reduce on a CPU
    return deepspeed.initialize(
        model=scorer,
        model_parameters=[p for p in scorer.parameters() if p.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": config.micro_batch_size,
            "managed_gradient_accumulation": False,  # any number of backward passes, then one step
            "gradient_clipping": config.max_grad_norm,
            "zero_optimization": {
                "stage": config.zero_stage,
                "reduce_bucket_size": 50_000_000,  # the default takes 0.9 GiB
                "offload_optimizer": {"device": "cpu" if config.offload else "none"},
            },
            "zero_force_ds_cpu_optimizer": False,  # torch's AdamW with --offload, too
            "optimizer": {
                "type": "AdamW",
                "params": {
                    "betas": [0.9, 0.95],
                    "weight_decay": 0.0,
                    "torch_adam": True,  # DeepSpeed's own would have to be compiled
                },
            },
        },
    )[0]


def learning_rate(step, config):
    """Linear warm-up; the "linear" schedule also multiplies by 1 - (step - 1) / steps."""
    rate = config.learning_rate * min(1.0, step / max(1, config.warmup_steps))
    return rate * (1 - (step - 1) / config.steps if config.lr_scheduler_type == "linear" else 1)


# %% [markdown]
# ## 5. The task and the model


# %%
def load_model(config):
    """(policy, tokenizer). No code that comes with a model is run, and no pickle is read."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
        policy = AutoModelForCausalLM.from_pretrained(
            config.model, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"--model {config.model} must be a directory with safetensors, or on the hub, which "
            f"needs a network: {error}"
        ) from None
    if any(
        getattr(policy.config, name, None)
        for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
    ):
        raise SystemExit(f"--model {config.model} rescales its logits: that is not supported")
    if config.gradient_checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    return policy.eval(), tokenizer


class Task:
    """The module TASK_rewards.py, with one of its prompts and the model's tokenizer.

    The module has PROMPTS, {name: Prompt(text, opening, chat, stop, and what the reward needs)};
    load_problems(split, source, seed) -> list of dicts; reward(text, problem, prompt) -> total,
    format, answer (floats), why (str).
    """

    def __init__(self, tokenizer, policy, config):
        try:
            self.module = importlib.import_module(f"{config.task}_rewards")
        except ModuleNotFoundError as error:
            raise SystemExit(f"--task {config.task}: {error}; try countdown or gsm8k") from None
        prompts = dict(self.module.PROMPTS)
        if os.path.isfile(config.prompt):
            with open(config.prompt, "rb") as file:
                prompts[config.prompt] = self.module.Prompt(**tomllib.load(file))
        if config.prompt not in prompts:
            raise SystemExit(f"--prompt must be a toml file or one of {', '.join(prompts)}")
        self.prompt = prompts[config.prompt]
        self.tokenizer = tokenizer
        ends = policy.generation_config.eos_token_id or []  # a number or a list
        self.stop_ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self.max_length = min(  # tokens of a prompt and its completion
            getattr(policy.config.get_text_config(), "max_position_embeddings", torch.inf),
            1024 + config.max_tokens,
        )

    def load_problems(self, split, config):
        """The problems of "train" or "test" whose prompts leave room for a completion."""
        try:
            problems = self.module.load_problems(split, config.data, config.seed)
        except Exception as error:  # many kinds: no such file, column, network or package
            raise SystemExit(f"--task {config.task} --data {config.data}: {error!r}") from None
        return [
            p for p in problems if len(self.prompt_ids(p)) + config.max_tokens <= self.max_length
        ]

    def prompt_ids(self, problem):
        """Token ids of the question and of the beginning of the answer."""
        text = self.prompt.text
        for name, value in problem.items():
            if name != "answer":  # the column `answer` is a solution: not shown
                text = text.replace("{" + name + "}", str(value))
        chat = self.prompt.chat and self.tokenizer.chat_template
        if chat:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        # A chat template already adds the token that begins a text.
        return self.tokenizer.encode(text + self.prompt.opening, add_special_tokens=not chat)

    def has_ended(self, token_ids):
        """Whether a completion ends with an end token, or has a stop text in its last 32 tokens."""
        return token_ids[-1] in self.stop_ids or any(
            stop in self.tokenizer.decode(token_ids[-32:]) for stop in self.prompt.stop
        )


# %% [markdown]
# ## 6. The steps of the algorithm
#
# The processes of torchrun divide the problems: each samples, rewards and scores its own.


# %%
def seed_of(*parts):
    """A seed for each purpose and step: so a resumed run makes the same random choices."""
    return zlib.crc32(repr(parts).encode()) & 0x7FFFFFFF


def gather(items):
    """The lists of all processes, joined; the same on each of them."""
    everywhere = [items] * WORLD
    if WORLD > 1:
        dist.all_gather_object(everywhere, items)
    return sum(everywhere, [])


def rollout(sampler, problems, task, config, step, draw=0):
    """Steps 1 to 3: a batch of rewarded episodes. (DAPO, in variants.py, may draw again.)"""
    label = f"step {step}, {draw}"
    # 1. Draw m problems.
    drawn = random.Random(seed_of(config.seed, label, "questions")).sample(
        problems, config.prompts_per_step
    )
    # 2. Sample a group of n completions of each. 3. Reward them.
    return sample_and_reward(sampler, drawn, task, config, label, config.group_size)


def sample_and_reward(sampler, problems, task, config, label, n):
    """Steps 2 and 3: n episodes of each problem of this process's share, problem by problem."""
    seeds = [seed_of(config.seed, label, place) for place in range(len(problems))][RANK::WORLD]
    problems = problems[RANK::WORLD]
    prompts = [task.prompt_ids(problem) for problem in problems]
    episodes = []
    completions = sampler.generate(prompts, n, config.temperature, seeds) if prompts else []
    for place, (token_ids, log_probs) in enumerate(completions):
        problem = problems[place // n]
        text = task.tokenizer.decode(token_ids, skip_special_tokens=True)
        episodes.append(
            Episode(
                problem=problem,
                prompt_ids=prompts[place // n],
                token_ids=token_ids,
                log_probs=log_probs,
                ended=task.has_ended(token_ids),
                text=text,
                reward=task.module.reward(text, problem, task.prompt),
                advantage=0.0,
            )
        )
    return episodes


def update(engine, reference, episodes, config, loss_function):
    """Steps 5 to 7: one AdamW step on the loss of all episodes. Returns the micro-batches."""
    engine.module.train()
    by_length = sorted(episodes, key=lambda e: len(e.prompt_ids) + len(e.token_ids))
    batches = []
    for start in range(0, len(episodes), config.micro_batch_size):
        # Of similar length: little padding.
        batch = collate(by_length[start : start + config.micro_batch_size], engine.device) | {
            "completions": len(episodes)  # of this process; the engine averages over processes
        }
        # 5. Log-probs under the reference.
        if reference is not None:
            with torch.no_grad():
                batch["ref_log_probs"] = reference.to(engine.device)(batch)  # (B, T)
        # 6. The loss and its gradient. pi_old, the policy before this step, is the policy as it is
        # now, as a constant. (The loss does not use the sampler's log-probs. They equal these up to
        # rounding; measure_step compares them.)
        log_probs = engine(batch)  # (B, T)
        batch["old_log_probs"] = log_probs.detach()
        parts = loss_function(log_probs, batch, config)  # (B,)
        engine.backward(parts.sum())
        batches.append(batch | {"loss": parts.detach()})
    if reference is not None and config.offload:
        reference.to("cpu")  # until the next step
    # 7. One AdamW step: the gradient is clipped, applied if it is finite, and set to zero.
    engine.step()
    engine.module.eval()
    return batches


# %% [markdown]
# ## 7. What is measured


# %%
def mean(rows, name):
    """The mean of one column of rows."""
    return sum(row[name] for row in rows) / len(rows)


def as_row(e):
    """An episode as a row of a file."""
    return {
        "problem": e.problem,
        "completion": e.text,
        "reward": e.reward.total,
        "format_reward": e.reward.format,
        "answer_reward": e.reward.answer,
        "why": e.reward.why,
        "advantage": e.advantage,
        "length": len(e.token_ids),
        "prompt_length": len(e.prompt_ids),
        "cut_off": not e.ended,
    }


def measure_step(rows, batches, engine, step, config):
    """The metrics of a step over all processes; docs/metrics.md explains each."""
    found = {
        name: torch.cat([batch[name].flatten() for batch in batches])
        for name in batches[0]
        if name.endswith("log_probs")
    }
    log_probs = found["old_log_probs"]  # 0 outside of the mask, as the others
    d = found.get("ref_log_probs", log_probs) - log_probs
    sums = {
        # Tokens are drawn from pi: the mean of -log pi(token) estimates the entropy.
        "entropy": -log_probs.sum(),
        "kl": (torch.exp(d) - 1 - d).sum(),
        "sampling/logp_difference_mean": (log_probs - found["sampler_log_probs"]).abs().sum(),
    }
    everywhere = gather(
        [
            {name: value.item() for name, value in sums.items()}
            # A mean already: grpo_loss divides by N.
            | {"loss": sum(batch["loss"].sum().item() for batch in batches)}
        ]
    )
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, config.group_size)  # (m, n)
    tokens = sum(row["length"] for row in rows) / WORLD  # per process, like mean(everywhere, name)
    return {name: mean(everywhere, name) / tokens for name in sums} | {
        "step": step,
        "lr": learning_rate(step, config),
        "grad_norm": float(engine.get_global_grad_norm()),
        "loss": mean(everywhere, "loss"),
        "reward": mean(rows, "reward"),
        "reward_std": rewards.std(dim=1).mean().item(),
        "reward/format": mean(rows, "format_reward"),
        "reward/answer": mean(rows, "answer_reward"),
        "frac_reward_zero_std": (rewards == rewards[:, :1]).all(dim=1).float().mean().item(),
        "completions/mean_length": mean(rows, "length"),
        "completions/clipped_ratio": mean(rows, "cut_off"),  # TRL's name; not PPO's clip
    }


def evaluate(sampler, problems, task, config, path, step):
    """Sample one completion of each held-out problem, always with the same seeds: -> metrics."""
    episodes = sample_and_reward(sampler, problems, task, config, "evaluation", n=1)
    rows = gather([as_row(e) for e in episodes])
    write(f"{path}/evaluations/step_{step:06d}.jsonl", rows)
    share = mean(rows, "answer_reward")
    low, high = interval(share, len(rows))
    print(
        f"\n{share:.1%} [{low:.1%}, {high:.1%}] of {len(rows)} held-out problems correct",
        "The first: {problem}\n{completion}\n=> {why}\n".format(**rows[0]),
        sep="\n",
        flush=True,
    )
    return {
        "eval/pass@1": share,
        "eval/pass@1_low": low,
        "eval/pass@1_high": high,
        "eval/format": mean(rows, "format_reward"),
        "eval/mean_length": mean(rows, "length"),
        "eval/clipped_ratio": mean(rows, "cut_off"),
        "eval/problems": len(rows),
    }


def interval(share, n, z=1.96):
    """95% interval (low, high) of a share of n problems; it stays within [0, 1] (Wilson 1927)."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + (z / (2 * n)) ** 2) ** 0.5
    return max(0.0, centre - half), centre + half


# %% [markdown]
# ## 8. A run: its directory, its checkpoints, its end


# %%
def write(path, rows):
    """One JSON object per line. The file is never half written, even if the run is killed."""
    if RANK == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.tmp", "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        os.replace(f"{path}.tmp", path)


def read(path):
    """The rows of such a file; none if it is not there."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def open_run(config):
    """The run's directory, new or to be continued. All processes take the first one's values."""
    name = config.name or f"{config.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = gather([config.resume or os.path.join("out", name)])[0]
    saved = gather(read(f"{path}/config.json"))[:1]
    if bool(saved) != bool(config.resume):
        raise SystemExit(
            f"{path}: there is a run; --resume {path} continues it, another --name starts a new one"
            if saved
            else f"--resume {path}: there is no run"
        )
    for setting, value in (saved[0] if saved else {}).items():  # the settings of its start
        if value != getattr(config, setting) and (
            setting not in ("steps", "resume", "name", "save_every", "eval_every", "wandb")
        ):
            raise SystemExit(f"--resume {path} needs the flags of its start: --{setting} {value}")
    write(f"{path}/config.json", saved or [asdict(config)])
    return path


def save_checkpoint(engine, path, step):
    """Saves to folders a and b in turn. Then latest.json gets a row with the folder's name.

    So its last row names a whole checkpoint, even if the run is killed while it saves.
    """
    saved = read(f"{path}/latest.json")
    tag = "ab"[len(saved) % 2]
    engine.save_checkpoint(path, tag, save_latest=False)
    write(f"{path}/latest.json", [*saved, {"tag": tag, "step": step}])


def save_model(policy, tokenizer, path):
    """The policy as a Hugging Face directory."""
    weights = {name: weight.detach().cpu() for name, weight in full_weights(policy)}
    if RANK == 0:
        policy.save_pretrained(path, state_dict=weights)
        tokenizer.save_pretrained(path)


def on_signal(received):
    """Ctrl-C lets the step end and be saved; a second one quits."""
    received.append(time.monotonic())
    if received[-1] - received[0] > 1:  # seconds; torchrun sends one Ctrl-C twice
        raise KeyboardInterrupt
    print("\nFinishing this step, then saving. Ctrl-C again quits at once.", flush=True)


def find_device(config):
    """This process's device. With torchrun, the processes connect to each other here."""
    on_gpu = torch.cuda.is_available() and config.device != "cpu"
    if config.device == "cuda" and not on_gpu:
        raise SystemExit(
            f"--device cuda: torch {torch.__version__} sees no GPU. It is built for CUDA "
            f"{torch.version.cuda} (None: for the CPU alone)"
        )
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("nccl" if on_gpu else "gloo")
        atexit.register(dist.destroy_process_group)  # else a thread can crash at exit
    return device


# %% [markdown]
# ## 9. The loop
#
# GRPO's relatives differ from it in the functions that `main` takes as arguments. `variants.py` and
# your own experiments pass others.


# %%
COLUMNS = (
    "(correct: share of the completions; no signal: share of groups with equal rewards)\n"
    "   step   reward correct format tokens no signal entropy gradient seconds   left"
)
# The names in braces are those of the metrics. The slash in reward/answer belongs to the name.
STEP_LINE = (
    "{step:>4}/{steps:<4} {reward:6.2f} {reward/answer:7.0%} {reward/format:6.0%} "
    "{completions/mean_length:6.0f} {frac_reward_zero_std:9.0%} {entropy:7.2f} {grad_norm:8.2f} "
    "{time/step:7.1f} {left:2.0f} min"
)


def main(
    config,
    load_model=load_model,
    rollout=rollout,
    advantages=group_advantages,
    loss=grpo_loss,
    update=update,
):
    """Evaluate, train, evaluate again, save. Returns the run's directory."""
    device = find_device(config)
    policy, tokenizer = load_model(config)
    task = Task(tokenizer, policy, config)
    train = task.load_problems("train", config)
    test = task.load_problems("test", config)[: config.eval_problems]
    if (
        config.prompts_per_step % WORLD
        or not 0 < config.prompts_per_step <= len(train)
        or config.temperature <= 0
        or (config.group_size < 2 and advantages is group_advantages)
    ):
        raise SystemExit(
            f"--prompts_per_step must be a multiple of the {WORLD} processes and at most the "
            f"{len(train)} training problems; --group_size at least 2; --temperature above 0"
        )
    path = open_run(config)
    sampler = make_sampler(policy, task, device, config)
    print(f"{policy.num_parameters():,} weights on {device}; {type(sampler).__name__}; {path}")
    reference = Scorer(copy.deepcopy(policy), config) if config.kl_coef else None
    engine = make_engine(Scorer(policy, config), device, config)
    # Without the folder report/, nothing is recorded of what an update does to each token.
    recorder = importlib.util.find_spec("report") and importlib.import_module("report.record")
    if config.wandb != "off" and RANK == 0:
        import wandb

        wandb.init(project="nano_r1", config=asdict(config), mode=config.wandb)
    start = 0
    for latest in read(f"{path}/checkpoint/latest.json")[-1:]:  # the last one, if there is one
        # DeepSpeed's files are pickles, which can run code: resume only runs of your own.
        engine.load_checkpoint(f"{path}/checkpoint", latest["tag"])
        start = latest["step"]
        sampler.sleep()  # sync expects a sleeping sampler
        sampler.sync(policy)
    # A new run has no metrics yet: it begins with an evaluation of the base, as step 0.
    history = [row for row in read(f"{path}/metrics.jsonl") if row["step"] <= start] or [
        {"step": 0} | evaluate(sampler, test, task, config, path, 0)
    ]
    received = []
    signal.signal(signal.SIGINT, lambda *_: on_signal(received))
    print(COLUMNS)
    started = time.monotonic()
    for step in range(start + 1, config.steps + 1):
        began = time.monotonic()
        # 1. Draw m problems. 2. Sample a group of completions of each. 3. Reward them.
        episodes = rollout(sampler, train, task, config, step)
        sampler.sleep()  # vLLM frees its share of the GPU
        # 4. Advantages: how much better is each completion than its group?
        rewards = torch.tensor([e.reward.total for e in episodes]).view(-1, config.group_size)
        for e, advantage in zip(episodes, advantages(rewards, config).flatten().tolist()):
            e.advantage = advantage
        # 5. Log-probs under the reference. 6. The loss and its gradient. 7. One AdamW step.
        for group in engine.optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        batches = update(engine, reference, episodes, config, loss)
        # 8. The sampler gets the new weights.
        sampler.sync(policy)
        # 9. Log, evaluate, save.
        rows = gather([as_row(e) for e in episodes])
        write(f"{path}/episodes/step_{step:06d}.jsonl", rows)
        metrics = measure_step(rows, batches, engine, step, config) | {
            "time/step": time.monotonic() - began
        }
        minutes = (config.steps - step) * (time.monotonic() - started) / (step - start) / 60
        print(STEP_LINE.format(steps=config.steps, left=minutes, **metrics), flush=True)
        if metrics["sampling/logp_difference_mean"] > 0.1:
            print("WARNING: sampler and trainer differ in log-probs: other weights or precision?")
        if recorder:
            recorder.after_step(path, step, episodes, batches, engine, tokenizer, config)
        if step == config.steps or step % (config.eval_every or config.steps) == 0:
            metrics |= evaluate(sampler, test, task, config, path, step)
        history.append(metrics)
        write(f"{path}/metrics.jsonl", history)
        if config.wandb != "off" and RANK == 0:
            wandb.log(metrics, step=step)
        stopping = any(gather([bool(received)]))
        if stopping or step == config.steps or step % (config.save_every or config.steps) == 0:
            save_checkpoint(engine, f"{path}/checkpoint", step)
        if stopping:
            print(f"Saved after step {step}. To continue: the same flags and --resume {path}")
            return path
    save_model(policy, tokenizer, f"{path}/model")
    shares = [row["eval/pass@1"] for row in history if "eval/pass@1" in row]
    print(f"From {shares[0]:.1%} to {shares[-1]:.1%} of held-out problems. Model: {path}/model")
    if recorder and RANK == 0:
        importlib.import_module("report.viewer").write([path])
    return path


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    try:
        main(tyro.cli(Config, use_underscores=True))
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {error.name}") from None
    except (RuntimeError, ValueError) as error:  # torch's, vLLM's
        if "memory" in str(error) and "illegal" not in str(error):
            raise SystemExit(
                "Out of memory: try --micro_batch_size 1, --gradient_checkpointing, --offload, "
                f"fewer --max_tokens. {error}"
            ) from None
        raise
