"""The numbers the publisher works with, read off the topology once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.actors.weights.transports import READS_TENSORS
from milepost.configs.topology import Topology
from milepost.messages.engine import PauseMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings:
    """See `PublisherConfig`."""

    engines: tuple[str, ...]
    listeners: tuple[str, ...]
    """Everyone who is told of a published version."""
    leader: str
    """The trainer rank that is told of failures."""
    pause: PauseMode
    epoch_deadline_s: float
    canary: bool
    canary_difference_max: float
    check_weight_update_equal: bool = False
    reads_tensors: bool = True
    """Engines can read their tensors back by name."""
    transport: str = "direct"
    cuda_ipc: str = "auto"
    """Whether engines on the trainer's GPU copy versions there (transport direct)."""
    delta_root: str = ""
    """Folder of all versions (transport disk-delta)."""
    fleet: tuple[str, ...] = ()
    """Engines that serve evaluations only."""
    sessions: tuple[str, ...] = ()
    """Session actors that are asked for a turn before a version is published."""
    turn_s: float = 30.0
    """Longest wait for it."""
    life: str = "0"
    """Different in each life of this process: names made of it were never used before."""

    @classmethod
    def of(cls, topology: Topology, *, delta_root: str = "", life: str = "0") -> PublisherSettings:
        """The settings of this topology; for the others see the class."""
        publisher = topology.actors.publisher
        assert publisher is not None, "the topology has no publisher"
        listeners = [
            name
            for kind in ("buffer", "rollout", "session", "trainer", "evaluator")
            for name in topology.names(kind)
        ]
        return cls(
            engines=topology.names("engine"),
            listeners=tuple(listeners),
            leader=topology.names("trainer")[0],
            pause=PauseMode(publisher.pause),
            epoch_deadline_s=publisher.epoch_deadline_s,
            canary=publisher.canary,
            canary_difference_max=publisher.canary_difference_max,
            check_weight_update_equal=publisher.check_weight_update_equal,
            reads_tensors=topology.actors.engine is not None
            and topology.actors.engine.kind in READS_TENSORS,
            transport=publisher.transport,
            cuda_ipc=publisher.cuda_ipc,
            delta_root=delta_root,
            fleet=topology.names("evaluation_engine"),
            sessions=topology.names("session") if publisher.canary else (),
            turn_s=publisher.canary_turn_s,
            life=life,
        )

    def of_fleet(self, topology: Topology) -> PublisherSettings:
        """Of the evaluation engines: nobody is told of a version that they serve but who asked."""
        fleet = topology.actors.evaluation_engine
        assert fleet is not None, "the topology has no evaluation engines"
        reads = fleet.kind in READS_TENSORS
        return replace(
            self, engines=self.fleet, fleet=(), listeners=(), sessions=(), reads_tensors=reads
        )
