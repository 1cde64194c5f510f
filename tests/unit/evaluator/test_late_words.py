"""What the evaluator makes of words about attempts that it has given up, and of refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from sim.rows import trajectory
from sim.topologies import topology

from milepost.actors.effects import Answered, Ask, Effect, Event, Received, Tell, WorkDone
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.works import WriteRecord
from milepost.messages.agent import RunEpisode
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.evaluator import Evaluation
from milepost.messages.publisher import VersionHeld
from milepost.messages.rollout import EpisodeEnded, TrajectoryLost
from milepost.messages.session import (
    AbandonTrajectory,
    FinishTrajectory,
    OpenSessions,
    SessionsOpened,
    SessionsRefused,
)
from milepost.messages.shared import Message, Prompt, Status, VersionSpan
from milepost.messages.trainer import VersionPublished


@dataclass
class Play:
    """An evaluator that measures version 0 on one prompt, in every mode of its own."""

    core: Evaluator = field(init=False)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = EvaluatorSettings.of(topology(evaluator=True), None, 0)
        self.core = Evaluator(settings, [Prompt(prompt_id="p", messages=[])])
        self.feed(Received("publisher", VersionPublished(version=0)))
        self.feed(Answered("hold", "publisher", VersionHeld(version=0)))

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, 0.0)
        self.core.validate()
        for effect in effects:
            if isinstance(effect, WriteRecord):
                self.feed(WorkDone(effect.key, None))
            else:
                self.effects.append(effect)

    def take_all(self, kind: type[Message]) -> list[Any]:
        """Questions and words of one kind that were not looked at yet."""
        found = [
            each
            for each in self.effects
            if isinstance(each, Ask | Tell) and isinstance(each.message, kind)
        ]
        self.effects = [each for each in self.effects if each not in found]
        return found

    def open_and_end(self) -> list[Any]:
        """Every session opens, every episode ends; the verdicts that are asked for."""
        for ask in self.take_all(OpenSessions):
            self.feed(Answered(ask.key, ask.to, SessionsOpened()))
        for tell in self.take_all(RunEpisode):
            episode: RunEpisode = tell.message
            ended = EpisodeEnded(
                trajectory_id=episode.trajectory_id,
                attempt=episode.attempt,
                status=Status.COMPLETED,
                reward=1.0,
                generation=3,
                received=(1, 3),
            )
            self.feed(Received(tell.to, ended))
        return self.take_all(FinishTrajectory)

    def deliver(self, name: str, *, attempt: int, reward: float) -> None:
        spans = (VersionSpan(start=1, end=4, version=0),)
        row = trajectory(name, spans=spans, reward=reward)
        row = replace(row, metadata={"attempt": attempt})
        self.feed(Received("session-0", TrajectoryFinished(trajectory=row)))

    def outcomes(self) -> list[float]:
        """Rewards that count so far."""
        running = self.core.round
        tallies = running.tallies.values() if running else ()
        return [each.reward for tally in tallies for each in tally.outcomes]


def test_a_session_hears_which_replies_its_verdict_has_seen() -> None:
    """It holds others, too, where an agent waited no more for one and went on."""
    verdicts = [ask.message for ask in Play().open_and_end()]
    assert {(each.generation, each.received) for each in verdicts} == {(3, (1, 3))}


def test_the_row_of_an_attempt_that_was_given_up_is_no_outcome_of_the_next() -> None:
    """The answer was lost, the row was only late: the score would mix two attempts of a prompt."""
    game = Play()
    first = game.open_and_end()
    for ask in first:
        lost = TrajectoryLost(
            trajectory_id=ask.message.trajectory_id, attempt=0, cause="session-0 is full"
        )
        game.feed(Answered(ask.key, ask.to, lost))
    second = game.open_and_end()
    assert [ask.message.attempt for ask in second] == [1] * len(first)
    for ask in second:
        game.deliver(ask.message.trajectory_id, attempt=0, reward=0.0)
    assert game.outcomes() == []
    *most, last = second
    for ask in most:
        game.deliver(ask.message.trajectory_id, attempt=1, reward=1.0)
    assert game.outcomes() == [1.0] * len(most)
    game.deliver(last.message.trajectory_id, attempt=1, reward=1.0)
    scores: list[Evaluation] = game.core.results.scores
    assert [each.num_episodes for each in (scores[0].sampled, scores[0].greedy) if each] == [1] * 2


@pytest.mark.parametrize("at", ["open", "finish"])
def test_the_cause_of_a_loss_is_told_to_the_session(at: str) -> None:
    """A refusal has a reason, a lost trajectory a cause; a person reads either in the log."""
    game = Play()
    if at == "open":
        ask, *_ = game.take_all(OpenSessions)
        game.feed(Answered(ask.key, ask.to, SessionsRefused(reason="told")))
    else:
        ask, *_ = game.open_and_end()
        lost = TrajectoryLost(trajectory_id=ask.message.trajectory_id, attempt=0, cause="told")
        game.feed(Answered(ask.key, ask.to, lost))
    (abandoned,) = game.take_all(AbandonTrajectory)
    assert abandoned.message.reason == "told"
