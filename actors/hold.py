"""A core that is held: its time stands still, and what it would be told waits.

`milepost freeze` holds an actor so that somebody can look at it. Messages are still taken from the
bus, so nobody's delivery fails; questions run out at their askers, which is why a hold has a
longest time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from milepost.actors.effects import Event, Wake
from milepost.configs.system import SystemConfig, TimeoutsConfig
from milepost.messages.shared import Message
from milepost.messages.supervisor import Frozen, Refused, Thawed

SHARE: Final = 0.5
"""Of the shortest deadline of a question or a delivery: the rest is for what came before."""


class Cancellable(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come."""
        ...


class Told(Struct, frozen=True):
    """One event on its way to the core, with the ids of its message and of what led to it."""

    event: Event | None
    message_id: int = 0
    cause: int = 0
    digest: int = 0
    """Of the body of the message."""


class Hold:
    """The clock of one core, and the queue in front of it while that stands still.

    Args:
        name: of the actor.
        system: limits and deadlines of the run.
        later: calls a function after so many seconds; gives something to cancel it by.
        report: takes a kind and a text, for the events of the run.
        resume: takes what waited, in order, and the timers to set again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        system: SystemConfig,
        *,
        later: Callable[[float, Callable[[], object]], Cancellable],
        report: Callable[[str, str], None],
        resume: Callable[[list[Told], list[Wake]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._system = system
        self._later = later
        self._report = report
        self._resume = resume
        self._clock = clock
        self._lost_s = 0.0
        self._since_s: float | None = None
        self._until_s = 0.0
        self._timer: Cancellable | None = None
        self._kept: list[Told] = []
        self._due: list[Wake] = []

    def now_s(self) -> float:
        """The core's time: without all that it was held."""
        real_s = self._clock() if self._since_s is None else self._since_s
        return real_s - self._lost_s

    @property
    def is_on(self) -> bool:
        """Whether the core is held now."""
        return self._since_s is not None

    def freeze(self, seconds: float) -> Message:
        """Stop the clock, for at most so long; 0: as long as the deadlines of the run allow.

        Returns:
            `Frozen`, or `Refused` when it is held already or `seconds` are too many.
        """
        if self.is_on:
            return Refused(reason="it is frozen already")
        allowed_s, why = longest_s(self._system.timeouts)
        if seconds > allowed_s:
            told = f"{seconds:g} s are too long, it can be frozen for {allowed_s:g} s since {why}"
            return Refused(reason=told)
        held_s = seconds or allowed_s
        self._since_s = self._clock()
        self._until_s = self._since_s + held_s
        self._timer = self._later(held_s, lambda: self.thaw("its time was over"))
        told = f"{self._name} decides nothing for {held_s:g} s, or until milepost thaw"
        self._report("frozen", told)
        return Frozen(actors=(self._name,), seconds=held_s)

    def thaw(self, reason: str) -> Message:
        """Let the clock go on, and the core hear what waited."""
        if self._since_s is None:
            return Thawed(actors=())
        self._lost_s += self._clock() - self._since_s
        self._since_s = None
        if self._timer is not None:
            self._timer.cancel()
        kept, self._kept = self._kept, []
        due, self._due = self._due, []
        self._report("thawed", f"{self._name} goes on: {reason}; {len(kept)} events waited")
        self._resume(kept, due)
        return Thawed(actors=(self._name,))

    def keep(self, told: Told) -> None:
        """Let an event wait; when there is no room for more, the hold ends."""
        assert self.is_on, "nothing waits for a core that runs"
        self._kept.append(told)
        if len(self._kept) >= self._system.bus.inbox_messages_max:
            self.thaw("there is no room for more events")

    def keep_wake(self, wake: Wake) -> None:
        """Let a timer wait; it is set again for what was left of it."""
        assert self.is_on, "no timer waits for a core that runs"
        self._due.append(wake)

    def words(self) -> str:
        """For `ps` and `why`."""
        assert self._since_s is not None, "not held"
        now_s = self._clock()
        return (
            f"frozen for {now_s - self._since_s:.1f} s by milepost freeze, thaws by itself in "
            f"{max(0.0, self._until_s - now_s):.1f} s; {len(self._kept)} events wait"
        )

    def close(self) -> None:
        """Nothing thaws any more."""
        if self._timer is not None:
            self._timer.cancel()


def longest_s(timeouts: TimeoutsConfig) -> tuple[float, str]:
    """How long a hold may be, and the deadline that says so."""
    deadlines = {"ask_s": timeouts.ask_s, "tell_s": timeouts.tell_s}
    name = min(deadlines, key=lambda each: deadlines[each])
    return SHARE * deadlines[name], f"system.timeouts.{name} = {deadlines[name]:g}"
