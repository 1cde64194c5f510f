"""Who did not take word of a published version, and when each is told again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import Effect, Tell, Wake
from milepost.messages.trainer import VersionPublished

BACKOFF_S: Final = 0.25
BACKOFF_S_MAX: Final = 8.0


@dataclass(slots=True)
class Listeners:
    """The retelling of one publisher. A dead peer's link fails at once, so pauses grow."""

    _tries: Counter[str] = field(default_factory=Counter)
    """Times in a row that a listener took nothing."""
    _due: set[str] = field(default_factory=set)
    """Listeners whose pause goes on."""

    def missed(self, name: str, now_s: float) -> list[Effect]:
        """A word to this listener was not taken; several at once are one."""
        if name in self._due:
            return []
        pause_s = min(BACKOFF_S * 2.0 ** self._tries[name], BACKOFF_S_MAX)
        self._tries[name] += 1
        self._due.add(name)
        return [Wake(_key(name), now_s + pause_s)]

    def due(self, name: str, word: VersionPublished) -> list[Effect]:
        """The pause is over: tell what is served now."""
        self._due.discard(name)
        return [Tell(name, word, _key(name), confirm=True)]

    def taken(self, name: str) -> None:
        """This listener hears again."""
        del self._tries[name]


def _key(name: str) -> str:
    return f"listener/{name}"
