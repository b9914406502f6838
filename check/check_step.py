"""Is your training step right? Compare its weights with those of the formula.

    python check/check_step.py my_adapter.py
    torchrun --nproc_per_node 2 check/check_step.py my_adapter.py

check_grpo.py judges a loss. Many silent mistakes are around the loss: an option
that is never passed on, a divisor that counts one process, a resume that does
nothing. So my_adapter.py wraps your trainer's own optimizer step:

    def step(model, episodes, config):
        ...
        return model

model      a tiny causal language model in float32, random, the same at each
           call. model(input_ids, attention_mask).logits, as in transformers
episodes   16 completions, group by group. Each has prompt_ids and token_ids
           (lists; the end token is included), reward and log_probs (the
           sampler's, equal to the model's). Under torchrun, each process gets
           its own groups
config     learning_rate, momentum   of torch.optim.SGD. No weight decay, no
                                     clipping of the gradient
           group_size, max_tokens    4 and 8
           micro_batch_size          completions in a forward pass
           padding_side              "right" or "left"; your trainer pads
           temperature, cliprange    numbers
           kl_coef, reference        0.0 and None, or a weight and a model
           optimizer_steps           steps on all of these episodes; the old
                                     policy is the one before the first
           save, resume              None, or the directory of a checkpoint to
                                     write after the step, or to load before it

If your trainer lacks one of them, raise NotImplementedError: this situation is
not looked at. If your trainer needs a model of its own, add make_model(seed).
If its advantages are new, add advantages(rewards), as for check_grpo.py. Then
the step is compared with your function instead of known formulas. It is also
called with groups of other sizes, to find out what is wrong.

The first situation finds the algorithm: which advantages, and which mean. Each
other situation differs in one part of config. The program names what is wrong
where. The exit code is 0 if nothing is, else 1. It needs only torch, and
check_grpo.py beside it.
"""

import copy
import functools
import itertools
import os
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence

from check_grpo import (
    ADVANTAGE_MISTAKES,
    COMPLETIONS,
    CONSTANT,
    DPPO,
    EACH,
    IPO,
    KINDS,
    LOSS_MISTAKES,
    MEANS,
    PAPERS,
    PRODUCT,
    RATIOS,
    TOKEN,
    Advantages,
    Loss,
    counts_of,
    judge_advantages,
    main,
    multiple,
    notes,
    require,
)

RANK = int(os.environ.get("RANK", 0))  # set by torchrun
WORLD = int(os.environ.get("WORLD_SIZE", 1))
# mistake: its consequence, and where it was seen. Parts are micro-batches or processes.
WIRING_MISTAKES = {
    "each part is a step of its own": "Later micro-batches see other weights.",
    "only the last part counts": (
        "The gradient is set to zero between micro-batches, or the processes do not exchange it."
    ),
    "the gradient of the last step is kept": "zero_grad is missing. Each step repeats the others.",
    "rewards and completions in different orders": (
        "Completions that were sorted by length have the advantages of others. Seen: "
        "StarsfieldAI/R1-V #67."
    ),
    "rewards of the next prompt": "The two lists are shifted. Seen: open-instruct PR #1484.",
    "the last micro-batch is left out": "Look for drop_last, and for a loop over whole batches.",
    "the reference is scored without the temperature": (
        "The penalty compares two distributions that differ from the start. Seen: "
        "huggingface/trl #3169."
    ),
    "advantages of each part alone": (
        "Mean and deviation are those of a process or a micro-batch. Seen: THUDM/slime PR #2235."
    ),
    "the checkpoint is not loaded": "The run starts again. Seen: huggingface/trl #3179.",
    "micro-batches averaged": (
        "Each micro-batch, or each process, divides by its own counts. Seen: "
        "PrimeIntellect-ai/prime-rl PR #2562, verl-project/verl PR #6049."
    ),
}
# what a model does not get if padding is on the left: its consequence
NOT_PASSED = {
    "position_ids": (
        "Rotary positions do not need them. Learned positions (GPT-2, OPT) count the padding. "
        "Seen: huggingface/trl #6800."
    ),
    "attention_mask": "The padding is read like text.",
    "attention_mask position_ids": "The padding is read like text.",
}
SEEN = (
    "Seen: unslothai/unsloth-zoo PR #890 (an option of the KL), modelscope/ms-swift PR #8427 "
    "(temperature), Open-Reasoner-Zero #46 (a resume without the optimizer)."
)
MISTAKES = LOSS_MISTAKES | WIRING_MISTAKES | ADVANTAGE_MISTAKES
GROUP = 4
TOLERANCE = 1e-3  # of the length of the step
PLAIN = {
    "learning_rate": 1.0,
    "momentum": 0.0,
    "group_size": GROUP,
    "max_tokens": 8,
    "micro_batch_size": 16 // WORLD,
    "padding_side": "right",
    "temperature": 1.0,
    "cliprange": 0.2,
    "kl_coef": 0.0,
    "reference": None,
    "optimizer_steps": 1,
    "save": None,
    "resume": None,
}
FIRST = "one micro-batch"
SECOND = "a second step on the batch"
LONGER = "the step is"
RESUMED = "resumed after the first of two steps"
# situation: what differs from PLAIN
SITUATIONS = {
    FIRST: {},
    "micro-batches of 4": {"micro_batch_size": 4},
    "micro-batches of 3, and a smaller one": {"micro_batch_size": 3},
    "another order of groups and completions": {},
    "padding on the left": {"padding_side": "left"},
    "temperature 0.5": {"temperature": 0.5},
    SECOND: {"optimizer_steps": 2, "cliprange": 0.05},
    "KL at temperature 2": {"kl_coef": 0.02, "temperature": 2.0},
    RESUMED: {"momentum": 0.9, "micro_batch_size": 8},
}
VOCABULARY = 20
END = 1  # the end token. No completion has the token 0, so it can pad.


# ---- The frozen model and the frozen episodes


class TinyModel(torch.nn.Module):
    """What trainers use of a model of transformers.

    Each token sees a sum of the tokens before it, with less weight for those far away. Positions
    are learned, as in GPT-2: without position_ids, padding counts as a position.
    """

    def __init__(self, seed):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.config.get_text_config = lambda: self.config
        self.embedding = torch.nn.Embedding(VOCABULARY, 12)
        self.position = torch.nn.Embedding(32, 12)
        self.head = torch.nn.Linear(12, VOCABULARY)
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():  # so small that k3 is below 10, where some stop it
            weight.data.normal_(std=0.7, generator=generator)

    def get_decoder(self):
        return self.decode

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, **inputs):
        hidden = self.decode(input_ids, **inputs).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden))

    def decode(self, input_ids, attention_mask=None, position_ids=None, **others):
        place = position_ids
        if place is None:
            place = torch.arange(input_ids.shape[1])
        x = self.embedding(input_ids) + self.position(place)  # (B, T, 12)
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        distance = place[..., :, None] - place[..., None, :]  # (T, T) or (B, T, T)
        weight = (0.7**distance).tril()
        return SimpleNamespace(last_hidden_state=torch.tanh(weight.to(x) @ x))


REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 2.0, 0.0, 1.0]
LENGTHS = [3, 8, 1, 5, 2, 6, 4, 7, 8, 8, 3, 2, 1, 4, 6, 2]


def make_episodes():
    """16 random completions in groups of 4, the same at each call. One group has no signal."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, VOCABULARY, (16, 8), generator=generator).tolist()
    episodes = []
    for i, (reward, length) in enumerate(zip(REWARDS, LENGTHS)):
        group = i // 4
        prompt = ids[group][: 2 + group]
        token_ids = ids[i][: length - 1] + [END]
        episodes.append(SimpleNamespace(prompt_ids=prompt, token_ids=token_ids, reward=reward))
    return episodes


def log_probs_of(model, episodes, config):
    """(log-probs of each label, whether it belongs to a completion), (B, T)."""
    rows = []
    masks = []
    for e in episodes:
        row = torch.tensor(e.prompt_ids + e.token_ids)
        rows.append(row)
        masks.append(torch.arange(len(row)) >= len(e.prompt_ids))
    side = config.padding_side
    ids = pad_sequence(rows, batch_first=True, padding_side=side)  # (B, T + 1)
    mask = pad_sequence(masks, batch_first=True, padding_side=side)
    inputs = {}
    if side == "left":
        seen = ids[:, :-1] > 0
        places = {"attention_mask": seen, "position_ids": (seen.cumsum(1) - 1).clamp(min=0)}
        hidden = getattr(config, "hidden", "")
        inputs = {name: value for name, value in places.items() if name not in hidden}
    logits = model(ids[:, :-1], **inputs).logits / config.temperature
    log_probs = logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None])
    return log_probs[..., 0], mask[:, 1:]


@torch.no_grad()
def add_log_probs(model, episodes, config):
    """Set `log_probs` of each episode to those of the model."""
    for e in episodes:
        log_probs, mask = log_probs_of(model, [e], config)
        e.log_probs = log_probs[mask].tolist()


# ---- The formula's step


def train(model, parts, config, formula, slip="", optimizer=None):
    """SGD steps of (advantages, loss) on a model in float64, in place; returns the optimizer.

    The parts of the episodes are micro-batches or processes.
    """
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
    if slip == "each part is a step of its own":
        for part in parts:
            train(model, [part], config, formula, optimizer=optimizer)
        return optimizer
    advantages, loss = formula
    if isinstance(advantages, Advantages):
        advantages = replace(advantages, slip=slip)
    ends = ("fall", "rise") if loss.drop else ("low", "high")
    clip = dict.fromkeys(ends, config.cliprange)
    loss = replace(loss, slip=slip, kl_weight=config.kl_coef, **clip)
    if loss.mean == CONSTANT:
        loss = replace(loss, constant=loss.constant * config.max_tokens)
    a = advantages_of(sum(parts, []), advantages, slip, len(parts))
    if slip == "the last micro-batch is left out":
        parts = parts[:-1] or parts
    sizes = [len(part) for part in parts]
    episodes = sum(parts, [])
    a = a[: len(episodes)]
    ref_config = config
    if slip == "the reference is scored without the temperature":
        ref_config = changed(config, temperature=1.0)
    old = None
    for _ in range(config.optimizer_steps):
        log_probs, mask = log_probs_of(model, episodes, config)
        if old is None:
            old = ref = log_probs.detach()
            if config.reference:
                reference = copy.deepcopy(config.reference).double()
                ref = log_probs_of(reference, episodes, ref_config)[0].detach()
        step = counts_of(*mask.split(sizes))
        columns = [column.split(sizes) for column in (log_probs, old, ref, a, mask)]
        losses = [loss(*rows, step=step) for rows in zip(*columns)]
        if slip == "only the last part counts":
            losses = losses[-1:]
        sum(losses).backward()
        optimizer.step()
        if slip != "the gradient of the last step is kept":
            optimizer.zero_grad()
    return optimizer


def advantages_of(episodes, advantages, slip, parts):
    """(B,), in float64"""
    rewards = torch.tensor([e.reward for e in episodes]).double()
    rewards = rewards.view(-1, min(GROUP, len(episodes)))
    pieces = [rewards]
    if slip == "advantages of each part alone":
        pieces = rewards.chunk(parts)
    a = torch.cat([advantages(piece) for piece in pieces]).flatten()
    if slip == "rewards of the next prompt":
        return a.roll(-GROUP)
    if slip == "rewards and completions in different orders":
        lengths = torch.tensor([len(e.token_ids) for e in episodes])
        return a[lengths.argsort(stable=True).argsort()]
    return a


def algorithms(own=None):
    """(advantages, loss) for each kind of advantages, or for the adapter's own, and each mean."""
    known = [Advantages(*kind) for kind in KINDS]
    # A relative of one may be another one's multiple, which is a remark.
    formulas = [own] if own else [x for x in known if "relative" not in x.name]
    for advantages, mean in itertools.product(formulas, [*MEANS[:3], EACH]):
        yield advantages, Loss(TOKEN, mean)


def relatives(algorithms):
    """The same algorithms with each ratio or mask, and with each KL."""
    ratios = [{"ratio": ratio} | PAPERS.get(ratio, {}) for ratio in RATIOS]
    ratios += [{"ratio": TOKEN, "drop": drop} for drop in (DPPO, IPO)]
    kls = ("k3", "k2", "k1", "k3 times the ratio")
    parts = (algorithms, ratios, kls, ("loss", "reward"))
    for (advantages, loss), ratio, kl, place in itertools.product(*parts):
        if ratio["ratio"] == PRODUCT:  # at 1, its gradient is that of a sum over tokens
            ratio = ratio | {"mean": COMPLETIONS, "constant": loss.constant * PLAIN["max_tokens"]}
        yield advantages, replace(loss, kl=kl, place=place, **ratio)


# ---- A situation


def changed(config, **changes):
    return SimpleNamespace(**vars(config) | changes)


def flat(model):
    """All weights in one vector, in float64."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().double()


class Situation:
    """What a trainer is asked for, and how far its weights move."""

    def __init__(self, name, make_model):
        self.changes = SITUATIONS[name]
        self.config = SimpleNamespace(**PLAIN | self.changes)
        self.model = make_model(0)
        self.other = make_model(1)
        if self.config.kl_coef:
            self.config.reference = self.other
        self.episodes = make_episodes()
        if "order" in name:
            self.episodes.reverse()
        add_log_probs(self.model, self.episodes, self.config)
        self.resumed = name == RESUMED

    def run(self, step):
        """Set `moved` to how far the trainer's step moves the weights."""
        model = copy.deepcopy(self.model)
        share = 16 // WORLD
        own = self.episodes[RANK * share :][:share]
        if self.resumed:
            with tempfile.TemporaryDirectory() as folder:
                model = self.call(step, model, own[:8], save=folder)
                add_log_probs(model, own[8:], self.config)
                model = self.call(step, copy.deepcopy(self.other), own[8:], resume=folder)
        else:
            model = self.call(step, model, own)
        self.moved = flat(model) - flat(self.model)

    def call(self, step, model, episodes, **changes):
        """The model that a trainer's step returns."""
        model = step(model, episodes, changed(self.config, **changes))
        kind = type(model).__name__
        require(isinstance(model, torch.nn.Module), f"step returns {kind} instead of a model.")
        return model

    def agrees(self, formula, slip="", **changes):
        """Whether the formula's step moves them as far."""
        advantages, loss = formula
        if not self.config.kl_coef:
            loss = replace(loss, kl="k3", place="loss")  # without a weight, all are alike
        moved = self.expected((advantages, loss), slip, **changes)
        return (self.moved - moved).norm() <= TOLERANCE * moved.norm()

    @functools.cache  # noqa: B019, a situation is kept, too
    def expected(self, formula, slip="", **changes):
        """How far the formula's step moves the weights."""
        model = copy.deepcopy(self.model).double()
        config = changed(self.config, **{"padding_side": "right"} | changes)
        size = config.micro_batch_size
        if self.resumed:
            size = 8  # also if the option has no effect
        parts = [self.episodes[i : i + size] for i in range(0, 16, size)]
        optimizer = None
        if self.resumed:
            optimizer = train(model, parts[:1], config, formula)
            parts = parts[1:]
        if slip == "the checkpoint is not loaded":
            optimizer = None
            model = copy.deepcopy(self.other).double()
        train(model, parts, config, formula, slip, optimizer)
        return flat(model) - flat(self.model)

    def times(self, formula):
        """How many times as long as the formula's the step is, or 0 if it has another direction."""
        own = self.expected(formula)
        times = multiple(own, self.moved)
        same = (self.moved - times * own).norm() < TOLERANCE * self.moved.norm()
        return times if same else 0.0

    def mistakes(self):
        """(what it changes in the formula's step, name, sentence) of each possible mistake"""
        for option in self.changes:
            yield {option: PLAIN[option]}, f"{option} has no effect", f"It is not passed on. {SEEN}"
        if "padding_side" in self.changes:
            for hidden, sentence in NOT_PASSED.items():
                left = {"padding_side": "left", "hidden": hidden}
                yield left, f"{hidden} not passed on", sentence
        else:
            for slip, sentence in MISTAKES.items():
                yield {"slip": slip}, slip, sentence

    def difference(self, candidates):
        """[name, sentence] of the mistake with which a candidate moves the weights as far."""
        if not self.moved.any():
            return "the weights do not change", (
                "No gradient, or the optimizer has other weights: those of an earlier call?"
            )
        if not self.moved.isfinite().all():
            return "the weights are NaN or infinite", "Look for a group of equal rewards."
        for (changes, *said), formula in itertools.product(self.mistakes(), candidates):
            if self.agrees(formula, **changes):
                return said
        for formula in candidates:
            times = self.times(formula)
            if times:
                return f"{LONGER} {times:.4g} times as long", (
                    "Look at the rate, a clip, the divisor. 1.333 is 16 / 12: the group without a "
                    "signal is left out."
                )
        if not isinstance(candidates[0][0], Advantages):
            for formula in algorithms():
                if self.agrees(formula):
                    return "your advantages have no effect", f"The step has {formula[0]}."
        if "padding_side" in self.changes:
            return "the padding changes the step", "Look at attention_mask and position_ids."
        return "an unknown difference", "No known mistake gives these weights."


@functools.cache
def situation_of(name, make_model):
    """The same one in each judgement, because it keeps how far formulas move the weights."""
    return Situation(name, make_model)


# ---- The verdict


def judge_step(step, make_model=TinyModel, advantages=None):
    """(right, names of what is wrong, text)."""
    own = None
    if advantages and not judge_advantages(advantages)[1]:  # they have no name
        own = advantages
    candidates = list(algorithms(own))
    scaled = False
    names = []
    lines = []
    for name in SITUATIONS:
        # Processes would need a common folder. A factor may depend on the episodes, as GDPO's does.
        if name == RESUMED and (WORLD > 1 or scaled):
            continue
        situation = situation_of(name, make_model)
        try:
            situation.run(step)
        except NotImplementedError as error:
            lines.append(f"– {name}: not looked at. {error}")
            continue
        kept = [formula for formula in candidates if situation.agrees(formula)]
        if not kept:
            mistake, sentence = situation.difference(candidates)
            if name == FIRST and mistake.startswith(LONGER):
                # A constant factor. If it changes with the situation, it is wrong there.
                scaled = True
                for advantages, loss in candidates:
                    times = situation.times((advantages, loss))
                    if times:
                        kept.append((advantages, replace(loss, constant=1 / times)))
                name = f"{name}: {mistake}. {sentence}"
            else:
                names.append(mistake)
                lines.append(f"✗ {name}: {mistake}. {sentence}")
                if name == FIRST:
                    break  # There is nothing to compare the others with.
                continue
        candidates = kept
        if name.startswith(FIRST):
            candidates = list(relatives(kept))
        if name == SECOND:
            loss = kept[0][1]
            name += f": {loss.drop or loss.ratio}"
            if loss.ratio == "no ratio":
                name += ". If you meant one, the old log-probs are computed anew in each step."
        lines.append(f"✓ {name}")
    title = "✗ step: " + "; ".join(dict.fromkeys(names))
    looked = sum(line[0] == "✓" for line in lines)
    if not names:
        require(looked, "step runs in none of the situations, so nothing was looked at.")
        title = f"✓ step: agrees with the formula in {looked} of {len(lines)} situations"
    algorithm = "No algorithm agrees"
    if looked:
        advantages, loss = candidates[0]
        algorithm = f"{'your advantages' if own else advantages}, {loss.mean}"
    text = "\n".join([title, f"{algorithm}.", *notes(algorithm), *lines])
    return not names, names, text


def judge_adapter(adapter):
    require("step" in adapter, "The adapter has no function step.")
    require(WORLD in (1, 2, 4), f"4 groups cannot be divided by {WORLD} processes: take 2 or 4.")
    make_model = adapter.get("make_model", TinyModel)
    return [judge_step(adapter["step"], make_model, adapter.get("advantages"))]


if __name__ == "__main__":
    main(__doc__, judge_adapter, has_new=False, prints=RANK == 0)
