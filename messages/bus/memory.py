"""Frames over memory: the transport of tests and of the simulator, inside one event loop.

It behaves as ZeroMQ does where the bus can tell: one FIFO for each direction of a link, what is
sent to a mailbox that does not exist yet waits for it, a link has a new route after a restart, a
killed mailbox loses what it had. Faults are asked for, never random: `Faults.filter` sees every
transmission and says what becomes of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from milepost.messages.bus.transport import Events, Frames
from milepost.messages.errors import AddressError

Filter: TypeAlias = Callable[[str, str, Frames], Iterable[Frames]]
"""(sender, receiver, frames) -> what arrives: nothing, the frames, the frames twice, others."""
QUEUE_MAX: Final = 4096
"""Transmissions that wait in one direction of a link; further ones are lost, as in ZeroMQ."""


@dataclass(slots=True)
class MemoryNetwork:
    """Everything that can talk to each other."""

    names: Sequence[str]
    """Who has a mailbox."""
    filter: Filter = lambda _sender, _receiver, frames: (frames,)
    local: bool = True
    """Whether peers count as on one host."""
    mailboxes: dict[str, MemoryTransport] = field(default_factory=dict)
    links: dict[bytes, MemoryTransport] = field(default_factory=dict)
    unbound: dict[str, deque[tuple[bytes, Frames]]] = field(default_factory=dict)
    routes: count[int] = field(default_factory=lambda: count(1))

    def transport(self, name: str) -> MemoryTransport:
        """One process's end."""
        return MemoryTransport(self, name)


class MemoryTransport:
    """One mailbox and its links in memory. Made by `MemoryNetwork.transport`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name
        self._route = f"{name}/{next(network.routes)}".encode()
        self._connected: dict[str, bool] = {}
        self.arriving: deque[tuple[bytes, Frames]] = deque()
        self.returning: deque[tuple[str, Frames]] = deque()
        self._events: Events | None = None
        self._paused = False
        self._scheduled = False
        self.num_oversized = 0
        self.num_strangers = 0

    async def open(self, events: Events) -> None:
        """Take the mailbox of our name."""
        network = self._network
        if self.name in network.mailboxes:
            raise AddressError(f"another process owns the mailbox of {self.name}")
        self._events = events
        network.links[self._route] = self
        if self.name in network.names:
            network.mailboxes[self.name] = self
            self.arriving.extend(network.unbound.pop(self.name, ()))
            self.schedule()
            for link in network.links.values():
                link.reconnected(self.name)

    def kill(self) -> None:
        """The process is gone: what it had and what was on its way to it is lost."""
        self._events = None
        if self._network.mailboxes.get(self.name) is self:
            del self._network.mailboxes[self.name]
            for link in self._network.links.values():
                link.disconnected(self.name)
        self._network.links.pop(self._route, None)

    def disconnected(self, peer: str) -> None:
        """The mailbox of this peer is gone."""
        if self._connected.get(peer):
            self._connected[peer] = False
            asyncio.get_running_loop().call_soon(self._report, peer, "the connection was closed")

    def reconnected(self, peer: str) -> None:
        """The mailbox of this peer is there, and we had begun to talk to it."""
        if self._connected.get(peer) is False:
            self._connected[peer] = True
            asyncio.get_running_loop().call_soon(self._report, peer, "")

    def _report(self, peer: str, problem: str) -> None:
        if self._events is not None:
            self._events.connection(peer, problem)

    def knows(self, peer: str) -> bool:
        """Whether this peer has an address."""
        return peer in self._network.names

    def names(self) -> Sequence[str]:
        """All peers that have an address."""
        return self._network.names

    def is_local(self, peer: str) -> bool:
        """As the network says."""
        return self._network.local and peer in self._network.names

    def send(self, peer: str, frames: Frames) -> bool:
        """To the peer's mailbox, or to whoever opens it next."""
        network = self._network
        if peer not in self._connected:
            self._connected[peer] = False
            if peer in network.mailboxes:
                self.reconnected(peer)
        for arrived in network.filter(self.name, peer, frames):
            mailbox = network.mailboxes.get(peer)
            if mailbox is None:
                queue = network.unbound.setdefault(peer, deque())
            else:
                queue = mailbox.arriving
                mailbox.schedule()
            if len(queue) >= QUEUE_MAX:
                return False
            queue.append((self._route, arrived))
        return True

    def send_back(self, route: bytes, frames: Frames) -> bool:
        """Back to the link of this route."""
        link = self._network.links.get(route)
        if link is None:
            return False
        for arrived in self._network.filter(self.name, link.name, frames):
            if len(link.returning) >= QUEUE_MAX:
                return False
            link.returning.append((self.name, arrived))
            link.schedule()
        return True

    def schedule(self) -> None:
        """Deliver in the loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        for _ in range(len(self.returning)):
            if self._events is None:
                return
            self._events.returned(*self.returning.popleft())
        for _ in range(len(self.arriving)):
            if self._events is None or self._paused:
                return
            self._events.arrived(*self.arriving.popleft())
        if self.returning or self.arriving:
            self.schedule()

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Stop or go on delivering to the mailbox."""
        self._paused = paused
        if not paused:
            self.schedule()

    async def close(self, linger_s: float, gone: Collection[str] = ()) -> None:
        """Nothing lingers in memory: what was sent is there already."""
        del linger_s, gone
        self.kill()
