"""Aggregation: one gradient for one minibatch, however it is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from milepost.actors.trainer.losses.aggregate import Aggregation, token_weights


def aggregate(
    values: Tensor, counts: list[int], aggregation: Aggregation, tokens: int, trajectories: int
) -> float:
    weights = token_weights(
        counts,
        aggregation=aggregation,
        minibatch_loss_tokens=tokens,
        minibatch_trajectories=trajectories,
    )
    return float((weights * values).sum())


def test_long_and_short_parts_do_not_average_their_averages() -> None:
    """100 tokens at 2.0 and 900 at 0.5: the mean of two means is 1.25, the token mean is 0.65."""
    parts = [torch.full((100,), 2.0), torch.full((900,), 0.5)]
    total = sum(
        aggregate(part, [len(part)], "per_token", tokens=1000, trajectories=2) for part in parts
    )
    assert total == pytest.approx(0.65)
    assert sum(float(part.mean()) for part in parts) / 2 == pytest.approx(1.25)


def test_per_sample_weighs_each_row_the_same() -> None:
    values = torch.tensor([1.0, 3.0, 2.0, 2.0, 5.0])
    found = aggregate(values, [2, 3], "per_sample", tokens=5, trajectories=1)
    assert found == pytest.approx(5.0)


def test_rows_of_one_trajectory_share_its_tokens_as_denominator() -> None:
    """A trajectory that came as two rows is one sample, not two."""
    weights = token_weights(
        [2, 3],
        aggregation="per_sample",
        minibatch_loss_tokens=5,
        minibatch_trajectories=1,
        denominators=[5, 5],
    )
    values = torch.tensor([1.0, 3.0, 2.0, 2.0, 5.0])
    assert float((weights * values).sum()) == pytest.approx(2.6)


@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=16),
    ways=st.sampled_from([1, 2, 4]),
    aggregation=st.sampled_from(["per_token", "per_sample"]),
    seed=st.integers(0, 1000),
)
def test_any_split_adds_up_to_the_undivided_minibatch(
    rows: list[int], ways: int, aggregation: Aggregation, seed: int
) -> None:
    """Micro-batches and ranks are both splits; neither may be seen in the gradient."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.rand(count, generator=generator) for count in rows]
    sizes = {"tokens": sum(rows), "trajectories": len(rows)}
    whole = aggregate(torch.cat(values), rows, aggregation, **sizes)
    parts = [list(range(len(rows)))[way::ways] for way in range(ways)]
    split = sum(
        aggregate(
            torch.cat([values[row] for row in part]),
            [rows[row] for row in part],
            aggregation,
            **sizes,
        )
        for part in parts
        if part
    )
    assert split == pytest.approx(whole, rel=1e-5, abs=1e-7)
