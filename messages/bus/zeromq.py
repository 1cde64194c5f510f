"""Frames over ZeroMQ: one ROUTER mailbox, one DEALER link for each peer.

One reader for each socket: the event loop watches the socket's file descriptor and everything
that is there is read without waiting, so nothing that waits for a message can ever be cancelled.
The descriptor is edge-triggered: sending also clears it, so after each send the socket is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import zmq

from milepost.messages.bus.address import ipc_path, lock_ipc
from milepost.messages.bus.transport import Frames, OnLink, OnMailbox
from milepost.messages.errors import AddressError
from milepost.messages.limits import BusLimits

if TYPE_CHECKING:
    from milepost.messages.bus.bus import Peer

BATCH = 64
"""Messages read from one socket before other work of the loop gets its turn."""
COPY_BELOW_BYTES = 16384
"""Smaller frames are copied out of ZeroMQ: cheaper than keeping its buffer alive."""


class _Reader:
    """Reads one socket whenever it has something."""

    def __init__(
        self, socket: zmq.Socket[bytes], deliver: Callable[[list[bytes | memoryview]], None]
    ) -> None:
        self.socket = socket
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._closed = False
        self._again: asyncio.Handle | None = None
        self._descriptor = socket.getsockopt(zmq.FD)
        self._loop.add_reader(self._descriptor, self._read)
        self.look()

    def send(self, frames: Frames) -> bool:
        """Hand the frames to ZeroMQ; False when there is no room or no such route."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            self.look()
        return True

    def look(self) -> None:
        """Read in the loop's next turn if something is there."""
        if self._again is None and not self._paused and not self._closed:
            if self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                self._again = self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._closed:
            return
        for _ in range(BATCH):
            if self._paused:
                return
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._deliver(
                [
                    frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer
                    for frame in frames
                ]
            )
        if not self._closed:
            self._again = self._loop.call_soon(self._read)

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Leave everything in ZeroMQ, or go on reading."""
        self._paused = paused
        self.look()

    def close(self, linger_s: float) -> None:
        """Stop reading; what was sent may still go out for `linger_s`."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._descriptor)
        self.socket.close(int(linger_s * 1000))


class ZmqTransport:
    """The transport of a real run."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        addresses: Mapping[str, Peer],
        limits: BusLimits,
        secret_key: str,
    ) -> None:
        self._name = name
        self._identity = f"{name}/{incarnation}/".encode() + secrets.token_bytes(8)
        self._addresses = addresses
        self._limits = limits
        self._secret_key = secret_key
        self._context = zmq.Context(io_threads=1)
        self._mailbox: _Reader | None = None
        self._links: dict[str, _Reader] = {}
        self._on_mailbox: OnMailbox = lambda _route, _frames: None
        self._on_link: OnLink = lambda _peer, _frames: None
        self._on_close = contextlib.ExitStack()

    async def open(self, on_mailbox: OnMailbox, on_link: OnLink) -> None:
        """Bind our mailbox if we have an address."""
        self._on_mailbox = on_mailbox
        self._on_link = on_link
        if self._name not in self._addresses:
            return
        endpoint = self._addresses[self._name].endpoint
        path = ipc_path(endpoint)
        if path:
            self._on_close.enter_context(lock_ipc(path))
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._bound(socket)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            self._on_close.close()
            raise AddressError(f"{self._name} cannot bind {endpoint}: {error}") from error
        self._mailbox = _Reader(socket, lambda frames: on_mailbox(bytes(frames[0]), frames[1:]))

    def _bound(self, socket: zmq.Socket[bytes]) -> None:
        limits = self._limits
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 16 * limits.window_messages)
        socket.setsockopt(zmq.RCVHWM, 2 * limits.window_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)

    def _link(self, peer: str) -> _Reader:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self._identity)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._bound(socket)
        socket.connect(self._addresses[peer].endpoint)
        on_link = self._on_link
        reader = self._links[peer] = _Reader(socket, lambda frames: on_link(peer, frames))
        return reader

    def knows(self, peer: str) -> bool:
        """Whether this peer has an address."""
        return peer in self._addresses

    def names(self) -> Sequence[str]:
        """All peers that have an address."""
        return tuple(self._addresses)

    def is_local(self, peer: str) -> bool:
        """ipc never leaves the host."""
        return self._addresses[peer].endpoint.startswith("ipc://")

    def send(self, peer: str, frames: Frames) -> bool:
        """To the peer's mailbox; connects the first time."""
        return (self._links.get(peer) or self._link(peer)).send(frames)

    def send_back(self, route: bytes, frames: Frames) -> bool:
        """Back along the connection that `route` came from."""
        return self._mailbox is not None and self._mailbox.send([route, *frames])

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Stop or go on reading the mailbox."""
        if self._mailbox is not None:
            self._mailbox.pause(paused)

    async def close(self, linger_s: float) -> None:
        """Close every socket, wait for what lingers, free the address."""
        for reader in (*self._links.values(), *([self._mailbox] if self._mailbox else [])):
            reader.close(linger_s)
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)
        self._on_close.close()
