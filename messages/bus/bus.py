"""The bus: tell, ask, receive, reply.

A message arrives once, in the order of its link, or its sender is told by name before its
deadline. What makes that so: `outbound` (our side of each link), `mailbox` (what comes to us) and
a transport that carries frames. This file ties them to the event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Collection, Mapping
from typing import Final

from milepost.messages.bus.alarm import Alarm
from milepost.messages.bus.answering import Answering
from milepost.messages.bus.answers import Aside
from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.host import Host
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.links import Links
from milepost.messages.bus.loop_delay import watcher_of
from milepost.messages.bus.mailbox import Mailbox
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.replies import Replies
from milepost.messages.bus.report import report
from milepost.messages.bus.returning import Origin, Returning
from milepost.messages.bus.source import Entry
from milepost.messages.bus.statistics import BusStatistics
from milepost.messages.bus.tapping import Taps
from milepost.messages.bus.transport import Events, Frames, Transport
from milepost.messages.bus.zeromq import Peer, ZmqTransport
from milepost.messages.errors import BusClosed, ProtocolError, Undelivered
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message
from milepost.messages.supervisor import Refused, Tapped, TapRead

TURN_MESSAGES: Final = 32
"""Messages taken in a row before the loop's other tasks get their turn."""


class Bus:
    """One actor's mailbox and its links to others. Made by `Bus.open`."""

    def __init__(
        self, name: str, incarnation: int, run_id: str, limits: BusLimits, transport: Transport
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.name = name
        self.incarnation = incarnation
        self._alarm = Alarm(self._loop, self._do_what_is_due)
        self._host = Host(
            name=name,
            incarnation=incarnation,
            run_id=run_id,
            limits=limits,
            transport=transport,
            clock=self._loop.time,
            wake=self._alarm.wake,
            flush_soon=self._flush_soon,
            released=self._released,
            peer_restarted=self._peer_restarted,
        )
        self._replies = Replies(self._host)
        self._mailbox = Mailbox(self._host, self._replies, self._on_arrival)
        self._aside = Aside(name, self._loop)
        self._packing = Packing(
            name, incarnation, run_id, limits, self._loop, self._give_back, self._alarm.wake
        )
        self._links = Links(self._host, self._packing, self._aside, self._loop)
        self._answering = Answering(self._host, self._mailbox, self._packing, self._aside)
        self._returning = Returning(
            self._loop, self._links.send_released, self._mailbox.send_released
        )
        self._taps = Taps(self._host)
        self._receiver: Future[None] | None = None
        self._receiving = False
        self._turn = 0
        self._flush_scheduled = False
        self._settled: Future[None] | None = None
        self._closed = ""

    @classmethod
    async def open(
        cls,
        *,
        name: str,
        incarnation: int,
        run_id: str,
        addresses: Mapping[str, Peer],
        limits: BusLimits | None = None,
        secret_key: str = "",
        client_keys: Collection[str] = (),
        listen_fd: int = -1,
    ) -> Bus:
        """Bind the mailbox of `name`, if it has an address, and be ready to talk to all others.

        Args:
            name: ours, unique in the run.
            incarnation: how often this actor had been started before; a higher one takes over.
            run_id: messages of another run are refused.
            addresses: of all mailboxes. Read again for each new peer, so it may grow.
            limits: the same in the whole run.
            secret_key: our CURVE secret key (Z85), needed when an address is tcp.
            client_keys: public keys of clients without a mailbox that may connect over tcp.
            listen_fd: the bound, listening socket of a mailbox on tcp; it is ours from now on.

        Raises:
            AddressError: the mailbox cannot be bound.
        """
        bounds = limits or BusLimits()
        transport = ZmqTransport(
            name,
            incarnation,
            addresses,
            bounds,
            secret_key=secret_key,
            client_keys=client_keys,
            listen_fd=listen_fd,
        )
        return await cls.over(
            transport, name=name, incarnation=incarnation, run_id=run_id, limits=bounds
        )

    @classmethod
    async def over(
        cls,
        transport: Transport,
        *,
        name: str,
        incarnation: int,
        run_id: str,
        limits: BusLimits | None = None,
    ) -> Bus:
        """The same over any transport."""
        bus = cls(name, incarnation, run_id, limits or BusLimits(), transport)
        await transport.open(
            Events(
                arrived=bus._on_mailbox,
                returned=bus._on_back,
                connection=bus._on_connection,
            )
        )
        watcher_of(bus._loop).start()
        return bus

    # ---- sending -------------------------------------------------------------------------

    def tell(self, to: str, message: Message, *, deadline_s: float, cause: int = 0) -> Future[None]:
        """Send; the future is done when the receiver has taken the message.

        Bulk in the message is not copied: leave it unchanged until then.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is larger than any receiver would accept.
            BusClosed: after `close`.

        The future raises `Undelivered`.
        """
        if self._closed:
            raise BusClosed(self._closed)
        return self._links.submit(Kind.TELL, to, message, deadline_s, cause)

    def ask(
        self, to: str, message: Message, *, deadline_s: float, cause: int = 0
    ) -> Future[Incoming]:
        """Send and wait for the answer, which is the future's result.

        The future raises `Unanswered`. Raises as `tell` does.
        """
        if self._closed:
            raise BusClosed(self._closed)
        return self._links.submit(Kind.ASK, to, message, deadline_s, cause)

    def allocate(self, nbytes: int, *, to: str) -> memoryview:
        """Memory to make a large payload in that travels to `to` without being copied.

        Wrap all of it or parts of it in a `Bulk`, directly or through arrays and tensors over it.
        Once it was sent it must not be written any more: receivers read this very memory, also
        after `tell` is done. Drop every reference to it instead, and ask again: the same memory
        comes back when they are done. Where there is no shared memory, or `to` is on another host,
        this is ordinary memory and the message is sent as any other.

        Any thread may ask. A large piece may take as long as copying it three times, where none
        can be used again: not on the event loop.

        Args:
            nbytes: how much; the content is undefined.
            to: name of a receiver, of which all are on its host.
        """
        return self._packing.allocate(nbytes, local=self._host.transport.is_local(to))

    @property
    def last_sent(self) -> tuple[int, int]:
        """Id and digest of what `tell`, `ask` or `reply` sent last.

        A reply that changes nothing has none. The digest is `Incoming.digest` of its receiver.
        """
        return self._host.last_id, self._host.last_digest

    # ---- receiving -----------------------------------------------------------------------

    async def receive(self) -> Incoming:
        """The next message, in order of arrival. Taking it is what its sender hears.

        A caller that is cancelled loses nothing. One caller at a time.

        Raises:
            BusClosed: after `close`.
        """
        assert not self._receiving, f"two tasks receive on the bus of {self.name}, one may"
        self._receiving = True
        try:
            while True:
                if self._closed:
                    raise BusClosed(self._closed)
                entry = self._mailbox.head()
                if entry is None:
                    await self._something_arrives()
                elif self._turn >= TURN_MESSAGES:
                    self._turn = 0
                    await asyncio.sleep(0)
                else:
                    self._turn += 1
                    is_big = self._packing.is_big(entry.frames[0])
                    incoming = await self._take_aside(entry) if is_big else self._take(entry)
                    if incoming is not None:
                        return incoming
        finally:
            self._receiving = False

    async def _something_arrives(self) -> None:
        self._turn = 0
        self._receiver = self._loop.create_future()
        try:
            await self._receiver
        finally:
            self._receiver = None

    def _on_arrival(self) -> None:
        receiver = self._receiver
        if receiver is not None and not receiver.done():
            receiver.set_result(None)

    def _take(self, entry: Entry) -> Incoming | None:
        """The message of the head; None if it cannot be read."""
        header, frames = entry.header, entry.frames
        origin = Origin(header.id, "", entry.source.route)
        try:
            message, digest = self._packing.unpack(header, frames, origin)
        except ProtocolError as error:
            self._answering.refuse(entry, str(error))
            return None
        return self._taken(entry, message, digest)

    async def _take_aside(self, entry: Entry) -> Incoming | None:
        """The same on another thread; None also when its sender gave it up meanwhile."""
        header = entry.header
        origin = Origin(header.id, "", entry.source.route)
        try:
            message, digest = await self._packing.unpack_aside(header, entry.frames, origin)
        except ProtocolError as error:
            if self._mailbox.head() is entry:
                self._answering.refuse(entry, str(error))
            return None
        return self._taken(entry, message, digest) if self._mailbox.head() is entry else None

    def _taken(self, entry: Entry, message: Message, digest: int) -> Incoming:
        header = entry.header
        self._mailbox.take(entry)
        entry.frames = ()
        source, incarnation, cause = header.source, header.incarnation, header.cause
        asks = entry.is_ask
        return Incoming(source, incarnation, header.id, cause, message, asks, digest, entry)

    # ---- answering -----------------------------------------------------------------------

    def reply(self, incoming: Incoming, message: Message) -> None:
        """Answer a question. A second answer, or one that nobody waits for, changes nothing.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is too large, or `incoming` is no question that was received here.
        """
        entry = incoming.entry
        if entry is None or not incoming.wants_reply:
            raise ValueError(f"{incoming.source} did not ask: {type(incoming.message).__name__}")
        if not self._closed:
            self._answering.reply(entry, message)

    def is_waited_for(self, incoming: Incoming) -> bool:
        """Whether an answer to this would be heard."""
        return incoming.entry is not None and self._mailbox.can_answer(incoming.entry)

    # ---- events --------------------------------------------------------------------------

    def _on_mailbox(self, route: bytes, frames: Frames) -> None:
        self._mailbox.on_frames(route, frames)
        if self._settled is not None:
            self._notice_settled(self._settled)

    def _on_back(self, peer: str, frames: Frames) -> None:
        try:
            self._links.on_back(peer, frames)
        except (ProtocolError, IndexError):
            self._mailbox.num_junk += 1
        if self._settled is not None:
            self._notice_settled(self._settled)

    def _on_connection(self, peer: str, problem: str) -> None:
        self._links.on_connection(peer, problem)
        if self._settled is not None:
            self._notice_settled(self._settled)

    def peer_is_now(self, peer: str, incarnation: int) -> None:
        """Tell what the supervisor knows: this peer was started again, as this incarnation."""
        self._links.peer_is_now(peer, incarnation)

    def has_died(self, peer: str) -> bool:
        """Whether a life of this peer before its present one may have taken anything of ours."""
        return self._links.has_died(peer)

    def will_not_return(self, peers: Collection[str]) -> None:
        """Tell what the supervisor knows: they are dead for good, and `close` waits for none."""
        self._links.lost.update(peers)

    def _give_back(self, origin: Origin) -> None:
        self._returning.give_back(origin)

    def _released(self, message_ids: list[int]) -> None:
        for message_id in message_ids:
            self._packing.give_back(message_id)

    def _peer_restarted(self, peer: str) -> None:
        self._packing.lender.peer_restarted(peer)

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._mailbox.flush()

    def _do_what_is_due(self, now: float) -> float:
        parts = (self._mailbox, self._replies, self._packing.lender, self._links, self._taps)
        for part in parts:
            if part.due <= now:
                part.tick(now)
        return min(part.due for part in parts)

    def read_tap(self, wanted: TapRead) -> Tapped | Refused:
        """Copies of our traffic for somebody who looks (see `tapping`)."""
        return self._taps.read(wanted)

    def statistics(self) -> BusStatistics:
        """Where everything stands, now."""
        delay = watcher_of(self._loop).delay()
        links, num_failed = self._links.by_peer, self._aside.num_failed
        return report(self._host, self._mailbox, links, self._packing, delay, num_failed)

    # ---- the end -------------------------------------------------------------------------

    async def close(self, *, deadline_s: float = 1.0) -> tuple[Undelivered, ...]:
        """Wait until everything sent is taken or the deadline, then free every socket.

        Who is gone is not waited for: a run that ends would wait for the same dead peer in every
        one of its processes.

        Returns what could not be delivered; the future of each raises the same.
        """
        if self._closed:
            return ()
        self._closed = f"the bus of {self.name} was closed"
        until = self._loop.time() + deadline_s
        self._replies.remind()
        if self._unsettled():
            self._settled = self._loop.create_future()
            await asyncio.wait({self._settled}, timeout=deadline_s)
        failed = self._links.fail_all(f"was given up: {self.name} closed its bus")
        self._mailbox.flush()
        self._alarm.cancel()
        self._returning.close()
        self._on_arrival()
        watcher_of(self._loop).stop()
        await self._aside.finished()
        left_s = max(0.05, until - self._loop.time())
        await self._host.transport.close(left_s, self._links.gone)
        await self._loop.run_in_executor(None, self._packing.close)
        return failed

    def _unsettled(self) -> bool:
        return self._replies.unsettled or self._links.unsettled

    def _notice_settled(self, settled: Future[None]) -> None:
        if not settled.done() and not self._unsettled():
            settled.set_result(None)
