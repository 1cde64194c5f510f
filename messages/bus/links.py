"""Our links to all peers: what goes out of one bus."""

from __future__ import annotations

import asyncio
from asyncio import Future
from difflib import get_close_matches
from functools import partial
from typing import Any

from milepost.messages.bus.answers import Answers, Aside
from milepost.messages.bus.delivery import Kind, unpack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.outbound import Outbound
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.sent import Sent
from milepost.messages.bus.transport import Frames
from milepost.messages.errors import Undelivered
from milepost.messages.layout import Encoded
from milepost.messages.shared import Message


class Links:
    """One `Outbound` for each peer we ever spoke to.

    Args:
        host: the bus.
        packing: its encoder.
        aside: its tasks.
        loop: the event loop.
    """

    def __init__(
        self, host: Host, packing: Packing, aside: Aside, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._host = host
        self._packing = packing
        self._aside = aside
        self._loop = loop
        self._answers = Answers(packing, aside)
        self.by_peer: dict[str, Outbound] = {}
        self.lost: set[str] = set()
        """Peers of which somebody knows that they are dead for good."""

    def submit(
        self, kind: Kind, to: str, message: Message, deadline_s: float, cause: int
    ) -> Future[Any]:
        """Send a tell or an ask; the future is what its sender waits for.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is larger than any receiver would accept.
        """
        packing = self._packing
        encoded = packing.pack(message)
        future: Future[Any] = self._loop.create_future()
        now = self._loop.time()
        name = type(message).__name__
        # Most messages have no buffers; where a peer is matters for the others alone.
        aside = encoded is None or bool(encoded.buffers)
        local = aside and self._host.transport.is_local(to)
        aside = aside and packing.goes_aside(encoded, local=local)
        message_id = self._host.new_id(None if aside else encoded)
        sent = Sent(kind, message_id, cause, name, future, now, now + deadline_s)
        link = self.by_peer.get(to) or self._new(to)
        if link is None:
            sent.fail(to, f"cannot be sent: {self._no_address(to)}")
            return future
        if encoded is None or aside:
            sent.start = partial(self._start, link, sent, message, encoded, local=local)
            sent.num_bytes = encoded.num_bytes if encoded is not None else 0
            link.submit(sent)
            return future
        if encoded.buffers:
            sent.num_bytes = encoded.num_bytes
        sent.encoded = encoded
        link.submit(sent)
        return future

    def _start(
        self, link: Outbound, sent: Sent, message: Message, encoded: Encoded | None, *, local: bool
    ) -> None:
        def failed(why: str) -> None:
            sent.fail(link.peer, f"cannot be packed: {why}")
            link.give_up(sent)

        self._aside.start(
            self._pack_aside(link, sent, message, encoded, local=local),
            f"packing the {sent.type} for {link.peer}",
            failed,
        )

    async def _pack_aside(
        self, link: Outbound, sent: Sent, message: Message, encoded: Encoded | None, *, local: bool
    ) -> None:
        try:
            packed = await self._packing.pack_aside(
                sent.id, message, encoded, to=link.peer, local=local
            )
        except (TypeError, ValueError) as error:
            if not sent.future.done():
                sent.future.set_exception(error)
            link.give_up(sent)
            return
        sent.settle = partial(self._packing.settle, sent.id)
        if sent.future.done():
            sent.settled(taken=False)
            link.give_up(sent)
            return
        sent.encoded = packed
        link.pump()

    def _new(self, to: str) -> Outbound | None:
        if not self._host.transport.knows(to):
            return None
        link = self.by_peer[to] = Outbound(self._host, to, self._answers.on_answer)
        return link

    def _no_address(self, to: str) -> str:
        names = sorted(self._host.transport.names())
        nearest = get_close_matches(to, names, n=1)
        hint = f"did you mean {nearest[0]}" if nearest else f"known are {', '.join(names)}"
        return f"no address of that name, {hint}"

    # ---- what happens to them ------------------------------------------------------------

    def on_back(self, peer: str, frames: Frames) -> None:
        """Something came back from this peer.

        Raises:
            ProtocolError, IndexError: junk.
        """
        self.by_peer[peer].on_back(unpack_delivery(frames[0]), frames[1:])

    def on_connection(self, peer: str, problem: str) -> None:
        """The connection to this peer came or went."""
        self.by_peer[peer].connection(problem)

    def peer_is_now(self, peer: str, incarnation: int) -> None:
        """This peer was started again."""
        link = self.by_peer.get(peer)
        if link is not None:
            link.peer_is_now(incarnation)

    def has_died(self, peer: str) -> bool:
        """A life of this peer before its present one was heard on our link to it."""
        link = self.by_peer.get(peer)
        return link is not None and link.num_restarts > 0

    def send_released(self, peer: str, body: bytes) -> None:
        """Give shared memory back to this peer."""
        self.by_peer[peer].send_released(body)

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        return min((link.due for link in self.by_peer.values()), default=float("inf"))

    def tick(self, now: float) -> None:
        """Deadlines, probes and acknowledgements that are due."""
        for link in self.by_peer.values():
            if link.due <= now:
                link.tick(now)

    @property
    def unsettled(self) -> bool:
        """Whether something is sent and not known to be taken, by a peer that may still take it."""
        return any(
            (link.waiting or link.unacked) and not self._is_gone(link)
            for link in self.by_peer.values()
        )

    @property
    def gone(self) -> tuple[str, ...]:
        """Peers that are not there any more."""
        return tuple(peer for peer, link in self.by_peer.items() if self._is_gone(link))

    def _is_gone(self, link: Outbound) -> bool:
        # A link made after its peer's death was never connected, and could be to one that starts.
        return link.is_gone or link.peer in self.lost

    def fail_all(self, reason: str) -> tuple[Undelivered, ...]:
        """Give everything up; returns what was told."""
        return tuple(error for link in self.by_peer.values() for error in link.fail_all(reason))
