"""The header frame: which message this is, of whom, in answer to what.

One msgpack array, fields in this order; see docs/protocol.md. A later minor version may append
elements, so longer arrays are read and the rest is ignored.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.msgpack import Decoder

from milepost.messages.errors import ProtocolError
from milepost.messages.msgpacking import pack

PROTOCOL: Final = (1, 0)
"""Major and minor version of everything in `milepost.messages`; the rules are in protocol.md."""

HEADER_BYTES_MAX: Final = 1024

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Number: TypeAlias = Annotated[int, Meta(ge=0)]


class Header(Struct, frozen=True, array_like=True):
    """Frame 0 of every message."""

    major: Number
    minor: Number
    type: Name
    """Name of the message class."""
    id: Number
    """Unique in the run."""
    cause: Number
    """Id of the message that led to this one; of the question, in an answer; 0 for none."""
    source: Name
    """Name of the sending actor."""
    incarnation: Number
    """How often the sender had been restarted."""
    sequence: Number
    """Position in the stream from this sender to this receiver, from 1."""
    run_id: Annotated[str, Meta(max_length=128)]
    sent_ns: Number
    """Wall clock of the sender, nanoseconds since 1970."""


def pack_header(header: Header) -> bytes:
    """The frame of this header."""
    return pack(
        (
            header.major,
            header.minor,
            header.type,
            header.id,
            header.cause,
            header.source,
            header.incarnation,
            header.sequence,
            header.run_id,
            header.sent_ns,
        )
    )


_read: Final = Decoder(Header).decode


def unpack_header(frame: bytes | memoryview) -> Header:
    """Read a header frame.

    Raises:
        ProtocolError: not a header of any version.
    """
    if len(frame) > HEADER_BYTES_MAX:
        raise ProtocolError(f"header of {len(frame)} bytes, the limit is {HEADER_BYTES_MAX}")
    try:
        return _read(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"header cannot be read: {error}") from error
