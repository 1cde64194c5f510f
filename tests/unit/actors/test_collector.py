"""When the collector of cycles runs: rarely, and never over what start-up made."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from milepost.actors import collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests have the interpreter's own settings."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_a_process_that_starts_is_hardly_ever_walked() -> None:
    """Imports make what stays; walking it for every 700 objects takes a second in a trainer."""
    collector.starts()
    assert gc.get_threshold() == collector.STARTING
    assert gc.isenabled(), "an actor that never serves still frees its cycles"


def test_what_start_up_made_is_never_walked_again() -> None:
    """Frozen objects belong to no generation; what comes later does."""
    kept = [[number] for number in range(1000)]
    collector.starts()
    collector.settles()
    assert gc.get_threshold() == collector.SERVING
    assert gc.get_freeze_count() >= len(kept)
    young: list[object] = []
    young.append(young)
    assert any(each is young for each in gc.get_objects())
    assert not any(each is kept for each in gc.get_objects())


def test_cycles_that_come_later_are_freed() -> None:
    """A failed call's frames may hold megabytes: they go when enough was made after them."""
    collector.settles()
    before = gc.get_stats()[0]["collected"]
    for _ in range(collector.SERVING[0] + 100):
        ring: list[object] = []
        ring.append(ring)
    assert gc.get_stats()[0]["collected"] > before
