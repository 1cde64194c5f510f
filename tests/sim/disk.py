"""What survives kill -9 in simulated runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.learners import Checkpoint

from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.effects import Work
from milepost.actors.rollout.bookkeeping import CompactJournal, WriteRecords
from milepost.actors.rollout.records import Record


@dataclass(slots=True)
class Disk:
    """Exactly what the hands of the real actors would have written."""

    records: list[Record] = field(default_factory=list)
    groups: dict[str, StoredGroup] = field(default_factory=dict)
    fates: Fates = field(default_factory=Fates)
    checkpoint: Checkpoint | None = None

    def _collect(self) -> None:
        """Files of three groups each go when nothing in them can be asked for."""
        names = list(self.groups)
        oldest = self.fates.oldest_checkpoint
        for at in range(0, len(names) - 3, 3):
            part = names[at : at + 3]
            if all(
                n in self.fates.gone or self.fates.trained.get(n, 1 << 60) <= oldest for n in part
            ):
                for name in part:
                    del self.groups[name]
        self.fates.forget(keep=self.groups)

    def rollout(self, work: Work) -> None:
        match work:
            case WriteRecords():
                self.records.extend(work.records)
            case CompactJournal():
                self.records = [work.snapshot]
            case _:
                raise TypeError(work)

    def buffer(self, work: Work) -> None:
        match work:
            case KeepGroup():
                self.groups[work.group.group_id] = work.group
            case WriteMarks():
                self.fates.apply_all(work.marks)
                if work.covered:
                    self._collect()
            case _:
                raise TypeError(work)
