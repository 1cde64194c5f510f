"""Groups and a buffer to play with, message by message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.rows import trajectory

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.filters import first_reason
from milepost.actors.buffer.groups import StoredGroup, complete_group
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.work import JudgeGroup
from milepost.actors.effects import (
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Tell,
    Work,
    WorkDone,
)
from milepost.messages.buffer import BatchRequested, GroupOpened, TrajectoryFinished
from milepost.messages.rollout import CreditsGranted, GroupDropped, GroupStored
from milepost.messages.shared import Message, Status, VersionSpan
from milepost.messages.trajectory import Trajectory


def row(
    name: str,
    *versions: int,
    reward: float = 0.0,
    tokens: int = 1,
    status: Status = Status.COMPLETED,
    metrics: dict[str, float] | None = None,
) -> Trajectory:
    """A trajectory of one prompt token and `tokens` sampled tokens of each version in turn."""
    spans = tuple(
        VersionSpan(start=1 + at * tokens, end=1 + (at + 1) * tokens, version=version)
        for at, version in enumerate(versions)
    )
    return trajectory(name, spans=spans, reward=reward, status=status, metrics=metrics)


def group(name: str, *versions: int, rewards: tuple[float, ...] = (0.0, 1.0)) -> StoredGroup:
    """A complete group, one member for each reward."""
    return complete_group(
        name,
        [(row(f"{name}.{at}", *versions, reward=reward),) for at, reward in enumerate(rewards)],
    )


def settings(**fields: Any) -> BufferSettings:
    """Batches of two groups of two, no journal, no limits."""
    given: dict[str, Any] = {
        "steps": 10,
        "groups_per_step": 2,
        "group_size": 2,
        "num_minibatches": 1,
        "groups_max": 4,
        "imports": False,
        "pace": None,
        "publish_every": 1,
        "staleness_max": None,
        "late": "correct",
        "filters": (),
        "filtered_in_a_row_max": 0,
        "sync": False,
        "over_sampled": 0,
        "partial": False,
        "retries_unused": False,
        "journal": False,
        "success_metric": "solved",
        "checkpoints_named": 2,
    }
    return BufferSettings(**(given | fields))


@dataclass
class Play:
    """Keeps what was said and answered; asserts every invariant after every event."""

    given: BufferSettings
    fates: Fates = field(default_factory=Fates)
    stored: tuple[StoredGroup, ...] = ()
    writes: bool = True
    """False: works wait until `write`."""
    said: list[Message] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    replies: dict[int, Message] = field(default_factory=dict)
    failed: str = ""
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.core = Buffer.of(self.given, self.fates, self.stored)
        self._asked = 0
        self.carry_out(self.core.start(0.0))

    def hear(self, message: Message, source: str = "rollout") -> None:
        self.feed(Received(source, message))

    def ask(self, message: Message, source: str = "trainer-0") -> int:
        """Number of the question; `replies` has its answer when there is one."""
        self._asked += 1
        self.feed(Received(source, message, Request(source, self._asked)))
        return self._asked

    def request(self, step: int, rank: int = 0, world_size: int = 1) -> int:
        return self.ask(
            BatchRequested(step=step, rank=rank, world_size=world_size, version=step),
            f"trainer-{rank}",
        )

    def batch(self, number: int) -> Any:
        """The answer to a question, which must be there."""
        return self.replies[number]

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(_, message):
                    self.said.append(message)
                case Reply(request, message):
                    self.replies[request.message_id] = message
                case Fail(reason):
                    self.failed = reason
                case _:
                    assert isinstance(effect, Work)
                    known = [each.key for each in self.works]
                    assert effect.key not in known, f"{effect.key} is already being done"
                    self.works.append(effect)
        if self.writes:
            self.write()

    def write(self, error: str = "") -> None:
        """The threads of journal and filters do what was ordered."""
        while self.works:
            self.finish(self.works[0], error=error)

    def finish(self, work: Work, error: str = "") -> None:
        """One order is carried out, or is not."""
        self.works.remove(work)
        result = None
        if isinstance(work, JudgeGroup) and not error:
            result = first_reason(work.filters, work.candidate)
        self.feed(WorkDone(work.key, result, error))

    def put(self, name: str, *versions: int, rewards: tuple[float, ...] = (0.0, 1.0)) -> None:
        """Open a group and deliver all of it."""
        self.hear(GroupOpened(group_id=name, prompt_id="p", size=len(rewards)))
        for at, reward in enumerate(rewards):
            self.deliver(row(f"{name}.{at}", *(versions or (0,)), reward=reward))

    def hear_group_without_versions(self, name: str) -> None:
        """A group of two whose tokens say nothing of the version that sampled them."""
        self.hear(GroupOpened(group_id=name, prompt_id="p", size=2))
        self.deliver(*(row(f"{name}.{at}", reward=float(at)) for at in range(2)))

    def deliver(self, *rows: Trajectory) -> None:
        for each in rows:
            self.hear(TrajectoryFinished(trajectory=each), "session-0")

    def take(self, kind: type[Message]) -> list[Any]:
        """What was said of this type since the last look."""
        taken = [message for message in self.said if isinstance(message, kind)]
        self.said = [message for message in self.said if not isinstance(message, kind)]
        return taken

    def stored_names(self) -> list[str]:
        return [message.group_id for message in self.take(GroupStored)]

    def dropped(self) -> list[tuple[str, str, bool]]:
        return [(one.group_id, one.reason, one.retry) for one in self.take(GroupDropped)]

    def granted(self) -> int:
        """Groups that may hold a credit by the newest grant."""
        grants = self.take(CreditsGranted)
        return int(grants[-1].samples_total) // self.given.group_size if grants else -1
