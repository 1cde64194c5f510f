"""How a version gets to one engine: the transports as the publisher's core sees them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from milepost.actors.effects import Ask, Effect, Fail
from milepost.actors.publisher.lanes import Lane, Phase, Weights
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.publisher.works import ConfirmVersion, WriteVersion
from milepost.messages.engine import CopyBucket, PullVersion, ReceiveVersion, WeightBucket
from milepost.messages.trainer import SendBytes, SendVersion

BYTES: Final = "bytes/"
"""Keys of questions for the bytes of a version."""


class Mover(Protocol):
    """One transport.

    Attributes:
        keeps_buckets: the publisher holds the bytes of the served version, for engines that start
            again; otherwise somebody else can send it once more.
    """

    keeps_buckets: bool

    def num_moves(self, weights: Weights) -> int:
        """Messages of MOVE that an engine gets."""
        ...

    def prepare(self, weights: Weights) -> list[Effect]:
        """What must be done once before the version can be moved to anybody; safe to call again."""
        ...

    def move(self, lane: Lane, together: Sequence[Lane]) -> list[Effect]:
        """The next message of MOVE for this engine, if it can go out now.

        Args:
            lane: in MOVING, with no open question.
            together: every lane on its way to the same version in the same transaction.
        """
        ...

    def published(self, weights: Weights) -> list[Effect]:
        """Every engine serves the version."""
        ...

    def wire_bytes(self, weights: Weights, lanes: Sequence[Lane]) -> int:
        """Bytes that the publication moved to these engines, but for copies within a GPU."""
        ...


@dataclass(slots=True)
class Direct:
    """Buckets in messages, their bytes in shared memory where both ends share a host.

    A version that lies on the trainer's GPU has no bytes here. An engine on that GPU is told where
    it lies; once some engine needs bytes, the trainer is asked for them.
    """

    settings: PublisherSettings
    keeps_buckets: bool = True

    def num_moves(self, weights: Weights) -> int:
        """One for each bucket."""
        return weights.ready.num_buckets

    def prepare(self, weights: Weights) -> list[Effect]:
        """Nothing: buckets go out as they come."""
        del weights
        return []

    def move(self, lane: Lane, together: Sequence[Lane]) -> list[Effect]:
        """The next bucket, if it has come."""
        del together
        weights = lane.target
        assert weights is not None
        bucket = weights.buckets.get(lane.num_moved)
        if bucket is None:
            return []
        memory = weights.ready.memory
        if memory is not None and memory.device == lane.gpu and not lane.takes_bytes:
            lane.by_handle = True
            return [
                lane.ask(
                    CopyBucket(
                        version=bucket.version,
                        index=bucket.index,
                        names=bucket.names,
                        offsets=bucket.offsets,
                        memory=memory,
                    )
                )
            ]
        if self.settings.cuda_ipc == "always":
            return [Fail(_cannot_copy(lane, weights))]
        if len(bucket.tensors) != len(bucket.names):
            return self._ask_for_bytes(weights)
        message = WeightBucket(
            version=bucket.version, index=bucket.index, names=bucket.names, tensors=bucket.tensors
        )
        return [lane.ask(message)]

    def published(self, weights: Weights) -> list[Effect]:
        """Nothing."""
        del weights
        return []

    def wire_bytes(self, weights: Weights, lanes: Sequence[Lane]) -> int:
        """Every tensor, to every engine that did not copy it."""
        return weights.announced_bytes * sum(not lane.by_handle for lane in lanes)

    def _ask_for_bytes(self, weights: Weights) -> list[Effect]:
        if weights.wants_bytes:
            return []
        weights.wants_bytes = True
        key = f"{BYTES}{weights.version}"
        message = SendBytes(version=weights.version)
        return [Ask(self.settings.leader, message, key, self.settings.epoch_deadline_s)]


@dataclass(slots=True)
class DiskDelta:
    """The publisher writes what changed; every host patches its own copy."""

    settings: PublisherSettings
    keeps_buckets: bool = False
    num_writes: int = 0

    def num_moves(self, weights: Weights) -> int:
        """One: the version as a whole."""
        del weights
        return 1

    def prepare(self, weights: Weights) -> list[Effect]:
        """Write the version, once every bucket has come."""
        if weights.written is not None or weights.writing or not weights.is_complete:
            return []
        # A version that was given up and comes again may still be written for the last time.
        self.num_writes += 1
        weights.writing = f"write/{weights.version}/{self.num_writes}"
        buckets = tuple(weights.buckets[index] for index in sorted(weights.buckets))
        return [WriteVersion(weights.writing, weights.ready, buckets)]

    def move(self, lane: Lane, together: Sequence[Lane]) -> list[Effect]:
        """The whole version, once it is on the disk."""
        del together
        assert lane.target is not None
        if lane.target.written is None:
            return []
        message = PullVersion(version=lane.target.version, root=self.settings.delta_root)
        return [lane.ask(message, deadline_s=self.settings.epoch_deadline_s)]

    def published(self, weights: Weights) -> list[Effect]:
        """The next version stands on this one."""
        return [ConfirmVersion(f"confirm/{weights.version}", weights.version, weights.version)]

    def wire_bytes(self, weights: Weights, lanes: Sequence[Lane]) -> int:
        """Written once, read by every engine's host."""
        del lanes
        return weights.written.file_bytes if weights.written else 0


@dataclass(slots=True)
class Broadcast:
    """The rank that exported sends every bucket to all engines at once, through torch.distributed.

    A transaction's engines and the sender meet under a name that was never used before, so a member
    that died, or was late for an earlier one, cannot take part in this one.
    """

    settings: PublisherSettings
    keeps_buckets: bool = False
    num_groups: int = 0
    _assigned: dict[str, ReceiveVersion] = field(default_factory=dict)

    def num_moves(self, weights: Weights) -> int:
        """One: the meeting as a whole."""
        del weights
        return 1

    def prepare(self, weights: Weights) -> list[Effect]:
        """Nothing: the sender has the version already."""
        del weights
        return []

    def move(self, lane: Lane, together: Sequence[Lane]) -> list[Effect]:
        """Join the meeting; it is called once every member took PREPARE.

        Who comes into the transaction later, after a restart, gets a meeting of its own.
        """
        assert lane.target is not None
        weights = lane.target
        deadline_s = self.settings.epoch_deadline_s
        effects: list[Effect] = []
        mine = self._assigned.pop(lane.engine, None)
        if mine is None or mine.version != weights.version:
            # Who has it, or is in a meeting for it, needs no other.
            left = [one for one in together if one.phase is Phase.PREPARING or _is_idle(one)]
            if not weights.is_complete or not all(map(_is_idle, left)):
                return []
            effects.append(self._meet(weights, left))
            mine = self._assigned.pop(lane.engine)
        return [*effects, lane.ask(mine, deadline_s=deadline_s)]

    def published(self, weights: Weights) -> list[Effect]:
        """Nothing."""
        del weights
        return []

    def wire_bytes(self, weights: Weights, lanes: Sequence[Lane]) -> int:
        """Every tensor, to every engine."""
        return weights.announced_bytes * len(lanes)

    def _meet(self, weights: Weights, together: Sequence[Lane]) -> Effect:
        self.num_groups += 1
        group = f"{self.settings.life}-{self.num_groups}-v{weights.version}"
        buckets = tuple(weights.buckets[index].names for index in sorted(weights.buckets))
        engines = sorted(lane.engine for lane in together)
        for rank, engine in enumerate(engines, start=1):
            self._assigned[engine] = ReceiveVersion(
                version=weights.version,
                rendezvous=weights.ready.rendezvous,
                group=group,
                rank=rank,
                world_size=len(engines) + 1,
                deadline_s=self.settings.epoch_deadline_s,
                buckets=buckets,
            )
        send = SendVersion(
            version=weights.version,
            group=group,
            world_size=len(engines) + 1,
            deadline_s=self.settings.epoch_deadline_s,
        )
        key = weights.meeting = f"send/{weights.version}/{self.num_groups}"
        return Ask(self.settings.leader, send, key, self.settings.epoch_deadline_s)


def _is_idle(lane: Lane) -> bool:
    """It has room for the version, and nothing of it is on its way."""
    return lane.phase is Phase.MOVING and not lane.is_waiting


def mover_of(settings: PublisherSettings) -> Mover:
    """The transport that the topology names."""
    match settings.transport:
        case "disk-delta":
            return DiskDelta(settings)
        case "broadcast":
            return Broadcast(settings)
        case _:
            return Direct(settings)


def _cannot_copy(lane: Lane, weights: Weights) -> str:
    memory = weights.ready.memory
    theirs = "in no memory of a GPU" if memory is None else f"on GPU {memory.device}"
    ours = f"works on GPU {lane.gpu}" if lane.gpu else "opens no handles"
    refused = " and refused one" if lane.takes_bytes else ""
    return (
        f"version {weights.version} lies {theirs}, {lane.engine} {ours}{refused}, and "
        f'actors.publisher.cuda_ipc is "always": put both on one GPU, or set "auto"'
    )
