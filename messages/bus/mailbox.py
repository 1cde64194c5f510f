"""Our mailbox: what arrived and was not taken, and whom to tell what was."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from milepost.messages.bus.delivery import (
    Delivery,
    Kind,
    unpack_delivery,
    unpack_released,
)
from milepost.messages.bus.host import ACK_DELAY_S, Host
from milepost.messages.bus.replies import Replies
from milepost.messages.bus.source import Entry, Source
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import unpack_header
from milepost.messages.errors import ProtocolError


class Mailbox:
    """Everything that arrived here.

    Args:
        host: the bus.
        replies: what goes back.
        arrived: called after a message was put in.
    """

    def __init__(self, host: Host, replies: Replies, arrived: Callable[[], None]) -> None:
        self.host = host
        self.replies = replies
        self._arrived = arrived
        self.entries: deque[Entry] = deque()
        self.sources: OrderedDict[bytes, Source] = OrderedDict()
        self.paused = False
        self.due = float("inf")
        """When `tick` has something to do."""
        self._to_tell: dict[bytes, Source] = {}
        """Links with messages taken that were not acknowledged yet."""
        self.num_received = 0
        self.num_taken = 0
        self.num_duplicates = 0
        self.num_gaps = 0
        self.num_skipped = 0
        self.num_refused = 0
        self.num_junk = 0
        self.peak = 0

    # ---- arrival -------------------------------------------------------------------------

    def on_frames(self, route: bytes, frames: Frames) -> None:
        """Something arrived. Junk is counted and dropped."""
        try:
            delivery = unpack_delivery(frames[0])
            kind = delivery.kind
            if kind is Kind.TELL or kind is Kind.ASK:
                self._on_message(route, delivery, frames)
            else:
                self._on_control(route, delivery, frames)
        except (ProtocolError, IndexError):
            self.num_junk += 1

    def _on_message(self, route: bytes, delivery: Delivery, frames: Frames) -> None:
        header = unpack_header(frames[1])
        body_and_buffers = frames[2:]
        if not body_and_buffers:
            raise ProtocolError("message without a body")
        source = self.sources.get(route)
        if source is None:
            source = Source(
                route, header.source, header.incarnation, max(1, delivery.base), delivery.received
            )
            self._welcome(source)
        self._follow(source, delivery)
        sequence = header.sequence
        if sequence != source.received + 1:
            if sequence <= source.received:
                self.num_duplicates += 1
                self._tell_soon(source)
            else:
                self._gap(source, sequence)
            return
        source.received = sequence
        entry = Entry(source, header, delivery, body_and_buffers, source.last_heard)
        source.untaken.append(entry)
        self.entries.append(entry)
        self.num_received += 1
        if self.host.copy is not None:
            self.host.copy(header.source, header.type, delivery.kind, frames[1:], False)  # noqa: FBT003
        self._bound()
        self._arrived()

    def _bound(self) -> None:
        depth = len(self.entries)
        self.peak = max(self.peak, depth)
        if depth >= self.host.limits.inbox_messages_max and not self.paused:
            self.paused = True
            self.host.transport.pause(True)  # noqa: FBT003

    def _on_control(self, route: bytes, delivery: Delivery, frames: Frames) -> None:
        kind = delivery.kind
        source = self.sources.get(route)
        if source is None:
            if kind is Kind.PROBE:
                # It talked to an earlier incarnation of us; the answer says so. Where that one's
                # stream of answers stood must not come back: ours begins when a message arrives.
                stranger = Source(route, "?", 0, 1, 0)
                self.replies.send(stranger, Kind.ACK, delivery.last)
            return
        self._follow(source, delivery)
        if kind is Kind.PROBE:
            self.replies.send(source, Kind.ACK, delivery.last)
            self.replies.repeat(source, missing=delivery.argument > 0)
        elif kind is Kind.SKIP:
            self._skip(source, delivery.argument)
        elif kind is Kind.RELEASE:
            self.host.released(unpack_released(frames[1]))
        if delivery.last > source.received and kind is not Kind.PROBE:
            self._gap(source, delivery.last)

    def _welcome(self, source: Source) -> None:
        for other in self.sources.values():
            if other.name == source.name and other.incarnation < source.incarnation:
                self.replies.drop(other)
                self.host.peer_restarted(other.name)
        self.sources[source.route] = source
        if len(self.sources) > self.host.limits.links_max:
            now = self.host.clock()
            idle = [one for one in self.sources.values() if one is not source]
            idle = [o for o in idle if not (o.untaken or o.replies or o.busy_until > now)]
            if idle:
                del self.sources[min(idle, key=lambda one: one.last_heard).route]

    def _follow(self, source: Source, delivery: Delivery) -> None:
        source.last_heard = self.host.clock()
        if delivery.base > source.received + 1:
            # We are a new incarnation and began with an old message, from before the sender heard
            # that the one before us had taken more.
            source.received = delivery.base - 1
            if not source.untaken:
                source.taken = source.received
        self.replies.acknowledged(source, delivery.received)

    def _gap(self, source: Source, sequence: int) -> None:
        """Something before `sequence` is missing: say so, once."""
        if source.gap_told != source.received + 1:
            source.gap_told = source.received + 1
            self.num_gaps += 1
            self.replies.send(source, Kind.ACK, sequence)

    def _skip(self, source: Source, sequence: int) -> None:
        if sequence == source.received + 1:
            source.received = sequence
            if source.untaken:
                source.untaken.append(sequence)
            else:
                source.taken = sequence
        elif sequence > source.received:
            self._gap(source, sequence)
            return
        else:
            for entry in source.untaken:
                if isinstance(entry, Entry) and entry.header.sequence == sequence:
                    entry.skipped = True
                    entry.frames = ()
            self._arrived()
        self._tell_soon(source)

    # ---- taking --------------------------------------------------------------------------

    def head(self) -> Entry | None:
        """The oldest message that is not taken and not given up by its sender."""
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
        assert taken is entry, "only the head can be taken"
        self.num_taken += 1
        if entry.is_ask and entry.deadline > entry.source.busy_until:
            entry.source.busy_until = entry.deadline
        self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        source = entry.source
        source.leave(entry.header.sequence)
        if not entry.is_ask or source.num_untold * 4 >= self.host.limits.window_messages:
            self._tell_soon(source)
        elif source.num_untold == 1:
            # The answer will tell; this is for the case that it takes long.
            self._to_tell[source.route] = source
            due = self.host.clock() + ACK_DELAY_S
            if due < self.due:
                self.due = due
                self.host.wake(due)
        if self.paused and len(self.entries) * 2 <= self.host.limits.inbox_messages_max:
            self.paused = False
            self.host.transport.pause(False)  # noqa: FBT003

    def _tell_soon(self, source: Source) -> None:
        if not self._to_tell or source.route not in self._to_tell:
            self._to_tell[source.route] = source
        source.num_untold = max(1, source.num_untold)
        self.host.flush_soon()

    def flush(self) -> None:
        """Acknowledge what was taken."""
        links, self._to_tell = self._to_tell, {}
        for source in links.values():
            if source.num_untold:
                self.replies.send(source, Kind.ACK, 0)

    # ---- answering -----------------------------------------------------------------------

    def can_answer(self, entry: Entry) -> bool:
        """Whether the asker still waits for an answer to this."""
        return (
            entry.open
            and self.sources.get(entry.source.route) is entry.source
            and entry.deadline > self.host.clock()
        )

    def send_released(self, route: bytes, body: bytes) -> None:
        """Give back shared memory that came with messages of this link."""
        source = self.sources.get(route)
        if source is not None:
            self.replies.send(source, Kind.RELEASE, 0, (body,))

    def tick(self, now: float) -> None:
        """Send acknowledgements that are due."""
        del now
        self.due = float("inf")
        self.flush()
