"""Where sampled tokens end: each in exactly one account, trained or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from milepost.actors.buffer.marks import Accounted
from milepost.actors.buffer.staleness import count_loss_tokens
from milepost.messages.trajectory import Trajectory


@dataclass(slots=True)
class Waste:
    """Counts on their way into the journal, whose sums are in `Fates`; and since the last batch."""

    unwritten: Counter[str] = field(default_factory=Counter)
    """Account -> sampled tokens that no mark tells of yet."""
    window_tokens: Counter[str] = field(default_factory=Counter)
    window_filtered: Counter[str] = field(default_factory=Counter)
    window_stale: int = 0
    window_ages: list[int] = field(default_factory=list)
    """S_old of groups that were dropped for their age."""
    window_aborted: int = 0
    heard: list[tuple[str, Sequence[Trajectory]]] | None = None
    """Where somebody wants to know of it: every account and the rows that end in it, in order."""

    def add(self, account: str, trajectories: Sequence[Trajectory]) -> None:
        """These trajectories end in this account."""
        self.report({account: sum(map(count_loss_tokens, trajectories))})
        if self.heard is not None:
            self.heard.append((account, trajectories))

    def report(self, tokens: Mapping[str, int]) -> None:
        """Tokens ended here, or where somebody else says."""
        some = {name: count for name, count in tokens.items() if count}
        self.unwritten.update(some)
        self.window_tokens.update(some)

    def take_marks(self) -> tuple[Accounted, ...]:
        """What the journal is to be told; nothing when nothing has ended."""
        tokens = dict(self.unwritten)
        self.unwritten.clear()
        return (Accounted(tokens=tokens),) if tokens else ()

    def count_filtered(self, reason: str) -> None:
        """A group was dropped when it was put."""
        self.window_filtered[reason] += 1

    def count_stale(self, s_old: int | None) -> None:
        """A group was dropped for its age (None: nobody knows it)."""
        self.window_stale += 1
        if s_old is not None:
            self.window_ages.append(s_old)

    def count_aborted(self) -> None:
        """A group was given up before it was complete."""
        self.window_aborted += 1

    def take_metrics(self) -> dict[str, float]:
        """Counts since the last call, under the names that dashboards know."""
        metrics = {
            "rollout/fully_async/stale_groups_filtered": float(self.window_stale),
            "rollout/fully_async/aborted_groups_filtered": float(self.window_aborted),
        }
        for reason, count in self.window_filtered.items():
            metrics[f"rollout/dynamic_filter/drop_{reason}"] = float(count)
        for account, count in self.window_tokens.items():
            metrics[f"rollout/waste/{account}_tokens"] = float(count)
        if self.window_ages:
            metrics["rollout/fully_async/dropped_avg_staleness"] = fmean(self.window_ages)
            metrics["rollout/fully_async/dropped_max_staleness"] = float(max(self.window_ages))
        self.window_ages.clear()
        self.window_tokens.clear()
        self.window_filtered.clear()
        self.window_stale = self.window_aborted = 0
        return metrics
