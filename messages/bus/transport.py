"""What carries frames between processes: ZeroMQ, or memory in tests and the simulator.

A transport may lose, and it may repeat; per direction of a link it never reorders. Everything
else (once, in order, acknowledged) is made above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Frames: TypeAlias = Sequence[bytes | memoryview]

OnMailbox: TypeAlias = Callable[[bytes, Frames], None]
"""(route, frames): something arrived at our mailbox; `route` leads back to the sender's link."""
OnLink: TypeAlias = Callable[[str, Frames], None]
"""(peer, frames): something came back on our link to this peer's mailbox."""


class Transport(Protocol):
    """One mailbox and the links that go out. All calls are made on the event loop's thread."""

    async def open(self, on_mailbox: OnMailbox, on_link: OnLink) -> None:
        """Bind the mailbox and begin to deliver.

        Raises:
            AddressError: it cannot be bound.
        """
        ...

    def knows(self, peer: str) -> bool:
        """Whether this peer has an address."""
        ...

    def names(self) -> Sequence[str]:
        """All peers that have an address."""
        ...

    def is_local(self, peer: str) -> bool:
        """Whether this peer runs on this host and can map our shared memory."""
        ...

    def send(self, peer: str, frames: Frames) -> bool:
        """Send to this peer's mailbox; False when there is no room (the frames are lost)."""
        ...

    def send_back(self, route: bytes, frames: Frames) -> bool:
        """Send to the link that `route` leads to; False when it is gone or full."""
        ...

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Stop or go on reading the mailbox; while stopped, senders fill up and slow down."""
        ...

    async def close(self, linger_s: float) -> None:
        """Hand out what was sent, for at most `linger_s`, and free every socket and file."""
        ...
