"""Credits as the rollout actor is told them: a running total that only grows."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.buffer.batches import Batches
from milepost.actors.effects import Effect, Tell
from milepost.messages.rollout import CreditsGranted


@dataclass(slots=True)
class Credits:
    """What was granted so far.

    Attributes:
        batches: know how many groups there is room for.
        group_size: trajectories of one group.
        granted: groups, by the last word; -1 before the first.
    """

    batches: Batches
    group_size: int
    granted: int = -1

    def begin_anew(self) -> None:
        """The rollout actor knows of no grant any more."""
        self.granted = -1

    def grant(self, num_spent: int) -> list[Effect]:
        """Tell the total, if it has grown."""
        total = self.batches.credit_groups(num_spent)
        if total <= self.granted:
            return []
        self.granted = total
        return [Tell("rollout", CreditsGranted(samples_total=total * self.group_size))]
