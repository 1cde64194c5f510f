"""One process's files of the archive: a chain of records, bounded, never harming the run.

Files are only ever appended to, and a process that starts begins a new one: what a killed process
left behind its last whole record stays as it is, and the next file says so. What cannot be written
(disk full) is counted and named in the first record that can be written afterwards.

Durability: a record is with the system before the call returns, so it survives kill -9; a file is
synced to disk when the next one begins and at the end, so a power cut takes the end of one file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from milepost.actors.archive.layout import (
    FOLDER,
    MISSED_NAMES_MAX,
    Arrived,
    Body,
    Head,
    Judged,
    Missed,
    Opened,
    Record,
    Refused,
    Removed,
    Trained,
    genesis,
    make_record,
)
from milepost.actors.archive.segments import (
    Found,
    SegmentFile,
    segment_path,
    segments_of,
    walk,
)

SEGMENT_BYTES_MAX: Final = 64 << 20
SEGMENTS_MIN: Final = 8
"""The bound holds at least this many files, so that a removal takes a small part."""
Said = tuple[Head, Body | None]
"""What a record is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes."""

    run_folder: Path
    run_id: str
    writer: str
    incarnation: int
    bytes_max: int
    """Of all its files together."""
    vocabulary: int = 0
    tokenizer_hash: str = ""


@dataclass(frozen=True, slots=True)
class Landed:
    """Records that were appended to one file, which ends at `end`."""

    segment: int
    end: int
    items: tuple[tuple[int, Record, Said], ...]
    """(offset, record, what it is made of)"""


@dataclass(slots=True)
class Missing:
    """What was not written since the last record that was."""

    count: int = 0
    reason: str = ""
    names: list[str] = field(default_factory=list)

    def add(self, heads: Iterable[Head], reason: str) -> None:
        """These were not."""
        for head in heads:
            self.count += head.count if isinstance(head, Missed) else 1
            self.names += names_of(head)
        self.reason = reason
        del self.names[MISSED_NAMES_MAX:]


class ArchiveWriter:
    """Appends to the files of one writer. Used by one thread at a time.

    Args:
        author: who writes.
        clock: Unix time, seconds.
        segment_bytes_max: a file that has as many is closed.

    Raises:
        OSError: its folder or first file cannot be made.
    """

    def __init__(
        self,
        author: Author,
        *,
        clock: Callable[[], float] = time.time,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self._author, self._clock = author, clock
        self._segment_bytes_max = max(1, min(segment_bytes_max, author.bytes_max // SEGMENTS_MIN))
        self._folder = author.run_folder / FOLDER / author.writer
        self._folder.mkdir(parents=True, exist_ok=True)
        self._segments: deque[_Segment] = deque()
        self.sequence, self.digest = 0, genesis(author.run_id, author.writer)
        self.num_missed = 0
        self.missing = Missing()
        torn = self._look_back()
        self._file: SegmentFile | None = None
        self._begin(torn)

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(segment.num_bytes for segment in self._segments)

    # ---- opening -------------------------------------------------------------------------

    def _look_back(self) -> int:
        """Find the end of the chain; the bytes behind it."""
        torn = 0
        for number, path in segments_of(self._folder):
            segment, torn = _Segment(number, path), 0
            for found in walk(path):
                if isinstance(found, Found):
                    segment.count(found.record)
                    self.sequence = found.record.sequence + 1
                    self.digest = found.record.digest
                elif found.is_tail:
                    torn = found.end - found.offset
            segment.num_bytes = path.stat().st_size
            self._segments.append(segment)
        return torn

    def _begin(self, torn_bytes: int = 0) -> None:
        """Begin the next file.

        Raises:
            OSError: it cannot be made; the old one stays.
        """
        number = self._segments[-1].number + 1 if self._segments else 1
        path = segment_path(self._folder, number)
        opened = Opened(
            run_id=self._author.run_id,
            writer=self._author.writer,
            incarnation=self._author.incarnation,
            segment=number,
            torn_bytes=torn_bytes,
            vocabulary=self._author.vocabulary,
            tokenizer_hash=self._author.tokenizer_hash,
        )
        file = SegmentFile(path)
        segment = _Segment(number, path)
        record = self._make(opened, None)
        try:
            file.append((record,))
        except OSError:
            file.close()
            path.unlink()
            raise
        if self._file is not None:
            self._file.sync()
            self._file.close()
        self._file = file
        self._segments.append(segment)
        self._follow((record,), file.size)

    # ---- writing -------------------------------------------------------------------------

    def write(self, said: Sequence[Said]) -> Landed | None:
        """Append these; None when they could not be written, which is counted and named."""
        said = self._with_missed(said)
        try:
            return self._write(said)
        except OSError as error:
            self.missing = Missing()
            self.miss([head for head, _ in said], f"{type(error).__name__}: {error}")
            return None

    def miss(self, heads: Sequence[Head], reason: str) -> None:
        """These will not be written, and why; the next record says so."""
        before = self.missing.count
        self.missing.add(heads, reason)
        self.num_missed += self.missing.count - before

    def _with_missed(self, said: Sequence[Said]) -> list[Said]:
        missing = self.missing
        if not missing.count:
            return list(said)
        names = tuple(missing.names)
        missed = Missed(count=missing.count, reason=missing.reason, names=names)
        return [(missed, None), *said]

    def _write(self, said: Sequence[Said]) -> Landed:
        assert self._file is not None
        if self._file.size >= self._segment_bytes_max:
            self._begin()
        records: list[Record] = []
        for head, body in said:
            records.append(self._make(head, body, *records[-1:]))
        offsets = self._file.append(records)
        self._follow(records, self._file.size)
        self.missing = Missing()
        items = tuple(zip(offsets, records, said, strict=True))
        return Landed(self._segments[-1].number, self._file.size, items)

    def _make(self, head: Head, body: Body | None, before: Record | None = None) -> Record:
        return make_record(
            head,
            body,
            sequence=before.sequence + 1 if before else self.sequence,
            time=self._clock(),
            previous=before.digest if before else self.digest,
        )

    def _follow(self, records: Sequence[Record], size: int) -> None:
        self.sequence, self.digest = records[-1].sequence + 1, records[-1].digest
        segment = self._segments[-1]
        segment.num_bytes = size
        for record in records:
            segment.count(record)

    # ---- the bound -----------------------------------------------------------------------

    def remove_oldest(self, num_bytes: int) -> Removed | None:
        """Take the oldest files out of the books until `num_bytes` are gone; never the newest one.

        They go from the disk with `unlink`, once a record of it is written.
        """
        going: list[_Segment] = []
        while num_bytes > 0 and len(self._segments) - len(going) > 1:
            going.append(self._segments[len(going)])
            num_bytes -= going[-1].num_bytes
        if not going:
            return None
        return Removed(
            segments=tuple(each.number for each in going),
            num_records=sum(each.num_records for each in going),
            num_trajectories=sum(each.num_trajectories for each in going),
            last_digest=going[-1].last_digest,
        )

    def unlink(self, removed: Removed) -> None:
        """Remove these files."""
        for _ in removed.segments:
            self._segments.popleft().path.unlink(missing_ok=True)

    def close(self) -> None:
        """Sync and close."""
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    num_bytes: int = 0
    num_records: int = 0
    num_trajectories: int = 0
    last_digest: bytes = b""

    def count(self, record: Record) -> None:
        self.num_records += 1
        self.num_trajectories += record.kind == "arrived"
        self.last_digest = record.digest


def names_of(head: Head) -> tuple[str, ...]:
    """Trajectories that a record speaks of."""
    match head:
        case Arrived() | Trained() | Refused():
            return (head.trajectory_id,)
        case Judged():
            return (head.group_id,)
        case Missed():
            return head.names
        case Opened() | Removed():
            return ()
