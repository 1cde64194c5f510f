"""The chain of one writer's records, walked from end to end: what is whole, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec import Struct

from milepost.actors.archive.layout import (
    Arrived,
    Closed,
    Head,
    Kind,
    Missed,
    Opened,
    Record,
    RecordDamaged,
    Refused,
    Removed,
    Trained,
    digest_of,
    genesis,
    read_head,
)
from milepost.actors.archive.segments import Damage, segments_of, walk

CHECKSUM: Final = "checksum"
CHAIN: Final = "chain"
RECORD: Final = "record"


class Fault(Struct, frozen=True, kw_only=True):
    """Something that is not as it was written, or was never right."""

    contract: str
    """C1 to C4, seal, reward, group; or checksum, record, chain, training, index."""
    text: str
    where: str
    """WRITER/FILE:BYTE"""
    trajectory_id: str = ""
    """Empty: of no single one."""
    attempt: int | None = None
    row: int | None = None


@dataclass(slots=True)
class Chain:
    """Walks one writer's files once; what it found is whole when `records` is exhausted.

    Attributes:
        closed_run: run whose process of this name ended in order, so that its chain must end with
            a closing record; empty: none is known to have.
        num_missed: records that were not written, by their own account.
        is_broken: something is gone that no record tells of.
        was_killed: some life of it ended without a word; what it had not written is nowhere.
    """

    folder: Path
    writer: str
    closed_run: str = ""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_records: int = 0
    num_missed: int = 0
    is_broken: bool = False
    was_killed: bool = False
    last_run: str = ""
    """Run that its newest file is of."""
    _missed_of_life: int = 0
    """As `num_missed`, since its process began."""
    _last: _Link | None = None
    _oldest: tuple[str, bytes] | None = None
    """Where the oldest record lies when it is not the writer's first, and what it follows."""
    _removed: set[bytes] = field(default_factory=set)
    """Digests that end files which were removed."""
    _tail: Damage | None = None
    """Behind the last whole record of the file that was read last."""
    _tail_where: str = ""

    @property
    def next_sequence(self) -> int:
        """Number that the next record would have: how many were ever written."""
        return self._last.sequence + 1 if self._last else 0

    def records(self) -> Iterator[tuple[str, Record, Head]]:
        """(where, record, head) of every record that can be read, in order."""
        for _, path in segments_of(self.folder):
            try:
                found_here = walk(path)
            except FileNotFoundError:
                self.is_broken = True
                self.notes.append(f"{path} was removed meanwhile, to stay below archive.bytes_max")
                continue
            for found in found_here:
                where = f"{self.writer}/{path.name}:{found.offset}"
                if isinstance(found, Damage):
                    self._damaged(where, found)
                    continue
                head = self._head(where, found.record)
                if head is not None:
                    yield where, found.record, head
        self._end()

    # ---- one record after the other ------------------------------------------------------

    def _damaged(self, where: str, damage: Damage) -> None:
        if damage.is_tail:
            # What a killed process leaves: judged by what comes after it.
            self._tail, self._tail_where = damage, where
            return
        self._break(CHECKSUM, _words(damage), where)

    def _head(self, where: str, record: Record) -> Head | None:
        self.num_records += 1
        name = ""
        head: Head | None = None
        try:
            head = read_head(record)
            name = trajectory_of(head)
        except RecordDamaged as error:
            self._fault(RECORD, str(error), where)
        if digest_of(record) != record.digest:
            text = f"record {record.sequence} ({record.kind}) was changed after it was written"
            self._fault(RECORD, text, where, name)
        if isinstance(head, Opened):
            self._opened(where, record, head)
        self._link(where, record, name)
        self._last = _Link(record.sequence, record.digest, record.kind, name)
        match head:
            case Removed():
                self._removed.add(head.last_digest)
                self.notes.append(
                    f"{self.writer}: {head.num_records} records of {head.num_trajectories} "
                    f"trajectories were removed to stay below archive.bytes_max"
                )
            case Missed():
                self.num_missed += head.count
                self._missed_of_life += head.count
                named = ", ".join(head.names[:4])
                self.notes.append(
                    f"{self.writer}: {head.count} records were not written: {head.reason} ({named})"
                )
            case Closed():
                self._closed(where, head)
            case _:
                pass
        return head

    def _link(self, where: str, record: Record, name: str) -> None:
        last = self._last
        if last is None:
            if record.sequence:
                self._oldest = where, record.previous
            elif record.kind is not Kind.OPENED:
                self._break(CHAIN, f"begins with a `{record.kind}` record", where, name)
        elif record.sequence != last.sequence + 1:
            text = f"record {record.sequence} follows record {last.sequence}"
            gone = f"{text}: what was between them is gone, or stands elsewhere"
            self._break(CHAIN, gone, where, name)
        elif record.previous != last.digest:
            text = f"record {record.sequence} does not follow from record {last.sequence} as it is"
            which = f"{text} ({last.kind}): one of them is not the original"
            self._fault(CHAIN, which, where, last.trajectory_id)

    def _opened(self, where: str, record: Record, head: Opened) -> None:
        if head.writer != self.writer:
            self._fault(
                CHAIN, f"a file of {head.writer} lies in the folder of {self.writer}", where
            )
        if not record.sequence and record.previous != genesis(head.run_id, head.writer):
            self._fault(CHAIN, f"its first record does not begin the chain of {head.run_id}", where)
        tail, self._tail = self._tail, None
        size = tail.end - tail.offset if tail else 0
        if size != head.torn_bytes:
            text = f"{size} bytes of no whole record, the next process found {head.torn_bytes}"
            self._break(CHECKSUM, text, self._tail_where or where)
        elif tail is not None:
            self.notes.append(f"{self._tail_where}: {_words(tail)}, left by a killed process")
        self.last_run = head.run_id
        if not head.goes_on:
            self._missed_of_life = 0
        last = self._last
        if last is not None and not head.goes_on and last.kind is not Kind.CLOSED:
            self.was_killed = True
            self.notes.append(f"{self.writer} was killed after its record {last.sequence}")

    def _closed(self, where: str, head: Closed) -> None:
        """Nothing follows it from which it could be told; what was removed may have said more."""
        if head.missed != self._missed_of_life and not self._removed:
            text = f"{self._missed_of_life} records were not written, the last record says"
            self._fault(RECORD, f"{text} {head.missed}", where)

    def _end(self) -> None:
        if self._oldest is not None and self._oldest[1] not in self._removed:
            where = self._oldest[0]
            self._break(
                CHAIN, "the records before it are gone, and none says they were removed", where
            )
        must_be_closed = bool(self.closed_run) and self.last_run in ("", self.closed_run)
        is_closed = self._last is not None and self._last.kind is Kind.CLOSED
        if self._tail is not None:
            words = _words(self._tail)
            if must_be_closed or is_closed:
                self._break(CHECKSUM, words, self._tail_where)
            else:
                self.notes.append(f"{self._tail_where}: {words}, as a killed process leaves it")
        if is_closed:
            return
        if must_be_closed:
            self._break(
                CHAIN,
                "its closing record is missing, though its process ended in order",
                self.writer,
            )
        else:
            self.was_killed = True
            self.notes.append(f"{self.writer} has no closing record: it runs, or was killed")

    def _break(self, contract: str, text: str, where: str, name: str = "") -> None:
        self.is_broken = True
        self._fault(contract, text, where, name)

    def _fault(self, contract: str, text: str, where: str, name: str = "") -> None:
        fault = Fault(contract=contract, text=text, where=where, trajectory_id=name)
        self.faults.append(fault)


@dataclass(frozen=True, slots=True)
class _Link:
    sequence: int
    digest: bytes
    kind: Kind
    trajectory_id: str


def trajectory_of(head: Head) -> str:
    """The trajectory that a record is about; empty when it is about several or none."""
    return head.trajectory_id if isinstance(head, Arrived | Trained | Refused) else ""


def _words(damage: Damage) -> str:
    return f"{damage.end - damage.offset} bytes are no whole record: {damage.reason}"
