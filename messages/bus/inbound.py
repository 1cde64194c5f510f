"""Our mailbox: what arrived, from whom, what was taken, and which answers are still on their way.

Each sender's link has one place in its stream: the number up to which everything has arrived.
That number is the memory of duplicates; it does not grow. A gap is reported back at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from milepost.messages.bus.delivery import Delivery, Kind, pack_delivery, unpack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.transport import Frames
from milepost.messages.codec import Encoded
from milepost.messages.envelope import Header, unpack_header
from milepost.messages.errors import ProtocolError

RESEND_AFTER_S = 0.2
"""An answer younger than this is probably still on its way: a probe does not repeat it."""


class Entry:
    """One message that arrived and was not yet taken."""

    __slots__ = (
        "answered",
        "arrived",
        "body",
        "buffers",
        "deadline",
        "header",
        "kind",
        "sequence",
        "skipped",
        "source",
    )

    def __init__(
        self, source: Source, header: Header, kind: Kind, frames: Frames, arrived: float
    ) -> None:
        self.source = source
        self.header = header
        self.kind = kind
        self.body = frames[1]
        self.buffers = frames[2:]
        self.arrived = arrived
        self.deadline = 0.0
        self.sequence = header.sequence
        self.skipped = False
        self.answered = False


class Reply:
    """One answer, kept until the asker has it or has given up."""

    __slots__ = ("deadline", "frames", "kind", "sent_at", "sequence", "settle")

    def __init__(self, kind: Kind, sequence: int, frames: Frames, deadline: float) -> None:
        self.kind = kind
        self.sequence = sequence
        self.frames = frames
        self.deadline = deadline
        self.sent_at = 0.0
        self.settle: Callable[[bool], None] | None = None


class Source:
    """One sender's link, seen from the mailbox it leads to."""

    __slots__ = (
        "ack_wanted",
        "gap_told",
        "incarnation",
        "last_heard",
        "name",
        "num_untold",
        "received",
        "replies",
        "reply_sequence",
        "route",
        "taken",
        "untaken",
    )

    def __init__(self, route: bytes, name: str, incarnation: int, base: int) -> None:
        self.route = route
        self.name = name
        self.incarnation = incarnation
        self.received = base - 1
        self.taken = base - 1
        self.untaken: deque[Entry | int] = deque()
        """In order of sequence; a bare number stands for a skipped message."""
        self.replies: deque[Reply] = deque()
        self.reply_sequence = 1
        self.ack_wanted = False
        self.num_untold = 0
        self.gap_told = 0
        self.last_heard = 0.0


class Mailbox:
    """Everything that arrived here."""

    def __init__(self, host: Host, arrived: Callable[[], None]) -> None:
        self.host = host
        self._arrived = arrived
        self.entries: deque[Entry] = deque()
        self.sources: OrderedDict[bytes, Source] = OrderedDict()
        self.paused = False
        self.num_received = 0
        self.num_taken = 0
        self.num_duplicates = 0
        self.num_gaps = 0
        self.num_skipped = 0
        self.num_refused = 0
        self.num_junk = 0
        self.num_reply_retries = 0
        self.num_unroutable = 0
        self.peak = 0

    # ---- arrival -------------------------------------------------------------------------

    def on_frames(self, route: bytes, frames: Frames) -> None:
        """Something arrived. Junk is counted and dropped."""
        try:
            delivery = unpack_delivery(bytes(frames[0]))
            self._on_delivery(route, delivery, frames[1:])
        except (ProtocolError, IndexError):
            self.num_junk += 1

    def _on_delivery(self, route: bytes, delivery: Delivery, frames: Frames) -> None:
        kind = delivery.kind
        source = self.sources.get(route)
        if kind is Kind.TELL or kind is Kind.ASK:
            header = unpack_header(bytes(frames[0]))
            if source is None:
                source = self._welcome(route, header, delivery.base)
            self._follow(source, delivery)
            self._accept(source, delivery, header, frames)
            return
        if source is None:
            if kind is Kind.PROBE:
                stranger = Source(route, "?", 0, 1)
                self._send(stranger, Kind.ACK, delivery.argument)
            return
        self._follow(source, delivery)
        if kind is Kind.PROBE:
            self._send(source, Kind.ACK, delivery.argument)
            self._repeat_replies(source)
        elif kind is Kind.SKIP:
            self._skip(source, delivery.argument)

    def _welcome(self, route: bytes, header: Header, base: int) -> Source:
        for other in self.sources.values():
            if other.name == header.source and other.incarnation < header.incarnation:
                other.replies.clear()
        source = Source(route, header.source, header.incarnation, max(1, base))
        self.sources[route] = source
        if len(self.sources) > self.host.limits.links_max:
            self._forget_the_idlest()
        return source

    def _forget_the_idlest(self) -> None:
        idle = [one for one in self.sources.values() if not one.untaken and not one.replies]
        if idle:
            del self.sources[min(idle, key=lambda one: one.last_heard).route]

    def _follow(self, source: Source, delivery: Delivery) -> None:
        source.last_heard = self.host.clock()
        if delivery.base > source.received + 1:
            source.received = delivery.base - 1
            if not source.untaken:
                source.taken = source.received
        replies = source.replies
        while replies and replies[0].sequence <= delivery.received:
            reply = replies.popleft()
            if reply.settle is not None:
                reply.settle(True)  # noqa: FBT003

    def _accept(
        self, source: Source, delivery: Delivery, header: Header, frames: Frames
    ) -> None:
        sequence = header.sequence
        if sequence != source.received + 1:
            if sequence <= source.received:
                self.num_duplicates += 1
                source.ack_wanted = True
                self.host.wake(0.0)
            else:
                self._gap(source, sequence)
            return
        source.received = sequence
        now = source.last_heard
        entry = Entry(source, header, delivery.kind, frames, now)
        entry.deadline = now + (delivery.argument / 1000 if delivery.kind is Kind.ASK else 3600.0)
        source.untaken.append(entry)
        entries = self.entries
        entries.append(entry)
        self.num_received += 1
        depth = len(entries)
        if depth > self.peak:
            self.peak = depth
        if depth >= self.host.limits.inbox_messages_max and not self.paused:
            self.paused = True
            self.host.transport.pause(True)  # noqa: FBT003
        self._arrived()

    def _gap(self, source: Source, sequence: int) -> None:
        if source.gap_told == source.received + 1:
            return
        source.gap_told = source.received + 1
        self.num_gaps += 1
        self._send(source, Kind.ACK, sequence)

    def _skip(self, source: Source, sequence: int) -> None:
        if sequence == source.received + 1:
            source.received = sequence
            source.untaken.append(sequence)
            self._advance(source)
        elif sequence > source.received:
            self._gap(source, sequence)
        else:
            for entry in source.untaken:
                if isinstance(entry, Entry) and entry.sequence == sequence:
                    entry.skipped = True
        source.ack_wanted = True
        self.host.wake(0.0)

    # ---- taking --------------------------------------------------------------------------

    def head(self) -> Entry | None:
        """The oldest message that is still wanted, not yet taken."""
        entries = self.entries
        while entries:
            if not entries[0].skipped:
                return entries[0]
            self.num_skipped += 1
            self._leave(entries.popleft())
        return None

    def take(self, entry: Entry) -> None:
        """The head goes to the actor: this is what its sender hears as taken."""
        taken = self.entries.popleft()
        assert taken is entry
        self.num_taken += 1
        self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        source = entry.source
        left = source.untaken.popleft()
        assert left is entry
        source.taken = entry.sequence
        self._advance(source)
        source.num_untold += 1
        if entry.kind is not Kind.ASK or source.num_untold * 4 >= self.host.limits.window_messages:
            if not source.ack_wanted:
                source.ack_wanted = True
                self.host.wake(0.0)
        elif source.num_untold == 1:
            self.host.wake(self.host.clock() + 0.05)
        if self.paused and len(self.entries) * 2 <= self.host.limits.inbox_messages_max:
            self.paused = False
            self.host.transport.pause(False)  # noqa: FBT003

    def _advance(self, source: Source) -> None:
        untaken = source.untaken
        while untaken and isinstance(untaken[0], int):
            source.taken = untaken[0]
            untaken.popleft()
        if not untaken:
            source.taken = source.received

    # ---- answering -----------------------------------------------------------------------

    def reply(self, entry: Entry, kind: Kind, message_id: int, encoded: Encoded) -> Reply | None:
        """Send this answer, and keep it until the asker has it. None if nobody waits for it."""
        source = entry.source
        if entry.answered or self.sources.get(source.route) is not source:
            return None
        entry.answered = True
        sequence = source.reply_sequence
        source.reply_sequence += 1
        header = self.host.header(encoded.type, message_id, entry.header.id, sequence)
        reply = Reply(kind, sequence, [header, encoded.body, *encoded.buffers], entry.deadline)
        source.replies.append(reply)
        self._put(source, reply)
        return reply

    def _put(self, source: Source, reply: Reply) -> None:
        reply.sent_at = self.host.clock()
        argument = reply.sequence if reply.kind is Kind.SKIP else 0
        self._send(source, reply.kind, argument, reply.frames)

    def _repeat_replies(self, source: Source) -> None:
        before = self.host.clock() - RESEND_AFTER_S
        for reply in source.replies:
            if reply.sent_at <= before:
                self.num_reply_retries += 1
                self._put(source, reply)

    def _send(self, source: Source, kind: Kind, argument: int, frames: Frames = ()) -> None:
        source.ack_wanted = False
        source.num_untold = 0
        replies = source.replies
        delivery = pack_delivery(
            kind.value,
            self.host.incarnation,
            replies[0].sequence if replies else source.reply_sequence,
            source.received,
            source.taken,
            argument,
        )
        if not self.host.transport.send_back(source.route, [delivery, *frames]):
            self.num_unroutable += 1

    def send_release(self, route: bytes, body: bytes) -> None:
        """Give shared memory back that came with messages of this link."""
        source = self.sources.get(route)
        if source is not None:
            self._send(source, Kind.RELEASE, 0, [body])

    def tick(self, now: float) -> float:
        """Send acknowledgements that are due; give up answers whose asker has."""
        for source in self.sources.values():
            if source.ack_wanted or source.num_untold:
                self._send(source, Kind.ACK, 0)
            for reply in source.replies:
                if reply.deadline <= now and reply.kind is not Kind.SKIP:
                    reply.kind = Kind.SKIP
                    reply.frames = ()
                    if reply.settle is not None:
                        reply.settle(False)  # noqa: FBT003
                    self._put(source, reply)
            if source.replies and all(one.kind is Kind.SKIP for one in source.replies):
                source.replies.clear()
        dues = [one.deadline for s in self.sources.values() for one in s.replies]
        return min(dues, default=float("inf"))
