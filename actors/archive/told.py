"""What all records of an archive say of each row, gathered to be held against one another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import xxhash

from milepost.actors.archive.layout import Arrived, Head, Judged, Record, Refused, Removed, Trained


class Came(NamedTuple):
    """An arrival, less its rows."""

    where: str
    time: float
    head: Arrived
    """Without the digests of its fields."""
    text: bytes | None
    """Hash of what of its conversations can be searched; None: it cannot be read."""


class Word(NamedTuple):
    """A trainer's, of one row."""

    where: str
    record: Record
    head: Trained


def hash_of(text: str) -> bytes:
    """Stands for a text that is compared: all of them would fill the memory."""
    return xxhash.xxh3_128_digest(text.encode())


@dataclass(slots=True)
class Told:
    """By key: of a trajectory, where nothing else is said, or of a row."""

    came: dict[str, Came] = field(default_factory=dict)
    """The first arrival of each; one is written twice where its writer had no index to ask."""
    rows: set[str] = field(default_factory=set)
    """Keys of all rows that came."""
    judged: dict[str, tuple[str, Judged]] = field(default_factory=dict)
    """The last verdict on a trajectory, and where that is."""
    rewards: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """A trajectory's group's rewards, by the buffer."""
    trained: dict[str, Word] = field(default_factory=dict)
    """Of a row, the last word."""
    rivals: dict[str, list[Word]] = field(default_factory=dict)
    """Of a row, the last words of other ranks, which trained it before a resume, or after one."""
    refused: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Of a row, (step, where) of each time that the door refused it."""
    shortened: set[str] = field(default_factory=set)
    """Writers whose oldest files were removed."""

    def hear(self, writer: str, where: str, record: Record, head: Head) -> None:
        """A record of any kind."""
        match head:
            case Judged():
                for key in head.keys:
                    self.judged[key] = where, head
                    if head.group_rewards:
                        self.rewards[key] = head.group_rewards
            case Trained():
                self._trained(writer, Word(where, record, head))
            case Refused():
                self.refused.setdefault(head.key, []).append((head.step, where))
            case Removed():
                self.shortened.add(writer)
            case _:
                pass

    def _trained(self, writer: str, word: Word) -> None:
        before = self.trained.get(word.head.key)
        if before is not None and not before.where.startswith(f"{writer}/"):
            self.rivals.setdefault(word.head.key, []).append(before)
        self.trained[word.head.key] = word

    def arrives(self, where: str, record: Record, head: Arrived, text: str | None) -> None:
        """An arrival, with what of its conversations can be searched; None: that cannot be read."""
        thin = msgspec.structs.replace(head, fields=())
        said = None if text is None else hash_of(text)
        self.came.setdefault(head.key, Came(where, record.time, thin, said))
