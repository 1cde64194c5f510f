"""What an actor says of itself, for people."""

from __future__ import annotations

import re
import time

from milepost.actors.vitals import SHARE_S_MIN, Vitals, for_people


def test_a_loop_s_clock_is_told_as_a_time_of_day_and_an_age() -> None:
    """`since 15801.7` says nothing to who asks why a run stands still."""
    said = for_people("waits for batch 3 since 15801.7, deadline 60 s, then again", 15804.2)
    assert re.fullmatch(
        r"waits for batch 3 since \d\d:\d\d:\d\d \(2\.5 s\), deadline 60 s, then again", said
    )


def test_words_without_a_time_stay_as_they_are() -> None:
    assert for_people("idle", 3.0) == "idle"


def test_whoever_asks_twice_in_a_row_is_told_the_same_share() -> None:
    """Two readers of one process ask within a millisecond; in it, asking itself is all there is."""
    vitals = Vitals()
    vitals._share, vitals._read_s = 0.25, time.monotonic() + 1000.0
    assert vitals.read()["cpu_share"] == 0.25, "no time has passed since the last reading"
    vitals._read_s = time.monotonic() - 1000.0
    assert vitals.read()["cpu_share"] < 0.25, "a thousand seconds, and hardly any work in them"
    assert 0 < SHARE_S_MIN < 1, "beats come once a second, and each needs a share of its own"
