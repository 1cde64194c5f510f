"""One process's files of the archive: a chain of records, bounded, never harming the run.

Files are only ever appended to, and a process that starts begins a new one: what a killed process
left behind its last whole record stays as it is, and the next file says so.

Durability: a record is with the system before the call returns, so it survives kill -9; a file is
synced to disk when the next one begins and at the end, so a power cut takes the end of one file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from milepost.actors.archive.author import Author
from milepost.actors.archive.layout import (
    FOLDER,
    Arrived,
    Body,
    Closed,
    Head,
    Judged,
    Kind,
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


@dataclass(frozen=True, slots=True)
class Landed:
    """Records that were appended to one file, which ends at `end`."""

    segment: int
    end: int
    items: tuple[tuple[int, Record, Said], ...]
    """(offset, record, what it is made of)"""


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
        self.author, self._clock = author, clock
        self._segment_bytes_max = max(1, min(segment_bytes_max, author.bytes_max // SEGMENTS_MIN))
        self._folder = author.run_folder / FOLDER / author.writer
        self._folder.mkdir(parents=True, exist_ok=True)
        self._segments: deque[Segment] = deque()
        self.sequence, self.digest = 0, genesis(author.run_id, author.writer)
        torn = self._look_back()
        self._file: SegmentFile | None = None
        self._begin(torn)

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(segment.num_bytes for segment in self._segments)

    # ---- opening -------------------------------------------------------------------------

    def _look_back(self) -> int:
        """Find the end of the chain; the bytes behind it in its file.

        Only the newest file with a whole record is read. The clock of a machine may be wrong, the
        numbers of files are not.
        """
        files = segments_of(self._folder)
        self._segments.extend(Segment(n, path, path.stat().st_size) for n, path in files)
        torn = 0
        for segment in reversed(self._segments):
            last, tail = last_record(segment.path)
            torn += tail
            if last is not None:
                self.sequence, self.digest = last.sequence + 1, last.digest
                break
        return torn

    def _begin(self, torn_bytes: int = 0) -> None:
        """Begin the next file.

        Raises:
            OSError: it cannot be made; the old one stays.
        """
        number = self._segments[-1].number + 1 if self._segments else 1
        path = segment_path(self._folder, number)
        opened = Opened(
            run_id=self.author.run_id,
            writer=self.author.writer,
            incarnation=self.author.incarnation,
            segment=number,
            goes_on=self._file is not None,
            torn_bytes=torn_bytes,
            model=self.author.model,
        )
        record = self._make(opened, None)
        file = SegmentFile(path)
        try:
            file.append((record,))
            self._end_file()
        except OSError:
            file.close()
            path.unlink()
            raise
        self._file = file
        self._segments.append(Segment(number, path))
        self._follow((record,), file.size)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    # ---- writing -------------------------------------------------------------------------

    def write(self, said: Sequence[Said]) -> Landed:
        """Append these.

        Raises:
            OSError: the disk is full; nothing of them is written.
        """
        assert self._file is not None, "the writer is closed"
        if self._file.size >= self._segment_bytes_max:
            self._begin()
        records: list[Record] = []
        for head, body in said:
            records.append(self._make(head, body, *records[-1:]))
        offsets = self._file.append(records)
        self._follow(records, self._file.size)
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
        self._segments[-1].num_bytes = size

    # ---- the bound -----------------------------------------------------------------------

    def oldest(self, num_bytes: int) -> Removed | None:
        """The oldest files that hold `num_bytes`, to be written down and then to `unlink`.

        None: there is only the newest, which stays.
        """
        going: list[Segment] = []
        while num_bytes > 0 and len(self._segments) - len(going) > 1:
            going.append(self._segments[len(going)])
            num_bytes -= going[-1].num_bytes
        if not going:
            return None
        found = [each for segment in going for each in walk(segment.path)]
        records = [each.record for each in found if isinstance(each, Found)]
        return Removed(
            segments=tuple(each.number for each in going),
            num_records=len(records),
            num_trajectories=sum(record.kind is Kind.ARRIVED for record in records),
            last_digest=records[-1].digest if records else b"",
        )

    def unlink(self, removed: Removed) -> None:
        """Remove these files."""
        for _ in removed.segments:
            # Counted as long as it is there: what cannot be removed now is tried again.
            self._segments[0].path.unlink(missing_ok=True)
            self._segments.popleft()

    def close(self, missed: int = 0) -> None:
        """End the chain in order: write how much is missing, sync, close.

        Raises:
            OSError: the disk is full; then it ends without.
        """
        try:
            self.write([(Closed(missed=missed), None)])
        finally:
            self._end_file()


@dataclass(slots=True)
class Segment:
    """One file of a writer."""

    number: int
    path: Path
    num_bytes: int = 0


def last_record(path: Path) -> tuple[Record | None, int]:
    """The last whole record of a file, and the bytes behind it."""
    last, end = None, 0
    for found in walk(path):
        if isinstance(found, Found):
            last, end = found.record, found.end
    return last, path.stat().st_size - end


def names_of(head: Head) -> tuple[str, ...]:
    """Trajectories that a record speaks of."""
    match head:
        case Arrived() | Trained() | Refused():
            return (head.trajectory_id,)
        case Judged():
            return (head.group_id,)
        case Missed():
            return head.names
        case Opened() | Removed() | Closed():
            return ()
