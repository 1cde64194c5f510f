"""One engine's way to a version: PREPARE, every bucket, then ACTIVATE when the epoch says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from milepost.actors.effects import Ask
from milepost.messages.engine import ActivateEpoch, PauseMode, PrepareEpoch, WeightBucket
from milepost.messages.publisher import BucketReady, VersionReady


@dataclass(slots=True)
class Weights:
    """One version, with the buckets that have come so far."""

    ready: VersionReady
    since_s: float
    buckets: dict[int, BucketReady] = field(default_factory=dict)
    num_failures: int = 0

    @property
    def version(self) -> int:
        """Its number."""
        return self.ready.version

    @property
    def is_complete(self) -> bool:
        """True when every bucket is here."""
        return len(self.buckets) == self.ready.num_buckets

    @property
    def num_bytes(self) -> int:
        """Of all tensors that have come."""
        return sum(tensor.nbytes for bucket in self.buckets.values() for tensor in bucket.tensors)


class Phase(StrEnum):
    """Where an engine is on its way."""

    IDLE = "idle"
    PREPARING = "preparing"
    MOVING = "moving"
    MOVED = "moved"
    ACTIVATING = "activating"
    GONE = "gone"
    """Dead, or silent: nothing is sent to it before it says that it is ready, or a retry is due."""


@dataclass(slots=True)
class Lane:
    """What one engine has and is getting. At most one question to it is open."""

    engine: str
    phase: Phase = Phase.IDLE
    target: Weights | None = None
    confirmed: int | None = None
    """The version it serves, as far as it confirmed."""
    num_failures: int = 0
    """Attempts in a row that did not bring it to a version."""
    num_buckets_moved: int = 0
    _token: int = 0
    _is_waiting: bool = False

    def key(self) -> str:
        """Key of the open question; answers to older ones are recognised by their token."""
        return f"lane/{self.engine}/{self._token}"

    def begin(self, target: Weights) -> Ask:
        """Start over towards `target`, whatever was going on."""
        self._token += 1
        self.target = target
        self.phase = Phase.PREPARING
        self.num_buckets_moved = 0
        self._is_waiting = True
        ready = target.ready
        prepare = PrepareEpoch(
            version=ready.version, tensors=ready.tensors, num_buckets=ready.num_buckets
        )
        return Ask(self.engine, prepare, self.key())

    def answered(self) -> None:
        """The open question got a good answer: one step on."""
        self._is_waiting = False
        if self.phase is Phase.PREPARING:
            self.phase = Phase.MOVING
        elif self.phase is Phase.MOVING:
            self.num_buckets_moved += 1
        if self.phase is Phase.MOVING and self._has_all:
            self.phase = Phase.MOVED

    @property
    def _has_all(self) -> bool:
        return self.target is not None and self.num_buckets_moved == self.target.ready.num_buckets

    def next_bucket(self) -> list[Ask]:
        """Send the next bucket if it has come and the last one is answered."""
        if self.phase is not Phase.MOVING or self._is_waiting:
            return []
        assert self.target is not None
        bucket = self.target.buckets.get(self.num_buckets_moved)
        if bucket is None:
            return []
        self._is_waiting = True
        self._token += 1
        message = WeightBucket(
            version=bucket.version, index=bucket.index, names=bucket.names, tensors=bucket.tensors
        )
        return [Ask(self.engine, message, self.key())]

    def activate(self, mode: PauseMode) -> Ask:
        """Everything has arrived: switch."""
        assert self.phase is Phase.MOVED, self.phase
        assert self.target is not None
        self.phase = Phase.ACTIVATING
        self._is_waiting = True
        self._token += 1
        ready = self.target.ready
        message = ActivateEpoch(version=ready.version, mode=mode, digest=ready.digest)
        return Ask(self.engine, message, self.key())

    def confirm(self) -> None:
        """The engine serves its target."""
        assert self.target is not None
        self.confirmed = self.target.version
        self.num_failures = 0
        self.stop(Phase.IDLE)

    def stop(self, phase: Phase) -> None:
        """Nothing more is under way; a late answer changes nothing."""
        self._token += 1
        self._is_waiting = False
        self.target = None
        self.phase = phase
        if phase is Phase.GONE:
            self.confirmed = None

    def __str__(self) -> str:
        """Engine, phase and progress."""
        if self.phase is Phase.MOVING and self.target:
            return f"{self.engine} {self.num_buckets_moved}/{self.target.ready.num_buckets} buckets"
        return f"{self.engine} {self.phase}"
