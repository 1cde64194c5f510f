"""What carries frames between processes: ZeroMQ, or memory in tests and the simulator.

A transport may lose, and it may repeat; in one direction of a link it does not reorder.
Everything else (once, in order, acknowledged, bounded) is made above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Frames: TypeAlias = Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Events:
    """What a transport reports, on the event loop's thread."""

    arrived: Callable[[bytes, Frames], None]
    """(route, frames): at our mailbox. `route` leads back to the link it came from."""
    returned: Callable[[str, Frames], None]
    """(peer, frames): on our link to this peer."""
    connection: Callable[[str, str], None]
    """(peer, problem): our link to this peer connected (no problem) or lost its connection."""


class Transport(Protocol):
    """One mailbox and the links that go out. All calls are made on the event loop's thread."""

    async def open(self, events: Events) -> None:
        """Bind the mailbox and begin to report.

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
        """Whether what goes to this peer's mailbox stays on this host."""
        ...

    def send(self, peer: str, frames: Frames) -> bool:
        """Send to this peer's mailbox; False when there is no room (the frames are lost).

        Raises:
            AddressError: the link cannot be made (keys missing).
        """
        ...

    def send_back(self, route: bytes, frames: Frames) -> bool:
        """Send to the link that `route` leads to; False when it is gone or full."""
        ...

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Stop or go on reading the mailbox; while stopped, senders fill up and slow down."""
        ...

    @property
    def num_oversized(self) -> int:
        """Messages dropped because they had too many frames."""
        ...

    @property
    def num_strangers(self) -> int:
        """Connections to our mailbox that did not prove a key of the run, or have not yet."""
        ...

    async def close(self, linger_s: float, gone: Collection[str] = ()) -> None:
        """Hand out what was sent, for at most `linger_s`, and free every socket and file.

        What was sent to the peers in `gone` is dropped at once.
        """
        ...
