"""What the records of an archive say and where they lie, kept up in one SQLite file.

RUN/archive/index.sqlite follows from the records alone, and is made again from them when it is
missing, damaged or of another layout. One process at a time writes it, whoever holds index.lock:
the buffer while the run goes on, a reader that finds the lock free afterwards.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from milepost.actors.archive.layout import (
    BUFFER,
    FOLDER,
    Arrived,
    Closed,
    Head,
    Judged,
    Missed,
    Opened,
    Record,
    RecordDamaged,
    Refused,
    Removed,
    Trained,
    Verdict,
    read_arrived,
    read_conversation,
    read_head,
)
from milepost.actors.archive.query import UNTRAINED
from milepost.actors.archive.schema import INDEX, open_for_writing, remove
from milepost.actors.archive.segments import Damage, segments_of, walk, writers_of
from milepost.messages.trajectory import Conversation

LOCK: Final = "index.lock"
TEXT_MAX: Final = 1 << 18
"""Characters of a conversation that can be searched."""
BATCH: Final = 2_000
"""Records of one transaction."""
FORGET: Final = (
    "DELETE FROM conversations WHERE rowid IN (SELECT number FROM trajectories WHERE segment = ?)",
    "DELETE FROM trained WHERE key IN (SELECT key FROM trajectories WHERE segment = ?)",
    "DELETE FROM refused WHERE key IN (SELECT key FROM trajectories WHERE segment = ?)",
    "DELETE FROM trajectories WHERE segment = ?",
)
"""What is done when a file of the buffer's is removed."""


class IndexLocked(RuntimeError):
    """Another process writes the index."""


@dataclass(frozen=True, slots=True)
class Written:
    """A record in a file, and what is needed of it."""

    offset: int
    time: float
    head: Head
    text: str = ""
    """Of the conversation, where it is of an arrival."""


class Index:
    """The index, open for writing by this process alone. Used by one thread at a time.

    Args:
        run_folder: of the run.

    Raises:
        IndexLocked: another process has it.
        OSError, sqlite3.OperationalError: the folder cannot be written.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        folder = run_folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        with ExitStack() as opened:
            opened.callback(os.close, self._lock)
            _lock(self._lock, folder)
            self._base = open_for_writing(folder / INDEX)
            opened.callback(self._base.close)
            places = self._base.execute("SELECT name, segment, offset FROM writers")
            self._places = {name: (segment, offset) for name, segment, offset in places}
            opened.pop_all()

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self.close()

    def close(self) -> None:
        """Give the index up."""
        self._base.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Give it up and remove it: it is damaged, and is made again from the records.

        Raises:
            OSError: it cannot be removed.
        """
        self._base.close()
        try:
            remove(self._run_folder / FOLDER / INDEX)
        finally:
            self.close()

    @property
    def num_bytes(self) -> int:
        """Pages in use."""
        count, free, size = (
            self._base.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((count - free) * size)

    # ---- following the records -----------------------------------------------------------

    def catch_up(self, *, but: str = "") -> int:
        """Read what was appended since; returns the number of records.

        Args:
            but: a writer that is not looked at.
        """
        count = 0
        for writer in writers_of(self._run_folder):
            if writer == but:
                continue
            at_segment, at_offset = self._places.get(writer, (0, 0))
            for segment, path in segments_of(self._run_folder / FOLDER / writer):
                if segment >= at_segment:
                    offset = at_offset if segment == at_segment else 0
                    count += self._read(writer, segment, path, offset)
        return count

    def _read(self, writer: str, segment: int, path: Path, offset: int) -> int:
        try:
            if path.stat().st_size <= offset:
                return 0
            found_here = walk(path, offset)
        except FileNotFoundError:
            return 0  # its writer has just removed it, to stay below the bound
        waiting: list[Written] = []
        count, end = 0, offset
        for found in found_here:
            if isinstance(found, Damage):
                # A torn tail may still be growing; other damage is passed for good.
                end = end if found.is_tail else found.end
                continue
            waiting += _written(found.offset, found.record)
            count, end = count + 1, found.end
            if len(waiting) >= BATCH:
                self.add(writer, segment, end, waiting)
                waiting = []
        self.add(writer, segment, end, waiting)
        return count

    def add(self, writer: str, segment: int, end: int, records: Sequence[Written]) -> None:
        """Add records of one writer's file, which is known up to `end` from now on."""
        with self._base:
            self._base.execute("BEGIN")
            for each in records:
                self._apply(writer, segment, each)
            self._base.execute(
                "INSERT INTO writers (name, segment, offset) VALUES (?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET segment = excluded.segment, offset = excluded.offset",
                (writer, segment, end),
            )
        self._places[writer] = (segment, end)

    def knows(self, key: str) -> bool:
        """Whether a trajectory of this key has arrived."""
        found = self._base.execute("SELECT 1 FROM trajectories WHERE key = ?", (key,))
        return found.fetchone() is not None

    def waiting(self) -> list[tuple[str, str]]:
        """(group, key) of all without a last word: not complete, or stored and not trained."""
        found = self._base.execute(
            "SELECT group_id, key FROM trajectories WHERE verdict = ? "
            "OR (verdict = ? AND (step IS NULL OR reason = ?)) ORDER BY number",
            (Verdict.WAITING.value, Verdict.STORED.value, UNTRAINED),
        )
        return [(group, key) for group, key in found]

    def trained_since(self, step: int) -> list[tuple[str, str]]:
        """(group, key) of all that were trained in this step or a later one."""
        found = self._base.execute(
            "SELECT group_id, key FROM trajectories WHERE step >= ? AND verdict = ? AND reason = ''"
            " ORDER BY number",
            (step, Verdict.STORED.value),
        )
        return [(group, key) for group, key in found]

    def is_untrained(self, key: str, since: int | None) -> bool:
        """Whether it was trained, and is to be trained again.

        Args:
            key: of a trajectory.
            since: step from which on nothing counts any more; None: of all steps that were told,
                those before the last resume.
        """
        found = self._base.execute(
            "SELECT 1 FROM trajectories WHERE key = ? AND verdict = ?"
            " AND (reason = ? OR step >= ?)",
            (key, Verdict.STORED.value, UNTRAINED, since),
        )
        return found.fetchone() is not None

    # ---- one record ----------------------------------------------------------------------

    def _apply(self, writer: str, segment: int, written: Written) -> None:
        match written.head:
            case Arrived() as head:
                self._arrived(segment, written, head)
            case Judged() as head:
                self._judged(head)
            case Trained() as head:
                self._trained(writer, segment, written, head)
            case Refused() as head:
                self._base.execute(
                    "INSERT INTO refused VALUES (?, ?, ?, ?, ?)",
                    (head.key, head.step, writer, segment, written.offset),
                )
            case Removed() as head:
                self._removed(writer, head)
            case Missed() as head:
                self._base.execute(
                    "INSERT INTO writers (name, segment, offset, missed) VALUES (?, ?, 0, ?) "
                    "ON CONFLICT (name) DO UPDATE SET missed = missed + excluded.missed",
                    (writer, segment, head.count),
                )
            case Opened() | Closed():
                pass

    def _arrived(self, segment: int, written: Written, head: Arrived) -> None:
        added = self._base.execute(
            "INSERT OR IGNORE INTO trajectories (key, trajectory_id, attempt, group_id, prompt_id,"
            " status, verdict, reason, reward, num_tokens, num_sampled_tokens, num_turns, mismatch,"
            " seconds, time, segment, offset)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                head.key,
                head.trajectory_id,
                head.attempt,
                head.group_id,
                head.prompt_id,
                head.status.value,
                Verdict.WAITING.value,
                head.reward,
                head.num_tokens,
                head.num_sampled_tokens,
                head.num_turns,
                bool(head.mismatch_kinds),
                head.seconds,
                written.time,
                segment,
                written.offset,
            ),
        )
        if not added.rowcount:
            return
        if written.text:
            self._base.execute(
                "INSERT INTO conversations (rowid, text) VALUES (?, ?)",
                (added.lastrowid, written.text),
            )
        # A trainer's file may be read ahead of the buffer's.
        self._base.execute(
            "UPDATE trajectories SET (step, advantage, staleness) = (SELECT step, advantage, "
            "staleness FROM trained WHERE key = ?1) "
            "WHERE key = ?1 AND EXISTS (SELECT 1 FROM trained WHERE key = ?1)",
            (head.key,),
        )

    def _judged(self, head: Judged) -> None:
        rewards = ",".join(map(repr, head.group_rewards))
        self._base.executemany(
            "UPDATE trajectories SET verdict = ?, reason = ?, group_rewards = "
            "coalesce(?, group_rewards) WHERE key = ?",
            [(head.verdict.value, head.reason, rewards or None, key) for key in head.keys],
        )

    def _trained(self, writer: str, segment: int, written: Written, head: Trained) -> None:
        # Trained once more after a resume from before it: the later one counts.
        self._base.execute(
            "INSERT OR REPLACE INTO trained VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                head.key,
                head.step,
                head.advantage,
                head.staleness,
                written.time,
                writer,
                segment,
                written.offset,
            ),
        )
        self._base.execute(
            "UPDATE trajectories SET step = ?, advantage = ?, staleness = ? WHERE key = ?",
            (head.step, head.advantage, head.staleness, head.key),
        )

    def _removed(self, writer: str, head: Removed) -> None:
        for segment in head.segments:
            if writer != BUFFER:
                self._base.execute(
                    "UPDATE trained SET segment = NULL, offset = NULL "
                    "WHERE writer = ? AND segment = ?",
                    (writer, segment),
                )
                continue
            for statement in FORGET:
                self._base.execute(statement, (segment,))


def discard(run_folder: Path) -> None:
    """Remove a broken index: the next reader makes it again from the records.

    Raises:
        IndexLocked: another process writes it.
        OSError: the folder cannot be written.
    """
    folder = run_folder / FOLDER
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        _lock(lock, folder)
        remove(folder / INDEX)
    finally:
        os.close(lock)


def text_of(conversation: Conversation) -> str:
    """What of a conversation can be searched: who said what, the start of it."""
    parts: list[str] = []
    room = TEXT_MAX
    for message in conversation.messages:
        for text in _texts(message):
            parts.append(text[:room])
            room -= len(parts[-1])
        if room <= 0:
            break
    return "\n".join(parts)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                if key != "role":
                    yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case _:
            pass


def _written(offset: int, record: Record) -> list[Written]:
    """What the index needs of a record; nothing of one that says nothing. `audit` names those."""
    try:
        head = read_head(record)
        text = ""
        if isinstance(head, Arrived):
            said = map(read_conversation, read_arrived(record).rows)
            text = "\n".join(text_of(each) for each in said if each)
    except RecordDamaged:
        return []
    return [Written(offset, record.time, head, text)]


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise IndexLocked(f"another process writes {folder / INDEX}") from error
