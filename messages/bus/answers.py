"""Turns answers that came back into results of the futures that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.returning import Origin
from milepost.messages.bus.sent import Sent
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import Header
from milepost.messages.errors import ProtocolError
from milepost.messages.shared import Message

log = logging.getLogger(__name__)
Failed: TypeAlias = Callable[[str], None]
"""Tells whoever waits why nothing comes of it."""


class Aside:
    """Work that a worker thread does meanwhile, each with a task that waits for it.

    Args:
        owner: name of the bus.
        loop: its event loop.
    """

    def __init__(self, owner: str, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_failed = 0
        """Works that raised what none of them should."""

    def start(self, work: Coroutine[Any, Any, None], name: str, failed: Failed) -> None:
        """Begin now.

        Args:
            work: handles what it expects to go wrong.
            name: what it does, for the log.
            failed: called with the reason when it raises something else: a full /dev/shm, no
                memory. One message comes to nothing then, and the bus goes on.
        """
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, failed))

    def _ended(self, failed: Failed, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.num_failed += 1
        reason = f"{type(error).__name__}: {error}"
        log.error("bus of %s: %s failed", self._owner, task.get_name(), exc_info=error)
        failed(reason)

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
                self._aside.start(
                    self._decode_aside(sent, header, frames, origin),
                    f"reading the {header.type} of {header.source}",
                    lambda why: sent.fail(header.source, f"got an answer that broke here: {why}"),
                )
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
