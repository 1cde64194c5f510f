"""Frames over ZeroMQ: one ROUTER mailbox, one DEALER link for each peer.

ipc inside the run's private folder, or tcp with CURVE: then every peer proves a key of the run
before a byte of it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from milepost.messages.bus.address import ipc_path, lock_ipc
from milepost.messages.bus.curve import KeyDoor, public_of
from milepost.messages.bus.doorstep import (
    AT_THE_DOOR,
    Doorstep,
    raise_descriptor_limit,
    standing_max,
)
from milepost.messages.bus.transport import Events, Frames
from milepost.messages.errors import AddressError
from milepost.messages.limits import BusLimits
from milepost.messages.reader import Reader

HANDSHAKE_MS = 5000
"""A connection that has not proven itself by then is closed."""
SOCKETS_MAX = 8192
"""Two for each peer."""
BACKLOG = 1024
"""Connections that wait to be accepted: a whole run may start at once."""
HEARTBEAT_MS = 5000
"""tcp only: a connection silent for three of these is closed and made again."""
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


LINK_EVENTS_MAX: Final = 100
EVENTS_MAX: Final = 10_000
"""Of one socket's comings and goings that were not looked at yet; beyond it ZeroMQ waits."""


class Peer(Protocol):
    """Where a mailbox is."""

    @property
    def endpoint(self) -> str:
        """`ipc://PATH` or `tcp://HOST:PORT`."""
        ...

    @property
    def public_key(self) -> str:
        """CURVE public key (Z85) of a tcp mailbox, else empty."""
        ...


class ZmqTransport:
    """The transport of a real run.

    Args:
        name: ours; with an address of this name, a mailbox is bound.
        incarnation: ours.
        addresses: of all peers; read again at each new link, so it may grow.
        limits: high-water marks and sizes.
        secret_key: ours (Z85); needed as soon as any address is tcp.
        client_keys: public keys of clients without an address that may talk to us.
        listen_fd: the bound, listening socket of a mailbox on tcp; it is ours from now on.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        addresses: Mapping[str, Peer],
        limits: BusLimits,
        *,
        secret_key: str = "",
        client_keys: Collection[str] = (),
        listen_fd: int = -1,
    ) -> None:
        self._name = name
        self._identity = f"{name[:64]}/{incarnation}/".encode() + secrets.token_bytes(8)
        self._addresses = addresses
        self._limits = limits
        self._secret_key = secret_key
        self._client_keys = client_keys
        self._listen_fd = listen_fd
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._mailbox: Reader | None = None
        self._links: dict[str, Reader] = {}
        self._monitors: list[tuple[zmq.Socket[bytes], Reader]] = []
        self._events: Events | None = None
        self._door: KeyDoor | None = None
        self._doorstep: Doorstep | None = None
        self._address = contextlib.ExitStack()
        self._closing = False

    async def open(self, events: Events) -> None:
        """Bind our mailbox if we have an address."""
        self._events = events
        if self._name not in self._addresses:
            return
        endpoint = self._addresses[self._name].endpoint
        try:
            socket = self._bind(endpoint)
        except AddressError:
            await self.close(0)
            raise
        arrived = events.arrived
        self._mailbox = Reader(
            socket,
            lambda frames: arrived(bytes(frames[0]), frames[1:]),
            self._limits.frames_max + 2,
        )

    def _bind(self, endpoint: str) -> zmq.Socket[bytes]:
        path = ipc_path(endpoint)
        if path:
            self._address.enter_context(lock_ipc(path))
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        self._bound(socket)
        try:
            if not path:
                self._guard(socket, endpoint)
            socket.bind(endpoint)
        except AddressError:
            socket.close(0)
            raise
        except zmq.ZMQError as error:
            socket.close(0)
            raise AddressError(f"{self._name} cannot bind {endpoint}: {error}") from error
        return socket

    def _bound(self, socket: zmq.Socket[bytes]) -> None:
        limits = self._limits
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 16 * limits.window_messages)
        socket.setsockopt(zmq.RCVHWM, 2 * limits.window_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)

    def _guard(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Let only keys of the run in."""
        if not self._secret_key:
            raise AddressError(f"{self._name} may not bind {endpoint} without a CURVE secret key")
        if self._listen_fd < 0:
            raise AddressError(f"{self._name} was given no listening socket for {endpoint}")
        most = standing_max(raise_descriptor_limit())
        self._doorstep = Doorstep(self._listen_fd, most, HANDSHAKE_MS / 1000)
        self._door = KeyDoor(self._context, self._known_keys)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, b"milepost")
        socket.setsockopt(zmq.USE_FD, self._listen_fd)
        self._monitor(socket, AT_THE_DOOR, EVENTS_MAX, self._doorstep.noticed)

    def _monitor(
        self,
        socket: zmq.Socket[bytes],
        events: int,
        events_max: int,
        noticed: Callable[[int, int], None],
    ) -> None:
        """Have these events of a socket, and the values that come with them, reported."""
        monitor = socket.get_monitor_socket(events)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, events_max)

        def report(frames: list[bytes | memoryview]) -> None:
            told = parse_monitor_message([bytes(frame) for frame in frames])
            if not self._closing:
                noticed(told["event"], told["value"])

        self._monitors.append((socket, Reader(monitor, report, 2)))

    def _known_keys(self) -> Iterable[str]:
        yield from (peer.public_key for peer in self._addresses.values() if peer.public_key)
        yield from self._client_keys

    def _link(self, peer: str) -> Reader:
        address = self._addresses[peer]
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self._identity)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._bound(socket)
        if not ipc_path(address.endpoint):
            if not self._secret_key or not address.public_key:
                socket.close(0)
                raise AddressError(f"{peer} at {address.endpoint} needs CURVE keys on both sides")
            socket.setsockopt(zmq.CURVE_SERVERKEY, address.public_key.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public_of(self._secret_key).encode())
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        self._watch(peer, socket)
        socket.connect(address.endpoint)
        assert self._events is not None
        returned = self._events.returned
        reader = Reader(socket, lambda frames: returned(peer, frames), self._limits.frames_max + 1)
        self._links[peer] = reader
        return reader

    def _watch(self, peer: str, socket: zmq.Socket[bytes]) -> None:
        """Report when the connection to this peer comes and goes."""
        assert self._events is not None
        changed = self._events.connection
        refused = False

        def noticed(event: int, _value: int) -> None:
            nonlocal refused
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                refused = False
                changed(peer, "")
            elif event != zmq.EVENT_DISCONNECTED:
                refused = True
                changed(peer, "the connection was refused (our CURVE key is not known to the peer)")
            elif not refused:
                changed(peer, "the connection was closed")

        self._monitor(socket, _WATCHED, LINK_EVENTS_MAX, noticed)

    def knows(self, peer: str) -> bool:
        """Whether this peer has an address."""
        return peer in self._addresses

    def names(self) -> Sequence[str]:
        """All peers that have an address."""
        return tuple(self._addresses)

    def is_local(self, peer: str) -> bool:
        """Whether it is on ipc, which never leaves the host; so is our own mailbox, or not."""
        address = self._addresses.get(peer)
        return address is not None and bool(ipc_path(address.endpoint))

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

    @property
    def num_strangers(self) -> int:
        """How many tcp connections did not prove a key of the run, or have not yet."""
        door = self._doorstep
        return max(0, door.num_accepted - door.num_proven) if door is not None else 0

    @property
    def num_oversized(self) -> int:
        """Messages dropped because they had too many frames."""
        readers = (*self._links.values(), *([self._mailbox] if self._mailbox else ()))
        return sum(reader.num_oversized for reader in readers)

    async def close(self, linger_s: float, gone: Collection[str] = ()) -> None:
        """Close every socket, wait for what lingers, free the address."""
        self._closing = True
        for watched, monitor in self._monitors:
            # ZeroMQ's thread holds a lock while it waits for room for an event, and switching the
            # events off waits for that lock.
            monitor.drain()
            watched.disable_monitor()
            monitor.close(0)
        for peer, link in self._links.items():
            link.close(0.0 if peer in gone else linger_s)
        if self._mailbox is not None:
            self._mailbox.close(linger_s)
        if self._door is not None:
            self._door.close()
        if self._doorstep is not None:
            self._doorstep.close()
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)
        # Only now: ZeroMQ removes the socket's file itself, and must not remove a successor's.
        self._address.close()
