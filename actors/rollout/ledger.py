"""The ledger: where every prompt group of the run is, at any instant and across restarts.

    issued = trained + dropped (by reason) + open + stored

The ledger changes only through `apply(record)`. The same records are its journal, so recovery is
applying them again. Groups are named after their prompt's position, so the same prompt at the same
position has the same name in a resumed run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from milepost.actors.rollout.records import (
    Checkpointed,
    Dropped,
    Issued,
    Lost,
    Recalled,
    Record,
    Resumed,
    Snapshot,
    Stored,
    Trained,
)


class Place(NamedTuple):
    """Which prompt a group is for: its position in the endless order, and how often re-issued."""

    position: int
    retry: int


def group_name(place: Place) -> str:
    """E.g. `g0000012`, and `g0000012r1` for the first re-issue of the same prompt."""
    return f"g{place.position:07d}" + (f"r{place.retry}" if place.retry else "")


def place_of(group: str) -> Place:
    """The inverse of `group_name`."""
    position, _, retry = group.removeprefix("g").partition("r")
    return Place(int(position), int(retry or 0))


@dataclass(slots=True)
class Ledger:
    """Counts and names of all groups. Disjoint: open, stored, trained, again."""

    position: int = 0
    """The next position never issued."""
    num_issued: int = 0
    num_trained_before: int = 0
    num_spent_drops: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    open: dict[str, Place] = field(default_factory=dict)
    """Issued and not whole in the buffer."""
    stored: dict[str, Place] = field(default_factory=dict)
    trained: dict[str, tuple[Place, int]] = field(default_factory=dict)
    """With the step; names are kept until `checkpoints_named` cover them."""
    again: deque[Place] = field(default_factory=deque)
    """Prompts of recalled or dropped groups, to be issued before new ones."""
    checkpoints: tuple[int, ...] = ()
    checkpoints_named: int = 2
    """How many checkpoints back a resume may go."""
    trained_through: int = 0
    """Every group trained up to this version is known here."""
    _trained_ahead: set[int] = field(default_factory=set)
    """Later versions whose groups are known, beyond one that is missing."""

    @property
    def num_trained(self) -> int:
        """Groups trained since the run began."""
        return self.num_trained_before + len(self.trained)

    @property
    def num_spent(self) -> int:
        """Groups that used up their credit: trained, or refused after they were in a batch."""
        return self.num_trained + self.num_spent_drops

    @property
    def num_live(self) -> int:
        """Groups that hold or used up a credit: all but those dropped before any batch."""
        return len(self.open) + len(self.stored) + self.num_spent

    def next_place(self) -> Place:
        """The prompt to issue next."""
        return self.again[0] if self.again else Place(self.position, 0)

    def apply(self, record: Record) -> None:
        """Change the ledger. A record that cannot be true of it is our own mistake."""
        match record:
            case Issued():
                self._issued(record)
            case Stored():
                for group in record.groups:
                    self.stored[group] = self.open.pop(group)
            case Lost():
                for group in record.groups:
                    self.open[group] = self.stored.pop(group)
            case Recalled():
                places = [self.open.pop(group) for group in record.groups]
                self.again = deque(sorted([*self.again, *places]))
                self.num_issued -= len(places)
            case Dropped():
                self._dropped(record)
            case Trained():
                for group in record.groups:
                    self.trained[group] = (self._take(group), record.step)
                self.heard_of(record.step)
            case Checkpointed():
                self._checkpointed(record.step)
            case Resumed():
                self._resumed(record.step)
            case Snapshot():
                self._restore(record)

    def resume(self, step: int, trained: Iterable[str]) -> list[Record]:
        """Go on from the checkpoint of `step`, which says what was trained up to it.

        Returns the records that were applied. The checkpoint is the authority: word of its last
        groups may never have reached this ledger. At step 0 there is none, and so no group: what
        was trained went with its weights, and names that were forgotten could not be taken back.
        """
        if step == 0:
            empty = Ledger(checkpoints_named=self.checkpoints_named).snapshot()
            self.apply(empty)
            return [empty]
        records: list[Record] = [Resumed(step=step)]
        self.apply(records[0])
        for name in trained:
            found: list[Record] = []
            if self.is_unheard(name):
                place = place_of(name)
                found.append(Issued(group=name, position=place.position, retry=place.retry))
            if found or name in self.open or name in self.stored:
                found.append(Trained(groups=(name,), step=step))
            for record in found:
                self.apply(record)
            records += found
        return records

    def heard_of(self, version: int) -> None:
        """All groups of the batch that became `version` are known to be trained."""
        if version > self.trained_through:
            self._trained_ahead.add(version)
        while self.trained_through + 1 in self._trained_ahead:
            self.trained_through += 1
            self._trained_ahead.remove(self.trained_through)

    def knows(self, name: str) -> bool:
        """True when the group is open, stored or trained under this name."""
        return name in self.open or name in self.stored or name in self.trained

    def is_unheard(self, name: str) -> bool:
        """True for a group that went out, and whose record was lost with the process."""
        if self.knows(name):
            return False
        place = place_of(name)
        return place.position >= self.position or place in self.again

    def validate(self) -> None:
        """Assert the balance: issued = trained + dropped + in flight."""
        in_flight = len(self.open) + len(self.stored)
        dropped = sum(self.dropped.values())
        assert self.num_issued == self.num_trained + dropped + in_flight, (
            f"ledger: issued {self.num_issued} != trained {self.num_trained} + dropped {dropped} "
            f"+ in flight {in_flight}"
        )
        assert not self.open.keys() & self.stored.keys()
        assert not self.trained.keys() & (self.open.keys() | self.stored.keys())
        assert self.num_spent_drops <= dropped

    def snapshot(self) -> Snapshot:
        """All of it as one record."""
        return Snapshot(
            position=self.position,
            num_issued=self.num_issued,
            num_trained_before=self.num_trained_before,
            num_spent_drops=self.num_spent_drops,
            dropped=dict(self.dropped),
            open={group: (*place,) for group, place in self.open.items()},
            stored={group: (*place,) for group, place in self.stored.items()},
            trained={group: (*place, step) for group, (place, step) in self.trained.items()},
            again=tuple((*place,) for place in self.again),
            checkpoints=self.checkpoints,
            trained_through=self.trained_through,
            trained_ahead=tuple(sorted(self._trained_ahead)),
        )

    def _issued(self, record: Issued) -> None:
        place = Place(record.position, record.retry)
        assert record.group not in self.open, record
        assert record.group not in self.stored, record
        # Positions that were passed over had lost records, too: their prompts go out again.
        passed_over = [Place(at, 0) for at in range(self.position, record.position)]
        if passed_over:
            self.again = deque(sorted([*self.again, *passed_over]))
        if place in self.again:
            self.again.remove(place)
        self.position = max(self.position, record.position + 1)
        self.open[record.group] = place
        self.num_issued += 1

    def _dropped(self, record: Dropped) -> None:
        place = self._take(record.group)
        self.dropped[record.reason] = self.dropped.get(record.reason, 0) + 1
        self.num_spent_drops += record.consumed
        if record.again:
            self.again.append(Place(place.position, place.retry + 1))

    def _take(self, group: str) -> Place:
        return self.open.pop(group) if group in self.open else self.stored.pop(group)

    def _checkpointed(self, step: int) -> None:
        if step in self.checkpoints:
            return
        self.checkpoints = (*self.checkpoints, step)[-self.checkpoints_named :]
        if len(self.checkpoints) < self.checkpoints_named:
            return
        covered = [group for group, (_, at) in self.trained.items() if at <= self.checkpoints[0]]
        for group in covered:
            del self.trained[group]
        self.num_trained_before += len(covered)

    def _resumed(self, step: int) -> None:
        void = [group for group, (_, at) in self.trained.items() if at > step]
        for group in void:
            self.stored[group] = self.trained.pop(group)[0]
        self.checkpoints = tuple(at for at in self.checkpoints if at <= step)
        self.trained_through, self._trained_ahead = step, set()

    def _restore(self, record: Snapshot) -> None:
        self.position = record.position
        self.num_issued = record.num_issued
        self.num_trained_before = record.num_trained_before
        self.num_spent_drops = record.num_spent_drops
        self.dropped = dict(record.dropped)
        self.open = {group: Place(*place) for group, place in record.open.items()}
        self.stored = {group: Place(*place) for group, place in record.stored.items()}
        self.trained = {
            group: (Place(position, retry), step)
            for group, (position, retry, step) in record.trained.items()
        }
        self.again = deque(Place(*place) for place in record.again)
        self.checkpoints = record.checkpoints
        self.trained_through = record.trained_through
        self._trained_ahead = set(record.trained_ahead)
