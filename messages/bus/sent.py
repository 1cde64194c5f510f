"""One message of ours on its way, and what is said of it when it does not get there."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Any

from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.transport import Frames
from milepost.messages.errors import Unanswered, Undelivered
from milepost.messages.layout import Encoded


class Sent:
    """A tell or an ask: waiting -> sent (has a sequence number) -> taken -> answered."""

    __slots__ = (
        "cause",
        "created",
        "deadline",
        "encoded",
        "frames",
        "future",
        "id",
        "is_ask",
        "kind",
        "num_bytes",
        "sent_at",
        "sequence",
        "settle",
        "start",
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
        self.is_ask = kind is Kind.ASK
        self.id = message_id
        self.cause = cause
        self.type = type_name
        self.future = future
        self.created = created
        self.deadline = deadline
        self.encoded: Encoded | None = None
        """None until it is packed; nothing behind it is sent before."""
        self.start: Callable[[], None] | None = None
        """Begins to pack it on another thread, when there is room for it in the window."""
        self.num_bytes = 0
        self.frames: Frames = ()
        self.sequence = 0
        self.sent_at = 0.0
        self.settle: Callable[[bool], None] | None = None
        """Called once with whether the peer took it, if it lies in shared memory."""

    def is_over(self, now: float) -> bool:
        """Whether nobody waits for it any more."""
        return self.deadline <= now or self.future.cancelled()

    def fail(self, peer: str, reason: str, *, no_room: bool = False) -> None:
        """Tell whoever waits."""
        if not self.future.done():
            error = Unanswered if self.is_ask else Undelivered
            self.future.set_exception(error(peer, f"{self.type} {reason}", no_room=no_room))

    def state(self, first_untaken: int, received: int, num_untaken: int) -> str:
        """What is known of it, to be followed by a time.

        Args:
            first_untaken: lowest number that the peer has not taken.
            received: all up to this number have arrived at the peer.
            num_untaken: messages that the peer has not taken.
        """
        if self.sequence == 0:
            return f"found no room ({num_untaken} sent and not taken)"
        if self.sequence < first_untaken:
            return "was taken but not answered"
        return "arrived but was not taken" if self.sequence <= received else "was not taken"

    def settled(self, *, taken: bool) -> None:
        """Its frames are not sent again."""
        self.frames = ()
        # `start` refers to this object: its buffers would stay until somebody looks for cycles.
        self.encoded = self.start = None
        if self.settle is not None:
            self.settle(taken)
            self.settle = None
