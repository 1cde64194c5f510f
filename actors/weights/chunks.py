"""One chunk of a tensor as the difference to its old bytes: what lies in a `chunks` payload.

A tensor is cut into chunks of at most `CHUNK_BYTES`; each has the encoding that its measured
density asks for, so that memory stays bounded, positions stay small at any size of tensor, and a
tensor that changed only in places costs only these places. A chunk's record is

    kind (1 byte), number of parts (1 byte), length of each part (4 bytes each), the parts

with numbers little-endian and each part one zstd frame. With `w` the bytes of one element:

    SAME     no parts.
    SPARSE   the xor of old and new as 8-byte words (zeros after the end of the tensor). Part 0: one
             bit a word, most significant first, set where the word is not zero. Part 1: the same
             for the elements of those words. Parts 2 to 1 + w: byte 0 to byte w - 1 of the elements
             that are set in part 1.
    PLANES   parts 0 to w - 1: byte 0 to byte w - 1 of the xor of every element.
    STORED   one part, which is no frame: the new bytes.

Neighbouring weights of one tensor change alike in their low bytes and hardly ever in their high
ones; apart, in planes, the latter cost next to nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import zstandard

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES: Final = 1 << 20
"""A multiple of 8, so that only a tensor's last chunk ends within a word."""
SPARSE_BELOW: Final = 0.6
"""Share of words that changed up to which `SPARSE` is smaller and not slower than `PLANES`."""
_WORD: Final = 8
_HEAD: Final = 2
_LENGTH: Final = 4


class Kind(IntEnum):
    """How one chunk is written; see the module."""

    SAME = 0
    SPARSE = 1
    PLANES = 2
    STORED = 3


class PayloadError(ValueError):
    """Bytes that no encoder writes; the text says where."""


class Record(NamedTuple):
    """One encoded chunk."""

    kind: Kind
    parts: list[bytes]
    num_changed: int
    """Bytes that differ."""

    @property
    def nbytes(self) -> int:
        """Of the record."""
        return _HEAD + sum(_LENGTH + len(part) for part in self.parts)

    def write_to(self, out: bytearray) -> None:
        """Append the record."""
        out += bytes((self.kind, len(self.parts)))
        for part in self.parts:
            out += len(part).to_bytes(_LENGTH, "little")
        for part in self.parts:
            out += part


def plane_compressor() -> zstandard.ZstdCompressor:
    """Tuned to planes of differences: hardly any repeats, so nearly all is entropy coding.

    A hash table of 64 entries finds runs and little else. That is half again as fast as level 1 on
    such bytes, and no larger; negative levels would leave out the entropy coding.
    """
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            window_log=17,
            hash_log=6,
            chain_log=6,
            search_log=1,
            min_match=7,
            target_length=0,
        )
    )


class ChunkEncoder:
    """Encodes chunks one after the other, in rooms of its own. Not for two threads at once."""

    def __init__(self) -> None:
        self._difference = np.empty(CHUNK_BYTES // _WORD, np.uint64)
        self._compressor = plane_compressor()

    def encode(self, old: NDArray[np.uint8], new: NDArray[np.uint8], itemsize: int) -> Record:
        """The record of one chunk.

        Args:
            old: uint8 [N], N at most `CHUNK_BYTES`.
            new: uint8 [N].
            itemsize: bytes of one element; 1, 2, 4 or 8.
        """
        words = self._xor(old, new)
        hit = words != 0
        num_hit = int(np.count_nonzero(hit))
        if num_hit == 0:
            return Record(Kind.SAME, [], 0)
        if num_hit <= SPARSE_BELOW * len(words):
            record = self._sparse(words, hit, itemsize)
        else:
            record = self._planes(words, len(new), itemsize)
        if record.nbytes < _HEAD + _LENGTH + len(new):
            return record
        return Record(Kind.STORED, [new.tobytes()], record.num_changed)

    def _xor(self, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> NDArray[np.uint64]:
        whole, rest = divmod(len(new), _WORD)
        words = self._difference[: whole + (rest > 0)]
        end = whole * _WORD
        np.bitwise_xor(old[:end].view(np.uint64), new[:end].view(np.uint64), out=words[:whole])
        if rest:
            tail = np.zeros(_WORD, np.uint8)
            np.bitwise_xor(old[end:], new[end:], out=tail[:rest])
            words[whole] = tail.view(np.uint64)[0]
        return words

    def _sparse(self, words: NDArray[np.uint64], hit: NDArray[np.bool_], itemsize: int) -> Record:
        # By positions: by a mask, numpy takes and puts three times as slowly.
        elements = words.take(np.flatnonzero(hit)).view(f"<u{itemsize}")
        changed = elements != 0
        planes = _split(elements.take(np.flatnonzero(changed)))
        parts = [np.packbits(hit), np.packbits(changed), *planes]
        num_changed = sum(int(np.count_nonzero(plane)) for plane in planes)
        return Record(
            Kind.SPARSE, [self._compressor.compress(part.data) for part in parts], num_changed
        )

    def _planes(self, words: NDArray[np.uint64], length: int, itemsize: int) -> Record:
        planes = _split(words.view(np.uint8)[:length].view(f"<u{itemsize}"))
        num_changed = sum(int(np.count_nonzero(plane)) for plane in planes)
        parts = [self._compressor.compress(plane.data) for plane in planes]
        return Record(Kind.PLANES, parts, num_changed)


class ChunkDecoder:
    """Turns old chunks into new ones, in place. Not for two threads at once."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()

    def apply(
        self, target: NDArray[np.uint8], kind: int, parts: list[memoryview], item: int
    ) -> None:
        """Turn the old bytes of one chunk into the new ones.

        Args:
            target: uint8 [N], holds the old bytes.
            kind: of the record.
            parts: of the record.
            item: bytes of one element.

        Raises:
            PayloadError: the record does not fit the chunk.
        """
        try:
            match kind:
                case Kind.SAME if not parts:
                    return
                case Kind.SPARSE if len(parts) == 2 + item:
                    self._sparse(target, parts, item)
                case Kind.PLANES if len(parts) == item:
                    planes = [self._bytes(part, len(target)) for part in parts]
                    elements = target.view(f"<u{item}")
                    np.bitwise_xor(elements, _joined(planes, len(elements)), out=elements)
                case Kind.STORED if len(parts) == 1 and parts[0].nbytes == len(target):
                    target[:] = np.frombuffer(parts[0], np.uint8)
                case _:
                    raise PayloadError(
                        f"a record of kind {kind} with {len(parts)} parts fits no chunk of "
                        f"{len(target)} bytes"
                    )
        except (zstandard.ZstdError, ValueError, IndexError) as error:
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"a record of kind {kind} is damaged: {error}") from error

    def _sparse(self, target: NDArray[np.uint8], parts: list[memoryview], item: int) -> None:
        num_words = -(-len(target) // _WORD)
        bits = self._bytes(parts[0], CHUNK_BYTES)
        places = np.flatnonzero(np.unpackbits(bits, count=num_words).view(np.bool_))
        elements = np.zeros(len(places) * (_WORD // item), f"<u{item}")
        inner = self._bytes(parts[1], CHUNK_BYTES)
        changed = np.flatnonzero(np.unpackbits(inner, count=len(elements)).view(np.bool_))
        planes = [self._bytes(part, len(elements)) for part in parts[2:]]
        elements[changed] = _joined(planes, len(changed))
        words = elements.view(np.uint64)
        whole = len(target) // _WORD
        end = int(np.searchsorted(places, whole))
        target[: whole * _WORD].view(np.uint64)[places[:end]] ^= words[:end]
        if end < len(places):
            rest = target[whole * _WORD :]
            rest ^= words[end:].view(np.uint8)[: len(rest)]

    def _bytes(self, part: memoryview, bytes_max: int) -> NDArray[np.uint8]:
        size = zstandard.frame_content_size(part)
        if not 0 <= size <= bytes_max:
            raise PayloadError(f"a part says it has {size} bytes, at most {bytes_max} fit")
        return np.frombuffer(self._decompressor.decompress(part), np.uint8)


def read_records(payload: memoryview, num_chunks: int) -> list[tuple[int, list[memoryview]]]:
    """Kind and parts of each chunk.

    Raises:
        PayloadError: there are more or fewer records, or one ends beyond the payload.
    """
    records: list[tuple[int, list[memoryview]]] = []
    at = 0
    while at < payload.nbytes:
        if at + _HEAD > payload.nbytes:
            raise PayloadError("the payload ends within a record")
        kind, num_parts = payload[at], payload[at + 1]
        at += _HEAD
        lengths: list[int] = []
        for _ in range(num_parts):
            lengths.append(int.from_bytes(payload[at : at + _LENGTH], "little"))
            at += _LENGTH
        parts: list[memoryview] = []
        for length in lengths:
            parts.append(payload[at : at + length])
            at += length
        records.append((kind, parts))
    if at != payload.nbytes or len(records) != num_chunks:
        raise PayloadError(
            f"the payload has {len(records)} records in {at} bytes, expected are {num_chunks} in "
            f"{payload.nbytes}"
        )
    return records


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """A buffer as uint8 [N], without a copy."""
    return np.frombuffer(buffer, np.uint8)


def _split(elements: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """Byte 0, byte 1, ... of little-endian elements. Shifts run on whole registers."""
    width = elements.dtype.itemsize
    lowest = elements.astype(np.uint8)
    return [lowest, *((elements >> 8 * byte).astype(np.uint8) for byte in range(1, width))]


def _joined(planes: list[NDArray[np.uint8]], count: int) -> NDArray[Any]:
    """What `_split` took apart.

    Raises:
        PayloadError: a plane has not `count` bytes.
    """
    if any(len(plane) != count for plane in planes):
        lengths = [len(plane) for plane in planes]
        raise PayloadError(f"planes of {lengths} bytes for {count} elements")
    elements = planes[-1].astype(f"<u{len(planes)}")
    for plane in reversed(planes[:-1]):
        elements <<= 8
        elements |= plane
    return elements
