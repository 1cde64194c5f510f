"""Group-relative advantages: known vectors, degenerate groups, one member against the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.trainer.losses.advantages import (
    group_advantages,
    has_spread,
    member_advantage,
)


def advantages(rewards: Sequence[float], groups: Sequence[int], *, std: bool) -> list[float]:
    found = group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        normalize_std=std,
        std_epsilon=0.0 if std else 1e-4,
    )
    return [round(value, 8) for value in found.tolist()]


def test_without_std_only_the_mean_of_the_group_is_removed() -> None:
    found = advantages([1, 2, 3, 4, 10, 20, 30, 40], [0] * 4 + [1] * 4, std=False)
    assert found == [-1.5, -0.5, 0.5, 1.5, -15, -5, 5, 15]


def test_members_of_a_group_need_not_stand_together() -> None:
    """Groups finish in any order, and their members with them."""
    assert advantages([0, 10, 2, 14], [0, 1, 0, 1], std=False) == [-1, -2, 1, 2]


def test_the_standard_deviation_is_the_unbiased_one() -> None:
    """Rewards 0 and 1: n - 1 gives 0.7071, n would give 1."""
    assert advantages([0, 1], [0, 0], std=True) == [-0.70710678, 0.70710678]


def test_groups_without_spread_and_groups_of_one_teach_nothing() -> None:
    found = group_advantages(
        torch.tensor([0.1, 0.1, 0.1, 7.0]),
        torch.tensor([0, 0, 0, 1]),
        normalize_std=True,
        std_epsilon=1e-4,
    )
    assert found.abs().max() < 1e-9
    assert member_advantage(0.1, [0.1] * 3, normalize_std=True, std_epsilon=1e-4) == 0.0
    assert not has_spread([0.1] * 3)
    assert not has_spread([])
    assert has_spread([0.0, 0.0, 1e-6])


@given(
    rewards=st.lists(st.floats(-100, 100), min_size=1, max_size=12),
    std=st.sampled_from(["divided", "left"]),
    member=st.integers(0, 11),
)
def test_a_member_alone_gets_what_it_gets_within_its_group(
    rewards: list[float], std: str, member: int
) -> None:
    """Siblings may be on another rank: their rewards travel with each row, and must suffice."""
    member %= len(rewards)
    whole = group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.zeros(len(rewards), dtype=torch.int64),
        normalize_std=std == "divided",
        std_epsilon=1e-4,
    )
    alone = member_advantage(
        rewards[member], rewards, normalize_std=std == "divided", std_epsilon=1e-4
    )
    assert math.isclose(float(whole[member]), alone, rel_tol=1e-6, abs_tol=1e-6)


def test_no_rewards_give_no_advantages() -> None:
    empty = torch.zeros(0)
    found = group_advantages(empty, empty.long(), normalize_std=True, std_epsilon=1e-4)
    assert found.shape == (0,)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 1.0])
def test_epsilon_is_added_to_the_standard_deviation(epsilon: float) -> None:
    found = member_advantage(1.0, [0.0, 1.0], normalize_std=True, std_epsilon=epsilon)
    assert found == pytest.approx(0.5 / (math.sqrt(0.5) + epsilon))
