"""Statistics to whoever listens: one PUB socket, which may lose, and which nothing waits for.

Work never travels here. A listener that is slow misses some of what is said and then hears the
newest; one that comes late hears the next one. Nothing is encoded while nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import time_ns
from typing import Final

import zmq

from milepost.messages.bus.address import ipc_path, lock_ipc
from milepost.messages.bus.reader import Reader
from milepost.messages.bus.transport import Frames
from milepost.messages.codec import Codec
from milepost.messages.envelope import PROTOCOL, Header, pack_header, unpack_header
from milepost.messages.errors import AddressError, ProtocolError
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message

TOPIC: Final = b"statistics"
KEPT: Final = 4
"""Messages kept for a listener that does not read; further ones are lost to it."""
SUBSCRIPTION_BYTES_MAX: Final = 256
FRAMES: Final = 3
"""Topic, header, body."""


class Broadcast:
    """The PUB side.

    Args:
        endpoint: `ipc://PATH` in the run's private folder.
        source: name of who says it.
        run_id: of the run; listeners of another run refuse it.

    Raises:
        AddressError: it cannot be bound.
    """

    def __init__(self, endpoint: str, source: str, run_id: str) -> None:
        self._source = source
        self._run_id = run_id
        self._codec = Codec()
        self._sequence = 0
        self.num_lost = 0
        self._topics: set[bytes] = set()
        self._address = contextlib.ExitStack()
        self._address.enter_context(lock_ipc(ipc_path(endpoint)))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        # XPUB is PUB that tells whether anybody listens.
        socket = self._context.socket(zmq.XPUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, KEPT)
        socket.setsockopt(zmq.RCVHWM, 1000)
        socket.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            self._context.term()
            self._address.close()
            raise AddressError(f"{source} cannot bind {endpoint}: {error}") from error
        self._reader = Reader(socket, self._subscribed, 1)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return any(TOPIC.startswith(topic) for topic in self._topics)

    def _subscribed(self, frames: Frames) -> None:
        word = bytes(frames[0])
        if word[:1] == b"\x01":
            self._topics.add(word[1:])
        elif word[:1] == b"\x00":
            self._topics.discard(word[1:])

    async def say(self, message: Message) -> None:
        """Send it to everybody who has room for it. Packing is done on another thread.

        What cannot travel is lost as what finds no room: listeners see the gap in its number.
        """
        self._sequence += 1
        try:
            encoded = await asyncio.to_thread(self._codec.encode, message)
        except (TypeError, ValueError):
            self.num_lost += 1
            return
        number, major, minor = self._sequence, *PROTOCOL
        header = Header(
            major, minor, encoded.type, number, 0, self._source, 0, number, self._run_id, time_ns()
        )
        self._reader.send([TOPIC, pack_header(header), encoded.body])

    async def close(self) -> None:
        """Close the socket and free its path."""
        self._reader.close(0)
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)
        self._address.close()


class Listener:
    """The SUB side: keeps the newest message only, since statistics are whole each time.

    Args:
        endpoint: of the `Broadcast`.
        run_id: what another run says is passed over.
    """

    def __init__(self, endpoint: str, run_id: str) -> None:
        self._run_id = run_id
        self._codec = Codec(BusLimits())
        self._newest: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._last = 0
        self.num_missed = 0
        """Messages that were sent and did not get here, or were replaced by a newer one."""
        self.num_junk = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, KEPT)
        socket.setsockopt(zmq.SNDHWM, KEPT)
        socket.setsockopt(zmq.MAXMSGSIZE, self._codec.limits.body_bytes_max)
        socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
        socket.connect(endpoint)
        self._reader = Reader(socket, self._heard, FRAMES)

    def _heard(self, frames: Frames) -> None:
        try:
            message, sequence = self._read(frames)
        except ProtocolError:
            self.num_junk += 1
            return
        if self._last:
            self.num_missed += max(0, sequence - self._last - 1)
        self._last = sequence
        if self._newest.full():
            self._newest.get_nowait()
            self.num_missed += 1
        self._newest.put_nowait(message)

    def _read(self, frames: Frames) -> tuple[Message, int]:
        if len(frames) != FRAMES:
            raise ProtocolError(f"{len(frames)} frames, statistics have {FRAMES}")
        header = unpack_header(frames[1])
        if header.major != PROTOCOL[0] or header.run_id != self._run_id:
            raise ProtocolError(f"{header.source} of run {header.run_id}, protocol {header.major}")
        version = (header.major, header.minor)
        return self._codec.decode(header.type, bytes(frames[2]), version=version), header.sequence

    async def newest(self, within_s: float) -> Message | None:
        """The newest message that was not given out yet; None when none comes within that time."""
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
