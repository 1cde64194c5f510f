"""Engines die, fall silent and come back, at every moment of an epoch."""

from __future__ import annotations

import math
from struct import pack

import pytest
from sim.rows import probe_of
from unit.publisher.kit import Play
from unit.publisher.test_epochs import serving

from milepost.actors.effects import Taken, Unanswered
from milepost.actors.publisher.canary import largest_difference
from milepost.messages.bulk import Bulk
from milepost.messages.engine import ActivateEpoch, GenerateRefused, PrepareEpoch, Score, Scored
from milepost.messages.trainer import VersionFailed


def test_a_restarted_engine_is_brought_to_the_published_version() -> None:
    """At once, not with the next publication; the buckets of the last one were kept."""
    play = serving(4)
    play.die("engine-1")
    assert play.waiting(PrepareEpoch) == []
    play.back("engine-1")
    play.answer_all()
    assert play.serving == {"engine-0": 4, "engine-1": 4}
    assert play.published() == []


@pytest.mark.parametrize("steps", range(9))
def test_an_engine_may_die_at_any_step_of_an_epoch(steps: int) -> None:
    """The others go on; when it is back it gets the version that serves then."""
    play = serving(0)
    play.announce(1)
    for _ in range(steps):
        if play.asked:
            play.answer(next(iter(play.asked.values())).to)
    play.die("engine-1")
    play.answer_all()
    assert play.serving == {"engine-0": 1}
    play.back("engine-1")
    play.answer_all()
    assert play.serving == {"engine-0": 1, "engine-1": 1}
    assert play.published() == [1]


@pytest.mark.parametrize("steps", range(9))
def test_an_engine_whose_word_another_life_of_ours_took_is_not_waited_for(steps: int) -> None:
    """It said that it is ready to a publisher that died then; the old news of the death before
    comes to the next one, at any moment. Only the clock would bring that engine back."""
    play = serving(0)
    play.announce(1)
    for _ in range(steps):
        if play.asked:
            play.answer(next(iter(play.asked.values())).to)
    play.die("engine-1")
    play.dead.clear()
    play.answer_all()
    assert play.now_s == 0.0
    assert play.serving == {"engine-0": 1, "engine-1": 1}
    assert play.published() == [1]


def test_an_engine_that_takes_long_to_start_is_not_counted_as_silent() -> None:
    """Large models take minutes; four times silent would stop the run."""
    play = serving(0)
    play.die("engine-1")
    for _ in range(9):
        play.silence("engine-1")
        play.wake("again/engine-1")
    assert play.events() == []
    assert not play.failed
    play.back("engine-1")
    play.answer_all()
    assert play.serving["engine-1"] == 0


def test_nor_is_one_that_a_life_of_ours_before_was_told_of() -> None:
    """It took that news with it: only that the engine has not said a word yet shows it now."""
    play = Play()
    play.announce(0)
    for _ in range(9):
        play.silence("engine-1")
        if "again/engine-1" in play.wakes:
            play.wake("again/engine-1")
    play.dead.add("engine-1")
    play.answer_all()
    assert play.published() == [0], "the others go on"
    assert play.events() == ["engine_silent"]
    assert not play.failed
    play.dead.clear()
    play.answer_all()
    assert play.serving["engine-1"] == 0


def test_a_silent_engine_leaves_the_epoch_and_is_tried_again() -> None:
    play = serving(0)
    play.announce(1)
    play.answer("engine-0")
    play.silence("engine-1")
    play.answer_all()
    assert play.published() == [1]
    assert play.events() == ["engine_silent"]
    play.wake("again/engine-1")
    play.answer_all()
    assert play.serving["engine-1"] == 1


def test_an_engine_that_stays_silent_stops_the_run_by_name() -> None:
    play = serving(0)
    play.announce(1)
    for _ in range(4):
        while "engine-1" not in play.waiting(PrepareEpoch):
            play.wake("again/engine-1")
        play.silence("engine-1")
    assert "engine-1 took no version in 4 tries" in play.failed


def test_when_every_engine_dies_in_the_switch_the_version_waits_for_the_next_ones() -> None:
    play = serving(0, engines=("engine-0",))
    play.announce(1)
    while not play.waiting(ActivateEpoch):
        play.answer("engine-0")
    play.die("engine-0")
    play.back("engine-0")
    play.answer_all()
    play.wake("begin")
    play.answer_all()
    assert play.serving == {"engine-0": 1}
    assert play.published() == [1]


def test_a_trainer_that_dies_half_way_leaves_nothing_paused() -> None:
    """Its buckets never come: the epoch ends at its deadline, saying where everybody was."""
    play = serving(0)
    play.announce(1, buckets=1)
    play.answer_all()
    play.wake("deadline/1")
    (failed,) = play.take(VersionFailed)
    assert "1 of 2 buckets came" in failed.reason
    assert play.serving == {"engine-0": 0, "engine-1": 0}


# ---- the canary --------------------------------------------------------------------------


def canary_asked() -> Play:
    play = serving(0, canary=True, engines=("engine-0",))
    play.announce(1)
    while not play.waiting(Score):
        play.answer("engine-0")
    return play


@pytest.mark.parametrize(
    "scored",
    [
        Scored(logprobs=(probe_of(0),), version=1),
        Scored(logprobs=(probe_of(1),), version=0),
        Scored(logprobs=(), version=1),
    ],
    ids=["the old weights", "another version", "nothing"],
)
def test_an_engine_that_does_not_compute_the_trainer_s_numbers_is_brought_back(
    scored: Scored,
) -> None:
    """HTTP 200 is no evidence: uninitialised memory was confirmed elsewhere for two months."""
    play = canary_asked()
    play.answer("engine-0", scored)
    assert play.published() == []
    assert play.events() == ["canary", "epoch_failed"]
    play.answer_all()
    assert play.serving == {"engine-0": 0}


def test_a_busy_engine_is_asked_for_its_evidence_again() -> None:
    play = canary_asked()
    play.answer("engine-0", GenerateRefused(request_id="", reason="queue full", retry=True))
    assert play.events() == []
    play.wake(next(key for key in play.wakes if key.startswith("canary/")))
    play.answer_all()
    assert play.published() == [1]


def floats(*values: float) -> Bulk:
    return Bulk("float32", (len(values),), pack(f"<{len(values)}f", *values))


def test_differences_are_taken_over_every_position_that_has_a_prefix() -> None:
    expected = (floats(0.0, -1.0, -2.0), floats(0.0, -3.0))
    same = (floats(9.0, -1.0, -2.5), floats(9.0, -3.25))
    assert largest_difference(expected, same) == 0.5


@pytest.mark.parametrize(
    "scored",
    [(), (floats(0.0, -1.0),), (floats(0.0, math.nan, -2.0),), (Bulk("int32", (3,), bytes(12)),)],
    ids=["none", "shorter", "nan", "not floats"],
)
def test_what_cannot_be_compared_differs_infinitely(scored: tuple[Bulk, ...]) -> None:
    """NaN compares as no difference at all in the obvious loop."""
    assert largest_difference((floats(0.0, -1.0, -2.0),), scored) == math.inf


def test_a_listener_that_takes_nothing_is_told_again_after_growing_pauses() -> None:
    """A dead peer's link fails at once: without a pause the two would spin until it is back."""
    play = serving(3)
    pauses = []
    for _ in range(7):
        play.feed(Unanswered("", "buffer", "no such peer"))
        play.feed(Unanswered("", "buffer", "no such peer"))
        assert play.published() == []
        pauses.append(play.wakes["listener/buffer"] - play.now_s)
        play.wake("listener/buffer")
        assert play.published() == [3]
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    play.feed(Taken("listener/buffer"))
    play.feed(Unanswered("", "buffer", "no such peer"))
    assert play.wakes["listener/buffer"] - play.now_s == 0.25


def test_word_of_a_failure_is_told_until_the_trainer_has_it() -> None:
    """It alone offers a version again: a run whose first one failed unheard would never begin."""
    play = Play()
    play.announce(0, buckets=1)
    play.wake("deadline/0")
    assert [word.version for word in play.take(VersionFailed)] == [0]
    pauses = []
    for _ in range(3):
        play.feed(Unanswered("failed/0", "trainer-0", "not taken before the deadline"))
        pauses.append(play.wakes["failed/0"] - play.now_s)
        play.wake("failed/0")
        assert [word.version for word in play.take(VersionFailed)] == [0]
    assert pauses == [0.25, 0.5, 1.0]
    play.feed(Taken("failed/0"))
    play.feed(Unanswered("failed/0", "trainer-0", "said of an older telling"))
    assert "failed/0" not in play.wakes


def test_a_newer_failure_takes_the_place_of_one_that_was_not_heard() -> None:
    """Its trainer waits for the newer version and would not know the older word's meaning."""
    play = serving(3)
    for version in (4, 5):
        play.announce(version, buckets=1)
        play.wake(f"deadline/{version}")
        play.answer_all()
    play.take(VersionFailed)
    play.feed(Unanswered("failed/4", "trainer-0", "not taken before the deadline"))
    assert "failed/4" not in play.wakes
    play.feed(Unanswered("failed/5", "trainer-0", "not taken before the deadline"))
    play.wake("failed/5")
    assert [word.version for word in play.take(VersionFailed)] == [5]
