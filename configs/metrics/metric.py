"""One metric, and how its name is found when a part of it is only known in a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PART: Final = re.compile(r"\{(\w+)\}")
SUFFIX: Final = "@"
"""Behind a name that two sources said in one step: `name@ACTOR`. Names may hold it themselves."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a name of metrics.jsonl means.

    Attributes:
        name: as it is written; `{part}` stands for one or more words of the run's own.
        unit: `1` for a ratio or a plain number, else what is counted or measured.
        meaning: one sentence.
    """

    name: str
    unit: str
    meaning: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches every name that this metric goes by."""
        pieces = PART.split(self.name)
        # Odd pieces are the names of the parts.
        words = (f"(?P<{x}>.+)" if at % 2 else re.escape(x) for at, x in enumerate(pieces))
        return re.compile("".join(words))

    def parts(self, name: str) -> dict[str, str]:
        """What stands for each part in one of its names; `name` must be one of them."""
        found = self.pattern.fullmatch(name)
        assert found is not None, f"{name} is no {self.name}"
        return found.groupdict()


class Metrics(Sequence[Metric]):
    """The table, in the order of the docs.

    Args:
        rows: all metrics; a name stands once.
    """

    def __init__(self, *rows: Metric) -> None:
        self._rows = rows
        self._plain = {row.name: row for row in rows if not PART.search(row.name)}
        self._patterns = [(row.pattern, row) for row in rows if PART.search(row.name)]
        assert len({row.name for row in rows}) == len(rows), "a metric is named twice"
        # The longest wording first: `eval/{mode}/reward` is told apart from `eval/{mode}/{name}`.
        self._patterns.sort(key=lambda one: len(PART.sub("", one[1].name)), reverse=True)
        self.split = lru_cache(maxsize=4096)(self._split)

    def __getitem__(self, at: int) -> Metric:  # type: ignore[override]
        """The row at a place."""
        return self._rows[at]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Metric]:
        """Rows in order."""
        return iter(self._rows)

    def find(self, name: str) -> Metric | None:
        """The row of a name, with or without its source; None for one that is not ours."""
        return self.split(name)[0]

    def _split(self, name: str) -> tuple[Metric | None, str, str]:
        """The row of a name, the name without its source, and the source if it has one."""
        plain, _, source = name.rpartition(SUFFIX)
        if plain and (row := self._row(plain)) is not None:
            return row, plain, source
        # No source: `passrate/pass@4` is a whole name.
        if (row := self._row(name)) is not None:
            return row, name, ""
        plain, _, source = name.partition(SUFFIX)
        return None, plain, source

    def _row(self, plain: str) -> Metric | None:
        if (row := self._plain.get(plain)) is not None:
            return row
        return next((row for pattern, row in self._patterns if pattern.fullmatch(plain)), None)
