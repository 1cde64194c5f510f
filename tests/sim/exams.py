"""Checkpoints measured by a class of the user's, in simulated runs: offers, files, slow hands.

What counts is whose score is whose: an exam says which version's files it has looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from milepost.actors.effects import (
    Answered,
    Ask,
    Core,
    Effect,
    Event,
    Received,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.evaluator.external_worker import Measured
from milepost.actors.evaluator.records import Past, Record, WentOn
from milepost.actors.evaluator.works import (
    KeepCheckpoint,
    MeasureCheckpoint,
    RemoveCheckpoint,
    WriteRecord,
)
from milepost.configs.topology import Topology
from milepost.messages.evaluator import CheckpointOffered
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trainer import VersionPublished

OFFER = "offer"
LATER = "exam/"


def hand_of(work: Work) -> str:
    """Records are written by one thread; everything else has a task of its own."""
    return "" if isinstance(work, WriteRecord) else work.key


def has_exams(topology: Topology) -> bool:
    """Whether a class of the user's measures checkpoints."""
    evaluator = topology.actors.evaluator
    return evaluator is not None and bool(evaluator.external)


@dataclass(slots=True)
class Offers:
    """How rank 0 offers its newest checkpoint, and stands still until it was taken."""

    to: str = ""
    """Empty: nobody measures checkpoints."""
    stands_still: bool = False
    _newest: tuple[int, bool] | None = None
    _known: tuple[int, bool] | None = None

    def saved(self, version: int, *, final: bool) -> None:
        """There is a checkpoint."""
        self._newest = version, final

    def go_on(self) -> list[Effect]:
        """Offer what is not offered yet, one at a time."""
        if not self.to or self._newest is None or self.stands_still or self._newest == self._known:
            return []
        self._known, self.stands_still = self._newest, True
        version, final = self._newest
        message = CheckpointOffered(step=version, folder=str(version), final=final)
        return [Ask(self.to, message, OFFER, deadline_s=60.0)]

    def handle(self, event: Event, now_s: float) -> list[Effect] | None:
        """None when the event is about something else."""
        match event:
            case Answered(key) if key == OFFER:
                self.stands_still = False
            case Unanswered(key) if key == OFFER:
                return [Wake(OFFER, now_s + 1.0)]
            case Woken(key) if key == OFFER:
                self._known, self.stands_still = None, False
            case Received(_, PeerRestarted(actor=actor)) if actor == self.to:
                self._known = None
            case _:
                return None
        return []


@dataclass(slots=True)
class Exams:
    """Files of checkpoints, the hands that keep and measure them, and the evaluator's journal."""

    random: Random
    failures: float = 0.0
    """Share of exams that crash."""
    folder: str = ""
    """Of the newest checkpoint: an older one's place is taken."""
    kept: dict[int, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Versions that some life began and did not end."""

    def recover(self, resume_version: int | None, incarnation: int) -> Past:
        """What the journal tells a life that begins; what nobody is due any more goes."""
        if incarnation == 0:
            self.records.append(WentOn(version=resume_version or 0))
        past = Past.of(self.records)
        self.left += past.due
        self.kept = {version: of for version, of in self.kept.items() if version in past.due}
        return past

    def perform(self, work: Work) -> object:
        """As the evaluator's hands would."""
        match work:
            case WriteRecord(record=record):
                self.records.append(record)
                return None
            case KeepCheckpoint(version=version, folder=folder):
                if version not in self.kept and folder != self.folder:
                    raise OSError(f"checkpoint {folder} is gone, {self.folder} is in its place")
                self.kept.setdefault(version, folder)
                return f"kept {version}"
            case MeasureCheckpoint(version=version, checkpoint=checkpoint):
                if self.random.random() < self.failures:
                    return Measured(skipped="crashed", text="no memory")
                of = self.kept[version] if checkpoint else "0"
                return Measured(metrics={"version": float(of), "luck": self.random.random()})
            case RemoveCheckpoint(version=version):
                self.kept.pop(version, None)
                return None
            case _:
                return None


@dataclass(slots=True)
class Slow:
    """The evaluator, whose exams take a while; and what it has heard of."""

    core: Core
    random: Random
    heard: Callable[[int], None]
    """Called with every version that the publisher tells it of."""
    _ended: dict[str, WorkDone] = field(default_factory=dict)

    def start(self, now_s: float) -> list[Effect]:
        return self.core.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case WorkDone(key) if key.startswith("measure/"):
                self._ended[LATER + key] = event
                return [Wake(LATER + key, now_s + 8.0 * self.random.random())]
            case Woken(key) if key in self._ended:
                return self.core.handle(self._ended.pop(key), now_s)
            case Received(_, VersionPublished(version=version)):
                self.heard(version)
                return self.core.handle(event, now_s)
            case _:
                return self.core.handle(event, now_s)

    def validate(self) -> None:
        self.core.validate()

    def statistics(self) -> dict[str, object]:
        return self.core.statistics()

    def working_on(self) -> str:
        return self.core.working_on()
