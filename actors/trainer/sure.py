"""Words that must arrive: told again until their receiver has taken them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import Effect, Event, Fail, Taken, Tell, Unanswered, Wake, Woken
from milepost.messages.shared import Message

AGAIN_S: Final = 0.5
TRIES_MAX: Final = 20


@dataclass(slots=True)
class SureWords:
    """Not yet taken, by key; receivers know a repeated word by its contents."""

    gone: set[str] = field(default_factory=set)
    """Receivers that are dead for good: their words are sent, and waited for by nobody."""
    _words: dict[str, tuple[str, Message, int]] = field(default_factory=dict)
    _serial: int = 0

    def __len__(self) -> int:
        """Words not yet taken, of those that may be."""
        return sum(to not in self.gone for to, _, _ in self._words.values())

    @staticmethod
    def owns(key: str) -> bool:
        """Whether an event with this key belongs here."""
        return key.startswith("sure/")

    def tell(self, to: str, message: Message) -> tuple[list[Effect], str]:
        """Send; the second result is the key of the word, to know it when it is taken."""
        self._serial += 1
        key = f"sure/{self._serial}"
        self._words[key] = (to, message, 1)
        return [Tell(to, message, key, confirm=True)], key

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Taken, undelivered, or due again."""
        match event:
            case Taken(key):
                self._words.pop(key, None)
            case Unanswered(key, to, reason) if key in self._words:
                to, message, tries = self._words[key]
                if tries >= TRIES_MAX:
                    name = type(message).__name__
                    return [Fail(f"{to} did not take {name} in {tries} tries, the last: {reason}")]
                self._words[key] = (to, message, tries + 1)
                return [Wake(key, now_s + AGAIN_S)]
            case Woken(key) if key in self._words:
                to, message, _ = self._words[key]
                return [Tell(to, message, key, confirm=True)]
            case _:
                pass
        return []
