"""What every part of one bus shares: who we are, the clock, ids, and the event loop's services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from time import time_ns

from xxhash import xxh3_64_intdigest

from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.transport import Frames, Transport
from milepost.messages.envelope import PROTOCOL
from milepost.messages.layout import Encoded
from milepost.messages.limits import BusLimits
from milepost.messages.msgpacking import packer

ACK_DELAY_S = 0.05
"""How long an acknowledgement waits for something to ride on, where nobody waits for it."""

_pack = packer()


@dataclass(slots=True)
class Host:
    """One bus, as its links and its mailbox see it."""

    name: str
    incarnation: int
    run_id: str
    limits: BusLimits
    transport: Transport
    clock: Callable[[], float]
    """Monotonic seconds: the event loop's time."""
    wake: Callable[[float], None]
    """Have everything that is due looked at, at this time or earlier."""
    flush_soon: Callable[[], None]
    """Have the mailbox send its acknowledgements in the loop's next turn."""
    released: Callable[[list[int]], None]
    """The peer does not read the shared memory of these messages of ours any more."""
    peer_restarted: Callable[[str], None]
    """A new incarnation of this peer was heard."""
    copy: Callable[[str, str, Kind, Frames, bool], None] | None = None
    """(peer, type, kind, frames from the header on, outgoing): set while somebody taps this bus."""
    last_id: int = 0
    """Of the last message of ours."""
    last_digest: int = 0
    """xxh3-64 of its body; 0 when that is not what travels, or not packed yet."""
    _ids: count[int] = field(init=False)

    def __post_init__(self) -> None:
        """Give this incarnation 2^40 message ids that no other one of the run has."""
        key = f"{self.run_id}/{self.name}/{self.incarnation}".encode()
        prefix = int.from_bytes(blake2b(key, digest_size=4).digest(), "big") >> 9
        self._ids = count((prefix << 40) + 1)

    def new_id(self, encoded: Encoded | None) -> int:
        """The id of a new message, which travels like this; None: that is not known yet."""
        self.last_id = next(self._ids)
        self.last_digest = xxh3_64_intdigest(encoded.body) if encoded is not None else 0
        return self.last_id

    def header(self, type_name: str, message_id: int, cause: int, sequence: int) -> bytes:
        """The header frame of one message of ours; on the event loop's thread only."""
        return _pack(
            (
                *PROTOCOL,
                type_name,
                message_id,
                cause,
                self.name,
                self.incarnation,
                sequence,
                self.run_id,
                time_ns(),
            )
        )
