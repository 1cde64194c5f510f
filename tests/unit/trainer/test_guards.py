"""The leading core when a guard trips: what ends with it, and what is kept."""

from __future__ import annotations

from unit.trainer.play import Play, play, works

from milepost.actors.effects import Ask, Reply
from milepost.actors.trainer.works import ExportVersion, SaveCheckpoint
from milepost.messages.buffer import StepTrained
from milepost.messages.supervisor import (
    Drain,
    Drained,
    EventReported,
    GuardTripped,
    StepRecorded,
)


def drains_and_saves(game: Play, version: int) -> None:
    """What the supervisor asks for next: the version reached is kept."""
    assert not game.has(SaveCheckpoint)
    game.taken()
    game.ask(Drain(deadline_s=30.0))
    assert game.saved().step == version
    game.taken()
    assert game.has(Drained)


def test_batches_without_any_spread_trip_the_guard_when_they_come_in_a_row() -> None:
    game = play(steps=9)
    for step, spread in enumerate((False, True, False)):
        game.bring(step)
        game.trained(spread=spread)
        game.taken()
    assert not game.has(GuardTripped)
    game.bring(3)
    game.trained(spread=False)
    (tripped,) = game.all(GuardTripped)
    assert tripped.guard == "no_spread"
    assert "last 2 batches" in tripped.reason
    (trained,) = game.all(StepTrained)
    assert trained.version == 4, "the batch itself was trained"
    assert not game.has(Ask), "and it was the last one"
    drains_and_saves(game, 4)


def test_a_number_that_is_not_finite_makes_no_version() -> None:
    """Its weights are of no step: not published, not saved, not named as trained."""
    game = play(checkpoint_every_steps=1)
    game.exported()
    game.published(0)
    game.bring(0)
    game.trained(tripped="gradient norm is nan in minibatch 0")
    (tripped,) = game.all(GuardTripped)
    assert tripped.reason == "step 0: gradient norm is nan in minibatch 0"
    for kind in (StepTrained, ExportVersion, SaveCheckpoint, Ask):
        assert not game.has(kind), kind
    game.taken()
    game.ask(Drain(deadline_s=30.0))
    assert not game.has(SaveCheckpoint)
    assert game.has(Reply)


def test_figures_of_a_batch_that_was_not_trained_are_not_those_of_the_step_before() -> None:
    """Both have the same version; step 1 had a reward of 0.8, and was shown with 0.1."""
    game = play()
    game.bring(0)
    game.trained(metrics={"rollout/raw_reward": 0.8})
    game.taken()
    game.bring(1)
    game.trained(metrics={"rollout/raw_reward": 0.1}, tripped="loss is nan in minibatch 0")
    told = [each for each in game.all(StepRecorded) if "rollout/raw_reward" in each.metrics]
    assert [(each.step, each.metrics["rollout/raw_reward"]) for each in told] == [(0, 0.8)]
    (event,) = game.all(EventReported)
    assert (event.source, event.kind) == ("trainer-0", "not_trained")
    assert event.text == "the batch of step 1 changed no weight: loss is nan in minibatch 0"
    assert (event.values["rollout/raw_reward"], event.values["train/step"]) == (0.1, 1.0)
    assert "train/version" not in event.values, "it made none"


def test_engines_that_compute_something_else_trip_the_guard() -> None:
    name = "train/train_rollout_logprob_abs_diff_same_version"
    game = play(logprob_difference_max=0.01)
    game.bring(0)
    game.trained(metrics={name: 0.009})
    game.taken()
    assert not game.has(GuardTripped)
    game.bring(1)
    game.trained(metrics={name: 0.02})
    (tripped,) = game.all(GuardTripped)
    assert tripped.guard == "logprob_difference"
    drains_and_saves(game, 2)


def test_supervised_training_has_no_spread_and_no_publisher() -> None:
    game = play(sft=True, publisher="", steps=9, batches_without_spread_max=1)
    assert works(game) == []
    for step in range(3):
        game.bring(step)
        game.trained(spread=False)
        game.taken()
    assert not game.has(GuardTripped)
