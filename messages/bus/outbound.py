"""Our end of a link to a peer's mailbox: what we sent, what we may send, what we are owed.

A message waits until the window has room, then gets its sequence number and is kept until the
peer has taken it; a question stays on until its answer comes. What the peer turns out not to have
is sent again under the same id and number, so the peer knows a repeat. A deadline ends every
state, with the peer's name and what is known of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from milepost.messages.bus.answer_stream import AnswerStream
from milepost.messages.bus.delivery import Delivery, Kind, pack_delivery, unpack_released
from milepost.messages.bus.host import ACK_DELAY_S, Host
from milepost.messages.bus.sent import Sent
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import Header, unpack_header
from milepost.messages.errors import Undelivered

REPLY_ACKS_MAX: Final = 64
"""Answers that stay unacknowledged while nothing else goes to the peer."""
REFUSED_S: Final = 1.0
"""A link without room says so after this time: who tries again at once would spin."""


class Outbound:
    """The link to one peer.

    Args:
        host: the bus.
        peer: name of the other side.
        answer: gets each answer (or refusal) that somebody waits for.
    """

    def __init__(
        self, host: Host, peer: str, answer: Callable[[Sent, Header, Kind, Frames], None]
    ) -> None:
        self.host = host
        self.peer = peer
        self._answer = answer
        self.waiting: deque[Sent] = deque()
        self.unacked: deque[Sent] = deque()
        self.asks: dict[int, Sent] = {}
        """By id: not answered, whatever else."""
        self._refused: deque[Sent] = deque()
        """Found no room and will never be sent; their senders hear of it when `deadline` comes."""
        self.due = float("inf")
        """When `tick` has something to do."""
        self.peer_incarnation = -1
        """-1 until the first word of the peer."""
        self.last_heard = 0.0
        self.problem = "no connection yet"
        self._last_probe = host.clock()
        self._next_sequence = 1
        self._unacked_bytes = 0
        self._received_by_peer = 0
        self.answers = AnswerStream()
        self._reply_acks = 0
        self.num_sent = 0
        self.num_retries = 0
        self.num_late = 0
        self.num_restarts = 0
        self.num_failed = 0
        self.peak = 0

    # ---- sending -------------------------------------------------------------------------

    def submit(self, sent: Sent) -> None:
        """Send now if there is room, else when there is."""
        limits = self.host.limits
        if sent.is_ask:
            self.asks[sent.id] = sent
        if sent.encoded is not None and not self.waiting and self._has_room(sent):
            self._transmit(sent)
        elif len(self.waiting) >= limits.outbox_messages_max:
            self._refuse(sent)
            return
        else:
            self.waiting.append(sent)
            self.peak = max(self.peak, len(self.waiting))
            self.pump()
        self._due(min(sent.deadline, sent.created + limits.probe_s))

    def _refuse(self, sent: Sent) -> None:
        self.asks.pop(sent.id, None)
        sent.settled(taken=False)
        if len(self._refused) >= self.host.limits.outbox_messages_max:
            self._fail_full(sent)
            return
        sent.deadline = min(sent.deadline, self.host.clock() + REFUSED_S)
        self._refused.append(sent)
        self._due(sent.deadline)

    def _fail_full(self, sent: Sent) -> None:
        reason = f"not sent: {len(self.waiting)} messages wait for {self.peer} already"
        self._fail(sent, reason, no_room=True)

    def _due(self, due: float) -> None:
        if due < self.due:
            self.due = due
            self.host.wake(due)

    def pump(self) -> None:
        """Send what waits, as far as the window allows."""
        waiting = self.waiting
        while waiting and self._has_room(waiting[0]):
            head = waiting[0]
            if head.encoded is None:
                if head.start is not None:
                    head.start()
                    head.start = None
                return
            self._transmit(waiting.popleft())

    def _has_room(self, sent: Sent) -> bool:
        if not self.unacked:
            return True
        limits = self.host.limits
        return (
            len(self.unacked) < limits.window_messages
            and self._unacked_bytes + sent.num_bytes <= limits.window_bytes
        )

    def give_up(self, sent: Sent) -> None:
        """This message, not sent yet, will never have frames; its future is done."""
        self.asks.pop(sent.id, None)
        if sent in self.waiting:
            self.waiting.remove(sent)
        self.pump()

    def _transmit(self, sent: Sent) -> None:
        encoded = sent.encoded
        assert encoded is not None
        sent.encoded = None
        sent.sequence = self._next_sequence
        self._next_sequence += 1
        header = self.host.header(sent.type, sent.id, sent.cause, sent.sequence)
        sent.frames = (header, *encoded.frames())
        self.unacked.append(sent)
        self._unacked_bytes += sent.num_bytes
        self.num_sent += 1
        if self.host.copy is not None:
            self.host.copy(self.peer, sent.type, sent.kind, sent.frames, True)  # noqa: FBT003
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
        received = self.answers.received
        delivery = pack_delivery(
            kind,
            self.host.incarnation,
            unacked[0].sequence if unacked else self._next_sequence,
            self._next_sequence - 1,
            received,
            received,
            argument,
        )
        # Lost for want of room is lost as on a broken connection: the next probe finds it.
        self.host.transport.send(self.peer, (delivery, *frames))

    def send_released(self, body: bytes) -> None:
        """Give back shared memory that came with answers of this peer."""
        self._send(Kind.RELEASE, 0, (body,))

    # ---- what comes back -----------------------------------------------------------------

    def on_back(self, delivery: Delivery, frames: Frames) -> None:
        """Something came back on this link: `frames` are those after the delivery frame.

        Raises:
            ProtocolError: it cannot be read.
        """
        self.last_heard = self.host.clock()
        if delivery.incarnation != self.peer_incarnation:
            restarted = self.peer_incarnation >= 0
            if not self.peer_is_now(delivery.incarnation):
                return
            if restarted and delivery.kind is Kind.ACK:
                return
        kind = delivery.kind
        if kind is Kind.REPLY or kind is Kind.REFUSED:
            self._on_reply(delivery, frames)
            return
        if kind is Kind.RELEASE:
            self.host.released(unpack_released(frames[0]))
        elif kind is Kind.SKIP:
            self.answers.take(delivery.base, delivery.argument)
        if self.answers.is_complete(delivery):
            self._acknowledge(delivery)
            if kind is Kind.ACK and delivery.argument:
                self._resend(delivery.received, delivery.argument)
        elif self.answers.is_new_gap():
            self._probe(self.last_heard)

    def _on_reply(self, delivery: Delivery, frames: Frames) -> None:
        header = unpack_header(frames[0])
        if not self.answers.take(delivery.base, header.sequence):
            if header.sequence > self.answers.received and self.answers.is_new_gap():
                self._probe(self.last_heard)
            return
        if self.host.copy is not None:
            self.host.copy(self.peer, header.type, delivery.kind, frames, False)  # noqa: FBT003
        sent = self.asks.pop(header.cause, None)
        if sent is None and delivery.kind is Kind.REFUSED:
            sent = next((one for one in self.unacked if one.id == header.cause), None)
        if sent is None or sent.future.done():
            self.num_late += 1
        else:
            self._answer(sent, header, delivery.kind, frames)
        self._acknowledge(delivery)
        self._reply_acks += 1
        if self._reply_acks >= REPLY_ACKS_MAX or len(frames) > 2:
            self._send(Kind.ACK, 0)
        elif self._reply_acks == 1:
            self._due(self.last_heard + ACK_DELAY_S)

    def _acknowledge(self, delivery: Delivery) -> None:
        if delivery.received > self._received_by_peer:
            self._received_by_peer = min(delivery.received, self._next_sequence - 1)
        unacked = self.unacked
        taken = delivery.taken
        if not unacked or unacked[0].sequence > taken:
            return
        while unacked and unacked[0].sequence <= taken:
            sent = unacked.popleft()
            self._unacked_bytes -= sent.num_bytes
            sent.settled(taken=True)
            if sent.kind is Kind.TELL and not sent.future.done():
                sent.future.set_result(None)
        if self.waiting:
            self.pump()

    def _resend(self, received: int, up_to: int) -> None:
        now = self.host.clock()
        for sent in list(self.unacked):
            if received < sent.sequence <= up_to:
                self.num_retries += 1
                self._put(sent, now)

    # ---- the peer's life -----------------------------------------------------------------

    def peer_is_now(self, incarnation: int) -> bool:
        """The peer lives in this incarnation. False when that is old news."""
        known = self.peer_incarnation
        if incarnation <= known:
            return incarnation == known
        self.peer_incarnation = incarnation
        if known < 0:
            return True
        self.num_restarts += 1
        self.host.peer_restarted(self.peer)
        self._received_by_peer = 0
        self.answers.restart()
        first_untaken = self.unacked[0].sequence if self.unacked else self._next_sequence
        for sent in list(self.asks.values()):
            if 0 < sent.sequence < first_untaken:
                self._fail(
                    sent,
                    f"was taken by incarnation {known} of {self.peer}, which is gone; "
                    f"incarnation {incarnation} knows nothing of it",
                )
        self._resend(0, self._next_sequence)
        return True

    def connection(self, problem: str) -> None:
        """The connection came (no problem) or went."""
        self.problem = problem
        if not problem and (self.unacked or self.asks):
            self._probe(self.host.clock())

    @property
    def is_gone(self) -> bool:
        """The peer was there, and its connection has ended."""
        return bool(self.problem and self.last_heard)

    # ---- time ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Fail what is late, acknowledge answers, ask a silent peer where it stands."""
        self.due = float("inf")
        self._expire(now)
        if self._reply_acks:
            self._send(Kind.ACK, 0)
        if self._refused:
            self._due(min(one.deadline for one in self._refused))
        if not (self.waiting or self.unacked or self.asks):
            return
        silent_since = self.unacked[0].sent_at if self.unacked else self.last_heard
        probe_at = max(self._last_probe, silent_since) + self.host.limits.probe_s
        if probe_at <= now:
            self._probe(now)
            probe_at = now + self.host.limits.probe_s
        dues = [probe_at]
        for group in (self.waiting, self.unacked, self.asks.values()):
            dues += [one.deadline for one in group if one.kind is not Kind.SKIP]
        self._due(min(dues))

    def _expire(self, now: float) -> None:
        for sent in [one for one in self._refused if one.is_over(now)]:
            self._refused.remove(sent)
            self._fail_full(sent)
        unsent = [one for one in self.waiting if one.is_over(now)]
        for sent in unsent:
            self.waiting.remove(sent)
        sent_late = (one for one in self.unacked if one.kind is not Kind.SKIP and one.is_over(now))
        unanswered = (one for one in self.asks.values() if one.is_over(now))
        late = list(dict.fromkeys((*unsent, *sent_late, *unanswered)))
        for sent in late:
            self._fail(sent, self._state_of(sent, now))
            sent.settled(taken=False)
            if sent.sequence and self.unacked and sent.sequence >= self.unacked[0].sequence:
                sent.kind = Kind.SKIP
                self._put(sent, now)
        if late:
            self.pump()

    def _probe(self, now: float) -> None:
        self._last_probe = now
        self._send(Kind.PROBE, int(self.answers.has_gap))

    def _fail(self, sent: Sent, reason: str, *, no_room: bool = False) -> None:
        self.asks.pop(sent.id, None)
        self.num_failed += 1
        sent.fail(self.peer, reason, no_room=no_room)

    def _state_of(self, sent: Sent, now: float) -> str:
        heard = (
            f"last heard from {now - self.last_heard:.1f} s ago"
            if self.last_heard
            else ("never heard from")
        )
        peer = f"{self.peer} was {heard}" + (f", {self.problem}" if self.problem else "")
        first = self.unacked[0].sequence if self.unacked else self._next_sequence
        what = sent.state(first, self._received_by_peer, len(self.unacked))
        return f"{what} within {now - sent.created:.1f} s; {peer}"

    def fail_all(self, reason: str) -> list[Undelivered]:
        """Give everything up; returns what was told to whoever waits."""
        groups = (self._refused, self.waiting, self.unacked, self.asks.values())
        pending = {sent.id: sent for group in groups for sent in group}
        failed = []
        for sent in pending.values():
            if not sent.future.done():
                self._fail(sent, reason)
                error = sent.future.exception()
                assert isinstance(error, Undelivered)
                failed.append(error)
            sent.settled(taken=False)
        for group in (self._refused, self.waiting, self.unacked, self.asks):
            group.clear()
        return failed
