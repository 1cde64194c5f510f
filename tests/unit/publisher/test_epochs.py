"""Weight epochs: prepare and move beside generation, switch together, publish with evidence."""

from __future__ import annotations

from unit.publisher.kit import Play

from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    EpochAnswer,
    EpochConfirmed,
    PrepareEpoch,
    WeightBucket,
)
from milepost.messages.publisher import ReleaseVersion, VersionHeld
from milepost.messages.supervisor import PeerRestarted, StepRecorded
from milepost.messages.trainer import VersionFailed, VersionPublished


def serving(version: int, **fields: object) -> Play:
    """Every engine serves this version, and the news of it has been taken."""
    play = Play(**fields)  # type: ignore[arg-type]
    play.announce(version)
    play.answer_all()
    assert play.published() == [version]
    play.take(StepRecorded)
    return play


def test_buckets_go_out_as_they_come_while_the_trainer_still_exports() -> None:
    play = Play()
    play.announce(0, buckets=1)
    play.answer_all()
    assert play.waiting(ActivateEpoch) == []
    play.bucket(0, 1)
    assert play.waiting(WeightBucket) == ["engine-0", "engine-1"]


def test_no_engine_switches_before_every_engine_has_everything() -> None:
    """A slow engine must not leave the fleet with two versions for as long as it takes."""
    play = Play()
    play.announce(0)
    for _ in range(3):
        play.answer("engine-0")
    assert play.waiting(ActivateEpoch) == []
    for _ in range(3):
        play.answer("engine-1")
    assert play.waiting(ActivateEpoch) == ["engine-0", "engine-1"]


def test_a_version_is_published_when_the_last_engine_confirmed_it() -> None:
    play = Play()
    play.announce(0, final=True)
    while not play.waiting(ActivateEpoch):
        play.answer(next(iter(play.asked.values())).to)
    play.answer("engine-1")
    assert play.published() == []
    play.answer("engine-0")
    assert play.take(VersionPublished) == [
        VersionPublished(version=0, final=True, digest="digest of 0")
    ]


def test_times_and_bytes_of_a_publication_are_recorded() -> None:
    play = Play()
    play.announce(0)
    play.now_s = 2.0
    for engine in play.engines:
        play.answer(engine)
    play.now_s = 5.0
    play.answer_all()
    (recorded,) = play.take(StepRecorded)
    assert recorded.step == 0
    assert recorded.metrics["perf/update_weights_prepare_time"] == 2.0
    assert recorded.metrics["perf/update_weights_move_time"] == 3.0
    assert recorded.metrics["perf/update_weights_pause_time"] == 0.5
    assert recorded.metrics["perf/update_weights_version"] == recorded.step
    assert recorded.metrics["perf/update_weights_wire_bytes"] == 2 * 4


def test_a_refusal_on_the_way_aborts_and_leaves_the_old_version_serving() -> None:
    play = serving(0)
    play.announce(1)
    play.answer("engine-0")
    play.answer("engine-1", EpochAnswer(version=1, ok=False, reason="w is float32 (2,)"))
    assert play.waiting(AbortEpoch) == ["engine-0"]
    assert play.events() == ["epoch_failed"]
    play.answer_all()
    assert play.serving == {"engine-0": 0, "engine-1": 0}
    assert play.published() == []


def test_a_failed_version_is_tried_again_and_the_trainer_hears_when_it_is_given_up() -> None:
    play = serving(0)
    play.announce(1)
    for _ in range(3):
        play.answer("engine-0", EpochAnswer(version=1, ok=False, reason="no memory"))
        play.answer_all()
        if "begin" in play.wakes:
            play.wake("begin")
    (failed,) = play.take(VersionFailed)
    assert (failed.version, failed.serving) == (1, 0)
    assert "no memory" in failed.reason
    play.announce(2)
    play.answer_all()
    assert play.published() == [2]


def test_an_engine_that_refuses_to_switch_brings_those_back_that_did() -> None:
    """Never a mixture: what switched already returns to the published version."""
    play = serving(0)
    play.announce(1)
    while not play.waiting(ActivateEpoch):
        play.answer(next(iter(play.asked.values())).to)
    play.answer("engine-0")
    play.answer("engine-1", EpochAnswer(version=1, ok=False, reason="digest differs"))
    assert play.serving["engine-0"] == 1
    play.answer_all()
    assert play.serving == {"engine-0": 0, "engine-1": 0}
    play.wake("begin")
    play.answer_all()
    assert play.serving == {"engine-0": 1, "engine-1": 1}
    assert play.published() == [1]


def test_an_engine_that_confirms_something_else_is_not_believed() -> None:
    play = serving(0, engines=("engine-0",))
    play.announce(1)
    while not play.waiting(ActivateEpoch):
        play.answer("engine-0")
    lie = EpochConfirmed(version=1, digest="another", pause_s=0.0, num_in_flight=0)
    play.answer("engine-0", lie)
    assert play.published() == []
    assert play.events() == ["epoch_failed"]


def test_when_versions_come_faster_than_they_go_out_only_the_newest_does() -> None:
    play = Play()
    play.announce(0)
    for version in (1, 2, 3):
        play.announce(version)
    play.answer_all()
    assert play.published() == [0, 3]
    assert play.core.statistics()["skipped"] == 2


def test_a_version_said_again_is_answered_not_published_twice() -> None:
    """A trainer that cannot know whether it was heard says it again."""
    play = serving(0)
    play.announce(0)
    assert play.published() == [0]
    assert play.asked == {}


# ---- holds -------------------------------------------------------------------------------


def test_a_hold_is_granted_once_every_engine_serves_the_version() -> None:
    play = Play()
    play.hold()
    play.announce(0)
    assert play.replies == []
    play.answer_all()
    assert play.replies == [VersionHeld(version=0)]


def test_nothing_is_activated_while_the_version_is_held() -> None:
    """A score half of version 0 and half of version 1 is a score of nothing."""
    play = serving(0)
    play.hold()
    play.announce(1)
    play.answer_all()
    assert play.serving == {"engine-0": 0, "engine-1": 0}
    play.hear(ReleaseVersion(holder="evaluator"), "evaluator")
    play.answer_all()
    assert play.published() == [1]


def test_the_newest_version_takes_the_place_of_one_that_waits_for_a_hold() -> None:
    play = serving(0)
    play.hold()
    play.announce(1)
    play.answer_all()
    play.announce(2)
    play.answer_all()
    play.hear(ReleaseVersion(holder="evaluator"), "evaluator")
    play.answer_all()
    assert play.published() == [2]
    assert play.core.statistics()["skipped"] == 1


def test_a_hold_ends_with_its_lease_whatever_became_of_the_holder() -> None:
    play = serving(0)
    play.hold(lease_s=10.0)
    play.announce(1)
    play.answer_all()
    play.wake("hold/evaluator")
    assert play.events() == ["hold_expired"]
    play.answer_all()
    assert play.published() == [1]


def test_a_hold_waits_for_the_next_life_of_its_holder() -> None:
    """News of the death may come late, when the next life has asked for the version already."""
    play = serving(0)
    play.hold()
    play.announce(1)
    play.hear(PeerRestarted(actor="evaluator", incarnation=1))
    play.answer_all()
    assert play.published() == []
    play.hear(ReleaseVersion(holder="evaluator"), "evaluator")
    play.answer_all()
    assert play.published() == [1]


# ---- the canary --------------------------------------------------------------------------


def test_a_version_is_published_only_after_every_engine_showed_the_trainer_s_log_probs() -> None:
    play = Play(canary=True)
    play.announce(3)
    while play.waiting(PrepareEpoch) or play.waiting(WeightBucket):
        play.answer(next(iter(play.asked.values())).to)
    for engine in play.engines:
        play.answer(engine)
    assert play.published() == []
    play.answer_all()
    assert play.published() == [3]
    (recorded,) = play.take(StepRecorded)
    assert recorded.metrics["perf/canary_logprob_difference"] == 0.0
