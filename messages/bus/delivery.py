"""The delivery frame: what two ends of one link tell each other about their two streams.

It stands before the header, as routing does, and alone where there is no message. One msgpack
array [kind, incarnation, base, received, taken, argument].
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final

import msgpack
from msgspec import Meta, Struct, ValidationError, convert

from milepost.messages.errors import ProtocolError

DELIVERY_BYTES_MAX: Final = 64


class Kind(IntEnum):
    """What a transmission is for."""

    TELL = 0
    ASK = 1
    REPLY = 2
    """Answers the ask that the header's cause names."""
    REFUSED = 3
    """The message that the header's cause names cannot be read here; the body says why."""
    ACK = 4
    PROBE = 5
    """Where do you stand? Answered with `ACK`."""
    SKIP = 6
    """The message at `argument` is given up: it counts as taken."""
    RELEASE = 7
    """The frame after this one names shared memory that is not read any more."""


class Delivery(Struct, frozen=True, array_like=True):
    """The state of one end of a link, sent with everything."""

    kind: Kind
    incarnation: Annotated[int, Meta(ge=0)]
    """Of the side that sends this frame."""
    base: Annotated[int, Meta(ge=0)]
    """Lowest sequence number that the sender may still send again; lower ones never come."""
    received: Annotated[int, Meta(ge=0)]
    """All up to this number have arrived from the other side."""
    taken: Annotated[int, Meta(ge=0)]
    """All up to this number were handed to the actor of this side (or skipped)."""
    argument: Annotated[int, Meta(ge=0)] = 0
    """ASK: milliseconds until the asker gives up. SKIP: the sequence number. PROBE: last number
    sent. ACK: of those up to this number, what is not in `received` was lost."""


_packer = msgpack.Packer()


def pack_delivery(
    kind: int, incarnation: int, base: int, received: int, taken: int, argument: int
) -> bytes:
    """The frame; on the event loop's thread only."""
    return _packer.pack(  # type: ignore[no-any-return]
        (kind, incarnation, base, received, taken, argument)
    )


def unpack_delivery(frame: bytes) -> Delivery:
    """Read a delivery frame.

    Raises:
        ProtocolError: it is none.
    """
    if len(frame) > DELIVERY_BYTES_MAX:
        raise ProtocolError(f"delivery frame of {len(frame)} bytes, limit {DELIVERY_BYTES_MAX}")
    try:
        fields: Any = msgpack.unpackb(frame)
        return convert(fields, Delivery)
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"delivery frame cannot be read: {error}") from error
