"""The files of one writer: walked record by record, past damage, and appended to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from milepost.actors.archive.layout import (
    FOLDER,
    MARK,
    MARK_OFFSET,
    SUFFIX,
    Record,
    RecordDamaged,
    framed,
    read_record,
)
from milepost.actors.journal import HEADER


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies."""

    writer: str
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """A record whose checksum is right."""

    offset: int
    end: int
    record: Record


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no whole record."""

    offset: int
    end: int
    reason: str
    is_tail: bool
    """Nothing whole follows in the file: what a killed process leaves, or a cut file."""


def segment_path(folder: Path, segment: int) -> Path:
    """File of one segment; `folder` is the writer's."""
    return folder / f"{segment:06d}{SUFFIX}"


def segments_of(folder: Path) -> list[tuple[int, Path]]:
    """Every file of a writer, oldest first."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    return [(int(path.stem), path) for path in paths if path.stem.isdecimal()]


def writers_of(run_folder: Path) -> list[str]:
    """Names of the processes that wrote into this run's archive."""
    folder = run_folder / FOLDER
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def walk(path: Path, offset: int = 0) -> Iterator[Found | Damage]:
    """Records of a file from `offset` on, in order, with what lies between them.

    A damaged record is passed: reading goes on at the next whole one. A file may grow meanwhile;
    what was appended later is not seen.

    Raises:
        FileNotFoundError: at once; there is no such file.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = memoryview(file.read())
    return _walk(data, offset)


def _walk(data: memoryview, offset: int) -> Iterator[Found | Damage]:
    at = 0
    while at < len(data):
        found = _try(data, at)
        if isinstance(found, Record):
            end = _end(data, at)
            yield Found(offset + at, offset + end, found)
            at = end
            continue
        again = _next(data, at)
        if again is None:
            yield Damage(offset + at, offset + len(data), found, is_tail=True)
            return
        yield Damage(offset + at, offset + again, found, is_tail=False)
        at = again


def read_at(path: Path, offset: int) -> Record:
    """The record that begins there.

    Raises:
        RecordDamaged: none does.
        OSError: the file is gone.
    """
    with path.open("rb") as file:
        file.seek(offset)
        head = file.read(HEADER.size)
        length = HEADER.unpack(head)[0] if len(head) == HEADER.size else 0
        data = memoryview(head + file.read(length))
    found = _try(data, 0)
    if isinstance(found, str):
        raise RecordDamaged(f"{path}, byte {offset}: {found}; `milepost audit` says more")
    return found


def _end(data: memoryview, at: int) -> int:
    length: int = HEADER.unpack_from(data, at)[0]
    return at + HEADER.size + length


def _try(data: memoryview, at: int) -> Record | str:
    """The record that begins at `at`, or why none does."""
    if len(data) - at < HEADER.size:
        return f"{len(data) - at} bytes, less than the header of a record"
    length, digest = HEADER.unpack_from(data, at)
    start, end = at + HEADER.size, at + HEADER.size + length
    if end > len(data):
        return f"a record of {length} bytes, of which {len(data) - start} are there"
    payload = data[start:end]
    if xxhash.xxh3_64_intdigest(payload) != digest:
        return f"a record of {length} bytes fails its checksum"
    try:
        return read_record(bytes(payload))
    except RecordDamaged as error:
        return str(error)


def _next(data: memoryview, at: int) -> int | None:
    """Where the next whole record behind `at` begins."""
    whole = bytes(data)
    place = whole.find(MARK, at + MARK_OFFSET + 1)
    while place >= 0:
        if isinstance(_try(data, place - MARK_OFFSET), Record):
            return place - MARK_OFFSET
        place = whole.find(MARK, place + 1)
    return None


class SegmentFile:
    """One file, open for appending; never one that is there already.

    Raises:
        FileExistsError: it is.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("xb", buffering=0)
        self.size = 0

    def append(self, records: Sequence[Record]) -> list[int]:
        """Append in one write; where each begins.

        Raises:
            OSError: the disk is full; the file keeps its old length.
        """
        offsets, parts, at = [], [], self.size
        for record in records:
            data = framed(record)
            offsets.append(at)
            parts.append(data)
            at += len(data)
        left = memoryview(b"".join(parts))
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            self._file.truncate(self.size)
            self._file.seek(self.size)
            raise
        self.size = at
        return offsets

    def sync(self) -> None:
        """Return when the records would survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Nothing is pending, writes are not buffered."""
        self._file.close()
