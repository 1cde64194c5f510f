"""Names of evaluation episodes: each is used once in a run."""

from __future__ import annotations

from sim.topologies import topology

from milepost.actors.effects import Answered, Ask, Received
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.messages.publisher import VersionHeld
from milepost.messages.session import OpenSessions
from milepost.messages.shared import Prompt
from milepost.messages.trainer import VersionPublished


def opened(incarnation: int) -> set[str]:
    """The sessions that an evaluator in this life opens to measure version 0."""
    settings = EvaluatorSettings.of(topology(evaluator=True), None, incarnation)
    core = Evaluator(settings, [Prompt(prompt_id="p", messages=[])])
    core.handle(Received("publisher", VersionPublished(version=0)), 0.0)
    effects = core.handle(Answered("hold", "publisher", VersionHeld(version=0)), 0.0)
    core.validate()
    return {
        spec.trajectory_id
        for effect in effects
        if isinstance(effect, Ask) and isinstance(effect.message, OpenSessions)
        for spec in effect.message.sessions
    }


def test_a_restarted_evaluator_does_not_use_the_names_of_the_dead_one() -> None:
    """A session remembers that it delivered a name: it would answer and deliver nothing."""
    first, second = opened(0), opened(1)
    assert first
    assert len(first) == len(second)
    assert first.isdisjoint(second)
