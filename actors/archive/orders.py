"""What a process orders to be written into the archive, and what of it could not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from milepost.actors.archive.layout import MISSED_NAMES_MAX, Missed
from milepost.actors.archive.writer import Said

if TYPE_CHECKING:
    from milepost.actors.archive.index import Index


class Known:
    """What has been written already, for orders that must not say it twice."""

    def __init__(self, index: Index | None) -> None:
        self.index = index
        self._fresh: set[str] = set()

    def is_new(self, key: str) -> bool:
        """True once for each trajectory."""
        if key in self._fresh or (self.index is not None and self.index.knows(key)):
            return False
        self._fresh.add(key)
        return True

    def waiting(self) -> list[tuple[str, str]]:
        """(group, key) of all that have no last word."""
        return self.index.waiting() if self.index is not None else []

    def trained_since(self, step: int) -> list[tuple[str, str]]:
        """(group, key) of all that were trained in this step or later, as far as is known."""
        return self.index.trained_since(step) if self.index is not None else []

    def is_untrained(self, key: str, since: int | None) -> bool:
        """As in `Index`."""
        return self.index is not None and self.index.is_untrained(key, since)


@dataclass(slots=True)
class Missing:
    """What was not written since the last record that was."""

    count: int = 0
    reason: str = ""
    names: list[str] = field(default_factory=list)

    def add(self, count: int, names: Iterable[str], reason: str) -> None:
        """These were not."""
        self.count += count
        self.reason = reason
        self.names += names
        del self.names[MISSED_NAMES_MAX:]

    def told(self) -> list[Said]:
        """The record that says so; none when there is nothing to say."""
        if not self.count:
            return []
        return [(Missed(count=self.count, reason=self.reason, names=tuple(self.names)), None)]


Make: TypeAlias = Callable[[Known], Iterable[Said]]


@dataclass(frozen=True, slots=True)
class Order:
    """Something to be written.

    Attributes:
        make: makes the records, on the thread.
        num_bytes: that it keeps in memory until then.
        names: of the trajectories or groups it speaks of.
    """

    make: Make
    num_bytes: int
    names: tuple[str, ...]
