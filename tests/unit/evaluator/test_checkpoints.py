"""Checkpoints that a class of the user's measures: taken, kept, measured, or skipped by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from unit.evaluator.kit import settings

from milepost.actors.effects import (
    Effect,
    Event,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.external_worker import Measured, Task, measure
from milepost.actors.evaluator.records import Past, Record, WentOn
from milepost.actors.evaluator.works import (
    KeepCheckpoint,
    MeasureCheckpoint,
    RemoveCheckpoint,
    WriteRecord,
)
from milepost.messages.evaluator import CheckpointOffered, CheckpointTaken
from milepost.messages.shared import Message
from milepost.messages.supervisor import EventReported, StepRecorded, WorkFinished


@dataclass
class Play:
    """An evaluator of checkpoints; the test is its hands and the trainer."""

    fields: dict[str, Any] = field(default_factory=dict)
    now_s: float = 0.0
    works: list[Any] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    wakes: dict[str, float] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    journal: list[Record] = field(default_factory=list)
    """Of this life and those before."""
    is_cut_off: bool = False
    """Nothing that it says arrives any more."""

    def __post_init__(self) -> None:
        given = {"external": "user:Own", "starting_checkpoint": "/model", "at_start": False}
        made = settings(**(given | self.fields))
        self.journal = self.journal or [WentOn(version=made.resumed_version)]
        self.core = Evaluator(made, (), Past.of(self.journal))
        self.carry_out(self.core.start(0.0))

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell() if self.is_cut_off:
                    pass
                case Tell(_, message, key):
                    self.said.append(message)
                    if effect.confirm:
                        self.feed(Taken(key))
                case WriteRecord():
                    self.journal.append(effect.record)
                    self.feed(WorkDone(effect.key, None))
                case RemoveCheckpoint():
                    self.removed.append(effect.version)
                    self.feed(WorkDone(effect.key, None))
                case Reply(_, CheckpointTaken(step=step)):
                    self.taken.append(step)
                case KeepCheckpoint() | MeasureCheckpoint():
                    self.works.append(effect)
                case Wake(key, at_s):
                    self.wakes[key] = at_s
                case _:
                    raise TypeError(effect)

    def offer(self, step: int, *, final: bool = False) -> None:
        message = CheckpointOffered(step=step, folder=f"/run/{step}", final=final)
        request = Request("trainer-0", step)
        self.feed(Received("trainer-0", message, request))

    def keep(self, error: str = "") -> None:
        work = self.works.pop(0)
        assert isinstance(work, KeepCheckpoint)
        result = None if error else f"/kept/{work.version}"
        self.feed(WorkDone(work.key, result, error))

    def measured(self, result: Measured | None = None) -> None:
        work = self.works.pop(0)
        assert isinstance(work, MeasureCheckpoint)
        result = result or Measured(metrics={"exam": 0.5})
        self.feed(WorkDone(work.key, result))

    def wake(self, key: str) -> None:
        self.now_s = self.wakes.pop(key)
        self.feed(Woken(key))

    def metrics(self) -> dict[int, dict[str, float]]:
        return {one.step: one.metrics for one in self.said if isinstance(one, StepRecorded)}

    def is_done(self) -> bool:
        return any(isinstance(one, WorkFinished) for one in self.said)


def test_a_checkpoint_that_is_due_is_kept_before_training_goes_on_and_measured_beside_it() -> None:
    """The trainer may remove its own files as soon as it was told that the checkpoint is taken."""
    play = Play({"every_versions": 2})
    play.offer(1)
    assert play.taken == [1]
    play.offer(2)
    assert play.taken == [1]
    play.keep()
    assert play.taken == [1, 2]
    play.now_s = 40.0
    play.offer(3)
    assert play.taken == [1, 2, 3]
    play.measured()
    found = play.metrics()[2]
    assert found["eval/external/exam"] == 0.5
    assert (found["eval/step"], found["eval/delay_seconds"], found["eval/lag_steps"]) == (2, 40, 1)


def test_the_starting_checkpoint_is_version_0_and_is_not_ours_to_remove() -> None:
    play = Play({"at_start": True})
    (work,) = play.works
    assert (work.checkpoint, work.version) == ("/model", 0)
    play.measured()
    assert play.removed == []
    assert play.metrics()[0]["eval/external/exam"] == 0.5


@pytest.mark.parametrize("policy", ["skip", "backpressure"])
def test_a_checkpoint_that_comes_too_early_meets_the_policy(policy: str) -> None:
    play = Play({"every_versions": 1, "overflow": policy})
    play.offer(1)
    play.keep()
    play.offer(2)
    if policy == "skip":
        assert play.taken == [1, 2]
        assert play.metrics()[2] == {"eval/skipped_overflow": 1.0}
        play.measured()
        assert play.works == []
    else:
        assert play.taken == [1], "the trainer waits"
        assert "the trainer waits with version 2" in play.core.working_on()
        play.measured()
        play.keep()
        assert play.taken == [1, 2]
        play.measured()
        assert set(play.metrics()) == {1, 2}


def test_the_last_checkpoint_is_measured_and_then_the_work_is_done() -> None:
    play = Play({"every_versions": 1, "overflow": "skip"})
    play.offer(1)
    play.keep()
    play.offer(2, final=True)
    assert not play.is_done()
    play.measured()
    play.keep()
    assert not play.is_done()
    play.measured()
    assert play.is_done()
    assert set(play.metrics()) == {1, 2}


def test_a_checkpoint_that_turned_out_to_be_the_last_is_offered_twice_and_measured_once() -> None:
    """The data ended right after it: nobody knew when it was saved."""
    play = Play({"every_versions": 1})
    play.offer(1)
    play.keep()
    play.offer(1, final=True)
    assert play.taken == [1, 1]
    play.measured()
    assert play.is_done()
    assert play.works == []


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (Measured(skipped="deadline", text="no score within 100.0 s"), "deadline"),
        (Measured(skipped="crashed", text="ValueError: x"), "crashed"),
        (Measured(skipped="unhealthy"), "unhealthy"),
    ],
)
def test_what_has_no_score_has_a_reason(measured: Measured, reason: str) -> None:
    play = Play({"every_versions": 1})
    play.offer(1)
    play.keep()
    play.measured(measured)
    assert play.metrics()[1] == {f"eval/skipped_{reason}": 1.0}
    (event,) = [one for one in play.said if isinstance(one, EventReported)]
    assert event.kind == "evaluation_skipped"
    assert measured.text in event.text
    assert play.core.working_on() == "waits for a checkpoint to measure"


def test_files_that_are_gone_cost_the_score_and_hold_nobody_up() -> None:
    play = Play({"every_versions": 1})
    play.offer(1)
    play.keep(error="FileNotFoundError: hf")
    assert play.taken == [1]
    assert play.metrics()[1] == {"eval/skipped_checkpoint_missing": 1.0}
    play.offer(2)
    play.keep()
    assert play.taken == [1, 2]


# ---- the user's class --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "skipped", "text"),
    [
        ("Good", {"value": 0.25}, "", ""),
        ("Good", {"value": float("nan")}, "crashed", "metric exam is nan"),
        ("Good", {"other": 1}, "crashed", "other"),
        ("Raises", {}, "crashed", "no exam today"),
        ("Skips", {}, "no_room", "no GPU is free"),
        ("Nothing", {}, "empty", "no number"),
        ("Absent", {}, "crashed", "no subclass"),
    ],
)
def test_whatever_the_users_class_does_is_an_answer(
    name: str, options: dict[str, Any], skipped: str, text: str
) -> None:
    path = f"unit.evaluator.own:{name}"
    found = measure(Task(path=path, options=options, checkpoint="/c", version=4))
    assert found.skipped == skipped
    assert text in found.text
    if not skipped:
        assert found.metrics == {"exam": 0.25, "version": 4.0}


def test_a_trainer_that_asks_again_while_it_waits_goes_on_waiting() -> None:
    """Answered at once, it would remove the files of the checkpoint that is about to be kept."""
    play = Play({"every_versions": 1})
    play.offer(1)
    play.keep()
    play.offer(2)
    play.offer(2)
    assert play.taken == [1]
    play.measured()
    play.keep()
    assert play.taken == [1, 2]


def test_the_last_checkpoint_is_measured_again_when_its_evaluation_crashed() -> None:
    """Its files are kept once more: the first try has taken its own away."""
    play = Play({"every_versions": 1})
    play.offer(1, final=True)
    play.keep()
    play.measured(Measured(skipped="crashed", text="no memory"))
    assert not play.is_done()
    play.wake("owed")
    play.offer(1, final=True)
    assert play.taken == [1, 1], "a trainer that asks again has its answer"
    play.keep()
    play.measured()
    assert play.is_done()
    assert play.metrics()[1]["eval/external/exam"] == 0.5


def test_a_last_checkpoint_that_cannot_be_measured_is_the_problem_of_the_run() -> None:
    play = Play({"every_versions": 1})
    play.offer(1, final=True)
    play.keep(error="OSError: no links here")
    while "owed" in play.wakes:
        play.wake("owed")
        play.keep(error="OSError: no links here")
    [finished] = [one for one in play.said if isinstance(one, WorkFinished)]
    assert "checkpoint_missing: OSError: no links here" in finished.problem
