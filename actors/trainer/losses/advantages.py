"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt


def member_advantage(
    reward: float, group_rewards: Sequence[float], *, normalize_std: bool, std_epsilon: float
) -> float:
    """Reward minus the group's mean, divided by the group's standard deviation.

    `A_i = (r_i - mean) / (std + std_epsilon)` with the unbiased standard deviation (Bessel, n - 1).
    A group of one, or one whose rewards are all equal, has advantage 0. Siblings may be on another
    rank: their rewards are all that is needed of them.

    Args:
        reward: of this member.
        group_rewards: of the whole group, this member included.
        normalize_std: False leaves out the division (Dr. GRPO, arXiv 2503.20783).
        std_epsilon: added to the standard deviation.
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
