"""Hears the statistics of a run: one SUB socket that may miss some, and holds nobody up.

Whoever only looks at a run imports no more than this: not the bus, nor the types of all other
messages, which take longer to load than all snapshots of a short run take to read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import zmq

from milepost.messages.bodies import UNREADABLE, read_open, unreadable
from milepost.messages.envelope import PROTOCOL, unpack_header
from milepost.messages.errors import ProtocolError
from milepost.messages.limits import BusLimits
from milepost.messages.reader import Reader
from milepost.messages.structure import check_structure
from milepost.messages.supervisor import Snapshot
from milepost.messages.upgrades import UPGRADES

if TYPE_CHECKING:
    from milepost.messages.bus.transport import Frames

TOPIC: Final = b"statistics"
KEPT: Final = 4
"""Messages kept for a listener that does not read; further ones are lost to it."""
FRAMES: Final = 3
"""Topic, header, body."""


class Listener:
    """The SUB side: keeps the newest snapshot only, since statistics are whole each time.

    Args:
        endpoint: of the `Broadcast`.
        run_id: what another run says is passed over.
    """

    def __init__(self, endpoint: str, run_id: str) -> None:
        self._run_id = run_id
        self._limits = BusLimits()
        self._newest: asyncio.Queue[Snapshot] = asyncio.Queue(maxsize=1)
        self._last = 0
        self.num_missed = 0
        """Messages that were sent and did not get here, or were replaced by a newer one."""
        self.num_junk = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, KEPT)
        socket.setsockopt(zmq.SNDHWM, KEPT)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.body_bytes_max)
        socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
        socket.connect(endpoint)
        self._reader = Reader(socket, self._heard, FRAMES)

    def _heard(self, frames: Frames) -> None:
        try:
            snapshot, sequence = self._read(frames)
        except ProtocolError:
            self.num_junk += 1
            return
        if self._last:
            self.num_missed += max(0, sequence - self._last - 1)
        self._last = sequence
        if self._newest.full():
            self._newest.get_nowait()
            self.num_missed += 1
        self._newest.put_nowait(snapshot)

    def _read(self, frames: Frames) -> tuple[Snapshot, int]:
        if len(frames) != FRAMES:
            raise ProtocolError(f"{len(frames)} frames, statistics have {FRAMES}")
        header = unpack_header(frames[1])
        if header.major != PROTOCOL[0] or header.run_id != self._run_id:
            raise ProtocolError(f"{header.source} of run {header.run_id}, protocol {header.major}")
        if header.type != Snapshot.__name__:
            raise ProtocolError(f"{header.type} is no statistics")
        body, limits = bytes(frames[2]), self._limits
        maybe_deep = check_structure(
            body,
            bytes_max=limits.body_bytes_max,
            depth_max=limits.depth_max,
            items_max=limits.items_max,
        )
        version = (header.major, header.minor)
        try:
            snapshot = read_open(
                Snapshot,
                body,
                depth_max=limits.depth_max if maybe_deep else 0,
                version=version,
                steps=UPGRADES if version < PROTOCOL else (),
            )
        except UNREADABLE as error:
            raise unreadable(header.type, error) from error
        return snapshot, header.sequence

    async def newest(self, within_s: float) -> Snapshot | None:
        """The newest snapshot that was not given out yet; None when none comes within that time."""
        waiting = asyncio.ensure_future(self._newest.get())
        await asyncio.wait({waiting}, timeout=within_s)
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        return None

    async def close(self) -> None:
        """Stop listening."""
        self._reader.close(0)
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)
