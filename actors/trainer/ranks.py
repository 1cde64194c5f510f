"""Rank 0's hold on the others: orders in one sequence, and what the ranks found in a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.effects import Effect, Tell, Work
from milepost.actors.trainer.plan import TrainerPlan
from milepost.messages.bulk import Bulk
from milepost.messages.trainer import PartChecked, RankOrder, RankOrdered


@dataclass(slots=True)
class Ranks:
    """Orders given, and the checked parts of the batch that was asked for last."""

    plan: TrainerPlan
    num_orders: int = 0
    step: int = -1
    attempt: int = 0
    parts: dict[int, PartChecked] = field(default_factory=dict)

    def order(
        self,
        order: RankOrder,
        step: int,
        *,
        final: bool = False,
        rows: tuple[Bulk, ...] = (),
        temperature: float = 1.0,
        work: Work | None = None,
    ) -> list[Effect]:
        """Tell every other rank, then begin the same work here."""
        message = RankOrdered(
            index=self.num_orders,
            order=order,
            step=step,
            attempt=self.attempt,
            final=final,
            rows=rows,
            temperature=temperature,
        )
        self.num_orders += 1
        told: list[Effect] = [Tell(name, message, "order") for name in self.plan.ranks[1:]]
        return told if work is None else [*told, work]

    def expect(self, step: int, attempt: int) -> None:
        """A batch was asked for: the parts of former ones are of no interest any more."""
        self.step, self.attempt = step, attempt
        self.parts.clear()

    def found(self, part: PartChecked) -> None:
        """One rank has its part."""
        if (part.step, part.attempt) == (self.step, self.attempt):
            self.parts[part.rank] = part

    @property
    def complete(self) -> bool:
        """Every rank has its part of the batch."""
        return len(self.parts) == self.plan.world_size

    @property
    def missing(self) -> list[str]:
        """Ranks whose part has not come."""
        return [name for rank, name in enumerate(self.plan.ranks) if rank not in self.parts]

    @property
    def exhausted(self) -> str:
        """Why no batch will come; empty when one has."""
        return next((part.exhausted for part in self.parts.values() if part.exhausted), "")

    @property
    def draining(self) -> bool:
        """No batch will come before the run goes on: its end is not the end of the work."""
        return any(part.draining for part in self.parts.values())

    def refusals(self, published: int | None) -> dict[str, str]:
        """Groups not to be trained now, with the reason: faults, and age at this very moment.

        Args:
            published: version the engines serve; ages are counted from it.
        """
        refused: dict[str, str] = {}
        for part in self.parts.values():
            for group, reason in zip(part.group_ids, part.reasons, strict=True):
                refused.setdefault(group, reason)
        limit = self.plan.staleness_max
        if limit is None or published is None or not self.plan.refuses_stale:
            return refused
        for part in self.parts.values():
            for group, oldest in part.oldest.items():
                if published - oldest > limit:
                    refused.setdefault(
                        group,
                        f"C4 same version: oldest token is of version {oldest}, published is "
                        f"{published}, the limit is {limit} behind",
                    )
        return refused
