"""Where the arrays of a message lie: in its body, in frames, or in shared memory.

In a body, a `Bulk` is a map {dtype, shape} with one of

    data              the bytes themselves, when they are few
    frame, offset     index of a buffer frame, and where in it (0 when left out)
    segment, offset   name of a shared memory segment, and where in it

Large buffers have a frame each and are not copied; small ones share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

from milepost.messages.bulk import ITEM_BYTES, Bulk

Buffer: TypeAlias = bytes | memoryview
Opener: TypeAlias = Callable[[str, int, int], memoryview]
"""(segment name, offset, number of bytes) -> the bytes, mapped."""

DIMENSIONS_MAX: Final = 8
GATHER_BELOW_BYTES: Final = 1 << 16
"""Buffers below this share a frame: a socket would copy them anyway, and a frame costs more than
the copy."""
GATHERED_BYTES: Final = 1 << 20
"""Size at which such a frame is full."""
ALIGNMENT: Final = 16


class Encoded:
    """One message as bytes, without its header.

    Args:
        type_name: of the message.
        body: the packed fields.
        buffers: everything that is not in the body, in order.
        groups: how many of the buffers each frame holds.
    """

    __slots__ = ("body", "buffers", "groups", "type")

    def __init__(
        self,
        type_name: str,
        body: bytes,
        buffers: Sequence[memoryview] = (),
        groups: Sequence[int] = (),
    ) -> None:
        self.type = type_name
        self.body = body
        self.buffers = buffers
        self.groups = groups

    @property
    def num_bytes(self) -> int:
        """Size of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def frames(self) -> list[Buffer]:
        """Body and buffer frames. Small buffers are copied together, large ones are not copied."""
        frames: list[Buffer] = [self.body]
        if not self.groups:
            return frames
        position = 0
        for count in self.groups:
            group = self.buffers[position : position + count]
            position += count
            frames.append(group[0] if count == 1 else _gather(group))
        return frames


def _gather(buffers: Sequence[memoryview]) -> bytes:
    pieces: list[Buffer] = []
    for buffer in buffers:
        pieces.append(buffer)
        pieces.append(bytes(-buffer.nbytes % ALIGNMENT))
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies in shared memory."""

    segment: str
    offset: int


class Layout:
    """Gives each buffer of a message its place (the `enc_hook` of one message)."""

    __slots__ = ("_inline_max", "_places", "_room", "buffers", "groups")

    def __init__(self, inline_max: int, places: Sequence[Place]) -> None:
        self._inline_max = inline_max
        self._places = iter(places) if places else None
        self._room = 0
        self.buffers: list[memoryview] = []
        self.groups: list[int] = []

    def __call__(self, value: Any) -> dict[str, Any]:
        """What stands in the body for this value.

        Raises:
            TypeError: it is no `Bulk`.
        """
        if not isinstance(value, Bulk):
            raise TypeError(f"it holds a {type(value).__name__}")
        data = value.data
        place: dict[str, Any] = {"dtype": value.dtype, "shape": value.shape}
        if data.nbytes <= self._inline_max:
            place["data"] = bytes(data)
        elif self._places is not None:
            spot = next(self._places)
            place["segment"] = spot.segment
            place["offset"] = spot.offset
        else:
            self._add(data, place)
        return place

    def _add(self, data: memoryview, place: dict[str, Any]) -> None:
        self.buffers.append(data)
        size = data.nbytes + -data.nbytes % ALIGNMENT
        if data.nbytes >= GATHER_BELOW_BYTES:
            self.groups.append(1)
            self._room = 0
        elif size <= self._room:
            self.groups[-1] += 1
            place["offset"] = GATHERED_BYTES - self._room
            self._room -= size
        else:
            self.groups.append(1)
            self._room = GATHERED_BYTES - size
        place["frame"] = len(self.groups) - 1


class Placed:
    """Turns {dtype, shape, ...} back into `Bulk` (the `dec_hook` of one message)."""

    __slots__ = ("_buffers", "_opener")

    def __init__(self, buffers: Sequence[Buffer], opener: Opener | None) -> None:
        self._buffers = buffers
        self._opener = opener

    def __call__(self, kind: type, value: Any) -> Bulk:
        """The array that this map stands for.

        Raises:
            TypeError, ValueError, ProtocolError: the map is wrong, with what is.
        """
        if kind is not Bulk:
            raise TypeError(f"no way to read a {kind.__name__}")
        if not isinstance(value, dict):
            raise TypeError(f"expected a bulk map, got {type(value).__name__}")
        dtype = value.get("dtype")
        shape = value.get("shape")
        if dtype not in ITEM_BYTES:
            raise ValueError(f"unknown bulk dtype {dtype!r}")
        if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX:
            raise ValueError(
                f"bulk shape must be an array of at most {DIMENSIONS_MAX} sizes, got {shape!r:.80}"
            )
        for size in shape:
            if type(size) is not int or size < 0:
                raise ValueError(f"bulk shape has a size that is no count: {shape!r:.80}")
        if type(data := value.get("data")) is bytes:
            return Bulk(dtype, tuple(shape), data)
        return Bulk(dtype, tuple(shape), self._bytes(value, prod(shape) * ITEM_BYTES[dtype]))

    def _bytes(self, value: dict[str, Any], nbytes: int) -> Buffer:
        if "data" in value:
            data = value["data"]
            if not isinstance(data, bytes):
                raise TypeError(f"bulk data must be binary, got {type(data).__name__}")
            return data
        offset = value.get("offset", 0)
        if type(offset) is not int or offset < 0:
            raise ValueError(f"bulk offset {offset!r:.80}")
        if "frame" in value:
            return self._from_frame(value["frame"], offset, nbytes)
        segment = value.get("segment")
        if not isinstance(segment, str):
            raise ValueError("bulk has neither data, nor frame, nor segment")
        if self._opener is None:
            raise ValueError("bulk lies in shared memory, which this link does not use")
        return self._opener(segment, offset, nbytes)

    def _from_frame(self, frame: Any, offset: int, nbytes: int) -> Buffer:
        if type(frame) is not int or not 0 <= frame < len(self._buffers):
            raise ValueError(f"bulk frame {frame!r:.80} of {len(self._buffers)}")
        buffer = self._buffers[frame]
        if offset == 0 and len(buffer) == nbytes:
            return buffer
        return memoryview(buffer)[offset : offset + nbytes]
