"""What an actor says of itself, for people."""

from __future__ import annotations

import re

from milepost.actors.vitals import for_people


def test_a_loop_s_clock_is_told_as_a_time_of_day_and_an_age() -> None:
    """`since 15801.7` says nothing to who asks why a run stands still."""
    said = for_people("waits for batch 3 since 15801.7, deadline 60 s, then again", 15804.2)
    assert re.fullmatch(
        r"waits for batch 3 since \d\d:\d\d:\d\d \(2\.5 s\), deadline 60 s, then again", said
    )


def test_words_without_a_time_stay_as_they_are() -> None:
    assert for_people("idle", 3.0) == "idle"
