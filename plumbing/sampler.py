"""The sampling loop for machines without a GPU, on top of the Hugging Face model and its KV cache.

Each prompt is computed once per group, finished completions leave the batch, and the cache grows in place.
"""

import contextlib
import copy
import importlib.util
import sys
from dataclasses import dataclass

import torch
from tqdm import tqdm
from transformers.cache_utils import DynamicCache, DynamicLayer

from plumbing.decoding import can_decode, decode
from plumbing.forks import spread_over_processes
from plumbing.models import gathered, vocabulary_size


@dataclass
class Completion:
    token_ids: list  # the end-of-sequence token included, when the model produced it
    logprobs: list  # log-probability of each token under the distribution it was sampled from
    finish_reason: str  # "stop": the model ended it; "length": cut off at max_tokens


def sampler_kind(config):
    """ "vllm" or "transformers": what `--rollout` names; `auto` takes vLLM on a GPU where it is installed."""
    if config.rollout != "auto":
        return config.rollout
    return "vllm" if torch.cuda.is_available() and importlib.util.find_spec("vllm") else "transformers"


class PreallocatedKVLayer(DynamicLayer):
    """One layer's keys and values, with room for more tokens; transformers' own layer copies all at each token."""

    ROOM = 64  # tokens
    space = None  # [keys, values], (R, heads, tokens + room, head size); `keys` and `values` are views of its used part

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self.space is None or self.space[0].shape[-2] < end:
            grown = [s.new_empty(*s.shape[:2], end + self.ROOM, s.shape[-1]) for s in (key_states, value_states)]
            if start:
                grown[0][:, :, :start], grown[1][:, :, :start] = self.keys, self.values
            self.space = grown
        self.space[0][:, :, start:end], self.space[1][:, :, start:end] = key_states, value_states
        self.keys, self.values = (s[:, :, :end] for s in self.space)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        """Keep these rows, in place: only those are copied that change their place."""
        moved = (indices != torch.arange(len(indices), device=indices.device)).nonzero()[:, 0]
        for used in (self.keys, self.values):
            used[moved] = used[indices[moved]]
        self.keys, self.values = self.keys[: len(indices)], self.values[: len(indices)]
        self.space = self.space and [s[: len(indices)] for s in self.space]

    def batch_repeat_interleave(self, repeats):
        super().batch_repeat_interleave(repeats)
        self.space = None  # they are copies now, without room


@contextlib.contextmanager
def in_eval_mode(model):
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def most_likely(logits):
    """The most likely token and its log-prob, greedy decoding: (R, V) -> (R, 1), (R, 1)."""
    probabilities = torch.softmax(logits.float(), dim=-1)  # (R, V)
    token = probabilities.argmax(dim=-1, keepdim=True)
    return token, probabilities.gather(-1, token).log()


class TransformersSampler:
    """Samples with the model that is trained: nothing to sync, nothing to put to sleep.

    (Under ZeRO 3 with a copy: there every forward pass is a collective, and ranks decode different numbers of steps.)
    """

    MAX_ROWS = 512  # completions decoded at once, by all copies of the process together
    SMALL = 20_000_000  # parameters; the CPU's threads each decode a part of the completions, instead of all together

    def __init__(self, model, task, stop_ids, sample_token, config):
        own_copy = config.zero_stage == 3
        self.model = copy.deepcopy(model) if own_copy else model
        self.tokenizer = task.tokenizer
        self.stop_ids = stop_ids
        self.stop_texts = task.stop_texts
        self.sample_token = sample_token  # the lesson's
        pad_id = self.tokenizer.pad_token_id
        self.pad_id = stop_ids[0] if pad_id is None else pad_id
        self.vocabulary = vocabulary_size(self.tokenizer)
        self.ends_stop_text = {}  # token id -> whether it holds the last character of a stop text

    def sync_weights(self, policy):
        if self.model is not policy:
            with gathered(policy):
                self.model.load_state_dict(policy.state_dict())

    def sleep(self):
        """It has no memory of its own to give."""

    @torch.inference_mode()
    def generate(self, prompt_token_ids, n, temperature, max_tokens, seeds):
        """n completions of each prompt, as lists of `Completion`. Temperature 0 is greedy.

        `max_tokens` is a number, or a list with one for each prompt. Each prompt has its own seed: its completions
        depend neither on the other prompts nor on the process that samples them (up to rounding of the logits, which
        can decide between two nearly equal tokens).
        """
        limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompt_token_ids)
        work = list(zip(prompt_token_ids, limits, seeds))
        processes = self._processes()
        per_batch = max(1, self.MAX_ROWS // processes // n)  # prompts
        with in_eval_mode(self.model):
            return spread_over_processes(lambda part: self._generate(part, n, temperature, per_batch), work, processes)

    def _processes(self):
        small = self.model.device.type == "cpu" and sum(p.numel() for p in self.model.parameters()) <= self.SMALL
        return torch.get_num_threads() if small and sys.platform == "linux" else 1

    def _generate(self, work, n, temperature, per_batch):
        results, starts = [], range(0, len(work), per_batch)
        for start in tqdm(starts, desc="sampling", leave=False, disable=None if len(starts) > 1 else True):
            results += self._generate_batch(*zip(*work[start : start + per_batch]), n, temperature)
        return results

    def _generate_batch(self, prompts, limits, seeds, n, temperature):
        device, max_tokens = self.model.device, max(limits)
        # Prefill: one forward pass over each prompt, padded on the left so that all end in the same column.
        width = max(map(len, prompts))
        input_ids = torch.tensor([[self.pad_id] * (width - len(p)) + p for p in prompts], device=device)  # (P, W)
        mask = torch.ones(len(prompts), width + max_tokens, dtype=torch.bool, device=device)
        for row, prompt in zip(mask, prompts):
            row[: width - len(prompt)] = False
        positions = (mask[:, :width].cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        cache.layers = [PreallocatedKVLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        out = self.model(
            input_ids=input_ids, attention_mask=mask[:, :width], position_ids=positions, past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        # From here on a row is a completion: n rows share the keys and values of one prompt. R = P * n at first.
        cache.batch_repeat_interleave(n)
        repeated = (out.logits[:, -1], mask, positions[:, -1:], torch.tensor(limits, device=device))
        logits, mask, position, limits = (x.repeat_interleave(n, dim=0) for x in repeated)
        count = len(logits)
        rows = torch.arange(count, device=device)  # which completion each row of the batch belongs to
        live = torch.ones(count, dtype=torch.bool, device=device)
        tokens = torch.zeros(max_tokens, count, dtype=torch.long, device=device)
        logprobs = torch.zeros(max_tokens, count, device=device)
        lengths = torch.zeros(count, dtype=torch.long, device=device)
        stopped = torch.zeros(count, dtype=torch.bool, device=device)
        stop_ids = torch.tensor(self.stop_ids, device=device)
        # (max_tokens, R); drawn token by token, so that a completion does not depend on the limit either.
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        uniforms = [torch.rand(max_tokens, n, dtype=torch.float64, generator=g) for g in generators]
        uniforms = torch.cat(uniforms, dim=1).to(device)

        for t in range(max_tokens):
            # Without the entries that only pad the embedding to a round size.
            known = logits[:, : self.vocabulary]
            if temperature:
                token, logprob = self.sample_token(known, temperature, uniforms[t, rows, None])
            else:
                token, logprob = most_likely(known)  # (R, 1)
            tokens[t, rows], logprobs[t, rows] = token[:, 0], logprob[:, 0]  # past its end a row writes what none reads
            lengths[rows] += live
            stops = torch.isin(token[:, 0], stop_ids)
            if self.stop_texts:
                for i in live.nonzero()[:, 0].tolist():
                    stops[i] |= self._ends_with_stop_text(tokens[: t + 1, rows[i]])
            stopped[rows] |= live & stops
            live &= ~stops & (t + 1 < limits)
            alive = int(live.sum())
            if alive == 0:
                break
            # Drop finished rows once they are an eighth of the batch: the last rows take their places.
            if alive <= 0.875 * len(rows):
                keep = torch.arange(alive, device=device)
                keep[~live[:alive]] = alive + live[alive:].nonzero()[:, 0]
                cache.batch_select_indices(keep)
                state = (rows, live, limits, mask, position, token)
                rows, live, limits, mask, position, token = (x[keep] for x in state)
            position = position + 1
            logits = self._next_logits(token, position, mask[:, : width + t + 1], cache)  # (R, V)

        columns = zip(tokens.T.tolist(), logprobs.T.tolist(), lengths.tolist(), stopped.tolist())
        completions = [
            Completion(ids[:length], scores[:length], "stop" if stop else "length")
            for ids, scores, length, stop in columns
        ]
        return [completions[i : i + n] for i in range(0, count, n)]

    def _next_logits(self, token, position, mask, cache):
        if can_decode(self.model):
            return decode(self.model, token, position, mask, cache)
        return self.model(
            input_ids=token, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True
        ).logits[:, -1]  # fmt: skip

    def _ends_with_stop_text(self, ids):
        """Stop texts are tags: each of their characters takes at most one token."""
        last = int(ids[-1])
        if last not in self.ends_stop_text:
            text = self.tokenizer.decode([last])
            self.ends_stop_text[last] = any(stop[-1] in text for stop in self.stop_texts)
        if not self.ends_stop_text[last]:
            return False
        end = self.tokenizer.decode(ids[-max(map(len, self.stop_texts)) :])
        return any(stop in end for stop in self.stop_texts)
