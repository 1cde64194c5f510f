"""What the evaluator's journal says: which versions were due, and what came of each.

The journal lies in RUN/journal/evaluator, records as msgpack, synced one by one: there are a few
for each evaluation. It is the one source of truth about lives that ended. `Due` is on disk before a
checkpoint counts as taken, `Outcome` before anybody is told of it, `Heard` after the supervisor has
taken every word of it. So a version that was due has, whenever the process dies, either no outcome
yet (it is measured again, or named), or exactly one, which is said again as it was said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from milepost.messages.evaluator import Evaluation


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Due(_Record, frozen=True, kw_only=True):
    """The version is to be measured."""

    version: int
    folder: str = ""
    """Of its checkpoint, or the starting one's own; empty where engines serve it."""


class Outcome(_Record, frozen=True, kw_only=True):
    """What came of a version: a score, or the reason why it has none."""

    version: int
    score: Evaluation | None = None
    reason: str = ""
    """One word, as in `eval/skipped_REASON`; empty with a score."""
    why: str = ""
    """For people; beside a score, what is missing of it."""


class Heard(_Record, frozen=True, kw_only=True):
    """The supervisor has the outcome of this version."""

    version: int


class WentOn(_Record, frozen=True, kw_only=True):
    """The run began, or went on from the checkpoint of `version`: later versions are void."""

    version: int


Record: TypeAlias = Due | Outcome | Heard | WentOn

_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One msgpack map; scores may hold what JSON has no word for (NaN)."""
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes) -> Record:
    """The inverse of `encode_record`.

    Raises:
        msgspec.DecodeError: not a record of this version.
    """
    return _decoder.decode(data)


@dataclass(slots=True)
class Past:
    """What the records say, and what this life adds to them.

    Attributes:
        due: versions that were begun, or wait, and have no outcome since.
        outcomes: the last one of each version; a score is never replaced by a reason.
        unheard: versions whose outcome the supervisor may not have.
        began: version at which the run got an evaluator; None in no life yet.
    """

    due: dict[int, Due] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    unheard: set[int] = field(default_factory=set)
    began: int | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> Past:
        """Everything that former lives wrote down."""
        past = cls()
        for record in records:
            past.apply(record)
        return past

    def apply(self, record: Record) -> None:
        """One record more."""
        match record:
            case Due(version=version):
                self.due[version] = record
            case Outcome(version=version):
                self.due.pop(version, None)
                if record.score is not None or not self.has_score(version):
                    self.outcomes[version] = record
                self.unheard.add(version)
            case Heard(version=version):
                self.unheard.discard(version)
            case WentOn(version=last):
                self.began = last if self.began is None else min(self.began, last)
                for version in [each for each in self.due if each > last]:
                    del self.due[version]
                for version in [each for each in self.outcomes if each > last]:
                    del self.outcomes[version]
                self.unheard = {each for each in self.unheard if each <= last}

    def has_score(self, version: int) -> bool:
        """Whether a score of it was told, or will be."""
        outcome = self.outcomes.get(version)
        return outcome is not None and outcome.score is not None

    def is_whole(self, version: int) -> bool:
        """Whether its score lacks nothing."""
        return self.has_score(version) and not self.outcomes[version].why

    @property
    def newest(self) -> int | None:
        """The last version that was due, or that the run went on from; None before the first."""
        # A run that begins at version 0 went on from nothing: version 0 itself may be due.
        return max((*self.due, *self.outcomes), default=self.began or None)
