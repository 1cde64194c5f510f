"""Who plays evaluations, with how much room, and how long nobody is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import Effect, Wake
from milepost.actors.evaluator.settings import EvaluatorSettings

PATIENCE: Final = "patience"


@dataclass(slots=True)
class Hosts:
    """The run's own agents have a fixed room; agents from outside come and go.

    Attributes:
        room: host -> episodes it runs at once, as it is now.
    """

    settings: EvaluatorSettings
    room: dict[str, int] = field(init=False)
    _is_waiting: bool = False

    def __post_init__(self) -> None:
        """What is fixed; of the others nothing is known yet."""
        self.room = dict(self.settings.agents)

    @property
    def is_empty(self) -> bool:
        """Nobody can play."""
        return not any(self.room.values())

    def restarted(self, actor: str) -> None:
        """A host whose room is not fixed says it anew."""
        if self.settings.agents.get(actor) == 0:
            self.room[actor] = 0

    def wait(self, now_s: float) -> list[Effect]:
        """A version is due and nobody is here: woken when that has gone on for too long."""
        if self._is_waiting:
            return []
        self._is_waiting = True
        return [Wake(PATIENCE, now_s + self.settings.deadline_s)]

    def woken(self) -> bool:
        """The time is up; whether still nobody is here."""
        self._is_waiting = False
        return self.is_empty
