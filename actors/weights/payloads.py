"""One tensor's payload, written to a file as it is made, and applied to old bytes in place.

Encodings:
    chunks      records of `chunks.py`, each as its own density asks for.
    xor         one zstd frame of new ^ old. Anybody's reader knows it.
    overwrite   one zstd frame of: number of changed bytes (u32, little-endian), their positions
                (u32 each), their new values. Applying it twice does no harm.
    overwrite64 the same with u64, for tensors of 4 GiB and more.
    full        the new bytes, plain.

Whatever was asked for, a payload that would not be smaller than the tensor is written as `full`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import zstandard

from milepost.actors.weights.checksums import new_checksum
from milepost.actors.weights.chunks import (
    CHUNK_BYTES,
    ChunkDecoder,
    ChunkEncoder,
    PayloadError,
    as_bytes,
    read_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Encoding: TypeAlias = Literal["chunks", "xor", "overwrite", "overwrite64", "full"]
ZSTD_LEVEL: Final = 1
_U32_BYTES: Final = 1 << 32


class Payload(NamedTuple):
    """What was written for one tensor.

    Attributes:
        encoding: how; empty when no byte changed and nothing was written.
        nbytes: written.
        num_changed: bytes of the tensor that differ.
        checksum: hex, of the full new bytes; empty when nothing changed.
    """

    encoding: Encoding | Literal[""]
    nbytes: int
    num_changed: int
    checksum: str


class PayloadWriter:
    """Encodes one tensor after the other into a file.

    Memory does not grow with the tensors: chunks are written as they are made, and what an
    overwrite needs twice is computed twice.

    Args:
        encoding: that is wanted; `full` where it would not be smaller.
        checksum: name of the checksum.
    """

    def __init__(self, encoding: Encoding, checksum: str) -> None:
        self._encoding: Encoding = encoding
        self._checksum = checksum
        self._chunks = ChunkEncoder()

    def write(
        self, sink: BinaryIO, old: NDArray[np.uint8], new: NDArray[np.uint8], itemsize: int
    ) -> Payload:
        """Append one tensor's payload at the sink's position.

        Args:
            sink: a seekable file.
            old: uint8 [N]; with no bytes at all, the tensor is written in full.
            new: uint8 [N].
            itemsize: bytes of one element.
        """
        start = sink.tell()
        if len(old) != len(new):
            assert not len(old), f"{len(old)} old bytes for {len(new)} new ones"
            return self._full(sink, start, new, len(new))
        if self._encoding == "chunks":
            num_changed, checksum = self._write_chunks(sink, start, old, new, itemsize)
            encoding: Encoding = "chunks"
        else:
            num_changed = sum(int(np.count_nonzero(diff)) for _, diff, _ in _differences(old, new))
            encoding = self._write_frame(sink, old, new, num_changed)
            checksum = self._checksum_of(new) if num_changed else ""
        if num_changed == 0:
            sink.seek(start)
            return Payload("", 0, 0, "")
        nbytes = sink.tell() - start
        if nbytes >= len(new):
            return self._full(sink, start, new, num_changed)
        return Payload(encoding, nbytes, num_changed, checksum)

    def _write_chunks(
        self,
        sink: BinaryIO,
        start: int,
        old: NDArray[np.uint8],
        new: NDArray[np.uint8],
        itemsize: int,
    ) -> tuple[int, str]:
        checksum = new_checksum(self._checksum)
        num_changed, out = 0, bytearray()
        for at in range(0, len(new), CHUNK_BYTES):
            piece = new[at : at + CHUNK_BYTES]
            record = self._chunks.encode(old[at : at + CHUNK_BYTES], piece, itemsize)
            # The chunk lies in the cache now: the checksum costs least here.
            checksum.update(piece.data)
            num_changed += record.num_changed
            record.write_to(out)
            if len(out) > CHUNK_BYTES:
                sink.write(out)
                out.clear()
                if sink.tell() - start >= len(new):
                    break  # it is `full` that will be written
        sink.write(out)
        return num_changed, checksum.hexdigest() if num_changed else ""

    def _write_frame(
        self, sink: BinaryIO, old: NDArray[np.uint8], new: NDArray[np.uint8], num_changed: int
    ) -> Encoding:
        if num_changed == 0:
            return self._encoding
        wide = self._encoding == "overwrite64" or len(new) >= _U32_BYTES
        dtype = np.dtype("<u8" if wide else "<u4")
        size = dtype.itemsize + num_changed * (dtype.itemsize + 1)
        as_xor = self._encoding == "xor" or size >= len(new)
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        stream = compressor.compressobj(size=len(new) if as_xor else size)
        if as_xor:
            differences = (difference for _, difference, _ in _differences(old, new))
            sink.writelines(stream.compress(difference.data) for difference in differences)
        else:
            sink.write(stream.compress(np.array([num_changed], dtype).data))
            for at, difference, _ in _differences(old, new):
                places = (np.flatnonzero(difference) + at).astype(dtype)
                sink.write(stream.compress(places.data))
            for _, difference, piece in _differences(old, new):
                sink.write(stream.compress(piece[difference != 0].data))
        sink.write(stream.flush())
        return "xor" if as_xor else "overwrite64" if wide else "overwrite"

    def _full(
        self, sink: BinaryIO, start: int, new: NDArray[np.uint8], num_changed: int
    ) -> Payload:
        sink.seek(start)
        sink.truncate()
        sink.write(new.data)
        return Payload("full", len(new), num_changed, self._checksum_of(new))

    def _checksum_of(self, new: NDArray[np.uint8]) -> str:
        checksum = new_checksum(self._checksum)
        checksum.update(new.data)
        return checksum.hexdigest()


def _differences(
    old: NDArray[np.uint8], new: NDArray[np.uint8]
) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Position, xor and new bytes, a chunk at a time."""
    for at in range(0, len(new), CHUNK_BYTES):
        piece = new[at : at + CHUNK_BYTES]
        yield at, old[at : at + CHUNK_BYTES] ^ piece, piece


class PayloadReader:
    """Applies payloads in place. Not for two threads at once."""

    def __init__(self) -> None:
        self._chunks = ChunkDecoder()

    def apply(
        self, target: NDArray[np.uint8], payload: memoryview, encoding: str, itemsize: int
    ) -> None:
        """Turn the old bytes of a tensor into the new ones.

        Args:
            target: uint8 [N] with the old bytes; anything for `full`.
            payload: as it was written.
            encoding: one of `Encoding`.
            itemsize: bytes of one element.

        Raises:
            PayloadError: the payload does not fit the tensor. Parts of it may be applied already.
        """
        try:
            match encoding:
                case "chunks":
                    self._apply_chunks(target, payload, itemsize)
                case "xor":
                    _apply_xor(target, payload)
                case "overwrite":
                    _apply_overwrite(target, payload, np.dtype("<u4"))
                case "overwrite64":
                    _apply_overwrite(target, payload, np.dtype("<u8"))
                case "full":
                    target[:] = as_bytes(payload)
                case _:
                    raise PayloadError(f"no encoding is called {encoding!r}")
        except (zstandard.ZstdError, ValueError, IndexError) as error:
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"a payload in {encoding} is damaged: {error}") from error

    def _apply_chunks(self, target: NDArray[np.uint8], payload: memoryview, itemsize: int) -> None:
        records = read_records(payload, -(-len(target) // CHUNK_BYTES))
        for number, (kind, parts) in enumerate(records):
            piece = target[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            self._chunks.apply(piece, kind, parts, itemsize)


def _apply_xor(target: NDArray[np.uint8], payload: memoryview) -> None:
    at = 0
    with zstandard.ZstdDecompressor().stream_reader(payload) as stream:
        while piece := stream.read(CHUNK_BYTES):
            target[at : at + len(piece)] ^= as_bytes(piece)
            at += len(piece)
    if at != len(target):
        raise PayloadError(f"a difference of {at} bytes for a tensor of {len(target)}")


def _apply_overwrite(
    target: NDArray[np.uint8], payload: memoryview, dtype: np.dtype[np.uint32 | np.uint64]
) -> None:
    limit = dtype.itemsize + len(target) * (dtype.itemsize + 1)
    if not 0 <= (size := zstandard.frame_content_size(payload)) <= limit:
        raise PayloadError(f"an overwrite says it has {size} bytes, at most {limit} fit")
    plain = memoryview(zstandard.ZstdDecompressor().decompress(payload))
    count = int(np.frombuffer(plain, dtype, 1)[0])
    end = dtype.itemsize * (1 + count)
    if plain.nbytes != end + count:
        raise PayloadError(
            f"an overwrite of {count} bytes has {plain.nbytes} bytes, not {end + count}"
        )
    places = np.frombuffer(plain[dtype.itemsize : end], dtype)
    if count and int(places.max()) >= len(target):
        raise PayloadError(f"an overwrite at {int(places.max())} of {len(target)} bytes")
    target[places] = as_bytes(plain[end:])
