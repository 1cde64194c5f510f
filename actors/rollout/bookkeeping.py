"""The ledger with its journal and its credits: how many groups may hold a credit now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.actors.effects import Effect, Fail, Tell, Work, WorkDone
from milepost.actors.rollout.groups import Group
from milepost.actors.rollout.ledger import Ledger, group_name, place_of
from milepost.actors.rollout.records import (
    Checkpointed,
    Issued,
    Record,
    Snapshot,
    Trained,
)
from milepost.messages.buffer import GroupAbandoned
from milepost.messages.rollout import LedgerReport, StoreRecovered
from milepost.messages.trainer import LedgerWritten

RECORDS_MAX = 20_000
LEADER = "trainer-0"


@dataclass(frozen=True, slots=True)
class WriteRecords(Work):
    """Append these records to the journal; with `sync`, return when they survive a power cut."""

    records: tuple[Record, ...]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class CompactJournal(Work):
    """Replace the journal by this one record."""

    snapshot: Snapshot


@dataclass(slots=True)
class Bookkeeping:
    """Changes the ledger by records, keeps them for the journal, and does credit arithmetic.

    The buffer grants running totals. Both sides count from the beginning of the run, but each from
    its own journal; `settle` takes the difference once, whenever the buffer says what it holds.
    """

    ledger: Ledger
    granted: int = 0
    """Groups the buffer allows to hold a credit, by its own count."""
    written_every: int = 64
    """Versions from one word to the trainer, of what the journal has for good, to the next."""
    offset: int = 0
    """What our count of spent groups is ahead of the buffer's."""
    _unwritten: list[Record] = field(default_factory=list)
    _syncing: dict[str, int] = field(default_factory=dict)
    """Key of a write that syncs -> version up to which it names what was trained."""
    _written_through: int = 0
    """What the trainer was told last."""
    _num_written: int = 0
    _serial: int = 0
    _sync: bool = False

    @property
    def has_credit(self) -> bool:
        """True when one more group may be issued (RO-2)."""
        return self.ledger.num_live < self.granted + self.offset

    def grant(self, groups_total: int) -> None:
        """A running total: an older or repeated one changes nothing."""
        self.granted = max(self.granted, groups_total)

    def settle(self, groups_spent: int) -> None:
        """The buffer (re)started with this count of spent groups; its grants begin anew."""
        self.offset = self.ledger.num_spent - groups_spent
        self.granted = 0

    def record(self, record: Record) -> None:
        """Change the ledger, and remember to write it down."""
        self.ledger.apply(record)
        self._unwritten.append(record)

    def adopt(self, message: StoreRecovered) -> list[Effect]:
        """Groups that went out and that we never wrote down: our last records died with us."""
        effects: list[Effect] = []
        ledger = self.ledger
        for name in (*message.trained, *message.stored):
            if ledger.is_unheard(name):
                place = place_of(name)
                self.record(Issued(group=name, position=place.position, retry=place.retry))
            elif name in message.stored and not ledger.knows(name):
                effects.append(
                    Tell("buffer", GroupAbandoned(group_id=name, reason="not in the ledger"))
                )
        return effects

    def trained(self, groups: tuple[str, ...], version: int) -> None:
        """These groups of ours were trained, and with them the whole batch of `version`."""
        if groups or version > self.ledger.trained_through:
            self.record(Trained(groups=groups, step=version))

    def checkpointed(self, step: int) -> None:
        """What was trained up to `step` is safe: the cut through the ledger must balance."""
        self.ledger.validate()
        self.record(Checkpointed(step=step))
        self._sync = True

    def flush(self) -> list[Effect]:
        """The records since the last call, as an order to write them down."""
        if not self._unwritten and not self._sync:
            return []
        through, key = self.ledger.trained_through, self._key()
        is_news = through >= self._written_through + self.written_every
        records, sync = tuple(self._unwritten), self._sync or is_news
        self._unwritten, self._sync = [], False
        self._num_written += len(records)
        if is_news:
            self._written_through = self._syncing[key] = through
        if sync and self._num_written > RECORDS_MAX:
            self._num_written = 0
            return [CompactJournal(key, self.ledger.snapshot())]
        return [WriteRecords(key, records, sync)]

    def sync(self) -> list[Effect]:
        """Everything written so far is to survive a power cut."""
        self._sync = True
        return self.flush()

    def written(self, done: WorkDone) -> list[Effect]:
        """The journal answered."""
        if done.error:
            return [Fail(f"the journal of the ledger cannot be written: {done.error}")]
        if (version := self._syncing.pop(done.key, None)) is not None:
            return [Tell(LEADER, LedgerWritten(version=version))]
        return []

    def _key(self) -> str:
        self._serial += 1
        return f"journal/{self._serial}"

    def validate(self) -> None:
        """Assert RO-1 and that no record is left unwritten between events."""
        self.ledger.validate()
        assert not self._unwritten, self._unwritten

    def statistics(self) -> dict[str, object]:
        """The balance in numbers, asserted first: every heartbeat, so once a second."""
        ledger = self.ledger
        ledger.validate()
        return {
            "issued": ledger.num_issued,
            "trained": ledger.num_trained,
            "dropped": dict(ledger.dropped),
            "open": len(ledger.open),
            "stored": len(ledger.stored),
            "credits": self.granted + self.offset - ledger.num_live,
            "position": ledger.position,
        }

    def report(self, groups: Mapping[str, Group], now_s: float) -> LedgerReport:
        """See `LedgerReport`."""
        ledger = self.ledger
        in_flight = [_entry(group, now_s) for group in groups.values()]
        in_flight += [
            {"group_id": name, "owner": "rollout", "state": "pending", "since_s": 0.0}
            for name in ledger.open
            if name not in groups
        ]
        in_flight += [
            {"group_id": name, "owner": "buffer", "state": "stored", "since_s": 0.0}
            for name in ledger.stored
        ]
        return LedgerReport(
            issued=ledger.num_issued,
            trained=ledger.num_trained,
            dropped=dict(ledger.dropped),
            in_flight=in_flight,
            balanced=ledger.num_issued
            == ledger.num_trained + sum(ledger.dropped.values()) + len(in_flight),
        )


def _entry(group: Group, now_s: float) -> dict[str, Any]:
    missing = [
        {
            "trajectory_id": group.trajectory_id(member),
            "stage": str(member.stage),
            "owner": member.owner,
            "attempt": member.attempt,
            "for_s": round(now_s - member.since_s, 3),
        }
        for member in group.missing()
    ]
    return {
        "group_id": group_name(group.place),
        "owner": missing[0]["owner"] if missing else "buffer",
        "state": "abandoned" if group.abandoned else "open",
        "since_s": round(now_s - group.since_s, 3),
        "missing": missing,
    }
