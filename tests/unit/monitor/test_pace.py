"""Frames that cost much come less often, and never stop."""

from __future__ import annotations

import pytest

from milepost.launch.monitor.pace import PAUSE_S_MAX, Pace


@pytest.mark.parametrize(
    ("cpu_s", "pause_s"), [(0.0, 0.0), (0.002, 0.5), (0.004, 1.0), (0.05, PAUSE_S_MAX)]
)
def test_the_next_frame_waits_for_the_share_of_the_last_one(cpu_s: float, pause_s: float) -> None:
    """A busy run on a slow machine must not pay for being watched closely."""
    pace = Pace(share_max=0.004)
    assert pace.is_due(100.0), "the first one comes at once"
    pace.drew(100.0, cpu_s)
    assert pace.is_due(100.0 + pause_s)
    assert not pace.is_due(99.99 + pause_s)
