"""Reading the archive of a run, while it goes on and afterwards; nothing of the run is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Struct

from milepost.actors.archive.aligned import aligned
from milepost.actors.archive.index import Index, IndexLocked
from milepost.actors.archive.layout import (
    BUFFER,
    FOLDER,
    Arrived,
    RecordDamaged,
    Refused,
    Trained,
    read_arrived,
    read_conversation,
    read_head,
    read_trained,
)
from milepost.actors.archive.query import VOID, Entry, Query, StepEntry, order_of, where_of
from milepost.actors.archive.schema import INDEX, is_damage, open_for_reading
from milepost.actors.archive.segments import read_at, segment_path
from milepost.messages.bulk import Bulk
from milepost.messages.trajectory import Conversation, Trajectory

__all__ = ["Archive", "Entry", "NoArchive", "Query", "StepEntry", "Stored", "Training", "Unknown"]

Words = TypeVar("Words", Trained, Refused)
ENTRIES: Final = (
    "SELECT trajectory_id, attempt, group_id, prompt_id, status, verdict, reason, reward,"
    " advantage, step, staleness, num_tokens, num_sampled_tokens, num_turns,"
    " mismatch AS has_mismatch, seconds, time, group_rewards, segment, offset FROM trajectories"
)
COUNT: Final = "SELECT count(*) FROM trajectories"
ONE: Final = (
    f"{ENTRIES} WHERE trajectory_id = ?1 AND (?2 IS NULL OR attempt = ?2)"
    " ORDER BY attempt DESC, number DESC LIMIT 1"
)


class NoArchive(FileNotFoundError):
    """The run has none."""


class IndexDamaged(OSError):
    """The index broke, or was found to be broken, after it was opened."""


class Unknown(KeyError):
    """No such trajectory in the archive."""


class Training(Struct, frozen=True, kw_only=True):
    """What the trainer made of one row."""

    step: int
    """Number of the batch; the version it was trained on top of."""
    advantage: float
    staleness: int | None
    logprobs: Bulk | None
    """float32 [S], nats, of the row's S sampled tokens in order, before the step; NaN where another
    row trains the token. None: their file was removed, or the trainer computed none."""
    contracts: dict[str, str]
    """Contract -> `passed`, `not checked` or what the trainer's door found; empty: file removed."""
    problem: str = ""
    """Why the last two are missing, though nobody removed them: the trainer's file is damaged."""


class Refusal(Struct, frozen=True, kw_only=True):
    """What the trainer's door said of one row of a group that it refused."""

    step: int
    """Of the batch."""
    contracts: dict[str, str]
    """As in `Training`; a row that passed them all has a sibling that did not."""
    problem: str = ""
    """Why they are missing."""


class Stored(Struct, frozen=True, kw_only=True):
    """One trajectory with all that is known of it."""

    entry: Entry
    rows: tuple[Trajectory, ...]
    """All of them, with the group's rewards once it was complete."""
    trainings: tuple[Training | None, ...]
    """Of each row; None: not trained."""
    refusals: tuple[Refusal | None, ...]
    """Of each row, the last one; None: never refused, or trained."""
    conversations: tuple[Conversation | None, ...]
    """Of each row; None: the session did not write it down."""

    @property
    def trajectory(self) -> Trajectory:
        """Its first row."""
        return self.rows[0]

    @property
    def training(self) -> Training | None:
        """Of its first row."""
        return self.trainings[0]

    @property
    def conversation(self) -> Conversation | None:
        """Of its first row."""
        return self.conversations[0]


@dataclass(slots=True)
class Archive:
    """The archive of one run, open for reading. Used by one thread at a time."""

    run_folder: Path
    base: sqlite3.Connection
    is_current: bool
    """Every record that was on disk when it was opened is in the index."""
    inode: int
    """Of the index that is open."""

    @classmethod
    def open(cls, run_folder: Path) -> Archive:
        """Open it. What a run that has ended had not indexed yet is indexed first.

        Raises:
            NoArchive: there is none, or its index cannot be read or made.
        """
        folder = run_folder / FOLDER
        if not (folder / BUFFER).is_dir():
            raise NoArchive(
                f"{run_folder} has no archive: it has archive.enabled = false, or is no run"
            )
        try:
            is_current = _catch_up(run_folder) or _catch_up(run_folder)
        except (IndexLocked, OSError, sqlite3.OperationalError):
            # The run goes on and keeps the index, or this is a copy that cannot be written.
            is_current = False
        # Looked at before: an index that is replaced right now is then another one.
        inode = _inode(run_folder)
        base = open_for_reading(folder / INDEX)
        if base is None or inode is None:
            raise NoArchive(f"{folder / INDEX} is missing or damaged, and cannot be made again")
        base.row_factory = sqlite3.Row
        return cls(run_folder, base, is_current, inode)

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close it."""
        self.base.close()

    @property
    def is_in_place(self) -> bool:
        """Whether the run's folder still has the index that is open."""
        return _inode(self.run_folder) == self.inode

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Around every question to the index: a broken page is met when it is read.

        Raises:
            IndexDamaged: it is met.
        """
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            path = self.run_folder / FOLDER / INDEX
            raise IndexDamaged(
                f"{path} is damaged ({error}), remove it: it is made again from the records"
            ) from error

    # ---- lists ---------------------------------------------------------------------------

    def select(self, query: Query, *, limit: int, offset: int = 0) -> list[Entry]:
        """The trajectories that a query leaves, in its order.

        Args:
            query: which.
            limit: most of them.
            offset: how many to pass before.
        """
        where, values = where_of(query)
        statement = f"{ENTRIES} WHERE {where} ORDER BY {order_of(query)} LIMIT ? OFFSET ?"
        with self.readable():
            found = self.base.execute(statement, (*values, limit, offset)).fetchall()
        return [_entry(row) for row in found]

    def count(self, query: Query) -> int:
        """How many trajectories a query leaves."""
        where, values = where_of(query)
        with self.readable():
            found = self.base.execute(f"{COUNT} WHERE {where}", values).fetchone()
        return int(found[0])

    def groups(self, step: int) -> list[str]:
        """Groups of the batch of `step`, by name."""
        statement = (
            "SELECT DISTINCT group_id FROM trajectories"
            " WHERE step = ? AND reason NOT IN (?, ?) ORDER BY group_id"
        )
        with self.readable():
            return [row[0] for row in self.base.execute(statement, (step, *VOID))]

    def steps(self) -> list[StepEntry]:
        """Every batch of which something was trained, in order."""
        statement = (
            "SELECT step, max(time) AS time, count(DISTINCT group_id) AS num_groups,"
            " count(*) AS num_trajectories, sum(num_sampled_tokens) AS num_sampled_tokens,"
            " avg(reward) AS reward_mean, min(reward) AS reward_min, max(reward) AS reward_max,"
            " max(staleness) AS staleness_max, sum(mismatch) AS num_mismatches"
            " FROM trajectories WHERE step IS NOT NULL AND reason NOT IN (?, ?)"
            " GROUP BY step ORDER BY step"
        )
        with self.readable():
            found = self.base.execute(statement, VOID).fetchall()
        return [msgspec.convert(dict(row), StepEntry, strict=False) for row in found]

    # ---- one trajectory ------------------------------------------------------------------

    def read(self, trajectory_id: str, attempt: int | None = None) -> Stored:
        """All of one trajectory.

        Args:
            trajectory_id: its name.
            attempt: number of the try; None: the last that came.

        Raises:
            Unknown: it is not in the archive.
            RecordDamaged: its record is not whole; `milepost audit` says more.
            IndexDamaged: see `readable`.
        """
        with self.readable():
            found = self.base.execute(ONE, (trajectory_id, attempt)).fetchone()
        if found is None:
            tried = "" if attempt is None else f", attempt {attempt},"
            raise Unknown(f"trajectory {trajectory_id!r}{tried} is not in the archive")
        record = self._record(BUFFER, found["segment"], found["offset"])
        if not isinstance(read_head(record), Arrived):
            raise RecordDamaged(f"the record of {trajectory_id} is none of an arrival")
        body = read_arrived(record)
        rewards = tuple(map(float, filter(None, (found["group_rewards"] or "").split(","))))
        rows = body.rows
        if rewards:
            rows = tuple(
                msgspec.structs.replace(row, group_rewards=rewards, group_size=len(rewards))
                for row in rows
            )
        trainings = tuple(map(self._training, body.rows))
        refusals = (
            None if training else self._refusal(row)
            for row, training in zip(body.rows, trainings, strict=True)
        )
        return Stored(
            entry=_entry(found),
            rows=rows,
            trainings=trainings,
            refusals=tuple(refusals),
            conversations=tuple(map(read_conversation, rows)),
        )

    def _training(self, row: Trajectory) -> Training | None:
        statement = "SELECT * FROM trained WHERE key = ?"
        with self.readable():
            found = self.base.execute(statement, (row.certificate.seal,)).fetchone()
        if found is None:
            return None
        problem = ""
        if found["segment"] is not None:
            try:
                record, head = self._words(found, Trained)
                return Training(
                    step=head.step,
                    advantage=head.advantage,
                    staleness=head.staleness,
                    logprobs=aligned(row, read_trained(record).logprobs),
                    contracts=head.contracts,
                )
            except RecordDamaged as error:
                # The row itself lies in the buffer's file, and is worth to be seen.
                problem = str(error)
        return Training(
            step=found["step"],
            advantage=found["advantage"],
            staleness=found["staleness"],
            logprobs=None,
            contracts={},
            problem=problem,
        )

    def _refusal(self, row: Trajectory) -> Refusal | None:
        statement = "SELECT * FROM refused WHERE key = ? ORDER BY step DESC LIMIT 1"
        with self.readable():
            found = self.base.execute(statement, (row.certificate.seal,)).fetchone()
        if found is None:
            return None
        try:
            _, head = self._words(found, Refused)
        except RecordDamaged as error:
            return Refusal(step=found["step"], contracts={}, problem=str(error))
        return Refusal(step=head.step, contracts=head.contracts)

    def _words(self, found: sqlite3.Row, kind: type[Words]) -> tuple[Any, Words]:
        """The record of a trainer that the index names, and its head."""
        record = self._record(found["writer"], found["segment"], found["offset"])
        head = read_head(record)
        if not isinstance(head, kind) or head.key != found["key"]:
            where = f"{found['writer']}, file {found['segment']}, byte {found['offset']}"
            raise RecordDamaged(f"{where} speaks of something else; `milepost audit` says more")
        return record, head

    def _record(self, writer: str, segment: int, offset: int) -> Any:
        path = segment_path(self.run_folder / FOLDER / writer, segment)
        try:
            return read_at(path, offset)
        except FileNotFoundError as error:
            raise RecordDamaged(f"{path} is gone; `milepost audit` says more") from error


def _inode(run_folder: Path) -> int | None:
    try:
        return (run_folder / FOLDER / INDEX).stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _catch_up(run_folder: Path) -> bool:
    """Index what is not; False when the index was damaged, and is removed."""
    with Index(run_folder) as index:
        try:
            index.catch_up()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            index.discard()
            return False
    return True


def _entry(row: sqlite3.Row) -> Entry:
    fields = {name: row[name] for name in Entry.__struct_fields__}
    return msgspec.convert(fields, Entry, strict=False)
