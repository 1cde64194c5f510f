"""Which batch is next: asked for on every rank, refused in part, asked for again, or never."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import Effect, Event, Fail, Taken, Tell
from milepost.actors.trainer.intake import Intake
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.ranks import Ranks
from milepost.actors.trainer.sure import SureWords
from milepost.messages.buffer import Batch, GroupsRefused
from milepost.messages.supervisor import EventReported
from milepost.messages.trainer import RankOrder

SUPERVISOR: Final = "supervisor"
REFUSALS_MAX: Final = 16
"""Times one step's batch may be asked for again because the door refused some of it."""


@dataclass(slots=True)
class Feed:
    """Rank 0's own intake, and the parts of the others."""

    plan: TrainerPlan
    ranks: Ranks
    words: SureWords
    intake: Intake
    num_refused: int = 0
    _refused: frozenset[str] = field(default=frozenset())
    """Groups of the batch being asked for that the door refused so far."""
    _refusing: str = ""
    """Key of the word to the buffer that must be taken before the batch is asked for again."""
    _again: bool = False

    def ask(self, step: int, now_s: float) -> list[Effect]:
        """Ask for the batch of `step`, unless one is on its way, checked, or being refused."""
        if self._refusing:
            return []
        if self._again:
            self._again = False
            return self._ask(self.intake.step, self.intake.attempt + 1, now_s)
        if self.intake.state != "idle":
            return []
        self._refused = frozenset()
        return self._ask(step, 0, now_s)

    def _ask(self, step: int, attempt: int, now_s: float) -> list[Effect]:
        self.ranks.expect(step, attempt)
        effects = self.ranks.order(RankOrder.ASK, step)
        return effects + self.intake.ask(step, attempt, now_s, self._refused)

    def ask_again(self) -> list[Effect]:
        """The buffer restarted; what it died with and hands out again is refused again."""
        self._refused = frozenset()
        return self.intake.ask_again()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Events of the own intake."""
        effects, part = self.intake.handle(event, now_s)
        if part is not None:
            self.ranks.found(part)
        return effects

    def taken(self, event: Taken) -> None:
        """The buffer knows what was refused (order matters: it must before it is asked again)."""
        if event.key == self._refusing:
            self._refusing = ""

    @property
    def ready(self) -> bool:
        """Every rank's door has seen its part of one batch."""
        arrived = self.intake.state == "ready" and self.ranks.complete
        return arrived and not (self.ranks.exhausted or self._again)

    def take(self, published: int | None) -> Batch | list[Effect]:
        """The batch, to be trained now; or what to do because part of it must not be (TR-3).

        Args:
            published: version the engines serve now.
        """
        assert self.ready, self.intake.state
        refused = self.ranks.refusals(published)
        return self._refuse(refused) if refused else self.intake.take()

    def _refuse(self, refused: dict[str, str]) -> list[Effect]:
        step, attempt = self.intake.step, self.intake.attempt
        groups, reasons = tuple(refused), tuple(refused.values())
        self.num_refused += len(groups)
        if attempt >= REFUSALS_MAX:
            return [Fail(f"door refused {attempt + 1} batches of step {step}: {reasons[0]}")]
        self._refused |= set(groups)
        self._again = True
        message = GroupsRefused(step=step, group_ids=groups, reasons=reasons)
        effects, self._refusing = self.words.tell(self.plan.buffer, message)
        event = EventReported(
            source=self.plan.ranks[0],
            kind="refused_at_door",
            text=f"step {step}: refused {len(groups)} groups, the first: {reasons[0]}",
            values=dict(refused),
        )
        return [*effects, Tell(SUPERVISOR, event)]

    def waits(self) -> str:
        """What is missing, in names."""
        step, since_s = self.intake.step, self.intake.since_s
        match self.intake.state:
            case "asked":
                what = f"the batch of step {step} from {self.plan.buffer}"
            case "checking":
                what = f"the door to look at the batch of step {step}"
            case "exhausted":
                then = ", waits for the order to drain" if self.ranks.draining else ""
                return f"has no batch of step {step}: {self.ranks.exhausted}{then}"
            case _:
                what = f"{', '.join(self.ranks.missing[:4]) or 'nothing'} to have step {step}"
        return f"waits for {what} since {since_s:.1f}, deadline {self.plan.ask_s:.0f} s, then again"
