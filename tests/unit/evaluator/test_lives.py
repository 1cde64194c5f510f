"""What a life of the evaluator begins with: versions that the last one left, words nobody heard."""

from __future__ import annotations

from typing import Any

import pytest
from unit.evaluator import kit
from unit.evaluator.kit import settings
from unit.evaluator.test_checkpoints import Play

from milepost.actors.effects import Fail, Tell, Unanswered, Wake, Woken, WorkDone
from milepost.actors.evaluator.book import Book
from milepost.actors.evaluator.external_worker import Measured
from milepost.actors.evaluator.records import (
    Due,
    Heard,
    Outcome,
    Past,
    Record,
    WentOn,
    decode_record,
    encode_record,
)
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint, WriteRecord
from milepost.messages.evaluator import Evaluation
from milepost.messages.publisher import ReleaseVersion
from milepost.messages.rollout import EvaluationFinished
from milepost.messages.supervisor import EventReported, StepRecorded, WorkFinished

EVERY = {"every_versions": 1}
LATER_LIFE = {"rounds_before": 1000}


def next_life(play: Play, **fields: Any) -> Play:
    """The process was killed, and is started again: only the journal is left of it."""
    return Play(play.fields | fields, journal=list(play.journal))


def next_rounds(play: kit.Play, **fields: Any) -> kit.Play:
    """The same of an evaluator with engines."""
    again = kit.Play(
        settings(**({"every_versions": 1} | LATER_LIFE | fields)), journal=play.journal
    )
    again.answers_holds = False
    return again


def skipped(play: kit.Play) -> dict[int, str]:
    events = [one for one in play.take(EventReported) if one.kind == "evaluation_skipped"]
    return {one.values["version"]: one.values["reason"] for one in events}


# ---- checkpoints -------------------------------------------------------------------------


def test_a_checkpoint_that_was_being_measured_is_measured_by_the_next_life() -> None:
    """The trainer was told that it is taken, and has long removed its own files."""
    play = Play(EVERY)
    play.offer(1)
    play.keep()
    play = next_life(play)
    assert "version 1 is being measured" in play.core.working_on()
    play.offer(2)
    play.keep()
    play.measured()
    assert play.metrics()[1]["eval/external/exam"] == 0.5
    assert play.removed == [1]
    play.keep()
    play.measured()
    assert list(play.metrics()) == [1, 2]


def test_a_checkpoint_that_was_not_kept_yet_makes_the_trainer_wait_for_the_next_life_too() -> None:
    """Answered before its files are linked, the trainer would remove them."""
    play = Play(EVERY)
    play.offer(1)
    play = next_life(play)
    play.offer(1)
    assert play.taken == []
    play.keep()
    assert play.taken == [1]
    play.measured()
    assert play.works == [], "offered again, it is not measured twice"


def test_files_that_a_dead_life_left_and_that_are_gone_are_a_reason_by_name() -> None:
    play = Play(EVERY)
    play.offer(1)
    play.keep()
    play = next_life(play)
    play.keep(error="FileNotFoundError: hf")
    assert play.metrics() == {1: {"eval/skipped_checkpoint_missing": 1.0}}
    assert next_life(play).works == []


@pytest.mark.parametrize("result", [Measured(metrics={"exam": 0.5}), Measured(skipped="crashed")])
def test_an_outcome_that_nobody_heard_is_told_by_the_next_life_as_it_was(result: Measured) -> None:
    """Measured again, it might come out otherwise, and one version would have two scores."""
    play = Play(EVERY)
    play.offer(1)
    play.keep()
    play.is_cut_off = True
    play.measured(result)
    assert not play.metrics()
    play = next_life(play)
    name = "eval/external/exam" if result.metrics else "eval/skipped_crashed"
    assert play.metrics()[1][name] == (0.5 if result.metrics else 1.0)
    assert play.works == []
    assert not next_life(play).said, "it has been heard by now"


def test_a_starting_checkpoint_with_a_score_is_not_measured_by_every_life_anew() -> None:
    play = Play({"at_start": True})
    play = next_life(play)
    play.measured()
    play = next_life(play)
    assert (play.works, play.said) == ([], [])
    play.offer(1, final=True)
    play.keep()
    play.measured()
    assert play.is_done()
    assert [one.version for one in play.core.results.scores] == [0, 1]


def test_a_resumed_run_measures_what_was_left_and_forgets_what_is_trained_anew() -> None:
    """Version 3 came after the checkpoint: there will be another version 3."""
    begun: list[Record] = [Due(version=each, folder=f"/run/{each}") for each in (2, 3)]
    play = Play(EVERY | {"resumed_version": 2}, journal=[*begun, WentOn(version=2)])
    (work,) = play.works
    assert isinstance(work, KeepCheckpoint)
    assert work.version == 2
    play.keep()
    play.measured()
    play.offer(3)
    play.keep()


def test_a_checkpoint_that_the_run_died_with_is_measured_though_nobody_offers_it() -> None:
    """The trainer offers what it saves; this one it has loaded."""
    play = Play(EVERY)
    play.offer(1)
    play.keep()
    play.measured()
    play.journal.append(WentOn(version=2))
    play = next_life(play, resumed_version=2, resumed_checkpoints={1: "/run/1", 2: "/run/2"})
    play.offer(3)
    assert play.taken == []
    play.keep()
    play.measured()
    play.keep()
    play.measured()
    assert list(play.metrics()) == [2, 3]


def test_a_checkpoint_that_the_trainer_waited_with_is_not_forgotten_when_the_run_ends() -> None:
    """It saved once more as the run drained, and its next life knows of that one alone."""
    play = Play(EVERY)
    play.offer(1)
    play.keep()
    play.offer(2)
    play.journal.append(WentOn(version=4))
    saved = {version: f"/run/{version}" for version in (1, 2, 3, 4)}
    play = next_life(play, resumed_version=4, resumed_checkpoints=saved)
    for version in (1, 2, 3, 4):
        play.keep("FileNotFoundError: hf" if version == 2 else "")
        if version != 2:
            play.measured()
    assert list(play.metrics()) == [1, 2, 3, 4]
    assert play.metrics()[2] == {"eval/skipped_checkpoint_missing": 1.0}


# ---- engines -----------------------------------------------------------------------------


def test_a_version_that_is_still_served_is_measured_again() -> None:
    """The publisher holds it for the life that comes."""
    play = kit.Play(settings(every_versions=1))
    play.publish(0)
    again = next_rounds(play)
    again.publish(0)
    assert "hold" in again.asked
    assert again.take(ReleaseVersion) == []
    again.answers_holds = True
    again.answer()
    again.end_all()
    assert [one.version for one in again.core.results.scores] == [0]
    assert skipped(again) == {}


def test_versions_that_engines_no_longer_serve_are_named() -> None:
    """0 was being measured; 1 was published, and nobody was there; 2 is served now."""
    play = kit.Play(settings(every_versions=1, has_fleet=True))
    play.publish(0)
    again = next_rounds(play, has_fleet=True)
    again.publish(2)
    assert skipped(again) == {0: "interrupted", 1: "interrupted"}
    assert {line.step: line.metrics for line in again.take(StepRecorded)} == {
        version: {"eval/skipped_interrupted": 1.0} for version in (0, 1)
    }
    assert "hold" in again.asked, "2 is due"


def test_only_versions_that_are_published_are_looked_for() -> None:
    play = kit.Play(settings(every_versions=2, publish_every=3))
    play.publish(0)
    again = next_rounds(play, every_versions=2, publish_every=3)
    again.publish(8)
    assert skipped(again) == {0: "interrupted", 3: "interrupted", 6: "interrupted"}


def test_a_hold_that_nobody_needs_any_more_is_let_go() -> None:
    """Or nothing newer is published until its lease ends."""
    play = kit.Play(settings())
    play.publish(0)
    play.end_all()
    again = next_rounds(play, every_versions=0)
    again.publish(0)
    assert again.take(ReleaseVersion) == [ReleaseVersion(holder="evaluator")]
    assert again.asked == {}


def test_a_last_version_with_its_score_is_not_measured_by_the_next_life() -> None:
    play = kit.Play(settings(at_start=False))
    play.publish(1, final=True)
    play.end_all()
    again = next_rounds(play, at_start=False, every_versions=0)
    again.publish(1, final=True)
    assert again.asked == {}
    (finished,) = again.take(WorkFinished)
    assert finished.summary["evaluations"][0]["version"] == 1


@pytest.mark.parametrize("lives", [1, 2])
def test_a_version_with_its_score_is_not_measured_once_more_when_it_turns_out_to_be_the_last(
    lives: int,
) -> None:
    """The data ended: the publisher says its version again, the trainer that none follows."""
    play = kit.Play(settings(every_versions=1))
    for version in (0, 1):
        play.publish(version)
        play.end_all()
    if lives == 2:
        play = next_rounds(play)
        play.publish(1)
    play.hear_version(1, final=True)
    assert "hold" not in play.asked
    assert play.running == {}
    (finished,) = play.take(WorkFinished)
    assert [one["version"] for one in finished.summary["evaluations"]] == [0, 1]
    assert finished.problem == ""


def test_a_version_that_is_being_measured_when_it_turns_out_to_be_the_last_is_measured_once() -> (
    None
):
    play = kit.Play(settings(every_versions=1))
    play.publish(0)
    play.end_all()
    play.publish(1)
    play.hear_version(1, final=True)
    play.end_all()
    told = [one.values["version"] for one in play.take(EventReported) if one.kind == "evaluation"]
    assert told == [0, 1]
    assert play.take(WorkFinished)


def test_a_next_life_does_not_wait_for_guests_without_an_end() -> None:
    """Something was trained: the first evaluation is over, though this life has not seen it."""
    guests = {"agents": {"guests": 0}}
    again = next_rounds(kit.Play(settings(**guests)), **guests)
    again.publish(1, final=True)
    assert again.take(EvaluationFinished) == [EvaluationFinished(version=1)]
    again.wake("patience")
    (finished,) = again.take(WorkFinished)
    assert "version 1, the last one, has no score: nobody" in finished.problem


# ---- the book ----------------------------------------------------------------------------


def test_nothing_is_told_before_it_is_written_and_what_is_not_taken_is_told_again() -> None:
    book = Book("solved", Past())
    (write,) = book.settle(Outcome(version=3, reason="crashed", why="no memory"))
    assert isinstance(write, WriteRecord)
    words = book.written(WorkDone(write.key, None))
    first, second = (one for one in words if isinstance(one, Tell))
    assert book.taken(first.key) == []
    assert book.untaken(second.key, 5.0) == [Wake(second.key, 6.0)]
    assert book.woken(second.key) == [second]
    (heard,) = book.taken(second.key)
    assert isinstance(heard, WriteRecord)
    assert heard.record == Heard(version=3)
    assert not book.is_quiet
    assert book.written(WorkDone(heard.key, None)) == []
    assert book.is_quiet


def test_a_journal_that_cannot_be_written_ends_the_evaluator() -> None:
    """Going on would mean to tell what a next life could not know of."""
    book = Book("solved", Past())
    (write,) = book.begin(Due(version=1), [MeasureCheckpoint("measure/1", 1, "/c", 1.0)])
    assert isinstance(write, WriteRecord)
    (fail,) = book.written(WorkDone(write.key, None, "OSError: disk full"))
    assert isinstance(fail, Fail)
    assert "disk full" in fail.reason


@pytest.mark.parametrize(
    "record",
    [
        Due(version=1, folder="/run/1"),
        Outcome(version=1, score=Evaluation(version=1, seconds=1.5, external={"exam": 0.25})),
        Outcome(version=1, reason="crashed", why="no memory"),
        Heard(version=1),
        WentOn(version=1),
    ],
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


def test_a_score_is_never_replaced_by_a_reason() -> None:
    score = Evaluation(version=1, seconds=1.5)
    past = Past.of([Outcome(version=1, score=score), Outcome(version=1, reason="unhealthy")])
    assert past.outcomes[1].score == score


def test_a_word_that_was_not_taken_is_told_again_by_the_core() -> None:
    play = Play(EVERY)
    play.is_cut_off = True
    play.offer(1)
    play.keep()
    play.measured()
    play.offer(2, final=True)
    play.keep()
    play.measured()
    assert not play.is_done()
    play.is_cut_off = False
    for key in list(play.core.book._words):
        play.feed(Unanswered(key, "supervisor", "not taken"))
        play.feed(Woken(key))
    assert list(play.metrics()) == [1, 2]
