"""Which side of a run is the bottleneck, how fresh its data is, and the key to turn: one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Final

WAIT: Final = "perf/wait_time_ratio"
QUEUE: Final = "rollout/fully_async/queue_size"
AGE_MEAN: Final = "rollout/staleness/s_old_mean"
AGE_MAX: Final = "rollout/staleness/s_old_max"
STALE: Final = "rollout/fully_async/stale_groups_filtered"
STARVED: Final = 0.25
"""Share of its time that a trainer may wait before rollout is called the bottleneck."""
FED: Final = 0.05


def read_flow(steps: Collection[Mapping[str, float]], *, sync: bool = False) -> str:
    """What the last steps say; empty when they say nothing of it (supervised runs).

    Args:
        steps: metrics of some steps in a row.
        sync: rollout and training take turns, so each waits for the other by design.
    """
    waits, queues = _values(steps, WAIT), _values(steps, QUEUE)
    if not waits or not queues:
        return ""
    parts = [_side(fmean(waits), fmean(queues), sync=sync), _age(steps)]
    if sum(_values(steps, STALE)):
        parts.append(
            "groups too old to be trained were sampled for nothing: set "
            "actors.buffer.staleness_policy to pace or correct"
        )
    return "; ".join(filter(None, parts))


def _side(wait: float, queue: float, *, sync: bool) -> str:
    if sync:
        return f"rollout and training take turns, the trainer waits {wait:.0%} of its time"
    if wait >= STARVED:
        return (
            f"rollout is the bottleneck (the trainer waits {wait:.0%} of its time): more engines, "
            f"or a larger actors.rollout.trajectories_in_flight_max"
        )
    if wait <= FED and queue >= 1:
        return (
            f"the trainer is the bottleneck ({queue:.0f} groups wait for it): more trainer ranks, "
            f"or a smaller actors.buffer.groups_max for fresher data"
        )
    return f"rollout and trainer keep pace (the trainer waits {wait:.0%} of its time)"


def _age(steps: Collection[Mapping[str, float]]) -> str:
    means, highest = _values(steps, AGE_MEAN), _values(steps, AGE_MAX)
    if not means or not highest:
        return ""
    return f"groups are {fmean(means):.1f} versions old when trained, {max(highest):.0f} at most"


def _values(steps: Collection[Mapping[str, float]], name: str) -> list[float]:
    return [metrics[name] for metrics in steps if name in metrics]
