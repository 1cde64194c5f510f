"""The bus: tell, ask, receive, reply.

A message arrives once, in the order of its link, or its sender is told by name before its
deadline. What makes that so: `outbound` (our side of each link), `mailbox` (what comes to us) and
a transport that carries frames. This file ties them to the event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeAlias

from milepost.messages.bus.delivery import RELEASED_MAX, Kind, pack_released, unpack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.loop_delay import watcher_of
from milepost.messages.bus.mailbox import Mailbox
from milepost.messages.bus.outbound import Outbound
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.report import report
from milepost.messages.bus.sent import Sent
from milepost.messages.bus.source import Entry
from milepost.messages.bus.statistics import BusStatistics
from milepost.messages.bus.transport import Events, Frames, Transport
from milepost.messages.bus.zeromq import Peer, ZmqTransport
from milepost.messages.codec import Encoded
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL, Header
from milepost.messages.errors import BusClosed, ProtocolError, Undelivered
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message

TURN_MESSAGES: Final = 32
"""Messages taken in a row before the loop's other tasks get their turn."""
TICK_S: Final = 0.002
"""Deadlines closer together than this are looked at together."""

Token: TypeAlias = tuple[bool, bytes | str, int]
"""Where shared memory is given back to: (came on our link, route or peer, message id)."""


class Bus:
    """One actor's mailbox and its links to others. Made by `Bus.open`."""

    def __init__(
        self, name: str, incarnation: int, run_id: str, limits: BusLimits, transport: Transport
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.name = name
        self.incarnation = incarnation
        self._packing = Packing(name, run_id, limits, self._loop, self._given_back)
        self._host = Host(
            name=name,
            incarnation=incarnation,
            run_id=run_id,
            limits=limits,
            transport=transport,
            clock=self._loop.time,
            wake=self._wake,
            flush_soon=self._flush_soon,
            released=self._released,
        )
        self._mailbox = Mailbox(self._host, self._on_arrival)
        self._links: dict[str, Outbound] = {}
        self._receiver: Future[None] | None = None
        self._receiving = False
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._flush_scheduled = False
        self._to_return: deque[Token] = deque()
        self._aside: set[asyncio.Task[None]] = set()
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
            listen_fd: a bound, listening tcp socket for our mailbox.

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
        now = self._loop.time()
        future: Future[Any] = self._loop.create_future()
        sent = Sent(
            kind,
            next(self._host.ids),
            cause,
            type(message).__name__,
            future,
            now,
            now + deadline_s,
        )
        link = self._links.get(to) or self._link(to)
        if link is None:
            sent.fail(to, f"cannot be sent: {self._no_address(to)}")
            return future
        encoded = self._packing.pack(message)
        local = False
        if encoded is None or (encoded.buffers and self._packing.shares(encoded)):
            local = self._host.transport.is_local(to)
        if encoded is None or local:
            self._do_aside(self._pack_aside(link, sent, message, encoded, local=local))
        else:
            sent.encoded = encoded
        link.submit(sent)
        return future

    async def _pack_aside(
        self, link: Outbound, sent: Sent, message: Message, encoded: Encoded | None, *, local: bool
    ) -> None:
        try:
            packed = await self._packing.pack_aside(sent.id, message, encoded, local=local)
        except (TypeError, ValueError) as error:
            if not sent.future.done():
                sent.future.set_exception(error)
            link.give_up(sent)
            return
        sent.settle = partial(self._settle_loan, sent.id)
        if sent.future.done():
            sent.settled(taken=False)
            link.give_up(sent)
            return
        sent.encoded = packed
        link.pump()

    def _settle_loan(self, message_id: int, taken: bool) -> None:  # noqa: FBT001
        self._packing.lender.settle(message_id, taken=taken)
        self._wake(self._loop.time() + 1.0)

    def _link(self, to: str) -> Outbound | None:
        if not self._host.transport.knows(to):
            return None
        link = self._links[to] = Outbound(self._host, to, self._on_answer)
        return link

    def _no_address(self, to: str) -> str:
        names = sorted(self._host.transport.names())
        nearest = get_close_matches(to, names, n=1)
        hint = f"did you mean {nearest[0]}" if nearest else f"known are {', '.join(names)}"
        return f"no address of that name, {hint}"

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
                    incoming = await self._take(entry)
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

    async def _take(self, entry: Entry) -> Incoming | None:
        """The message of the head; None if it cannot be read or its sender gave it up."""
        header, frames = entry.header, entry.frames
        token: Token = (False, entry.source.route, header.id)
        try:
            if self._packing.is_big(frames[0]):
                message = await self._packing.unpack_aside(header, frames, token)
                if self._mailbox.head() is not entry:
                    return None
            else:
                message = self._packing.unpack(header, frames, token)
        except ProtocolError as error:
            if self._mailbox.head() is entry:
                self._refuse(entry, str(error))
            return None
        self._mailbox.take(entry)
        entry.frames = ()
        return Incoming(
            header.source,
            header.incarnation,
            header.id,
            header.cause,
            message,
            entry.is_ask,
            entry,
        )

    def _refuse(self, entry: Entry, reason: str) -> None:
        self._mailbox.take(entry)
        self._mailbox.num_refused += 1
        entry.frames = ()
        message = NotUnderstood(
            type=entry.header.type, major=PROTOCOL[0], minor=PROTOCOL[1], reason=reason
        )
        self._answer_with(entry, Kind.REFUSED, message)

    def reply(self, incoming: Incoming, message: Message) -> None:
        """Answer a question. A second answer, or one that nobody waits for, changes nothing.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is too large, or `incoming` is no question that was received here.
        """
        entry = incoming.entry
        if entry is None or not incoming.wants_reply:
            raise ValueError(f"{incoming.source} did not ask: {type(incoming.message).__name__}")
        self._answer_with(entry, Kind.REPLY, message)

    def _answer_with(self, entry: Entry, kind: Kind, message: Message) -> None:
        if self._closed or not self._mailbox.can_answer(entry):
            return
        message_id = next(self._host.ids)
        encoded = self._packing.pack(message)
        entry.open = False
        if encoded is None or (encoded.buffers and self._packing.shares(encoded)):
            if encoded is None or self._host.transport.is_local(self.name):
                self._do_aside(self._reply_aside(entry, message_id, message, encoded))
                return
        self._mailbox.reply(entry, kind, message_id, encoded, None)

    async def _reply_aside(
        self, entry: Entry, message_id: int, message: Message, encoded: Encoded | None
    ) -> None:
        local = self._host.transport.is_local(self.name)
        packed = await self._packing.pack_aside(message_id, message, encoded, local=local)
        settle = partial(self._settle_loan, message_id)
        entry.open = True
        if self._mailbox.can_answer(entry):
            entry.open = False
            self._mailbox.reply(entry, Kind.REPLY, message_id, packed, settle)
        else:
            settle(False)  # noqa: FBT003

    # ---- events of the transport ---------------------------------------------------------

    def _on_mailbox(self, route: bytes, frames: Frames) -> None:
        self._mailbox.on_frames(route, frames)
        self._notice_settled()

    def _on_back(self, peer: str, frames: Frames) -> None:
        try:
            self._links[peer].on_back(unpack_delivery(frames[0]), frames[1:])
        except (ProtocolError, IndexError):
            self._mailbox.num_junk += 1
        self._notice_settled()

    def _on_connection(self, peer: str, problem: str) -> None:
        self._links[peer].connection(problem)

    def _on_arrival(self) -> None:
        receiver = self._receiver
        if receiver is not None and not receiver.done():
            receiver.set_result(None)

    def _on_answer(self, sent: Sent, header: Header, kind: Kind, frames: Frames) -> None:
        token: Token = (True, header.source, header.id)
        if self._packing.is_big(frames[1]):
            self._do_aside(self._answer_aside(sent, header, frames, token))
            return
        try:
            if kind is Kind.REFUSED:
                refusal = self._packing.unpack_refusal(header, frames[1:])
                sent.fail(header.source, f"was refused: {refusal.reason}")
            else:
                self._finish(sent, header, self._packing.unpack(header, frames[1:], token))
        except ProtocolError as error:
            sent.fail(header.source, f"got an answer that cannot be read: {error}")

    async def _answer_aside(self, sent: Sent, header: Header, frames: Frames, token: Token) -> None:
        try:
            message = await self._packing.unpack_aside(header, frames[1:], token)
        except ProtocolError as error:
            sent.fail(header.source, f"got an answer that cannot be read: {error}")
        else:
            self._finish(sent, header, message)

    def _finish(self, sent: Sent, header: Header, message: Message) -> None:
        if not sent.future.done():
            sent.future.set_result(
                Incoming(header.source, header.incarnation, header.id, header.cause, message)
            )

    def _do_aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    # ---- shared memory -------------------------------------------------------------------

    def _given_back(self, token: Token) -> None:
        """Nothing here refers to this message's shared memory any more. On any thread."""
        self._to_return.append(token)
        if len(self._to_return) == 1:
            self._loop.call_soon_threadsafe(self._return_memory)

    def _return_memory(self) -> None:
        back: dict[tuple[bool, bytes | str], list[int]] = {}
        while self._to_return:
            on_link, where, message_id = self._to_return.popleft()
            back.setdefault((on_link, where), []).append(message_id)
        if self._closed:
            return
        for (on_link, where), ids in back.items():
            for start in range(0, len(ids), RELEASED_MAX):
                body = pack_released(ids[start : start + RELEASED_MAX])
                if on_link:
                    self._links[str(where)].send_released(body)
                else:
                    assert isinstance(where, bytes)
                    self._mailbox.send_released(where, body)

    def _released(self, message_ids: list[int]) -> None:
        for message_id in message_ids:
            self._packing.lender.give_back(message_id)

    # ---- time ----------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._mailbox.flush()

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
        soon = now + TICK_S
        if self._mailbox.due <= now:
            self._mailbox.tick(now)
        due = min(self._mailbox.due, self._packing.lender.tick(now))
        for link in self._links.values():
            if link.due <= now:
                link.tick(now)
            due = min(due, link.due)
        if due != float("inf"):
            self._wake(max(due, soon))

    def peer_is_now(self, peer: str, incarnation: int) -> None:
        """Tell what the supervisor knows: this peer was started again, as this incarnation."""
        link = self._links.get(peer)
        if link is not None:
            link.peer_is_now(incarnation)

    def statistics(self) -> BusStatistics:
        """Where everything stands, now."""
        return report(
            self._host, self._mailbox, self._links, self._packing, watcher_of(self._loop).delay()
        )

    # ---- the end -------------------------------------------------------------------------

    async def close(self, *, deadline_s: float = 1.0) -> tuple[Undelivered, ...]:
        """Wait until everything sent is taken or the deadline, then free every socket.

        Returns what could not be delivered; the future of each raises the same.
        """
        if self._closed:
            return ()
        self._closed = f"the bus of {self.name} was closed"
        until = self._loop.time() + deadline_s
        if self._unsettled():
            self._settled = self._loop.create_future()
            await asyncio.wait({self._settled}, timeout=deadline_s)
        failed = [
            error
            for link in self._links.values()
            for error in link.fail_all(f"was given up: {self.name} closed its bus")
        ]
        self._mailbox.flush()
        if self._timer is not None:
            self._timer.cancel()
        self._on_arrival()
        watcher_of(self._loop).stop()
        if self._aside:
            await asyncio.wait(self._aside)
        await self._host.transport.close(max(0.05, until - self._loop.time()))
        await self._loop.run_in_executor(None, self._packing.close)
        return tuple(failed)

    def _unsettled(self) -> bool:
        return bool(self._mailbox.owing) or any(
            link.waiting or link.unacked for link in self._links.values()
        )

    def _notice_settled(self) -> None:
        settled = self._settled
        if settled is not None and not settled.done() and not self._unsettled():
            settled.set_result(None)
