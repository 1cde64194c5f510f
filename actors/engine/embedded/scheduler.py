"""Who computes next: waiting sequences get rows, and take over prefixes that others computed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from milepost.actors.engine.embedded.cache import KeyValueCache
from milepost.actors.engine.embedded.prefixes import Prefix, find_prefix
from milepost.actors.engine.embedded.rows import FORGOTTEN, NOT_REUSABLE, Rows, side_by_side
from milepost.actors.engine.embedded.sequences import Reply, ScoredRow, Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scheduler:
    """Queues and rows of one engine.

    Args:
        rows: state of the rows.
        cache: their keys and values.
        running_max: rows in prefill or decoding at once.

    Attributes:
        serial: number of the weights that serve; it grows with each switch.
        waiting: in the order of arrival; retracted sequences first.
        prefilling: sequences in rows, in the order they were placed.
        decoding: rows that decode, ascending; another array whenever they change.
        where: the same rows for indexing: a slice where they lie side by side.
        prefix_tokens: prompt tokens that were not computed again.
        evictions: prefixes that were given up for another sequence.
    """

    def __init__(self, rows: Rows, cache: KeyValueCache, running_max: int) -> None:
        self.rows, self._cache, self._running_max = rows, cache, running_max
        self.serial = 0
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: NDArray[np.int64] = np.empty(0, np.int64)
        self.where: slice | NDArray[np.int64] = self.decoding
        self.prefix_tokens = 0
        self.evictions = 0

    @property
    def num_running(self) -> int:
        """Sequences in rows."""
        return len(self.prefilling) + len(self.decoding)

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.waiting) or self.num_running > 0

    def admit(self) -> None:
        """Give rows to waiting sequences while there is room."""
        passed_over: list[Sequence] = []
        while self.waiting and self.num_running < self._running_max:
            sequence = self.waiting.popleft()
            if not self._place(sequence):
                passed_over.append(sequence)
                if sequence.waits_for is None:
                    break
        self.waiting.extendleft(reversed(passed_over))

    def start_decoding(self, replies: list[Reply]) -> None:
        """Their prompts are computed and a token sampled: from now on, one token a step."""
        for reply in replies:
            self.prefilling.remove(reply)
            self.rows.decoding[reply.row] = True
        if replies:
            self._refresh()

    def remove(self, sequence: Sequence, *, keep: bool, poisoned: bool = False) -> None:
        """The sequence is over. `keep` its prefix; a `poisoned` row holds NaN and is zeroed."""
        row = sequence.row
        if row < 0:
            self.waiting.remove(sequence)
            return
        was_decoding = bool(self.rows.decoding[row])
        self.rows.release(row, keep=keep and not poisoned)
        if poisoned:
            self._cache.clear(row)
        if was_decoding:
            self._refresh()
        else:
            self.prefilling.remove(sequence)

    def retract(self, sequence: Sequence) -> None:
        """Take a sequence out of its row and put it first in the queue; its prefix is dropped."""
        self.remove(sequence, keep=False)
        sequence.computed = sequence.cached = 0
        self.waiting.appendleft(sequence)

    def running(self) -> list[Sequence]:
        """Sequences in rows: those in prefill, then those that decode."""
        decoding = [self.rows.owner[row] for row in self.decoding]
        return [*self.prefilling, *(owner for owner in decoding if owner is not None)]

    def new_weights(self) -> None:
        """Other weights serve from now on: nothing computed before is reused."""
        self.serial += 1
        self.rows.serial[self.rows.busy] = NOT_REUSABLE
        for row in np.flatnonzero(~self.rows.busy & (self.rows.last_used > 0)):
            self.rows.empty(int(row))

    # ---- rows ----------------------------------------------------------------------------

    def _place(self, sequence: Sequence) -> bool:
        if sequence.waits_for is not None:
            if sequence.waits_for in self.prefilling:
                return False
            sequence.waits_for = None
        prefix = find_prefix(self.rows, sequence, self.serial)
        if prefix.coming_from is not None and isinstance(sequence, Reply):
            sequence.waits_for = prefix.coming_from
            return False
        row = self._room_for(sequence, prefix)
        if row < 0:
            return False
        if prefix.length and row != prefix.row:
            assert self.rows.serial[prefix.row] == self.serial, (
                f"row {prefix.row} holds keys of weights {self.rows.serial[prefix.row]}, "
                f"serving {self.serial}"
            )
            self.rows.empty(row)
            self._cache.copy(prefix.row, row, prefix.length)
            self.rows.serial[row] = self.serial
        self.rows.occupy(row, sequence, prefix.length, self.serial)
        # A scored row goes through the model whole, for the log-probs of its prefix, too.
        sequence.computed = 0 if isinstance(sequence, ScoredRow) else prefix.length
        if isinstance(sequence, Reply) and sequence.cached_tokens < 0:
            sequence.cached_tokens = prefix.length
        self.prefilling.append(sequence)
        self.prefix_tokens += prefix.length
        return True

    def _room_for(self, sequence: Sequence, prefix: Prefix) -> int:
        """The row the sequence goes to, -1 while there is none."""
        rows = self.rows
        source = prefix.row
        own = rows.of_session.get(sequence.session_id, -1)
        source_is_idle = source >= 0 and not rows.busy[source]
        if source_is_idle and (source == own or rows.last_used[source] == FORGOTTEN):
            return source
        if own >= 0 and not rows.busy[own]:
            return own
        row = rows.least_used(but=source)
        if row < 0:
            # Every other row computes: the prefix's own row is taken from whoever kept it.
            return source if source_is_idle else -1
        self.evictions += bool(rows.last_used[row])
        return row

    def _refresh(self) -> None:
        self.decoding = np.flatnonzero(self.rows.decoding)
        self.where = side_by_side(self.decoding)
