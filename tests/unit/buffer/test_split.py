"""One batch over minibatches and ranks: everything once, ranks even, minibatches whole."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.buffer.kit import group, row

from milepost.actors.buffer.groups import complete_group
from milepost.actors.buffer.split import balance, cut_evenly, split_batch

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=24)


@given(SIZES, st.integers(1, 5))
def test_every_item_is_in_one_bin_and_no_bin_is_needlessly_empty(
    sizes: list[int], bins: int
) -> None:
    """A rank without work waits in the next all-reduce for ever."""
    filled = balance(sizes, bins)
    assert sorted(index for each in filled for index in each) == list(range(len(sizes)))
    if len(sizes) >= bins:
        assert all(filled)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_the_fullest_bin_is_within_graham_s_bound_of_the_best(sizes: list[int], bins: int) -> None:
    """LPT: at most 4/3 - 1/(3 bins) of the optimum, found here by trying everything."""
    fullest = max(sum(sizes[index] for index in each) for each in balance(sizes, bins))
    best = min(
        max(sum(s for s, at in zip(sizes, where, strict=True) if at == b) for b in range(bins))
        for where in product(range(bins), repeat=len(sizes))
    )
    assert fullest <= (4 / 3 - 1 / (3 * bins)) * best + 1e-9


@pytest.mark.parametrize(("count", "parts"), [(5, 2), (8, 4), (7, 3), (3, 3)])
def test_parts_differ_by_at_most_one_group(count: int, parts: int) -> None:
    sizes = list(map(len, cut_evenly([group(str(at), 0) for at in range(count)], parts)))
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(1, 9), min_size=4, max_size=8), st.integers(1, 3), st.integers(1, 3))
def test_ranks_have_everything_once_and_groups_stay_in_one_minibatch(
    lengths: list[int], minibatches: int, ranks: int
) -> None:
    groups = [
        complete_group(f"g{at}", [(row(f"g{at}.{m}", 0, tokens=length + m),) for m in range(3)])
        for at, length in enumerate(lengths)
    ]
    split = split_batch(groups, minibatches, ranks)
    pieces = [piece for rank in split for piece in rank]
    names = Counter(piece.trajectory.trajectory_id for piece in pieces)
    assert set(names.values()) == {1}
    assert len(names) == 3 * len(groups)
    for each in groups:
        inside = {p.minibatch for p in pieces if p.trajectory.group_id == each.group_id}
        assert len(inside) == 1
    for rank in split:
        assert [p.minibatch for p in rank] == sorted(p.minibatch for p in rank)
        assert {p.minibatch for p in rank} == set(range(minibatches))
