"""Thousands of whole runs with everything going wrong that may: the invariants hold in each."""

from __future__ import annotations

import os

import pytest
from sim.faults import Faults
from sim.runs import run_seed, tell_story

CHUNK = 100
CHUNKS = 100 if os.environ.get("CI") else 8
"""10,000 seeds where time is the machine's, enough to notice a mistake where it is a person's."""
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_of_faults_breaks_an_invariant(chunk: int) -> None:
    """Deaths of actors at any moment, resumes, stalls, links that carry nothing, actors that take
    nothing, links that are full, clocks that jump, failing episodes.

    Each seed is another shape of run (groups, ranks, policies, evaluation) under other faults.
    """
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        run_seed(seed)


def test_slow_consumers_fill_their_links_and_nothing_is_lost() -> None:
    """A message that finds no room fails: its sender hears of it, and says it again."""
    faults = Faults(slow=0.02, slow_s=20.0, slows=12, full_max=4, death=0.005, deaths=1)
    refused = sum(
        run_seed(seed, faults=faults).network.num_refused for seed in range(2_000_000, 2_000_060)
    )
    assert refused > 100, "a fault that does not happen tests nothing"


def test_runs_without_faults_end_too() -> None:
    for seed in range(1_000_000, 1_000_100):
        run_seed(seed, faults=False)


def test_a_seed_tells_the_same_story_twice() -> None:
    """A failure that cannot be replayed is only a rumour."""
    for seed in (3, 11, 79):
        assert tell_story(seed) == tell_story(seed)


def test_story_of_a_seed(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, verdict = tell_story(request.config.getoption("--sim-seed"))
    with capsys.disabled():
        print("", *trace, verdict, sep="\n")  # noqa: T201
    assert verdict.endswith("held")
