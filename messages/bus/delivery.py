"""The delivery frame: what the two ends of one link tell each other about its two streams.

It stands before the header, as routing does, and alone where there is no message. One msgpack
array [kind, incarnation, base, last, received, taken, argument].
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.msgpack import Decoder

from milepost.messages.errors import ProtocolError
from milepost.messages.msgpacking import pack, packer, unpack

DELIVERY_BYTES_MAX: Final = 64
RELEASED_MAX: Final = 4096
"""Message ids in one RELEASE."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Kind(IntEnum):
    """What a transmission is for."""

    TELL = 0
    """A message that wants no answer."""
    ASK = 1
    """A question."""
    REPLY = 2
    """Answers the question that the header's cause names."""
    REFUSED = 3
    """The message that the header's cause names cannot be read here; the body says why."""
    ACK = 4
    """Says where its side stands, nothing else."""
    PROBE = 5
    """Where do you stand? Answered with ACK, and with answers that did not arrive."""
    SKIP = 6
    """The message `argument` of this stream is given up: it counts as taken."""
    RELEASE = 7
    """The frame after this one lists message ids whose shared memory is not read any more."""


class Delivery(Struct, frozen=True, array_like=True):
    """Where one end of a link stands, sent with everything."""

    kind: Kind
    incarnation: Count
    """Of the side that sends this frame."""
    base: Count
    """Lowest sequence number that its sender may send again; what is below never comes."""
    last: Count
    """Highest sequence number it has sent."""
    received: Count
    """All up to this number have arrived from the other side."""
    taken: Count
    """All up to this number were handed to the actor of this side, or skipped."""
    argument: Count = 0
    """ASK: milliseconds until the asker gives up. SKIP: the sequence number. PROBE: 1 when an
    answer is missing. ACK: what is up to this number and not in `received` was lost."""


_pack = packer()
_read: Final = Decoder(Delivery).decode
"""Types and bytes in one go: a quarter of the time of reading first and converting then."""


def pack_delivery(
    kind: int,
    incarnation: int,
    base: int,
    last: int,
    received: int,
    taken: int,
    argument: int,
) -> bytes:
    """The frame; on the event loop's thread only."""
    return _pack((kind, incarnation, base, last, received, taken, argument))


def unpack_delivery(frame: bytes | memoryview) -> Delivery:
    """Read a delivery frame.

    Raises:
        ProtocolError: it is none.
    """
    if len(frame) > DELIVERY_BYTES_MAX:
        raise ProtocolError(f"delivery frame of {len(frame)} bytes, limit {DELIVERY_BYTES_MAX}")
    try:
        return _read(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"delivery frame cannot be read: {error}") from error


def pack_released(message_ids: list[int]) -> bytes:
    """The second frame of RELEASE."""
    return pack(message_ids)


def unpack_released(frame: bytes | memoryview) -> list[int]:
    """Read the second frame of RELEASE.

    Raises:
        ProtocolError: it is no short list of ids.
    """
    if len(frame) > 9 * RELEASED_MAX + 3:
        raise ProtocolError(f"release of {len(frame)} bytes")
    try:
        return convert(unpack(frame), list[int])
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"release cannot be read: {error}") from error
