"""One engine's way to a version: PREPARE, every move, then ACTIVATE when the epoch says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from milepost.actors.effects import Ask
from milepost.actors.publisher.works import VersionWritten
from milepost.messages.bulk import ITEM_BYTES
from milepost.messages.engine import AbortEpoch, ActivateEpoch, PauseMode, PrepareEpoch
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.shared import Message


@dataclass(slots=True)
class Weights:
    """One version, with the buckets that have come so far."""

    ready: VersionReady
    since_s: float
    buckets: dict[int, BucketReady] = field(default_factory=dict)
    num_failures: int = 0
    written: VersionWritten | None = None
    """It is complete on the disk; the buckets are gone then (transport disk-delta)."""
    writing: str = ""
    """Key of the work that writes it now; empty: none does."""
    meeting: str = ""
    """Key of the newest question to have it broadcast."""
    wants_bytes: bool = False
    """The trainer was asked for the bytes of a version that lies on its GPU."""

    @property
    def version(self) -> int:
        """Its number."""
        return self.ready.version

    @property
    def is_complete(self) -> bool:
        """True when every bucket is here, or has been written to the disk."""
        return self.written is not None or len(self.buckets) == self.ready.num_buckets

    @property
    def announced_bytes(self) -> int:
        """Of all tensors that were announced."""
        return sum(prod(spec.shape) * ITEM_BYTES[spec.dtype] for spec in self.ready.tensors)

    def was_written(self, written: VersionWritten) -> None:
        """It is complete on the disk: its bytes are needed here no longer."""
        self.written, self.writing = written, ""
        self.buckets.clear()


class Phase(StrEnum):
    """Where an engine is on its way."""

    IDLE = "idle"
    PREPARING = "preparing"
    MOVING = "moving"
    MOVED = "moved"
    ACTIVATING = "activating"
    GONE = "gone"
    """Dead, or silent: it is given nothing before it says that it is ready, or a retry is due. The
    next life of a dead one is asked for its word."""


@dataclass(slots=True)
class Lane:
    """What one engine has and is getting. At most one question to it is open."""

    engine: str
    phase: Phase = Phase.IDLE
    target: Weights | None = None
    confirmed: int | None = None
    """The version it serves, as far as it confirmed."""
    was_heard: bool = False
    """Its present life has said something: silence is its failure from then on."""
    num_failures: int = 0
    """Attempts in a row that did not bring it to a version."""
    num_moves: int = 0
    """Messages of MOVE on the way to the target."""
    num_moved: int = 0
    """Of these, how many were answered."""
    was_compared: bool = False
    """Every tensor was compared after its first version (`check_weight_update_equal`)."""
    is_waiting: bool = False
    """A question to the engine is open."""
    gpu: str = ""
    """UUID of the GPU that it copies within, as it said to the last PREPARE."""
    by_handle: bool = False
    """Some of its target, or of what it confirmed last, was copied within the GPU."""
    takes_bytes: bool = False
    """It refused a handle: from then on it gets bytes."""
    _token: int = 0

    def key(self) -> str:
        """Key of the open question; answers to older ones are recognised by their token."""
        return f"lane/{self.engine}/{self._token}"

    def begin(self, target: Weights, num_moves: int, *, randomize: bool) -> Ask:
        """Start over towards `target`, whatever was going on.

        Args:
            target: the version.
            num_moves: messages of MOVE that will follow.
            randomize: see `PrepareEpoch`.
        """
        self.target = target
        self.phase = Phase.PREPARING
        self.num_moves, self.num_moved = num_moves, 0
        self.by_handle = False
        ready = target.ready
        prepare = PrepareEpoch(
            version=ready.version,
            tensors=ready.tensors,
            num_buckets=num_moves,
            randomize=randomize,
        )
        return self.ask(prepare)

    def ask(self, message: Message, deadline_s: float | None = None) -> Ask:
        """A question about the target; answers to older ones mean nothing from now on."""
        self._token += 1
        self.is_waiting = True
        return Ask(self.engine, message, self.key(), deadline_s)

    def answered(self, device: str = "") -> None:
        """The open question got a good answer: one step on.

        Args:
            device: as of `EpochAnswer`.
        """
        self.is_waiting = False
        if self.phase is Phase.PREPARING:
            self.phase, self.gpu = Phase.MOVING, device
        elif self.phase is Phase.MOVING:
            self.num_moved += 1
        if self.phase is Phase.MOVING and self.num_moved == self.num_moves:
            self.phase = Phase.MOVED

    def activate(self, mode: PauseMode) -> Ask:
        """Everything has arrived: switch."""
        assert self.phase is Phase.MOVED, self.phase
        assert self.target is not None
        self.phase = Phase.ACTIVATING
        ready = self.target.ready
        return self.ask(ActivateEpoch(version=ready.version, mode=mode, digest=ready.digest))

    def confirm(self) -> None:
        """The engine serves its target."""
        assert self.target is not None
        self.confirmed = self.target.version
        self.num_failures = 0
        self.stop(Phase.IDLE)

    def stop(self, phase: Phase) -> None:
        """Nothing more is under way; a late answer changes nothing."""
        self._token += 1
        self.is_waiting = False
        self.target = None
        self.phase = phase
        if phase is Phase.GONE:
            self.confirmed, self.was_compared, self.takes_bytes = None, False, False

    def ask_for_word(self, deadline_s: float) -> Ask:
        """The engine died: gone, until its next life answers this, or speaks up by itself."""
        version = self.target.version if self.target else 0
        self.stop(Phase.GONE)
        self.was_heard = False
        reason = f"a life of {self.engine} died, its next one begins with nothing"
        return self.ask(AbortEpoch(version=version, reason=reason), deadline_s)

    def __str__(self) -> str:
        """Engine, phase and progress."""
        if self.phase is Phase.MOVING and self.target:
            return f"{self.engine} {self.num_moved}/{self.num_moves} buckets"
        return f"{self.engine} {self.phase}"
