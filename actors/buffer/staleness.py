"""How old a group is, in published weight versions.

With v_min and v_max the oldest and newest version of any sampled token of the group, v_mean the
version averaged over its sampled tokens, and v_c the published version when it is consumed:

    S_old     = v_c - v_min      the conservative age, used for limits
    S_post    = v_c - v_max      how much it aged after its newest token (waiting in the queue)
    Delta_gen = v_max - v_min    updates that landed while it was generated
    S_token   = v_c - v_mean     the age of the typical token

Tokens without a version are left out of the averages and counted by the coverage; a group with any
such token has no known age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.messages.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that sampled some tokens."""

    oldest: int
    newest: int
    mean: float
    """Weighted by sampled tokens."""
    num_tokens: int
    """Sampled tokens with a version."""
    num_unversioned: int
    """Sampled tokens without one."""

    def s_old(self, current: int) -> int:
        """Published version minus the oldest one."""
        return current - self.oldest

    def s_post(self, current: int) -> int:
        """Published version minus the newest one."""
        return current - self.newest

    @property
    def delta_gen(self) -> int:
        """Newest minus oldest version."""
        return self.newest - self.oldest

    def s_token(self, current: int) -> float:
        """Published version minus the token-weighted mean version."""
        return current - self.mean


def count_loss_tokens(trajectory: Trajectory) -> int:
    """Tokens with loss mask 1."""
    return bytes(trajectory.loss_mask.data).count(1)


def versions_of(trajectories: Sequence[Trajectory]) -> Versions | None:
    """The versions of all tokens with loss mask 1; None when no such token has one."""
    weights: dict[int, int] = {}
    num_sampled = 0
    for trajectory in trajectories:
        mask = bytes(trajectory.loss_mask.data)
        num_sampled += mask.count(1)
        for span in trajectory.spans:
            count = mask.count(1, span.start, span.end)
            if count:
                weights[span.version] = weights.get(span.version, 0) + count
    if not weights:
        return None
    num_tokens = sum(weights.values())
    return Versions(
        oldest=min(weights),
        newest=max(weights),
        mean=sum(version * count for version, count in weights.items()) / num_tokens,
        num_tokens=num_tokens,
        num_unversioned=num_sampled - num_tokens,
    )
