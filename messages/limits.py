"""What a bus accepts, all applied before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BusLimits:
    """Sizes, counts and times of one bus. The first eight are `[system.bus]` of a topology."""

    frame_bytes_max: int = 1 << 30
    """A peer that announces a larger frame is disconnected before the frame is read."""
    frames_max: int = 4096
    """Frames of one message, header and body included."""
    body_bytes_max: int = 16 << 20
    depth_max: int = 32
    """Nesting of arrays and maps in a body."""
    window_messages: int = 256
    """Messages of one link sent and not yet taken by the receiver."""
    inbox_messages_max: int = 4096
    """Messages received and not yet taken, of all links; above it the socket is not read."""
    shared_memory_above_bytes: int = 1 << 20
    """Bulk of one message beyond this goes through shared memory to a peer on this host."""
    allocated_bytes_max: int = 8 << 30
    """Shared memory of one process that payloads are made in; beyond it they are made elsewhere."""
    window_bytes: int = 1 << 30
    """Bytes of one link sent and not yet taken. One message may always go, however large."""
    items_max: int = 1 << 20
    """Values in one body: bounds the memory that a small body can grow to when decoded."""
    inline_bytes_max: int = 1024
    """Bulk up to this size lies in the body; a frame of its own would cost more."""
    outbox_messages_max: int = 16384
    """Messages of one link that wait for room in its window."""
    links_max: int = 8192
    """Senders whose place in the stream this mailbox remembers."""
    probe_s: float = 1.0
    """Silence after which a peer that owes something is asked where it stands."""
    lease_s: float = 600.0
    """Shared memory that nobody gave back in this time is unlinked and never used again."""

    def __post_init__(self) -> None:
        """Every limit is a positive number."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"bus limit {name} = {value}, it must be positive")
