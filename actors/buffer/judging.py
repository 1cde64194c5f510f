"""Filters at work: built in ones at once, those of the user's own as long work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milepost.actors.buffer.candidates import Candidate
from milepost.actors.buffer.filters import Sieve
from milepost.actors.buffer.groups import About, StoredGroup
from milepost.actors.buffer.waste import Waste
from milepost.actors.buffer.work import JudgeGroup
from milepost.actors.effects import WorkDone

JUDGE = "judge/"


@dataclass(slots=True)
class Judge:
    """Looks at every group once, between its completion and its storing."""

    sieve: Sieve
    waste: Waste

    def look(
        self, complete: Iterable[tuple[StoredGroup, About]], published: int | None
    ) -> tuple[list[tuple[StoredGroup, str]], list[tuple[StoredGroup, JudgeGroup]]]:
        """Groups with the reason to drop each ("": none), and those that take longer to judge."""
        judged: list[tuple[StoredGroup, str]] = []
        asked: list[tuple[StoredGroup, JudgeGroup]] = []
        for group, about in complete:
            candidate = Candidate.of(group, about, published)
            if self.sieve.is_slow:
                key = f"{JUDGE}{group.group_id}"
                asked.append((group, JudgeGroup(key, candidate, self.sieve.filters)))
            else:
                judged.append((group, self.sieve.reason(candidate)))
        return judged, asked

    @staticmethod
    def fault_of(done: WorkDone) -> str:
        """Why a filter's failure ends the run; "" when there is none."""
        name = done.key.removeprefix(JUDGE)
        said = f"a filter of actors.buffer.filters failed on {name}: {done.error}"
        return said if done.error else ""

    def count(self, group: StoredGroup, reason: str) -> None:
        """Keep the books of what became of it."""
        self.sieve.judged(reason)
        if reason:
            self.waste.add(f"filtered_{reason}", group.trajectories)
            self.waste.count_filtered(reason)
