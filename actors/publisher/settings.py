"""The numbers the publisher works with, read off the topology once."""

from __future__ import annotations

from dataclasses import dataclass

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

    @classmethod
    def of(cls, topology: Topology) -> PublisherSettings:
        """The settings of this topology."""
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
        )
