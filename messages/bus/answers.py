"""Turns answers that came back into results of the futures that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.returning import Origin
from milepost.messages.bus.sent import Sent
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import Header
from milepost.messages.errors import ProtocolError
from milepost.messages.shared import Message


class Aside:
    """Work that a worker thread does meanwhile, each with a task that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin now."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Until all of it has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Answers:
    """Decodes answers, large ones aside."""

    def __init__(self, packing: Packing, aside: Aside) -> None:
        self._packing = packing
        self._aside = aside

    def on_answer(self, sent: Sent, header: Header, kind: Kind, frames: Frames) -> None:
        """The answer (or refusal) to `sent` came: header, body, buffers."""
        origin = Origin(header.id, peer=header.source)
        try:
            if kind is Kind.REFUSED:
                refusal = self._packing.unpack_refusal(header, frames[1:])
                sent.fail(header.source, f"was refused: {refusal.reason}")
            elif self._packing.is_big(frames[1]):
                self._aside.start(self._decode_aside(sent, header, frames, origin))
            else:
                _finish(sent, header, *self._packing.unpack(header, frames[1:], origin))
        except ProtocolError as error:
            sent.fail(header.source, f"got an answer that cannot be read: {error}")

    async def _decode_aside(
        self, sent: Sent, header: Header, frames: Frames, origin: Origin
    ) -> None:
        try:
            message, digest = await self._packing.unpack_aside(header, frames[1:], origin)
        except ProtocolError as error:
            sent.fail(header.source, f"got an answer that cannot be read: {error}")
        else:
            _finish(sent, header, message, digest)


def _finish(sent: Sent, header: Header, message: Message, digest: int) -> None:
    if not sent.future.done():
        source, incarnation = header.source, header.incarnation
        sent.future.set_result(
            Incoming(source, incarnation, header.id, header.cause, message, digest=digest)
        )
