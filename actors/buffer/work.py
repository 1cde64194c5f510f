"""What the buffer's core orders from its hands."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.marks import Mark
from milepost.actors.effects import Work


@dataclass(frozen=True, slots=True)
class KeepGroup(Work):
    """Append a complete group to the journal."""

    group: StoredGroup


@dataclass(frozen=True, slots=True)
class WriteMarks(Work):
    """Append marks. With `covered`, sync first and forget files that no resume can ask for."""

    marks: tuple[Mark, ...]
    covered: bool = False
