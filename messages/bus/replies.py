"""Our answers on their way: kept until the asker has them or has given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from milepost.messages.bus.delivery import Kind, pack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.source import Entry, Reply, Source
from milepost.messages.bus.transport import Frames
from milepost.messages.layout import Encoded

RESEND_AFTER_S: Final = 0.2
"""A routine probe does not repeat younger answers: they are probably on their way."""


class Replies:
    """Everything that goes back from a mailbox along the links that lead to it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.owing: dict[bytes, Source] = {}
        """Links with answers that their asker has not acknowledged, by route."""
        self.due = float("inf")
        """When `tick` has something to do."""
        self.num_retries = 0
        self.num_unroutable = 0

    def send(self, source: Source, kind: Kind, argument: int, frames: Frames = ()) -> None:
        """Send anything back, with where we stand on this link."""
        source.num_untold = 0
        replies = source.replies
        delivery = pack_delivery(
            kind,
            self.host.incarnation,
            replies[0].sequence if replies else source.reply_sequence,
            source.reply_sequence - 1,
            source.received,
            source.taken,
            argument,
        )
        source.is_gone = not self.host.transport.send_back(source.route, (delivery, *frames))
        self.num_unroutable += source.is_gone

    def reply(
        self,
        entry: Entry,
        kind: Kind,
        message_id: int,
        encoded: Encoded,
        settle: Callable[[bool], None] | None = None,
    ) -> None:
        """Answer (or refuse) this message. `settle` hears once whether the asker has it."""
        source = entry.source
        sequence = source.reply_sequence
        source.reply_sequence += 1
        header = self.host.header(encoded.type, message_id, entry.header.id, sequence)
        frames: Frames = (header, *encoded.frames())
        if self.host.copy is not None:
            self.host.copy(source.name, encoded.type, kind, frames, True)  # noqa: FBT003
        reply = Reply(kind, sequence, frames, entry.deadline, settle)
        source.replies.append(reply)
        self.owing[source.route] = source
        self._put(source, reply)
        if reply.deadline < self.due:
            self.due = reply.deadline
            self.host.wake(self.due)

    def _put(self, source: Source, reply: Reply) -> None:
        reply.sent_at = self.host.clock()
        argument = reply.sequence if reply.kind is Kind.SKIP else 0
        self.send(source, reply.kind, argument, reply.frames)

    def acknowledged(self, source: Source, received: int) -> None:
        """The asker has every answer up to this number."""
        replies = source.replies
        if not replies or replies[0].sequence > received:
            return
        while replies and replies[0].sequence <= received:
            replies.popleft().settled(taken=True)
        if not replies:
            self.owing.pop(source.route, None)

    def repeat(self, source: Source, *, missing: bool) -> None:
        """Send again what is not acknowledged; if nothing is known to miss, only what is old."""
        before = self.host.clock() - (0.0 if missing else RESEND_AFTER_S)
        for reply in source.replies:
            if reply.sent_at <= before:
                self.num_retries += 1
                self._put(source, reply)

    def tick(self, now: float) -> None:
        """Give up answers whose asker has."""
        self.due = float("inf")
        due = self.due
        for source in list(self.owing.values()):
            for reply in source.replies:
                if reply.kind is not Kind.SKIP and reply.deadline <= now:
                    reply.kind = Kind.SKIP
                    reply.settled(taken=False)
                    self._put(source, reply)
            waiting = [one.deadline for one in source.replies if one.kind is not Kind.SKIP]
            due = min(due, *waiting, float("inf"))
            if not waiting:
                self.drop(source)
        if due != float("inf"):
            self.due = due
            self.host.wake(due)

    @property
    def unsettled(self) -> bool:
        """Whether answers are on their way to somebody who is still there."""
        return any(not source.is_gone for source in self.owing.values())

    def remind(self) -> None:
        """Send every answer once more: who is gone is noticed by that."""
        for source in self.owing.values():
            self.repeat(source, missing=True)

    def drop(self, source: Source) -> None:
        """Nobody waits for answers on this link any more."""
        for reply in source.replies:
            reply.settled(taken=False)
        source.replies.clear()
        self.owing.pop(source.route, None)
