"""Between HTTP and the session core: requests in, answers and parts of replies out.

The core never waits for a client. What a slow one has not read yet is kept here, put together, and
is never more than its reply.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from milepost.actors.effects import Effect, Received, Reply, Request
from milepost.actors.session.doors import DOOR, DoorTurn, StreamReply
from milepost.actors.session.families import ReplyDelta
from milepost.messages.session import ClientGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from milepost.actors.effects import Event
    from milepost.actors.session.core import SessionCore
    from milepost.messages.shared import Message


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to the core and what has come of it."""

    request: Request
    answer: asyncio.Future[Message]
    deltas: list[ReplyDelta] = field(default_factory=list)
    """Of the reply, not read by the client yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self) -> list[ReplyDelta]:
        """What came since the last time; neighbours of one kind are put together."""
        deltas, self.deltas = self.deltas, []
        self.changed.clear()
        return merged(deltas)

    async def news(self) -> None:
        """Wait for more of the reply, or for the answer."""
        while not self.deltas and not self.answer.done():
            await self.changed.wait()
            if not self.deltas:
                self.changed.clear()


class Door:
    """See the module.

    Args:
        core: of this actor.
        feed: gives the core an event at once.
    """

    def __init__(self, core: SessionCore, feed: Callable[[Event], None]) -> None:
        self.core = core
        self.is_open = False
        """The run has begun."""
        self._feed = feed
        self._serial = 0
        self._open: dict[Request, Exchange] = {}

    def __len__(self) -> int:
        """Requests without an answer yet."""
        return len(self._open)

    def ask(self, message: Message) -> Exchange:
        """Give the core a request; its answer may be there at once."""
        self._serial += 1
        request = Request(DOOR, self._serial)
        exchange = Exchange(request, asyncio.get_running_loop().create_future())
        self._open[request] = exchange
        self._feed(Received(DOOR, message, request))
        return exchange

    def gone(self, exchange: Exchange, turn: DoorTurn, reason: str) -> None:
        """Nobody waits for this request any more; nothing happens when it was answered."""
        if self._open.pop(exchange.request, None) is not None:
            word = ClientGone(trajectory_id=turn.trajectory_id, number=turn.number, reason=reason)
            self._feed(Received(DOOR, word))

    def take_out(self, effects: list[Effect]) -> list[Effect]:
        """The effects that are not for this door; those that are have been carried out."""
        others: list[Effect] = []
        for effect in effects:
            match effect:
                case Reply(request=Request(source="@http"), message=message):
                    exchange = self._open.pop(effect.request, None)
                    # A client that closed its connection in this very turn of the loop has
                    # cancelled the wait for its answer, and has not said that it is gone yet.
                    if exchange is not None and not exchange.answer.done():
                        exchange.answer.set_result(message)
                        exchange.changed.set()
                case StreamReply():
                    exchange = self._open.get(effect.request)
                    if exchange is not None:
                        exchange.deltas += effect.deltas
                        exchange.changed.set()
                case _:
                    others.append(effect)
        return others


class DooredCore:
    """A session core whose door's answers never reach the bus."""

    def __init__(self, core: SessionCore, door: Door) -> None:
        self._core, self._door = core, door

    def start(self, now_s: float) -> list[Effect]:
        """As the core's; clients are served from now on."""
        self._door.is_open = True
        return self._door.take_out(self._core.start(now_s))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """As the core's."""
        return self._door.take_out(self._core.handle(event, now_s))

    def validate(self) -> None:
        """As the core's."""
        self._core.validate()

    def statistics(self) -> dict[str, Any]:
        """The core's, and requests of clients."""
        return {**self._core.statistics(), "http_requests_open": len(self._door)}

    def working_on(self) -> str:
        """As the core's."""
        return self._core.working_on()


def merged(deltas: Iterable[ReplyDelta]) -> list[ReplyDelta]:
    """The same reply in fewer deltas, each with one kind of news."""
    kinds: list[tuple[str, list[Any]]] = []
    for delta in deltas:
        news = (
            ("reasoning", delta.reasoning),
            ("content", delta.content),
            ("tool_calls", delta.tool_calls),
        )
        for kind, value in news:
            if not value:
                continue
            if kinds and kinds[-1][0] == kind:
                kinds[-1][1].append(value)
            else:
                kinds.append((kind, [value]))
    return [_joined(kind, values) for kind, values in kinds]


def _joined(kind: str, values: list[Any]) -> ReplyDelta:
    if kind == "tool_calls":
        return ReplyDelta(tool_calls=tuple(call for calls in values for call in calls))
    text = "".join(values)
    return ReplyDelta(reasoning=text) if kind == "reasoning" else ReplyDelta(content=text)
