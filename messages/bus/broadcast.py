"""Statistics to whoever listens: one PUB socket, which may lose, and which nothing waits for.

Work never travels here. A listener (`milepost.messages.listener`) that is slow misses some of what
is said and then hears the newest; one that comes late hears the next one. Nothing is encoded while
nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import time_ns
from typing import TYPE_CHECKING, Final

import zmq

from milepost.messages.bus.address import ipc_path, lock_ipc
from milepost.messages.codec import Codec
from milepost.messages.envelope import PROTOCOL, Header, pack_header
from milepost.messages.errors import AddressError
from milepost.messages.listener import KEPT, TOPIC
from milepost.messages.reader import Reader

if TYPE_CHECKING:
    from milepost.messages.bus.transport import Frames
    from milepost.messages.shared import Message

SUBSCRIPTION_BYTES_MAX: Final = 256


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
