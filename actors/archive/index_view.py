"""The index as an audit sees it: does it say what the records say, all of it and no more?"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from milepost.actors.archive.chain import Fault
from milepost.actors.archive.layout import BUFFER, Verdict
from milepost.actors.archive.reader import Archive
from milepost.actors.archive.schema import INDEX as FILE
from milepost.actors.archive.segments import segment_path
from milepost.actors.archive.told import Came, Told, Word, hash_of

INDEX: Final = "index"
SAME: Final = (
    "trajectory_id",
    "attempt",
    "group_id",
    "prompt_id",
    "status",
    "reward",
    "num_tokens",
    "num_sampled_tokens",
    "num_turns",
    "seconds",
)
"""Columns that repeat the head of an arrival."""
TRAJECTORIES: Final = (
    "SELECT trajectories.*, conversations.text AS text FROM trajectories"
    " LEFT JOIN conversations ON conversations.rowid = trajectories.number"
)


class Step(NamedTuple):
    """What a trainer made of a row, by whatever is left to tell it."""

    step: int | None
    advantage: float | None
    staleness: int | None


NOT_TRAINED: Final = Step(None, None, None)


def differences(archive: Archive, told: Told) -> Iterator[Fault]:
    """What the index says that the records do not say, and what it does not say that they do.

    Args:
        archive: current, so that its index lags behind nothing.
        told: all records of the same files.

    Raises:
        IndexDamaged, sqlite3.Error: see `Archive.readable`.
    """
    view = _View(archive, told)
    yield from view.trained()
    yield from view.refused()
    yield from view.trajectories()


@dataclass(slots=True)
class _View:
    archive: Archive
    told: Told
    steps: dict[str, Step] = field(default_factory=dict)
    """Key of a row -> what counts of it. Where ranks trained it in turn, whom the index heard last
    depends on when it was made."""

    # ---- what trainers wrote -------------------------------------------------------------

    def trained(self) -> Iterator[Fault]:
        for found in self._rows("SELECT * FROM trained"):
            key = found["key"]
            said = Step(found["step"], found["advantage"], found["staleness"])
            if key not in self.told.trained:
                self.steps[key] = said
                if not self._was_removed(found):
                    yield _fault(f"it knows that row {key} was trained, which no record says")
                continue
            word = self._word(found)
            head, where = word.head, _place(found)
            self.steps[key] = Step(head.step, head.advantage, head.staleness)
            expected = {**self.steps[key]._asdict(), "time": word.record.time}
            if not self._was_removed(found):
                expected["place"] = word.where
            for text in _unlike({**dict(found), "place": where}, expected):
                yield _fault(text, word)
        for key in self.told.trained.keys() & self.told.rows - self.steps.keys():
            word = self.told.trained[key]
            yield _fault(
                f"the index does not know that it was trained in step {word.head.step}", word
            )

    def _word(self, found: sqlite3.Row) -> Word:
        key, place = found["key"], _place(found)
        words: list[Word] = [self.told.trained[key], *self.told.rivals.get(key, ())]
        for word in words:
            if word.where == place:
                return word
        return words[0]

    def refused(self) -> Iterator[Fault]:
        known: dict[str, list[tuple[int, str]]] = {}
        for found in self._rows("SELECT * FROM refused"):
            said = found["step"], _place(found)
            known.setdefault(found["key"], []).append(said)
            is_known = said in self.told.refused.get(found["key"], ())
            if not is_known and found["writer"] not in self.told.shortened:
                text = f"it knows that row {found['key']} was refused in step {said[0]}"
                yield _fault(f"{text} at {said[1]}, which no record says")
        for key in self.told.refused.keys() & self.told.rows:
            for step, where in self.told.refused[key]:
                if known.get(key, []).count((step, where)) != 1:
                    text = f"the index does not know once that row {key} was refused in step {step}"
                    yield _fault(text, where=where)

    def _was_removed(self, found: sqlite3.Row) -> bool:
        return found["segment"] is None and found["writer"] in self.told.shortened

    # ---- what the buffer wrote -----------------------------------------------------------

    def trajectories(self) -> Iterator[Fault]:
        known = set()
        for found in self._rows(TRAJECTORIES):
            came = self.told.came.get(found["key"])
            known.add(found["key"])
            if came is None:
                text = f"it knows trajectory {found['trajectory_id']}, of which there is no record"
                yield _fault(text)
                continue
            where = _place(found, BUFFER)
            for text in _unlike({**dict(found), "place": where}, self._expected(came)):
                yield _fault(text, came)
            if came.text not in (None, hash_of(found["text"] or "")):
                yield _fault("what the index can find it by is not its conversation", came)
        for key in self.told.came.keys() - known:
            yield _fault("the index does not know it", self.told.came[key])

    def _expected(self, came: Came) -> dict[str, Any]:
        head = came.head
        _, judged = self.told.judged.get(head.key, ("", None))
        rewards = ",".join(map(repr, self.told.rewards.get(head.key, ())))
        return {
            **{name: getattr(head, name) for name in SAME},
            "mismatch": bool(head.mismatch_kinds),
            "verdict": (judged.verdict if judged else Verdict.WAITING).value,
            "reason": judged.reason if judged else "",
            "group_rewards": rewards or None,
            **self.steps.get(head.key, NOT_TRAINED)._asdict(),
            "time": came.time,
            "place": came.where,
        }

    def _rows(self, statement: str) -> Iterator[sqlite3.Row]:
        with self.archive.readable():
            yield from self.archive.base.execute(statement)


def _place(found: sqlite3.Row, writer: str = "") -> str:
    """As in `Fault.where`; a number that is none is told as it is."""
    segment, folder = found["segment"], Path(writer or found["writer"])
    path = segment_path(folder, segment) if isinstance(segment, int) else folder / str(segment)
    return f"{path}:{found['offset']}"


def _unlike(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for name, said in expected.items():
        if found[name] != said:
            yield f"the index says {name} is {found[name]!r}, the records {said!r}"


def _fault(text: str, source: Came | Word | None = None, where: str = FILE) -> Fault:
    match source:
        case None:
            return Fault(contract=INDEX, text=text, where=where)
        case Came(where, _, head):
            name, attempt = head.trajectory_id, head.attempt
            return Fault(
                contract=INDEX, text=text, where=where, trajectory_id=name, attempt=attempt
            )
        case Word(where, _, told):
            name = told.trajectory_id
            return Fault(contract=INDEX, text=text, where=where, trajectory_id=name, row=told.row)
