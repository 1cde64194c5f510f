"""Messages to frames and back.

The body is a msgpack map of the message's fields. A `Bulk` in it, at any depth, becomes a map
{dtype, shape} with one of `data` (small: the bytes themselves), `frame` (index of the buffer
frame) or `segment` and `offset` (shared memory). Buffers are handed on as they are: nothing
large is copied on the way out or in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, TypeAlias

from msgspec import ValidationError, convert, to_builtins

from milepost.messages import registry
from milepost.messages.bulk import ITEM_BYTES, Bulk
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL
from milepost.messages.errors import ProtocolError
from milepost.messages.limits import BusLimits
from milepost.messages.msgpacking import pack, unpack
from milepost.messages.shared import Message
from milepost.messages.structure import check_structure
from milepost.messages.upgrades import UPGRADES, Upgrade, upgrade

Buffer: TypeAlias = bytes | memoryview
Opener: TypeAlias = Callable[[str, int, int], memoryview]
"""(segment name, offset, number of bytes) -> the bytes, mapped."""

_RAW: Final = (bytes, bytearray, memoryview)
"""Types that `to_builtins` and `convert` leave alone."""


class UnknownType(ProtocolError):
    """The peer speaks of a message type that this side does not have."""


@dataclass(slots=True)
class Encoded:
    """One message as bytes, without its header."""

    type: str
    body: bytes
    buffers: list[memoryview] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies in shared memory."""

    segment: str
    offset: int


class Codec:
    """Encodes and decodes every registered message type. Checks itself when built.

    Raises:
        RuntimeError: a message does not survive the way out and back.
    """

    def __init__(
        self, limits: BusLimits | None = None, upgrades: tuple[Upgrade, ...] = UPGRADES
    ) -> None:
        self.limits = limits or BusLimits()
        self._upgrades = upgrades
        sample = NotUnderstood(type="t", major=1, minor=0, reason="checks the codec")
        encoded = self.encode(sample)
        back = self.decode(encoded.type, encoded.body, encoded.buffers)
        if back != sample:
            raise RuntimeError(f"codec check: sent {sample}, got back {back}")

    def bulk_of(self, message: Message) -> list[Bulk]:
        """Every `Bulk` of the message that is too large for the body, in order."""
        if not registry.of(message).has_bulk:
            return []
        found: list[Bulk] = []
        inline_max = self.limits.inline_bytes_max

        def note(value: Any) -> None:
            if isinstance(value, Bulk) and value.nbytes > inline_max:
                found.append(value)

        to_builtins(message, builtin_types=_RAW, enc_hook=note)
        return found

    def encode(self, message: Message, places: Sequence[Place] = ()) -> Encoded:
        """Body and buffers of a message.

        Args:
            message: of a registered type.
            places: where each of `bulk_of(message)` lies; empty to send them as frames.

        Raises:
            TypeError: an unregistered type, or a value that cannot travel.
            ValueError: more frames or bytes than the receiver would accept.
        """
        known = registry.of(message)
        buffers: list[memoryview] = []
        remaining = iter(places)
        inline_max = self.limits.inline_bytes_max

        def replace(value: Any) -> dict[str, Any]:
            if not isinstance(value, Bulk):
                raise TypeError(f"it holds a {type(value).__name__}")
            place: dict[str, Any] = {"dtype": value.dtype, "shape": value.shape}
            if value.nbytes <= inline_max:
                place["data"] = bytes(value.data)
            elif places:
                spot = next(remaining)
                place["segment"] = spot.segment
                place["offset"] = spot.offset
            else:
                place["frame"] = len(buffers)
                buffers.append(value.data)
            return place

        hook = replace if known.has_bulk else None
        try:
            body = pack(to_builtins(message, builtin_types=_RAW, enc_hook=hook))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"{known.name} cannot travel: {error}") from error
        self._check_sizes(known.name, body, buffers)
        return Encoded(known.name, body, buffers)

    def decode(
        self,
        type_name: str,
        body: bytes,
        buffers: Sequence[Buffer] = (),
        *,
        version: tuple[int, int] = PROTOCOL,
        opener: Opener | None = None,
    ) -> Message:
        """The message of these bytes. Buffers stay where they are: the message refers to them.

        Raises:
            UnknownType: no such message type here.
            ProtocolError: anything else that is wrong, with the path of the field.
        """
        known = registry.find(type_name)
        if known is None:
            nearest = registry.nearest(type_name)
            hint = f", nearest is {nearest}" if nearest else ""
            raise UnknownType(f"unknown message type {type_name!r}{hint}")
        limits = self.limits
        if len(buffers) + 2 > limits.frames_max:
            raise ProtocolError(f"{len(buffers) + 2} frames, the limit is {limits.frames_max}")
        check_structure(
            body,
            bytes_max=limits.body_bytes_max,
            depth_max=limits.depth_max,
            items_max=limits.items_max,
        )
        try:
            fields = unpack(body, ext_hook=_refuse_extension)
            if version < PROTOCOL and self._upgrades:
                fields = upgrade(type_name, fields, version, self._upgrades)
            hook = _Bulks(buffers, opener) if known.has_bulk else None
            return convert(fields, known.type, builtin_types=_RAW, dec_hook=hook)
        except ProtocolError:
            raise
        except ValidationError as error:
            raise ProtocolError(f"{type_name}: {error}") from error
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise ProtocolError(f"{type_name} cannot be read: {error}") from error

    def _check_sizes(self, name: str, body: bytes, buffers: Sequence[memoryview]) -> None:
        limits = self.limits
        if len(body) > limits.body_bytes_max:
            raise ValueError(
                f"{name}: body of {len(body)} bytes, system.bus.body_bytes_max is "
                f"{limits.body_bytes_max}; arrays belong into Bulk"
            )
        if len(buffers) + 2 > limits.frames_max:
            raise ValueError(
                f"{name}: {len(buffers) + 2} frames, system.bus.frames_max is {limits.frames_max}"
            )
        for buffer in buffers:
            if buffer.nbytes > limits.frame_bytes_max:
                raise ValueError(
                    f"{name}: a buffer of {buffer.nbytes} bytes, "
                    f"system.bus.frame_bytes_max is {limits.frame_bytes_max}"
                )


def _refuse_extension(code: int, data: bytes) -> None:
    raise ProtocolError(f"extension type {code} ({len(data)} bytes) is not part of the protocol")


class _Bulks:
    """Turns {dtype, shape, ...} back into `Bulk` (the `dec_hook` of one message)."""

    __slots__ = ("_buffers", "_opener")

    def __init__(self, buffers: Sequence[Buffer], opener: Opener | None) -> None:
        self._buffers = buffers
        self._opener = opener

    def __call__(self, kind: type, value: Any) -> Bulk:
        if kind is not Bulk:
            raise TypeError(f"no way to read a {kind.__name__}")
        if not isinstance(value, dict):
            raise TypeError(f"expected a bulk map, got {type(value).__name__}")
        dtype = value.get("dtype")
        shape = value.get("shape")
        if dtype not in ITEM_BYTES:
            raise ValueError(f"unknown bulk dtype {dtype!r}")
        if not isinstance(shape, list) or len(shape) > 8:
            raise ValueError(f"bulk shape must be an array of at most 8 sizes, got {shape!r:.80}")
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"bulk shape has a size that is no count: {shape!r:.80}")
        return Bulk(dtype, tuple(shape), self._bytes(value, prod(shape) * ITEM_BYTES[dtype]))

    def _bytes(self, value: dict[str, Any], nbytes: int) -> Buffer:
        if "data" in value:
            data = value["data"]
            if not isinstance(data, bytes):
                raise TypeError(f"bulk data must be binary, got {type(data).__name__}")
            return data
        if "frame" in value:
            frame = value["frame"]
            if type(frame) is not int or not 0 <= frame < len(self._buffers):
                raise ValueError(f"bulk frame {frame!r:.80} of {len(self._buffers)}")
            return self._buffers[frame]
        segment, offset = value.get("segment"), value.get("offset")
        if not isinstance(segment, str) or type(offset) is not int or offset < 0:
            raise ValueError("bulk has neither data, nor frame, nor segment and offset")
        if self._opener is None:
            raise ValueError("bulk lies in shared memory, which this link does not use")
        return self._opener(segment, offset, nbytes)
