"""The score of the last version: tried again while that may help, and never missed in silence."""

from __future__ import annotations

from typing import Any

import pytest
from unit.evaluator.kit import Play, settings

from milepost.actors.effects import Answered, Unanswered, Wake
from milepost.actors.evaluator.owed import Debt
from milepost.messages.publisher import HoldRefused, VersionHeld
from milepost.messages.shared import Status
from milepost.messages.supervisor import EventReported, StepRecorded, WorkFinished


def fleet(**fields: Any) -> Play:
    """At its last version, with engines of its own that the test answers for."""
    play = Play(settings(has_fleet=True, at_start=False, **fields))
    play.answers_holds = False
    play.publish(0)
    play.publish(1, final=True)
    return play


def refuse(play: Play, reason: str) -> None:
    play.asked.pop("hold")
    play.feed(Answered("hold", "publisher", HoldRefused(version=1, reason=reason)))


def grant(play: Play) -> None:
    play.asked.pop("hold")
    play.feed(Answered("hold", "publisher", VersionHeld(version=1, fleet=True)))


def metrics(play: Play) -> set[str]:
    return {name for line in play.take(StepRecorded) for name in line.metrics}


def test_engines_that_come_back_still_give_the_last_version_its_score() -> None:
    """An engine that starts again needs a minute; the run is worth nothing without that number."""
    play = fleet()
    for pause_s in (1.0, 2.0, 4.0):
        refuse(play, "evaluation_engine-0 is gone")
        assert play.wakes["owed"] == play.now_s + pause_s
        assert play.take(WorkFinished) == []
        play.wake("owed")
    grant(play)
    play.end_all()
    [finished] = play.take(WorkFinished)
    assert finished.problem == ""
    assert [one["version"] for one in finished.summary["evaluations"]] == [1]
    assert not any(name.startswith("eval/skipped") for name in metrics(play))


def test_engines_that_stay_away_make_the_run_fail_with_the_first_cause() -> None:
    """Not `done`: whoever reads the exit code believes that there is a score."""
    play = fleet()
    refuse(play, "evaluation_engine-0 was killed")
    while "owed" in play.wakes:
        assert play.take(WorkFinished) == []
        play.wake("owed")
        refuse(play, "no engine is left")
    assert play.now_s <= 100.0, "no try begins after deadline_s"
    [finished] = play.take(WorkFinished)
    assert "version 1, the last one, has no score" in finished.problem
    assert "unhealthy: evaluation_engine-0 was killed" in finished.problem
    assert finished.summary["failed"] == [finished.problem]
    assert "eval/skipped_unhealthy" in metrics(play)


def test_a_publisher_that_never_answers_cannot_keep_the_run_from_its_end() -> None:
    """Also with shared engines, which are asked for without an end while training goes on."""
    play = Play(settings(at_start=False))
    play.answers_holds = False
    play.publish(0)
    play.publish(1, final=True)
    for _ in range(100):
        if play.take(WorkFinished):
            break
        if "hold" in play.asked:
            play.now_s += 100.0
            play.asked.pop("hold")
            play.feed(Unanswered("hold", "publisher", "no answer"))
        else:
            play.wake(next(iter(play.wakes)))
    else:
        pytest.fail("the run does not end")


def test_a_last_version_that_nobody_asked_a_score_of_is_not_owed() -> None:
    """`at_end = false`: a regular score that fails costs what any other does."""
    play = fleet(at_end=False, every_versions=1)
    refuse(play, "gone")
    [finished] = play.take(WorkFinished)
    assert finished.problem == ""
    assert "eval/skipped_unhealthy" in metrics(play)


def test_an_environment_that_recovers_is_asked_again_for_what_is_missing() -> None:
    """Every greedy episode failed; the sampled ones are scored and stay so."""
    play = Play(settings(at_start=False))
    play.publish(1, final=True)
    while play.running:
        name = next(iter(play.running))
        play.end(name, Status.FAILED if "greedy" in name else Status.COMPLETED)
    assert play.take(WorkFinished) == []
    play.wake("owed")
    play.end_all()
    [finished] = play.take(WorkFinished)
    assert (finished.problem, finished.summary["failed"]) == ("", [])
    [scored] = finished.summary["evaluations"]
    assert scored["sampled"]["num_episodes"] == scored["greedy"]["num_episodes"] == 3


def test_a_mode_without_a_score_is_still_owed_when_the_next_try_gets_no_engine() -> None:
    """The sampled score must not stand in for the greedy one."""
    play = fleet()
    grant(play)
    while play.running:
        name = next(iter(play.running))
        play.end(name, Status.FAILED if "greedy" in name else Status.COMPLETED)
    while "owed" in play.wakes:
        play.wake("owed")
        refuse(play, "evaluation_engine-0 is gone")
    [finished] = play.take(WorkFinished)
    assert "version 1 greedy: no score" in finished.problem


def test_a_try_that_measured_is_not_repeated_for_ever() -> None:
    """A class that always crashes is run three times, not for as long as there is time."""
    debt = Debt(patience_s=1e9)
    for number in range(3):
        effects = debt.missed(4, "crashed", "ValueError", 0.0, measured=True, heals=True)
        assert any(isinstance(one, Wake) for one in effects) == debt.is_waiting == (number < 2)
    assert "crashed: ValueError; tried 3 times" in debt.problem


def test_what_is_owed_says_so_and_until_when() -> None:
    play = fleet()
    refuse(play, "gone")
    [said] = [one.text for one in play.take(EventReported) if one.kind == "evaluation_owed"]
    assert "version 1, the last one, has no score yet (unhealthy: gone)" in said
    assert "tried again in 1 s, and given up 99 s after that" in said
    assert play.core.working_on() == "waits to try again for the score of the last version"
