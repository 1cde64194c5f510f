"""Engines of the evaluator beside those of the rollout: versions on order, and nothing shared."""

from __future__ import annotations

from unit.publisher.kit import FleetPlay

from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.works import ConfirmVersion
from milepost.messages.engine import ActivateEpoch, EpochAnswer, PrepareEpoch
from milepost.messages.publisher import HoldRefused, ReleaseVersion, VersionHeld
from milepost.messages.supervisor import StepRecorded
from milepost.messages.trainer import VersionFailed

OURS = "evaluation_engine-0"


def test_a_version_is_moved_to_the_evaluation_engines_only_when_it_is_wanted_there() -> None:
    play = FleetPlay()
    play.announce(0)
    play.answer_all()
    assert play.published() == [0]
    assert OURS not in play.serving
    play.hold_fleet()
    play.answer_all()
    assert play.serving[OURS] == 0
    assert play.replies == [VersionHeld(version=0, fleet=True)]


def test_publications_go_on_while_the_evaluation_engines_are_held() -> None:
    """That is what they are there for."""
    play = FleetPlay()
    play.announce(0)
    play.hold_fleet()
    play.answer_all()
    for version in (1, 2):
        play.announce(version)
        play.answer_all()
    assert play.published() == [0, 1, 2]
    assert (play.serving["engine-0"], play.serving[OURS]) == (2, 0)


def test_the_next_hold_gets_the_version_that_is_published_then() -> None:
    play = FleetPlay()
    play.announce(0)
    play.hold_fleet()
    play.answer_all()
    play.announce(1)
    play.answer_all()
    play.hear(ReleaseVersion(holder="evaluator", fleet=True), "evaluator")
    assert play.serving[OURS] == 0
    play.hold_fleet()
    play.answer_all()
    assert play.serving[OURS] == 1
    assert play.replies == [VersionHeld(version=v, fleet=True) for v in (0, 1)]


def test_an_evaluation_engine_that_starts_again_gets_the_version_being_measured() -> None:
    """The published one is newer by then, and would mix two versions in one score."""
    play = FleetPlay()
    play.announce(0)
    play.hold_fleet()
    play.answer_all()
    play.announce(1)
    play.answer_all()
    play.die(OURS)
    play.back(OURS)
    play.answer_all()
    assert play.serving[OURS] == 0


def test_the_version_being_measured_stays_on_the_disk_until_it_is_released() -> None:
    """An engine that starts again in the middle of an evaluation has to load it once more; and one
    that starts after it needs nothing, whatever lies there by then."""
    play = FleetPlay()
    play.announce(0)
    play.hold_fleet()
    play.answer_all()
    assert oldest_kept(play, 5) == 0
    play.hear(ReleaseVersion(holder="evaluator", fleet=True), "evaluator")
    assert oldest_kept(play, 5) == 5
    play.die(OURS)
    play.back(OURS)
    play.answer_all()
    assert play.serving == {"engine-0": 0, "engine-1": 0}
    play.hold_fleet()
    play.answer_all()
    assert play.serving[OURS] == 0


def oldest_kept(play: FleetPlay, version: int) -> int:
    assert isinstance(play.core, FleetPublisher)
    effect = play.core.kept(ConfirmVersion(f"confirm/{version}", version, version))
    assert isinstance(effect, ConfirmVersion)
    return effect.oldest


def test_engines_that_refuse_every_time_cost_a_score_and_no_publication() -> None:
    """The trainer hears nothing of it: its version is good, and serves."""
    play = FleetPlay()
    play.announce(0)
    play.answer_all()
    play.hold_fleet()
    for _ in range(3):
        play.answer(OURS, EpochAnswer(version=0, ok=False, reason="no memory"))
        if begin := next((key for key in play.wakes if key.endswith("begin")), ""):
            play.wake(begin)
    (refused,) = play.replies
    assert isinstance(refused, HoldRefused)
    assert "no memory" in refused.reason
    assert play.take(VersionFailed) == []
    assert play.failed == ""
    assert play.events().count("evaluation_engines") == 1
    play.announce(1)
    play.answer_all()
    assert play.published() == [0, 1]


def test_answers_from_before_a_failure_mean_nothing_after_it() -> None:
    """A new beginning numbers its questions anew; an old answer must not fit one of them."""
    play = FleetPlay()
    play.announce(0)
    play.answer_all()
    play.hold_fleet()
    (old,) = [key for key, ask in play.asked.items() if ask.to == OURS]
    for _ in range(3):
        play.answer(OURS, EpochAnswer(version=0, ok=False, reason="no memory"))
        if begin := next((key for key in play.wakes if key.endswith("begin")), ""):
            play.wake(begin)
    play.hold_fleet()
    (new,) = [key for key, ask in play.asked.items() if ask.to == OURS]
    assert new != old
    play.answer_key(old, OURS, EpochAnswer(version=0, ok=True))
    assert [type(ask.message) for ask in play.asked.values()] == [PrepareEpoch]


def test_the_figures_of_both_have_names_of_their_own() -> None:
    """One of them would be overwritten in the metrics of its step."""
    play = FleetPlay()
    play.announce(0)
    play.hold_fleet()
    play.answer_all()
    names = [set(line.metrics) for line in play.take(StepRecorded)]
    assert len(names) == 2
    assert not names[0] & names[1]
    assert all(name.startswith("perf/evaluation_engines/") for name in names[1])
    assert play.waiting(ActivateEpoch) == []
