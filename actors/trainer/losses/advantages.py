"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

import torch
from torch import Tensor


def group_advantages(
    rewards: Tensor, group_index: Tensor, *, normalize_std: bool, std_epsilon: float
) -> Tensor:
    """Reward minus the group's mean, divided by the group's standard deviation.

    `A_i = (r_i - mean) / (std + std_epsilon)` with the unbiased standard deviation (Bessel, n - 1).
    A group of one, or one whose rewards are all equal, has advantage 0.

    Args:
        rewards: float [N].
        group_index: int64 [N], the group of each reward; groups need not be contiguous.
        normalize_std: False leaves out the division (Dr. GRPO, arXiv 2503.20783).
        std_epsilon: added to the standard deviation.

    Returns:
        float64 [N].
    """
    values = rewards.double()
    num_groups = int(group_index.max()) + 1 if len(group_index) else 0
    sizes = torch.zeros(num_groups, dtype=torch.float64).index_add_(
        0, group_index, torch.ones_like(values)
    )
    sums = torch.zeros_like(sizes).index_add_(0, group_index, values)
    centred = values - (sums / sizes.clamp(min=1))[group_index]
    if not normalize_std:
        return centred
    squares = torch.zeros_like(sizes).index_add_(0, group_index, centred.square())
    std = (squares / (sizes - 1).clamp(min=1)).sqrt()
    return centred / (std[group_index] + std_epsilon)


def member_advantage(
    reward: float, group_rewards: Sequence[float], *, normalize_std: bool, std_epsilon: float
) -> float:
    """`group_advantages` of one member whose siblings may be on another rank.

    Args:
        reward: of this member.
        group_rewards: of the whole group, this member included.
        normalize_std: see `group_advantages`.
        std_epsilon: see `group_advantages`.
    """
    if not has_spread(group_rewards):
        return 0.0
    mean = fsum(group_rewards) / len(group_rewards)
    centred = reward - mean
    if not normalize_std:
        return centred
    squares = fsum((other - mean) ** 2 for other in group_rewards)
    return centred / (sqrt(squares / max(len(group_rewards) - 1, 1)) + std_epsilon)


def has_spread(group_rewards: Sequence[float]) -> bool:
    """Whether the group teaches anything: not all rewards are equal."""
    return len(group_rewards) > 0 and min(group_rewards) != max(group_rewards)
