"""Write ahead: what others are told of a group is said once its mark is in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.buffer.marks import Gone, Mark, Spent
from milepost.actors.buffer.work import WriteMarks
from milepost.actors.effects import Effect


@dataclass(slots=True)
class Writing:
    """Marks on their way into the journal, and what waits for them (BU-3)."""

    journal: bool
    """False: there is none, and nothing waits."""
    _after: dict[str, list[Effect]] = field(default_factory=dict)
    """Key of a write -> what is said once it is done."""
    _groups: dict[str, frozenset[str]] = field(default_factory=dict)
    """Key of a write -> groups whose fate it is."""
    _serial: int = 0

    def __bool__(self) -> bool:
        """True while any write is under way."""
        return bool(self._after)

    def mark(
        self, marks: tuple[Mark, ...], then: list[Effect], *, covered: bool = False
    ) -> list[Effect]:
        """Write marks, then say `then`."""
        if not self.journal:
            return then
        self._serial += 1
        key = f"marks/{self._serial}"
        self._after[key] = then
        self._groups[key] = frozenset(name for mark in marks for name in _decided(mark))
        return [WriteMarks(key, marks, covered)]

    def written(self, key: str) -> list[Effect]:
        """These marks are in the journal."""
        del self._groups[key]
        return self._after.pop(key)

    def is_unwritten(self, group: str) -> bool:
        """True while the fate of this group is on its way into the journal, and so is its word."""
        return any(group in names for names in self._groups.values())


def _decided(mark: Mark) -> tuple[str, ...]:
    match mark:
        case Gone(group=group):
            return (group,)
        case Spent(groups=groups):
            return groups
        case _:
            return ()
