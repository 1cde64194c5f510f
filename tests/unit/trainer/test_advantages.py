"""Group-relative advantages: known vectors, degenerate groups, and the formula by exact sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.trainer.losses.advantages import has_spread, member_advantage


def advantages(rewards: Sequence[float], *, std: bool) -> list[float]:
    """Of each member of one group."""
    epsilon = 0.0 if std else 1e-4
    found = (
        member_advantage(reward, rewards, normalize_std=std, std_epsilon=epsilon)
        for reward in rewards
    )
    return [round(value, 8) for value in found]


def test_without_std_only_the_mean_of_the_group_is_removed() -> None:
    assert advantages([1, 2, 3, 4], std=False) == [-1.5, -0.5, 0.5, 1.5]
    assert advantages([10, 20, 30, 40], std=False) == [-15, -5, 5, 15]


def test_the_standard_deviation_is_the_unbiased_one() -> None:
    """Rewards 0 and 1: n - 1 gives 0.7071, n would give 1."""
    assert advantages([0, 1], std=True) == [-0.70710678, 0.70710678]


def test_groups_without_spread_and_groups_of_one_teach_nothing() -> None:
    """0.1 three times has a mean that is not 0.1; nothing divided by nearly nothing is a lot."""
    for rewards in ([0.1] * 3, [7.0]):
        assert member_advantage(rewards[0], rewards, normalize_std=True, std_epsilon=1e-4) == 0.0
        assert not has_spread(rewards)
    assert not has_spread([])
    assert has_spread([0.0, 0.0, 1e-6])


@given(
    rewards=st.lists(st.floats(-100, 100), min_size=2, max_size=12),
    std=st.sampled_from(["divided", "left"]),
    member=st.integers(0, 11),
)
def test_a_member_alone_gets_what_the_formula_says(
    rewards: list[float], std: str, member: int
) -> None:
    """Siblings may be on another rank: their rewards travel with each row, and must suffice."""
    reward = rewards[member % len(rewards)]
    found = member_advantage(reward, rewards, normalize_std=std == "divided", std_epsilon=1e-4)
    scale = stdev(rewards) + 1e-4 if std == "divided" else 1.0
    expected = (reward - mean(rewards)) / scale
    assert math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 1.0])
def test_epsilon_is_added_to_the_standard_deviation(epsilon: float) -> None:
    found = member_advantage(1.0, [0.0, 1.0], normalize_std=True, std_epsilon=epsilon)
    assert found == pytest.approx(0.5 / (math.sqrt(0.5) + epsilon))
