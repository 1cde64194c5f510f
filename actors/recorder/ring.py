"""A bounded file of records that outlives its writer: a ring in shared, mapped memory.

The pages belong to the kernel, so whatever was written is there after `kill -9`; nothing is
flushed, nothing is waited for, and appending is a copy of the record. Only the death of the
machine loses it.

    header   4096 bytes: magic, capacity, tail, head, length (uint64 each), then as many bytes of
             msgpack: what the file is of
    ring     records of `length (uint32), low half of the xxh3-64 of the payload (uint32),
             payload`, each at a multiple of 8; a record is never split at the end of the file

`tail` and `head` only grow; the record at `tail` is the oldest one that is whole. The writer moves
the tail before it overwrites, and the head after it has written: a reader that comes at any
moment, or after any death, finds whole records between them.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct as Form
from typing import Any, Final

import msgspec
import xxhash

MAGIC: Final = int.from_bytes(b"MPRING01", "little")
HEADER_BYTES: Final = 4096
CAPACITY_BYTES_MIN: Final = 1 << 16
_WORDS_BYTES: Final = 40
_HEAD: Final = Form("<II")
_HEAD_BYTES: Final = _HEAD.size
_ALIGN: Final = 8
_WRAP: Final = 0xFFFFFFFF
"""A length that no record has: the rest of the file is unused."""


class RingDamaged(RuntimeError):
    """The file is no ring, or its header is not whole."""


class Ring:
    """The writer's side; one process, one thread.

    Args:
        path: made anew, all of its room taken at once: a full disk is met here, not in a store
            to mapped memory, which would kill the process.
        capacity_bytes: of the records; a multiple of 8.
        about: what the file is of; plain values, at most 4 KiB packed.

    Raises:
        OSError: there is no room, or no right to write.
    """

    def __init__(self, path: Path, capacity_bytes: int, about: dict[str, Any]) -> None:
        capacity = max(CAPACITY_BYTES_MIN, capacity_bytes - capacity_bytes % _ALIGN)
        told = msgspec.msgpack.encode(about)
        assert _WORDS_BYTES + len(told) <= HEADER_BYTES, f"{len(told)} bytes about {path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + capacity)
            self._map = mmap.mmap(descriptor, HEADER_BYTES + capacity)
        finally:
            os.close(descriptor)
        self.path = path
        self.capacity = capacity
        self.record_bytes_max = capacity // 8
        self._bytes = memoryview(self._map)
        self._words = self._bytes[:_WORDS_BYTES].cast("Q")
        self._bytes[_WORDS_BYTES : _WORDS_BYTES + len(told)] = told
        self._tail = self._head = 0
        self._stride = capacity // 16
        self._next_start = self._stride
        #: Where records begin, one for each stride, behind the tail.
        self._starts: deque[int] = deque(maxlen=32)
        self._words[1], self._words[4] = capacity, len(told)
        # Last: without it, the file is none of ours.
        self._words[0] = MAGIC

    def append(self, payload: bytes) -> None:
        """Write one record over the oldest ones."""
        length = len(payload)
        size = _HEAD_BYTES + length
        need = size + -size % _ALIGN
        capacity, head = self.capacity, self._head
        assert need <= capacity // 4, f"a record of {length} bytes"
        place = head % capacity
        if capacity - place < need:
            self._make_room(head + capacity - place + need - capacity)
            _HEAD.pack_into(self._map, HEADER_BYTES + place, _WRAP, 0)
            head += capacity - place
            place = 0
        elif head + need - capacity > self._tail:
            self._make_room(head + need - capacity)
        if head >= self._next_start:
            self._starts.append(head)
            self._next_start = head + self._stride
        start = HEADER_BYTES + place
        check = _low(payload)
        self._map[start : start + size] = _HEAD.pack(length, check) + payload
        self._head = self._words[3] = head + need

    def _make_room(self, tail_min: int) -> None:
        """Give up a sixteenth of the ring at a time, so that few records have to."""
        starts = self._starts
        while self._tail < tail_min:
            self._tail = starts.popleft() if starts else self._head
        self._words[2] = self._tail

    def image(self) -> bytes:
        """All of the file as it is now; `read_image` reads it."""
        return bytes(self._bytes)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._words.release()
        self._bytes.release()
        self._map.close()


def _low(payload: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(payload) & 0xFFFFFFFF


def _step(data: memoryview, offset: int, capacity: int) -> int:
    """Bytes from the record at this offset to the next one."""
    place = offset % capacity
    (length, _) = _HEAD.unpack_from(data, HEADER_BYTES + place)
    if length == _WRAP:
        return capacity - place
    size = _HEAD.size + int(length)
    return size + -size % _ALIGN


@dataclass(frozen=True, slots=True)
class Image:
    """What the bytes of a ring hold.

    Attributes:
        about: what the file is of.
        records: that are whole, oldest first.
        damage: where others were that are not; empty: nowhere. No writer leaves such a place,
            however it dies.
    """

    about: Any
    records: list[bytes]
    damage: str


def read_file(path: Path) -> Image:
    """A file of a ring; also while it is written.

    Raises:
        RingDamaged: see `look_at`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        image = file.read()
        # What was overwritten while we read lies before the tail of now.
        file.seek(16)
        tail = int.from_bytes(file.read(8), "little")
    return look_at(image, tail_min=tail)


def read_image(image: bytes, *, tail_min: int = 0) -> tuple[Any, list[bytes]]:
    """What a copy of a ring of ours is of, and its records; raises as `look_at`."""
    found = look_at(image, tail_min=tail_min)
    return found.about, found.records


def look_at(image: bytes, *, tail_min: int = 0) -> Image:
    """The same of the bytes of a file.

    Args:
        image: the whole file.
        tail_min: records before this offset are not trusted.

    Raises:
        RingDamaged: these are not the bytes of a ring.
    """
    view = memoryview(image)
    about = about_of(view)
    capacity, tail, head, _ = view[8:_WORDS_BYTES].cast("Q")
    is_whole = capacity == len(view) - HEADER_BYTES and 0 <= head - tail <= capacity
    if not is_whole or (capacity | tail | head) % _ALIGN:
        raise RingDamaged(f"capacity {capacity}, tail {tail}, head {head} in {len(view)} bytes")
    holes: list[int] = []
    records = list(_records(view, max(tail, tail_min), head, capacity, holes))
    where = f"{len(holes)} places, the first at byte {holes[0]}" if holes else ""
    return Image(about, records, where.replace("1 places, the first", "1 place,", 1))


def about_of(image: bytes | memoryview) -> Any:
    """What the bytes of a ring are of, whatever its records are.

    Raises:
        RingDamaged: these are not the bytes of a ring.
    """
    view = memoryview(image)
    if len(view) < HEADER_BYTES + _ALIGN or int.from_bytes(view[:8], "little") != MAGIC:
        raise RingDamaged(f"{len(view)} bytes without the mark of a flight recorder")
    told = view[8:_WORDS_BYTES].cast("Q")[3]
    try:
        return msgspec.msgpack.decode(view[_WORDS_BYTES:HEADER_BYTES][:told])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RingDamaged(f"its header cannot be read: {error}") from error


def _records(
    view: memoryview, tail: int, head: int, capacity: int, holes: list[int]
) -> Iterator[bytes]:
    """Whole records; the places of what is none are added to `holes`."""
    is_lost = False
    while tail < head:
        start = HEADER_BYTES + tail % capacity
        length, check = _HEAD.unpack_from(view, start)
        is_end = length == _WRAP and check == 0
        payload = view[start + _HEAD_BYTES : start + _HEAD_BYTES + length]
        if is_end or (length <= capacity // 4 and _low(payload) == check):
            is_lost = False
            if not is_end:
                yield bytes(payload)
            tail += _step(view, tail, capacity)
            continue
        if not is_lost:
            holes.append(start)
        # Every record begins at a multiple of it: what comes behind the damage is found again.
        is_lost = True
        tail += _ALIGN
