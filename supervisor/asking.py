"""Questions that the supervisor passes on to actors: taps, recorders, holds.

For clients, through the door; and for itself, when something went wrong that every actor should
keep its recording of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from milepost.messages.bus import Bus, BusClosed, Unanswered
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    FreezeRequested,
    Frozen,
    Pinned,
    PinRequested,
    RecorderRead,
    Refused,
    TapRead,
    Thawed,
    ThawRequested,
)
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.states import Child, Running

log = logging.getLogger(__name__)
ANSWER_S: Final = 2.0
"""An actor that has not answered by then is busy."""
BAD_NEWS: Final = frozenset({"restarted", "stalled"})
"""Kinds of events after which every running actor pins its recorder, since the run goes on. Of a
run that ends, the rings themselves are what was last recorded; they are pinned at its end."""


class Asking:
    """Asks actors, and gathers what they answer.

    Args:
        bus: of the supervisor.
        children: by name; read at each question.
    """

    def __init__(self, bus: Bus, children: Mapping[str, Child]) -> None:
        self._bus = bus
        self._children = children
        self._pinning: asyncio.Task[Message] | None = None

    async def pass_on(self, wanted: TapRead | RecorderRead) -> Message:
        """What the one actor answers, or `Refused`."""
        if wanted.actor == SUPERVISOR and isinstance(wanted, TapRead):
            return self._bus.read_tap(wanted)
        child = self._children.get(wanted.actor)
        return self.unknown(wanted.actor) if child is None else await self._ask(child, wanted)

    async def pin(self, wanted: PinRequested) -> Message:
        """`Pinned`, or `Refused` when no actor has."""
        answers = await self._ask_all((wanted.actor,) if wanted.actor else (), wanted)
        if isinstance(answers, Refused):
            return answers
        files = [
            file for each in answers.values() if isinstance(each, Pinned) for file in each.files
        ]
        refused = _refusals(answers)
        return Pinned(files=files, refused=refused) if files else Refused(reason="; ".join(refused))

    async def freeze(self, wanted: FreezeRequested) -> Message:
        """`Frozen`, or `Refused` when no actor is."""
        answers = await self._ask_all(wanted.actors, wanted)
        if isinstance(answers, Refused):
            return answers
        frozen = {name: each for name, each in answers.items() if isinstance(each, Frozen)}
        refused = _refusals(answers)
        if not frozen:
            return Refused(reason="; ".join(refused))
        seconds = min(each.seconds for each in frozen.values())
        return Frozen(actors=tuple(frozen), seconds=seconds, refused=refused)

    async def thaw(self, wanted: ThawRequested) -> Message:
        """`Thawed`, or `Refused` when there is no such actor."""
        answers = await self._ask_all(wanted.actors, wanted)
        if isinstance(answers, Refused):
            return answers
        thawed = (each for each in answers.values() if isinstance(each, Thawed))
        return Thawed(actors=tuple(name for each in thawed for name in each.actors))

    def pin_all(self, reason: str) -> None:
        """Have every running actor pin; one time after the other, and nobody waits for it."""
        if self._pinning is None or self._pinning.done():
            self._pinning = asyncio.create_task(self.pin(PinRequested(reason=reason)), name="pin")
            self._pinning.add_done_callback(_pinned)

    async def close(self) -> None:
        """Wait for pins on their way; each has its deadline."""
        if self._pinning is not None:
            await asyncio.wait({self._pinning})

    def unknown(self, actor: str) -> Refused:
        """There is no such actor."""
        known = ", ".join(self._children)
        return Refused(reason=f"no actor {actor!r}, there are: {known}")

    async def _ask_all(
        self, names: tuple[str, ...], wanted: Message
    ) -> dict[str, Message] | Refused:
        """The answer of each of these, or of all running actors."""
        children = []
        for name in names or tuple(self._children):
            child = self._children.get(name)
            if child is None:
                return self.unknown(name)
            if names or isinstance(child.state, Running):
                children.append(child)
        answers = await asyncio.gather(*(self._ask(child, wanted) for child in children))
        return {child.name: answer for child, answer in zip(children, answers, strict=True)}

    async def _ask(self, child: Child, wanted: Message) -> Message:
        try:
            return (await self._bus.ask(child.name, wanted, deadline_s=ANSWER_S)).message
        except Unanswered as error:
            return Refused(reason=f"{child.name} is {child.state_name}: {error.reason}")
        except BusClosed as error:
            return Refused(reason=str(error))


def _pinned(pinning: asyncio.Task[Message]) -> None:
    """An exception that nobody hears ends the run, and a pin is not worth one."""
    if not pinning.cancelled() and (error := pinning.exception()) is not None:
        log.error("the recorders of the actors could not be pinned", exc_info=error)


def _refusals(answers: Mapping[str, Message]) -> list[str]:
    """Who did not and why; those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if isinstance(answer, Refused):
            reasons.setdefault(answer.reason, []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
