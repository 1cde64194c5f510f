"""The supervisor of a simulated run: it only counts who is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.standins import Scripted

from milepost.actors.effects import Answered, Effect, Event, Received
from milepost.messages.supervisor import Drained, WorkFinished


@dataclass(slots=True)
class Supervisor(Scripted):
    """Counts who is done."""

    finished: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    """Actor -> part of its work that it could not do."""
    events: list[Any] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        match event:
            case Received(_, WorkFinished() as message):
                self.finished.add(message.actor)
                if message.problem:
                    self.problems[message.actor] = message.problem
            case Received(_, message):
                self.events.append(message)
            case Answered(_, _, Drained() as message):
                self.drained.add(message.actor)
            case _:
                pass
        return []
