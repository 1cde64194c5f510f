"""Our end of a link to a peer's mailbox: what we sent, what we may send, what we are owed.

States of a message: waiting (no room in the window yet) -> sent (has a sequence number, kept
until the peer has taken it) -> taken. A question stays on until its answer comes. Anything the
peer turns out not to have is sent again with the same id and sequence number, so the peer can
tell a repeat. A deadline ends every state, with the peer's name and what is known of it.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import Any

from milepost.messages.bus.delivery import Delivery, Kind, pack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.transport import Frames
from milepost.messages.codec import Encoded
from milepost.messages.envelope import Header, unpack_header
from milepost.messages.errors import Unanswered, Undelivered

REPLY_ACKS_MAX = 64
"""Answers that may be left unacknowledged while nothing else goes to the peer."""


class Sent:
    """One message of ours on its way."""

    __slots__ = (
        "cause",
        "created",
        "deadline",
        "encoded",
        "frames",
        "future",
        "id",
        "kind",
        "sent_at",
        "sequence",
        "settle",
        "type",
    )

    def __init__(
        self,
        kind: Kind,
        message_id: int,
        cause: int,
        type_name: str,
        future: Future[Any],
        created: float,
        deadline: float,
    ) -> None:
        self.kind = kind
        self.id = message_id
        self.cause = cause
        self.type = type_name
        self.future = future
        self.created = created
        self.deadline = deadline
        self.encoded: Encoded | None = None
        """None while another thread encodes it; nothing behind it is sent before."""
        self.frames: list[bytes | memoryview] = []
        self.sequence = 0
        self.sent_at = 0.0
        self.settle: Callable[[bool], None] | None = None
        """Called once with whether the peer took it: what becomes of its shared memory."""


class Outbound:
    """The link to one peer."""

    def __init__(
        self, host: Host, peer: str, answer: Callable[[Sent, Header, Kind, Frames], None]
    ) -> None:
        self.host = host
        self.peer = peer
        self._answer = answer
        now = host.clock()
        self.waiting: deque[Sent] = deque()
        self.unacked: deque[Sent] = deque()
        self.asks: dict[int, Sent] = {}
        self.peer_incarnation = 0
        self._known = False
        self.opened = now
        self.last_heard = 0.0
        self._last_probe = now
        self._probe_s = host.limits.probe_s
        self._next_sequence = 1
        self._received_by_peer = 0
        self._replies_received = 0
        self._reply_acks = 0
        self.num_sent = 0
        self.num_retries = 0
        self.num_late = 0
        self.num_duplicates = 0
        self.num_restarts = 0
        self.peak = 0

    # ---- sending -------------------------------------------------------------------------

    def submit(self, sent: Sent) -> None:
        """Send now if there is room, else when there is."""
        if sent.kind is Kind.ASK:
            self.asks[sent.id] = sent
        if (
            sent.encoded is not None
            and not self.waiting
            and len(self.unacked) < self.host.limits.window_messages
        ):
            self._transmit(sent)
        elif len(self.waiting) >= self.host.limits.outbox_messages_max:
            self._fail(sent, f"{len(self.waiting)} messages wait for it already, the limit")
        else:
            self.waiting.append(sent)
            self.peak = max(self.peak, len(self.waiting))
        self.host.wake(min(sent.deadline, sent.created + self._probe_s))

    def pump(self) -> None:
        """Send what waits, as far as the window allows."""
        waiting = self.waiting
        window = self.host.limits.window_messages
        while waiting and len(self.unacked) < window and waiting[0].encoded is not None:
            self._transmit(waiting.popleft())

    def _transmit(self, sent: Sent) -> None:
        encoded = sent.encoded
        assert encoded is not None
        sent.sequence = sequence = self._next_sequence
        self._next_sequence += 1
        header = self.host.header(sent.type, sent.id, sent.cause, sequence)
        sent.frames = [header, encoded.body, *encoded.buffers]
        sent.encoded = None
        self.unacked.append(sent)
        self.num_sent += 1
        self._put(sent, self.host.clock())

    def _put(self, sent: Sent, now: float) -> None:
        sent.sent_at = now
        argument = 0
        if sent.kind is Kind.ASK:
            argument = max(1, int((sent.deadline - now) * 1000))
        elif sent.kind is Kind.SKIP:
            argument = sent.sequence
        self._send(sent.kind, argument, sent.frames)

    def _send(self, kind: Kind, argument: int, frames: Frames = ()) -> None:
        self._reply_acks = 0
        unacked = self.unacked
        replies = self._replies_received
        delivery = pack_delivery(
            kind.value,
            self.host.incarnation,
            unacked[0].sequence if unacked else self._next_sequence,
            replies,
            replies,
            argument,
        )
        self.host.transport.send(self.peer, [delivery, *frames])

    def send_release(self, body: bytes) -> None:
        """Give shared memory back that came with answers of this peer."""
        self._send(Kind.RELEASE, 0, [body])

    # ---- what comes back -----------------------------------------------------------------

    def on_back(self, delivery: Delivery, frames: Frames) -> None:
        """Something came back on this link: `frames` are those after the delivery frame."""
        self.last_heard = self.host.clock()
        if not self._known or delivery.incarnation != self.peer_incarnation:
            if not self.peer_is_now(delivery.incarnation):
                return
        self._acknowledge(delivery.received, delivery.taken)
        if delivery.kind is Kind.REPLY or delivery.kind is Kind.REFUSED:
            self._on_reply(delivery, frames)
        elif delivery.kind is Kind.SKIP:
            self._next_reply(delivery, delivery.argument)
        elif delivery.kind is Kind.ACK and delivery.argument:
            self._resend(delivery.received, delivery.argument)

    def _acknowledge(self, received: int, taken: int) -> None:
        if received > self._received_by_peer:
            self._received_by_peer = min(received, self._next_sequence - 1)
        unacked = self.unacked
        if not unacked or unacked[0].sequence > taken:
            return
        while unacked and unacked[0].sequence <= taken:
            sent = unacked.popleft()
            if sent.settle is not None:
                sent.settle(True)  # noqa: FBT003
            if sent.kind is Kind.TELL and not sent.future.done():
                sent.future.set_result(None)
        if self.waiting:
            self.pump()

    def _on_reply(self, delivery: Delivery, frames: Frames) -> None:
        header = unpack_header(bytes(frames[0]))
        if not self._next_reply(delivery, header.sequence):
            return
        sent = self.asks.pop(header.cause, None)
        if sent is None and delivery.kind is Kind.REFUSED:
            sent = next((one for one in self.unacked if one.id == header.cause), None)
        if sent is None or sent.future.done():
            self.num_late += 1
        self._answer_or_drop(sent, header, delivery.kind, frames)
        self._reply_acks += 1
        if self._reply_acks >= REPLY_ACKS_MAX or len(frames) > 2:
            self._send(Kind.ACK, 0)
        elif self._reply_acks == 1:
            self.host.wake(self.last_heard + 0.05)

    def _answer_or_drop(
        self, sent: Sent | None, header: Header, kind: Kind, frames: Frames
    ) -> None:
        if sent is not None and not sent.future.done():
            self._answer(sent, header, kind, frames)

    def _next_reply(self, delivery: Delivery, sequence: int) -> bool:
        """Whether this is the next answer in the stream; a gap is asked for."""
        if delivery.base > self._replies_received + 1:
            self._replies_received = delivery.base - 1
        if sequence == self._replies_received + 1:
            self._replies_received = sequence
            return True
        if sequence <= self._replies_received:
            self.num_duplicates += 1
        else:
            self._probe(self.host.clock())
        return False

    def _resend(self, received: int, up_to: int) -> None:
        now = self.host.clock()
        for sent in list(self.unacked):
            if received < sent.sequence <= up_to:
                self.num_retries += 1
                self._put(sent, now)

    def peer_is_now(self, incarnation: int) -> bool:
        """The peer lives in this incarnation. False when that is old news."""
        if self._known and incarnation <= self.peer_incarnation:
            return incarnation == self.peer_incarnation
        first = not self._known
        self._known = True
        self.peer_incarnation = incarnation
        if first:
            return True
        self.num_restarts += 1
        self._received_by_peer = 0
        self._replies_received = 0
        untaken = {sent.id for sent in self.unacked} | {sent.id for sent in self.waiting}
        for sent in list(self.asks.values()):
            if sent.id not in untaken:
                self._fail(sent, f"restarted (incarnation {incarnation}) after it took {sent.type}")
        self._resend(0, self._next_sequence)
        return True

    # ---- time ----------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Fail what is late, ask a silent peer where it stands; returns when to come again."""
        for sent in [one for one in self.waiting if one.deadline <= now or one.future.done()]:
            self.waiting.remove(sent)
            self._fail(sent, f"{sent.type} {self._tried(sent, now)}")
        for sent in self.unacked:
            if (sent.deadline <= now or sent.future.cancelled()) and sent.kind is not Kind.SKIP:
                reason = f"{sent.type} {self._tried(sent, now)}"
                self._skip(sent, now)
                self._fail(sent, reason)
        for sent in [one for one in self.asks.values() if one.deadline <= now]:
            self._fail(sent, f"{sent.type} {self._tried(sent, now)}")
        if self._reply_acks:
            self._send(Kind.ACK, 0)
        if not (self.waiting or self.unacked or self.asks):
            return float("inf")
        due = self._last_probe + self._probe_s
        owed = self.unacked[0].sent_at if self.unacked else self.last_heard
        due = max(due, owed + self._probe_s)
        if due <= now:
            self._probe(now)
            due = now + self._probe_s
        for group in (self.waiting, self.unacked, self.asks.values()):
            due = min((due, *(one.deadline for one in group if one.kind is not Kind.SKIP)))
        return due

    def _probe(self, now: float) -> None:
        self._last_probe = now
        self._send(Kind.PROBE, self._next_sequence - 1)

    def _skip(self, sent: Sent, now: float) -> None:
        sent.frames = []
        if sent.settle is not None:
            sent.settle(False)  # noqa: FBT003
            sent.settle = None
        kind = sent.kind
        sent.kind = Kind.SKIP
        self._put(sent, now)
        if kind is Kind.ASK:
            self.asks.pop(sent.id, None)
            if not sent.future.done():
                sent.future.set_exception(Unanswered(self.peer, self._tried(sent, now)))

    def _fail(self, sent: Sent, reason: str) -> None:
        was_ask = self.asks.pop(sent.id, None) is not None
        if not sent.future.done():
            error = Unanswered if was_ask or sent.kind is Kind.ASK else Undelivered
            sent.future.set_exception(error(self.peer, reason))

    def _tried(self, sent: Sent, now: float) -> str:
        waited = f"{now - sent.created:.1f} s"
        if not self.last_heard:
            heard = f"nothing was ever heard from {self.peer}"
        else:
            heard = f"last heard from {now - self.last_heard:.1f} s ago"
        if sent.sequence == 0:
            return f"waited {waited} for room: {len(self.unacked)} sent and not taken; {heard}"
        if self.unacked and sent.sequence >= self.unacked[0].sequence:
            arrived = "arrived" if sent.sequence <= self._received_by_peer else "sent"
            return f"{arrived} but not taken within {waited}; {heard}"
        return f"taken but not answered within {waited}; {heard}"

    def fail_all(self, reason: str) -> list[Undelivered]:
        """Give everything up; returns what was told to whom."""
        failed = []
        for sent in {**{s.id: s for s in (*self.waiting, *self.unacked)}, **self.asks}.values():
            self._fail(sent, f"{sent.type}: {reason}")
            error = sent.future.exception() if not sent.future.cancelled() else None
            if isinstance(error, Undelivered):
                failed.append(error)
            if sent.settle is not None:
                sent.settle(False)  # noqa: FBT003
        self.waiting.clear()
        self.unacked.clear()
        self.asks.clear()
        return failed
