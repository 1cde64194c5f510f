"""A rank's part of the archive: what the door found and what was computed of each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.layout import Refused, Trained, TrainedBody, key_of
from milepost.actors.archive.orders import Known, Order
from milepost.actors.arrays import to_bulk
from milepost.actors.trainer.door import faults, trained_versions
from milepost.actors.trainer.losses.advantages import member_advantage
from milepost.actors.trainer.verdicts import NOT_CHECKED, PASSED, passed
from milepost.actors.trainer.works import DoorRules
from milepost.messages.bulk import Bulk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from milepost.actors.archive.writer import Said
    from milepost.actors.effects import Core, Effect, Event
    from milepost.actors.trainer.works import BatchVerdict, StepOutcome
    from milepost.configs.run import AlgorithmConfig
    from milepost.messages.buffer import Batch
    from milepost.messages.trajectory import Trajectory

ORDER_BYTES: Final = 1024
"""What an order keeps in memory of each row besides arrays."""
NOTHING: Final = Bulk("uint8", (0,), b"")


@dataclass(slots=True)
class TrainerArchivist:
    """Has the archive written, on the thread of its hand; nothing is computed twice for it."""

    hand: ArchiveHand
    algorithm: AlgorithmConfig
    _rules: dict[int, DoorRules] = field(default_factory=dict)
    """Step of a checked batch -> what the door held it against."""

    def checked(self, batch: Batch, rules: DoorRules, verdict: BatchVerdict) -> None:
        """The door has looked at a batch: what it refuses is named row by row."""
        self._rules[batch.step] = rules
        groups = {refusal.group_id for refusal in verdict.refusals}
        rows = [row for row in batch.trajectories if row.group_id in groups]
        if rows:
            size = sum(map(_num_bytes, rows))
            self._put(rows, size, lambda _: refused(batch.step, rows, rules))

    def trained(
        self, batch: Batch, outcome: StepOutcome, logprobs: Sequence[Sequence[NDArray[Any]]]
    ) -> None:
        """A batch was trained; one that was not, for a number that is not finite, is not named."""
        rules = self._rules.pop(batch.step)
        if outcome.tripped:
            return
        thin = msgspec.structs.replace(batch, trajectories=tuple(map(_thin, batch.trajectories)))
        size = sum(each.nbytes for rows in logprobs for each in rows)
        size += sum(map(_num_bytes, thin.trajectories))
        self._put(thin.trajectories, size, lambda _: trained(thin, logprobs, self.algorithm, rules))

    def _put(
        self, rows: Sequence[Trajectory], num_bytes: int, make: Callable[[Known], Iterator[Said]]
    ) -> None:
        names = tuple(row.trajectory_id for row in rows)
        self.hand.put(Order(make, ORDER_BYTES * len(rows) + num_bytes, names))


@dataclass(slots=True)
class ArchivedTrainer:
    """A rank's core whose statistics say how far its archive is. A `Core` itself."""

    core: Core
    hand: ArchiveHand

    def start(self, now_s: float) -> list[Effect]:
        """The core's."""
        return self.core.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The core's."""
        return self.core.handle(event, now_s)

    def validate(self) -> None:
        """Assert the core's."""
        self.core.validate()

    def statistics(self) -> dict[str, object]:
        """The core's, and how far the archive is."""
        return {**self.core.statistics(), "archive": self.hand.told()}

    def working_on(self) -> str:
        """The core's."""
        return self.core.working_on()


def _thin(row: Trajectory) -> Trajectory:
    """What is written of a trained row: its other arrays would live for as long as the disk takes.

    It has passed the door, so it has a seal, and its key is that.
    """
    return msgspec.structs.replace(
        row, token_ids=NOTHING, logprobs=NOTHING, provenance=NOTHING, routes=None
    )


def _num_bytes(row: Trajectory) -> int:
    arrays = (row.token_ids, row.loss_mask, row.logprobs, row.provenance, row.routes)
    return sum(each.nbytes for each in arrays if each is not None)


def refused(step: int, rows: Sequence[Trajectory], rules: DoorRules) -> Iterator[Said]:
    """Every row of the groups that were refused, with all its faults by contract."""
    for row in rows:
        contracts = passed(rules)
        for fault in faults(row, rules):
            name, _, what = fault.partition(": ")
            contract = name.partition(" ")[0]
            known = contracts.get(contract, PASSED)
            contracts[contract] = what if known in (PASSED, NOT_CHECKED) else f"{known}; {what}"
        head = Refused(
            key=key_of(row),
            trajectory_id=row.trajectory_id,
            row=row.row,
            step=step,
            contracts=contracts,
        )
        yield head, None


def trained(
    batch: Batch,
    logprobs: Sequence[Sequence[NDArray[Any]]],
    algorithm: AlgorithmConfig,
    rules: DoorRules,
) -> Iterator[Said]:
    """Every row of a batch with its advantage and what was computed of it."""
    places = [count() for _ in batch.minibatch_loss_tokens]
    digests = rules.digests
    for row, minibatch in zip(batch.trajectories, batch.minibatch_of, strict=True):
        place = next(places[minibatch])
        advantage = 0.0
        if not rules.sft:
            advantage = member_advantage(
                row.reward,
                row.group_rewards,
                normalize_std=algorithm.normalize_std,
                std_epsilon=algorithm.std_epsilon,
            )
        versions = trained_versions(row)
        head = Trained(
            key=key_of(row),
            trajectory_id=row.trajectory_id,
            row=row.row,
            step=batch.step,
            advantage=advantage,
            staleness=batch.step - min(versions) if versions else None,
            group_rewards=row.group_rewards,
            digests={
                span.version: digests[span.version] for span in row.spans if span.version in digests
            },
            contracts=passed(rules),
        )
        yield head, TrainedBody(logprobs=to_bulk(logprobs[minibatch][place], "float32"))
