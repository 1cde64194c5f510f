"""Which engine serves which session.

A session keeps its engine, which holds its prefix in the cache. The first turn goes to the engine
with the fewest of our sessions; a session moves only when its engine fails: it died, or did not
answer. One that refuses for now (its queue is full, it serves no version yet) is alive and kept.

Nobody says when a dead engine is back. From time to time one session tries it, and stays; the
others follow when it has generated. As long as its turn is out no second one tries: an engine that
hangs gets one session, not one every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from milepost.messages.shared import Purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

AVOIDED_S: Final = 5.0
"""How long no session is sent to an engine that failed."""


class EnginePool:
    """Loads and failures of the engines, as this session actor sees them.

    Args:
        names: all engines of the run.
        index: number of this session actor; several of them start their ties at different engines,
            and at different ranks of an engine.
        evaluation: engines that serve held-out episodes, and nothing else; without any, those of
            the run do.
    """

    def __init__(
        self, names: Sequence[str], index: int = 0, evaluation: Sequence[str] = ()
    ) -> None:
        ours, theirs = _turned(names, index), _turned(evaluation, index)
        self._loads = dict.fromkeys((*ours, *theirs), 0)
        self._serving = {
            Purpose.TRAIN: ours,
            Purpose.EVALUATE: theirs or ours,
            Purpose.PROBE: ours,
        }
        self._next_rank = dict.fromkeys(self._loads, index)
        self._failed: dict[str, str] = {}
        self._avoided_until_s: dict[str, float] = {}
        self._tried_by: dict[str, str] = {}
        """Engine that failed -> session whose turn is to show whether it is back."""

    @property
    def loads(self) -> dict[str, int]:
        """Sessions of each engine."""
        return dict(self._loads)

    @property
    def failed(self) -> dict[str, str]:
        """Engines that failed and have not generated since, with the reason."""
        return dict(self._failed)

    def num_serving(self, purpose: Purpose) -> int:
        """Engines that a session of this purpose may go to."""
        return len(self._serving[purpose])

    def take(
        self, session: str, now_s: float, avoid: str = "", purpose: Purpose = Purpose.TRAIN
    ) -> str:
        """The engine for a session, counted as its load from now on.

        Engines that failed are taken when all have, or once in a while, to see whether they are
        back; `avoid` only when there is no other.
        """
        names = self._serving[purpose]
        assert names, "a session needs an engine, the run has none"

        def rank(name: str) -> tuple[bool, bool, int]:
            is_early = now_s < self._avoided_until_s.get(name, now_s)
            is_avoided = is_early or name in self._tried_by
            return is_avoided, name == avoid, self._loads[name]

        name = min(names, key=rank)
        if name in self._failed:
            self._tried_by[name] = session
        self._loads[name] += 1
        return name

    def place(
        self, session: str, now_s: float, avoid: str = "", purpose: Purpose = Purpose.TRAIN
    ) -> tuple[str, int]:
        """As `take`, with the data-parallel rank: sessions of one engine go round its ranks.

        Nobody here knows how many ranks an engine has; it takes the number modulo them.
        """
        name = self.take(session, now_s, avoid, purpose)
        rank = self._next_rank[name]
        self._next_rank[name] += 1
        return name, rank

    def release(self, name: str) -> None:
        """A session leaves its engine."""
        self._loads[name] -= 1
        assert self._loads[name] >= 0, f"{name} was released more often than taken"

    def turn_ended(self, session: str) -> None:
        """A turn of this session has ended; if it tried an engine, another one may."""
        for name in [name for name, by in self._tried_by.items() if by == session]:
            del self._tried_by[name]

    def failed_with(self, name: str, reason: str, now_s: float) -> None:
        """The engine died, or did not answer."""
        self._failed[name] = reason
        self._tried_by.pop(name, None)
        self._avoided_until_s[name] = now_s + AVOIDED_S

    def generated(self, name: str) -> None:
        """The engine is well."""
        self._failed.pop(name, None)
        self._avoided_until_s.pop(name, None)
        self._tried_by.pop(name, None)


def _turned(names: Sequence[str], index: int) -> tuple[str, ...]:
    start = index % len(names) if names else 0
    return (*names[start:], *names[:start])
