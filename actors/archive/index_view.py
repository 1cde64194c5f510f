"""The index as an audit sees it: does it say what the records say?"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from milepost.actors.archive.layout import BUFFER, Arrived, Judged, Trained, Verdict
from milepost.actors.archive.reader import Archive
from milepost.actors.archive.segments import segment_path

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


@dataclass(slots=True)
class IndexView:
    """Compares; a live run's index may lag behind, which is no fault."""

    _archive: Archive
    _base: sqlite3.Connection
    _seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, run_folder: Path) -> IndexView:
        """The index of this run, brought up to date if nobody writes it.

        Raises:
            NoArchive: see `Archive.open`.
        """
        archive = Archive.open(run_folder)
        return cls(archive, archive.base)

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._archive.close()

    @property
    def is_current(self) -> bool:
        """As of `Archive`."""
        return self._archive.is_current

    def differences(
        self, head: Arrived, judged: Judged | None, trained: Trained | None, where: str
    ) -> Iterator[str]:
        """What the index says otherwise of a trajectory.

        Raises:
            IndexDamaged: as of `Archive.readable`.
        """
        if head.key in self._seen:
            return  # written twice: its former writer had no index to ask
        self._seen.add(head.key)
        if not self.is_current:
            return
        statement = "SELECT * FROM trajectories WHERE key = ?"
        with self._archive.readable():
            found = self._base.execute(statement, (head.key,)).fetchone()
        if found is None:
            yield "the index does not know it"
            return
        for name, said in _expected(head, judged, trained).items():
            if found[name] != said:
                yield f"the index says {name} is {found[name]!r}, the records {said!r}"
        place = segment_path(Path(BUFFER), found["segment"])
        if f"{place}:{found['offset']}" != where:
            yield f"the index says that it lies at {place}:{found['offset']}"

    def strangers(self) -> Iterator[str]:
        """What the index knows and no record tells of.

        Raises:
            IndexDamaged: as of `Archive.readable`.
        """
        with self._archive.readable():
            known = self._base.execute("SELECT key, trajectory_id FROM trajectories").fetchall()
        for key, name in known:
            if key not in self._seen:
                yield f"it knows trajectory {name}, of which there is no record"


def _expected(head: Arrived, judged: Judged | None, trained: Trained | None) -> dict[str, Any]:
    verdict = judged.verdict if judged else Verdict.WAITING
    return {
        **{name: getattr(head, name) for name in SAME},
        "mismatch": bool(head.mismatch_kinds),
        "verdict": verdict.value,
        "reason": judged.reason if judged else "",
        "step": trained.step if trained else None,
        "advantage": trained.advantage if trained else None,
        "staleness": trained.staleness if trained else None,
    }
