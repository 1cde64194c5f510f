"""Engines of the evaluator's own: versions on them, policies for those that come too early."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from sim.rows import trajectory
from unit.evaluator.kit import Play, settings

from milepost.actors.effects import Answered, Unanswered, Woken
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.publisher import HoldRefused, HoldVersion, ReleaseVersion, VersionHeld
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.shared import Status, VersionSpan
from milepost.messages.supervisor import EventReported, StepRecorded, WorkFinished


def fleet(**fields: Any) -> Play:
    """Every version is due; the publisher's answers wait for the test, but for the episodes'."""
    play = Play(settings(**{"has_fleet": True, "every_versions": 1, "at_start": False} | fields))
    play.answers_holds = False
    return play


def grant(play: Play, version: int) -> None:
    """The evaluation engines serve `version`."""
    play.serving = version
    ask = play.asked.pop("hold")
    assert isinstance(ask.message, HoldVersion)
    assert ask.message.fleet
    play.feed(Answered("hold", "publisher", VersionHeld(version=version, fleet=True)))


def skipped(play: Play) -> dict[int, str]:
    """Version -> reason, as the metrics say it."""
    found = {}
    for line in play.take(StepRecorded):
        for name in line.metrics:
            if name.startswith("eval/skipped_"):
                found[line.step] = name.removeprefix("eval/skipped_")
    return found


def scored(play: Play) -> list[int]:
    return [one.values["version"] for one in play.take(EventReported) if one.kind == "evaluation"]


def test_training_goes_on_while_a_version_is_measured_and_the_score_stays_with_that_version() -> (
    None
):
    """A score that arrives three versions late still lands on the step it is of."""
    play = fleet(overflow="skip")
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    play.now_s = 30.0
    for version in (2, 3, 4):
        play.hear_version(version)
    play.now_s = 50.0
    play.end_all()
    (line,) = [one for one in play.said if isinstance(one, StepRecorded) and one.step == 1]
    assert line.metrics["eval/step"] == 1.0
    assert line.metrics["eval/lag_steps"] == 3.0
    assert line.metrics["eval/delay_seconds"] == 50.0
    assert play.take(ReleaseVersion) == [ReleaseVersion(holder="evaluator", fleet=True)]


def test_skip_drops_what_comes_too_early_with_the_reason_as_a_metric() -> None:
    play = fleet(overflow="skip")
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    play.hear_version(2)
    play.hear_version(3)
    assert skipped(play) == {2: "overflow", 3: "overflow"}
    play.end_all()
    play.publish(4)
    grant(play, 4)
    play.end_all()
    assert scored(play) == [1, 4]


def test_the_last_version_is_measured_whatever_the_policy() -> None:
    play = fleet(overflow="skip", every_versions=1)
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    play.hear_version(2, final=True)
    play.end_all()
    assert play.take(WorkFinished) == []
    grant(play, 2)
    play.end_all()
    assert scored(play) == [1, 2]
    assert play.take(WorkFinished)


@pytest.mark.parametrize("overflow", ["skip", "backpressure"])
def test_a_version_that_is_heard_of_while_it_is_measured_is_not_due_again(overflow: str) -> None:
    """Engines that were asked for version 1 were already on the last one, before its news came."""
    play = fleet(overflow=overflow)
    play.publish(0)
    play.publish(1)
    grant(play, 4)
    play.hear_version(4, final=True)
    play.feed(Woken("owed"))
    play.end_all()
    assert skipped(play) == {1: "passed"}
    assert scored(play) == [4]
    assert "hold" not in play.asked
    assert play.take(WorkFinished)


def test_backpressure_keeps_the_version_that_is_due_until_the_engines_have_taken_it() -> None:
    """Nothing newer may be published meanwhile: the published one is held as shared engines are."""
    play = fleet(overflow="backpressure")
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    assert "brake" not in play.asked
    play.hear_version(2)
    brake = play.asked["brake"].message
    assert isinstance(brake, HoldVersion)
    assert not brake.fleet
    play.end_all()
    assert [one.fleet for one in play.take(ReleaseVersion)] == [True]
    grant(play, 2)
    assert [one.fleet for one in play.take(ReleaseVersion)] == [False]
    play.end_all()
    assert scored(play) == [1, 2]
    assert skipped(play) == {}


def test_a_brake_that_nobody_answered_is_let_go_before_it_is_asked_for_again() -> None:
    """A publisher that grants it later would hold the version until the lease ends."""
    play = fleet(overflow="backpressure")
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    play.hear_version(2)
    play.asked.pop("brake")
    play.feed(Unanswered("brake", "publisher", "no answer"))
    assert play.take(ReleaseVersion) == [ReleaseVersion(holder="evaluator")]


def test_a_version_that_was_overtaken_before_the_engines_had_it_is_said_to_be() -> None:
    """The hold came too late: version 3 was published already, and is what is measured."""
    play = fleet()
    play.publish(0)
    play.publish(1)
    play.hear_version(2)
    grant(play, 3)
    assert skipped(play) == {1: "passed", 2: "passed"}
    play.end_all()
    assert scored(play) == [3]


@pytest.mark.parametrize("refused", [True, False])
def test_engines_that_cannot_be_brought_to_a_version_cost_its_score_and_no_more(
    *, refused: bool
) -> None:
    play = fleet()
    play.publish(0)
    play.publish(1)
    if refused:
        play.asked.pop("hold")
        answer = HoldRefused(version=1, reason="evaluation_engine-0 differs")
        play.feed(Answered("hold", "publisher", answer))
    else:
        for _ in range(3):
            play.asked.pop("hold")
            play.feed(Unanswered("hold", "publisher", "no answer"))
            if "hold" in play.wakes:
                play.wake("hold")
    assert skipped(play) == {1: "unhealthy"}
    # Nobody answered: the publisher may grant it yet, to a question that nobody has any more.
    given_up = [] if refused else [ReleaseVersion(holder="evaluator", fleet=True)]
    assert play.take(ReleaseVersion) == given_up
    play.publish(2, final=True)
    grant(play, 2)
    play.end_all()
    assert [one.problem for one in play.take(WorkFinished)] == [""]


def test_sessions_of_a_fleet_ask_for_no_newer_version_than_the_one_being_measured() -> None:
    """The published version goes on; an engine that is held would refuse every turn."""
    play = fleet()
    play.publish(0)
    play.publish(1)
    grant(play, 1)
    assert play.oldest_versions == {1}


def test_a_run_that_ends_early_measures_the_version_that_turned_out_to_be_the_last() -> None:
    """It was published before anybody knew; that no other will follow is said afterwards."""
    play = Play(settings(at_start=False))
    play.publish(0)
    play.publish(3)
    play.hear_version(3, final=True)
    play.end_all()
    assert scored(play) == [3]
    assert play.take(WorkFinished)


def test_all_rows_of_a_session_that_branched_are_of_the_version_and_count() -> None:
    """The first row may be clean and a branch of it sampled after an update."""
    play = Play(settings())
    play.publish(0)
    name = "eval1-v0-sampled.0"
    for attempt, version in enumerate((1, 0)):
        while name not in play.running:
            play.end(next(iter(play.running)))
        episode = play.running.pop(name)
        assert episode.attempt == attempt
        ended = EpisodeEnded(
            trajectory_id=name, attempt=attempt, status=Status.COMPLETED, reward=1.0
        )
        play.hear(ended, "agent-0")
        first = trajectory(name, spans=(VersionSpan(start=1, end=3, version=0),), reward=1.0)
        branch = trajectory(name, spans=(VersionSpan(start=1, end=4, version=version),), reward=1.0)
        branch = replace(branch, status=Status.TRUNCATED)
        rows = [replace(row, row=at, num_rows=2) for at, row in enumerate((first, branch))]
        play.hear(TrajectoryFinished(trajectory=rows[0], others=(rows[1],)), "session-0")
    tally = play.core.round.tallies["sampled"] if play.core.round else None
    assert tally is not None
    (outcome,) = [one for one in tally.outcomes if one.index == 0]
    assert (outcome.num_sampled_tokens, outcome.truncated) == (5, True)
