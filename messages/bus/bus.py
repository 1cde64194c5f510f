"""The bus: tell, ask, receive, reply.

A message arrives once, in the order of its link, or its sender is told by name before its
deadline. What makes that so: `outbound` (our side of each link), `inbound` (our mailbox) and a
transport that carries frames. This file ties them to the event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import Any, Protocol

from milepost.messages.bus.delivery import Kind, unpack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.inbound import Entry, Mailbox
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.outbound import Outbound, Sent
from milepost.messages.bus.transport import Frames, Transport
from milepost.messages.bus.zeromq import ZmqTransport
from milepost.messages.codec import Codec
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL, Header
from milepost.messages.errors import BusClosed, ProtocolError, Unanswered, Undelivered
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message

OFF_LOOP_BYTES = 1 << 20
"""Larger bodies are decoded on another thread."""
TURN_MESSAGES = 32
"""Messages taken in a row before other tasks of the loop get their turn."""


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


class Bus:
    """One actor's mailbox and its links to others. Made by `Bus.open`."""

    def __init__(
        self, name: str, incarnation: int, run_id: str, limits: BusLimits, transport: Transport
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.name = name
        self.incarnation = incarnation
        self._host = Host(
            name, incarnation, run_id, limits, transport, self._loop.time, self._wake
        )
        self._codec = Codec(limits)
        self._mailbox = Mailbox(self._host, self._on_arrival)
        self._links: dict[str, Outbound] = {}
        self._receiver: Future[None] | None = None
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bus")
        self._decoding: set[asyncio.Task[None]] = set()
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
    ) -> Bus:
        """Bind the mailbox of `name`, if it has an address, and be ready to talk to all others.

        Raises:
            AddressError: the mailbox cannot be bound.
        """
        bounds = limits or BusLimits()
        transport = ZmqTransport(name, incarnation, addresses, bounds, secret_key)
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
        await transport.open(bus._mailbox.on_frames, bus._on_back)
        return bus

    # ---- sending -------------------------------------------------------------------------

    def tell(self, to: str, message: Message, *, deadline_s: float, cause: int = 0) -> Future[None]:
        """Send; the future is done when the receiver has taken the message.

        Bulk in the message is not copied: leave it unchanged until then.

        Raises:
            TypeError: the message cannot travel.
            BusClosed: after `close`.

        The future raises `Undelivered`.
        """
        return self._submit(Kind.TELL, to, message, deadline_s, cause)

    def ask(
        self, to: str, message: Message, *, deadline_s: float, cause: int = 0
    ) -> Future[Incoming]:
        """Send and wait for the answer, which is the future's result.

        The future raises `Unanswered`. Raises as `tell` does.
        """
        return self._submit(Kind.ASK, to, message, deadline_s, cause)

    def _submit(
        self, kind: Kind, to: str, message: Message, deadline_s: float, cause: int
    ) -> Future[Any]:
        if self._closed:
            raise BusClosed(self._closed)
        future: Future[Any] = self._loop.create_future()
        link = self._links.get(to) or self._link(to)
        if link is None:
            error = Unanswered if kind is Kind.ASK else Undelivered
            future.set_exception(error(to, self._no_address(to)))
            return future
        now = self._loop.time()
        encoded = self._codec.encode(message)
        sent = Sent(
            kind, next(self._host.ids), cause, encoded.type, future, now, now + deadline_s
        )
        sent.encoded = encoded
        link.submit(sent)
        return future

    def _link(self, to: str) -> Outbound | None:
        if not self._host.transport.knows(to):
            return None
        link = self._links[to] = Outbound(self._host, to, self._on_answer)
        return link

    def _no_address(self, to: str) -> str:
        names = sorted(self._host.transport.names())
        nearest = get_close_matches(to, names, n=1)
        hint = f", did you mean {nearest[0]}" if nearest else f", known are {', '.join(names)}"
        return f"no address of that name{hint}"

    # ---- receiving -----------------------------------------------------------------------

    async def receive(self) -> Incoming:
        """The next message, in order of arrival. Taking it is what its sender hears.

        Nothing is lost when the caller is cancelled. One caller at a time.

        Raises:
            BusClosed: after `close`.
        """
        if self._receiver is not None:
            raise RuntimeError(f"two tasks receive on the bus of {self.name}, one may")
        while True:
            if self._closed:
                raise BusClosed(self._closed)
            entry = self._mailbox.head()
            if entry is None:
                self._turn = 0
                self._receiver = self._loop.create_future()
                try:
                    await self._receiver
                finally:
                    self._receiver = None
                continue
            self._turn += 1
            if self._turn > TURN_MESSAGES:
                self._turn = 0
                await asyncio.sleep(0)
                continue
            try:
                if len(entry.body) > OFF_LOOP_BYTES:
                    message = await self._loop.run_in_executor(self._workers, self._decode, entry)
                    if self._mailbox.head() is not entry:
                        continue
                else:
                    message = self._decode(entry)
            except ProtocolError as error:
                self._refuse(entry, str(error))
                continue
            self._mailbox.take(entry)
            header = entry.header
            return Incoming(
                header.source,
                header.incarnation,
                header.id,
                header.cause,
                message,
                entry.kind is Kind.ASK,
                entry,
            )

    def _decode(self, entry: Entry) -> Message:
        header = entry.header
        self._check(header)
        return self._codec.decode(
            header.type,
            bytes(entry.body),
            entry.buffers,
            version=(header.major, header.minor),
        )

    def _check(self, header: Header) -> None:
        if header.major != PROTOCOL[0]:
            raise ProtocolError(
                f"{header.source} speaks protocol {header.major}.{header.minor}, {self.name} "
                f"{PROTOCOL[0]}.{PROTOCOL[1]}: major versions differ, start both from one commit"
            )
        if header.run_id != self._host.run_id:
            raise ProtocolError(
                f"{header.source} belongs to run {header.run_id}, {self.name} to "
                f"{self._host.run_id}"
            )

    def _refuse(self, entry: Entry, reason: str) -> None:
        self._mailbox.take(entry)
        self._mailbox.num_refused += 1
        message = NotUnderstood(
            type=entry.header.type, major=PROTOCOL[0], minor=PROTOCOL[1], reason=reason
        )
        encoded = self._codec.encode(message)
        self._mailbox.reply(entry, Kind.REFUSED, next(self._host.ids), encoded)

    def reply(self, incoming: Incoming, message: Message) -> None:
        """Answer a question. A second answer, or one that nobody waits for, changes nothing.

        Raises:
            TypeError: the message cannot travel.
            ValueError: `incoming` is no question that was received here.
        """
        entry = incoming.entry
        if entry is None or not incoming.wants_reply:
            raise ValueError(f"{incoming.source} did not ask: {type(incoming.message).__name__}")
        encoded = self._codec.encode(message)
        reply = self._mailbox.reply(entry, Kind.REPLY, next(self._host.ids), encoded)
        if reply is not None:
            self._wake(reply.deadline)

    # ---- events --------------------------------------------------------------------------

    def _on_arrival(self) -> None:
        receiver = self._receiver
        if receiver is not None and not receiver.done():
            receiver.set_result(None)

    def _on_back(self, peer: str, frames: Frames) -> None:
        link = self._links.get(peer)
        if link is None:
            return
        try:
            link.on_back(unpack_delivery(bytes(frames[0])), frames[1:])
        except (ProtocolError, IndexError):
            self._mailbox.num_junk += 1

    def _on_answer(self, sent: Sent, header: Header, kind: Kind, frames: Frames) -> None:
        if kind is Kind.REFUSED or len(frames[1]) <= OFF_LOOP_BYTES:
            self._settle(sent, header, kind, frames)
            return
        task = self._loop.create_task(self._settle_later(sent, header, kind, frames))
        self._decoding.add(task)
        task.add_done_callback(self._decoding.discard)

    async def _settle_later(self, sent: Sent, header: Header, kind: Kind, frames: Frames) -> None:
        try:
            message = await self._loop.run_in_executor(
                self._workers, self._decode_answer, header, frames
            )
        except ProtocolError as error:
            self._fail(sent, header, str(error))
        else:
            self._finish(sent, header, message)

    def _settle(self, sent: Sent, header: Header, kind: Kind, frames: Frames) -> None:
        try:
            message = self._decode_answer(header, frames)
        except ProtocolError as error:
            self._fail(sent, header, str(error))
            return
        if kind is Kind.REFUSED:
            reason = message.reason if isinstance(message, NotUnderstood) else header.type
            self._fail(sent, header, f"does not take {sent.type}: {reason}")
        else:
            self._finish(sent, header, message)

    def _decode_answer(self, header: Header, frames: Frames) -> Message:
        self._check(header)
        version = (header.major, header.minor)
        return self._codec.decode(header.type, bytes(frames[1]), frames[2:], version=version)

    def _finish(self, sent: Sent, header: Header, message: Message) -> None:
        if not sent.future.done():
            sent.future.set_result(
                Incoming(header.source, header.incarnation, header.id, header.cause, message)
            )

    def _fail(self, sent: Sent, header: Header, reason: str) -> None:
        if not sent.future.done():
            error = Unanswered if sent.kind is Kind.ASK else Undelivered
            sent.future.set_exception(error(header.source, reason))

    # ---- time ----------------------------------------------------------------------------

    def _wake(self, due: float) -> None:
        if due >= self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due = float("inf")
        now = self._loop.time()
        due = self._mailbox.tick(now)
        for link in self._links.values():
            due = min(due, link.tick(now))
        if due != float("inf"):
            self._wake(max(due, now + 0.002))

    # ---- the end -------------------------------------------------------------------------

    async def close(self, *, deadline_s: float = 1.0) -> tuple[Undelivered, ...]:
        """Wait until everything sent is taken or the deadline, then free every socket.

        Returns what could not be delivered; each such future has the same error.
        """
        if self._closed:
            return ()
        self._closed = f"the bus of {self.name} was closed"
        until = self._loop.time() + deadline_s
        while self._loop.time() < until and self._unsettled():
            await asyncio.sleep(0.005)
        failed = [
            error
            for link in self._links.values()
            for error in link.fail_all(f"{self.name} closed before it was taken or answered")
        ]
        self._mailbox.tick(self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)
        await self._host.transport.close(max(0.05, until - self._loop.time()))
        self._workers.shutdown(wait=True)
        return tuple(failed)

    def _unsettled(self) -> bool:
        links = any(one.waiting or one.unacked for one in self._links.values())
        return links or any(one.replies for one in self._mailbox.sources.values())
