"""Flows so small that every order of their deliveries is tried, not only many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sim.choosers import Odometer, every_order
from sim.small import some_groups, two_versions

FLOWS = {
    "one group of two": partial(some_groups),
    "two groups of one": partial(some_groups, prompts=2, samples=1),
    "no journal": partial(some_groups, journal=False),
    "a failing episode is retried": partial(some_groups, failing=frozenset({"g0000000.0/0"})),
    "a failing episode makes the group smaller": partial(
        some_groups, samples=3, failed="smaller_group", failing=frozenset({"g0000000.0/0"})
    ),
    "a failing episode drops the group": partial(
        some_groups, failed="drop_group", failing=frozenset({"g0000000.0/0"})
    ),
}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_every_order_trains_every_group_once(flow: Callable[[Odometer], object]) -> None:
    """Opening, trajectories, storing, training: each link keeps its order, nothing else does."""
    assert len(list(every_order(flow, 5_000))) > 100


@pytest.mark.parametrize("engines", [1, 2])
def test_every_order_brings_every_engine_to_the_newest_version(engines: int) -> None:
    """Two versions announced in one breath while the first is still on its way."""

    def run(odometer: Odometer) -> None:
        two_versions(odometer, engines)

    assert len(list(every_order(run, 5_000))) > 20


def test_the_odometer_tries_every_sequence_once() -> None:
    """The machinery itself: all words over digits whose number depends on the digits before."""
    words: list[tuple[int, ...]] = []

    def run(odometer: Odometer) -> None:
        first = odometer.pick(3)
        words.append((first, *[odometer.pick(2) for _ in range(first)]))

    assert len(list(every_order(run, 100))) == 1 + 2 + 4
    assert len(set(words)) == len(words) == 7
