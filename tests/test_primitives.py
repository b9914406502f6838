"""Small functions of the lesson: scores, the draw of a token, episodes, micro-batches, seeds."""

import itertools
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
import transformers
from helpers import episode, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import nano_r1 as r1
from plumbing import batching, chunked_logits
from plumbing.evaluation import confidence_interval, majority_vote, pass_at_k
from plumbing.processes import derive_seed, init_distributed
from plumbing.sampler import Completion
from plumbing.settings import UserError
from plumbing.tasks import Reward
from variants import score_with_entropy_gradient

TOKENS = torch.randint(0, 50, (3, 13), generator=torch.Generator().manual_seed(1))
SOME = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) < 0.5
MASKS = {"all": torch.ones_like(SOME), "some": SOME, "none": torch.zeros_like(SOME)}


# Log-probs and entropies


def scored(model, mask, *options, ids=TOKENS):
    """At temperature 0.7: log-probs, entropies and the gradient of a weighted sum of them."""
    batch = {"input_ids": ids[:, :-1], "labels": TOKENS[:, 1:], "response_mask": mask}
    log_probs, entropy = r1.get_response_log_probs(model, batch, 0.7, *options)
    loss = ((log_probs * torch.arange(12) + entropy) * mask).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return log_probs, entropy, torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", [r1.score_tokens, score_with_entropy_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_in_chunks_are_those_of_the_softmax_at_the_temperature(
    mask, score, dtype, monkeypatch
):
    """In chunks of 1 and 5 tokens, or in one: values in float64, gradients of all the logits."""
    model = tiny_model().to(dtype)
    mask = MASKS[mask]
    p = (model(TOKENS[:, :-1]).logits.double() / 0.7).softmax(-1)
    chosen = p.gather(-1, TOKENS[:, 1:, None])[..., 0].log()
    exact = [chosen * mask, -(p * p.log()).sum(-1) * mask]
    near = 1e-5 if dtype == torch.float32 else 0.02
    with monkeypatch.context() as plainly:
        plainly.setattr(chunked_logits, "can_chunk", lambda *_: False)
        plain = scored(model, mask, score)[2]
    for chunk in (1, 50 * 5, 10**9):  # of a vocabulary of 50
        monkeypatch.setitem(chunked_logits.CHUNK, "cpu", chunk)
        *found, gradient = scored(model, mask, score)
        assert [values.dtype for values in found] == [torch.float32] * 2
        assert_close([values.double() for values in found], exact, atol=near, rtol=near)
        atol = max(1e-6, near * plain.abs().max().item())
        assert_close(gradient, plain, rtol=0, atol=atol)


def capped():
    """A model that caps its logits after the output layer."""
    config = transformers.Gemma2Config(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        final_logit_softcapping=3.0,
    )
    return transformers.Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("model", [capped(), torch.nn.Embedding(50, 50)], ids=["capped", "bare"])
def test_other_models_are_scored_from_the_logits_that_they_return(model):
    if isinstance(model, torch.nn.Embedding):  # whatever has logits and no more
        table = model.forward
        model.forward = lambda ids: SimpleNamespace(logits=table(ids))
    expected = (model(TOKENS[:, :-1]).logits / 0.7).log_softmax(-1).gather(-1, TOKENS[:, 1:, None])
    assert_close(scored(model, SOME)[0], expected[..., 0] * SOME)


def test_a_model_that_changes_its_logits_in_another_way_is_refused():
    model = tiny_model()
    forward = model.forward
    model.forward = lambda **given: SimpleNamespace(logits=2 * forward(**given).logits)
    with pytest.raises(UserError):
        scored(model, SOME)


@pytest.mark.parametrize("beyond", [0, 10**6])
def test_the_output_layer_is_itself_again_afterwards(beyond):
    model = tiny_model()
    before = model(TOKENS).logits
    with pytest.raises(IndexError if beyond else ZeroDivisionError):
        scored(model, SOME, ids=TOKENS + beyond)
        raise ZeroDivisionError
    assert torch.equal(model(TOKENS).logits, before)


class Largest(TorchDispatchMode):
    """The most rows of logits that ever exist; the output layer's weight has 16 columns."""

    rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-1:] == (50,) and len(result) != 16:
            self.rows = max(self.rows, len(result))
        return result


def test_no_tensor_is_larger_than_a_chunk_of_logits(monkeypatch):
    """Forward and backward: 5 of 36 rows."""
    monkeypatch.setitem(chunked_logits.CHUNK, "cpu", 50 * 5)
    with Largest() as largest:
        scored(tiny_model(), MASKS["all"])
    assert largest.rows == 5


# The draw of a token


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_token_is_drawn_with_its_probability_and_has_its_log_prob(temperature):
    logits = torch.tensor([[1.0, -2.0, 0.5, -1e9, 3.0, 0.0]])
    exact = torch.distributions.Categorical(logits=logits[0] / temperature)
    uniform = torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0)).double()
    token, log_prob = r1.sample_token(logits.expand(20_000, -1), temperature, uniform)
    assert_close(log_prob, exact.log_prob(token))
    shares = token[:, 0].bincount(minlength=6) / 20_000
    deviation = (exact.probs * (1 - exact.probs) / 20_000).sqrt()
    assert ((shares - exact.probs).abs() <= 4 * deviation).all()


# Episodes and micro-batches


def test_collate_puts_per_token_values_where_their_tokens_are():
    """What one episode has and another has not is 0 there; no token of a masked one counts."""
    first = episode([1, 2, 3], [4, 5], 0.5, ref_log_probs=torch.tensor([-1.0, -2.0]))
    second = episode([1], [7, 8, 9], -1.5, sampler_log_probs=[-3, -4, -5])
    second.masked = True
    found = r1.collate([first, second], "cpu")
    assert_close(found.pop("sampler_log_probs")[:, 2:], torch.tensor([[-3.9, -3.9], [-5, 0]]))
    assert {name: values.tolist() for name, values in found.items()} == {
        "input_ids": [[1, 2, 3, 4], [1, 7, 8, 9]],
        "labels": [[2, 3, 4, 5], [7, 8, 9, 0]],
        "response_mask": [[False, False, True, True], [False] * 4],
        "advantages": [[0, 0, 0.5, 0.5], [-1.5, -1.5, -1.5, 0]],
        "ref_log_probs": [[0, 0, -1, -2], [0] * 4],
    }


def cut(monkeypatch, lengths, budget, most=1, masked=(), **penalty):
    """(episodes, their micro-batches) where the process with most micro-batches has `most`."""
    episodes = [episode([1], [2] * (n - 1), advantage=float(i)) for i, n in enumerate(lengths)]
    for i in masked:
        episodes[i].masked = True
    monkeypatch.setattr(batching, "all_reduce", lambda value, op: float(max(value, most)))
    c = SimpleNamespace(micro_batch_tokens=budget, **penalty)
    return episodes, batching.micro_batches(episodes, c, with_gradient=bool(penalty))


lengths = st.lists(st.integers(2, 60), min_size=1, max_size=30)


@given(lengths=lengths, budget=st.integers(1, 200), most=st.integers(1, 40))
def test_micro_batches_hold_every_episode_once_within_the_budget_in_equal_number(
    lengths, budget, most
):
    """The budget holds with padding, but for one episode alone; masked copies fill in."""
    with pytest.MonkeyPatch.context() as patch:
        fewest = cut(patch, lengths, budget)[1]
        episodes, batches = cut(patch, lengths, budget, most)
    assert len(batches) == max(most, len(fewest))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(1 + e.length for e in batch) <= budget
    kept = [id(e) for batch in batches for e in batch if not e.masked]
    assert sorted(kept) == sorted(map(id, episodes))


@pytest.mark.parametrize(
    "cutting, kept",
    [
        ({"lengths": [10] * 4, "budget": 20}, [[0, 1], [2, 3]]),
        ({"lengths": [50, 3, 4], "budget": 8}, [[1, 2], [0]]),
        ({"lengths": [7], "budget": 99, "most": 3}, [[0], [], []]),
        ({"lengths": [5] * 4, "budget": 99, "masked": [1, 2]}, [[0, 3]]),
        ({"lengths": [5, 6, 7], "budget": 99, "kl_coef": 0.0}, [[1, 2]]),  # 0 has no gradient
        ({"lengths": [5, 6, 7], "budget": 99, "kl_coef": 0.1}, [[0, 1, 2]]),
        ({"lengths": [5, 6, 7], "budget": 99, "entropy_coef": 0.1}, [[0, 1, 2]]),
    ],
)
def test_micro_batches_are_no_more_than_needed_and_of_what_has_a_gradient(
    cutting, kept, monkeypatch
):
    episodes, batches = cut(monkeypatch, **cutting)
    places = {id(e): place for place, e in enumerate(episodes)}  # copies have none
    assert [[places[id(e)] for e in batch if id(e) in places] for batch in batches] == kept


@pytest.mark.parametrize("prompt, together", [(200, True), (3, False)])
def test_groups_stay_together_where_that_makes_little_padding(prompt, together, monkeypatch):
    monkeypatch.setattr(batching, "all_reduce", lambda value, op: float(value))
    groups = [[i] * prompt for i in (1, 2)]
    episodes = [episode(ids, [2] * n) for n in (1, 30) for ids in groups]
    c = SimpleNamespace(micro_batch_tokens=2 * (prompt + 30), kl_coef=0.1)
    batches = batching.micro_batches(episodes, c)
    assert [len({e.prompt_ids[0] for e in batch}) for batch in batches] == [2 - together] * 2


# Prompts, rewards, seeds


def rollout(seed=0, step=1, draw=0):
    """A completion of a prompt is twice the prompt, its reward the number of its problem."""
    answers = lambda prompts, n, *_: [[Completion(p * 2, [0.0] * 2, "stop")] * n for p in prompts]
    rewards = lambda texts, problems: [Reward(p, 0, 0, text) for text, p in zip(texts, problems)]
    task = SimpleNamespace(prompt_ids=lambda problem: [problem], text=str, rewards=rewards)
    c = r1.Config(prompts_per_step=32, group_size=2, seed=seed)
    return r1.rollout(SimpleNamespace(generate=answers), range(100), task, c, step, draw)


def test_a_rollout_rewards_groups_of_completions_of_prompts_that_seed_step_and_draw_fix():
    init_distributed()
    for e in rollout():
        assert e.completion.token_ids == [e.problem] * 2 == e.prompt_ids * 2
        assert (e.reward.total, e.reward.why) == (e.problem, e.text)
    places = [*itertools.product((0, 1), repeat=3)]
    drawn = [[e.problem for e in rollout(*place)] for place in places + places]
    assert drawn[0][::2] == drawn[0][1::2] and len(set(drawn[0])) == 32  # no prompt twice
    assert drawn[:8] == drawn[8:] and len(set(map(tuple, drawn))) == 8


@pytest.mark.parametrize(
    "kind, rates", [("linear", [0.5, 0.75, 0.5, 0.25]), ("constant", [0.5, 1.0, 1.0, 1.0])]
)
def test_the_learning_rate_warms_up_and_decays_linearly(kind, rates):
    c = r1.Config(learning_rate=1.0, steps=4, warmup_steps=2, lr_scheduler_type=kind)
    assert [r1.learning_rate(step, c) for step in range(1, 5)] == rates


def test_derived_seeds_are_the_same_on_every_machine_and_differ_in_every_part():
    assert derive_seed(0, 1, "questions") == 1161177663
    places = itertools.product(range(5), range(20), range(3), "ab")
    seeds = {derive_seed(*place) for place in places}
    assert len(seeds) == 600 and all(0 <= seed < 2**31 for seed in seeds)


# Statistics

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0, 0.5]
HALF = 1.96 * statistics.stdev(SHARES) / math.sqrt(6)


@pytest.mark.parametrize(
    "values, interval",
    [
        ([0, 1] * 10, (0.2993, 0.7007)),
        ([0] * 10, (0.0, 0.2775)),
        ([1] * 10, (0.7225, 1.0)),
        ([0] * 3 + [1] * 27, (0.7438, 0.9654)),
        (SHARES, (0.5 - HALF, 0.5 + HALF)),  # of several samples: the normal approximation
    ],
)
def test_the_95_percent_interval_of_a_proportion_is_wilson_s(values, interval):
    assert confidence_interval(values) == pytest.approx(interval, abs=1e-4)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 7))
def test_pass_at_k_is_the_share_of_subsets_of_k_samples_with_a_right_one(samples, k):
    k = 1 + k % len(samples)
    subsets = [any(subset) for subset in itertools.combinations(samples, k)]
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(statistics.fmean(subsets))


@pytest.mark.parametrize(
    "votes, answers, value",
    [
        (["7", "7", "8"], [0.0, 0.0, 1.0], 0.0),  # against a right minority
        (["7", "8", "8"], [0.0, 1.0, 1.0], 1.0),
        (["7", "8", None], [0.0, 1.0, 0.0], 0.5),  # a tie counts in proportion
        ([None, None], [0.0, 0.0], 0.0),
    ],
)
def test_the_majority_decides(votes, answers, value):
    assert majority_vote(votes, answers) == value
