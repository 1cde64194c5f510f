"""Checkpoints offered for their evaluation: training goes on when they are taken."""

from __future__ import annotations

from typing import Any

from unit.trainer.play import Play, play, works

from milepost.actors.effects import Answered, Received, Unanswered
from milepost.messages.evaluator import CheckpointOffered, CheckpointTaken
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trainer import VersionPublished


def measured(**changes: Any) -> Play:
    """A trainer whose every checkpoint is offered, past the publication of version 0."""
    game = play(offers_to="evaluator", offer_s=100.0, checkpoint_every_steps=1, **changes)
    game.exported()
    game.published(0)
    return game


def offer(game: Play) -> CheckpointOffered:
    return game.take(CheckpointOffered)


def test_no_step_begins_before_the_checkpoint_is_taken() -> None:
    """The evaluator decides how far training may run ahead of its scores."""
    game = measured()
    game.bring(0)
    game.trained()
    game.exported()
    game.published(1)
    game.saved()
    game.bring(1)
    assert "train/1" not in works(game)
    assert "waits for evaluator to take checkpoint 1" in game.core.working_on()
    game.answer(CheckpointTaken(step=1))
    assert "train/1" in works(game)


def test_a_checkpoint_that_is_offered_late_is_not_removed_by_the_next_one() -> None:
    """The step behind it had begun before it was on the disk, and is the last one; with
    `checkpoints_keep = 1` the next checkpoint takes its place."""
    game = measured(steps=2)
    game.bring(0)
    game.trained()
    game.exported()
    game.published(1)
    game.bring(1)
    game.saved()
    assert "CheckpointOffered" not in game.names(), "a step is being trained"
    game.trained()
    first = offer(game)
    assert (first.step, first.final) == (1, False), "there will be another one"
    assert "save/2" not in works(game)
    game.feed(Answered("offer", "evaluator", CheckpointTaken(step=1)))
    assert "save/2" in works(game)
    game.exported()
    game.saved()
    last = offer(game)
    assert (last.step, last.final) == (2, True)


def test_an_offer_that_nobody_answers_is_made_again() -> None:
    """The evaluator died and was started again; what it had was lost with it."""
    game = measured()
    game.bring(0)
    game.trained()
    game.exported()
    game.published(1)
    game.saved()
    first = offer(game)
    game.feed(Unanswered("offer", "evaluator", "no answer"))
    game.wake("offer", after_s=1.0)
    assert offer(game) == first == CheckpointOffered(step=1, folder=first.folder, final=False)


def test_the_last_checkpoint_is_said_to_be_the_last() -> None:
    game = measured(steps=1)
    game.bring(0)
    game.trained()
    game.exported()
    game.saved()
    assert offer(game).final


def test_an_evaluator_that_died_after_it_took_the_last_checkpoint_is_offered_it_again() -> None:
    """It forgot that there is a last one: without that word the run would never end."""
    game = measured(steps=1)
    game.bring(0)
    game.trained()
    game.exported()
    game.saved()
    first = offer(game)
    game.feed(Answered("offer", "evaluator", CheckpointTaken(step=1)))
    game.published(1, final=True)
    game.feed(Received("supervisor", PeerRestarted(actor="evaluator", incarnation=1), None))
    assert offer(game) == first
    assert game.take(VersionPublished) == VersionPublished(version=1, final=True)


def test_a_run_resumed_at_its_end_offers_its_last_checkpoint_once_more() -> None:
    """The life before may have died of measuring it."""
    game = play(version=4, offers_to="evaluator", offer_s=100.0)
    folder = "checkpoints/step_000004"
    assert offer(game) == CheckpointOffered(step=4, folder=folder, final=True)


def test_a_run_resumed_before_its_end_does_not_wait_for_the_evaluation_it_died_with() -> None:
    """The evaluator knows of that checkpoint by itself; training goes on meanwhile."""
    game = play(version=2, offers_to="evaluator", offer_s=100.0)
    assert "CheckpointOffered" not in game.names()
    assert game.requested().step == 2
