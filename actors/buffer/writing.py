"""Write ahead: what others are told of a group is said once its mark is in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.buffer.marks import Mark
from milepost.actors.buffer.work import WriteMarks
from milepost.actors.effects import Effect


@dataclass(slots=True)
class Writing:
    """Marks on their way into the journal, and what waits for them (BU-3)."""

    journal: bool
    """False: there is none, and nothing waits."""
    _after: dict[str, list[Effect]] = field(default_factory=dict)
    """Key of a write -> what is said once it is done."""
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
        return [WriteMarks(key, marks, covered)]

    def written(self, key: str) -> list[Effect]:
        """These marks are in the journal."""
        return self._after.pop(key)
