"""The book of versions that are due: written before it is acted on, told once it is written.

A supervisor that does not take a word is told again. Whoever dies in between leaves a journal from
which the next life goes on, see `records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from milepost.actors.effects import Effect, Fail, Tell, Wake, WorkDone
from milepost.actors.evaluator.records import Due, Heard, Outcome, Past, Record
from milepost.actors.evaluator.words import score_words, skip_words
from milepost.actors.evaluator.works import WriteRecord

WRITTEN: Final = "book"
TOLD: Final = "told"
"""Keys of writing and telling begin with these."""
AGAIN_S: Final = 1.0


@dataclass(slots=True)
class Book:
    """See the module.

    Attributes:
        success_metric: that counts as success in words for people.
        past: what former lives left, and this one added.
    """

    success_metric: str
    past: Past
    _then: dict[str, tuple[Effect, ...]] = field(default_factory=dict)
    """Key of a write -> what follows when it is on disk."""
    _words: dict[str, tuple[int, Tell]] = field(default_factory=dict)
    """Key -> a word about a version that the supervisor has not taken yet."""
    _serial: int = 0

    @property
    def is_quiet(self) -> bool:
        """Everything is on disk, and told."""
        return not self._then and not self._words

    def start(self) -> list[Effect]:
        """Outcomes that nobody may have heard of are told as they were."""
        unheard = sorted(self.past.unheard)
        return [word for each in unheard for word in self._tell(self.past.outcomes[each])]

    def begin(self, due: Due, then: Sequence[Effect] = ()) -> list[Effect]:
        """A version is due; `then` is carried out once that is on disk."""
        return [self._write(due, then)]

    def settle(self, outcome: Outcome, then: Sequence[Effect] = ()) -> list[Effect]:
        """A version has its outcome, which is told once it is on disk, after `then`."""
        return [self._write(outcome, (*then, *self._tell(outcome)))]

    def _write(self, record: Record, then: Sequence[Effect] = ()) -> Effect:
        self.past.apply(record)
        self._serial += 1
        key = f"{WRITTEN}/{self._serial}"
        self._then[key] = tuple(then)
        return WriteRecord(key, record)

    def written(self, done: WorkDone) -> list[Effect]:
        """A record is on disk, or cannot be put there."""
        then = self._then.pop(done.key)
        if done.error:
            return [Fail(f"the journal of evaluations cannot be written: {done.error}")]
        return list(then)

    def _tell(self, outcome: Outcome) -> list[Effect]:
        if outcome.score is not None:
            words = score_words(outcome.score, self.success_metric)
        else:
            words = skip_words(outcome.version, outcome.reason, outcome.why)
        self._serial += 1
        told: list[Effect] = []
        for index, word in enumerate(words):
            key = f"{TOLD}/{self._serial}/{index}"
            sure = structs.replace(word, key=key, confirm=True)
            self._words[key] = outcome.version, sure
            told.append(sure)
        return told

    def taken(self, key: str) -> list[Effect]:
        """The supervisor has a word."""
        if key not in self._words:
            return []
        version, _ = self._words.pop(key)
        if version in (each for each, _ in self._words.values()):
            return []
        return [self._write(Heard(version=version))]

    def untaken(self, key: str, now_s: float) -> list[Effect]:
        """It has not: once more after a pause."""
        return [Wake(key, now_s + AGAIN_S)] if key in self._words else []

    def woken(self, key: str) -> list[Effect]:
        """The pause is over."""
        return [self._words[key][1]] if key in self._words else []
