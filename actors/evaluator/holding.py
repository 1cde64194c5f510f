"""How the evaluator gets a version that stands still: what it asks of the publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from milepost.actors.effects import Ask, Effect, Tell, Wake
from milepost.actors.evaluator.schedule import Schedule
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.words import event
from milepost.messages.publisher import HoldRefused, HoldVersion, ReleaseVersion, VersionHeld
from milepost.messages.shared import Message

NAME: Final = "evaluator"
LEASE_MARGIN_S: Final = 30.0
AGAIN_S: Final = 1.0
TRIES_MAX: Final = 3
"""Questions for engines of its own, or for the last version, that may stay unanswered before a
version gets no score."""
UNHEALTHY: Final = "unhealthy"
HOLD: Final = "hold"
BRAKE: Final = "brake"


@dataclass(slots=True)
class Holding:
    """See the module.

    Attributes:
        is_asking: the publisher was asked for the version that is due.
        brakes: the published version is held, or asked to be, until a due one can be taken.
        refusal: why engines could not be had the last time; empty when they could.
    """

    settings: EvaluatorSettings
    schedule: Schedule
    is_asking: bool = False
    brakes: bool = False
    refusal: str = ""
    _num_unanswered: int = 0

    def inherit(self) -> list[Effect]:
        """What a former life had held is taken over by our own question, or let go."""
        if not self.settings.rounds_before:
            return []
        has_fleet, asks = self.settings.has_fleet, self.schedule.due is not None
        unused = [each for each in {False, has_fleet} if not asks or each != has_fleet]
        return [Tell("publisher", ReleaseVersion(holder=NAME, fleet=each)) for each in unused]

    def ask(self) -> Effect:
        """The version that is due is to stand still on the engines that measure it."""
        self.is_asking = True
        self.schedule.ask()
        return self._ask(HOLD, fleet=self.settings.has_fleet)

    def _ask(self, key: str, *, fleet: bool) -> Effect:
        lease_s = self.settings.deadline_s + LEASE_MARGIN_S
        hold = HoldVersion(holder=NAME, lease_s=lease_s, fleet=fleet)
        return Ask("publisher", hold, key, deadline_s=self.settings.deadline_s)

    def release(self) -> Effect:
        """It has been measured."""
        return Tell("publisher", ReleaseVersion(holder=NAME, fleet=self.settings.has_fleet))

    def brake(self, *, is_busy: bool) -> list[Effect]:
        """Nothing newer is published while a version waits for engines that are busy."""
        settings, schedule = self.settings, self.schedule
        waits = schedule.due is not None and is_busy and not schedule.final
        wanted = settings.has_fleet and settings.overflow == "backpressure" and waits
        if wanted == self.brakes or (self.brakes and self.is_asking):
            return []  # it is let go when the engines have taken the version
        self.brakes = wanted
        if wanted:
            return [self._ask(BRAKE, fleet=False)]
        return [Tell("publisher", ReleaseVersion(holder=NAME))]

    def answered(self, message: Message) -> tuple[int | None, list[Effect]]:
        """The publisher answered: the version that stands still, or why none does."""
        self.is_asking = False
        match message:
            case VersionHeld():
                self._num_unanswered, self.refusal = 0, ""
                self.schedule.taken(message.version)
                return message.version, []
            case HoldRefused():
                self.refusal = message.reason
                self.schedule.give_up(UNHEALTHY)
                said = f"no engine to measure with: {message.reason}"
                return None, [event("evaluation_failed", said)]
            case _:
                raise TypeError(f"the publisher answered a hold with {type(message).__name__}")

    def unanswered(self, key: str, reason: str, now_s: float) -> list[Effect]:
        """The publisher is dead or busy; what it may still grant is let go with the question."""
        if key == BRAKE:
            self.brakes = False
            return [Tell("publisher", ReleaseVersion(holder=NAME))]
        self._num_unanswered += 1
        self.refusal = reason
        late = event("evaluation_late", f"the publisher granted no hold: {reason}")
        is_bounded = self.settings.has_fleet or self.schedule.final
        if is_bounded and self._num_unanswered >= TRIES_MAX:
            self._num_unanswered, self.is_asking = 0, False
            self.schedule.give_up(UNHEALTHY)
            return [late, self.release()]
        return [late, Wake(HOLD, now_s + AGAIN_S)]

    def woken(self) -> None:
        """The pause before another try is over."""
        self.is_asking = False
        self.schedule.ask_again()
