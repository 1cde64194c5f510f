"""One sender's link as its receiver sees it, and what travels on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from milepost.messages.bus.delivery import Delivery, Kind
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import Header

ANSWER_S: Final = 3600.0
"""How long a refusal of a tell is kept for its sender, who gave no deadline for it."""


class Entry:
    """One message that arrived."""

    __slots__ = ("arrived", "deadline", "frames", "header", "is_ask", "open", "skipped", "source")

    def __init__(
        self, source: Source, header: Header, delivery: Delivery, frames: Frames, now: float
    ) -> None:
        self.source = source
        self.header = header
        self.is_ask = delivery.kind is Kind.ASK
        self.frames = frames
        """Body and buffers; empty once decoded."""
        self.arrived = now
        self.deadline = now + (delivery.argument / 1000 if self.is_ask else ANSWER_S)
        self.skipped = False
        """Its sender gave it up before it was taken."""
        self.open = True
        """Not answered."""


class Reply:
    """One answer of ours, kept until the asker has it or has given up."""

    __slots__ = ("deadline", "frames", "kind", "sent_at", "sequence", "settle")

    def __init__(
        self,
        kind: Kind,
        sequence: int,
        frames: Frames,
        deadline: float,
        settle: Callable[[bool], None] | None,
    ) -> None:
        self.kind = kind
        self.sequence = sequence
        self.frames = frames
        self.deadline = deadline
        self.sent_at = 0.0
        self.settle = settle
        """Called once with whether the asker has it, if it lies in shared memory."""

    def settled(self, *, taken: bool) -> None:
        """Its frames are not sent again."""
        self.frames = ()
        if self.settle is not None:
            self.settle(taken)
            self.settle = None


class Source:
    """The place of one link in both of its streams.

    The numbers `received` and `taken` are all the memory of duplicates there is; it never grows.
    """

    __slots__ = (
        "busy_until",
        "gap_told",
        "incarnation",
        "is_gone",
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

    def __init__(
        self, route: bytes, name: str, incarnation: int, base: int, replies_received: int
    ) -> None:
        self.route = route
        self.name = name
        self.incarnation = incarnation
        self.received = base - 1
        """Everything up to this number has arrived."""
        self.taken = base - 1
        self.untaken: deque[Entry | int] = deque()
        """In order of sequence; a bare number is a message that was skipped unseen."""
        self.num_untold = 0
        """Messages taken whose sender was not told yet."""
        self.replies: deque[Reply] = deque()
        self.reply_sequence = replies_received + 1
        self.gap_told = 0
        self.is_gone = False
        """What was sent back last found no connection any more."""
        self.last_heard = 0.0
        self.busy_until = 0.0
        """Somebody may still answer a question of it."""

    def leave(self, sequence: int) -> None:
        """The message at the head of `untaken` was taken or skipped."""
        untaken = self.untaken
        untaken.popleft()
        self.taken = sequence
        while untaken and isinstance(untaken[0], int):
            self.taken = untaken.popleft()  # type: ignore[assignment]
        if not untaken:
            self.taken = self.received
        self.num_untold += 1
