"""Writes the archive of one process on a thread of its own, so that the event loop never waits.

What is to be written waits in memory, up to a bound; beyond it, and while the disk refuses, it is
not written, which is counted and named (`Missed`) as soon as something can be written again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from milepost.actors.archive.author import Author
from milepost.actors.archive.index import Index, IndexLocked, Written, text_of
from milepost.actors.archive.layout import (
    Arrived,
    ArrivedBody,
    Head,
    read_conversation,
)
from milepost.actors.archive.orders import Known, Missing, Order
from milepost.actors.archive.schema import is_damage
from milepost.actors.archive.writer import ArchiveWriter, Landed, Said, names_of

if TYPE_CHECKING:
    from milepost.configs.run import ArchiveConfig

ORDERS_AT_ONCE: Final = 256
SLACK: Final = 16
LINGER_S: Final = 0.5
"""How long the first order waits for others; a process that is killed loses what waited."""
OPEN_S: Final = 10.0
"""How long a process waits for its first record, before it takes part in the run without one."""
CLOSE_S: Final = 3.0
"""What is still waiting at the end of the process gets this long."""
INDEX_TRIES: Final = 40
INDEX_TRY_S: Final = 0.05
INDEX_AGAIN_ORDERS: Final = 64
"""Writes until an index that could not be had is tried again."""
STOPPED: Final = "archive.bytes_max is reached, and archive.full is `stop`"
DIED: Final = "the thread that writes the archive died, the log of its process says why"
BEHIND: Final = "archive.waiting_bytes_max is reached: the disk is slower than the run"


@dataclass(slots=True)
class ArchiveState:
    """For the statistics of its process."""

    records: int = 0
    num_bytes: int = 0
    waiting: int = 0
    missed: int = 0
    reason: str = ""
    """Of the last one missed."""
    head: str = ""
    """Digest of the newest record, hex: the whole chain before it hangs on this."""
    index: str = ""
    """Why there is no index; empty: there is, or this process keeps none."""


@dataclass(slots=True, eq=False)
class ArchiveHand:
    """The thread of one writer.

    Args:
        author: who writes.
        config: `[archive]`.
        keeps_index: this process keeps the index of the whole archive.
    """

    author: Author
    config: ArchiveConfig
    keeps_index: bool = False
    state: ArchiveState = field(default_factory=ArchiveState)
    _orders: deque[Order] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _missing: Missing = field(default_factory=Missing)
    """What found no room; the thread has not written that down yet."""
    _closing: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _tried: threading.Event = field(default_factory=threading.Event)
    """The first file is begun, or could not be."""
    _thread: threading.Thread = field(init=False)
    _writer: ArchiveWriter | None = None
    _index: Index | None = None
    _index_again: int = 0
    _is_over: bool = False
    """The thread takes nothing any more."""

    def __post_init__(self) -> None:
        """Start the thread; files are opened on it."""
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    # ---- the event loop's side -----------------------------------------------------------

    async def begin(self, deadline_s: float = OPEN_S) -> None:
        """Wait until the files tell that this process lived, or that cannot be written.

        Before it, a process that is killed leaves no trace here, and whatever it did meanwhile
        looks as if its records had been taken away.
        """
        if not await asyncio.to_thread(self._tried.wait, deadline_s):
            told = f"archive: its first record was not written within {deadline_s} s"
            sys.stderr.write(f"{told}, it goes on without\n")

    def put(self, order: Order) -> None:
        """Have this written some time soon; never blocks, never fails."""
        with self._changed:
            if self._is_over:
                self._miss(1, order.names, DIED)
                return
            if self._waiting_bytes + order.num_bytes > self.config.waiting_bytes_max:
                self._miss(1, order.names, BEHIND)
                return
            self._orders.append(order)
            self._waiting_bytes += order.num_bytes
            self.state.waiting += 1
            self._changed.notify()

    def _miss(self, count: int, names: Sequence[str], reason: str) -> None:
        self._missing.add(count, names, reason)
        self.state.missed += count
        self.state.reason = reason

    def told(self) -> dict[str, object]:
        """The state, for the statistics of its process; its head is the digest of its records."""
        with self._changed:
            return asdict(self.state)

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Write what waits, sync and close; what is not done by the deadline is not archived."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            told = f"archive: {self.state.waiting} records were not written within {deadline_s} s"
            sys.stderr.write(told + "\n")

    # ---- the thread's side ---------------------------------------------------------------

    def _run(self) -> None:
        orders: list[Order] = []
        try:
            try:
                self._open()
            except OSError as error:
                # Tried again with the first order, and counted then.
                sys.stderr.write(f"archive: no file could be begun: {error}\n")
            finally:
                self._tried.set()
            while orders := self._take():
                self._write(orders)
        finally:
            # Whatever ended it: what it held and what still waits is not written, and counted.
            self._give_up(orders)
            self._end()

    def _give_up(self, held: list[Order]) -> None:
        with self._changed:
            lost = [*held, *self._orders]
            self._orders.clear()
            self._waiting_bytes = self.state.waiting = 0
            self._is_over = True
            if lost:
                self._miss(len(lost), [name for each in lost for name in each.names], DIED)

    def _end(self) -> None:
        if self._writer is not None:
            with self._changed:
                # What comes later is in neither: an audit holds one against the other.
                told, missed = self._missing.told(), self.state.missed
            try:
                if told:
                    self._writer.write(told)
                self._writer.close(missed)
            except OSError as error:
                sys.stderr.write(f"archive: its end could not be written: {error}\n")
        self._drop_index("")

    def _take(self) -> list[Order]:
        """The next orders, in order; none: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._closing.is_set())
        # Many at once cost a fraction of what they cost one by one.
        self._closing.wait(LINGER_S)
        with self._changed:
            orders: list[Order] = []
            size = 0
            while self._orders and len(orders) < ORDERS_AT_ONCE and size < self._slack:
                orders.append(self._orders.popleft())
                size += orders[-1].num_bytes
            self._waiting_bytes -= size
            self.state.waiting -= len(orders)
            return orders

    def _write(self, orders: list[Order]) -> None:
        try:
            writer = self._open()
        except OSError as error:
            names = [name for order in orders for name in order.names]
            with self._changed:
                self._miss(len(orders), names, f"{type(error).__name__}: {error}")
            return
        self._have_index()
        try:
            said = self._made(orders)
        except sqlite3.Error as error:
            self._lose_index(error)
            said = self._made(orders)
        if said:
            self._say(writer, said)

    def _open(self) -> ArchiveWriter:
        """The files; begun where they are not.

        Raises:
            OSError: no file can be made.
        """
        if self._writer is None:
            self._writer = ArchiveWriter(self.author)
            self._count(self._writer)
        return self._writer

    def _made(self, orders: list[Order]) -> list[Said]:
        known = Known(self._index)
        return [each for order in orders for each in order.make(known)]

    def _say(self, writer: ArchiveWriter, said: list[Said]) -> None:
        if self._excess(writer) >= 0 and self.config.full == "stop":
            heads = [head for head, _ in said]
            with self._changed:
                self._miss(len(heads), [n for head in heads for n in names_of(head)], STOPPED)
            return
        with self._changed:
            missing, self._missing = self._missing, Missing()
        try:
            self._follow(writer.write([*missing.told(), *said]))
        except OSError as error:
            with self._changed:
                later, self._missing = self._missing, missing
                names = [name for head, _ in said for name in names_of(head)]
                self._miss(len(said), names, f"{type(error).__name__}: {error}")
                self._missing.add(later.count, later.names, later.reason or self.state.reason)
        else:
            self._keep_bound(writer)
        self._count(writer)

    def _count(self, writer: ArchiveWriter) -> None:
        with self._changed:
            self.state.records, self.state.num_bytes = writer.sequence, writer.num_bytes
            self.state.head = writer.digest.hex()

    def _excess(self, writer: ArchiveWriter) -> int:
        return writer.num_bytes + self._index_bytes() + self._slack - self.author.bytes_max

    def _index_bytes(self) -> int:
        try:
            return self._index.num_bytes if self._index is not None else 0
        except sqlite3.Error as error:
            self._lose_index(error)
            return 0

    @property
    def _slack(self) -> int:
        """What is written at once, at most and roughly: the bound is looked at in between."""
        return self.author.bytes_max // SLACK

    def _keep_bound(self, writer: ArchiveWriter) -> None:
        """Remove the oldest files; what is removed is written down first."""
        excess = self._excess(writer)
        if excess <= 0 or self.config.full == "stop":
            return
        if (removed := writer.oldest(excess)) is None:
            return
        try:
            self._follow(writer.write([(removed, None)]))
            writer.unlink(removed)
        except OSError as error:
            # They stay, and are tried again with the next record.
            self.state.reason = f"{type(error).__name__}: {error}"

    # ---- the index -----------------------------------------------------------------------

    def _have_index(self) -> None:
        """Open it, or go on without: readers make it up from the records."""
        if not self.keeps_index or self._index is not None:
            return
        self._index_again -= 1
        if self._index_again > 0:
            return
        try:
            self._index = self._wait_for_index()
            self._index.catch_up()
            self.state.index = ""
        except (IndexLocked, OSError, sqlite3.Error) as error:
            self._lose_index(error)

    def _wait_for_index(self) -> Index:
        """A reader has it for as long as it takes to catch up; readers of a live run wait for us.

        Raises:
            IndexLocked: somebody keeps it all the same.
        """
        for _ in range(INDEX_TRIES):
            try:
                return Index(self.author.run_folder)
            except IndexLocked:
                self._closing.wait(INDEX_TRY_S)
        return Index(self.author.run_folder)

    def _follow(self, landed: Landed) -> None:
        if self._index is None:
            return
        written = [
            Written(offset, record.time, head, _text(head, body))
            for offset, record, (head, body) in landed.items
        ]
        try:
            self._index.add(self.author.writer, landed.segment, landed.end, written)
            self._index.catch_up(but=self.author.writer)
        except (OSError, sqlite3.Error) as error:
            self._lose_index(error)

    def _lose_index(self, error: Exception) -> None:
        """It fails; where the file itself is broken, the next try begins with a new one."""
        if self._index is not None and isinstance(error, sqlite3.Error) and is_damage(error):
            try:
                self._index.discard()
            except OSError as why_not:
                error = why_not
        self._drop_index(f"{type(error).__name__}: {error}")

    def _drop_index(self, reason: str) -> None:
        self.state.index = reason
        self._index_again = INDEX_AGAIN_ORDERS
        if self._index is not None:
            self._index.close()
            self._index = None


def _text(head: Head, body: object) -> str:
    if not isinstance(head, Arrived):
        return ""
    assert isinstance(body, ArrivedBody)
    said = map(read_conversation, body.rows)
    return "\n".join(text_of(each) for each in said if each)
