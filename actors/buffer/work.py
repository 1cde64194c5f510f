"""What the buffer's core orders from its hands."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.buffer.candidates import Candidate
from milepost.actors.buffer.filters import Filter
from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.marks import Mark
from milepost.actors.effects import Work


@dataclass(frozen=True, slots=True)
class JudgeGroup(Work):
    """Have all filters look at a group; the result is the reason to drop it, or empty."""

    candidate: Candidate
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class KeepGroup(Work):
    """Append a complete group to the journal."""

    group: StoredGroup


@dataclass(frozen=True, slots=True)
class WriteMarks(Work):
    """Append marks. With `covered`, sync first and forget files that no resume can ask for."""

    marks: tuple[Mark, ...]
    covered: bool = False
