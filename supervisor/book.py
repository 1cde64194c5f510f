"""The shared page of the supervisor's core: children, phase, and the effects being collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from milepost.configs.system import TimeoutsConfig
from milepost.messages.supervisor import EventReported
from milepost.supervisor.events import Effect, Record, SignalChild
from milepost.supervisor.states import Child, Doomed

SUPERVISOR: Final = "supervisor"


class Phase(StrEnum):
    """Where the whole run is."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class Book:
    """State that the parts of the core share. Changed only inside `SupervisorCore.handle`."""

    children: dict[str, Child]
    timeouts: TimeoutsConfig
    started_s: float
    phase: Phase = Phase.STARTING
    phase_since_s: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def enter(self, phase: Phase, now_s: float) -> None:
        """Go to another phase, and book how long the last one took."""
        spent_s = now_s - self.phase_since_s
        self.phase_seconds[self.phase] = self.phase_seconds.get(self.phase, 0.0) + spent_s
        self.phase, self.phase_since_s = phase, now_s

    def order(self, effect: Effect) -> None:
        """Add an effect; they are carried out in this order."""
        self.effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Hand over what was ordered since the last call."""
        effects, self.effects = self.effects, []
        return effects

    def record(self, kind: str, text: str, *, source: str = SUPERVISOR, **values: Any) -> None:
        """Order a line of events.jsonl."""
        self.order(Record(EventReported(source=source, kind=kind, text=text, values=values)))

    def doom(self, child: Child, reason: str, now_s: float) -> None:
        """Kill a child that cannot go on; its end is then judged like any other death."""
        child.state = Doomed(now_s, reason, now_s + self.timeouts.stop_s)
        self.order(SignalChild(child.name, "KILL"))

    def living(self) -> list[Child]:
        """Children that may have a process."""
        return [child for child in self.children.values() if child.has_process]

    def in_state(self, *kinds: type) -> list[Child]:
        """Children in one of these states."""
        return [child for child in self.children.values() if isinstance(child.state, kinds)]

    def work_is_done(self) -> bool:
        """Whether every significant child has finished; False when there is none."""
        significant = [child for child in self.children.values() if child.plan.significant]
        return bool(significant) and all(child.finished for child in significant)
