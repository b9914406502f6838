"""Micro-batches: every episode once, a bounded number of tokens, as many on every process."""

from types import SimpleNamespace

import pytest
from helpers import episode
from hypothesis import given
from hypothesis import strategies as st

from plumbing import batching


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
def test_groups_stay_together_where_that_makes_little_padding(prompt, together):
    groups = [[i] * prompt for i in (1, 2)]
    episodes = [episode(ids, [2] * n) for n in (1, 30) for ids in groups]
    batches = batching.split_by_tokens(episodes, 2 * (prompt + 30))
    assert [len({e.prompt_ids[0] for e in batch}) for batch in batches] == [2 - together] * 2
