"""Who did not take word of a version, published or failed, and when each is told again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import Effect, Tell, Wake
from milepost.messages.trainer import VersionFailed, VersionPublished

BACKOFF_S: Final = 0.25
BACKOFF_S_MAX: Final = 8.0
FAILED: Final = "failed/"


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


@dataclass(slots=True)
class UntoldFailure:
    """Word of the last version that failed, until the trainer has it.

    It alone offers a version again, and before the first one nothing else would ever be heard.
    """

    leader: str
    _word: VersionFailed | None = None
    _tries: int = 0

    def say(self, word: VersionFailed) -> Effect:
        """Tell it; one that failed before is past, its trainer waits for this one."""
        self._word, self._tries = word, 0
        return self._tell(word)

    def owns(self, key: str) -> bool:
        """The key is of a word of failure."""
        return key.startswith(FAILED)

    def missed(self, key: str, now_s: float) -> list[Effect]:
        """It was not taken."""
        if self._word is None or key != _failed_key(self._word):
            return []
        pause_s = min(BACKOFF_S * 2.0**self._tries, BACKOFF_S_MAX)
        self._tries += 1
        return [Wake(key, now_s + pause_s)]

    def due(self, key: str) -> list[Effect]:
        """The pause is over."""
        if self._word is None or key != _failed_key(self._word):
            return []
        return [self._tell(self._word)]

    def taken(self, key: str) -> None:
        """The trainer has it."""
        if self._word is not None and key == _failed_key(self._word):
            self._word = None

    def _tell(self, word: VersionFailed) -> Effect:
        return Tell(self.leader, word, _failed_key(word), confirm=True)


def _failed_key(word: VersionFailed) -> str:
    return f"{FAILED}{word.version}"


def _key(name: str) -> str:
    return f"listener/{name}"
