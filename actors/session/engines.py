"""Which engine serves which session.

A session keeps its engine, which holds its prefix in the cache. The first turn goes to the engine
with the fewest of our sessions; a session moves only when its engine fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class EnginePool:
    """Loads and failures of the engines, as this session actor sees them.

    Args:
        names: all engines of the run.
        index: number of this session actor; several of them start their ties at different engines.
    """

    def __init__(self, names: Sequence[str], index: int = 0) -> None:
        start = index % len(names) if names else 0
        self._loads = dict.fromkeys((*names[start:], *names[:start]), 0)
        self._failed: dict[str, str] = {}

    @property
    def loads(self) -> dict[str, int]:
        """Sessions of each engine."""
        return dict(self._loads)

    @property
    def failed(self) -> dict[str, str]:
        """Engines that failed and have not answered since, with the reason."""
        return dict(self._failed)

    def take(self, avoid: str = "") -> str:
        """The engine for a session, counted as its load from now on.

        Engines that failed are taken only when all have; `avoid` only when there is no other.
        """
        assert self._loads, "a session needs an engine, the run has none"
        name = min(
            self._loads,
            key=lambda name: (name in self._failed, name == avoid, self._loads[name]),
        )
        self._loads[name] += 1
        return name

    def release(self, name: str) -> None:
        """A session leaves its engine."""
        self._loads[name] -= 1
        assert self._loads[name] >= 0, f"{name} was released more often than taken"

    def failed_with(self, name: str, reason: str) -> None:
        """The engine did not answer."""
        self._failed[name] = reason

    def answered(self, name: str) -> None:
        """The engine is well, or was started again."""
        self._failed.pop(name, None)
