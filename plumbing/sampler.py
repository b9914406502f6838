"""The sampling loop for machines without vLLM, on the Hugging Face model and its KV cache.

Each prompt is computed once for its group, completions that have ended leave the batch, and the
cache grows in place.
"""

import copy
import importlib.util
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers.cache_utils import DynamicCache, DynamicLayer

from plumbing.decoding import decode, forward
from plumbing.models import gathered, vocabulary_size
from plumbing.packing import is_like_llama


@dataclass
class Completion:
    token_ids: list  # the end token included, when the model produced it
    logprobs: list  # of each token, under the distribution that it was sampled from
    finish_reason: str  # "stop": the model ended it; "length": cut off at max_tokens


def sampler_kind(config):
    """ "vllm" or "transformers": what `--rollout` names; `auto` is vLLM on a GPU that has it.

    Not below capability 8.0 (a T4): there vLLM has one kernel left, for float32 alone.
    """
    if config.rollout != "auto":
        return config.rollout
    new = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return "vllm" if new and importlib.util.find_spec("vllm") else "transformers"


class TransformersSampler:
    """Samples with the model that is trained: nothing to sync, nothing to put to sleep.

    (Under ZeRO 3 with a copy: there every forward pass is a collective, and processes decode
    different numbers of steps.)
    """

    MAX_ROWS = 512  # completions decoded at once
    # Parameters of a model that one thread of a CPU samples from. A step of its decoding is a
    # thousand operations of some microseconds: threads that meet at the end of each take longer.
    SMALL = 20_000_000

    def __init__(self, model, task, stop_ids, sample_token, config):
        self.model = copy.deepcopy(model) if config.zero_stage == 3 else model
        self.next_logits = decode if is_like_llama(model.config) else forward
        self.tokenizer = task.tokenizer
        self.stop_ids = torch.tensor(stop_ids, device=model.device)
        self.stop_texts = task.stop_texts
        self.sample_token = sample_token  # the lesson's
        self.pad_id = self.tokenizer.pad_token_id or 0  # any token will do
        self.vocabulary = vocabulary_size(self.tokenizer)
        on_cpu = model.device.type == "cpu"
        self.one_thread = on_cpu and sum(p.numel() for p in model.parameters()) <= self.SMALL
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

        Each prompt has its own limit in `max_tokens`, and its own seed: its completions depend
        neither on the other prompts nor on the process that samples them (up to rounding of the
        logits, which can decide between two nearly equal tokens).
        """
        per_batch = max(1, self.MAX_ROWS // n)  # prompts
        starts = range(0, len(prompt_token_ids), per_batch)
        bar = tqdm(starts, desc="sampling", leave=False, disable=None if len(starts) > 1 else True)
        groups = []
        training = self.model.training
        threads = torch.get_num_threads()
        self.model.eval()
        torch.set_num_threads(1 if self.one_thread else threads)
        try:
            for start in bar:
                part = slice(start, start + per_batch)
                groups += self._generate_batch(
                    prompt_token_ids[part], n, temperature, max_tokens[part], seeds[part]
                )
        finally:
            self.model.train(training)
            torch.set_num_threads(threads)
        return groups

    def _generate_batch(self, prompts, n, temperature, limits, seeds):
        draw = self.sample_token if temperature else most_likely
        logits, mask, position, cache = self._prefill(prompts)  # (P, V), (P, W), (P, 1)
        # From here on a row is a completion: n rows share the keys and values of one prompt.
        cache.batch_repeat_interleave(n)
        limits = torch.tensor(limits, device=logits.device)
        repeated = [x.repeat_interleave(n, dim=0) for x in (logits, mask, position, limits)]
        logits, mask, position, limits = repeated  # R = P * n at first
        uniforms = draw_uniforms(seeds, int(limits.max()), n).to(logits.device)
        tokens = torch.zeros_like(uniforms, dtype=torch.long)  # (max_tokens, P * n)
        logprobs = torch.zeros_like(uniforms, dtype=torch.float32)
        rows = torch.arange(len(logits), device=logits.device)  # the column of each row in these
        lengths = torch.zeros_like(rows)
        stopped = torch.zeros_like(rows, dtype=torch.bool)
        live = torch.ones_like(rows, dtype=torch.bool)
        for t in range(len(uniforms)):
            known = logits[:, : self.vocabulary]  # others only pad it to a round size
            token, logprob = draw(known, temperature, uniforms[t, rows, None])  # (R, 1), (R, 1)
            tokens[t, rows] = token[:, 0]  # past its end a row writes what nobody reads
            logprobs[t, rows] = logprob[:, 0]
            lengths[rows] += live
            stops = torch.isin(token[:, 0], self.stop_ids)
            if self.stop_texts:
                stops |= self._end_with_stop_text(tokens[: t + 1, rows], live)
            stopped[rows] |= live & stops
            live &= ~stops & (t + 1 < limits)
            alive = int(live.sum())
            if alive == 0:
                break
            # Drop rows that have ended, once they are an eighth: the last rows take their places.
            if alive <= 0.875 * len(rows):
                keep = torch.arange(alive, device=rows.device)
                keep[~live[:alive]] = alive + live[alive:].nonzero()[:, 0]
                cache.batch_select_indices(keep)
                kept = [x[keep] for x in (rows, live, limits, mask, position, token)]
                rows, live, limits, mask, position, token = kept
            position = position + 1
            mask = torch.nn.functional.pad(mask, (0, 1), value=True)
            logits = self.next_logits(self.model, token, position, mask, cache)  # (R, V)

        completions = []
        columns = zip(tokens.T.tolist(), logprobs.T.tolist(), lengths.tolist(), stopped.tolist())
        for ids, scores, length, stop in columns:
            reason = "stop" if stop else "length"
            completions.append(Completion(ids[:length], scores[:length], reason))
        return [completions[i : i + n] for i in range(0, len(completions), n)]

    def _prefill(self, prompts):
        """One forward pass over the prompts, padded on the left so that all end in one column."""
        rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
        left = {"batch_first": True, "padding_side": "left"}
        input_ids = pad_sequence(rows, padding_value=self.pad_id, **left).to(self.model.device)
        mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], **left)
        mask = mask.to(self.model.device)  # (P, W)
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer:  # no sliding window
                cache.layers[i] = PreallocatedKVLayer()
        out = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1], mask, positions[:, -1:], cache

    def _end_with_stop_text(self, tokens, live):
        """Which live rows of `tokens` (t, R) end with a stop text: (R,).

        Stop texts are tags: each of their characters takes at most one token.
        """
        ends = torch.zeros_like(live)
        longest = max(map(len, self.stop_texts))
        last = tokens[-1].tolist()  # at once: each number from a GPU waits for all its work
        for row in live.nonzero()[:, 0].tolist():
            if self._can_end_stop_text(last[row]):
                end = self.tokenizer.decode(tokens[-longest:, row])
                ends[row] = any(stop in end for stop in self.stop_texts)
        return ends

    def _can_end_stop_text(self, token):
        if token not in self.ends_stop_text:
            text = self.tokenizer.decode([token])
            self.ends_stop_text[token] = any(stop[-1] in text for stop in self.stop_texts)
        return self.ends_stop_text[token]


def draw_uniforms(seeds, max_tokens, n):
    """Numbers from [0, 1), (max_tokens, P * n): n columns from each prompt's seed.

    Drawn token by token, so that a completion does not depend on the limit either.
    """
    columns = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        columns.append(torch.rand(max_tokens, n, dtype=torch.float64, generator=generator))
    return torch.cat(columns, dim=1)


def most_likely(logits, temperature, uniform):
    """At temperature 0, in the place of the lesson's `sample_token`: greedy."""
    probs = torch.softmax(logits.float(), dim=-1)
    token = probs.argmax(dim=-1, keepdim=True)
    return token, probs.gather(-1, token).log()


class PreallocatedKVLayer(DynamicLayer):
    """One layer's keys and values, with room for more: transformers' copies all at each token."""

    ROOM = 64  # tokens
    # [keys, values], (R, heads, tokens + room, head size); `keys`, `values` are views of the part
    # that is used.
    space = None

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        states = (key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        rows = len(key_states)  # more of them, once each prompt's row is repeated for its group
        if self.space is None or len(self.space[0]) != rows or self.space[0].shape[-2] < end:
            shapes = [(*new.shape[:2], end + self.ROOM, new.shape[-1]) for new in states]
            self.space = [self.keys.new_empty(shape) for shape in shapes]
            for space, old in zip(self.space, (self.keys, self.values) if start else ()):
                space[:, :, :start] = old
        for space, new in zip(self.space, states):
            space[:, :, start:end] = new
        self.keys, self.values = (space[:, :, :end] for space in self.space)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        """Keep these rows, in place: only those are copied that change their place."""
        count = len(indices)
        moved = (indices != torch.arange(count, device=indices.device)).nonzero()[:, 0]
        for used in (self.keys, self.values):
            used[moved] = used[indices[moved]]
        self.keys = self.keys[:count]
        self.values = self.values[:count]
        self.space = self.space and [s[:count] for s in self.space]
