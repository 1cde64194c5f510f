"""Finding common prefixes over all rows at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.engine.embedded.prefixes import common_lengths


@given(
    seed=st.integers(0, 9999),
    length=st.integers(0, 90),
    shared=st.lists(st.integers(0, 90), min_size=1, max_size=6),
)
def test_common_lengths_are_those_of_a_loop(seed: int, length: int, shared: list[int]) -> None:
    """Short rows, long rows, equal rows, and differences around where reading stops early."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, length).astype(np.int32)
    rows = rng.integers(0, 3, (len(shared), 100)).astype(np.int32)
    for row, count in zip(rows, shared, strict=True):
        row[: min(count, length)] = tokens[: min(count, length)]
    found = common_lengths(rows, tokens)
    for row, common in zip(rows, found.tolist(), strict=True):
        expected = 0
        while expected < length and row[expected] == tokens[expected]:
            expected += 1
        assert common == expected
